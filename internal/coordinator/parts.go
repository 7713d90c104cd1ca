package coordinator

import (
	"context"
	"crypto/ed25519"
	"slices"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/domains"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/grants"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/incidents"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/instructions"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/registry"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/shards"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/audit"
	"github.com/fealty-io/fealty/internal/coordinator/audit/buffer"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/authority/keychain"
	"github.com/fealty-io/fealty/internal/coordinator/authority/reseal"
	"github.com/fealty-io/fealty/internal/coordinator/authority/succession"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/delivery"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/manifests"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	coordinatorpeer "github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/peer/status"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/backup"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/keepers"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/shares"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/coordinator/web"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// unguarded are the families that are written to whatever the store lost: they tell of
// coordinators, or authenticate themselves, and decide nothing by being there.
var unguarded = []string{
	coordinatorpeer.Prefix, auditlog.Prefix, auditlog.NotePrefix, auditlog.CheckpointPrefix,
	sealed.Prefix, shares.Prefix, shares.SetPrefix, owner.Prefix, "history/blob/",
}

// Parts are what a coordinator is made of, in the order in which they are made; see docs/architecture.md.
type Parts struct {
	StoreGuard   *storeguard.Guard
	Auditing     *buffer.Queue
	Self         *authority.Enrolment
	Head         *authority.Head
	Secrets      Secrets
	Moves        Moves
	Bundle       *current.Current
	Election     *election.Election
	Audit        *audit.Trail
	Announcement *status.Announcer
	Shown        Shown
	Peers        *status.Peers
	Membership   *member.Membership
	Trust        *trust.Trust
	Desired      *desired.Desired
	Admission    *admission.Admission
	Fencing      Fencing
	Publication  *publication.Publication
	Delivery     *delivery.Delivery
	Workloads    *admission.Workloads
}

// Secrets are the parts from which the secrets of a head come, and to which they go.
type Secrets struct {
	Keepers       *keepers.Keepers
	Keys          *keychain.Keychain
	Shares        *shares.Shares
	PeerRecovery  *peer.PeerRecovery
	OwnerRecovery *owner.OwnerRecovery
}

// Shown are the parts that show what there is, and change none of it.
type Shown struct {
	Verification *owner.Verification
	Backups      *backup.Backups
	Status       fealtyv1.StatusServiceServer // which lets everybody in
	Web          *web.Web
}

// Fencing are the parts that say by which numbers who may act, and keep what was done.
type Fencing struct {
	Grants       *grants.Grants
	Domains      *domains.Domains
	Instructions *instructions.Instructions
	Registry     *registry.Registry
	Journals     *audit.Journals
	Incidents    *incidents.Incidents
	Shards       *shards.Shards
}

// Moves are the parts that move the head, one change at a time.
type Moves struct {
	Turn        *authority.Turn
	Reseal      *reseal.Reseal
	Restoration *backup.Restoration
	Succession  *succession.Succession
	Manifests   *manifests.Manifests
}

// recordFamilies are all of them.
var recordFamilies = reseal.Families{
	// Trust is last: it is what says that the others are whole.
	Moved: []string{record.MemberPrefix, record.CountPrefix, desired.Prefix, domains.Prefix, grants.Prefix,
		instructions.Prefix, incidents.Prefix, backup.UpkeepPrefix, registry.Key, election.TermKey, publication.Prefix, bundle.Prefix},
	// A join token pins the root, so that it admits nobody under another one, and all keys
	// are other ones, so that nobody has confirmed any. A beat ends too: the leader makes the
	// next.
	Ended:  []string{admission.TokenUsePrefix, admission.TokenPrefix, trust.RolloutPrefix, election.BeatKey},
	Tokens: admission.TokenPrefix,
}

// own is what is this coordinator's own, whatever the store holds.
type own struct {
	key         ed25519.PrivateKey
	certificate *enterprise.Certificate // nil: none
	source      *credential.Issued      // what the listener presents and believes
	outside     durable.FS              // of what others read
	pair        *web.Pair               // nil: nothing is served to the web
}

// wire makes the parts. Where a part asks something of one that is made later, its config has a function for that; it is called once all of them are made.
func (c *Coordinator) wire(o own) error {
	cfg, r := c.cfg, &c.parts
	r.StoreGuard = storeguard.New(storeguard.Config{
		Store: cfg.Store, StoreName: cfg.StoreName, Patience: authority.StorePatience, Unguarded: unguarded,
		FS: c.fs, Dir: cfg.DataDir, Now: c.now, Log: c.log, Failures: c.failures, Process: cfg.StoreProcess,
		InForce: func() (storeguard.Head, bool) {
			s := r.Head.State()
			return s.StoredHead(), s.Phase == authority.Ready
		},
		OlderHead: func() error { return r.Head.OlderHeadError() },
		Moved:     func() { r.Head.LookAgain() },
		Lost:      func() { r.Election.LookAgain() },
	})
	c.store = r.StoreGuard.Observe(timeout.Store(cfg.Store))
	r.Auditing = buffer.New(buffer.Config{Store: c.store, Now: c.now, Log: c.log})
	r.Self = authority.NewEnrolment(authority.EnrolmentConfig{
		FS: c.fs, Log: c.log, Now: c.now,
		DataDir: cfg.DataDir, Addresses: c.addresses(), Pin: cfg.Pin, Key: o.key, Certificate: o.certificate,
	})
	r.Head = authority.NewHead(authority.HeadConfig{
		Self: r.Self, StoreGuard: r.StoreGuard, History: history.New(c.store), Store: c.store, FS: c.fs,
		Failures: c.failures, Log: c.log, Now: c.now, Elapsed: c.elapsed,
		MaxHeadAge: cfg.Timing.MaxHeadAge,
		Leave:      func(ctx context.Context) { r.Moves.Succession.Leave(ctx) },
		Memory:     func(s *authority.State) decide.Memory { return r.Secrets.Keys.Memory(s) },
	})
	coordinators := &coordinatorpeer.Directory{Store: c.store, Failures: c.failures, Log: c.log, Now: c.now}
	r.Secrets.Keepers = keepers.New(keepers.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Store: c.store, FS: c.fs, Failures: c.failures,
		Log: c.log, Now: c.now,
	})
	cfg.Reload.Add(r.Secrets.Keepers.Part())
	r.Secrets.Keys = new(keychain.Keychain)
	r.Secrets.PeerRecovery = peer.New(peer.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Keys: r.Secrets.Keys, Faults: cfg.Faults,
		Readers:  c.readers,
		Refusals: c.refusals, Failures: c.failures, Log: c.log, Now: c.now,
		Addresses: c.addresses(), ListensAt: c.Addr(),
		Peers: cfg.Peers, LookupHost: cfg.Machine.LookupHost, Dial: cfg.Machine.Dial, MaxAsking: cfg.knobs.maxAsking,
		HeadIfFree: func(ctx context.Context) (*authority.State, error) { return r.Moves.Succession.IfFree(ctx) },
	})
	r.Moves.Turn = authority.NewTurn(r.Head.StoreSilent, r.Head.Degraded)
	r.Moves.Reseal = reseal.New(reseal.Config{
		Self: r.Self, Head: r.Head, Turn: r.Moves.Turn, Store: c.store, Faults: cfg.Faults, Log: c.log, Now: c.now,
		Families: recordFamilies,
	})
	r.Secrets.Shares = shares.New(shares.Config{
		Head: r.Head, Store: c.store, Faults: cfg.Faults,
		LeaderChange: func(s *authority.State) *record.Change { return r.Election.NewChange(s) },
	})
	r.Moves.Restoration = backup.NewRestoration(backup.RestorationConfig{
		Head: r.Head, Store: c.store, Faults: cfg.Faults, Log: c.log, Now: c.now,
	})
	r.Moves.Succession = succession.New(succession.Config{
		Self: r.Self, Head: r.Head, Keepers: r.Secrets.Keepers, Keys: r.Secrets.Keys,
		StoreGuard: r.StoreGuard, Auditing: r.Auditing, Turn: r.Moves.Turn, Reseal: r.Moves.Reseal,
		Shares:      r.Secrets.Shares,
		Restoration: r.Moves.Restoration, Peers: r.Secrets.PeerRecovery, Store: c.store, Faults: cfg.Faults, Log: c.log,
		Now: c.now, Elapsed: c.elapsed,
		SelfHealAfter: cfg.Timing.SelfHealAfter, Hooks: r.hooks(),
	})
	r.Moves.Manifests = manifests.New(manifests.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Keepers: r.Secrets.Keepers, Succession: r.Moves.Succession,
		Turn: r.Moves.Turn, Reseal: r.Moves.Reseal, Shares: r.Secrets.Shares, Store: c.store,
		Limiter: c.limiter, Readers: c.readers, Refusals: c.refusals, Log: c.log, Now: c.now, Parse: cfg.knobs.parse,
		Preview: func(ctx context.Context, s *authority.State, next *manifest.Manifest,
			out *fealtyv1.PreviewManifestResponse) error {
			return r.Admission.Preview(ctx, s, next, out)
		},
	})
	r.Bundle = current.New(current.Config{
		Self: r.Self, Head: r.Head, StoreGuard: r.StoreGuard, Guard: c.guard, Source: o.source,
		Log: c.log, Now: c.now, MaxListed: cfg.knobs.maxListed,
		Begin: func(ctx context.Context, ch *record.Change, in bundle.State) error {
			return r.Desired.Begin(ctx, ch, in)
		},
	})
	var err error
	r.Election, err = election.New(election.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, StoreGuard: r.StoreGuard, Store: c.store,
		Faults: cfg.Faults, Failures: c.failures, Log: c.log, Now: c.now, Elapsed: c.elapsed,
		Lease: cfg.Timing.Lease, Beat: cfg.Timing.Beat, LookAtLock: r.Moves.Reseal.Look,
	})
	if err != nil {
		return err
	}
	r.Audit = audit.New(audit.Config{
		Store: c.store, Losses: r.StoreGuard, Authority: r.Head, Trust: r.Bundle,
		Lead: r.Election, Stopping: c.stopping, Now: c.now, Log: c.log, Failures: c.failures,
	})
	r.Announcement = status.NewAnnouncer(status.AnnouncerConfig{
		Self: r.Self, Head: r.Head, Keepers: r.Secrets.Keepers, Election: r.Election, StoreGuard: r.StoreGuard,
		Replicas: coordinators, Store: c.store, Faults: cfg.Faults, Failures: c.failures, Log: c.log, Now: c.now,
		Reads: cfg.knobs.reads, StartedAt: c.startedAt, Release: cfg.Release, Addresses: c.addresses(),
		Silence: func(key string) (time.Duration, bool) { return r.Peers.Silent(key) },
	})
	r.Secrets.OwnerRecovery = owner.New(owner.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Keys: r.Secrets.Keys, Succession: r.Moves.Succession,
		Turn:     r.Moves.Turn,
		Election: r.Election, Store: c.store, Faults: cfg.Faults, Readers: c.readers, Refusals: c.refusals,
		Log: c.log, Now: c.now, MaxBringing: cfg.knobs.maxBringing,
	})
	r.Shown.Verification = owner.NewVerification(owner.VerificationConfig{
		Self: r.Self, Head: r.Head, Readers: c.readers, Now: c.now,
	})
	r.Shown.Backups = backup.New(backup.Config{
		Head: r.Head, Store: c.store, Release: cfg.Release, Log: c.log, Now: c.now,
		Tokens: admission.TokenPrefix,
	})
	r.Peers = status.New(status.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Bundle: r.Bundle, StoreGuard: r.StoreGuard,
		Store: c.store, Faults: cfg.Faults, Failures: c.failures, Log: c.log, Now: c.now, Elapsed: c.elapsed,
		Addresses: c.addresses(), Dial: cfg.Machine.Dial,
		Published: func() map[string][]string { return r.Publication.Coordinators() },
		Proven: func(ctx context.Context, from string, raw []byte) error {
			return r.Trust.Proven(ctx, from, raw)
		},
	})
	r.Membership = member.New(member.Config{
		Self: r.Self, Head: r.Head, Bundle: r.Bundle, Election: r.Election, StoreGuard: r.StoreGuard, Peers: r.Peers,
		Store: c.store, Guard: c.guard, Auditing: r.Auditing, Failures: c.failures, Log: c.log, Now: c.now,
		Elapsed: c.elapsed,
		Found: func(s *authority.State) []*fealtyv1.Finding {
			return slices.Concat(c.headFindings(s), r.StoreGuard.RefusingFindings(),
				r.StoreGuard.OutageFindings(calls), r.Publication.Findings(), c.logFindings(s))
		},
	})
	r.Trust = trust.New(trust.Config{
		Self: r.Self, Head: r.Head, Bundle: r.Bundle, Election: r.Election,
		Membership: r.Membership, StoreGuard: r.StoreGuard, Store: c.store, Faults: cfg.Faults,
		Limiter: c.limiter, Readers: c.readers, Refusals: c.refusals, Log: c.log, Now: c.now,
		RotateMesh: r.Moves.Succession.RotateMesh,
	})
	r.Desired = desired.New(desired.Config{
		Head: r.Head, StoreGuard: r.StoreGuard, Store: c.store, Log: c.log, Now: c.now,
	})
	r.Admission = admission.New(admission.Config{
		Head: r.Head, Peers: r.Peers, Bundle: r.Bundle, Election: r.Election, Membership: r.Membership,
		StoreGuard: r.StoreGuard, Auditing: r.Auditing, Store: c.store,
		Pending: cfg.knobs.maxJoins, PendingPerSource: cfg.knobs.maxSourceJoins,
		Faults: cfg.Faults, Limiter: c.limiter, PerMember: cfg.Rates.perMember(), Readers: c.readers,
		Refusals: c.refusals, Log: c.log, Now: c.now, MaxHeadAge: cfg.Timing.MaxHeadAge,
	})
	asking := func(each *ratelimit.PerKey, what string) member.Asking {
		return member.Asking{Membership: r.Membership, Each: each, What: what}
	}
	r.Fencing.Grants = grants.New(grants.Config{Head: r.Head, Bundle: r.Bundle,
		Asking: asking(cfg.Rates.perMember(), "grants"), Log: c.log, Now: c.now})
	r.Fencing.Domains = domains.New(domains.Config{Head: r.Head, Bundle: r.Bundle, Election: r.Election,
		Asking: asking(cfg.Rates.perPoller(), "calls about domains"), Grants: r.Fencing.Grants, Log: c.log, Now: c.now, Elapsed: c.elapsed})
	r.Fencing.Instructions = instructions.New(instructions.Config{Head: r.Head, Bundle: r.Bundle, Election: r.Election,
		Asking: asking(cfg.Rates.perPoller(), "calls about instructions"), Grants: r.Fencing.Grants, Now: c.now})
	r.Fencing.Registry = registry.New(registry.Config{Head: r.Head, Bundle: r.Bundle,
		Asking: asking(cfg.Rates.perPoller(), "calls about quotas and providers"), Grants: r.Fencing.Grants, Log: c.log, Now: c.now})
	r.Fencing.Journals = audit.NewJournals(audit.JournalsConfig{Head: r.Head,
		Asking: asking(cfg.Rates.perPoller(), "calls about journals"), Grants: r.Fencing.Grants, Now: c.now, Retention: auditRetention})
	r.Fencing.Incidents = incidents.New(incidents.Config{Head: r.Head, Each: cfg.Rates.perMember(), Log: c.log,
		Now: c.now})
	r.Fencing.Shards = shards.New(shards.Config{Head: r.Head, Peers: r.Peers,
		Asking: asking(cfg.Rates.perPoller(), "reports"), Grants: r.Fencing.Grants, Incidents: r.Fencing.Incidents, Now: c.now})
	r.Membership.SetBeside(r.Fencing.Incidents, r.Fencing.Domains)
	r.Publication = publication.New(publication.Config{
		Self: r.Self, Head: r.Head, Replicas: coordinators, Bundle: r.Bundle,
		Election: r.Election, Membership: r.Membership, Desired: r.Desired, StoreGuard: r.StoreGuard,
		Store: c.store, Faults: cfg.Faults, Failures: c.failures, Log: c.log, Now: c.now, Addresses: c.addresses(),
		Outside: o.outside, PublishDir: cfg.Publishing.Dir, Operations: cfg.Publishing.Operations,
		BinsFrom: cfg.Publishing.BinsFrom,
	})
	r.Workloads = admission.NewWorkloads(admission.WorkloadsConfig{Head: r.Head, Bundle: r.Bundle, Publication: r.Publication,
		Asking: asking(cfg.Rates.perPoller(), "what workloads are given"), Log: c.log, Now: c.now})
	r.Delivery = delivery.New(delivery.Config{
		Head: r.Head, Bundle: r.Bundle, Membership: r.Membership, Trust: r.Trust, Admission: r.Admission,
		Publication: r.Publication, Readers: c.readers, Failures: c.failures, Log: c.log, Now: c.now,
		Stopping: c.stopping,
	})
	r.Shown.Web = web.New(web.Config{Head: r.Head, Bundle: r.Bundle, Listener: cfg.Publishing.Web, Pair: o.pair,
		Refused: c.connectionRefused, Log: c.log, Now: c.now})
	c.alive = []func(){
		r.Secrets.OwnerRecovery.Alive,
		r.Secrets.Keys.Alive,
		r.Bundle.Alive,
		r.Peers.Alive,
		r.Membership.Roster().Alive,
		r.Membership.Live().Alive,
		c.limiter.Alive,
		r.Admission.Alive,
		r.Delivery.Alive,
		r.Auditing.Alive,
		r.Fencing.Journals.Alive,
		r.Shown.Web.Alive,
	}
	r.Shown.Status = statusServer{c: c}
	c.conflicts()
	return nil
}

// hooks are what other parts do when a head comes or goes.
func (r *Parts) hooks() succession.Hooks {
	return succession.Hooks{
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
		Arrivals: []func(){func() { r.Secrets.OwnerRecovery.End() }},
		Returns:  []func(){func() { r.Membership.Listen() }},
		Claimed:  func(l *history.Link) { r.Secrets.OwnerRecovery.Expect(l) },
		Fits: []authority.Fitter{
			func(ctx context.Context, from, after *authority.State) error {
				return r.Bundle.Fits(ctx, from, after)
			},
			func(ctx context.Context, from, after *authority.State) error {
				return r.Publication.Fits(ctx, from, after)
			},
		},
		BeforeMove: func(ctx context.Context, from *authority.State) { r.Audit.BeforeMove(ctx, from) },
		Idle:       func() { r.Moves.Manifests.DropExpired() },
	}
}

// conflicts says what it means that a transaction found another version of a key than it
// was decided by.
func (c *Coordinator) conflicts() {
	c.parts.Head.OnConflict(history.HeadKey, c.parts.Moves.Succession.HeadMoved)
	c.parts.Head.OnConflict(record.LockKey, func(ctx context.Context, _ *store.ConflictError) bool {
		c.parts.Moves.Reseal.Await(ctx)
		return true
	})
	c.parts.Head.OnConflict(election.TermKey, func(_ context.Context, err *store.ConflictError) bool {
		c.parts.Election.Deposed(err.Want)
		return true
	})
	c.parts.Head.OnConflict(bundle.StateKey, func(context.Context, *store.ConflictError) bool {
		c.parts.Bundle.LookAgain() // what was decided may stand on the bundle of before
		return true
	})
}
