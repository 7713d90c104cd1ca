package coordinator

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/announcement"
	"github.com/fealty-io/fealty/internal/coordinator/audit"
	"github.com/fealty-io/fealty/internal/coordinator/auditing"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/delivery"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/keepers"
	"github.com/fealty-io/fealty/internal/coordinator/keychain"
	"github.com/fealty-io/fealty/internal/coordinator/membership"
	"github.com/fealty-io/fealty/internal/coordinator/peerrecovery"
	"github.com/fealty-io/fealty/internal/coordinator/peers"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/coordinator/trustbundle"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/enrolment"
	"github.com/fealty-io/fealty/internal/fault"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/history"
	decide "github.com/fealty-io/fealty/internal/replica"
	"github.com/fealty-io/fealty/internal/sealed"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/patience"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/manifest"
)

// authorityConfig is what an Authority is made of.
type authorityConfig struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Replicas   *replicas.Directory
	Keepers    *keepers.Keepers
	Keys       *keychain.Keychain
	StoreGuard *storeguard.Guard
	Auditing   *auditing.Queue
	Peers      *peerrecovery.PeerRecovery
	Store      store.Store
	FS         durable.FS
	Faults     *fault.Points
	Limiter    *flowcontrol.Sources
	Readers    *flowcontrol.Readers
	Refusals   *flowcontrol.LogSampler
	Failures   *flowcontrol.LogSampler
	Log        *slog.Logger
	Now        func() time.Time
	Elapsed    func() time.Duration

	// SelfHealAfter is how long it looks for the mesh CA key before it makes another.
	SelfHealAfter time.Duration
	// Parse reads a manifest that is to be set: manifest.Parse, but where a test plays
	// the release that set what a later one refuses.
	Parse func([]byte) (*manifest.Manifest, error)

	Families families

	// Higher rooms do these for it.

	// Preview names which members and tokens the manifest next would cut off under s.
	Preview func(ctx context.Context, s *authority.State, next *manifest.Manifest,
		out *fealtyv1.PreviewManifestResponse) error

	Followers []authority.Follower // in the order in which they prepare
	Arrivals  []func()             // a head came into force
	Returns   []func()             // it is about to be ready, and was not
	Claimed   func(*history.Link)  // the store shows this head, and nothing vouches for it yet
	Fits      []authority.Fitter   // say what a move must not break
	// BeforeMove ends what has to be done under from, before its head is replaced.
	BeforeMove func(ctx context.Context, from *authority.State)
	// LeaderChange begins a change that only who leads can commit.
	LeaderChange func(s *authority.State) *record.Change
}

// Authority brings a head into force, and its keys: it sets, follows and comes back (I8, I9).
type Authority struct {
	cfg authorityConfig

	setting chan struct{} // held by the one SetManifest under way; capacity 1
	search  decide.Search // the way back to the head; owned by who holds setting
	pushed  atomic.Bool   // a peer may be at the head: look for it now

	prepared *prepared // a seed that waits for its signatures; owned by who holds setting
	// untold is what the audit log is told once a state is adopted: where the secrets came
	// from, and the moves that made it; owned by who holds setting.
	untold []record.AuditEntry

	// lost counts adoptions in a row that somebody else was first with; owned by who holds
	// setting.
	lost      int
	unsettled atomic.Bool // a reseed may have left the records frozen
	tried     atomic.Bool // to bring the keys back, or to find that there are none
	firstSets *flowcontrol.Limiter
	yields    yields // of the search to owners
}

func newAuthority(cfg authorityConfig) *Authority {
	return &Authority{
		cfg: cfg, setting: make(chan struct{}, 1), firstSets: newFirstSets(),
		search: decide.Search{HealAfter: cfg.SelfHealAfter, Random: mathrand.Float64},
	}
}

// ownerRecoveryConfig is what an OwnerRecovery is made of.
type ownerRecoveryConfig struct {
	Self      *authority.Enrolment
	Head      *authority.Head
	Replicas  *replicas.Directory
	Keys      *keychain.Keychain
	Authority *Authority
	Election  *election.Election
	Store     store.Store
	Faults    *fault.Points
	Readers   *flowcontrol.Readers
	Refusals  *flowcontrol.LogSampler
	Log       *slog.Logger
	Now       func() time.Time
}

// OwnerRecovery brings the seed back from its owners' shares.
type OwnerRecovery struct {
	cfg     ownerRecoveryConfig
	metrics *ownerRecoveryMetrics

	recoveries   *recoveries
	gatheringDue watch.Signal // the open attempt is to be looked at now
}

func newOwnerRecovery(cfg ownerRecoveryConfig) *OwnerRecovery {
	return &OwnerRecovery{cfg: cfg, recoveries: newRecoveries()}
}

// unguarded are the families that are written to whatever the store lost: they tell of
// coordinators, or authenticate themselves, and decide nothing by being there.
var unguarded = []string{
	replicas.Prefix, auditlog.Prefix, auditlog.NotePrefix, auditlog.CheckpointPrefix,
	sealed.Prefix, sharePrefix, shareSetPrefix, recoveryPrefix, "history/blob/",
}

// Rooms are what a coordinator is made of, the lowest first; see docs/architecture.md.
type Rooms struct {
	StoreGuard    *storeguard.Guard
	Auditing      *auditing.Queue
	Self          *authority.Enrolment
	Head          *authority.Head
	Keepers       *keepers.Keepers
	Keys          *keychain.Keychain
	Authority     *Authority
	Bundle        *trustbundle.Current
	Election      *election.Election
	Audit         *audit.Trail
	Announcement  *announcement.Announcer
	PeerRecovery  *peerrecovery.PeerRecovery
	OwnerRecovery *OwnerRecovery
	Peers         *peers.Peers
	Membership    *membership.Membership
	Trust         *trust.Trust
	Desired       *desired.Desired
	Admission     *admission.Admission
	Publication   *publication.Publication
	Delivery      *delivery.Delivery
}

// families are the record families under the record MAC, by what a reseed does with them.
type families struct {
	moved  []string // it keeps them, and moves them in this order
	ended  []string // they end with the root
	tokens string   // of those, the one of join tokens
}

// recordFamilies are all of them.
var recordFamilies = families{
	// Trust is last: it is what says that the others are whole.
	moved: []string{record.MemberPrefix, record.CountPrefix, desired.Prefix, election.TermKey, publication.Prefix,
		bundle.Prefix},
	// A join token pins the root, so that it admits nobody under another one, and all keys
	// are other ones, so that nobody has confirmed any. A beat ends too: the leader makes the
	// next.
	ended:  []string{admission.TokenUsePrefix, admission.TokenPrefix, trust.RolloutPrefix, election.BeatKey},
	tokens: admission.TokenPrefix,
}

// own is what is this coordinator's own, whatever the store holds.
type own struct {
	key         ed25519.PrivateKey
	certificate *enrolment.Certificate // nil: none
	source      *credential.Issued     // what the listener presents and believes
	outside     durable.FS             // of what others read
}

// wire makes the rooms, the lowest first. Where a lower room asks something of a
// higher one, its config has a function for that; it is called once all of them are made.
func (c *Coordinator) wire(o own) error {
	cfg, r := c.cfg, &c.rooms
	r.StoreGuard = storeguard.New(storeguard.Config{
		Store: cfg.Store, StoreName: cfg.StoreName, Patience: authority.StorePatience, Unguarded: unguarded,
		FS: c.fs, Dir: cfg.DataDir, Now: c.now, Log: c.log, Failures: c.failures,
		InForce: func() (storeguard.Head, bool) {
			s := r.Head.State()
			return s.StoredHead(), s.Phase == authority.Ready
		},
		OlderHead: func() error { return r.Head.OlderHeadError() },
		Moved:     func() { r.Head.LookAgain() },
		Lost:      func() { r.Election.LookAgain() },
	})
	c.store = r.StoreGuard.Observe(patience.Store(cfg.Store))
	r.Auditing = auditing.New(auditing.Config{Store: c.store, Now: c.now, Log: c.log})
	r.Self = authority.NewEnrolment(authority.EnrolmentConfig{
		FS: c.fs, Log: c.log, Now: c.now,
		DataDir: cfg.DataDir, Addresses: c.addresses(), Pin: cfg.Pin, Key: o.key, Certificate: o.certificate,
	})
	r.Head = authority.NewHead(authority.HeadConfig{
		Self: r.Self, StoreGuard: r.StoreGuard, History: history.New(c.store), Store: c.store, FS: c.fs,
		Failures: c.failures, Log: c.log, Now: c.now, Elapsed: c.elapsed,
		MaxHeadAge: cfg.MaxHeadAge,
		Leave:      func(ctx context.Context) { r.Authority.leaveHead(ctx) },
		Memory:     func(s *authority.State) decide.Memory { return r.Keys.Memory(s) },
	})
	coordinators := &replicas.Directory{Store: c.store, Failures: c.failures, Log: c.log, Now: c.now}
	r.Keepers = keepers.New(keepers.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Store: c.store, FS: c.fs, Failures: c.failures,
		Log: c.log, Now: c.now,
	})
	r.Keys = new(keychain.Keychain)
	r.PeerRecovery = peerrecovery.New(peerrecovery.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Keys: r.Keys, Faults: c.faults, Readers: c.readers,
		Refusals: c.refusals, Failures: c.failures, Log: c.log, Now: c.now,
		Addresses: c.addresses(), ListensAt: c.Addr(),
		Peers: cfg.Peers, LookupHost: cfg.LookupHost, Dial: cfg.Dial, MaxAsking: cfg.knobs.maxAsking,
		HeadIfFree: func(ctx context.Context) (*authority.State, error) { return r.Authority.headIfFree(ctx) },
	})
	r.Authority = newAuthority(authorityConfig{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Keepers: r.Keepers, Keys: r.Keys,
		StoreGuard: r.StoreGuard, Auditing: r.Auditing, Peers: r.PeerRecovery, Store: c.store, FS: c.fs,
		Faults:  c.faults,
		Limiter: c.limiter, Readers: c.readers, Refusals: c.refusals, Failures: c.failures, Log: c.log,
		Now: c.now, Elapsed: c.elapsed,
		SelfHealAfter: cfg.SelfHealAfter, Parse: manifest.Parse,
		Families: recordFamilies,
		Preview: func(ctx context.Context, s *authority.State, next *manifest.Manifest,
			out *fealtyv1.PreviewManifestResponse) error {
			return r.Admission.Preview(ctx, s, next, out)
		},
		// In this order: a bundle is believed before anybody is a member by it.
		Followers: []authority.Follower{
			func(ctx context.Context, next *authority.State) (authority.Adoption, error) {
				return r.Bundle.Follow(ctx, next)
			},
			func(ctx context.Context, next *authority.State) (authority.Adoption, error) {
				return r.Desired.Follow(ctx, next)
			},
			func(ctx context.Context, next *authority.State) (authority.Adoption, error) {
				return r.Membership.Follow(ctx, next)
			},
		},
		Arrivals: []func(){func() { r.OwnerRecovery.recoveries.over() }},
		Returns:  []func(){func() { r.Membership.Listen() }},
		Claimed:  func(l *history.Link) { r.OwnerRecovery.recoveries.expect(l) },
		Fits: []authority.Fitter{
			func(ctx context.Context, from, after *authority.State) error {
				return r.Bundle.Fits(ctx, from, after)
			},
			func(ctx context.Context, from, after *authority.State) error {
				return r.Publication.Fits(ctx, from, after)
			},
		},
		BeforeMove:   func(ctx context.Context, from *authority.State) { r.Audit.BeforeMove(ctx, from) },
		LeaderChange: func(s *authority.State) *record.Change { return r.Election.NewChange(s) },
	})
	r.Bundle = trustbundle.New(trustbundle.Config{
		Self: r.Self, Head: r.Head, StoreGuard: r.StoreGuard, Guard: c.guard, Source: o.source,
		Log: c.log, Now: c.now, MaxListed: cfg.knobs.maxListed,
		Begin: func(ctx context.Context, ch *record.Change, in bundle.State) error {
			return r.Desired.Begin(ctx, ch, in)
		},
	})
	var err error
	r.Election, err = election.New(election.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, StoreGuard: r.StoreGuard, Store: c.store,
		Faults: c.faults, Failures: c.failures, Log: c.log, Now: c.now, Elapsed: c.elapsed,
		Lease: cfg.Lease, Beat: cfg.Beat, LookAtFreeze: r.Authority.lookAtFreeze,
	})
	if err != nil {
		return err
	}
	r.Audit = audit.New(audit.Config{
		Store: c.store, Losses: r.StoreGuard, Authority: r.Head, Trust: r.Bundle,
		Lead: r.Election, Stopping: c.stopping, Now: c.now, Log: c.log, Failures: c.failures,
	})
	reads := manifest.LaterFields()
	if cfg.knobs.earlier {
		reads = nil
	}
	r.Announcement = announcement.New(announcement.Config{
		Self: r.Self, Head: r.Head, Keepers: r.Keepers, Election: r.Election, StoreGuard: r.StoreGuard,
		Replicas: coordinators, Store: c.store, Faults: c.faults, Failures: c.failures, Log: c.log, Now: c.now,
		Reads: reads, StartedAt: c.startedAt, Release: cfg.Release, Addresses: c.addresses(),
		Silence: func(key string) (time.Duration, bool) { return r.Peers.Silent(key) },
	})
	r.OwnerRecovery = newOwnerRecovery(ownerRecoveryConfig{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Keys: r.Keys, Authority: r.Authority,
		Election: r.Election, Store: c.store, Faults: c.faults, Readers: c.readers, Refusals: c.refusals,
		Log: c.log, Now: c.now,
	})
	r.Peers = peers.New(peers.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Bundle: r.Bundle, StoreGuard: r.StoreGuard,
		Store: c.store, Faults: c.faults, Failures: c.failures, Log: c.log, Now: c.now, Elapsed: c.elapsed,
		Addresses: c.addresses(), Dial: cfg.Dial,
		Published: func() map[string][]string { return r.Publication.Coordinators() },
		Proven: func(ctx context.Context, from string, raw []byte) error {
			return r.Trust.Proven(ctx, from, raw)
		},
	})
	r.Membership = membership.New(membership.Config{
		Self: r.Self, Head: r.Head, Bundle: r.Bundle, Election: r.Election, StoreGuard: r.StoreGuard, Peers: r.Peers,
		Store: c.store, Guard: c.guard, Failures: c.failures, Log: c.log, Now: c.now, Elapsed: c.elapsed,
		Found: func(s *authority.State) []*fealtyv1.Finding {
			return slices.Concat(c.headFindings(s), r.StoreGuard.RefusingFindings(), r.Publication.Findings())
		},
	})
	r.Trust = trust.New(trust.Config{
		Self: r.Self, Head: r.Head, Bundle: r.Bundle, Election: r.Election,
		Membership: r.Membership, StoreGuard: r.StoreGuard, Store: c.store, Faults: c.faults,
		Limiter: c.limiter, Readers: c.readers, Refusals: c.refusals, Log: c.log, Now: c.now,
		RotateMesh: r.Authority.rotateMesh,
	})
	r.Desired = desired.New(desired.Config{
		Head: r.Head, StoreGuard: r.StoreGuard, Store: c.store, Log: c.log, Now: c.now,
	})
	r.Admission = admission.New(admission.Config{
		Head: r.Head, Peers: r.Peers, Bundle: r.Bundle, Election: r.Election, Membership: r.Membership,
		StoreGuard: r.StoreGuard, Auditing: r.Auditing, Store: c.store,
		Pending: cfg.knobs.maxJoins, PendingPerSource: cfg.knobs.maxSourceJoins,
		Faults: c.faults, Limiter: c.limiter, PerMember: cfg.Rates.perMember(), Readers: c.readers,
		Refusals: c.refusals, Log: c.log, Now: c.now, MaxHeadAge: cfg.MaxHeadAge,
	})
	r.Publication = publication.New(publication.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Bundle: r.Bundle,
		Election: r.Election, Membership: r.Membership, Desired: r.Desired, StoreGuard: r.StoreGuard,
		Store: c.store, Faults: c.faults, Failures: c.failures, Log: c.log, Now: c.now, Addresses: c.addresses(),
		Outside: o.outside, PublishDir: cfg.PublishDir,
	})
	r.Delivery = delivery.New(delivery.Config{
		Head: r.Head, Bundle: r.Bundle, Membership: r.Membership, Trust: r.Trust, Admission: r.Admission,
		Publication: r.Publication, Readers: c.readers, Failures: c.failures, Log: c.log, Now: c.now,
		Stopping: c.stopping,
	})
	c.conflicts()
	return nil
}

// conflicts says what it means that a transaction found another version of a key than it
// was decided by.
func (c *Coordinator) conflicts() {
	c.rooms.Head.OnConflict(history.HeadKey, c.rooms.Authority.headMoved)
	c.rooms.Head.OnConflict(record.FreezeKey, c.rooms.Authority.recordsFrozen)
	c.rooms.Head.OnConflict(election.TermKey, func(_ context.Context, err *store.ConflictError) bool {
		c.rooms.Election.Deposed(err.Want)
		return true
	})
	c.rooms.Head.OnConflict(bundle.StateKey, func(context.Context, *store.ConflictError) bool {
		c.rooms.Bundle.LookAgain() // what was decided may stand on the bundle of before
		return true
	})
}
