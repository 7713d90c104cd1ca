package coordinator

import (
	"context"
	"encoding/hex"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/live"
	"github.com/fealty-io/fealty/snapshot"
)

// listener is who is told news: a stream, or who polls.
type listener interface {
	Context() context.Context
	Send(*fealtyv1.ConnectResponse) error
}

// sender knows what one listener was sent. It belongs to one goroutine, but for what
// is wanted.
type sender struct {
	c     *Delivery
	to    listener
	id    identity.ID
	held  map[string]*fealtyv1.HeldSnapshot // what the member said that it holds, by scope
	trust *bundle.View                      // sent, or held
	seen  *publication                      // of which all was sent that is for the member
	has   map[snapshot.Scope]holding        // what it has of seen's scopes

	mu     sync.Mutex
	asked  map[snapshot.Scope]time.Time // when it last asked for a scope whole; guarded by mu
	resend []snapshot.Scope             // the scopes that are to be sent whole; guarded by mu
	wanted chan struct{}                // there are some; capacity 1
}

func newSender(c *Delivery, to listener, id identity.ID, held []*fealtyv1.HeldSnapshot) *sender {
	return &sender{c: c, to: to, id: id, held: live.HeldOf(held), has: make(map[snapshot.Scope]holding),
		wanted: make(chan struct{}, 1)}
}

// resyncEvery bounds how often a member is sent a scope whole because it asks for that.
const resyncEvery = 10 * time.Second

// resync notes that the member wants scopes whole, whatever it holds.
func (d *sender) resync(scopes []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.c.cfg.Now()
	for _, s := range scopes[:min(len(scopes), live.MaxHeldReported)] {
		scope := snapshot.Scope(s)
		if last, ok := d.asked[scope]; !slices.Contains(snapshot.Scopes(), scope) || ok &&
			now.Sub(last).Abs() < resyncEvery {
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

// forget drops what the member is to be sent whole from what it has.
func (d *sender) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, scope := range d.resend {
		delete(d.held, string(scope))
		delete(d.has, scope)
		d.seen = nil
		if scope == snapshot.ScopeTrustBundle {
			d.trust = nil
		}
	}
	d.resend = nil
}

func (d *sender) send(m *fealtyv1.SignedSnapshot) error {
	return d.to.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: m}})
}

// sendTrust sends the trust bundle in force, if it is news to the member.
func (d *sender) sendTrust() error {
	t := d.c.cfg.Bundle.View()
	if t == d.trust {
		return nil
	}
	held := d.held[string(snapshot.ScopeTrustBundle)]
	if d.trust == nil && t.RootEpoch > held.GetAuthorityEpoch() || d.trust != nil && t.RootEpoch != d.trust.RootEpoch {
		// A member under an earlier root has to follow it before it can verify more.
		if err := d.to.Send(t.ChangesMessage()); err != nil {
			return err
		}
	}
	if d.trust != nil || !t.HeldAs(held) {
		// How the history came to its head, for the member to verify.
		if err := d.to.Send(t.LinksMessage()); err != nil {
			return err
		}
		if err := d.send(t.Message()); err != nil {
			return err
		}
	}
	leaf := identity.FromContext(d.to.Context()).Leaf
	if d.trust != nil && d.trust.MeshKey != t.MeshKey || d.trust == nil && d.c.outdated(leaf) {
		// The SVID is signed by a mesh CA that is on its way out: the key changed now, or
		// while this member was away, as in a recovery.
		err := d.to.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_RenewNow{
			RenewNow: &fealtyv1.RenewNow{Reason: "the mesh CA key changed with the authority epoch"}}})
		if err != nil {
			return err
		}
	}
	d.trust = t
	return nil
}

// holding is what a member has of one scope, as far as its stream knows: what it said
// at first, then what it was sent.
type holding struct {
	epoch      uint64 // authority
	version    uint64
	content    string // SHA-256, hex
	generation uint64 // of the record over it

	// What was sent; zero for what the member said.
	leaf   snapshot.Digest
	issued time.Time // of the record
	keys   string    // that signed it, see keyIDs
}

// holds returns what the member has of scope.
func (d *sender) holds(scope snapshot.Scope) (holding, bool) {
	if h, ok := d.has[scope]; ok {
		return h, true
	}
	h := d.held[string(scope)]
	if h == nil {
		return holding{}, false
	}
	return holding{epoch: h.GetAuthorityEpoch(), version: h.GetConfigVersion(),
		content: hex.EncodeToString(h.GetContentHash()), generation: h.GetGeneration()}, true
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
func (h holding) form(has bool, is *published, record *publicationRecord, size int) sentForm {
	if has && h.content == is.header.Content {
		if h.leaf == is.leaf && h.keys == record.keyIDs() && record.IssuedAt.Sub(h.issued).Abs() < publicationRenew {
			return sentNothing
		}
		if h.issued.IsZero() && h.generation == record.Generation && h.epoch == is.header.AuthorityEpoch &&
			h.version == is.header.ConfigVersion {
			return sentNothing // as it says
		}
		if h.keys == "" || record.sharesKey(h.keys) {
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
func (h holding) isBase(is *published) bool {
	b := &is.header
	return b.Base != "" && h.content == b.Base && h.version == b.BaseVersion && h.epoch == b.AuthorityEpoch
}

// sendPublished sends the member what is published for it: a new header at once, a
// newer record over the same one when the last is old enough. A record of a later
// epoch than the bundle that was sent waits for that.
func (d *sender) sendPublished(ctx context.Context) error {
	p := d.c.cfg.Publication.publication.Load()
	if p == d.seen || !p.serves() || p.state.Value.AuthorityEpoch > d.trust.Epoch {
		return nil
	}
	mine := p.of(d.id.Kind(), d.id.Name())
	// What says who the member is comes before what is judged by that.
	slices.SortStableFunc(mine, func(i, j int) int { return rankOf(p.headers[i].scope) - rankOf(p.headers[j].scope) })
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
func (d *sender) sendHeader(ctx context.Context, p *publication, i int) error {
	is, record := &p.headers[i], &p.state.Value
	h, has := d.holds(is.scope)
	form := h.form(has, is, record, len(p.contents[is.header.Content]))
	if (form == sentWhole || form == sentDetached) && has && h.isBase(is) && d.c.patches.of(p, i) != nil {
		form = sentPatch
	}
	if form != sentNothing {
		m, err := p.news(i, form, d.c.patches)
		if err != nil {
			// It stays as it was for this member, and is no reason to end the stream.
			d.c.cfg.Failures.Log(ctx, d.c.cfg.Log, slog.LevelError, "a snapshot was not sent",
				slog.String("scope", string(is.scope)), slog.String("member", d.id.String()), slog.Any("err", err))
			return nil
		}
		if err := d.to.Send(m); err != nil {
			return err
		}
		d.c.metrics.sent.WithLabelValues(string(is.scope), string(form)).Inc()
	} else if !h.issued.IsZero() {
		return nil // it has a record that is as good
	}
	d.has[is.scope] = holding{
		epoch: is.header.AuthorityEpoch, version: is.header.ConfigVersion, content: is.header.Content,
		generation: record.Generation,
		leaf:       is.leaf, issued: record.IssuedAt, keys: record.keyIDs(),
	}
	return nil
}

// newsKey names a message that all members of a group are sent.
type newsKey struct {
	header int
	form   sentForm
}

// newsOnce is such a message, made by who needs it first.
type newsOnce struct {
	once sync.Once
	m    *fealtyv1.ConnectResponse
	err  error
}

// news returns the message that carries header i in a form. It is shared by all that
// are sent it.
func (p *publication) news(i int, form sentForm, patches *patchCache) (*fealtyv1.ConnectResponse, error) {
	if p.headers[i].group == "" {
		return p.makeNews(i, form, patches)
	}
	found, ok := p.messages.Load(newsKey{i, form})
	if !ok {
		found, _ = p.messages.LoadOrStore(newsKey{i, form}, new(newsOnce))
	}
	n := found.(*newsOnce)
	n.once.Do(func() { n.m, n.err = p.makeNews(i, form, patches) })
	return n.m, n.err
}

func (p *publication) makeNews(i int, form sentForm, patches *patchCache) (*fealtyv1.ConnectResponse, error) {
	signed, err := p.signed(i)
	if err != nil {
		return nil, err
	}
	if form != sentWhole {
		signed.Content = nil
	}
	if form == sentPatch {
		signed.Patch = patches.of(p, i)
	}
	raw, err := signed.Marshal()
	if err != nil {
		return nil, err
	}
	m := &fealtyv1.SignedSnapshot{Scope: string(p.headers[i].scope), Envelope: raw}
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
func (c *patchCache) of(p *publication, i int) []byte {
	h := &p.headers[i]
	base, content := p.contents[h.header.Base], p.contents[h.header.Content]
	if h.header.Base == "" || base == nil {
		return nil
	}
	e := c.entry(patchKey{h.header.Base, h.header.Content})
	e.once.Do(func() {
		if patch, ok := snapshot.Diff(h.scope, base, content); ok && len(patch) <= maxPatchBytes {
			e.patch = patch
		}
	})
	return e.patch
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

// deliveryMetrics are what Delivery counts.
type deliveryMetrics struct {
	sent *prometheus.CounterVec
}

func newDeliveryMetrics(reg prometheus.Registerer) *deliveryMetrics {
	m := &deliveryMetrics{
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_snapshot_sent_total",
			Help: "Snapshots that were sent to members, by scope and form: whole, patch, record for a " +
				"newer record alone, or detached for a content that is pulled.",
		}, []string{"scope", "form"}),
	}
	reg.MustRegister(m.sent)
	return m
}

// registerMetrics registers what it counts.
func (c *Delivery) registerMetrics(reg prometheus.Registerer) {
	c.metrics = newDeliveryMetrics(reg)
}
