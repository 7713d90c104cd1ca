package delivery

import (
	"context"
	"encoding/hex"
	"log/slog"
	"slices"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/snapshot"
)

// listener is who is told news: a stream, or who polls.
type listener interface {
	Context() context.Context
	Send(*News) error
}

// Sender knows what one listener was sent. It belongs to one goroutine, but for what
// is wanted.
type Sender struct {
	c     *Delivery
	to    listener
	id    identity.ID
	trust *bundle.View      // sent, or held
	seen  *publication.View // of which all was sent that is for the member
	has   []holding         // what it has, one of each scope: too few for a map

	// What the member said that it holds; nil: nothing, or it was sent another one since.
	bundle, bootstrap *fealtyv1.HeldSnapshot

	mu     sync.Mutex
	asked  map[snapshot.Scope]time.Time // when it last asked for a scope whole; guarded by mu
	resend []snapshot.Scope             // the scopes that are to be sent whole; guarded by mu
	wanted chan struct{}                // there are some; capacity 1
}

// NewSender returns what sends to a listener that holds held.
func (c *Delivery) NewSender(to listener, id identity.ID, held []*fealtyv1.HeldSnapshot) *Sender {
	said := live.HeldOf(held)
	d := &Sender{c: c, to: to, id: id, wanted: make(chan struct{}, 1), has: make([]holding, 0, len(said)),
		bundle: said[string(snapshot.ScopeTrustBundle)], bootstrap: said[string(snapshot.ScopeNodeBootstrap)]}
	for scope, h := range said {
		d.set(holding{scope: snapshot.Scope(scope), epoch: h.GetAuthorityEpoch(), version: h.GetConfigVersion(),
			content: hex.EncodeToString(h.GetContentHash()), generation: h.GetGeneration()})
	}
	return d
}

// ResyncEvery bounds how often a member is sent a scope whole because it asks for that.
const ResyncEvery = 10 * time.Second

// Resync notes that the member wants scopes whole, whatever it holds.
func (d *Sender) Resync(scopes []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.c.cfg.Now()
	for _, s := range scopes[:min(len(scopes), live.MaxHeldReported)] {
		scope := snapshot.Scope(s)
		if last, ok := d.asked[scope]; !slices.Contains(snapshot.Scopes(), scope) || ok &&
			now.Sub(last).Abs() < ResyncEvery {
			continue
		}
		if d.asked == nil {
			d.asked = make(map[snapshot.Scope]time.Time)
		}
		d.asked[scope] = now
		d.resend = append(d.resend, scope)
		select {
		case d.wanted <- struct{}{}:
		default:
		}
	}
}

// Asked returns how many scopes there are that the member asked for whole.
func (d *Sender) Asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.asked)
}

// Forget drops what the member is to be sent whole from what it has.
func (d *Sender) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, scope := range d.resend {
		d.has = slices.DeleteFunc(d.has, func(h holding) bool { return h.scope == scope })
		d.seen = nil
		switch scope {
		case snapshot.ScopeTrustBundle:
			d.trust, d.bundle = nil, nil
		case snapshot.ScopeNodeBootstrap:
			d.bootstrap = nil
		}
	}
	d.resend = nil
}

// SendTrust sends the trust bundle in force, if it is news to the member.
func (d *Sender) SendTrust() error {
	t := d.c.cfg.Bundle.View()
	if t == d.trust {
		return nil
	}
	held, news := d.bundle, d.c.newsOf(t)
	if d.trust == nil && t.RootEpoch > held.GetAuthorityEpoch() || d.trust != nil && t.RootEpoch != d.trust.RootEpoch {
		// A member under an earlier root has to follow it before it can verify more.
		if err := d.to.Send(news.changes); err != nil {
			return err
		}
	}
	if d.trust != nil || !t.HeldAs(held) {
		// How the history came to its head, for the member to verify.
		if err := d.to.Send(news.links); err != nil {
			return err
		}
		if err := d.to.Send(news.bundle); err != nil {
			return err
		}
	}
	leaf := identity.FromContext(d.to.Context()).Leaf
	if d.trust != nil && d.trust.MeshKey != t.MeshKey || d.trust == nil && d.c.Outdated(leaf) {
		// The SVID is signed by a mesh CA that is on its way out: the key changed now, or
		// while this member was away, as in a recovery.
		err := d.to.Send(newsFor(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_RenewNow{
			RenewNow: &fealtyv1.RenewNow{Reason: "the mesh CA key changed with the authority epoch"}}}))
		if err != nil {
			return err
		}
	}
	d.Delivered(t)
	return nil
}

// Delivered notes that the member has t.
func (d *Sender) Delivered(t *bundle.View) { d.trust, d.bundle = t, nil }

// holding is what a member has of one scope, as far as its stream knows: what it said
// at first, then what it was sent.
type holding struct {
	scope      snapshot.Scope
	epoch      uint64 // authority
	version    uint64
	content    string // SHA-256, hex
	generation uint64 // of the record over it

	// The version that was sent; zero for what the member said.
	leaf   snapshot.Digest
	issued time.Time // of the record
	keys   string    // that signed it, see keyIDs
}

// holds returns what the member has of scope.
func (d *Sender) holds(scope snapshot.Scope) (holding, bool) {
	for _, h := range d.has {
		if h.scope == scope {
			return h, true
		}
	}
	return holding{}, false
}

// set notes what the member has of a scope.
func (d *Sender) set(has holding) {
	for i, h := range d.has {
		if h.scope == has.scope {
			d.has[i] = has
			return
		}
	}
	d.has = append(d.has, has)
}

// sentForm says how a header travels. It is a metric label.
type sentForm string

const (
	sentNothing  sentForm = ""
	sentWhole    sentForm = "whole"    // with its content
	sentRecord   sentForm = "record"   // without: the member has the content, and what is news is the record
	sentDetached sentForm = "detached" // without: the member pulls the content
	sentPatch    sentForm = "patch"    // with what makes the content of the one before
)

// inlineBytes bounds a content that is sent with its header; a larger one is pulled.
const inlineBytes = 16 << 10

// form decides how a member that has h, if it has something, is sent the header is of
// a content of size bytes under the record.
func (h holding) form(has bool, is *publication.Published, record *publication.Record, size int) sentForm {
	if has && h.content == is.Header.Content {
		if h.leaf == is.Leaf && h.keys == record.KeyIDs() && record.IssuedAt.Sub(h.issued).Abs() < publication.Renew {
			return sentNothing
		}
		if h.issued.IsZero() && h.generation == record.Generation && h.epoch == is.Header.AuthorityEpoch &&
			h.version == is.Header.ConfigVersion {
			return sentNothing // as it says
		}
		if h.keys == "" || record.SharesKey(h.keys) {
			return sentRecord
		}
		// Every key that it had this under is gone, as when one was revoked: the member may
		// have dropped it.
	}
	if size <= inlineBytes {
		return sentWhole
	}
	return sentDetached
}

// isBase reports whether h is exactly what a patch to is applies to.
func (h holding) isBase(is *publication.Published) bool {
	b := &is.Header
	return b.Base != "" && h.content == b.Base && h.version == b.BaseVersion && h.epoch == b.AuthorityEpoch
}

// SendPublished sends the member what is published for it: a new header at once, a
// newer record over the same one when the last is old enough. A record of a later
// epoch than the bundle that was sent waits for that.
func (d *Sender) SendPublished(ctx context.Context) error {
	p := d.c.cfg.Publication.View()
	if p == d.seen || !p.Serves() || p.State.Value.AuthorityEpoch > d.trust.Epoch {
		return nil
	}
	mine := p.Of(d.id.Kind(), d.id.Name())
	// Scopes that say who the member is come before those judged by that.
	slices.SortStableFunc(mine, func(i, j int) int { return rankOf(p.Header(i).Scope) - rankOf(p.Header(j).Scope) })
	for _, i := range mine {
		if err := d.sendHeader(ctx, p, i); err != nil {
			return err
		}
	}
	d.seen = p
	return nil
}

func rankOf(scope snapshot.Scope) int {
	if scope == snapshot.ScopeNodeRuntime {
		return 0
	}
	return 1
}

// sendHeader sends header i of p in the form that the member needs, if any.
func (d *Sender) sendHeader(ctx context.Context, p *publication.View, i int) error {
	is, record := p.Header(i), &p.State.Value
	h, has := d.holds(is.Scope)
	form := h.form(has, is, record, len(p.Content(is.Header.Content)))
	if (form == sentWhole || form == sentDetached) && has && h.isBase(is) && d.c.patches.of(p, i) != nil {
		form = sentPatch
	}
	if form != sentNothing {
		m, err := d.c.message(p, i, form)
		if err != nil {
			// It stays as it was for this member, and is no reason to end the stream.
			d.c.cfg.Failures.Log(ctx, d.c.cfg.Log, slog.LevelError, "a snapshot was not sent",
				slog.String("scope", string(is.Scope)), slog.String("member", d.id.String()), slog.Any("err", err))
			return nil
		}
		if err := d.to.Send(m); err != nil {
			return err
		}
		d.c.metrics.sent.WithLabelValues(string(is.Scope), string(form)).Inc()
	} else if !h.issued.IsZero() {
		return nil // it has a record that is as good
	}
	d.set(holding{scope: is.Scope,
		epoch: is.Header.AuthorityEpoch, version: is.Header.ConfigVersion, content: is.Header.Content,
		generation: record.Generation,
		leaf:       is.Leaf, issued: record.IssuedAt, keys: record.KeyIDs(),
	})
	return nil
}

// messageKey names a message that all members of a group are sent.
type messageKey struct {
	header int
	form   sentForm
}

// message returns the message that carries header i of p in a form. It is shared by all that
// are sent it.
func (c *Delivery) message(p *publication.View, i int, form sentForm) (*News, error) {
	if p.Header(i).Group == "" {
		m, err := c.newMessage(p, i, form)
		return newsFor(m), err
	}
	return publication.SharedBy(p, messageKey{i, form}, func() (*News, error) {
		m, err := c.newMessage(p, i, form)
		return newsForMany(m), err
	})
}

func (c *Delivery) newMessage(p *publication.View, i int, form sentForm) (*fealtyv1.ConnectResponse, error) {
	signed, err := p.Signed(i)
	if err != nil {
		return nil, err
	}
	if form != sentWhole {
		signed.Content = nil
	}
	if form == sentPatch {
		signed.Patch = c.patches.of(p, i)
	}
	raw, err := signed.Marshal()
	if err != nil {
		return nil, err
	}
	m := &fealtyv1.SignedSnapshot{Scope: string(p.Header(i).Scope), Envelope: raw}
	return &fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: m}}, nil
}

// Bounds on patches.
const (
	// maxPatchBytes bounds a patch that is sent: with a larger one the whole is pulled,
	// which holds up no other news.
	maxPatchBytes = 256 << 10
	// maxPatches bounds those that are kept.
	maxPatches = 64
)

// patchCache makes each patch once for all who need it, and keeps the newest.
type patchCache struct {
	mu      sync.Mutex
	entries map[patchKey]*patchOnce // guarded by mu
	order   []patchKey              // oldest first; guarded by mu
}

// patchKey names a patch by the hashes of its two contents.
type patchKey struct{ base, content string }

type patchOnce struct {
	once  sync.Once
	patch []byte // nil: the whole is to be sent
}

func newPatchCache() *patchCache { return &patchCache{entries: make(map[patchKey]*patchOnce)} }

// of returns the patch from the base of header i of p to its content, or nil.
func (c *patchCache) of(p *publication.View, i int) []byte {
	h := p.Header(i)
	base, content := p.Content(h.Header.Base), p.Content(h.Header.Content)
	if h.Header.Base == "" || base == nil {
		return nil
	}
	e := c.entry(patchKey{h.Header.Base, h.Header.Content})
	e.once.Do(func() {
		if patch, ok := snapshot.Diff(h.Scope, base, content); ok && len(patch) <= maxPatchBytes {
			e.patch = patch
		}
	})
	return e.patch
}

func (c *patchCache) alive() {
	c.mu.Lock()
	defer c.mu.Unlock()
}

func (c *patchCache) entry(key patchKey) *patchOnce {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil {
		return e
	}
	if len(c.order) == maxPatches {
		delete(c.entries, c.order[0])
		c.order = slices.Delete(c.order, 0, 1)
	}
	e := new(patchOnce)
	c.entries[key], c.order = e, append(c.order, key)
	return e
}
