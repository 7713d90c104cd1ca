package coordinator

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/gauge"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/regress"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/snapshot"
)

// A store can go back under the same head: a dump, a disk image, a failover to a copy
// that lagged. Package regress decides whether it did; this file reads, writes and asks
// for it, and is what a coordinator does then.
//
// It goes on as in an outage: it serves what it knew, and certifies recorded keys again.
// It changes nothing, nobody leads, and no trust bundle is signed, so that no ban ends by
// it. It stays so over restarts, whatever the store shows later: what was acknowledged in
// between may be gone. The way out is a restore that the signers want.

// What a coordinator saw of its store, in its data directory. The second file moves with
// the trust state alone.
const (
	storeSeenFile = "store-seen.json"
	trustSeenFile = "trust-seen.json"

	// keepPause is how often they are written at most.
	keepPause = time.Second
)

// loadKept reads what was seen of the store before.
func (c *StoreGuard) loadKept() error {
	var parts [2]regress.Record
	for i, name := range []string{storeSeenFile, trustSeenFile} {
		raw, err := c.fs.ReadFile(c.root.authority.path(name), regress.MaxRecordBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			parts[i], err = regress.Decode(raw)
		}
		if err != nil {
			return fmt.Errorf("read %s, which says what this coordinator has seen of the store: %w: restore it, or remove it to believe the store", c.root.authority.path(name), err)
		}
	}
	c.kept.Resume(regress.Join(parts[0], parts[1]))
	if loss := c.kept.Lost(); loss != nil {
		c.log.LogAttrs(context.Background(), slog.LevelError, "the store went back, and was not restored since", slog.String("lost", loss.String()))
	}
	return nil
}

// keepSeen writes down what was seen of the store, as far as that is news. It is a
// second line of defence, so that a full disk here stops nothing.
func (c *StoreGuard) keepSeen(ctx context.Context) {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	if c.keptFault != nil {
		return // it would be overwritten
	}
	small, trust := c.kept.Record().Split()
	for i, part := range []regress.Record{trust, small} {
		raw, err := part.Encode()
		sum := sha256.Sum256(raw)
		if err == nil && c.written[i] != sum {
			if err = c.fs.WriteFile(c.root.authority.path([]string{trustSeenFile, storeSeenFile}[i]), raw); err == nil {
				c.written[i] = sum
			}
		}
		if err != nil {
			c.failures.Log(ctx, c.log, slog.LevelError,
				"what was seen of the store is not written down: one that goes back would not be noticed after a restart", slog.Any("err", err))
			return
		}
	}
}

// followKept writes down what was seen of the store until ctx ends, and then once more.
func (c *StoreGuard) followKept(ctx context.Context) error {
	defer c.keepSeen(context.WithoutCancel(ctx))
	known := c.kept.Lost()
	for {
		changed := c.kept.Changed()
		if loss := c.kept.Lost(); loss != known {
			if known = loss; loss != nil {
				c.log.LogAttrs(ctx, slog.LevelError,
					"the store went back: nothing is changed before the signers restore it; see fealty explain FE-S112",
					slog.String("lost", loss.String()))
				c.root.election.lead.due.Notify()
			}
		}
		c.keepSeen(ctx)
		if _, err := watch.Wait(ctx, keepPause, changed); err != nil {
			return err
		}
	}
}

// lostError says why nothing can change while the store lost something; nil if it did
// not.
func (c *StoreGuard) lostError() error {
	loss := c.kept.Lost()
	if loss == nil {
		return nil
	}
	if older := c.root.authority.olderHeadError(); older != nil {
		return older // that is news to whoever knows no revisions
	}
	return explain.New(explain.StoreWentBack, "problem", loss.String(), "store", c.storeFlag())
}

// storeFlag is the store as a command takes it, as far as that may be shown.
func (c *StoreGuard) storeFlag() string {
	if name := c.cfg.StoreName; name != "" && !strings.ContainsAny(name, " \t\n") {
		return name
	}
	return "URL"
}

// lostReason is lostError for who reads a sentence; empty if nothing is lost.
func (c *StoreGuard) lostReason() string {
	if loss := c.kept.Lost(); loss != nil {
		return "the store went back: it " + loss.String() + "; nothing is changed before the signers restore it"
	}
	return ""
}

// lostFindings says that the store went back.
func (c *StoreGuard) lostFindings() []*fealtyv1.Finding {
	if err := c.lostError(); err != nil && errors.Is(err, explain.StoreWentBack) {
		e := explain.Of(err)
		return []*fealtyv1.Finding{finding.New(explain.StoreWentBack, "problem", e.Fields["problem"], "store",
			e.Fields["store"])}
	}
	return nil
}

// untilWhole waits until the store is not known to have lost something. A restore leads to
// another state, so that who follows this one waits until that is over.
func (c *StoreGuard) untilWhole(ctx context.Context) error {
	if c.kept.Lost() == nil {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

type ofRestore struct{}

// asRestore returns ctx for the change that brings a restore into force: it is what a
// store that lost something waits for.
func asRestore(ctx context.Context) context.Context { return context.WithValue(ctx, ofRestore{}, true) }

func isRestore(ctx context.Context) bool { return ctx.Value(ofRestore{}) != nil }

// unguarded are the families that are written to whatever the store lost: they tell of
// coordinators, or authenticate themselves, and decide nothing by being there.
var unguarded = []string{replicaPrefix, auditPrefix, auditlog.NotePrefix, auditlog.CheckpointPrefix, sealedPrefix, sharePrefix, shareSetPrefix, "recovery/", "history/blob/"}

func guarded(key string) bool {
	for _, prefix := range unguarded {
		if strings.HasPrefix(key, prefix) {
			return false
		}
	}
	return true
}

// mayWrite refuses a transaction that changes something while the store is known to have
// lost something.
func (c *StoreGuard) mayWrite(ctx context.Context, tx store.Tx) error {
	if c.kept.Lost() == nil || isRestore(ctx) {
		return nil
	}
	for _, w := range tx.Put {
		if guarded(w.Key) {
			return c.lostError()
		}
	}
	for _, key := range tx.Delete {
		if guarded(key) {
			return c.lostError()
		}
	}
	return nil
}

// observedStore notes which writes are refused, and what the store shows.
type observedStore struct {
	store.Store
	c *StoreGuard
}

func (o observedStore) List(ctx context.Context, prefix string) (store.Listing, error) {
	began := o.c.kept.Revision()
	l, err := o.Store.List(ctx, prefix)
	if err == nil {
		o.c.atRevision(ctx, began, l.Revision)
	}
	return l, err
}

func (o observedStore) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	if err := o.c.mayWrite(ctx, tx); err != nil {
		return 0, err
	}
	// A transaction is applied once under its ID: when it is sent again because its answer
	// was lost, the revision is that of then. So a low one is no evidence; reads find it.
	rev, err := o.Store.Commit(ctx, tx)
	return o.wrote(ctx, rev, err)
}

func (o observedStore) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	if err := o.c.mayWrite(ctx, store.SwapTx(key, old, value)); err != nil {
		return 0, err
	}
	rev, err := o.Store.CompareAndSwap(ctx, key, old, value)
	return o.wrote(ctx, rev, err)
}

func (o observedStore) wrote(ctx context.Context, rev store.Revision, err error) (store.Revision, error) {
	o.c.noteWrite(err)
	if err == nil {
		o.c.atRevision(ctx, 0, rev)
	}
	return rev, err
}

// atRevision notes a revision that the store showed to a call that began at began. A
// coordinator that is not ready notes none: the store may be that of another cluster, whose
// revisions are no evidence. On its way to being ready it compares all that it has seen, and
// notes the revision at which it read the trust state, which only its own cluster writes.
func (c *StoreGuard) atRevision(ctx context.Context, began uint64, revision store.Revision) {
	s := c.root.authority.state.Load()
	if s.Phase != authority.Ready {
		return
	}
	if loss := c.kept.AtRevision(began, uint64(revision), c.now()); loss != nil {
		c.root.authority.missed(context.WithoutCancel(ctx), s, loss)
	}
}

// missed notes that the store lost something under the head of s. If it shows another
// head that is what is to be looked at: an older one may be a notice that is late.
func (c *Authority) missed(ctx context.Context, s *authority.State, loss *regress.Loss) (lost bool) {
	if c.storeguard.kept.Lost() != nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	e, err := c.cfg.Store.Get(ctx, history.HeadKey)
	if err != nil || e.Version != s.HeadVersion || string(e.Value) != string(s.HeadRecord) {
		c.headDue.Notify()
		return false
	}
	c.storeguard.kept.Lose(loss)
	return true
}

// checkTrust compares what was read with what was seen before. The error says that the
// store went back.
func (c *TrustBundle) checkTrust(ctx context.Context, s *authority.State, began regress.Seen, in bundle.Input) error {
	if isRestore(ctx) {
		return nil
	}
	loss := c.storeguard.kept.Read(began, in.Seen(s.RestoredEpoch()), c.now())
	switch {
	case loss == nil:
		return nil
	case c.authority.missed(ctx, s, loss):
		return c.storeguard.lostError()
	}
	return &store.ConflictError{Key: history.HeadKey, Want: s.HeadVersion}
}

// keptTrust is the trust bundle that goes on in force while the store cannot say which
// is: the one in memory or, after a restart, on disk.
func (c *TrustBundle) keptTrust(s *authority.State) (*bundle.View, error) {
	if have := c.trust.Load(); have != nil && have.Epoch == s.Head.AuthorityEpoch {
		return have, nil
	}
	raw := c.storeguard.kept.Bundle()
	if raw == nil {
		return nil, errors.New("no trust bundle is kept here")
	}
	t, err := s.Bundle.Reopen(raw)
	if err != nil {
		return nil, fmt.Errorf("the trust bundle that is kept here: %w", err)
	}
	if t.Epoch != s.Head.AuthorityEpoch {
		return nil, fmt.Errorf("the trust bundle that is kept here is of authority epoch %d, not %d", t.Epoch,
			s.Head.AuthorityEpoch)
	}
	return t, nil
}

// proven takes a trust bundle that somebody shows. If this cluster signed it in the
// authority epoch that is in force, it is compared with what the store shows from now on.
func (c *Trust) proven(ctx context.Context, from string, raw []byte) error {
	s, err := c.authority.ready()
	if err != nil {
		return err
	}
	bundle, header, err := s.Bundle.Open(raw)
	if err != nil {
		return explain.Wrap(err, explain.RequestField, "field", "bundle", "problem", strings.TrimPrefix(err.Error(), "snapshot: "))
	}
	if header.AuthorityEpoch != s.Head.AuthorityEpoch || bundle.Head.Hash != snapshot.Digest(s.Head.Hash) {
		return nil
	}
	// Whoever shows what is known costs no look at the store.
	shown, news := regress.Proof{From: from, Version: header.ConfigVersion}, false
	have := c.bundle.trust.Load()
	if have == nil {
		return nil // there is nothing to compare with yet
	}
	for _, id := range bundle.BannedIDs {
		shown.Bans = append(shown.Bans, string(id.Kind())+"/"+id.Name())
		news = news || !have.Bundle.Banned(id, identity.KeyID{})
	}
	if !news && header.ConfigVersion <= have.Version {
		return nil
	}
	in, err := c.bundle.readTrust(ctx, s)
	if err != nil {
		return c.authority.storeError("read the trust state", err)
	}
	if loss := shown.Lost(in.Seen(s.RestoredEpoch()).Trust, c.now()); loss != nil && c.authority.state.Load() == s {
		c.authority.missed(ctx, s, loss)
	}
	return nil
}

// claims names the members that say that they hold more than the store can have given
// them. It is what they say, and holds up nobody else.
func (c *Membership) claims(ctx context.Context, s *authority.State, members []*fealtyv1.Member) []*fealtyv1.Finding {
	// What one of them holds may be newer than what was seen of the store here, and is not
	// newer than what it shows from now on.
	if len(claimsAbove(members, s.Head.AuthorityEpoch, c.storeguard.kept.Revision())) == 0 {
		return nil
	}
	l, err := c.store.List(ctx, bundle.StateKey)
	if err != nil {
		return nil // status says that the store does not answer
	}
	return finding.Fold(explain.StoreClaimed, "claim", claimsAbove(members, s.Head.AuthorityEpoch, uint64(l.Revision)))
}

func claimsAbove(members []*fealtyv1.Member, epoch, revision uint64) (above []finding.Case) {
	for _, m := range members {
		path := m.GetKind() + "/" + m.GetName()
		for _, h := range m.GetLive().GetHeld() {
			said := regress.Claim{From: path, What: h.GetScope(), Epoch: h.GetAuthorityEpoch(), Value: max(h.GetConfigVersion(), h.GetGeneration())}
			if !m.GetBanned() && said.Above(epoch, revision) {
				above = append(above, finding.Case{Member: path,
					Value: fmt.Sprintf("version %d of epoch %d in %s, and the store is at %d of epoch %d", said.Value,
						said.Epoch, said.What, revision, epoch)})
				break
			}
		}
	}
	return above
}

func (l liveServer) GetSeen(_ context.Context, req *fealtyv1.GetSeenRequest) (*fealtyv1.GetSeenResponse, error) {
	c := l.c
	s, err := c.authority.ready()
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.GetSeenResponse{Restored: s.RestoredEpoch(), Revision: c.storeguard.kept.Revision(),
		Lost: c.storeguard.kept.Lost() != nil, Findings: c.foundHere(s)}
	if t := c.bundle.trust.Load(); t != nil && t.Newer(&bundle.View{Epoch: req.GetAuthorityEpoch(),
		Version: req.GetConfigVersion()}) {
		out.TrustBundle = t.Message()
	}
	return out, nil
}

// compareSeen compares the store with what another coordinator says of it, and returns
// what of that is no proof; empty if there is nothing to tell.
func (c *Membership) compareSeen(ctx context.Context, s *authority.State, name string,
	seen *fealtyv1.GetSeenResponse) (claim string, err error) {
	if seen.GetRestored() != s.RestoredEpoch() {
		return "", nil // one of both does not know of a restore yet
	}
	if raw := seen.GetTrustBundle().GetEnvelope(); raw != nil {
		if err := c.root.trust.proven(ctx, "coordinator "+name,
			raw); err != nil && explain.CodeOf(err) != string(explain.RequestField) {
			return "", err
		}
	}
	if c.storeguard.kept.Lost() != nil {
		return "", nil // it is known
	}
	if said := (regress.Claim{Epoch: s.Head.AuthorityEpoch,
		Value: seen.GetRevision()}); said.Above(s.Head.AuthorityEpoch, c.storeguard.kept.Revision()) {
		l, err := c.store.List(ctx, bundle.StateKey)
		if err != nil {
			return "", err
		}
		if said.Above(s.Head.AuthorityEpoch, uint64(l.Revision)) {
			return fmt.Sprintf("revision %d, and the store is at %d", said.Value, l.Revision), nil
		}
	}
	if seen.GetLost() {
		return "more than the store has now: it went back, it says", nil
	}
	return "", nil
}

// registerMetrics registers what it noticed of the store.
func (c *StoreGuard) registerMetrics(reg prometheus.Registerer) {
	reg.MustRegister(
		gauge.If("fealty_store_full",
			"1 while the store refuses writes, because it has no space left or was made read-only.",
			func() bool {
				r := c.writes.State(c.now()).Reason
				return r == store.NoSpace || r == store.ReadOnly
			}),
		gauge.If("fealty_store_refuses_writes",
			"1 while the store is read and refuses writes, for whatever reason; fealty status says which.",
			func() bool { return c.writes.State(c.now()).Reason != 0 }),
		gauge.If("fealty_store_went_back",
			"1 while the store is known to have gone back: nothing is changed before the signers restore it.",
			func() bool { return c.kept.Lost() != nil }),
	)
}
