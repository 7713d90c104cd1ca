package coordinator

import (
	"bytes"
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
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/transition"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/mesh"
)

// Bounds of asking peers.
const (
	// maxPeers bounds the peers that are asked in one round.
	maxPeers = 64
	// peerTimeout bounds one exchange with one peer, as the peer that is asked sees it.
	// Who asks gives it peerGreeting, from the dialing on, to prove itself, and
	// peerAnswer then: one that is gone must not hold up the next. peersDialed are
	// greeted at once.
	peerTimeout  = 5 * time.Second
	peerGreeting = 2 * time.Second
	peerAnswer   = 3 * time.Second
	peersDialed  = 16
	// resolveTimeout bounds the look-up of all names of peers.
	resolveTimeout = 2 * time.Second
	// peerRound bounds a round with all of them, and lastLook the one that a person
	// waits for.
	peerRound = 20 * time.Second
	lastLook  = 3 * time.Second
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

// peerStep is a step of peer recovery: each verifies more of what a peer says.
type peerStep int

const (
	stepLoad     peerStep = iota + 1 // the head's manifest, unverified, from the store
	stepProof                        // dial, and proofs in both directions
	stepAnswer                       // the peer gives, or says why not
	stepManifest                     // its manifest is the loaded one, byte for byte
	stepHistory                      // the whole history, under the received seed
	stepMesh                         // mesh CA key and root are those of the head, which is still there
)

func (s peerStep) String() string {
	switch s {
	case stepLoad:
		return "load"
	case stepProof:
		return "proof"
	case stepAnswer:
		return "answer"
	case stepManifest:
		return "manifest"
	case stepHistory:
		return "history"
	case stepMesh:
		return "mesh"
	}
	return "invalid step"
}

// peerError says at which step the recovery from a peer failed.
type peerError struct {
	Peer string // its address, with its name once it is proven; empty if it is about none
	Step peerStep
	Err  error
}

func (e *peerError) Error() string {
	of := ""
	if e.Peer != "" {
		of = " with peer " + e.Peer
	}
	return fmt.Sprintf("peer recovery failed at step %d (%s)%s: %s", e.Step, e.Step, of,
		flowcontrol.Clip(bare(e.Err), maxPeerError))
}

func (e *peerError) Unwrap() error { return e.Err }

// bare is the text of err, without the dressing of gRPC.
func bare(err error) string {
	if e, ok := errors.AsType[*explain.Error](err); ok {
		return e.What + ": " + e.Why
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// peersError is what came of every peer of a round.
type peersError []*peerError

func (e peersError) Error() string {
	texts := make([]string, len(e))
	for i, x := range e {
		texts[i] = x.Error()
	}
	return strings.Join(texts, "; ")
}

func (e peersError) Unwrap() []error {
	out := make([]error, len(e))
	for i, x := range e {
		out[i] = x
	}
	return out
}

// errNoPeers says that there is nobody to ask.
var errNoPeers = errors.New("no peer is known: none is configured, and no other coordinator said where it is")

// received is what a peer gave, verified: see fromPeers.
type received struct {
	verified *history.Verified
	Secrets  *authority.Secrets
	Root     *x509.Certificate
	Mesh     *ca.MeshCA
	Peer     string // the name of its entry in the manifest
	key      string // its enrolment key
}

// wipe overwrites the secrets, if nobody uses them.
func (r *received) wipe() {
	r.Secrets.Wipe()
	authority.WipeMesh(r.Mesh)
}

// audit says what was received, and from whom.
func (r *received) audit() []record.AuditEntry {
	from := map[string]string{"via": "peer", "from": r.Peer, "key": r.key, "head": r.verified.Current().Hash.String()}
	mesh := maps.Clone(from)
	mesh["mesh_ca_key"] = r.Mesh.KeyID().String()
	return []record.AuditEntry{
		{Action: transition.ActionSeedReceived, Target: r.verified.Manifest().Cluster, Fields: from},
		{Action: transition.ActionMeshReceived, Target: r.verified.Manifest().Cluster, Fields: mesh},
	}
}

// auditOrigin writes down what brought s about and where its secrets came from, now
// that it is ready. What the store does not take, or not while another one moves the
// head, waits until it does: nobody else wrote down what owners or a keeper brought.
func (c *Authority) auditOrigin(ctx context.Context, s *authority.State) {
	if len(c.untold) == 0 {
		return
	}
	ch := s.Records.NewChange(s.HeadVersion)
	for _, e := range c.untold {
		if e.Actor == "" {
			e.Actor = c.cfg.Self.OwnID(s)
		}
		ch.Audit(c.cfg.Now(), e)
	}
	if _, err := ch.Commit(ctx); err != nil {
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
			"where the secrets came from is not in the audit log yet", slog.Any("err", err))
		c.cfg.Auditing.Again(ch)
	}
	c.untold = nil
}

// claimedHead is the head of a history that nobody vouches for.
type claimedHead struct {
	History  *history.History
	Link     history.Link
	Manifest *manifest.Manifest
}

// fromPeers asks peers for the secrets of the head that loaded claims: all of peer recovery
// but the swap. All that it returns was verified, and is the caller's.
//
// Several are greeted at once, since some may be gone without a trace. But one at a time
// is asked for secrets: no more of them leave a coordinator than are needed.
//
// Who may give is read from a manifest that nothing vouches for yet. A store that lies
// can so name its own coordinators, whose seed then vouches for its own history; what
// stands against that is the mark of a head that was seen before, and Config.Pin.
//
// The error is [errNoPeers] or holds one [*peerError] for each peer that was asked.
func (c *PeerRecovery) fromPeers(ctx context.Context, loaded *history.History) (*received, error) {
	head, err := c.claim(loaded)
	if err != nil {
		c.metrics.peers.WithLabelValues(stepLoad.String()).Inc()
		return nil, peersError{{Step: stepLoad, Err: err}}
	}
	ctx, cancel := context.WithTimeout(ctx, peerRound)
	defer cancel()
	peers, failed := c.peers(ctx, head.Manifest)
	for _, f := range failed {
		c.peerFailed(ctx, f)
	}
	turn := make(chan struct{}, 1)
	results, found := firstOf(ctx, peersDialed, peers, func(round context.Context, addr string) (asked, bool) {
		a := &asking{C: c, Head: head, Peer: addr, Turn: turn}
		r, err := a.ask(round)
		return asked{addr, a, r, err, round.Err() != nil}, err == nil
	})
	if found < 0 && errors.Is(ctx.Err(), context.Canceled) {
		return nil, ctx.Err()
	}
	silent := make(map[string]bool)
	if before := c.silent.Load(); before != nil {
		for _, addr := range peers {
			silent[addr] = (*before)[addr]
		}
	}
	for _, x := range results {
		if !x.cut {
			silent[x.addr] = x.err != nil && x.Step == stepProof
		}
		if x.err == nil || x.cut && found >= 0 {
			continue
		}
		f := &peerError{Peer: x.Peer, Step: x.Step, Err: x.err}
		c.peerFailed(ctx, f)
		failed = append(failed, f)
	}
	c.silent.Store(&silent)
	switch {
	case found >= 0:
		x := results[found]
		c.metrics.peers.WithLabelValues("received").Inc()
		c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "a peer gave the secrets of the head", slog.String("peer", x.Peer),
			slog.Uint64("index", head.Link.Index), slog.String("head", head.Link.Hash.String()))
		return x.received, nil
	case len(failed) == 0:
		return nil, errNoPeers
	}
	return nil, failed
}

// asked is what came of one peer.
type asked struct {
	addr string
	*asking
	received *received
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
func (c *PeerRecovery) peerFailed(ctx context.Context, f *peerError) {
	c.metrics.peers.WithLabelValues(f.Step.String()).Inc()
	c.cfg.Failures.Log(ctx, c.cfg.Log, slog.LevelWarn, "peer recovery failed", slog.String("peer", f.Peer),
		slog.Int("step", int(f.Step)), slog.String("of", f.Step.String()),
		slog.String("code", explain.CodeOf(f.Err)), slog.String("reason", flowcontrol.Clip(bare(f.Err), maxPeerError)))
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
// are; and after all of these who proved nothing when it was asked last. What could not
// be resolved is a failure of its own.
func (c *PeerRecovery) peers(ctx context.Context, m *manifest.Manifest) (out []string, failed peersError) {
	own := append(slices.Clone(c.cfg.Addresses), c.cfg.ListensAt)
	add := func(addr string) {
		if len(out) < 2*maxPeers && !slices.Contains(out, addr) && !slices.Contains(own, addr) {
			out = append(out, addr)
		}
	}
	others, err := c.cfg.Replicas.Newest(ctx, m)
	if err != nil {
		failed = append(failed, &peerError{Step: stepLoad, Err: fmt.Errorf("read the replica records: %w", err)})
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
			failed = append(failed, &peerError{Peer: p, Step: stepProof, Err: err})
		}
		for _, a := range found[i].addrs {
			add(a)
		}
	}
	announced(false)
	if silent := c.silent.Load(); silent != nil {
		slices.SortStableFunc(out, func(a, b string) int {
			switch {
			case (*silent)[a] == (*silent)[b]:
				return 0
			case (*silent)[b]:
				return -1
			}
			return 1
		})
	}
	return out[:min(len(out), maxPeers)], failed
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
	C    *PeerRecovery
	Head *claimedHead
	Peer string        // its address, then with the name that it proved
	Step peerStep      // that is under way
	Turn chan struct{} // held by who asks for secrets; capacity 1
}

// dialPeer returns a connection to whoever answers at addr, who proves himself later.
func (c *PeerRecovery) dialPeer(addr string) (*mesh.Conn, error) {
	// Not a name for gRPC to interpret: a record in the store may say anything.
	return mesh.DialPinned("passthrough:///"+addr, credential.Unproven(),
		mesh.Options{Dialer: c.cfg.Dial, Now: c.cfg.Now, GRPC: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(flowcontrol.MaxMessageBytes)),
			grpc.WithMaxHeaderListSize(flowcontrol.MaxHeaderBytes),
		}})
}

// ask runs steps 2 to 6. What the peer answers instead of secrets is step 3, unless
// it is that it does not take our proof.
func (a *asking) ask(ctx context.Context) (*received, error) {
	r, err := a.exchange(ctx)
	if errors.As(err, new(*explain.Error)) {
		return nil, err // our own
	}
	if e, ok := explain.FromStatus(err); ok {
		a.Step = stepAnswer
		if e.Code == explain.PeerRefused {
			a.Step = stepProof
		}
		err = e
	}
	return r, err
}

func (a *asking) exchange(ctx context.Context) (*received, error) {
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
func (a *asking) steps(ctx context.Context, timer *time.Timer) (*received, error) {
	a.Step = stepProof
	conn, err := a.C.dialPeer(a.Peer)
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
	x := &exchange{c: a.C, t: proof.PeerTranscript{Purpose: proof.Recover, Cluster: a.Head.Manifest.Cluster,
		Head: a.Head.Link.Hash[:], Recipient: recipient.Public()}}
	if err := x.open(stream.Context, func(h *fealtyv1.PeerHello) error {
		return stream.Send(&fealtyv1.PeerServiceRecoverRequest{Step: &fealtyv1.PeerServiceRecoverRequest_Hello{
			Hello: h}})
	}, func() (*fealtyv1.PeerChallenge, error) {
		m, err := stream.Recv()
		return m.GetChallenge(), err
	}); err != nil {
		return nil, err
	}
	found, err := x.giver.Match(a.Head.Manifest, a.C.cfg.Now())
	if err != nil {
		return nil, fmt.Errorf("what it proved is not in the manifest of the head: %w", err)
	}
	a.Peer = fmt.Sprintf("%s (%s)", found.Name, a.Peer)
	evidence, vouch, err := a.C.provePeer(proof.Asker, x.t)
	if err != nil {
		return nil, err
	}
	a.Step = stepAnswer
	timer.Reset(peerTimeout)
	select {
	case a.Turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	timer.Reset(peerAnswer)
	r, err := a.askSecrets(ctx, stream, x, recipient, found.Name, evidence, vouch)
	if err != nil {
		<-a.Turn // who got them leaves nothing to ask for
	}
	return r, err
}

// askSecrets shows the proof of this side, and takes what comes for it.
func (a *asking) askSecrets(ctx context.Context, stream fealtyv1.PeerService_RecoverClient, x *exchange,
	recipient *keyring.EphemeralRecipient, peer string, evidence, vouch []byte) (*received, error) {
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
		Purpose: string(proof.Recover), Cluster: a.Head.Manifest.Cluster, From: proof.KeyClaim(x.t.GiverKey),
		To: a.C.cfg.Self.EnrolmentKey(), Head: a.Head.Link.Hash,
	}, given.GetSealed())
	if err != nil {
		return nil, err
	}
	r := &received{Secrets: secrets, Peer: peer, key: proof.KeyClaim(x.t.GiverKey)}
	if err := a.verify(ctx, r, mesh, given); err != nil {
		secrets.Wipe()
		mesh.Wipe()
		return nil, err
	}
	return r, nil
}

// verify is steps 4 to 6. It fills in r, whose secrets are the caller's to wipe.
func (a *asking) verify(ctx context.Context, r *received, mesh *authority.MeshKey, given *fealtyv1.PeerSecrets) error {
	a.Step = stepManifest
	if !bytes.Equal(given.GetManifest(), a.Head.Manifest.Bytes()) {
		return fmt.Errorf("its manifest, %.16x, is not the one that the store has for the head, %s",
			sha256.Sum256(given.GetManifest()), a.Head.Manifest.Hash().String()[:32])
	}

	a.Step = stepHistory
	var err error
	if err := r.Secrets.Derive(a.Head.Link.Salt); err != nil {
		return err
	}
	public := r.Secrets.TransactionKey()
	if r.verified, err = history.Verify(a.Head.History, public); err != nil {
		return err
	}
	if !r.verified.TransactionKey().Equal(public) {
		return errors.New("its seed is one that was replaced")
	}
	seen, err := a.C.cfg.Head.Seen()
	if err != nil {
		return err
	}
	if _, err := seen.Accepts(r.verified); err != nil {
		return err
	}
	if last := a.C.cfg.Head.State().Ready(); last != nil {
		if _, err := last.Chain.Seen().Accepts(r.verified); err != nil {
			return err
		}
	}

	a.Step = stepMesh
	if r.Root, err = x509.ParseCertificate(given.GetRoot()); err != nil {
		return errors.New("its root certificate does not parse")
	}
	again, err := ca.Root(r.Secrets.RootCA(), a.Head.Manifest.Cluster, r.Root.NotBefore)
	if err != nil {
		return err
	}
	if !again.Equal(r.Root) {
		return errors.New("its root certificate is not that of the seed")
	}
	if err := a.C.cfg.Self.CheckPin(r.Root); err != nil {
		return err
	}
	if r.Mesh, err = mesh.Load(r.Root, given.GetMeshCa(), a.Head.Manifest.Cluster,
		r.verified.Current().AuthorityEpoch); err != nil {
		return err
	}
	if want := r.verified.Current().MeshCAKey; r.Mesh.KeyID() != want {
		return fmt.Errorf("its mesh CA key, %s, is not the one of the head, %s", r.Mesh.KeyID(), want)
	}
	if err := a.C.cfg.Faults.Hit("peer.before-head"); err != nil {
		return err
	}
	now, version, err := a.C.cfg.Head.History().Head(ctx)
	switch {
	case err != nil:
		return err
	case now.Hash != a.Head.Link.Hash || version != a.Head.History.Version:
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
	cs, ok := mesh.ConnectionState(ctx())
	if !ok {
		return explain.New(explain.JoinNoBinding, "problem", "the call goes over no TLS connection")
	}
	if x.t.Binding, err = proof.Binding(cs); err != nil {
		return explain.Wrap(err, explain.JoinNoBinding, "problem", err.Error())
	}
	if ch == nil {
		return errors.New("its first message is no challenge")
	}
	key, err := proof.ParseKeyClaim(flowcontrol.Clip(ch.GetKey(), proof.MaxClaimBytes))
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

// peerRecoveryMetrics are what PeerRecovery counts.
type peerRecoveryMetrics struct {
	peers     *prometheus.CounterVec
	peerCalls *prometheus.CounterVec
}

func newPeerRecoveryMetrics(reg prometheus.Registerer) *peerRecoveryMetrics {
	m := &peerRecoveryMetrics{
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

// registerMetrics registers what it counts.
func (c *PeerRecovery) registerMetrics(reg prometheus.Registerer) {
	c.metrics = newPeerRecoveryMetrics(reg)
}
