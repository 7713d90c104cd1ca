package agent

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/snapshot"
)

// wanted is what a grant must be for, and what it is judged by.
type wanted struct {
	cluster string
	kind    identity.Kind
	pin     identity.KeyID // of the root's key
	key     keyPair        // that was to be certified

	// me is the member that rejoins. Nil at a join: then the grant says who the node
	// is, and key becomes its incarnation.
	me *self
	// beliefs are what the node accepted before under the same root; nil for a node
	// that is new. Under another root the marks alone count.
	beliefs *beliefs
	// moved is the change of root that leads to pin, for a member that follows it; nil
	// if pin is its root already.
	moved *snapshot.RootChange
}

// session reports whether what is wanted is a person's or tool's identity: it
// comes without a node_bootstrap.
func (w wanted) session() bool { return w.kind == identity.Admin || w.kind == identity.Readonly }

// admitted is a grant that was verified. Only verifyGrant makes one.
type admitted struct {
	me       self
	svid     svid
	outcome  fealtyv1.JoinOutcome
	material *credential.Material
	// after are the beliefs with the grant; took lists what is news in it, in the
	// order to activate it.
	after *beliefs
	took  []taken
}

type taken struct {
	decision
	raw []byte
}

// grantError says which part of a grant does not verify.
type grantError struct {
	Part string // "chain", "root", "root statement", "trust bundle", "node_bootstrap" or "outcome"
	Err  error
}

func (e *grantError) Error() string { return "the " + e.Part + ": " + e.Err.Error() }
func (e *grantError) Unwrap() error { return e.Err }

// verifyGrant judges a grant at now as if it came from an enemy. It is pure. The
// error is a [*grantError], with the first part that fails:
//
//	outcome         it is one that is known
//	chain           leaf, mesh CA, root; the leaf is over our key
//	root            it is the pinned one
//	root statement  the root signed it, for this cluster
//	trust bundle    the config root key signed it; it believes in the pinned root
//	chain           it verifies under that bundle, and is of the cluster and kind
//	                that were asked for, and of the member that rejoins
//	node_bootstrap  it is for this node in this incarnation, under that bundle
func verifyGrant(g *fealtyv1.JoinGrant, w wanted, now func() time.Time) (*admitted, error) {
	fail := func(part string, err error) (*admitted, error) { return nil, &grantError{part, err} }
	out := &admitted{outcome: g.GetOutcome()}
	switch out.outcome {
	case fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED, fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER:
	default:
		return fail("outcome", fmt.Errorf("%d is not one that this release knows", out.outcome))
	}
	chain, err := parseChain(g.GetChain(), svidCertificates)
	if err != nil {
		return fail("chain", err)
	}
	if identity.KeyOf(chain[0]) != w.key.id {
		return fail("chain", errors.New("the certificate is over another key than was asked for"))
	}
	root := chain[2]
	if identity.KeyOf(root) != w.pin {
		return fail("root", errors.New("it is not the pinned one"))
	}
	if err := identity.CheckRoot(root, now()); err != nil {
		return fail("root", err)
	}
	// Who the certificate says we are is needed to read what is signed for us; the
	// chain is verified below, before anything is made of it.
	id, err := identity.FromCertificate(chain[0])
	if err != nil {
		return fail("chain", err)
	}
	switch {
	case id.Cluster() != w.cluster:
		return fail("chain", fmt.Errorf("it is of cluster %s, asked for was %s", id.Cluster(), w.cluster))
	case id.Kind() != w.kind:
		return fail("chain", fmt.Errorf("it is of kind %s, asked for was %s", id.Kind(), w.kind))
	case w.me != nil && id != w.me.ID:
		return fail("chain", fmt.Errorf("it is of %s, this node is %s", id, w.me.ID))
	}
	switch {
	case w.me != nil && w.moved == nil:
		out.me = *w.me
	case w.me != nil:
		a := w.me.anchor
		a.Pin, a.Root, a.RootStatement = w.pin, root.Raw, g.GetRootStatement()
		if out.me, err = a.verify(now()); err != nil {
			return fail("root statement", err)
		}
		if !out.me.configRoot.Equal(w.moved.ConfigRoot) {
			return fail("root statement", errors.New("it names another config root key than the signers authorized"))
		}
	default:
		a := anchor{Cluster: w.cluster, ID: id, Kind: w.kind, Incarnation: w.key.id, Pin: w.pin, Root: root.Raw, RootStatement: g.GetRootStatement()}
		if out.me, err = a.verify(now()); err != nil {
			return fail("root statement", err)
		}
	}

	b := w.beliefs
	if b == nil {
		b = &beliefs{}
	}
	b, err = out.take(b, snapshot.ScopeTrustBundle, g.GetTrustBundle().GetEnvelope(), now())
	if err != nil {
		return fail("trust bundle", err)
	}
	content, _ := b.held[snapshot.ScopeTrustBundle].v.TrustBundle()
	trust, err := content.IdentityWith(b.stated())
	if err != nil {
		return fail("trust bundle", err)
	}
	if !names(trust, w.pin) {
		return fail("trust bundle", errors.New("it does not believe in the pinned root"))
	}
	trusting := *b
	trusting.contact = trust
	b = &trusting
	out.svid = svid{w.key, chain}
	out.material, err = credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: w.key.Signer(), Bundle: trust, Now: now})
	if err != nil {
		return fail("chain", err)
	}
	if out.material.ID() != id {
		return fail("chain", errors.New("it identifies somebody else")) // cannot be: one reader of names
	}
	if !w.session() {
		if b, err = out.take(b, snapshot.ScopeNodeBootstrap, g.GetNodeBootstrap().GetEnvelope(), now()); err != nil {
			return fail("node_bootstrap", err)
		}
	}
	out.after = b
	return out, nil
}

// verifyRejoin is verifyGrant for a node that is a member already, in the incarnation
// that it knows or in the one that began with the key asked for: if that key was
// enrolled and the answer was lost, what is signed for the node is for that one.
func verifyRejoin(g *fealtyv1.JoinGrant, w wanted, now func() time.Time) (*admitted, error) {
	got, err := verifyGrant(g, w, now)
	if refused, ok := errors.AsType[*grantError](err); !ok || refused.Part != "node_bootstrap" {
		return got, err
	}
	anew := *w.me
	anew.Incarnation = w.key.id
	w.me = &anew
	if w.beliefs != nil {
		w.beliefs = w.beliefs.without(snapshot.ScopeNodeRuntime) // it is for the one before
	}
	if got, again := verifyGrant(g, w, now); again == nil {
		return got, nil
	}
	return nil, err
}

// take judges one snapshot of the grant, and returns the beliefs with it.
func (out *admitted) take(b *beliefs, scope snapshot.Scope, raw []byte, now time.Time) (*beliefs, error) {
	if len(raw) == 0 {
		return nil, errors.New("there is none")
	}
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return nil, err
	}
	d, err := decide(out.me, b, signed, now)
	if err != nil {
		return nil, err
	}
	if got := d.v.Header().ScopeType; got != scope {
		return nil, fmt.Errorf("it is of scope %s", got)
	}
	if !d.news {
		return b, nil
	}
	raw = bytes.Clone(raw)
	out.took = append(out.took, taken{d, raw})
	return d.after(b, raw), nil
}
