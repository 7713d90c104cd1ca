package peer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
)

// Bounds of asking peers.
const (
	// MaxPeers bounds the peers that are asked in one round.
	MaxPeers = 64
	// peerTimeout bounds one exchange with one peer, as the peer that is asked sees it.
	// The one that asks gives it peerGreeting, from the dialing on, to prove itself, and
	// peerAnswer then: one that is gone must not hold up the next. peersDialed are
	// greeted at once.
	peerTimeout  = 5 * time.Second
	peerGreeting = 2 * time.Second
	peerAnswer   = 3 * time.Second
	peersDialed  = 16
	// resolveTimeout bounds the look-up of all names of peers.
	resolveTimeout = 2 * time.Second
	// peerRound bounds a round with all of them.
	peerRound = 20 * time.Second
	// maxPeerError is how much of a peer's error is shown.
	maxPeerError = 300
)

// dnsPeers is how a name begins that stands for all its addresses.
const dnsPeers = "dns:"

// CheckPeer says what is wrong with an element of [Config.Peers], or "".
func CheckPeer(text string) string {
	name, dns := strings.CutPrefix(text, dnsPeers)
	host, port, err := net.SplitHostPort(name)
	switch {
	case err != nil:
		return "it is neither host:port nor dns:name:port"
	case host == "" || len(host) > 253 || strings.ContainsFunc(host,
		func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("/\\,", r) }):
		return "its host is not one"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Sprintf("port %q is not a number from 1 to 65535", port)
	}
	if _, err := netip.ParseAddr(host); dns && err == nil {
		return "it is an address, which needs no dns:"
	}
	return ""
}

// Step is a step of peer recovery: each verifies more of what a peer says.
type Step int

const (
	StepLoad     Step = iota + 1 // the head's manifest, unverified, from the store
	StepProof                    // dial, and proofs in both directions
	StepAnswer                   // the peer gives, or says why not
	StepManifest                 // its manifest is the loaded one, byte for byte
	StepHistory                  // the whole history, under the received seed
	StepMesh                     // mesh CA key and root are those of the head, which is still there
)

func (s Step) String() string {
	switch s {
	case StepLoad:
		return "load"
	case StepProof:
		return "proof"
	case StepAnswer:
		return "answer"
	case StepManifest:
		return "manifest"
	case StepHistory:
		return "history"
	case StepMesh:
		return "mesh"
	}
	return "invalid step"
}

// Error says at which step the recovery from a peer failed.
type Error struct {
	Peer string // its address, with its name once it is proven; empty if it is about none
	Step Step
	Err  error
}

func (e *Error) Error() string {
	of := ""
	if e.Peer != "" {
		of = " with peer " + e.Peer
	}
	return fmt.Sprintf("peer recovery failed at step %d (%s)%s: %s", e.Step, e.Step, of,
		ratelimit.Clip(reasonOf(e.Err), maxPeerError))
}

func (e *Error) Unwrap() error { return e.Err }

// reasonOf is the text of err, without the dressing of gRPC.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*errcode.Error](err); ok {
		return e.What + ": " + e.Why
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// Errors is what came of every peer of a round.
type Errors []*Error

func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, x := range e {
		texts[i] = x.Error()
	}
	return strings.Join(texts, "; ")
}

func (e Errors) Unwrap() []error {
	out := make([]error, len(e))
	for i, x := range e {
		out[i] = x
	}
	return out
}

// ErrNoPeers says that there is nobody to ask.
var ErrNoPeers = errors.New("no peer is known: none is configured, and no other coordinator said where it is")

// Received is what a peer gave, verified: see FromPeers.
type Received struct {
	Verified *history.Verified
	Secrets  *authority.Secrets
	Root     *x509.Certificate
	Mesh     *pki.MeshCA
	Peer     string // the name of its entry in the manifest
	Key      string // its enrolment key
}

// Wipe overwrites the secrets, if nobody uses them.
func (r *Received) Wipe() {
	r.Secrets.Wipe()
	authority.WipeMesh(r.Mesh)
}

// Audit says what was received, and from whom.
func (r *Received) Audit() []record.AuditEntry {
	from := map[string]string{"via": "peer", "from": r.Peer, "key": r.Key, "head": r.Verified.Current().Hash.String()}
	mesh := maps.Clone(from)
	mesh["mesh_ca_key"] = r.Mesh.KeyID().String()
	return []record.AuditEntry{
		{Action: transition.ActionSeedReceived, Target: r.Verified.Manifest().Cluster, Fields: from},
		{Action: transition.ActionMeshReceived, Target: r.Verified.Manifest().Cluster, Fields: mesh},
	}
}

// claimedHead is the head of a history that nobody vouches for.
type claimedHead struct {
	history  *history.History
	link     history.Link
	manifest *manifest.Manifest
}

// FromPeers asks peers for the secrets of the head that loaded claims: all of peer recovery
// but the swap. All that it returns was verified, and is the caller's.
//
// Several are greeted at once, since some may be gone without a trace. But one at a time
// is asked for secrets: no more of them leave a coordinator than are needed.
//
// The names of those who may give are read from a manifest that nothing vouches for yet. A
// store that lies can so name its own coordinators, whose seed then vouches for its own
// history; what stands against that is the mark of a head that was seen before, and the pin
// of the root key ([authority.EnrolmentConfig]).
//
// The error is [ErrNoPeers] or holds one [*Error] for each peer that was asked.
func (c *PeerRecovery) FromPeers(ctx context.Context, loaded *history.History) (*Received, error) {
	head, err := c.claim(loaded)
	if err != nil {
		c.metrics.peers.WithLabelValues(StepLoad.String()).Inc()
		return nil, Errors{{Step: StepLoad, Err: err}}
	}
	ctx, cancel := context.WithTimeout(ctx, peerRound)
	defer cancel()
	peers, failed := c.peers(ctx, head.manifest)
	for _, f := range failed {
		c.peerFailed(ctx, f)
	}
	turn := make(chan struct{}, 1)
	results, found := firstOf(ctx, peersDialed, peers, func(round context.Context, addr string) (asked, bool) {
		a := &asking{c: c, head: head, peer: addr, turn: turn}
		r, err := a.ask(round)
		return asked{addr, a, r, err, round.Err() != nil}, err == nil
	})
	if found < 0 && errors.Is(ctx.Err(), context.Canceled) {
		return nil, ctx.Err()
	}
	heard := make(map[string]answered)
	if before := c.heard.Load(); before != nil {
		for _, addr := range peers {
			heard[addr] = (*before)[addr]
		}
	}
	for _, x := range results {
		switch {
		case x.err == nil:
			heard[x.addr] = gave
		case x.cut: // it may have been about to answer
		case x.step == StepProof:
			heard[x.addr] = provedNothing
		default:
			heard[x.addr] = refused
		}
		if x.err == nil || x.cut && found >= 0 {
			continue
		}
		f := &Error{Peer: x.peer, Step: x.step, Err: x.err}
		c.peerFailed(ctx, f)
		failed = append(failed, f)
	}
	c.heard.Store(&heard)
	switch {
	case found >= 0:
		x := results[found]
		c.metrics.peers.WithLabelValues("received").Inc()
		c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a peer gave the secrets of the head", slog.String("peer", x.peer),
			slog.Uint64("index", head.link.Index), slog.String("head", head.link.Hash.String()))
		return x.received, nil
	case len(failed) == 0:
		return nil, ErrNoPeers
	}
	return nil, failed
}

// answered is what a peer did when it was asked last; who has a lower one is asked earlier.
type answered int

const (
	gave          answered = iota - 1
	refused                // as good as one that was not asked yet
	provedNothing          // gone without a trace, it may be
)

// asked is what came of one peer.
type asked struct {
	addr string
	*asking
	received *Received
	err      error
	cut      bool // the round was over: another one was first, or it took too long
}

// firstOf calls do with each of all, in order and atOnce of them at a time, until one
// call succeeds; the others are cancelled then, and no more begin. It returns when all
// that began have ended: their results, in order, and the place of the one that
// succeeded first among them, or -1.
func firstOf[A, R any](ctx context.Context, atOnce int, all []A, do func(context.Context, A) (R, bool)) (results []R,
	found int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	done := make([]*R, len(all))
	first := -1
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, x := range all {
		g.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			r, ok := do(ctx, x)
			mu.Lock()
			defer mu.Unlock()
			done[i] = &r
			if ok && first < 0 {
				first = i
				cancel()
			}
			return nil
		})
	}
	_ = g.Wait()
	found = -1
	for i, r := range done {
		if r == nil {
			continue
		}
		if i == first {
			found = len(results)
		}
		results = append(results, *r)
	}
	return results, found
}

// peerFailed counts and logs what came of one peer.
func (c *PeerRecovery) peerFailed(ctx context.Context, f *Error) {
	c.metrics.peers.WithLabelValues(f.Step.String()).Inc()
	c.cfg.Failures.Log(ctx, c.cfg.Log, slog.LevelWarn, "peer recovery failed", slog.String("peer", f.Peer),
		slog.Int("step", int(f.Step)), slog.String("of", f.Step.String()),
		slog.String("code", errcode.CodeOf(f.Err)),
		slog.String("reason", ratelimit.Clip(reasonOf(f.Err), maxPeerError)))
}

// claim is step 1: the head's manifest as the store has it, unverified. It must admit
// this coordinator: no honest peer would give anything to another one.
func (c *PeerRecovery) claim(loaded *history.History) (*claimedHead, error) {
	if len(loaded.Links) == 0 {
		return nil, history.ErrEmpty
	}
	raw := loaded.Links[len(loaded.Links)-1]
	t, err := history.Decode(raw)
	if err != nil {
		return nil, err
	}
	m, err := manifest.ParseAccepted(loaded.Manifests[t.Manifest])
	if err != nil {
		return nil, err
	}
	if m.Hash() != t.Manifest {
		return nil, errors.New("the manifest of the head is not the one that its transition names")
	}
	if _, err := c.cfg.Self.Admits(m); err != nil {
		return nil, err
	}
	return &claimedHead{loaded, history.Link{Transition: *t, Hash: sha256.Sum256(raw)}, m}, nil
}

// peers returns whom to ask, each once, without this coordinator: those that said that
// they are ready, then those that are configured, then the others that said where they
// are. Before all of these come who gave when they were asked last, and after them who
// proved nothing then. An address that could not be resolved is a failure of its own.
func (c *PeerRecovery) peers(ctx context.Context, m *manifest.Manifest) (out []string, failed Errors) {
	own := append(slices.Clone(c.cfg.Addresses), c.cfg.ListensAt)
	add := func(addr string) {
		if len(out) < 2*MaxPeers && !slices.Contains(out, addr) && !slices.Contains(own, addr) {
			out = append(out, addr)
		}
	}
	others, err := c.cfg.Replicas.Newest(ctx, m)
	if err != nil {
		failed = append(failed, &Error{Step: StepLoad, Err: fmt.Errorf("read the replica records: %w", err)})
	}
	announced := func(ready bool) {
		for _, r := range others {
			if r.Key != c.cfg.Self.EnrolmentKey() && (r.Phase == authority.Ready.String()) == ready {
				for _, a := range r.Addresses {
					add(a)
				}
			}
		}
	}
	announced(true)
	resolving, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found := make([]peerAddrs, len(c.cfg.Peers))
	var g errgroup.Group
	for i, p := range c.cfg.Peers {
		g.Go(func() error { // a name that nobody answers for holds up no other
			found[i] = c.addressesOf(resolving, p)
			return nil
		})
	}
	_ = g.Wait()
	for i, p := range c.cfg.Peers {
		if err := found[i].err; err != nil {
			failed = append(failed, &Error{Peer: p, Step: StepProof, Err: err})
		}
		for _, a := range found[i].addrs {
			add(a)
		}
	}
	announced(false)
	if heard := c.heard.Load(); heard != nil {
		slices.SortStableFunc(out, func(a, b string) int { return cmp.Compare((*heard)[a], (*heard)[b]) })
	}
	return out[:min(len(out), MaxPeers)], failed
}

// peerAddrs is where an element of [Config.Peers] leads.
type peerAddrs struct {
	addrs []string
	err   error
}

func (c *PeerRecovery) addressesOf(ctx context.Context, peer string) peerAddrs {
	name, dns := strings.CutPrefix(peer, dnsPeers)
	if !dns {
		return peerAddrs{addrs: []string{peer}}
	}
	addrs, err := c.resolve(ctx, name)
	return peerAddrs{addrs, err}
}

// resolve returns all addresses of NAME:PORT, sorted.
func (c *PeerRecovery) resolve(ctx context.Context, name string) ([]string, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return nil, err
	}
	addrs, err := c.cfg.LookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, net.JoinHostPort(a, port))
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// asking is one exchange with one peer.
type asking struct {
	c    *PeerRecovery
	head *claimedHead
	peer string        // its address, then with the name that it proved
	step Step          // that is under way
	turn chan struct{} // held by who asks for secrets; capacity 1
}

// dialPeer returns a connection to whoever answers at addr, who proves himself later.
func (c *PeerRecovery) dialPeer(addr string) (*mesh.Conn, error) {
	// Not a name for gRPC to interpret: a record in the store may say anything.
	return mesh.DialPinned("passthrough:///"+addr, pinned.Unproven(),
		mesh.Options{Dialer: c.cfg.Dial, Now: c.cfg.Now, GRPC: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(ratelimit.MaxMessageBytes)),
			grpc.WithMaxHeaderListSize(ratelimit.MaxHeaderBytes),
		}})
}

// ask runs steps 2 to 6. An answer of the peer without secrets is step 3, unless it
// is that it does not take our proof.
func (a *asking) ask(ctx context.Context) (*Received, error) {
	r, err := a.exchange(ctx)
	if errors.As(err, new(*errcode.Error)) {
		return nil, err // our own
	}
	if e, ok := errcode.FromStatus(err); ok {
		a.step = StepAnswer
		if e.Code == errcode.PeerRefused {
			a.step = StepProof
		}
		err = e
	}
	return r, err
}

func (a *asking) exchange(ctx context.Context) (*Received, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	// It may have proven itself, and stop there: each part has its own time.
	timer := time.AfterFunc(peerGreeting, func() { end(errNoAnswer) })
	defer timer.Stop()
	r, err := a.steps(ctx, timer)
	if err != nil && errors.Is(context.Cause(ctx), errNoAnswer) {
		return nil, errNoAnswer
	}
	return r, err
}

// errNoAnswer says that a peer took too long.
var errNoAnswer = fmt.Errorf("no answer within %v, or %v after it proved itself: %w", peerGreeting, peerAnswer,
	context.DeadlineExceeded)

// steps runs them; timer ends the part that is under way.
func (a *asking) steps(ctx context.Context, timer *time.Timer) (*Received, error) {
	a.step = StepProof
	conn, err := a.c.dialPeer(a.peer)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	recipient, err := keyring.NewEphemeral()
	if err != nil {
		return nil, err
	}
	defer recipient.Wipe()
	stream, err := fealtyv1.NewPeerServiceClient(conn).Recover(ctx)
	if err != nil {
		return nil, err
	}
	x := &exchange{c: a.c, t: proof.PeerTranscript{Purpose: proof.Recover, Cluster: a.head.manifest.Cluster,
		Head: a.head.link.Hash[:], Recipient: recipient.Public()}}
	if err := x.open(stream.Context, func(h *fealtyv1.PeerHello) error {
		return stream.Send(&fealtyv1.PeerServiceRecoverRequest{Step: &fealtyv1.PeerServiceRecoverRequest_Hello{
			Hello: h}})
	}, func() (*fealtyv1.PeerChallenge, error) {
		m, err := stream.Recv()
		return m.GetChallenge(), err
	}); err != nil {
		return nil, err
	}
	found, err := x.giver.Match(a.head.manifest, a.c.cfg.Now())
	if err != nil {
		return nil, fmt.Errorf("what it proved is not in the manifest of the head: %w", err)
	}
	a.peer = fmt.Sprintf("%s (%s)", found.Name, a.peer)
	evidence, vouch, err := a.c.provePeer(proof.Asker, x.t)
	if err != nil {
		return nil, err
	}
	a.step = StepAnswer
	timer.Reset(peerTimeout)
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	timer.Reset(peerAnswer)
	r, err := a.askSecrets(ctx, stream, x, recipient, found.Name, evidence, vouch)
	if err != nil {
		<-a.turn // who got them leaves nothing to ask for
	}
	return r, err
}

// askSecrets shows the proof of this side, and takes what comes for it.
func (a *asking) askSecrets(ctx context.Context, stream fealtyv1.PeerService_RecoverClient, x *exchange,
	recipient *keyring.EphemeralRecipient, peer string, evidence, vouch []byte) (*Received, error) {
	if err := stream.Send(&fealtyv1.PeerServiceRecoverRequest{Step: &fealtyv1.PeerServiceRecoverRequest_Evidence{
		Evidence: evidence}, X509: vouch}); err != nil && stream.Context().Err() != nil {
		return nil, err // otherwise the answer says why
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	given := answer.GetSecrets()
	if given == nil {
		return nil, errors.New("its answer holds no secrets")
	}
	secrets, mesh, err := authority.TakeOver(recipient, keyring.Handover{
		Purpose: string(proof.Recover), Cluster: a.head.manifest.Cluster, From: proof.KeyClaim(x.t.GiverKey),
		To: a.c.cfg.Self.EnrolmentKey(), Head: a.head.link.Hash,
	}, given.GetSealed())
	if err != nil {
		return nil, err
	}
	r := &Received{Secrets: secrets, Peer: peer, Key: proof.KeyClaim(x.t.GiverKey)}
	if err := a.verify(ctx, r, mesh, given); err != nil {
		secrets.Wipe()
		mesh.Wipe()
		return nil, err
	}
	return r, nil
}

// verify is steps 4 to 6. It fills in r, whose secrets are the caller's to wipe.
func (a *asking) verify(ctx context.Context, r *Received, mesh *authority.MeshKey, given *fealtyv1.PeerSecrets) error {
	a.step = StepManifest
	if !bytes.Equal(given.GetManifest(), a.head.manifest.Bytes()) {
		return fmt.Errorf("its manifest, %.16x, is not the one that the store has for the head, %s",
			sha256.Sum256(given.GetManifest()), a.head.manifest.Hash().String()[:32])
	}

	a.step = StepHistory
	var err error
	if err := r.Secrets.Derive(a.head.link.Salt); err != nil {
		return err
	}
	public := r.Secrets.TransactionKey()
	if r.Verified, err = history.Verify(a.head.history, public); err != nil {
		return err
	}
	if !r.Verified.TransactionKey().Equal(public) {
		return errors.New("its seed is one that was replaced")
	}
	seen, err := a.c.cfg.Head.Seen()
	if err != nil {
		return err
	}
	if _, err := seen.Accepts(r.Verified); err != nil {
		return err
	}
	if last := a.c.cfg.Head.State().Ready(); last != nil {
		if _, err := last.Chain.Seen().Accepts(r.Verified); err != nil {
			return err
		}
	}

	a.step = StepMesh
	if r.Root, err = x509.ParseCertificate(given.GetRoot()); err != nil {
		return errors.New("its root certificate does not parse")
	}
	again, err := pki.Root(r.Secrets.RootCA(), a.head.manifest.Cluster, r.Root.NotBefore)
	if err != nil {
		return err
	}
	if !again.Equal(r.Root) {
		return errors.New("its root certificate is not that of the seed")
	}
	if err := a.c.cfg.Self.CheckPin(r.Root); err != nil {
		return err
	}
	if r.Mesh, err = mesh.Load(r.Root, given.GetMeshCa(), a.head.manifest.Cluster,
		r.Verified.Current().AuthorityEpoch); err != nil {
		return err
	}
	if want := r.Verified.Current().MeshCAKey; r.Mesh.KeyID() != want {
		return fmt.Errorf("its mesh CA key, %s, is not the one of the head, %s", r.Mesh.KeyID(), want)
	}
	if err := a.c.cfg.Faults.Hit("peer.before-head"); err != nil {
		return err
	}
	now, version, err := a.c.cfg.Head.History().Head(ctx)
	switch {
	case err != nil:
		return err
	case now.Hash != a.head.link.Hash || version != a.head.history.Version:
		return fmt.Errorf("the history moved on to index %d meanwhile", now.Index)
	}
	return nil
}

// exchange is the proof of both sides, as the asker sees it.
type exchange struct {
	c     *PeerRecovery
	t     proof.PeerTranscript
	giver proof.Coordinator // who proved itself
}

// open says hello and verifies the challenge: after it the giver is proven to hold
// x.t.GiverKey, over this connection.
func (x *exchange) open(ctx func() context.Context, hello func(*fealtyv1.PeerHello) error,
	challenge func() (*fealtyv1.PeerChallenge, error)) error {
	x.t.AskerNonce = make([]byte, proof.NonceBytes)
	rand.Read(x.t.AskerNonce)
	x.t.AskerKey = x.c.cfg.Self.PrivateKey().Public().(ed25519.PublicKey)
	h := &fealtyv1.PeerHello{Cluster: x.t.Cluster, Head: x.t.Head, Nonce: x.t.AskerNonce,
		Key: x.c.cfg.Self.EnrolmentKey(), Recipient: x.t.Recipient,
		Certificates: x.c.cfg.Self.Certificate().Certificates(x.c.cfg.Self.EnrolmentKey())}
	if err := hello(h); err != nil && ctx().Err() != nil {
		return err // otherwise the answer says why
	}
	ch, err := challenge()
	if err != nil {
		return err
	}
	cs, ok := proof.ConnectionState(ctx())
	if !ok {
		return errcode.New(errcode.JoinNoBinding, "problem", "the call goes over no TLS connection")
	}
	if x.t.Binding, err = proof.Binding(cs); err != nil {
		return errcode.Wrap(err, errcode.JoinNoBinding, "problem", err.Error())
	}
	if ch == nil {
		return errors.New("its first message is no challenge")
	}
	key, err := proof.ParseKeyClaim(ratelimit.Clip(ch.GetKey(), proof.MaxClaimBytes))
	if err != nil {
		return err
	}
	if key.Equal(x.t.AskerKey) {
		return errors.New("it shows the key of this coordinator itself")
	}
	x.t.GiverKey, x.t.GiverNonce = key, ch.GetNonce()
	if x.t.Purpose == proof.Prepare {
		x.t.Recipient = ch.GetRecipient()
	}
	x.giver, err = provenPeer(proof.Giver, x.t, ch.GetEvidence(), ch.GetX509())
	return err
}

// provePeer signs t in role, with the enrolment key and with the certificate's, if there
// is one.
func (c *PeerRecovery) provePeer(role proof.PeerRole, t proof.PeerTranscript) (evidence, vouch []byte, err error) {
	if evidence, err = proof.ProvePeer(c.cfg.Self.PrivateKey(), role, t); err != nil {
		return nil, nil, err
	}
	said, err := t.Digest(role)
	if err != nil {
		return nil, nil, err
	}
	vouch, err = c.cfg.Self.Vouch(said)
	return evidence, vouch, err
}

// provenPeer is who made evidence and vouch in role over t.
func provenPeer(role proof.PeerRole, t proof.PeerTranscript, evidence, vouch []byte) (proof.Coordinator, error) {
	selector, err := proof.VerifyPeer(role, t, evidence)
	if err != nil {
		return proof.Coordinator{}, err
	}
	said, err := t.Digest(role)
	if err != nil {
		return proof.Coordinator{}, err
	}
	return proof.ProvenCoordinator(selector, said, vouch)
}

// metrics are what PeerRecovery counts.
type metrics struct {
	peers     *prometheus.CounterVec
	peerCalls *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		peers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_peer_recoveries_total",
			Help: "Exchanges in which this coordinator asked a peer for the secrets of the head, by " +
				"outcome: received, or the step that failed: load, proof, answer, manifest, history, mesh.",
		}, []string{"outcome"}),
		peerCalls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_peer_requests_total",
			Help: "Exchanges that other coordinators began with this one, by purpose (recover, prepare) " +
				"and outcome: given, taken, or the code of the refusal.",
		}, []string{"purpose", "outcome"}),
	}
	reg.MustRegister(m.peers, m.peerCalls)
	return m
}

// RegisterMetrics registers what it counts.
func (c *PeerRecovery) RegisterMetrics(reg prometheus.Registerer) {
	c.metrics = newMetrics(reg)
}
