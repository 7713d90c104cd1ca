package owner

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/backup"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// Bounds on what strangers can make a recovering coordinator do.
const (
	// MaxBringing bounds the streams that have brought no share of the seed yet,
	// MaxPerSource those from one address, and recoveriesPerOwner the streams of
	// one owner whose share is good.
	MaxBringing        = 512
	MaxPerSource       = 4
	recoveriesPerOwner = 4
	// recoveryRate and recoveryBurst bound the streams that one address begins, per
	// second.
	recoveryRate  = 1
	recoveryBurst = 50
	// recoverTimeout bounds one stream, from offer to answer, and the making of the seed: a long history
	// takes its receiver a while.
	recoverTimeout = 2 * time.Minute
	// lastLook bounds the round with the peers that a person waits for.
	lastLook = 3 * time.Second
)

// Prefix is where shares gather, each encrypted to a key that is in this
// memory alone: recovery/<attempt>/<owner>. No MAC is possible without the seed:
// what is read there is looked at like what a stranger sent.
const Prefix = "recovery/"

func recoveryKey(id recovery.ID, owner string) string {
	return Prefix + id.String() + "/" + owner
}

// Attempt is the one that is open, with what it takes to go on with it.
type Attempt struct {
	ID recovery.ID // read only

	shares    *recovery.Attempt           // those that came; guarded by recoveries.mu
	recipient *keyring.EphemeralRecipient // wiped with the attempt
	head      *recovery.Head              // read only
	manifest  *manifest.Manifest          // of head, as claimed; read only
	history   *history.History            // read only: as the store holds it, unverified

	openedAt store.Revision // at which the others were told first; read only
	toldAt   store.Revision // and last; owned by who has the turn, like those below
	toldEnd  time.Time
	force    bool // an owner whose share is in said not to ask peers once more
}

// recoveries is what a coordinator holds of recoveries by owners: at most one
// attempt, and one history.
type recoveries struct {
	opening chan struct{} // held by who looks for the attempt in the store; capacity 1

	changed watch.Signal // an attempt was opened

	mu  sync.Mutex
	now *Attempt // nil: none is open; guarded by mu

	owners *ratelimit.Limiter // of their streams; who brought a share has proven itself

	// It is what the head of the history in the store says of the shares of its seed.
	needed int      // guarded by mu
	all    []string // owners of a share, in the order of the manifest; guarded by mu
}

func newRecoveries(most int) *recoveries {
	return &recoveries{opening: make(chan struct{}, 1),
		owners: ratelimit.New(ratelimit.Limits{
			What: "recoveries", PerSecond: recoveryRate, Burst: recoveryBurst,
			Most: most, PerSource: MaxPerSource, Patience: Patience,
			PerHolder: recoveriesPerOwner,
		})}
}

// over ends whatever attempt is open: the head has its secrets, or the process stops.
func (r *recoveries) over() { r.end(nil) }

// end ends the attempt that is open, if it is g; nil ends any. Nobody can read the
// shares gathered for it from then on.
func (r *recoveries) end(g *Attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now != nil && (g == nil || r.now == g) {
		r.now.recipient.Wipe()
		r.now = nil
	}
}

// current returns the attempt that is open, or nil.
func (r *recoveries) current() *Attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// expect notes whose shares would bring the seed of a head back, as the store has it.
func (r *recoveries) expect(l *history.Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.needed, r.all = l.Threshold, nil
	for _, commitment := range l.ShareCommitments {
		r.all = append(r.all, commitment.Owner)
	}
}

// progress says how far the open attempt is, or that no share has come; nil if nobody
// has one.
func (r *recoveries) progress() (p *fealtyv1.RecoveryProgress, missing []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.now == nil && len(r.all) == 0:
		return nil, nil
	case r.now == nil:
		return &fealtyv1.RecoveryProgress{Needed: uint32(r.needed)}, slices.Clone(r.all)
	}
	return progressOf(r.now.shares), r.now.shares.Missing()
}

func progressOf(a *recovery.Attempt) *fealtyv1.RecoveryProgress {
	return &fealtyv1.RecoveryProgress{Brought: a.Brought(), Needed: uint32(a.Head.Threshold)}
}

func shares(n int) string {
	if n == 1 {
		return "1 share"
	}
	return fmt.Sprintf("%d shares", n)
}

// Text says why s is in recovery mode, and how far its owners are.
func (c *OwnerRecovery) Text(s *authority.State) string {
	p, missing := c.recoveries.progress()
	if p == nil {
		return s.Reason
	}
	text := fmt.Sprintf("it waits for %s of the seed, of %s", shares(int(p.GetNeeded())), strings.Join(missing, ", "))
	if brought := p.GetBrought(); len(brought) > 0 {
		text = fmt.Sprintf("it has the share of %s, and waits for %d more, of %s", strings.Join(brought, ", "),
			max(int(p.GetNeeded())-len(brought), 0), strings.Join(missing, ", "))
	}
	return text + "; without them: " + s.Reason
}

// Progress says how far the open attempt is, or that no share has come, and whose are missing; nil if nobody
// has a share of the seed.
func (c *OwnerRecovery) Progress() (p *fealtyv1.RecoveryProgress, missing []string) {
	return c.recoveries.progress()
}

// recoveryServer serves RecoveryService.
type recoveryServer struct {
	fealtyv1.UnimplementedRecoveryServiceServer
	c *OwnerRecovery
}

// RegisterServices registers the service to which owners bring their shares.
func (c *OwnerRecovery) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterRecoveryServiceServer(to, recoveryServer{c: c})
}

// Recover runs one owner's part of a recovery on one stream: offer, history, share,
// answer. Strangers may call it, and learn the history and the manifests: these
// are not secret, and without them an owner could not know who asks.
func (r recoveryServer) Recover(stream fealtyv1.RecoveryService_RecoverServer) error {
	ctx, cancel := context.WithTimeout(stream.Context(), recoverTimeout)
	defer cancel()
	slot, err := r.c.recoveries.owners.Enter(ctx, identity.FromContext(ctx).Addr, r.c.cfg.Now())
	if err != nil {
		return err
	}
	defer slot.Leave()
	return slot.Reason(r.recover(slot, stream))
}

func (r recoveryServer) recover(slot *ratelimit.Slot, stream fealtyv1.RecoveryService_RecoverServer) error {
	c, ctx := r.c, slot.Context()
	ch, err := proof.OpenChallenge(ctx)
	if err != nil {
		return err
	}
	g, err := c.Open(ctx)
	if err != nil {
		return err
	}
	offer, err := c.offer(g, ch)
	if err != nil {
		return err
	}
	if offer.Restore, err = c.waitingRestore(ctx); err != nil {
		return err
	}
	if err := stream.Send(&fealtyv1.RecoverResponse{Step: &fealtyv1.RecoverResponse_Offer{Offer: offer}}); err != nil {
		return err
	}
	if err := Send(slot, c.cfg.Readers, g.history, func(page *fealtyv1.RecoveryHistory) error {
		return stream.Send(&fealtyv1.RecoverResponse{Step: &fealtyv1.RecoverResponse_History{History: page}})
	}); err != nil {
		return err
	}
	req, err := ratelimit.Receive(ctx, c.cfg.Readers, stream.Recv)
	if err != nil {
		return err
	}
	addr, owner := identity.FromContext(ctx).Addr, ratelimit.Clip(req.GetOwner(), ratelimit.MaxShownBytes)
	progress, err := c.Bring(ctx, req, slot.Prove)
	c.metrics.shares.WithLabelValues(shareLabel(progress, err)).Inc()
	if err != nil {
		c.cfg.Refusals.Log(ctx, c.cfg.Log, slog.LevelWarn,
			"a share of the seed was not taken", slog.String("remote", addr),
			slog.String("owner", owner),
			slog.String("code", errcode.CodeOf(err)), slog.String("reason", err.Error()))
		return err
	}
	c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a share of the seed was taken", slog.String("remote", addr),
		slog.String("owner", owner),
		slog.Any("brought", progress.GetBrought()), slog.Uint64("needed",
			uint64(progress.GetNeeded())), slog.Bool("recovered", progress.GetRecovered()))
	return stream.Send(&fealtyv1.RecoverResponse{Step: &fealtyv1.RecoverResponse_Progress{Progress: progress}})
}

func shareLabel(p *fealtyv1.RecoveryProgress, err error) string {
	switch {
	case err != nil && errcode.CodeOf(err) != "":
		return errcode.CodeOf(err)
	case err != nil:
		return "error"
	case p.GetRecovered():
		return "recovered"
	}
	return "taken"
}

// waitingRestore returns what a restore left in the store, which waits for the seed, as it
// stands there; nil if there is none that owners could do anything for. They check
// themselves the signatures in it.
func (c *OwnerRecovery) waitingRestore(ctx context.Context) ([]byte, error) {
	intent, _, err := authority.PendingRestore(ctx, c.cfg.Store)
	switch {
	case errcode.CodeOf(err) != "", err == nil && (intent == nil || !intent.Whole):
		return nil, nil // status says what is wrong with it
	case err != nil:
		return nil, c.cfg.Head.StoreError("read what a restore left", err)
	}
	return intent.Encode()
}

// recoverable reports whether shares are of use now.
func (c *OwnerRecovery) recoverable() error {
	switch s := c.cfg.Head.State(); s.Phase {
	case authority.Ready:
		return errcode.New(errcode.RecoveryNotNeeded)
	case authority.Uninitialized:
		return errcode.New(errcode.HistoryUninitialized)
	}
	return nil
}

// Open returns the attempt that is open at the head that the store shows,
// and opens one if there is none. It knows of the cluster only what the store
// claims: only the seed can tell more.
func (c *OwnerRecovery) Open(ctx context.Context) (*Attempt, error) {
	if err := c.recoverable(); err != nil {
		return nil, err
	}
	select {
	case c.recoveries.opening <- struct{}{}:
		defer func() { <-c.recoveries.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	head, _, err := c.cfg.Head.History().Head(ctx)
	if err != nil {
		return nil, c.cfg.Head.ClaimedHistoryError(err)
	}
	r := c.recoveries
	r.mu.Lock()
	g := r.now
	if g != nil && !g.shares.Serves(c.cfg.Now(), head.Hash) {
		g.recipient.Wipe()
		r.now, g = nil, nil
	}
	r.mu.Unlock()
	if g != nil {
		return g, nil
	}
	if g, err = c.newAttempt(ctx); err != nil {
		return nil, err
	}
	if err := c.tellAttempt(ctx, g); err != nil {
		g.recipient.Wipe()
		return nil, err
	}
	g.openedAt = g.toldAt
	r.mu.Lock()
	r.now = g
	r.mu.Unlock()
	// It may have become ready, and ended what was open, just before that.
	if err := c.recoverable(); err != nil {
		r.end(g)
		return nil, err
	}
	r.changed.Notify()
	c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a recovery attempt is open", slog.String("attempt", g.ID.String()),
		slog.String("cluster", g.head.Cluster),
		slog.Int("needed", g.head.Threshold), slog.Any("owners", g.head.Owners()))
	return g, nil
}

// newAttempt reads the history, and makes an attempt for its head.
func (c *OwnerRecovery) newAttempt(ctx context.Context) (*Attempt, error) {
	h, links, m, err := c.cfg.Head.ClaimedHistory(ctx)
	if err != nil {
		return nil, err
	}
	head := recovery.NewHead(links, m)
	if len(head.Owners()) == 0 {
		return nil, errcode.New(errcode.RecoveryNoShares, "cluster", m.Cluster)
	}
	// No owner would send a share to who is no coordinator.
	if _, err := c.cfg.Self.Admits(m); err != nil {
		return nil, err
	}
	recipient, err := keyring.NewEphemeral()
	if err != nil {
		return nil, err
	}
	var id recovery.ID
	rand.Read(id[:])
	return &Attempt{ID: id, shares: recovery.NewAttempt(id, head, c.cfg.Now()), recipient: recipient, head: head,
		manifest: m, history: h}, nil
}

// offer makes the first message of a stream, proven over its channel.
func (c *OwnerRecovery) offer(g *Attempt, ch proof.Challenge) (*fealtyv1.RecoveryOffer, error) {
	t := proof.RecoveryTranscript{
		Cluster: g.head.Cluster, Attempt: g.ID[:], Binding: ch.Binding, Recipient: g.recipient.Public(),
		Head: g.head.Hash[:],
	}
	key, evidence, err := proof.ProveRecovery(c.cfg.Self.PrivateKey(), t)
	if err != nil {
		return nil, err
	}
	vouch, err := c.cfg.Self.VouchFor(t)
	if err != nil {
		return nil, err
	}
	c.recoveries.mu.Lock()
	defer c.recoveries.mu.Unlock()
	return &fealtyv1.RecoveryOffer{
		Cluster: g.head.Cluster, Attempt: g.ID[:], Recipient: g.recipient.Public(),
		ExpiresAt: timestamppb.New(g.shares.Ends()), Progress: progressOf(g.shares), Key: key, Evidence: evidence,
		X509: vouch,
	}, nil
}

// Bring takes one share: it is opened and compared with its commitment, then kept
// in the store, encrypted as it came. With enough of them the seed stands. A share that
// is good proves its owner, and who has proven nothing waits for nobody here.
func (c *OwnerRecovery) Bring(ctx context.Context, req *fealtyv1.RecoverRequest,
	proves func(owner string) error) (*fealtyv1.RecoveryProgress, error) {
	owner := ratelimit.Clip(req.GetOwner(), ratelimit.MaxShownBytes)
	if len(req.GetShare()) > recovery.MaxSentBytes {
		return nil, errcode.New(errcode.RequestField, "field", "share",
			"problem", fmt.Sprintf("it is longer than %d bytes", recovery.MaxSentBytes))
	}
	if _, err := c.takes(req, owner); err != nil {
		return nil, err
	}
	if err := proves(owner); err != nil {
		return nil, err
	}
	// One at a time, like every change of the head: of two owners that come at once
	// the second one finds the share of the first.
	release, err := c.cfg.Turn.TakeForOwner(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	g, err := c.takes(req, owner) // still
	if err != nil {
		return nil, err
	}
	if err := c.cfg.Faults.Hit("recover.before-store"); err != nil {
		return nil, err
	}
	if _, err := c.cfg.Head.Overwrite(ctx, recoveryKey(g.ID, owner), req.GetShare()); err != nil {
		return nil, err
	}
	if err := c.cfg.Faults.Hit("recover.after-store"); err != nil {
		return nil, err
	}
	g.force = g.force || req.GetForce()
	return c.collect(ctx, g)
}

// takes returns the open attempt, if the share that owner brought is one for it, and if
// shares are of use now. A coordinator that becomes ready does so before it ends the
// attempt: whether it is ready is looked at last, and explains why no attempt is open.
func (c *OwnerRecovery) takes(req *fealtyv1.RecoverRequest, owner string) (*Attempt, error) {
	g, err := c.takesNow(req, owner)
	if ready := c.recoverable(); ready != nil {
		return nil, ready
	}
	return g, err
}

func (c *OwnerRecovery) takesNow(req *fealtyv1.RecoverRequest, owner string) (*Attempt, error) {
	if err := c.recoverable(); err != nil {
		return nil, err
	}
	if err := c.cfg.Faults.Hit("recover.before-taking"); err != nil {
		return nil, err
	}
	g, err := c.taking(req.GetAttempt(), owner)
	if err != nil {
		return nil, err
	}
	share, err := g.open(owner, req.GetShare())
	if err != nil {
		return nil, err
	}
	share.Wipe() // it is read again from the store, with the others
	return g, nil
}

// taking returns the open attempt, if it takes a share of owner for attempt id.
func (c *OwnerRecovery) taking(id []byte, owner string) (*Attempt, error) {
	c.recoveries.mu.Lock()
	defer c.recoveries.mu.Unlock()
	g := c.recoveries.now
	if g == nil {
		return nil, errcode.New(errcode.RecoveryOver, "owner", owner, "problem", "no attempt is open any more")
	}
	return g, g.shares.Takes(c.cfg.Now(), id, owner)
}

// open decrypts what an owner sent, or what the store says that one sent, and
// compares it with the head. The caller wipes the share.
func (g *Attempt) open(owner string, data []byte) (keyring.Share, error) {
	share, err := g.recipient.Open(keyring.Attempt{ID: g.ID.String(), Cluster: g.head.Cluster, Owner: owner}, data)
	var other *keyring.AttemptError
	switch {
	case errors.As(err, &other) && other.Field == "cluster":
		return share, errcode.Wrap(err, errcode.ShareForeign, "owner", owner, "share",
			ratelimit.Clip(other.Sent, ratelimit.MaxShownBytes), "cluster", g.head.Cluster)
	case errors.As(err, &other) && other.Field == "owner":
		return share, errcode.Wrap(err, errcode.ShareWrong, "owner", owner, "problem",
			"it was sent as the share of "+ratelimit.Clip(other.Sent, ratelimit.MaxShownBytes))
	case errors.Is(err, keyring.ErrOtherAttempt), errors.Is(err, keyring.ErrNotForYou):
		return share, errcode.Wrap(err, errcode.RecoveryOver, "owner", owner,
			"problem", "the share was encrypted to another attempt")
	case err != nil:
		return share, errcode.Wrap(err, errcode.ShareWrong, "owner", owner,
			"problem", "what was sent is no share, or was damaged")
	}
	if err := g.head.Check(owner, share); err != nil {
		share.Wipe()
		return keyring.Share{}, err
	}
	return share, nil
}

// gathered reads the shares of the attempt from the store: those that it took, and
// those that others passed on. A share that does not open, or that the head does not
// commit to, was put there by somebody else. It is removed, to make room for a good
// one from who has it. owners are sorted, and each has one of shares, which the
// caller wipes.
func (c *OwnerRecovery) gathered(ctx context.Context, g *Attempt) (owners []string, shares []keyring.Share,
	err error) {
	for _, owner := range slices.Sorted(slices.Values(g.head.Owners())) {
		e, err := c.cfg.Store.Get(ctx, recoveryKey(g.ID, owner))
		switch {
		case errors.Is(err, store.ErrNotFound):
			continue
		case err != nil:
			return nil, shares, c.cfg.Head.StoreError("read the gathered shares", err)
		case len(e.Value) > recovery.MaxSentBytes:
			err = errors.New("it is too large")
		}
		var share keyring.Share
		if err == nil {
			share, err = g.open(owner, e.Value)
		}
		if err != nil {
			if c.recoveries.current() != g {
				return nil, shares, errcode.New(errcode.RecoveryOver, "attempt", g.ID.String()[:8],
					"problem", "it ended meanwhile")
			}
			c.cfg.Head.Forged(ctx, e.Key, err)
			bad := store.Tx{If: []store.Condition{{Key: e.Key, Version: e.Version}}, Delete: []string{e.Key}}
			if _, err := c.cfg.Store.Commit(ctx, bad); err != nil && !errors.Is(err, store.ErrConflict) {
				return nil, shares, c.cfg.Head.StoreError("remove what is no share", err)
			}
			continue
		}
		owners, shares = append(owners, owner), append(shares, share)
	}
	return owners, shares, nil
}

// recoverSeed makes the seed of the shares, and believes it only if the whole
// history was signed by it. Then it writes a rekey transition, because the mesh CA
// key is gone, and adopts it. The caller has the turn. A crash anywhere is a recovery that
// did not happen, or one that the next goes on from; see [succession.Succession.Rekey].
func (c *OwnerRecovery) recoverSeed(ctx context.Context, g *Attempt, owners []string,
	shares []keyring.Share) (*authority.State, error) {
	// An owner who hangs up now must not undo what the others brought.
	ctx, cancel := context.WithTimeout(timeout.Beyond(ctx), recoverTimeout)
	defer cancel()
	if s := c.readyAtPeer(ctx, g); s != nil {
		return s, nil
	}
	if err := c.cfg.Faults.Hit("recover.before-combine"); err != nil {
		return nil, err
	}
	secrets, err := authority.Combine(g.head.Threshold, shares)
	if err != nil {
		return nil, c.seedRefused(ctx, g, err)
	}
	defer func() {
		if !c.cfg.Keys.Holds(secrets, c.cfg.Head.State()) {
			secrets.Wipe()
		}
	}()
	verified, err := c.verifyRecovered(ctx, g, secrets)
	if err != nil {
		return nil, err
	}
	before, err := c.cfg.Succession.StateBefore(ctx, verified, secrets)
	if err != nil {
		return nil, err
	}
	s, err := c.cfg.Succession.Rekey(ctx, before, "recovered by "+strings.Join(owners, ", "),
		"owners "+strings.Join(owners, ", "),
		map[string]string{"via": "owners", "from": strings.Join(owners, ", "), "attempt": g.ID.String()})
	if errors.Is(err, errcode.ManifestStale) {
		c.recoveries.end(g)
		return nil, errcode.Wrap(err, errcode.RecoveryOver, "attempt", g.ID.String()[:8],
			"problem", "the history moved on meanwhile: somebody else brought the cluster back")
	}
	if err != nil {
		return nil, err
	}
	c.dropShares(ctx, g)
	c.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the seed was recovered by its owners", slog.Any("owners", owners),
		slog.String("attempt", g.ID.String()),
		slog.Uint64("authority_epoch", s.Head.AuthorityEpoch))
	return s, nil
}

// readyAtPeer asks the peers once more before a new mesh CA key is made: one that is
// ready has the key of the head, and then nothing has to be written. That is good
// advice and no more, since of two rekeys one wins: an owner may override it. It
// returns nil if nobody helps.
func (c *OwnerRecovery) readyAtPeer(ctx context.Context, g *Attempt) *authority.State {
	if g.force {
		return nil
	}
	err := c.cfg.Succession.FromPeers(ctx, g.head.Hash, lastLook) // a person waits
	if now := c.cfg.Head.State(); err == nil && now.Phase == authority.Ready {
		c.dropShares(ctx, g)
		c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "another coordinator was ready: the shares were not needed",
			slog.String("attempt", g.ID.String()))
		return now
	}
	return nil
}

// verifyRecovered derives the keys of secrets and replays the history with them.
func (c *OwnerRecovery) verifyRecovered(ctx context.Context, g *Attempt,
	secrets *authority.Secrets) (*history.Verified, error) {
	loaded, err := c.cfg.Head.History().Load(ctx)
	if err != nil {
		return nil, c.cfg.Head.ClaimedHistoryError(err)
	}
	claimed, err := history.Decode(loaded.Links[len(loaded.Links)-1])
	if err != nil {
		return nil, c.cfg.Head.ClaimedHistoryError(err)
	}
	if got := history.Hash(sha256.Sum256(loaded.Links[len(loaded.Links)-1])); got != g.head.Hash {
		c.recoveries.end(g)
		c.cfg.Head.LookAgain()
		return nil, errcode.New(errcode.RecoveryOver, "attempt", g.ID.String()[:8], "problem",
			fmt.Sprintf("the history moved on to index %d meanwhile", claimed.Index))
	}
	if err := secrets.Derive(claimed.Salt); err != nil {
		return nil, c.seedRefused(ctx, g, err)
	}
	verified, err := history.Verify(loaded, secrets.TransactionKey())
	if err != nil {
		return nil, c.seedRefused(ctx, g, err)
	}
	seen, err := c.cfg.Head.Seen()
	if err == nil {
		_, err = seen.Accepts(verified)
	}
	if errors.Is(err, history.ErrRollback) || errors.Is(err, history.ErrFork) {
		// Of a restored history it is the restore transition that has to: see [backup.Restoration.Next].
		if intent, _, pending := authority.PendingRestore(ctx, c.cfg.Store); pending == nil && intent != nil &&
			!backup.Carries(verified,
				intent) {
			err = nil
		}
	}
	if err != nil {
		return nil, errcode.Wrap(err, errcode.HistoryInvalid, "cluster", g.head.Cluster, "problem", err.Error())
	}
	return verified, nil
}

// seedRefused throws the attempt away with all that was gathered.
func (c *OwnerRecovery) seedRefused(ctx context.Context, g *Attempt, cause error) error {
	c.recoveries.end(g)
	c.dropShares(ctx, g)
	err := errcode.Wrap(cause, errcode.RecoverySeedRefused, "needed", g.head.Threshold,
		"problem", strings.TrimPrefix(cause.Error(), "history: "))
	c.cfg.Log.LogAttrs(ctx, slog.LevelError, "a recovery was thrown away", slog.String("attempt", g.ID.String()),
		slog.Any("err", err))
	return err
}

// metrics are what OwnerRecovery counts.
type metrics struct {
	shares *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		shares: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_recovery_shares_total",
			Help: "Shares of the seed that owners brought, by outcome: taken, recovered, or the code of the refusal.",
		}, []string{"outcome"}),
	}
	reg.MustRegister(m.shares)
	return m
}

// RegisterMetrics registers what it counts.
func (c *OwnerRecovery) RegisterMetrics(reg prometheus.Registerer) {
	c.metrics = newMetrics(reg)
}
