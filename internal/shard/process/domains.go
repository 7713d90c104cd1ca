package process

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	epochs "github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/internal/platform/clock"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/shard"
)

// ErrLost is matched when a shard lost what it has to remember of its coordinators.
var ErrLost = errors.New("the shard forgot what it heard of its coordinators")

// lost says how that is mended. The error does not match the one of an epoch that is lost.
func lost(err error) error {
	return fmt.Errorf("%w: %v; put its copy back, or, once fealty instruction list shows that nothing waits for it, "+
		"remove what is damaged and start once with --mend-epoch; a shard that had no --agent before does that too",
		ErrLost, err)
}

// grantTimeout is how long a start waits for a grant.
const grantTimeout = 15 * time.Second

// NoGrantError says that a start needs a grant that no coordinator gave.
type NoGrantError struct{ Err error }

func (e *NoGrantError) Error() string {
	return "no coordinator gave this shard a grant: " + e.Err.Error()
}
func (e *NoGrantError) Unwrap() error { return e.Err }

// askGrant asks a coordinator for the grant that the process begins under. A start while none
// answers begins another life under the grant that the folder has; the first start has none.
// One that is told to end meanwhile begins none.
func (r *running) askGrant(ctx context.Context, newest string, incarnation fence.Incarnation) (string, error) {
	r.cfg.Log.Info("the shard asks a coordinator for a grant", "patience", grantTimeout)
	asking, cancel := context.WithTimeout(ctx, grantTimeout)
	defer cancel()
	got, err := fealtyv1.NewGrantServiceClient(r.cfg.Coordinators).Grant(asking, &fealtyv1.GrantRequest{
		Name: r.cfg.ID.Name(), Incarnation: incarnation.String(), Newest: newest})
	switch {
	case err == nil:
		return got.GetGrant(), nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	case newest == "" || refuses(err):
		return "", &NoGrantError{err}
	}
	r.cfg.Log.Warn("no coordinator gave a grant: the shard begins another life under the one that it has", "err", err)
	return "", nil
}

// refuses reports whether a coordinator said no, and not merely that it cannot now.
func refuses(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.NotFound:
		return true
	}
	return false
}

// domains are those that the shard owns. A nil one is of a shard that nobody assigns domains to.
type domains struct {
	holder *Holder
	mark   *epochs.Term

	mu    sync.Mutex
	shard *shard.Shard // guarded by mu
	sites *providers   // nil: not yet; guarded by mu
}

// openDomains reads what this shard owned, and the highest term that it heard of.
func (r *running) openDomains() error {
	if r.cfg.Coordinators == nil {
		return nil
	}
	dir := filepath.Join(r.cfg.Dir, "domains")
	if err := durable.OS().MkdirAll(dir); err != nil {
		return fmt.Errorf("make the shard's folder: %w", err)
	}
	begin := epochs.OpenTerm
	if r.cfg.Enrol || r.cfg.Mend {
		begin = epochs.EnrolTerm
	}
	mark, err := begin(dir)
	if errors.Is(err, epochs.ErrEnrolled) {
		mark, err = epochs.OpenTerm(dir)
	}
	if errors.Is(err, epochs.ErrMissing) || errors.Is(err, epochs.ErrCorrupt) {
		return lost(err)
	}
	if err != nil {
		return err
	}
	r.closers = append(r.closers, mark.Close)
	d := &domains{mark: mark}
	d.holder, err = NewHolder(HolderConfig{ID: r.cfg.ID, Conn: r.coordinators, Authority: r.cfg.Authority,
		Term: mark, Receivers: d.receivers, Clock: clock.SystemBootClock(),
		File:  File{Files: durable.OS(), Dir: dir},
		Quiet: d.quiet, Owned: func(domain string) { d.of().Own(domain) }, Log: r.cfg.Log})
	if err != nil {
		return err
	}
	r.domains = d
	return nil
}

// acts says which shard acts in them. Nothing is asked before.
func (d *domains) acts(s *shard.Shard) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shard = s
}

func (d *domains) of() *shard.Shard {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shard
}

// quiet is closed when the cycle of now is over, or the next one: what it began is over then. A
// shard that was fenced begins nothing.
func (d *domains) quiet() <-chan struct{} {
	s := d.of()
	select {
	case <-s.Fenced():
		return s.Fenced()
	default:
		return s.Changed()
	}
}

// ownership is under which ownership a provider is asked; nil where nobody assigns domains.
func (d *domains) ownership(provider string) func(domain string) uint64 {
	if d == nil {
		return nil
	}
	return func(domain string) uint64 { return d.holder.Ownership(provider, domain) }
}

func (d *domains) owns() func(provider, domain string) bool {
	if d == nil {
		return nil
	}
	return d.holder.Owns
}

// promisedBy says whose promises count.
func (d *domains) promisedBy(sites *providers) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sites = sites
}

func (d *domains) receivers() map[string]DomainReceiver {
	d.mu.Lock()
	sites := d.sites
	d.mu.Unlock()
	if sites == nil {
		return nil
	}
	return sites.receiving()
}

// forget forgets the promises of a provider that is not what it was.
func (d *domains) forget(provider string) {
	if d != nil {
		d.holder.Forget(provider)
	}
}

func (d *domains) term() func() int64 {
	if d == nil {
		return nil
	}
	return d.mark.Mark
}
