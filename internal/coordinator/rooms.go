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
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/copies"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/ended"
	"github.com/fealty-io/fealty/internal/enrolment"
	"github.com/fealty-io/fealty/internal/fault"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/instant"
	"github.com/fealty-io/fealty/internal/presence"
	"github.com/fealty-io/fealty/internal/recall"
	decide "github.com/fealty-io/fealty/internal/replica"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/patience"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// enrolmentConfig is what is set of Enrolment.
type enrolmentConfig struct {
	DataDir   string         // where its files are
	Addresses []string       // that people and tokens are told; shared
	Pin       identity.KeyID // of the root key; zero: any
}

// Enrolment says which coordinator of the manifest this process is, and proves it.
type Enrolment struct {
	cfg enrolmentConfig
	fs  durable.FS
	log *slog.Logger
	now func() time.Time

	enrolment ed25519.PrivateKey
	// certificate is shown beside the enrolment key; nil: this coordinator has none.
	certificate        *enrolment.Certificate
	certificateChanged watch.Signal // it is another one
	setup              atomic.Pointer[setupSecret]
}

// headConfig is what is set of Head.
type headConfig struct {
	// MaxHeadAge is how long it serves what needs no new fact without seeing the head.
	MaxHeadAge time.Duration
}

// Head knows which head is in force, and what the store shows of it (I10).
type Head struct {
	cfg        headConfig
	elapsed    func() time.Duration
	failures   *flowcontrol.LogSampler
	fs         durable.FS
	log        *slog.Logger
	metrics    *headMetrics
	now        func() time.Time
	store      store.Store
	storeguard *storeguard.Guard
	self       *Enrolment

	// leave has the head that the store shows followed, before anything more is decided
	// under the one in force.
	leave func(ctx context.Context)
	// memory is what is here of s and of what may come, for who judges another head.
	memory     func(s *authority.State) decide.Memory
	conflicted map[string]func(ctx context.Context, err *store.ConflictError) (again bool)

	history       *history.Log
	state         atomic.Pointer[authority.State]
	stateChanged  watch.Signal
	headDue       watch.Signal                   // the head is to be looked at now
	older         atomic.Pointer[history.Record] // the head that the store shows, if it is one of before
	lag           lag                            // the state, if the store showed a newer head
	headConfirmed instant.Last                   // when the store was last asked and showed our head
}

// Keepers seals the seed with the keepers whose keys are on this machine, and opens it.
type Keepers struct {
	failures *flowcontrol.LogSampler
	fs       durable.FS
	log      *slog.Logger
	now      func() time.Time
	store    store.Store
	self     *Enrolment
	head     *Head

	keeperViews    atomic.Pointer[keeperViews] // of this machine; nil: it did not look yet
	keepersChanged watch.Signal                // they changed

	failedMu sync.Mutex
	failed   map[string]string // keepers that did not seal, and why; guarded by failedMu
}

// authorityConfig is what is set of Authority.
type authorityConfig struct {
	// SelfHealAfter is how long it looks for the mesh CA key before it makes another.
	SelfHealAfter time.Duration
}

// Authority brings a head into force, and its keys: it sets, follows and comes back (I8, I9).
type Authority struct {
	cfg        authorityConfig
	elapsed    func() time.Duration
	failures   *flowcontrol.LogSampler
	faults     *fault.Points
	fs         durable.FS
	limiter    *flowcontrol.Sources
	log        *slog.Logger
	now        func() time.Time
	readers    *flowcontrol.Readers
	refusals   *flowcontrol.LogSampler
	store      store.Store
	storeguard *storeguard.Guard
	auditing   *auditing.Queue

	// reads are the later fields of manifests that this release reads: all of them, but
	// where a test plays an earlier release.
	reads []string
	// parse reads a manifest that is to be set: manifest.Parse, but where a test plays
	// the release that set what a later one refuses.
	parse      func([]byte) (*manifest.Manifest, error)
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

	// Higher rooms do these for it: hook says which.
	followers []follower          // in the order in which they prepare
	arrivals  []func()            // a head came into force
	returns   []func()            // it is about to be ready, and was not
	claimed   func(*history.Link) // the store shows this head, and nothing vouches for it yet
	fits      []fitter            // say what a move must not break
	// beforeMove ends what has to be done under from, before its head is replaced.
	beforeMove func(ctx context.Context, from *authority.State)
	// leaderChange begins a change that only who leads can commit.
	leaderChange func(s *authority.State) *record.Change
	peers        peers

	// lost counts adoptions in a row that somebody else was first with; owned by who holds
	// setting.
	lost      int
	unsettled atomic.Bool // a reseed may have left the records frozen
	tried     atomic.Bool // to bring the keys back, or to find that there are none
	firstSets *flowcontrol.Limiter
	taken     takenKeys // of heads that may come
	yields    yields    // of the search to owners

	self    *Enrolment
	head    *Head
	keepers *Keepers
}

// TrustBundle keeps the trust bundle that is in force here (I11).
type TrustBundle struct {
	guard      *mesh.Guard
	log        *slog.Logger
	now        func() time.Time
	storeguard *storeguard.Guard
	self       *Enrolment
	head       *Head

	trustMu       sync.Mutex // orders what trust and source are set to; no I/O under it
	trust         atomic.Pointer[bundle.View]
	bundleChanged watch.Signal
	maxListed     int                // banned keys in a bundle
	trustDue      watch.Signal       // the trust state is to be looked at now
	source        *credential.Issued // what our listener presents and believes
	refreshing    *flowcontrol.Locks // held by who refreshes the trust bundle
	withdrawn     withdrawals

	// begin adds to a change what config begins with beside the trust state in.
	begin func(ctx context.Context, ch *record.Change, in bundle.State) error
}

// electionConfig is what is set of Election; see [Config].
type electionConfig struct {
	Lease, Beat time.Duration
}

// Election runs internal/leadership over the store (I4).
type Election struct {
	cfg        electionConfig
	failures   *flowcontrol.LogSampler
	faults     *fault.Points
	log        *slog.Logger
	metrics    *electionMetrics
	now        func() time.Time
	store      store.Store
	storeguard *storeguard.Guard
	self       *Enrolment
	head       *Head
	authority  *Authority

	lead *lead
}

// peerRecoveryConfig is what is set of PeerRecovery.
type peerRecoveryConfig struct {
	Addresses  []string // that others are told; shared
	ListensAt  string   // its own address, which it never asks
	Peers      []string // see [Config]
	LookupHost func(ctx context.Context, name string) ([]string, error)
	Dial       func(ctx context.Context, addr string) (net.Conn, error) // nil: TCP
	Release    string                                                   // that it reports
}

// PeerRecovery hands the secrets of the head from one coordinator to another.
type PeerRecovery struct {
	cfg        peerRecoveryConfig
	elapsed    func() time.Duration
	failures   *flowcontrol.LogSampler
	faults     *fault.Points
	log        *slog.Logger
	metrics    *peerRecoveryMetrics
	now        func() time.Time
	readers    *flowcontrol.Readers
	refusals   *flowcontrol.LogSampler
	startedAt  time.Time
	store      store.Store
	storeguard *storeguard.Guard
	self       *Enrolment
	head       *Head
	authority  *Authority
	election   *Election

	peerCalls *flowcontrol.Limiter
	silent    atomic.Pointer[map[string]bool] // peers by address: what they proved nothing when they were asked last

	// silence is for how long the coordinator with the key was not heard, and whether it is
	// expected.
	silence func(key string) (since time.Duration, expected bool)
}

// OwnerRecovery brings the seed back from its owners' shares.
type OwnerRecovery struct {
	faults    *fault.Points
	log       *slog.Logger
	metrics   *ownerRecoveryMetrics
	now       func() time.Time
	readers   *flowcontrol.Readers
	refusals  *flowcontrol.LogSampler
	store     store.Store
	self      *Enrolment
	head      *Head
	authority *Authority
	election  *Election

	recoveries   *recoveries
	gatheringDue watch.Signal // the open attempt is to be looked at now
}

// membershipConfig is what is set of Membership.
type membershipConfig struct {
	Addresses []string                                                 // that tokens and members are told; shared
	Dial      func(ctx context.Context, addr string) (net.Conn, error) // to another coordinator; nil: TCP
}

// Membership knows who is a member, who is connected, and how one stops being one.
type Membership struct {
	cfg          membershipConfig
	elapsed      func() time.Duration
	failures     *flowcontrol.LogSampler
	faults       *fault.Points
	guard        *mesh.Guard
	log          *slog.Logger
	metrics      *membershipMetrics
	now          func() time.Time
	store        store.Store
	storeguard   *storeguard.Guard
	self         *Enrolment
	head         *Head
	bundle       *TrustBundle
	peerrecovery *PeerRecovery

	hears    atomic.Int64 // Unix nanoseconds: when it became ready, after it was not
	copies   copies.Watch // which processes opened streams of members
	openings openings     // streams that the other coordinators are to be told of
	members  memberIndex
	live     liveMembers
	others   *others        // what other coordinators hear
	presence presence.Watch // which other coordinators are heard
	cuts     atomic.Int64   // connections that the guard cut
	ended    ended.Log      // those of them that a ban ended

	// published are the addresses of coordinators that members are told, by enrolment key.
	published func() map[string][]string
	// found is what else this coordinator finds that the others are told.
	found func(s *authority.State) []*fealtyv1.Finding
	// proven counts a trust bundle that somebody showed as seen, if this cluster signed it.
	proven func(ctx context.Context, from string, raw []byte) error
}

// Trust changes what the fleet trusts.
type Trust struct {
	faults     *fault.Points
	limiter    *flowcontrol.Sources
	log        *slog.Logger
	now        func() time.Time
	readers    *flowcontrol.Readers
	refusals   *flowcontrol.LogSampler
	store      store.Store
	storeguard *storeguard.Guard
	self       *Enrolment
	head       *Head
	authority  *Authority
	bundle     *TrustBundle
	election   *Election
	membership *Membership

	keyConfirmed watch.Signal         // a member may have confirmed a config key: it is to be looked at soon
	presenters   *flowcontrol.Limiter // of trust bundles of before a restore
}

// Desired stores what operators want configured.
type Desired struct {
	log        *slog.Logger
	now        func() time.Time
	store      store.Store
	storeguard *storeguard.Guard
	head       *Head

	config        atomic.Pointer[configView] // nil: not read since the start
	configChanged watch.Signal               // the config in force is another one
}

// Admission turns a proof into a certificate (I1).
type Admission struct {
	// maxHeadAge is how old the head may be under which it renews without the store.
	maxHeadAge time.Duration
	faults     *fault.Points
	limiter    *flowcontrol.Sources
	log        *slog.Logger
	metrics    *admissionMetrics
	now        func() time.Time
	readers    *flowcontrol.Readers
	refusals   *flowcontrol.LogSampler
	storeguard *storeguard.Guard
	auditing   *auditing.Queue
	head       *Head
	bundle     *TrustBundle
	membership *Membership

	recalls      recall.List          // of streams whose members hold certificates that stand in no record
	perMember    *flowcontrol.PerKey  // renewals and rejoins, by identity
	joinsWaiting *flowcontrol.Limiter // of joins from challenge to answer
	joinSlots    chan struct{}        // held by each join that is decided
	joins        *batch.Desk[joinLine, *joiner]
	known        *known
}

// Publication compiles and signs what each member is told (I11, I12).
type Publication struct {
	addresses  []string // that members are told of this coordinator; shared
	failures   *flowcontrol.LogSampler
	faults     *fault.Points
	log        *slog.Logger
	metrics    *publicationMetrics
	now        func() time.Time
	store      store.Store
	storeguard *storeguard.Guard
	self       *Enrolment
	head       *Head
	bundle     *TrustBundle
	election   *Election
	membership *Membership
	desired    *Desired

	publication        atomic.Pointer[publication] // what members are told; nil before it was read
	publicationChanged watch.Signal
	compileReport      atomic.Pointer[compileReport] // nil before the first compile
	outlet             *outlet                       // nil without a PublishDir
}

// Delivery streams to each member what is signed for it.
type Delivery struct {
	failures    *flowcontrol.LogSampler
	log         *slog.Logger
	metrics     *deliveryMetrics
	now         func() time.Time
	readers     *flowcontrol.Readers
	stopping    chan struct{}
	head        *Head
	bundle      *TrustBundle
	membership  *Membership
	trust       *Trust
	admission   *Admission
	publication *Publication

	pulls   *pullLimiter
	patches *patchCache
}

// Package audit asks these of rooms that are no packages yet.
type (
	authorityOfAudit struct{ head *Head }
	trustOfAudit     struct{ bundle *TrustBundle }
	leadOfAudit      struct{ election *Election }
)

func (a authorityOfAudit) Ready() (*authority.State, error) { return a.head.ready() }

func (a authorityOfAudit) StoreError(what string, err error) error {
	return a.head.storeError(what, err)
}

func (a trustOfAudit) View() *bundle.View { return a.bundle.trust.Load() }

func (a trustOfAudit) Changed() <-chan struct{} { return a.bundle.bundleChanged.Wait() }

func (a leadOfAudit) Leading() (store.Condition, bool) {
	_, leads, ok := a.election.leading()
	return leads, ok
}

func (a leadOfAudit) Changed() <-chan struct{} { return a.election.lead.changed.Wait() }

// unguarded are the families that are written to whatever the store lost: they tell of
// coordinators, or authenticate themselves, and decide nothing by being there.
var unguarded = []string{
	replicaPrefix, auditPrefix, auditlog.NotePrefix, auditlog.CheckpointPrefix,
	sealedPrefix, sharePrefix, shareSetPrefix, recoveryPrefix, "history/blob/",
}

// wire makes the rooms, the lowest first.
func (c *Coordinator) wire() {
	c.storeguard = storeguard.New(storeguard.Config{
		Store: c.cfg.Store, StoreName: c.cfg.StoreName, Patience: storePatience, Unguarded: unguarded,
		FS: c.fs, Dir: c.cfg.DataDir, Now: c.now, Log: c.log, Failures: c.failures,
		InForce: func() (storeguard.Head, bool) {
			s := c.head.State()
			return s.StoredHead(), s.Phase == authority.Ready
		},
		OlderHead: func() error { return c.head.olderHeadError() },
		Moved:     func() { c.head.LookAgain() },
		Lost:      func() { c.election.lead.due.Notify() },
	})
	c.store = c.storeguard.Observe(patience.Store(c.cfg.Store))
	c.auditing = auditing.New(auditing.Config{Store: c.store, Now: c.now, Log: c.log})
	c.self = new(Enrolment)
	c.head = &Head{self: c.self, storeguard: c.storeguard}
	c.keepers = &Keepers{self: c.self, head: c.head}
	c.authority = &Authority{
		self: c.self, head: c.head, keepers: c.keepers,
		storeguard: c.storeguard, auditing: c.auditing,
		search:  decide.Search{HealAfter: c.cfg.SelfHealAfter, Random: mathrand.Float64},
		setting: make(chan struct{}, 1), firstSets: newFirstSets(),
		parse: manifest.Parse, reads: manifest.LaterFields(),
	}
	c.bundle = &TrustBundle{
		storeguard: c.storeguard, self: c.self, head: c.head,
		refreshing: flowcontrol.NewLocks(), maxListed: snapshot.MaxBans,
	}
	c.election = &Election{storeguard: c.storeguard, self: c.self, head: c.head, authority: c.authority}
	c.audit = audit.New(audit.Config{
		Store: c.store, Losses: c.storeguard, Authority: authorityOfAudit{c.head}, Trust: trustOfAudit{c.bundle},
		Lead: leadOfAudit{c.election}, Stopping: c.stopping, Now: c.now, Log: c.log, Failures: c.failures,
	})
	c.peerrecovery = &PeerRecovery{
		storeguard: c.storeguard, self: c.self, head: c.head, authority: c.authority, election: c.election,
		peerCalls: newPeerCalls(),
	}
	c.ownerrecovery = &OwnerRecovery{
		self: c.self, head: c.head, authority: c.authority, election: c.election,
		recoveries: newRecoveries(),
	}
	c.membership = &Membership{
		storeguard: c.storeguard, self: c.self, head: c.head, bundle: c.bundle, peerrecovery: c.peerrecovery,
		members: newMemberIndex(), others: newOthers(),
		live: liveMembers{elapsed: c.elapsed, members: make(map[identity.ID]*liveMember)},
	}
	c.trust = &Trust{
		storeguard: c.storeguard, self: c.self, head: c.head, authority: c.authority, bundle: c.bundle,
		election: c.election, membership: c.membership,
		presenters: newPresenters(),
	}
	c.desired = &Desired{storeguard: c.storeguard, head: c.head}
	c.admission = &Admission{
		storeguard: c.storeguard, auditing: c.auditing, head: c.head, bundle: c.bundle, membership: c.membership,
		perMember: c.cfg.Rates.perMember(), joinsWaiting: newJoinsWaiting(),
		joinSlots: make(chan struct{}, joinsAtOnce), known: newKnown(),
	}
	c.publication = &Publication{storeguard: c.storeguard, self: c.self, head: c.head, bundle: c.bundle,
		election:   c.election,
		membership: c.membership, desired: c.desired}
	c.delivery = &Delivery{
		head: c.head, bundle: c.bundle, membership: c.membership, trust: c.trust, admission: c.admission,
		publication: c.publication,
		pulls:       newPullLimiter(), patches: newPatchCache(),
	}
	c.hook()
}

// hook gives the rooms what higher ones do for them.
func (c *Coordinator) hook() {
	c.head.leave, c.head.memory = c.authority.leaveHead, c.authority.remembered
	c.head.onConflict(history.HeadKey, c.authority.headMoved)
	c.head.onConflict(record.FreezeKey, c.authority.recordsFrozen)
	c.head.onConflict(leaderTermKey, func(_ context.Context, err *store.ConflictError) bool {
		c.election.lead.deposed(err.Want)
		return true
	})
	c.head.onConflict(bundle.StateKey, func(context.Context, *store.ConflictError) bool {
		c.bundle.trustDue.Notify() // what was decided may stand on the bundle of before
		return true
	})
	// In this order: a bundle is believed before anybody is a member by it.
	c.authority.followers = []follower{c.bundle.follow, c.desired.follow, c.membership.follow}
	c.authority.arrivals = []func(){c.ownerrecovery.recoveries.over}
	c.authority.returns = []func(){c.membership.listen}
	c.authority.claimed = c.ownerrecovery.recoveries.expect
	c.authority.fits = []fitter{c.bundle.fits, c.publication.fits}
	c.authority.beforeMove, c.authority.leaderChange = c.audit.BeforeMove, c.election.newLeaderChange
	c.authority.peers = c.peerrecovery
	c.bundle.begin = c.desired.beginConfig
	c.peerrecovery.silence = func(key string) (time.Duration, bool) {
		return c.membership.presence.Silent(key, c.elapsed())
	}
	c.membership.published, c.membership.proven = c.publication.coordinators, c.trust.proven
	c.membership.found = func(s *authority.State) []*fealtyv1.Finding {
		return slices.Concat(c.headFindings(s), c.storeguard.RefusingFindings(), c.publication.outlet.findings(),
			c.publication.compileFindings())
	}
}

// share gives each room what all of them use, again where one of it changed.
func (c *Coordinator) share() {
	i := c.self
	i.cfg = enrolmentConfig{DataDir: c.cfg.DataDir, Addresses: c.addresses(), Pin: c.cfg.Pin}
	i.fs, i.log, i.now = c.fs, c.log, c.now
	h := c.head
	h.cfg = headConfig{MaxHeadAge: c.cfg.MaxHeadAge}
	h.elapsed, h.failures, h.fs, h.log = c.elapsed, c.failures, c.fs, c.log
	h.now, h.store = c.now, c.store
	k := c.keepers
	k.failures, k.fs, k.log, k.now, k.store = c.failures, c.fs, c.log, c.now, c.store
	a := c.authority
	a.cfg = authorityConfig{SelfHealAfter: c.cfg.SelfHealAfter}
	a.elapsed, a.failures, a.faults, a.fs, a.limiter = c.elapsed, c.failures, c.faults, c.fs, c.limiter
	a.log, a.now, a.readers, a.refusals, a.store = c.log, c.now, c.readers, c.refusals, c.store
	b := c.bundle
	b.guard, b.log, b.now = c.guard, c.log, c.now
	e := c.election
	e.cfg = electionConfig{Lease: c.cfg.Lease, Beat: c.cfg.Beat}
	e.failures, e.faults, e.log, e.now = c.failures, c.faults, c.log, c.now
	e.store = c.store
	p := c.peerrecovery
	p.cfg = peerRecoveryConfig{Addresses: c.addresses(), ListensAt: c.Addr(), Peers: c.cfg.Peers,
		LookupHost: c.cfg.LookupHost, Dial: c.cfg.Dial, Release: c.cfg.Release}
	p.elapsed, p.failures, p.faults, p.log = c.elapsed, c.failures, c.faults, c.log
	p.now, p.readers, p.refusals, p.startedAt, p.store = c.now, c.readers, c.refusals, c.startedAt, c.store
	o := c.ownerrecovery
	o.faults, o.log, o.now, o.readers, o.refusals = c.faults, c.log, c.now, c.readers, c.refusals
	o.store = c.store
	m := c.membership
	m.cfg = membershipConfig{Addresses: c.addresses(), Dial: c.cfg.Dial}
	m.elapsed, m.failures, m.faults, m.guard, m.log = c.elapsed, c.failures, c.faults, c.guard, c.log
	m.now, m.store = c.now, c.store
	t := c.trust
	t.faults, t.limiter, t.log, t.now, t.readers, t.refusals = c.faults, c.limiter, c.log, c.now, c.readers, c.refusals
	t.store = c.store
	d := c.desired
	d.log, d.now, d.store = c.log, c.now, c.store
	n := c.admission
	n.maxHeadAge = c.cfg.MaxHeadAge
	n.faults, n.limiter, n.log, n.now = c.faults, c.limiter, c.log, c.now
	n.readers, n.refusals = c.readers, c.refusals
	u := c.publication
	u.addresses = c.addresses()
	u.failures, u.faults, u.log, u.now, u.store = c.failures, c.faults, c.log, c.now, c.store
	y := c.delivery
	y.failures, y.log, y.now, y.readers, y.stopping = c.failures, c.log, c.now, c.readers, c.stopping
}
