package state

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// Wanted is what a grant must be for, and what it is judged by.
type Wanted struct {
	Cluster string
	Kind    identity.Kind
	Pin     identity.KeyID // of the root's key
	Key     dir.KeyPair    // that was to be certified

	// Me is the member that rejoins. Nil at a join: then the grant says who the node
	// is, and key becomes its incarnation.
	Me *Self
	// TrustState is what the node accepted before under the same root; nil for a node
	// that is new. Under another root the marks alone count.
	TrustState *TrustState
	// Moved is the change of root that leads to pin, for a member that follows it; nil
	// if pin is its root already.
	Moved *trust.RootChange
}

// session reports whether what is wanted is a person's or tool's identity: it
// comes without a node_bootstrap.
func (w Wanted) session() bool { return w.Kind == identity.Admin || w.Kind == identity.Readonly }

// Admitted is a grant that was verified. Only verifyGrant makes one.
type Admitted struct {
	Me       Self
	SVID     dir.SVID
	Outcome  fealtyv1.JoinOutcome
	Material *credential.Material
	// After is the trust state with the grant; Accepted lists what is news in it, in the
	// order to activate it.
	After    *TrustState
	Accepted []AcceptedSnapshot
}

// AcceptedSnapshot is one that was judged and is to be activated, with its bytes.
type AcceptedSnapshot struct {
	Decision
	Raw []byte
}

// GrantError says which part of a grant does not verify.
type GrantError struct {
	Part string // "chain", "root", "root statement", "trust bundle", "node_bootstrap" or "outcome"
	Err  error
}

func (e *GrantError) Error() string { return "the " + e.Part + ": " + e.Err.Error() }
func (e *GrantError) Unwrap() error { return e.Err }

// VerifyGrant judges a grant at now as if it came from an enemy. It is pure. The
// error is a [*GrantError], with the first part that fails:
//
//	outcome         it is one that is known
//	chain           leaf, mesh CA, root; the leaf is over our key
//	root            it is the pinned one
//	root statement  the root signed it, for this cluster
//	trust bundle    the config root key signed it; it believes in the pinned root
//	chain           it verifies under that bundle, and is of the cluster and kind
//	                that were asked for, and of the member that rejoins
//	node_bootstrap  it is for this node in this incarnation, under that bundle
func VerifyGrant(g *fealtyv1.JoinGrant, w Wanted, now func() time.Time) (*Admitted, error) {
	fail := func(part string, err error) (*Admitted, error) { return nil, &GrantError{part, err} }
	out := &Admitted{Outcome: g.GetOutcome()}
	switch out.Outcome {
	case fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED, fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER:
	default:
		return fail("outcome", fmt.Errorf("%d is not one that this release knows", out.Outcome))
	}
	chain, err := dir.ParseChain(g.GetChain(), dir.SVIDCertificates)
	if err != nil {
		return fail("chain", err)
	}
	if identity.KeyOf(chain[0]) != w.Key.ID {
		return fail("chain", errors.New("the certificate is over another key than was asked for"))
	}
	root := chain[2]
	if identity.KeyOf(root) != w.Pin {
		return fail("root", errors.New("it is not the pinned one"))
	}
	if r := internalidentity.CheckRoot(root, now()); r != nil {
		return fail("root", (*identity.ChainError)(r))
	}
	// Reading what is signed for us takes the name that the certificate gives us; the
	// chain is verified below, before anything is made of it.
	id, err := identity.FromCertificate(chain[0])
	if err != nil {
		return fail("chain", err)
	}
	switch {
	case id.Cluster() != w.Cluster:
		return fail("chain", fmt.Errorf("it is of cluster %s, asked for was %s", id.Cluster(), w.Cluster))
	case id.Kind() != w.Kind:
		return fail("chain", fmt.Errorf("it is of kind %s, asked for was %s", id.Kind(), w.Kind))
	case w.Me != nil && id != w.Me.ID:
		return fail("chain", fmt.Errorf("it is of %s, this node is %s", id, w.Me.ID))
	}
	switch {
	case w.Me != nil && w.Moved == nil:
		out.Me = *w.Me
	case w.Me != nil:
		a := w.Me.Anchor
		a.Pin, a.Root, a.RootStatement = w.Pin, root.Raw, g.GetRootStatement()
		if out.Me, err = a.Verify(now()); err != nil {
			return fail("root statement", err)
		}
		if !out.Me.ConfigRoot.Equal(w.Moved.ConfigRoot) {
			return fail("root statement", errors.New("it names another config root key than the signers authorized"))
		}
	default:
		a := Anchor{Cluster: w.Cluster, ID: id, Kind: w.Kind, Incarnation: w.Key.ID, Pin: w.Pin, Root: root.Raw,
			RootStatement: g.GetRootStatement()}
		if out.Me, err = a.Verify(now()); err != nil {
			return fail("root statement", err)
		}
	}

	b := w.TrustState
	if b == nil {
		b = &TrustState{}
	}
	b, err = out.take(b, snapshot.ScopeTrustBundle, g.GetTrustBundle().GetEnvelope(), now())
	if err != nil {
		return fail("trust bundle", err)
	}
	content, _ := b.Active[snapshot.ScopeTrustBundle].Verified.TrustBundle()
	trust, err := content.IdentityWith(b.Stated())
	if err != nil {
		return fail("trust bundle", err)
	}
	if !Names(trust, w.Pin) {
		return fail("trust bundle", errors.New("it does not believe in the pinned root"))
	}
	trusting := *b
	trusting.Contact = trust
	b = &trusting
	out.SVID = dir.SVID{Key: w.Key, Chain: chain}
	out.Material, err = credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: w.Key.Signer(),
		Bundle: trust, Now: now})
	if err != nil {
		return fail("chain", err)
	}
	if out.Material.ID() != id {
		return fail("chain", errors.New("it identifies somebody else")) // cannot be: one reader of names
	}
	if !w.session() {
		if b, err = out.take(b, snapshot.ScopeNodeBootstrap, g.GetNodeBootstrap().GetEnvelope(), now()); err != nil {
			return fail("node_bootstrap", err)
		}
	}
	out.After = b
	return out, nil
}

// VerifyRejoin is verifyGrant for a node that is a member already, in the incarnation
// that it knows or in the one that began with the key asked for: if that key was
// enrolled and the answer was lost, what is signed for the node is for that one.
func VerifyRejoin(g *fealtyv1.JoinGrant, w Wanted, now func() time.Time) (*Admitted, error) {
	got, err := VerifyGrant(g, w, now)
	if refused, ok := errors.AsType[*GrantError](err); !ok || refused.Part != "node_bootstrap" {
		return got, err
	}
	anew := *w.Me
	anew.Incarnation = w.Key.ID
	w.Me = &anew
	if w.TrustState != nil {
		w.TrustState = w.TrustState.Without(snapshot.ScopeNodeRuntime) // it is for the one before
	}
	if got, again := VerifyGrant(g, w, now); again == nil {
		return got, nil
	}
	return nil, err
}

// take judges one snapshot of the grant, and returns the trust state with it.
func (out *Admitted) take(b *TrustState, scope snapshot.Scope, raw []byte, now time.Time) (*TrustState, error) {
	if len(raw) == 0 {
		return nil, errors.New("there is none")
	}
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return nil, err
	}
	d, err := Decide(out.Me, b, signed, now)
	if err != nil {
		return nil, err
	}
	if got := d.V.Header().ScopeType; got != scope {
		return nil, fmt.Errorf("it is of scope %s", got)
	}
	if !d.News {
		return b, nil
	}
	raw = bytes.Clone(raw)
	out.Accepted = append(out.Accepted, AcceptedSnapshot{d, raw})
	return d.After(b, raw), nil
}

// Names reports whether the root with this key counts in full.
func Names(b *identity.Bundle, root identity.KeyID) bool {
	for _, c := range b.Roots() {
		if identity.KeyOf(c) == root {
			return true
		}
	}
	return false
}

// Journal is what is written down of a join: addresses are where coordinators were.
func (got *Admitted) Journal(addresses []string, now time.Time) (Journal, error) {
	a := got.Me.Anchor
	a.Addresses = addresses
	a.Outcome = got.Outcome.String()
	a.JoinedAt = now.UTC()
	known, err := got.After.Ledger.File()
	if err != nil {
		return Journal{}, err
	}
	pem, err := dir.EncodeSVID(got.SVID)
	if err != nil {
		return Journal{}, err
	}
	entry := Journal{SVID: pem, Anchor: a, LedgerFile: known, Snapshots: make(map[string][]byte, len(got.Accepted))}
	for _, t := range got.Accepted {
		entry.Snapshots[string(t.V.Header().ScopeType)] = t.Raw
	}
	return entry, nil
}
