package coordinator

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/keepers"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/transition"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/patience"
	"github.com/fealty-io/fealty/internal/watch"
)

// A reseed gives the cluster a new seed (docs/explanation/reseed.md). Signers sign
// the new public keys, so that the seed is made first, and comes into force like
// every other move.
//
// What is different are the records under the record MAC: they have to stand under
// the new key, all of them as they were when the head moved, and nothing that the
// old key signs afterwards may count. A store transaction is too small for a fleet.
// So before the head moves the records are frozen, and a ledger of their hashes is
// written under the new key; after it they are moved one batch after the other,
// each only if it is what the ledger says. A crash at any point leaves the old seed
// with its records, or the new one with a ledger that the next start goes on with.
const (
	reseedPrefix  = "reseed/"
	ledgerPrefix  = "reseed/ledger/"
	preparedLife  = time.Hour // how long signers have
	ledgerEntries = 4096      // of one part of the ledger
	moveBatch     = 256       // records of one transaction
)

// prepared is a seed that waits for its signatures, in memory alone.
type prepared struct {
	move       *transition.Move // manifest, secrets and root are set
	transition history.Transition
	change     []byte // what is signed
	expires    time.Time
}

// reseedServer serves ReseedService.
type reseedServer struct {
	fealtyv1.UnimplementedReseedServiceServer
	c *Authority
}

func (r reseedServer) PrepareReseed(ctx context.Context,
	req *fealtyv1.PrepareReseedRequest) (*fealtyv1.PrepareReseedResponse, error) {
	c := r.c
	_, release, err := c.headTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	next := s.Manifest
	if len(req.GetManifest()) > 0 {
		if next, err = c.proposed(s, req.GetManifest()); err != nil {
			return nil, err
		}
	}
	if next.Cluster != s.Manifest.Cluster {
		return nil, explain.New(explain.RequestField, "field", "cluster", "problem",
			fmt.Sprintf("the manifest is of %s, and this cluster is %s", next.Cluster, s.Manifest.Cluster))
	}
	if err := c.staysAdmitted(s, next); err != nil {
		return nil, err
	}
	if err := c.readByAll(ctx, s, next); err != nil {
		return nil, err
	}
	// Signers should not sign what cannot be sealed.
	if err := c.cfg.Keepers.Look(ctx, &keepers.Sealing{From: s, Manifest: next, NewSeed: true}); err != nil {
		return nil, err
	}
	out, err := c.reseedCosts(ctx, s)
	if err != nil {
		return nil, err
	}
	mv := &transition.Move{From: s, Manifest: next}
	t, _ := s.Chain.Next(history.KindReseed, next)
	if err := mv.MakeSeed(t, c.cfg.Now()); err != nil {
		return nil, err
	}
	t.Reseed = s.Chain.ReseedTo(s.RootPin, history.SeedKeys{
		Root: identity.KeyOf(mv.Root), ConfigRoot: mv.Secrets.ConfigRootKey(),
		TransactionKey: mv.Secrets.TransactionKey(),
	})
	change, err := t.RootChange().Encode()
	if err != nil {
		mv.Wipe()
		return nil, err
	}
	out.Change = change
	if req.GetDryRun() {
		mv.Wipe()
		return out, nil
	}
	c.dropPrepared()
	p := &prepared{move: mv, transition: *t, change: change, expires: c.cfg.Now().Add(preparedLife)}
	c.prepared = p
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "manifest.reseed.prepare",
		Target: identity.KeyOf(mv.Root).String()})
	if _, err := ch.Commit(ctx); err != nil {
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
			"the audit entry of a prepared seed was not written", slog.Any("err", err))
	}
	out.ExpiresAt = timestamppb.New(p.expires)
	return out, nil
}

// reseedCosts says what a reseed means to the fleet.
func (c *Authority) reseedCosts(ctx context.Context, s *authority.State) (*fealtyv1.PrepareReseedResponse, error) {
	out := &fealtyv1.PrepareReseedResponse{}
	for _, count := range []struct {
		prefix string
		n      *uint64
	}{{record.MemberPrefix, &out.Members}, {c.cfg.Families.tokens, &out.TokensVoided}} {
		l, err := c.cfg.Store.List(ctx, count.prefix)
		if err != nil {
			return nil, c.cfg.Head.StoreError("count the records", err)
		}
		*count.n = uint64(len(l.Entries))
	}
	return out, nil
}

func (r reseedServer) CommitReseed(ctx context.Context,
	req *fealtyv1.CommitReseedRequest) (*fealtyv1.CommitReseedResponse, error) {
	c := r.c
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	_, release, err := c.headTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	p := c.prepared
	switch {
	case p == nil:
		return nil, explain.New(explain.ReseedUnprepared,
			"problem", "none is prepared on this coordinator: it is kept in memory alone, for an hour, and by one "+
				"coordinator")
	case !c.cfg.Now().Before(p.expires):
		c.dropPrepared()
		return nil, explain.New(explain.ReseedUnprepared,
			"problem", "it was prepared more than an hour ago, and is dropped")
	case !bytes.Equal(req.GetChange(), p.change):
		return nil, explain.New(explain.ReseedUnprepared, "problem", "another one was prepared after it")
	case p.transition.Previous != s.Head.Hash:
		return nil, explain.New(explain.ManifestStale, "expected", p.transition.Previous.String()[:16], "head",
			s.Head.Hash.String()[:16], "index", fmt.Sprint(s.Head.Index))
	}
	costs, err := c.reseedCosts(ctx, s)
	if err != nil {
		return nil, err
	}
	mv, err := c.composeReseed(req, s, p)
	if err != nil {
		return nil, err
	}
	if err := c.lookAtKeepers(ctx, mv); err != nil {
		return nil, err
	}
	if err := c.moveFits(ctx, mv); err != nil {
		return nil, err
	}
	out := &fealtyv1.CommitReseedResponse{
		Transition: transitionMessage(mv.Link), SeedEpoch: mv.Link.SeedEpoch, RootKey: mv.Link.Reseed.Root[:],
		Members: costs.Members, TokensVoided: costs.TokensVoided, Shares: mv.Shares.Message(),
	}
	if out.TransactionKey, err = keyHash(mv.Secrets.TransactionKey()); err != nil {
		return nil, err
	}
	if req.GetDryRun() {
		out.Shares = nil // of a split that counts for nothing
		return out, nil
	}
	if err := c.writeSecrets(ctx, mv); err != nil {
		return nil, err
	}
	f, thaw, err := c.freeze(ctx, s, mv.Link.Salt)
	if err != nil {
		return nil, err
	}
	if err := c.writeLedger(ctx, s, mv, f); err != nil {
		thaw()
		return nil, err
	}
	out.KeysMade = mv.Sealing.Made
	inUse, err := c.swap(ctx, mv)
	if inUse {
		c.prepared = nil // the seed is the cluster's now, or may be
	}
	if err != nil {
		c.unsettle() // the head may have moved, or may yet: who ends the freeze sees to that
		return nil, err
	}
	return out, nil
}

// composeReseed makes the move that brings p into force. The seed stays p's: if the
// head does not move it can be tried again with the same signatures.
func (c *Authority) composeReseed(req *fealtyv1.CommitReseedRequest, s *authority.State, p *prepared) (*transition.Move,
	error) {
	mv, t := *p.move, p.transition
	mv.From = s // the head is that of then; who wrote it last may be another
	if err := transition.Authorize(&fealtyv1.SetManifestRequest{Reason: req.GetReason(),
		Signatures: req.GetSignatures()}, s,
		&t); err != nil {
		return nil, err
	}
	if err := mv.SplitSeed(&t); err != nil {
		return nil, err
	}
	if err := mv.NewMesh(&t, c.cfg.Now()); err != nil {
		return nil, err
	}
	return &mv, mv.Seal(&t)
}

// settingTurn waits until no other set is under way.
func (c *Authority) settingTurn(ctx context.Context) (release func(), err error) {
	began := time.Now()
	for {
		left, granted := patience.Left(ctx)
		if !granted {
			left = authority.StorePatience
		}
		// The change that it waits for may wait for the store itself.
		t := time.NewTimer(max(left-time.Since(began), time.Second))
		select {
		case c.setting <- struct{}{}:
			t.Stop()
			if c.cfg.Head.StoreSilent() {
				patience.Spend(ctx, time.Since(began))
			}
			return func() { <-c.setting }, nil
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-t.C:
			if granted && c.cfg.Head.StoreSilent() {
				return nil, authority.InOutage("the wait for another change of the manifest", patience.ErrOver)
			}
		}
	}
}

// dropPrepared forgets the seed that waits for signatures. The caller holds
// c.setting.
func (c *Authority) dropPrepared() {
	if c.prepared != nil {
		c.prepared.move.Wipe()
		c.prepared = nil
	}
}

// dropExpired forgets a prepared seed whose time is over, unless a set is under way.
func (c *Authority) dropExpired() {
	select {
	case c.setting <- struct{}{}:
		defer func() { <-c.setting }()
	default:
		return
	}
	if c.prepared != nil && !c.cfg.Now().Before(c.prepared.expires) {
		c.dropPrepared()
	}
}

// frozen is the value of the freeze: which seed the records wait for, by whom, since when.
type frozen struct {
	Salt   history.Salt `json:"salt"`
	Ledger string       `json:"ledger"` // of this try: an earlier one may have left another
	By     string       `json:"by"`     // the enrolment key of the coordinator
	At     time.Time    `json:"at"`
}

// freezeLimit is how long a freeze is waited for that another coordinator made. Moving
// the records of a large fleet takes seconds.
const freezeLimit = time.Minute

// freeze makes every change of a record fail, on every replica, until the returned
// function is called or the records are moved. It names the seed by its salt.
func (c *Authority) freeze(ctx context.Context, s *authority.State, salt history.Salt) (f frozen, thaw func(),
	err error) {
	f = frozen{salt, record.NewID(), c.cfg.Self.EnrolmentKey(), c.cfg.Now().UTC()}
	value, err := json.Marshal(f)
	if err != nil {
		return f, nil, err
	}
	ch := s.Records.NewChange(s.HeadVersion) // which wants that it does not exist
	ch.Tx.Put = append(ch.Tx.Put, store.Write{Key: record.FreezeKey, Value: value})
	version, err := ch.Commit(ctx)
	if err != nil {
		c.unsettle() // it may be there, of this try or of an earlier one
		return f, nil, c.cfg.Head.StoreError("freeze the records", err)
	}
	if err := c.cfg.Faults.Hit("reseed.after-freeze"); err != nil {
		c.unsettle()
		return f, nil, err
	}
	return f, func() {
		ctx, cancel := context.WithTimeout(patience.Beyond(ctx), thawTimeout)
		defer cancel()
		tx := store.Tx{If: []store.Condition{{Key: record.FreezeKey, Version: version}},
			Delete: []string{record.FreezeKey}}
		if _, err := c.cfg.Store.Commit(ctx, tx); err != nil {
			c.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the records are still frozen, which is tried again",
				slog.Any("err", err))
			c.unsettle()
		}
	}, nil
}

// thawTimeout bounds the end of a freeze: it is not given up with its caller.
const thawTimeout = 10 * time.Second

// unsettle makes the loop that follows the head look at the freeze.
func (c *Authority) unsettle() {
	c.unsettled.Store(true)
	c.cfg.Head.LookAgain()
}

// awaitThaw waits for a reseed of ours to end, and has a freeze looked at that
// nobody seems to end.
func (c *Authority) awaitThaw(ctx context.Context) {
	release, err := c.settingTurn(ctx)
	if err != nil {
		return
	}
	release()
	c.lookAtFreeze(ctx)
}

// lookAtFreeze has a freeze ended that nobody seems to end. It waits for no reseed.
func (c *Authority) lookAtFreeze(ctx context.Context) {
	e, err := c.cfg.Store.Get(ctx, record.FreezeKey)
	if err != nil {
		return // most likely it is over
	}
	var f frozen
	if err := json.Unmarshal(e.Value, &f); err != nil || c.cfg.Now().Sub(f.At).Abs() > freezeLimit {
		c.unsettle()
	}
}

// breakFreeze ends a freeze that nobody will end: its coordinator stopped before the
// head moved. Who may yet move the head under it is stopped by the same transaction,
// which writes the head again, as it is, under another version; so ending one too
// early costs another try, and no more. One that is young is left alone, unless this
// coordinator made it. A freeze for the seed of the head stays: the records are to be
// moved. The caller holds c.setting, so that it is none of ours that is under way.
func (c *Authority) breakFreeze(ctx context.Context) error {
	e, err := c.cfg.Store.Get(ctx, record.FreezeKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var f frozen
	if err := json.Unmarshal(e.Value,
		&f); err == nil && f.By != c.cfg.Self.EnrolmentKey() && c.cfg.Now().Sub(f.At).Abs() <= freezeLimit {
		return nil
	}
	head, err := c.cfg.Store.Get(ctx, history.HeadKey)
	if errors.Is(err, store.ErrNotFound) { // nobody of ours made it
		_, err := c.cfg.Store.Commit(ctx, store.Tx{If: []store.Condition{{Key: record.FreezeKey, Version: e.Version}},
			Delete: []string{record.FreezeKey}})
		return err
	}
	if err != nil {
		return err
	}
	// A head that cannot be followed is told by who reads the history next, and the freeze
	// stays until there is one that can.
	shown, err := history.DecodeRecord(head.Value)
	if err != nil {
		return nil
	}
	blob, err := c.cfg.Store.Get(ctx, history.BlobKey(shown.Hash))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	t, err := history.Decode(blob.Value)
	if err != nil {
		return nil
	}
	if f.Salt == t.Salt {
		return nil
	}
	c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
		"a reseed was cut off before the head moved: the records are free again, and the old seed stays")
	_, err = c.cfg.Store.Commit(ctx, store.Tx{
		If: []store.Condition{{Key: record.FreezeKey, Version: e.Version},
			{Key: history.HeadKey, Version: head.Version}},
		Put:    []store.Write{{Key: history.HeadKey, Value: head.Value}},
		Delete: []string{record.FreezeKey},
	})
	return err
}

// ledger is the SHA-256 of each record's value when the head moved, in hex, by key.
type ledger map[string]string

func (f frozen) ledgerPrefix() string {
	return ledgerPrefix + hex.EncodeToString(f.Salt[:]) + "/" + f.Ledger + "/"
}

func valueSum(value []byte) string {
	sum := sha256.Sum256(value)
	return hex.EncodeToString(sum[:])
}

// writeLedger writes what counts of the records when the head moves, sealed under
// the key of the new seed. What is not genuine under the old one is left out, and so
// never becomes genuine.
func (c *Authority) writeLedger(ctx context.Context, s *authority.State, mv *transition.Move, f frozen) error {
	auth, err := mv.Secrets.Records()
	if err != nil {
		return err
	}
	part, parts := ledger{}, 0
	flush := func() error {
		raw, err := json.Marshal(part)
		if err != nil {
			return err
		}
		key := f.ledgerPrefix() + strconv.Itoa(parts)
		part, parts = ledger{}, parts+1
		_, err = c.cfg.Head.Overwrite(ctx, key, auth.Seal(key, raw))
		return err
	}
	for _, prefix := range c.cfg.Families.moved {
		l, err := c.cfg.Store.List(ctx, prefix)
		if err != nil {
			return c.cfg.Head.StoreError("read the records", err)
		}
		for _, e := range l.Entries {
			if _, err := s.Records.Auth.Open(e.Key, e.Value); err != nil {
				c.cfg.Head.Forged(ctx, e.Key, err)
				continue
			}
			if part[e.Key] = valueSum(e.Value); len(part) == ledgerEntries {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	if err := flush(); err != nil { // at least one, so that an empty one is told from none
		return err
	}
	return c.cfg.Faults.Hit("reseed.after-ledger")
}

// readLedger returns the ledger of a freeze, for the seed of s.
func (c *Authority) readLedger(ctx context.Context, s *authority.State, f frozen) (ledger, error) {
	l, err := c.cfg.Store.List(ctx, f.ledgerPrefix())
	if err != nil {
		return nil, err
	}
	all := ledger{}
	for n := range l.Entries {
		key := f.ledgerPrefix() + strconv.Itoa(n)
		i := slices.IndexFunc(l.Entries, func(e store.Entry) bool { return e.Key == key })
		if i < 0 {
			return nil, fmt.Errorf("part %d of the ledger of the reseed is missing: %w", n, store.ErrForged)
		}
		raw, err := s.Records.Auth.Open(key, l.Entries[i].Value)
		if err != nil {
			return nil, err
		}
		var part ledger
		if err := json.Unmarshal(raw, &part); err != nil {
			return nil, fmt.Errorf("part %d of the ledger of the reseed does not decode: %w", n, err)
		}
		maps.Copy(all, part)
	}
	if len(l.Entries) == 0 {
		return nil, fmt.Errorf("the ledger of the reseed is missing: %w", store.ErrForged)
	}
	return all, nil
}

// moveRecords brings the records under the seed of s, after a reseed whose head is
// in force: those that the ledger names as they are, and nothing else. It goes on
// where an earlier try was cut off. Without a freeze there is nothing to do.
//
// All coordinators do it at once, each as soon as it knows the head: what fails because
// another one was first is looked at again.
func (c *Authority) moveRecords(ctx context.Context, s *authority.State) error {
	for range record.CommitTries {
		e, err := c.cfg.Store.Get(ctx, record.FreezeKey)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil
		case err != nil:
			return err
		}
		err = c.moveFrozen(ctx, s, e)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, store.ErrConflict) && !c.cfg.Head.MovedOn(ctx, s):
		case errors.Is(err, store.ErrForged) && c.thawed(ctx, e.Version):
		default:
			return err
		}
		if err := watch.Sleep(ctx, mathrand.N(record.ConflictPause)); err != nil {
			return err
		}
	}
	return record.Busy("the records under the new seed")
}

// thawed reports whether a freeze has ended: then what was frozen is elsewhere, and not
// missing.
func (c *Authority) thawed(ctx context.Context, at store.Revision) bool {
	e, err := c.cfg.Store.Get(ctx, record.FreezeKey)
	return errors.Is(err, store.ErrNotFound) || err == nil && e.Version != at
}

// moveFrozen is one try at it, under the freeze e.
func (c *Authority) moveFrozen(ctx context.Context, s *authority.State, e store.Entry) error {
	frozenAt := e.Version
	trust, err := c.cfg.Store.Get(ctx, bundle.StateKey)
	if err == nil {
		_, err = s.Records.Auth.Open(bundle.StateKey, trust.Value)
	}
	if err != nil && !errors.Is(err, store.ErrForged) && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	moved := err == nil // it moves last
	var f frozen
	other := json.Unmarshal(e.Value, &f) != nil || f.Salt != s.Head.Salt
	switch {
	case other && moved:
		return nil // the freeze is of a reseed after that of s
	case other:
		return errors.New("the records are frozen for another seed than that of the head")
	case moved:
		// It moves with the end of the freeze: somebody put the freeze back, and what it
		// says is void.
		_, err := c.cfg.Store.Commit(ctx, store.Tx{If: []store.Condition{{Key: record.FreezeKey, Version: frozenAt}},
			Delete: []string{record.FreezeKey}})
		if !errors.Is(err, store.ErrConflict) { // it was there still
			c.cfg.Head.Forged(ctx, record.FreezeKey, fmt.Errorf("the reseed that it is of has ended: %w",
				store.ErrForged))
		}
		return err
	}
	book, err := c.readLedger(ctx, s, f)
	if err != nil {
		return err
	}
	for _, prefix := range c.cfg.Families.ended {
		l, err := c.cfg.Store.List(ctx, prefix)
		if err != nil {
			return err
		}
		for batch := range slices.Chunk(l.Entries, moveBatch) {
			ch := s.Records.FrozenChange(s.HeadVersion)
			ch.Require(record.FreezeKey, frozenAt) // what is made after the freeze stays
			for _, e := range batch {
				ch.Delete(e.Key, e.Version)
			}
			if _, err := ch.Commit(ctx); err != nil {
				return fmt.Errorf("end the join tokens: %w", err)
			}
		}
	}
	var last *store.Entry
	for _, prefix := range c.cfg.Families.moved {
		l, err := c.cfg.Store.List(ctx, prefix)
		if err != nil {
			return err
		}
		var due []store.Entry
		for _, e := range l.Entries {
			if _, err := s.Records.Auth.Open(e.Key, e.Value); err == nil {
				continue // by a try before this one
			}
			if book[e.Key] != valueSum(e.Value) {
				c.cfg.Head.Forged(ctx, e.Key, fmt.Errorf("it is not what it was when the seed changed: %w",
					store.ErrForged))
				continue
			}
			if e.Key == bundle.StateKey {
				last = &e
				continue
			}
			due = append(due, e)
		}
		for batch := range slices.Chunk(due, moveBatch) {
			ch := s.Records.FrozenChange(s.HeadVersion)
			ch.Require(record.FreezeKey, frozenAt)
			for _, e := range batch {
				ch.Reseal(e)
			}
			if _, err := ch.Commit(ctx); err != nil {
				return fmt.Errorf("move the records to the new seed: %w", err)
			}
			if err := c.cfg.Faults.Hit("reseed.after-batch"); err != nil {
				return err
			}
		}
	}
	// The trust state last, and the freeze with it: from here on the ledger is void. So
	// while it is missing, from the store or from a ledger that was cut short, all stays.
	if last == nil {
		return fmt.Errorf("the trust state is not what it was when the seed changed: %w", store.ErrForged)
	}
	ch := s.Records.FrozenChange(s.HeadVersion)
	ch.Reseal(*last)
	ch.Delete(record.FreezeKey, frozenAt)
	if _, err := ch.Commit(ctx); err != nil {
		return fmt.Errorf("move the trust state to the new seed: %w", err)
	}
	c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "the records are under the new seed", slog.Int("records", len(book)),
		slog.Uint64("seed_epoch", s.Head.SeedEpoch))
	return c.cfg.Faults.Hit("reseed.after-move")
}

// sweepReseeds removes what a move leaves behind: ledgers, what is sealed of seeds and
// mesh CA keys that were replaced, and for keepers that were dismissed, and shares of
// seeds of before. Whoever holds them holds them; it is not ours to keep.
//
// It runs after the head has moved, whoever moved it, and again at each start: a crash
// in between leaves them to the next one.
func (c *Authority) sweepReseeds(ctx context.Context, s *authority.State) error {
	gone, err := c.goneSealed(ctx, s)
	if err != nil {
		return err
	}
	former := make(map[string]bool) // share sets of seeds that are gone
	prefixes := []string{ledgerPrefix}
	for i, links := 0, s.Chain.Links(); links[i].SeedEpoch < s.Head.SeedEpoch; i++ {
		l := links[i]
		former[shareSetKey(l.Hash)] = true
		if i == 0 || l.Salt != links[i-1].Salt {
			prefixes = append(prefixes, sharesPrefix(l.SeedEpoch, l.Salt))
		}
	}
	if s.Head.SeedEpoch > 1 {
		prefixes = append(prefixes, shareSetPrefix)
	}
	for _, prefix := range prefixes {
		l, err := c.cfg.Store.List(ctx, prefix)
		if err != nil {
			return err
		}
		for _, e := range l.Entries {
			if prefix != shareSetPrefix || former[e.Key] {
				gone = append(gone, e)
			}
		}
	}
	for batch := range slices.Chunk(gone, record.PruneBatch) {
		ch := s.Records.NewChange(s.HeadVersion)
		for _, e := range batch {
			ch.Delete(e.Key, e.Version)
		}
		// Who was faster is another coordinator at the same work.
		if _, err := ch.Commit(ctx); record.IgnoreConflict(err) != nil {
			return err
		}
	}
	return nil
}

func (r reseedServer) GetRootChanges(stream fealtyv1.ReseedService_GetRootChangesServer) error {
	s, err := r.c.cfg.Head.Ready()
	if err != nil {
		return err
	}
	addr := identity.FromContext(stream.Context()).Addr
	if err := r.c.cfg.Limiter.Admit("calls", addr, r.c.cfg.Now()); err != nil {
		return err
	}
	return stream.Send(&fealtyv1.GetRootChangesResponse{Changes: &fealtyv1.RootChanges{Changes: s.Bundle.RootChanges}})
}

func ed25519Public(s keyring.Signer) ed25519.PublicKey { return s.Public().(ed25519.PublicKey) }

// keyHash is the SHA-256 of a public key in its usual form.
func keyHash(key ed25519.PublicKey) ([]byte, error) {
	id, err := identity.KeyOfPublic(key)
	if err != nil {
		return nil, err
	}
	return id[:], nil
}
