package coordinator

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/batch"
	"github.com/fealty-io/fealty/internal/coordinator/audit"
	"github.com/fealty-io/fealty/internal/coordinator/auditing"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/live"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/coordinator/roster"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/coordinator/trustbundle"
	"github.com/fealty-io/fealty/internal/copies"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/ended"
	"github.com/fealty-io/fealty/internal/enrolment"
	"github.com/fealty-io/fealty/internal/fault"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/presence"
	"github.com/fealty-io/fealty/internal/recall"
	decide "github.com/fealty-io/fealty/internal/replica"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/patience"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/mesh"
)

// keepersConfig is what Keepers are made of.
type keepersConfig struct {
	Self     *authority.Enrolment
	Head     *authority.Head
	Replicas *replicas.Directory
	Store    store.Store
	FS       durable.FS
	Failures *flowcontrol.LogSampler
	Log      *slog.Logger
	Now      func() time.Time
}

// Keepers seals the seed with the keepers whose keys are on this machine, and opens it.
type Keepers struct {
	cfg keepersConfig

	keeperViews    atomic.Pointer[keeperViews] // of this machine; nil: it did not look yet
	keepersChanged watch.Signal                // they changed

	failedMu sync.Mutex
	failed   map[string]string // keepers that did not seal, and why; guarded by failedMu
}

func newKeepers(cfg keepersConfig) *Keepers { return &Keepers{cfg: cfg} }

// authorityConfig is what an Authority is made of.
type authorityConfig struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Replicas   *replicas.Directory
	Keepers    *Keepers
	StoreGuard *storeguard.Guard
	Auditing   *auditing.Queue
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
	// Reads are the later fields of manifests that this release reads: all of them, but
	// where a test plays an earlier release.
	Reads []string
	// Parse reads a manifest that is to be set: manifest.Parse, but where a test plays
	// the release that set what a later one refuses.
	Parse func([]byte) (*manifest.Manifest, error)

	// Higher rooms do these for it.

	Followers []authority.Follower // in the order in which they prepare
	Arrivals  []func()             // a head came into force
	Returns   []func()             // it is about to be ready, and was not
	Claimed   func(*history.Link)  // the store shows this head, and nothing vouches for it yet
	Fits      []authority.Fitter   // say what a move must not break
	// BeforeMove ends what has to be done under from, before its head is replaced.
	BeforeMove func(ctx context.Context, from *authority.State)
	// LeaderChange begins a change that only who leads can commit.
	LeaderChange func(s *authority.State) *record.Change
	Peers        func() peers
}

// Authority brings a head into force, and its keys: it sets, follows and comes back (I8, I9).
type Authority struct {
	cfg authorityConfig

	setting    chan struct{}          // held by the one SetManifest under way; capacity 1
	candidates map[history.Hash]*move // moves of unknown outcome; owned by who holds setting
	search     decide.Search          // the way back to the head; owned by who holds setting
	pushed     atomic.Bool            // a peer may be at the head: look for it now
	opened     *opened                // a seed for the way back; owned by who holds setting

	prepared *prepared // a seed that waits for its signatures; owned by who holds setting
	// former are secrets of seeds that were replaced, which calls may still use; owned by who
	// holds setting.
	former []*authority.Secrets
	// untold is what the audit log is told once a state is adopted: where the secrets came
	// from, and the moves that made it; owned by who holds setting.
	untold []record.AuditEntry

	// lost counts adoptions in a row that somebody else was first with; owned by who holds
	// setting.
	lost      int
	unsettled atomic.Bool // a reseed may have left the records frozen
	tried     atomic.Bool // to bring the keys back, or to find that there are none
	firstSets *flowcontrol.Limiter
	taken     takenKeys // of heads that may come
	yields    yields    // of the search to owners
}

func newAuthority(cfg authorityConfig) *Authority {
	return &Authority{
		cfg: cfg, setting: make(chan struct{}, 1), firstSets: newFirstSets(),
		search: decide.Search{HealAfter: cfg.SelfHealAfter, Random: mathrand.Float64},
	}
}

// peerRecoveryConfig is what a PeerRecovery is made of.
type peerRecoveryConfig struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Replicas   *replicas.Directory
	Authority  *Authority
	Election   *election.Election
	StoreGuard *storeguard.Guard
	Store      store.Store
	Faults     *fault.Points
	Readers    *flowcontrol.Readers
	Refusals   *flowcontrol.LogSampler
	Failures   *flowcontrol.LogSampler
	Log        *slog.Logger
	Now        func() time.Time
	Elapsed    func() time.Duration

	StartedAt  time.Time
	Release    string   // that it reports
	Addresses  []string // that others are told; shared
	ListensAt  string   // its own address, which it never asks
	Peers      []string // see [Config]
	LookupHost func(ctx context.Context, name string) ([]string, error)
	Dial       func(ctx context.Context, addr string) (net.Conn, error) // nil: TCP
	// Silence is for how long the coordinator with the key was not heard, and whether it is
	// expected.
	Silence func(key string) (since time.Duration, expected bool)
}

// PeerRecovery hands the secrets of the head from one coordinator to another.
type PeerRecovery struct {
	cfg     peerRecoveryConfig
	metrics *peerRecoveryMetrics

	peerCalls *flowcontrol.Limiter
	silent    atomic.Pointer[map[string]bool] // peers by address: what they proved nothing when they were asked last
}

func newPeerRecovery(cfg peerRecoveryConfig) *PeerRecovery {
	return &PeerRecovery{cfg: cfg, peerCalls: newPeerCalls()}
}

// ownerRecoveryConfig is what an OwnerRecovery is made of.
type ownerRecoveryConfig struct {
	Self      *authority.Enrolment
	Head      *authority.Head
	Replicas  *replicas.Directory
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

// membershipConfig is what a Membership is made of.
type membershipConfig struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Replicas   *replicas.Directory
	Bundle     *trustbundle.Current
	StoreGuard *storeguard.Guard
	Store      store.Store
	Guard      *mesh.Guard
	Faults     *fault.Points
	Failures   *flowcontrol.LogSampler
	Log        *slog.Logger
	Now        func() time.Time
	Elapsed    func() time.Duration

	Addresses []string                                                 // that tokens and members are told; shared
	Dial      func(ctx context.Context, addr string) (net.Conn, error) // to another coordinator; nil: TCP
	// Published are the addresses of coordinators that members are told, by enrolment key.
	Published func() map[string][]string
	// Found is what else this coordinator finds that the others are told.
	Found func(s *authority.State) []*fealtyv1.Finding
	// Proven counts a trust bundle that somebody showed as seen, if this cluster signed it.
	Proven func(ctx context.Context, from string, raw []byte) error
}

// Membership knows who is a member, who is connected, and how one stops being one.
type Membership struct {
	cfg     membershipConfig
	metrics *membershipMetrics

	hears    atomic.Int64 // Unix nanoseconds: when it became ready, after it was not
	copies   copies.Watch // which processes opened streams of members
	openings openings     // streams that the other coordinators are to be told of
	members  *roster.Roster
	live     *live.Members
	others   *others        // what other coordinators hear
	presence presence.Watch // which other coordinators are heard
	cuts     atomic.Int64   // connections that the guard cut
	ended    ended.Log      // those of them that a ban ended
}

// newMembership returns one that knows of no member and heard nobody.
func newMembership(cfg membershipConfig) *Membership {
	return &Membership{
		cfg: cfg, members: roster.New(), others: newOthers(),
		live: live.New(cfg.Elapsed),
	}
}

// Roster is which members the store records.
func (c *Membership) Roster() *roster.Roster { return c.members }

// Live is who has a stream here.
func (c *Membership) Live() *live.Members { return c.live }

// Silent returns for how long the coordinator with the key was not heard, and whether it is
// expected.
func (c *Membership) Silent(key string) (since time.Duration, expected bool) {
	return c.presence.Silent(key, c.cfg.Elapsed())
}

// Listens says since when this coordinator hears its members: who was not heard before may
// have been there.
func (c *Membership) Listens(since time.Time) { c.hears.Store(since.UnixNano()) }

// Cut notes that the guard cut a connection of a member, because of a ban or for another
// reason.
func (c *Membership) Cut(id identity.ID, banned bool) {
	c.cuts.Add(1)
	if banned {
		c.ended.Add(string(id.Kind())+"/"+id.Name(), c.cfg.Now())
	}
}

// Close ends the connections to the other coordinators.
func (c *Membership) Close() { c.others.close() }

// trustConfig is what a Trust is made of.
type trustConfig struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Bundle     *trustbundle.Current
	Election   *election.Election
	Membership *Membership
	StoreGuard *storeguard.Guard
	Store      store.Store
	Faults     *fault.Points
	Limiter    *flowcontrol.Sources
	Readers    *flowcontrol.Readers
	Refusals   *flowcontrol.LogSampler
	Log        *slog.Logger
	Now        func() time.Time

	// RotateMesh puts another mesh CA key into force, and returns the state then; of a dry
	// run, the state that it would follow.
	RotateMesh func(ctx context.Context, dryRun bool, reason, by string) (*authority.State, error)
}

// Trust changes what the fleet trusts.
type Trust struct {
	cfg trustConfig

	presenting   *flowcontrol.Locks   // held by who takes a presented bundle in
	keyConfirmed watch.Signal         // a member may have confirmed a config key: it is to be looked at soon
	presenters   *flowcontrol.Limiter // of trust bundles of before a restore
}

func newTrust(cfg trustConfig) *Trust {
	return &Trust{cfg: cfg, presenting: flowcontrol.NewLocks(), presenters: newPresenters()}
}

// admissionConfig is what an Admission is made of.
type admissionConfig struct {
	Head       *authority.Head
	Bundle     *trustbundle.Current
	Membership *Membership
	StoreGuard *storeguard.Guard
	Auditing   *auditing.Queue
	Faults     *fault.Points
	Limiter    *flowcontrol.Sources
	PerMember  *flowcontrol.PerKey // renewals and rejoins, by identity
	Readers    *flowcontrol.Readers
	Refusals   *flowcontrol.LogSampler
	Log        *slog.Logger
	Now        func() time.Time

	// MaxHeadAge is how old the head may be under which it renews without the store.
	MaxHeadAge time.Duration
}

// Admission turns a proof into a certificate (I1).
type Admission struct {
	cfg     admissionConfig
	metrics *admissionMetrics

	recalls      recall.List          // of streams whose members hold certificates that stand in no record
	joinsWaiting *flowcontrol.Limiter // of joins from challenge to answer
	joinSlots    chan struct{}        // held by each join that is decided
	joins        *batch.Desk[joinLine, *joiner]
	known        *known
}

func newAdmission(cfg admissionConfig) *Admission {
	a := &Admission{cfg: cfg, joinsWaiting: newJoinsWaiting(), joinSlots: make(chan struct{}, joinsAtOnce),
		known: newKnown()}
	a.joins = batch.New(joinsAtOnce, cfg.Readers.Go, a.admitTogether)
	return a
}

// publicationConfig is what a Publication is made of.
type publicationConfig struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Replicas   *replicas.Directory
	Bundle     *trustbundle.Current
	Election   *election.Election
	Membership *Membership
	Desired    *desired.Desired
	StoreGuard *storeguard.Guard
	Store      store.Store
	Faults     *fault.Points
	Failures   *flowcontrol.LogSampler
	Log        *slog.Logger
	Now        func() time.Time

	Addresses []string // that members are told of this coordinator; shared
	// Outside is the file system of PublishDir, whose files others read.
	Outside    durable.FS
	PublishDir string // "": nothing is written for mirrors
}

// Publication compiles and signs what each member is told (I11, I12).
type Publication struct {
	cfg     publicationConfig
	metrics *publicationMetrics

	publication        atomic.Pointer[publication] // what members are told; nil before it was read
	publicationChanged watch.Signal
	compileReport      atomic.Pointer[compileReport] // nil before the first compile
	outlet             *outlet                       // nil without a PublishDir
}

func newPublication(cfg publicationConfig) *Publication {
	p := &Publication{cfg: cfg}
	if cfg.PublishDir != "" {
		p.outlet = newOutlet(cfg.Outside, cfg.PublishDir, cfg.Now)
	}
	return p
}

// deliveryConfig is what a Delivery is made of.
type deliveryConfig struct {
	Head        *authority.Head
	Bundle      *trustbundle.Current
	Membership  *Membership
	Trust       *Trust
	Admission   *Admission
	Publication *Publication
	Readers     *flowcontrol.Readers
	Failures    *flowcontrol.LogSampler
	Log         *slog.Logger
	Now         func() time.Time

	Stopping <-chan struct{} // closed when the coordinator stops
}

// Delivery streams to each member what is signed for it.
type Delivery struct {
	cfg     deliveryConfig
	metrics *deliveryMetrics

	pulls   *pullLimiter
	patches *patchCache
}

func newDelivery(cfg deliveryConfig) *Delivery {
	return &Delivery{cfg: cfg, pulls: newPullLimiter(), patches: newPatchCache()}
}

// unguarded are the families that are written to whatever the store lost: they tell of
// coordinators, or authenticate themselves, and decide nothing by being there.
var unguarded = []string{
	replicas.Prefix, auditPrefix, auditlog.NotePrefix, auditlog.CheckpointPrefix,
	sealedPrefix, sharePrefix, shareSetPrefix, recoveryPrefix, "history/blob/",
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
	cfg := c.cfg
	c.storeguard = storeguard.New(storeguard.Config{
		Store: cfg.Store, StoreName: cfg.StoreName, Patience: authority.StorePatience, Unguarded: unguarded,
		FS: c.fs, Dir: cfg.DataDir, Now: c.now, Log: c.log, Failures: c.failures,
		InForce: func() (storeguard.Head, bool) {
			s := c.head.State()
			return s.StoredHead(), s.Phase == authority.Ready
		},
		OlderHead: func() error { return c.head.OlderHeadError() },
		Moved:     func() { c.head.LookAgain() },
		Lost:      func() { c.election.LookAgain() },
	})
	c.store = c.storeguard.Observe(patience.Store(cfg.Store))
	c.auditing = auditing.New(auditing.Config{Store: c.store, Now: c.now, Log: c.log})
	c.self = authority.NewEnrolment(authority.EnrolmentConfig{
		FS: c.fs, Log: c.log, Now: c.now,
		DataDir: cfg.DataDir, Addresses: c.addresses(), Pin: cfg.Pin, Key: o.key, Certificate: o.certificate,
	})
	c.head = authority.NewHead(authority.HeadConfig{
		Self: c.self, StoreGuard: c.storeguard, History: history.New(c.store), Store: c.store, FS: c.fs,
		Failures: c.failures, Log: c.log, Now: c.now, Elapsed: c.elapsed,
		MaxHeadAge: cfg.MaxHeadAge,
		Leave:      func(ctx context.Context) { c.authority.leaveHead(ctx) },
		Memory:     func(s *authority.State) decide.Memory { return c.authority.remembered(s) },
	})
	coordinators := &replicas.Directory{Store: c.store, Failures: c.failures, Log: c.log, Now: c.now}
	c.keepers = newKeepers(keepersConfig{
		Self: c.self, Head: c.head, Replicas: coordinators, Store: c.store, FS: c.fs, Failures: c.failures, Log: c.log,
		Now: c.now,
	})
	c.authority = newAuthority(authorityConfig{
		Self: c.self, Head: c.head, Replicas: coordinators, Keepers: c.keepers, StoreGuard: c.storeguard,
		Auditing: c.auditing,
		Store:    c.store, FS: c.fs, Faults: c.faults, Limiter: c.limiter, Readers: c.readers,
		Refusals: c.refusals, Failures: c.failures, Log: c.log, Now: c.now, Elapsed: c.elapsed,
		SelfHealAfter: cfg.SelfHealAfter, Reads: manifest.LaterFields(), Parse: manifest.Parse,
		// In this order: a bundle is believed before anybody is a member by it.
		Followers: []authority.Follower{
			func(ctx context.Context, next *authority.State) (authority.Adoption, error) {
				return c.bundle.Follow(ctx, next)
			},
			func(ctx context.Context, next *authority.State) (authority.Adoption, error) {
				return c.desired.Follow(ctx, next)
			},
			func(ctx context.Context, next *authority.State) (authority.Adoption, error) {
				return c.membership.follow(ctx, next)
			},
		},
		Arrivals: []func(){func() { c.ownerrecovery.recoveries.over() }},
		Returns:  []func(){func() { c.membership.listen() }},
		Claimed:  func(l *history.Link) { c.ownerrecovery.recoveries.expect(l) },
		Fits: []authority.Fitter{
			func(ctx context.Context, from, after *authority.State) error { return c.bundle.Fits(ctx, from, after) },
			func(ctx context.Context, from, after *authority.State) error {
				return c.publication.fits(ctx, from, after)
			},
		},
		BeforeMove:   func(ctx context.Context, from *authority.State) { c.audit.BeforeMove(ctx, from) },
		LeaderChange: func(s *authority.State) *record.Change { return c.election.NewChange(s) },
		Peers:        func() peers { return c.peerrecovery },
	})
	c.bundle = trustbundle.New(trustbundle.Config{
		Self: c.self, Head: c.head, StoreGuard: c.storeguard, Guard: c.guard, Source: o.source, Log: c.log, Now: c.now,
		MaxListed: cfg.maxListed,
		Begin: func(ctx context.Context, ch *record.Change, in bundle.State) error {
			return c.desired.Begin(ctx, ch, in)
		},
	})
	var err error
	c.election, err = election.New(election.Config{
		Self: c.self, Head: c.head, Replicas: coordinators, StoreGuard: c.storeguard, Store: c.store,
		Faults: c.faults, Failures: c.failures, Log: c.log, Now: c.now, Elapsed: c.elapsed,
		Lease: cfg.Lease, Beat: cfg.Beat, LookAtFreeze: c.authority.lookAtFreeze,
	})
	if err != nil {
		return err
	}
	c.audit = audit.New(audit.Config{
		Store: c.store, Losses: c.storeguard, Authority: c.head, Trust: c.bundle,
		Lead: c.election, Stopping: c.stopping, Now: c.now, Log: c.log, Failures: c.failures,
	})
	c.peerrecovery = newPeerRecovery(peerRecoveryConfig{
		Self: c.self, Head: c.head, Replicas: coordinators, Authority: c.authority, Election: c.election,
		StoreGuard: c.storeguard,
		Store:      c.store, Faults: c.faults, Readers: c.readers, Refusals: c.refusals, Failures: c.failures,
		Log: c.log, Now: c.now, Elapsed: c.elapsed,
		StartedAt: c.startedAt, Release: cfg.Release, Addresses: c.addresses(), ListensAt: c.Addr(),
		Peers: cfg.Peers, LookupHost: cfg.LookupHost, Dial: cfg.Dial,
		Silence: func(key string) (time.Duration, bool) { return c.membership.Silent(key) },
	})
	c.ownerrecovery = newOwnerRecovery(ownerRecoveryConfig{
		Self: c.self, Head: c.head, Replicas: coordinators, Authority: c.authority, Election: c.election,
		Store:  c.store,
		Faults: c.faults, Readers: c.readers, Refusals: c.refusals, Log: c.log, Now: c.now,
	})
	c.membership = newMembership(membershipConfig{
		Self: c.self, Head: c.head, Replicas: coordinators, Bundle: c.bundle, StoreGuard: c.storeguard,
		Store: c.store, Guard: c.guard, Faults: c.faults, Failures: c.failures, Log: c.log, Now: c.now,
		Elapsed: c.elapsed, Addresses: c.addresses(), Dial: cfg.Dial,
		Published: func() map[string][]string { return c.publication.coordinators() },
		Found: func(s *authority.State) []*fealtyv1.Finding {
			return slices.Concat(c.headFindings(s), c.storeguard.RefusingFindings(), c.publication.outlet.findings(),
				c.publication.compileFindings())
		},
		Proven: func(ctx context.Context, from string, raw []byte) error { return c.trust.proven(ctx, from, raw) },
	})
	c.trust = newTrust(trustConfig{
		Self: c.self, Head: c.head, Bundle: c.bundle, Election: c.election,
		Membership: c.membership, StoreGuard: c.storeguard, Store: c.store, Faults: c.faults,
		Limiter: c.limiter, Readers: c.readers, Refusals: c.refusals, Log: c.log, Now: c.now,
		RotateMesh: c.authority.rotateMesh,
	})
	c.desired = desired.New(desired.Config{
		Head: c.head, StoreGuard: c.storeguard, Store: c.store, Log: c.log, Now: c.now,
	})
	c.admission = newAdmission(admissionConfig{
		Head: c.head, Bundle: c.bundle, Membership: c.membership, StoreGuard: c.storeguard, Auditing: c.auditing,
		Faults: c.faults, Limiter: c.limiter, PerMember: cfg.Rates.perMember(), Readers: c.readers,
		Refusals: c.refusals, Log: c.log, Now: c.now, MaxHeadAge: cfg.MaxHeadAge,
	})
	c.publication = newPublication(publicationConfig{
		Self: c.self, Head: c.head, Replicas: coordinators, Bundle: c.bundle, Election: c.election,
		Membership: c.membership,
		Desired:    c.desired, StoreGuard: c.storeguard, Store: c.store, Faults: c.faults, Failures: c.failures,
		Log: c.log, Now: c.now, Addresses: c.addresses(), Outside: o.outside, PublishDir: cfg.PublishDir,
	})
	c.delivery = newDelivery(deliveryConfig{
		Head: c.head, Bundle: c.bundle, Membership: c.membership, Trust: c.trust, Admission: c.admission,
		Publication: c.publication, Readers: c.readers, Failures: c.failures, Log: c.log, Now: c.now,
		Stopping: c.stopping,
	})
	c.conflicts()
	return nil
}

// conflicts says what it means that a transaction found another version of a key than it
// was decided by.
func (c *Coordinator) conflicts() {
	c.head.OnConflict(history.HeadKey, c.authority.headMoved)
	c.head.OnConflict(record.FreezeKey, c.authority.recordsFrozen)
	c.head.OnConflict(election.TermKey, func(_ context.Context, err *store.ConflictError) bool {
		c.election.Deposed(err.Want)
		return true
	})
	c.head.OnConflict(bundle.StateKey, func(context.Context, *store.ConflictError) bool {
		c.bundle.LookAgain() // what was decided may stand on the bundle of before
		return true
	})
}
