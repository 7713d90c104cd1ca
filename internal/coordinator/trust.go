package coordinator

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/regress"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/snapshot"
)

// configKeyLife is how long a config signing key signs. Its rotation comes
// before; a cluster whose key ended would lose its config.
const configKeyLife = 10 * 365 * 24 * time.Hour

// maxBootstrapMembers bounds the members that a node_bootstrap shows: enough to
// find the fleet by, not a directory of it. With nine of ten members gone, one of
// 32 taken at random still answers in 29 of 30 cases; each costs a join 80 bytes
// and a few microseconds at both ends.
const maxBootstrapMembers = 32

// trustView is one version of what the cluster believes: for our own
// connections, and signed for the members. It is immutable.
type trustView struct {
	version     uint64
	epoch       uint64
	meshKey     identity.KeyID // the current one
	contentHash snapshot.Digest
	size        int // of the content
	revocations snapshot.Digest
	revoked     snapshot.Revocations // what revocations is the digest of
	configKeys  []configKey          // that the bundle lists, oldest first
	rotation    *rotation            // the one that runs; nil: none
	bundle      *identity.Bundle
	signed      []byte // encoding of snapshot.Signed
	issuedAt    time.Time

	links       [][]byte // the newest transitions of the history
	rootChanges [][]byte // the changes of root that led to it
	rootEpoch   uint64   // the authority epoch that the last of them began; 0: none
}

func (t *trustView) changesMessage() *fealtyv1.ConnectResponse {
	return &fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_RootChanges{RootChanges: &fealtyv1.RootChanges{Changes: t.rootChanges}}}
}

func (t *trustView) linksMessage() *fealtyv1.ConnectResponse {
	return &fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_HistoryLinks{HistoryLinks: &fealtyv1.HistoryLinks{Links: t.links}}}
}

func (t *trustView) message() *fealtyv1.SignedSnapshot {
	return &fealtyv1.SignedSnapshot{Scope: string(snapshot.ScopeTrustBundle), Envelope: t.signed}
}

// heldAs reports whether a member that holds h needs nothing new. One that is not
// fresh there any more is to be renewed, though nothing in it changed.
func (t *trustView) heldAs(h *fealtyv1.HeldSnapshot) bool {
	switch snapshot.Freshness(h.GetFreshness()) {
	case snapshot.Stale, snapshot.Degraded, snapshot.Expired:
		return false
	}
	return h.GetAuthorityEpoch() == t.epoch && h.GetConfigVersion() == t.version && bytes.Equal(h.GetContentHash(), t.contentHash[:])
}

// newer reports whether t takes the place of o.
func (t *trustView) newer(o *trustView) bool {
	return t.epoch > o.epoch || t.epoch == o.epoch && t.version > o.version
}

// trustInput is everything that a bundle is compiled from, read at one revision.
type trustInput struct {
	state   record.Versioned[trustState]
	bannedI []identity.ID
	bannedK []keyBan

	revision store.Revision    // that it was read at
	digest   regress.Digest    // of the state, as the store has it
	since    map[string]uint64 // the counter under which each of bannedI was banned, by "<kind>/<name>"
	unbans   map[string]uint64 // the counter of each ban that was lifted, likewise
}

// keyBan is a banned key, and when the last certificate over it has ended.
type keyBan struct {
	key     identity.KeyID
	certEnd time.Time
	until   time.Time      // as in its record
	version store.Revision // of its record
}

// sum returns the sum of the ban records that in was read from.
func (in trustInput) sum() banSum {
	keys := make([]string, 0, len(in.bannedI)+len(in.bannedK))
	for _, id := range in.bannedI {
		keys = append(keys, record.BanIDKey(id.Kind(), id.Name()))
	}
	for _, b := range in.bannedK {
		keys = append(keys, record.BanKeyKey(b.key))
	}
	slices.Sort(keys)
	h := sha256Sum([]byte(strings.Join(keys, "\n")))
	return banSum{len(keys), hex.EncodeToString(h[:])}
}

// listed returns the banned keys that the bundle names: those over which a
// certificate could be valid at the state's own time.
func (in trustInput) listed() []identity.KeyID {
	var keys []identity.KeyID
	for _, b := range in.bannedK {
		if in.state.Value.AsOf.Before(b.certEnd) {
			keys = append(keys, b.key)
		}
	}
	return keys
}

// readTrust reads the inputs of the trust bundle. If the bans are not those that
// the trust state says there are, or the trust state is gone, the error matches
// [store.ErrForged]: no bundle is made of what somebody else left.
func (c *Coordinator) readTrust(ctx context.Context, s *state) (trustInput, error) {
	began := c.kept.Begin()
	l, err := c.store.List(ctx, trustPrefix)
	if err != nil {
		return trustInput{}, err
	}
	in := trustInput{revision: l.Revision, since: make(map[string]uint64), unbans: make(map[string]uint64)}
	for _, e := range l.Entries {
		switch {
		case e.Key == trustStateKey:
			if in.state, err = record.Open[trustState](s.records, e); err != nil {
				return in, err
			}
			plain, err := s.records.Open(e.Key, e.Value)
			if err != nil {
				return in, err
			}
			in.digest = sha256Sum(plain)
		case strings.HasPrefix(e.Key, record.UnbanPrefix):
			unban, err := record.Open[record.Unban](s.records, e)
			if err != nil {
				return in, err
			}
			in.unbans[e.Key[len(record.UnbanPrefix):]] = unban.Value.Counter
		case strings.HasPrefix(e.Key, record.BanIDPrefix):
			ban, err := record.Open[record.Ban](s.records, e)
			if err != nil {
				return in, err
			}
			in.since[e.Key[len(record.BanIDPrefix):]] = ban.Value.Counter
			kind, name, _ := strings.Cut(e.Key[len(record.BanIDPrefix):], "/")
			id, err := identity.New(s.manifest.Cluster, identity.Kind(kind), name)
			if err != nil {
				return in, fmt.Errorf("the ban %s names no identity: %w", e.Key, err)
			}
			in.bannedI = append(in.bannedI, id)
		case strings.HasPrefix(e.Key, record.BanKeyPrefix):
			ban, err := record.Open[record.Ban](s.records, e)
			if err != nil {
				return in, err
			}
			key, err := identity.ParseKeyID(e.Key[len(record.BanKeyPrefix):])
			if err != nil {
				return in, fmt.Errorf("the ban %s names no key: %w", e.Key, err)
			}
			in.bannedK = append(in.bannedK, keyBan{key, ban.Value.CertEnd, ban.Value.Until, ban.Version})
		}
	}
	if in.state.Exists() {
		// First whether all of it is of before: whoever put it back put back the sum too.
		if err := c.checkTrust(ctx, s, began, in); err != nil {
			return in, err
		}
		if want, got := in.state.Value.Bans, in.sum(); got != want {
			return in, fmt.Errorf("the trust state says %d bans, and %d others are there: %w", want.Count, got.Count, store.ErrForged)
		}
		return in, nil
	}
	members, err := c.store.List(ctx, record.MemberPrefix)
	if err != nil {
		return in, err
	}
	if n := len(in.bannedI) + len(in.bannedK) + len(members.Entries); n > 0 {
		return in, fmt.Errorf("there is no trust state, and %d bans and members: %w", n, store.ErrForged)
	}
	return in, c.checkTrust(ctx, s, began, in)
}

// compileTrust makes the content of the trust bundle. It is a function of the
// store and the history alone: two replicas compile equal bytes.
func compileTrust(s *state, in trustInput) (snapshot.TrustBundle, error) {
	b := snapshot.TrustBundle{
		ClusterID:      s.manifest.Cluster,
		AuthorityEpoch: s.head.AuthorityEpoch,
		Roots:          [][]byte{s.root.Raw},
		BannedIDs:      slices.Clone(in.bannedI),
		BannedKeys:     in.listed(),
		ConfigRoot:     s.configRoot(),
		Head:           snapshot.Head{Index: s.head.Index, Hash: snapshot.Digest(s.head.Hash)},
		Signers:        snapshot.Signers{Threshold: s.manifest.Signers.Threshold},
	}
	for _, r := range in.state.Value.Revoked {
		b.Revoked = append(b.Revoked, r.thing())
	}
	for _, k := range in.state.Value.MeshKeys {
		b.MeshKeys = append(b.MeshKeys, k.Key)
	}
	for _, k := range in.state.Value.ConfigKeys {
		b.ConfigKeys = append(b.ConfigKeys, snapshot.ConfigKey{
			Algorithm: snapshot.AlgorithmTree,
			Key:       s.configKey(k.Number),
			NotBefore: k.NotBefore, NotAfter: k.NotAfter,
			Revoked: !k.RevokedAt.IsZero(), Scopes: configScopes(),
		})
	}
	for _, signer := range s.manifest.Signers.Keys {
		b.Signers.Keys = append(b.Signers.Keys, snapshot.SignerKey{Name: signer.Name, Key: signer.Key.Public()})
	}
	for _, r := range in.state.Value.Roots {
		if !bytes.Equal(r.DER, s.root.Raw) {
			b.RetiredRoots = append(b.RetiredRoots, r.DER)
		}
	}
	slices.SortFunc(b.RetiredRoots, bytes.Compare)
	slices.SortFunc(b.BannedIDs, identity.ID.Compare)
	slices.SortFunc(b.BannedKeys, compareKeys)
	slices.SortFunc(b.MeshKeys, compareKeys)
	slices.SortFunc(b.ConfigKeys, func(a, b snapshot.ConfigKey) int { return bytes.Compare(a.Key, b.Key) })
	slices.SortFunc(b.Signers.Keys, func(a, b snapshot.SignerKey) int { return bytes.Compare(a.Key, b.Key) })
	return b, nil
}

func compareKeys(a, b identity.KeyID) int { return bytes.Compare(a[:], b[:]) }

// configScopes are the scopes that config signing keys sign: all but the trust
// bundle, which is the config root key's.
func configScopes() []snapshot.Scope {
	return slices.DeleteFunc(snapshot.Scopes(), func(s snapshot.Scope) bool { return s == snapshot.ScopeTrustBundle })
}

// bundleLife is how long a trust bundle is valid without a newer one: as long as
// a mesh CA certificate, so that an identity is never cut short by its bundle.
func bundleLife(m *manifest.Manifest) time.Duration { return 2 * m.LongestSVIDTTL() }

// signTrust compiles and signs the bundle of in.
func signTrust(s *state, in trustInput, now time.Time) (*trustView, error) {
	content, err := compileTrust(s, in)
	if err != nil {
		return nil, err
	}
	bundle, err := content.Identity()
	if err != nil {
		return nil, fmt.Errorf("the trust bundle trusts nobody: %w", err)
	}
	revocations, err := content.Revocations()
	if err != nil {
		return nil, fmt.Errorf("digest the revocations: %w", err)
	}
	issued := now.UTC().Truncate(time.Second)
	life := bundleLife(s.manifest)
	draft, err := snapshot.Compose(snapshot.Header{
		ClusterID:      s.manifest.Cluster,
		Subject:        snapshot.ClusterSubject(),
		ScopeType:      snapshot.ScopeTrustBundle,
		ConfigVersion:  uint64(in.state.Version),
		AuthorityEpoch: s.head.AuthorityEpoch,
		IssuedAt:       issued, ValidFrom: issued,
		ExpiresAt:    issued.Add(life).Truncate(time.Second),
		RefreshAfter: issued.Add(min(trustRefreshPause, life/2)).Truncate(time.Second),
	}, &content)
	if err != nil {
		return nil, fmt.Errorf("compose the trust bundle: %w", err)
	}
	signed, err := draft.Sign(s.secrets.ConfigRoot())
	if err != nil {
		return nil, fmt.Errorf("sign the trust bundle: %w", err)
	}
	raw, err := signed.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode the trust bundle: %w", err)
	}
	return &trustView{
		version: uint64(in.state.Version), epoch: s.head.AuthorityEpoch, meshKey: s.meshKey,
		contentHash: draft.Header().ContentHash, size: draft.Header().ContentSize, revocations: revocations, revoked: snapshot.RevocationsIn(content), configKeys: slices.Clone(in.state.Value.ConfigKeys), rotation: in.state.Value.Rotation,
		bundle: bundle, signed: raw, issuedAt: issued, links: s.recent(), rootChanges: s.rootChanges, rootEpoch: s.rootEpoch,
	}, nil
}

// ensureTrust makes the trust state name the mesh CA key of s, as after a first
// set or a change of authority, and returns the inputs that are then in force. A
// crash between the head's swap and this is healed by the next start.
func (c *Coordinator) ensureTrust(ctx context.Context, s *state) (trustInput, error) {
	for range commitTries {
		in, err := c.readTrust(ctx, s)
		if err != nil {
			if errors.Is(err, store.ErrForged) {
				if moved := c.forgedUnder(ctx, s, suspect{"the trust state and the bans", err}); moved != nil {
					return in, moved
				}
			}
			return in, err
		}
		now := c.now().UTC().Truncate(time.Second)
		next, changed := nextTrustState(in, s, now)
		if !changed {
			return in, nil
		}
		ch := s.records.NewChange(s.headVersion)
		ch.Put(trustStateKey, in.state.Version, next)
		if err := c.beginConfig(ctx, ch, in.state.Value); err != nil {
			return in, err
		}
		_, err = ch.Commit(ctx)
		var conflict *store.ConflictError
		switch {
		case errors.As(err, &conflict) && conflict.Key == history.HeadKey:
			return in, err // another head is in force: this state is over
		case err != nil && !errors.Is(err, store.ErrConflict):
			return in, err
		}
	}
	return trustInput{}, errBusy("the trust state")
}

// nextTrustState returns the trust state that fits s at now, and whether it is
// another one than that of in.
func nextTrustState(in trustInput, s *state, now time.Time) (trustState, bool) {
	t := in.state.Value
	changed := in.outlived(now)
	if len(t.ConfigKeys) == 0 {
		t.ConfigKeys = []configKey{{Number: 1, NotBefore: now.Add(-10 * time.Minute), NotAfter: now.Add(configKeyLife)}}
		t.LastConfigKey = 1
		changed = true
	}
	if t.SeedEpoch != s.head.SeedEpoch {
		// The numbers are of other keys now: nobody holds one that is revoked.
		if t.SeedEpoch != 0 {
			t.ConfigKeys = slices.DeleteFunc(slices.Clone(t.ConfigKeys), func(k configKey) bool { return !k.RevokedAt.IsZero() })
			t.Emergencies = nil // they are of the root before; what they revoked by name stays
		}
		t.SeedEpoch, changed = s.head.SeedEpoch, true
	}
	keys := slices.Clone(t.MeshKeys)
	keys = slices.DeleteFunc(keys, func(k meshKey) bool {
		gone := !k.AcceptUntil.IsZero() && !now.Before(k.AcceptUntil)
		changed = changed || gone
		return gone
	})
	if len(keys) == 0 || keys[0].Key != s.meshKey {
		for i := range keys {
			if keys[i].AcceptUntil.IsZero() {
				// The last SVID that it can have signed ends no later than this.
				keys[i].AcceptUntil = now.Add(keys[i].LongestTTL)
			}
		}
		keys = slices.Insert(keys, 0, meshKey{Key: s.meshKey, AuthorityEpoch: s.head.AuthorityEpoch})
		changed = true
	}
	if ttl := s.manifest.LongestSVIDTTL(); ttl > keys[0].LongestTTL {
		keys[0].LongestTTL, changed = ttl, true
	}
	roots := slices.DeleteFunc(slices.Clone(t.Roots), func(r rootState) bool {
		gone := !r.AcceptUntil.IsZero() && !now.Before(r.AcceptUntil)
		changed = changed || gone
		return gone
	})
	if len(roots) == 0 || !bytes.Equal(roots[0].DER, s.root.Raw) {
		for i := range roots {
			if roots[i].AcceptUntil.IsZero() {
				// No SVID under it outlives the mesh CA keys that signed it.
				for _, k := range keys[1:] {
					roots[i].AcceptUntil = record.Later(roots[i].AcceptUntil, k.AcceptUntil)
				}
			}
		}
		roots = slices.Insert(roots, 0, rootState{DER: s.root.Raw})
		changed = true
	}
	t.Roots = roots
	if !t.Config {
		t.Config, changed = true, true
	}
	if t.UnbansFrom == 0 {
		t.UnbansFrom, changed = in.state.Version+1, true
	}
	if t.Head != s.head.Hash {
		t.Head, changed = s.head.Hash, true
	}
	t.MeshKeys = keys
	t.Bans = in.sum()
	if changed {
		t.Change++
		t.AsOf = now
	}
	return t, changed
}

// outlived reports whether the time that bans are compared with should move: it
// lies ahead, because a clock was wrong, or some banned keys have not needed to be
// listed for a while.
func (in trustInput) outlived(now time.Time) bool {
	asOf := in.state.Value.AsOf
	if asOf.After(now.Add(snapshot.ClockTolerance)) {
		return true
	}
	return now.Sub(asOf) >= sweepPause && slices.ContainsFunc(in.bannedK, func(b keyBan) bool {
		return asOf.Before(b.certEnd) && !now.Before(b.certEnd)
	})
}

// trustDelta is what a transaction changes of the inputs of the trust bundle.
type trustDelta struct {
	ban, unban []identity.ID
	keys       []keyBan // banned, or banned for longer
	forget     []identity.KeyID
	// write adds to the change what says under which counter it is made. Nil: nothing does.
	write func(counter uint64)
	// edit changes the state itself, which was read at version was. Nil: it does not.
	edit func(t *trustState, was store.Revision) error
}

// banRoom says how much of the bundle's room for banned keys a change may use.
// Removals and replacements, which can wait, leave a quarter of it for bans. In the same
// way what an admin revokes, which nothing lifts, leaves a quarter for the signers.
type banRoom bool

const (
	roomForBans   banRoom = true
	roomForOthers banRoom = false
)

// of returns how much of limit a change may use.
func (r banRoom) of(limit int) int {
	if r == roomForOthers {
		return limit - limit/4
	}
	return limit
}

// bundleReserve is what of a bundle's size is kept for what must not fail: the keys,
// roots and signers that a change of the manifest or of authority adds.
const bundleReserve = 64 << 10

// errBundleFull is matched when a bundle could not list what it has to.
var errBundleFull = errors.New("the trust bundle is full")

// touchTrust adds to ch a new version of the trust state, so that the bundle
// that ch leads to has a version of its own. What no bundle could be made of is
// refused here, with an error that matches errBundleFull: once committed it would
// stop every later ban.
func (c *Coordinator) touchTrust(ctx context.Context, s *state, ch *record.Change, d trustDelta, room banRoom) error {
	in, err := c.readTrust(ctx, s)
	if err != nil {
		return c.storeError("read the trust state", err)
	}
	was := in.state.Version
	next, changed := nextTrustState(in, s, c.now().UTC().Truncate(time.Second))
	if !changed {
		next.Change++
	}
	if d.edit != nil {
		if err := d.edit(&next, was); err != nil {
			return err
		}
	}
	in = in.with(d, next)
	next.Bans = in.sum()
	limit := room.of(c.maxListed)
	if n := len(in.listed()); n > limit && len(d.keys) > 0 {
		return fmt.Errorf("%d banned keys would be listed, the limit is %d: %w", n, limit, errBundleFull)
	}
	t, err := signTrust(s, in, c.now())
	if err != nil {
		return fmt.Errorf("%w: %w", errBundleFull, err)
	}
	if have := c.trust.Load(); t.size > snapshot.DefaultContent-bundleReserve && have != nil && t.size > have.size {
		return fmt.Errorf("%d bytes, of which %d are kept for the next manifest: %w", t.size, bundleReserve, errBundleFull)
	}
	ch.Put(trustStateKey, was, next)
	if d.write != nil {
		d.write(next.Change)
	}
	return nil
}

// with returns in as it is after d, under state next. Its version is a stand-in:
// the transaction's own is not known yet.
func (in trustInput) with(d trustDelta, next trustState) trustInput {
	out := trustInput{state: record.Versioned[trustState]{Value: next, Version: max(in.state.Version, 1)}}
	for _, id := range append(slices.Clone(in.bannedI), d.ban...) {
		if !slices.Contains(d.unban, id) {
			out.bannedI = append(out.bannedI, id)
		}
	}
	slices.SortFunc(out.bannedI, identity.ID.Compare)
	out.bannedI = slices.Compact(out.bannedI)
	again := make(map[identity.KeyID]bool, len(d.keys)+len(d.forget))
	for _, key := range d.forget {
		again[key] = true
	}
	for _, b := range d.keys {
		again[b.key] = true
	}
	for _, b := range in.bannedK {
		if !again[b.key] {
			out.bannedK = append(out.bannedK, b)
		}
	}
	out.bannedK = append(out.bannedK, d.keys...)
	return out
}

// bundleFull words errBundleFull for who asked.
func bundleFull(what string, err error) error {
	if !errors.Is(err, errBundleFull) {
		return err
	}
	return explain.Wrap(err, explain.RateLimited, "what", what, "limit", fmt.Sprintf("%d banned keys whose certificates are still valid", snapshot.MaxBans))
}

// trustChanged makes what was just committed true here: our own connections
// first, then the members'.
func (c *Coordinator) trustChanged(ctx context.Context) error {
	s, err := c.ready()
	if err != nil {
		return err
	}
	if err := c.refreshTrust(ctx, s, false); err != nil {
		// It is durable, and the trust loop goes on trying.
		c.trustDue.Notify()
		return c.storeError("read the trust state", err)
	}
	return nil
}

// refreshTrust compiles the bundle if its inputs or, with renew, its age ask for
// it, and puts it into force.
func (c *Coordinator) refreshTrust(ctx context.Context, s *state, renew bool) (err error) {
	release, err := c.refreshing.Lock(ctx, "trust")
	if err != nil {
		return err
	}
	defer release()
	withdrawn := c.withdrawn.settled()
	in, err := c.ensureTrust(ctx, s)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			c.withdrawn.forget(withdrawn...) // the bundle bans them, or nothing came of it
		}
	}()
	now := c.now()
	have := c.trust.Load()
	if have != nil && have.epoch == s.head.AuthorityEpoch && have.version >= uint64(in.state.Version) {
		age := now.Sub(have.issuedAt)
		fresh := age > -snapshot.ClockTolerance && age < min(trustRefreshPause, bundleLife(s.manifest)/4)
		if fresh || !renew {
			return nil
		}
	}
	t, err := signTrust(s, in, now)
	if err != nil {
		return err
	}
	if err := c.believe(t); err != nil {
		return err
	}
	c.guard.Sweep(ctx)
	c.bundleChanged.Notify()
	c.log.LogAttrs(ctx, slog.LevelInfo, "trust bundle in force", slog.Uint64("config_version", t.version), slog.Uint64("authority_epoch", t.epoch),
		slog.Int("banned", len(in.bannedI)), slog.Int("banned_keys", len(in.bannedK)), slog.Int("mesh_keys",
			len(in.state.Value.MeshKeys)))
	return nil
}

// believe puts t into force here, unless a newer one is already.
func (c *Coordinator) believe(t *trustView) error {
	c.trustMu.Lock()
	defer c.trustMu.Unlock()
	if have := c.trust.Load(); have != nil && have.newer(t) {
		return nil
	}
	if err := c.source.Trust(t.bundle); err != nil {
		return fmt.Errorf("believe the new trust bundle: %w", err)
	}
	c.trust.Store(t)
	c.kept.SawBundle(t.signed)
	return nil
}

// followTrust keeps the bundle up with the store until ctx ends: at once on a
// notice or a change, and every few seconds in case a notice was lost.
func (c *Coordinator) followTrust(ctx context.Context, s *state) error {
	changed, stop := watch.Key(ctx, c.store, trustStateKey)
	defer stop()
	for {
		due, confirmed := c.trustDue.Wait(), c.keyConfirmed.Wait()
		if err := c.untilWhole(ctx); err != nil {
			return err
		}
		// A head that moved ends this state, and with it ctx.
		err := c.refreshTrust(ctx, s, true)
		if err == nil {
			err = c.followRotation(ctx, s)
		}
		if err != nil && !c.conflicts(ctx, err) {
			return err
		}
		if _, err := watch.Wait(ctx, trustPollPause, due, changed, confirmed); err != nil {
			return err
		}
		select {
		case <-confirmed:
			// What one coordinator hears, the others wait for; of many that confirm at
			// once one look is enough.
			if err := watch.Sleep(ctx, confirmPause); err != nil {
				return err
			}
		default:
		}
	}
}

// bootstrap compiles and signs what a node is told when it joins. version is the
// revision of a transaction that wrote rec for this very content, and serves as
// the generation of its publication too. No two contents may share one: the node
// would take the second for an equivocation.
func (c *Coordinator) bootstrap(s *state, rec record.Member, version store.Revision,
	now time.Time) (*fealtyv1.SignedSnapshot, error) {
	id, err := identity.New(s.manifest.Cluster, rec.Kind, rec.Name)
	if err != nil {
		return nil, err
	}
	roles := roleNames(rec.Roles)
	orgs := slices.Sorted(slices.Values(rec.Organizations))
	entry, ok := s.manifest.EntryByName(rec.Entry)
	if !ok {
		return nil, fmt.Errorf("entry %s of the member's record is not in the manifest in force", rec.Entry) // callers cover first
	}
	content := snapshot.NodeBootstrap{
		ClusterID: s.manifest.Cluster, Node: id, Kind: rec.Kind, Roles: roles, Organizations: orgs, Entry: rec.Entry,
		Coordinators: c.knownAddresses(),
		RenewEvery:   renewEvery(entry.SVIDTTL).Truncate(time.Second),
		SVIDTTL:      entry.SVIDTTL.Truncate(time.Second),
		Degraded:     degradedPolicy(s.manifest),
		Resilience:   snapshot.Resilience{DataMembers: c.members.count(identity.Data), Required: s.manifest.Baseline.Data},
	}
	if snapshot.MayHold(snapshot.ScopeNodeBootstrap, snapshot.SectionMembers, roles) {
		for _, m := range c.members.visible(rec, maxBootstrapMembers) {
			other, err := identity.New(s.manifest.Cluster, m.Kind, m.Name)
			if err != nil {
				return nil, err
			}
			if nameable(other) != nil {
				continue // of an earlier release
			}
			switch m.State {
			case record.Active:
				content.Members = append(content.Members, snapshot.Member{ID: other, State: snapshot.MemberActive})
			case record.Draining:
				content.Members = append(content.Members, snapshot.Member{ID: other, State: snapshot.MemberDraining})
			}
		}
		slices.SortFunc(content.Members, func(a, b snapshot.Member) int { return a.ID.Compare(b.ID) })
	}
	issued := now.UTC().Truncate(time.Second)
	draft, err := snapshot.Compose(snapshot.Header{
		ClusterID: s.manifest.Cluster, Subject: snapshot.NodeSubject(id, rec.Incarnation), ScopeType: snapshot.ScopeNodeBootstrap,
		Roles: roles, OrganizationIDs: orgs,
		ConfigVersion: uint64(version), AuthorityEpoch: s.head.AuthorityEpoch,
		IssuedAt: issued, ValidFrom: issued,
		ExpiresAt:    issued.Add(bootstrapLife),
		RefreshAfter: issued.Add(bootstrapLife / 2),
	}, &content)
	if err != nil {
		return nil, err
	}
	t := c.trust.Load()
	signed, err := draft.Publish(snapshot.Record{
		ClusterID: s.manifest.Cluster, AuthorityEpoch: s.head.AuthorityEpoch, Generation: uint64(version),
		IssuedAt: issued, FreshUntil: issued.Add(entry.SVIDTTL).Truncate(time.Second), Revocations: t.revocations,
	}, t.signers(s, now)...)
	if err != nil {
		return nil, err
	}
	raw, err := signed.Marshal()
	if err != nil {
		return nil, err
	}
	return &fealtyv1.SignedSnapshot{Scope: string(snapshot.ScopeNodeBootstrap), Envelope: raw}, nil
}

// bootstrapLife is the hard end of a node_bootstrap. It is far ahead: what a
// node is does not change until it is told so.
const bootstrapLife = 365 * 24 * time.Hour

// configKey is one config signing key: number n derives from the seed.
type configKey struct {
	Number    uint32    `json:"number"`
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	// RevokedAt is set when somebody else may hold the key.
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	RevokedBy string    `json:"revoked_by,omitempty"`
	Reason    string    `json:"reason,omitempty"`
}

func (s *state) configRoot() ed25519.PublicKey {
	return s.secrets.ConfigRootKey()
}

func (s *state) configKey(n uint32) ed25519.PublicKey {
	return s.secrets.ConfigSigningKey(n)
}
