package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/hostinfo"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// Bounds of one attempt at one address.
const (
	// attemptTimeout bounds a whole join with one coordinator.
	attemptTimeout = 30 * time.Second
	// maxGrantBytes bounds a grant: two snapshots, a chain, and a statement.
	maxGrantBytes = 2*snapshot.MaxSigned + 64<<10
)

// Proof is what a candidate shows, and to whom. Make it with [ByToken], [ByKey] or
// [ByX509].
type Proof struct {
	what      string // names the proof without giving it away
	cluster   string
	addresses []string
	pin       identity.KeyID
	prover    proof.Prover
	token     bool
	expires   time.Time // of a token
	placed    string    // what named the addresses instead of the token; blank: nothing did
}

// ByToken proves with a join token, which also says where to go and whom to
// believe there.
func ByToken(t proof.JoinToken) Proof {
	return Proof{
		what: "token:" + t.ID, cluster: t.Cluster, addresses: slices.Clone(t.Addresses), pin: t.Pin,
		prover: proof.NewTokenProver(t), token: true, expires: t.Expires,
	}
}

// ByKey proves with a key that the manifest names. pin is the key of the cluster's
// root: whoever answers without it is not believed.
func ByKey(cluster string, addresses []string, pin identity.KeyID, key ed25519.PrivateKey) (Proof, error) {
	if len(key) != ed25519.PrivateKeySize {
		return Proof{}, badValue("the key", "of this form", "an Ed25519 private key")
	}
	if err := checkPlace(cluster, addresses, pin); err != nil {
		return Proof{}, err
	}
	public := key.Public().(ed25519.PublicKey)
	return Proof{
		what: "key:" + proof.KeyClaim(public), cluster: cluster, addresses: slices.Clone(addresses), pin: pin,
		prover: proof.NewKeyProver(key),
	}, nil
}

// ByX509 proves with a certificate of an operator's PKI, to whose roots the manifest
// gives entry. source has the certificate and its key; it is asked for each proof, so
// that what rotates is proven as it is. pin is as for [ByKey].
//
// Errors are BadValue of package explain, or that of the source.
func ByX509(ctx context.Context, cluster string, addresses []string, pin identity.KeyID, source credential.Source) (Proof, error) {
	if err := checkPlace(cluster, addresses, pin); err != nil {
		return Proof{}, err
	}
	m, err := source.Current(ctx)
	if err != nil {
		return Proof{}, err
	}
	chain := m.Chain()
	if len(chain) == 0 {
		return Proof{}, badValue("the certificate", "missing", "material with a certificate and its key")
	}
	return Proof{
		what: "x509:" + subjectOf(chain[0]), cluster: cluster, addresses: slices.Clone(addresses), pin: pin,
		prover: proverOf(source),
	}, nil
}

func badValue(name, value, want string) error {
	return explain.New(explain.BadValue, "name", name, "value", value, "want", want)
}

// checkPlace checks where a proof without a token goes.
func checkPlace(cluster string, addresses []string, pin identity.KeyID) error {
	if err := identity.CheckCluster(cluster); err != nil {
		return badValue("the cluster", fmt.Sprintf("%q", cluster), "the cluster's id, such as prod.example")
	}
	if pin.IsZero() {
		return badValue("the pin", "blank", "the SHA-256 of the root's public key, as fealty status shows it")
	}
	if len(addresses) == 0 || len(addresses) > state.MaxAddresses {
		return badValue("the list of coordinators", fmt.Sprintf("of %d", len(addresses)), fmt.Sprintf("1 to %d addresses, host:port", state.MaxAddresses))
	}
	for _, a := range addresses {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return badValue("the coordinator", fmt.Sprintf("%q", a), "host:port")
		}
	}
	return nil
}

// At returns the proof for coordinators at other addresses than those that it came
// with: behind a NAT or a load balancer, or after a move. by names who says so, such as
// "--coordinator". Whom to believe there does not change: the pin decides.
func (p Proof) At(addresses []string, by string) (Proof, error) {
	if err := checkPlace(p.cluster, addresses, p.pin); err != nil {
		return Proof{}, err
	}
	p.addresses, p.placed = slices.Clone(addresses), by
	return p, nil
}

// Cluster is the cluster that the proof is for.
func (p Proof) Cluster() string { return p.cluster }

// purpose names one join: whoever repeats it uses the same key.
func (p Proof) purpose(kind identity.Kind) string {
	h := sha256.New()
	for _, part := range []string{p.cluster, p.pin.String(), string(kind), p.what} {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		h.Write([]byte(part))
	}
	return "join:" + hex.EncodeToString(h.Sum(nil))
}

// StepName names a step of a join, in the order in which they are done.
type StepName string

// The steps of a join.
const (
	StepToken    StepName = "token"    // the proof is whole
	StepReach    StepName = "reach"    // a coordinator answers
	StepTrust    StepName = "trust"    // it is one of the pinned cluster
	StepClock    StepName = "clock"    // its clock and ours agree
	StepProof    StepName = "proof"    // the proof was sent
	StepIdentity StepName = "identity" // the certificate that was granted verifies
	StepSnapshot StepName = "snapshot" // so does the first config; all of it is durable
)

// Step reports that a step was done, or failed at one address.
type Step struct {
	Name   StepName
	Detail string // one line for people
	Err    error  // nil if it was done
}

// JoinConfig says who joins, with what, and where its state goes.
type JoinConfig struct {
	// DataDir is the folder for the node's state; it is made if it is missing.
	// Required.
	DataDir string
	// Proof is what to show. Required.
	Proof Proof
	// Kind is what to join as. Blank means data.
	Kind identity.Kind
	// Rejoin allows to replace an identity of the same cluster and root in DataDir.
	Rejoin bool

	// FS keeps the state. Nil means the operating system's.
	FS durable.FS
	// Now is the clock. Nil means time.Now.
	Now func() time.Time
	// Log takes what goes beyond the steps. Nil means slog.Default().
	Log *slog.Logger
	// Release is the program's release, for the log.
	Release string
	// Progress is told of each step as it is done; calls do not overlap. Nil: nobody
	// is told.
	Progress func(Step)
	// Dial opens a connection to an address. Nil means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// Result says what a join gave.
type Result struct {
	ID       identity.ID
	Outcome  fealtyv1.JoinOutcome
	NotAfter time.Time // when the certificate ends, if it is not renewed
	// Autonomy is how long the node can do what its policy allows without a
	// coordinator. Zero for a person's identity.
	Autonomy time.Duration
	// Coordinator is the address that granted it; blank if an interrupted join was
	// only finished. Coordinators are those to talk to from now on.
	Coordinator  string
	Coordinators []string
}

// Join makes this machine a member: it proves itself to the first coordinator that
// answers, verifies what it is granted, and makes it durable. The key is durable
// before it is named to anybody, so that calling Join again after a failure at any
// point, the loss of the answer included, repeats the same request.
//
// Errors carry a code of package explain: the coordinator's refusal; JoinClockWrong,
// JoinGrantRefused, TokenForeign or PeerUntrusted for what was found out here;
// NodeNoCoordinator if nobody was reached; NodeJoined, NodeLocked. With several
// addresses, errors.As finds the *AddressError of each.
func Join(ctx context.Context, cfg JoinConfig) (Result, error) {
	if cfg.Kind == "" {
		cfg.Kind = identity.Data
	}
	switch cfg.Kind {
	case identity.Data, identity.Witness, identity.Shard, identity.Operator, identity.Provider:
	default:
		return Result{}, explain.New(explain.BadValue, "name", "the kind", "value", string(cfg.Kind), "want", "data, witness, shard, operator or provider")
	}
	j, err := newJoiner(cfg)
	if err != nil {
		return Result{}, err
	}
	store, err := state.OpenStore(j.FS, cfg.DataDir)
	if err != nil {
		return Result{}, err
	}
	defer store.Close()
	before, done, err := j.prior(store)
	if err != nil {
		return Result{}, err
	}
	if done != nil {
		return *done, nil
	}
	key, err := j.pendingKey(ctx, store, before.renewing)
	if err != nil {
		return Result{}, err
	}
	w := state.Wanted{Cluster: j.Proof.cluster, Kind: j.Kind, Pin: j.Proof.pin, Key: key, Beliefs: before.beliefs}
	got, address, err := j.pursue(ctx, w)
	if err != nil {
		return Result{}, err
	}
	entry, err := journalOf(got, j.Proof.addresses, j.Now())
	if err != nil {
		return Result{}, err
	}
	if err := store.CommitJoin(entry); err != nil {
		return Result{}, fmt.Errorf("keep the identity: %w", err)
	}
	r := result(entry.Anchor, got.SVID, got.After, j.Now())
	r.Coordinator = address
	j.step(Step{Name: StepSnapshot, Detail: fmt.Sprintf("coordinators known: %d, renewal every %v", len(r.Coordinators), renewEvery(got.After))})
	j.Log.LogAttrs(ctx, slog.LevelInfo, "joined", slog.String("cluster", r.ID.Cluster()), slog.String("member", r.ID.String()),
		slog.String("outcome", entry.Anchor.Outcome), slog.String("coordinator", address), slog.String("release", j.Release))
	return r, nil
}

// joiner is one join by a person's call.
type joiner struct {
	JoinConfig
	mu sync.Mutex // held while Progress is told
}

func newJoiner(cfg JoinConfig) (*joiner, error) {
	if cfg.Proof.prover == nil {
		return nil, errors.New("agent: JoinConfig.Proof is missing: make it with ByToken, ByKey or ByX509")
	}
	if cfg.FS == nil {
		cfg.FS = durable.OS()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &joiner{JoinConfig: cfg}, nil
}

func (j *joiner) step(s Step) {
	if j.Progress == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Progress(s)
}

// priorState is what a join builds on.
type priorState struct {
	beliefs  *state.Beliefs
	renewing bool // there is an identity whose pending key must not be lost
}

// prior decides what the directory allows. It returns a result if all that was left
// to do was to finish an earlier join.
func (j *joiner) prior(store *state.Store) (priorState, *Result, error) {
	l, err := store.Load(state.NewClock(j.Now, nil))
	switch {
	case errors.Is(err, state.ErrNoMember), errors.Is(err, explain.NodeStateCorrupt), errors.Is(err, explain.NodeWrong):
		// No identity, or one that is of no use. What was accepted under this very
		// root still counts.
		store.Pin = j.Proof.pin
		store.Sequence = 0
		known, err := store.ReadLedger()
		if err != nil {
			return priorState{}, nil, nil // of another cluster, or lost with the identity
		}
		return priorState{beliefs: &state.Beliefs{Ledger: state.Ledger{Marks: known.Marks}}}, nil, nil
	case err != nil:
		return priorState{}, nil, err
	}
	same := l.Me.Cluster == j.Proof.cluster && l.Me.Pin == j.Proof.pin
	switch {
	case l.Finished && same && l.Me.Kind == j.Kind:
		r := result(l.Me.Anchor, l.SVID, l.Beliefs, j.Now())
		j.step(Step{Name: StepSnapshot, Detail: "an interrupted join was finished"})
		return priorState{}, &r, nil
	case j.Rejoin && same:
		return priorState{l.Beliefs, true}, nil, nil
	}
	problem := "a join would replace it"
	if j.Rejoin {
		problem = "it is of another cluster, or of one under another root, so that this node has to leave first"
	}
	return priorState{}, nil, explain.New(explain.NodeJoined, "dir", store.Dir, "identity", l.Me.ID, "problem", problem)
}

// pendingKey returns the key to have certified, which is durable: that of an
// earlier try of the same join, or a new one.
func (j *joiner) pendingKey(ctx context.Context, store *state.Store, renewing bool) (dir.KeyPair, error) {
	purpose := j.Proof.purpose(j.Kind)
	next, err := store.ReadNext()
	if err != nil {
		j.Log.LogAttrs(ctx, slog.LevelWarn, "the key of an earlier try is of no use, making another", slog.Any("err", err))
	}
	// The key of a renewal under way may be the member's current one without our
	// knowing: it must not be overwritten by a join that may yet be refused.
	if next != nil && (next.Purpose == purpose || renewing && next.Purpose == dir.PurposeRenew) {
		return next.Key, nil
	}
	key, err := dir.NewKeyPair()
	if err != nil {
		return dir.KeyPair{}, err
	}
	if err := store.WriteNext(state.PendingKey{Key: key, Purpose: purpose}); err != nil {
		return dir.KeyPair{}, fmt.Errorf("keep the key before asking: %w", err)
	}
	return key, nil
}

// pursue asks one address after the other, and returns the first grant that
// verifies, with its address.
func (j *joiner) pursue(ctx context.Context, w state.Wanted) (*state.Admitted, string, error) {
	p := j.Proof
	detail := p.what + " for cluster " + p.cluster
	if p.token {
		detail = fmt.Sprintf("for cluster %s, good until %s", p.cluster, state.Stamp(p.expires))
	}
	j.step(Step{Name: StepToken, Detail: detail})
	var failures []error
	for _, address := range p.addresses {
		got, err := j.try(ctx, address, w)
		if err == nil {
			return got, address, nil
		}
		if e, ok := verdict(err); ok {
			return nil, "", e
		}
		if ctx.Err() != nil {
			return nil, "", fmt.Errorf("join at %s: %w", address, ctx.Err())
		}
		j.Log.LogAttrs(ctx, slog.LevelInfo, "no join at this address", slog.String("coordinator", address), slog.String("reason", err.Error()))
		failures = append(failures, &AddressError{address, err})
	}
	if p.token && p.placed != "" && allPins(failures) {
		return nil, "", explain.Wrap(errors.Join(failures...), explain.TokenForeign, "presented", p.cluster,
			"reason", "no coordinator that "+p.placed+" names holds the root key that the token pins",
			"do", "name a coordinator of that cluster with "+p.placed+", or leave it away for the addresses in the token")
	}
	if p.token && allPins(failures) {
		return nil, "", explain.Wrap(errors.Join(failures...), explain.TokenForeign, "presented", p.cluster)
	}
	return nil, "", summarize(p.cluster, failures, "do", "check that the address is right (--coordinator names "+
		"another one), that a coordinator runs there, and that its port is open from here; then try again")
}

// allPins reports whether each address answered and had another root.
func allPins(failures []error) bool {
	return len(failures) > 0 && !slices.ContainsFunc(failures, func(err error) bool { return !errors.Is(err, credential.ErrPin) })
}

// try joins at one address. The steps that were done are told; where it failed is
// told too.
func (j *joiner) try(ctx context.Context, address string, w state.Wanted) (*state.Admitted, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	at := StepReach
	h := handshake{
		cluster: w.Cluster, kind: w.Kind, pin: w.Pin, prover: j.Proof.prover, key: w.Key, now: j.Now, dial: j.Dial,
		done: func(name StepName, detail string) {
			j.step(Step{Name: name, Detail: detail})
		},
		at: func(name StepName) { at = name },
	}
	fail := func(err error) (*state.Admitted, error) {
		if isHandshake(err) {
			at = StepTrust
		}
		j.step(Step{Name: at, Detail: address, Err: word(address, err)})
		return nil, err
	}
	grant, err := h.run(ctx, address)
	if err != nil {
		return fail(err)
	}
	at = StepIdentity
	got, err := state.VerifyGrant(grant, w, j.Now)
	if err != nil {
		if g, ok := errors.AsType[*state.GrantError](err); ok && g.Part != "chain" && g.Part != "root" && g.Part != "outcome" {
			at = StepSnapshot
		}
		return fail(explain.Wrap(err, explain.JoinGrantRefused, "coordinator", address, "problem", err.Error()))
	}
	j.step(Step{Name: StepIdentity, Detail: fmt.Sprintf("%s until %s", got.Me.ID, state.Stamp(got.Material.NotAfter()))})
	return got, nil
}

// journalOf makes of a verified grant what is written down.
func journalOf(got *state.Admitted, addresses []string, now time.Time) (state.Journal, error) {
	a := got.Me.Anchor
	a.Addresses = addresses
	a.Outcome = got.Outcome.String()
	a.JoinedAt = now.UTC()
	known, err := got.After.Ledger.File()
	if err != nil {
		return state.Journal{}, err
	}
	pem, err := dir.EncodeSVID(got.SVID)
	if err != nil {
		return state.Journal{}, err
	}
	entry := state.Journal{SVID: pem, Anchor: a, LedgerFile: known, Snapshots: make(map[string][]byte, len(got.Took))}
	for _, t := range got.Took {
		entry.Snapshots[string(t.V.Header().ScopeType)] = t.Raw
	}
	return entry, nil
}

func result(a state.Anchor, s dir.SVID, b *state.Beliefs, now time.Time) Result {
	r := Result{
		ID: a.ID, Outcome: fealtyv1.JoinOutcome(fealtyv1.JoinOutcome_value[a.Outcome]), NotAfter: s.Leaf().NotAfter,
		Coordinators: state.MergeAddresses(b, a.Addresses),
	}
	r.Autonomy = max(0, min(b.Degraded().Max, s.Leaf().NotAfter.Sub(now)))
	return r
}

// handshake is the candidate's side of one Join stream.
type handshake struct {
	cluster string
	kind    identity.Kind
	pin     identity.KeyID // of the root's key
	prover  proof.Prover
	member  string      // the name that the node has already; blank: it is no member
	key     dir.KeyPair // to certify
	now     func() time.Time
	dial    func(ctx context.Context, addr string) (net.Conn, error)
	at      func(StepName)                 // the step that is under way; may be nil
	done    func(StepName, string)         // a step was done; may be nil
	failed  func(err *mesh.HandshakeError) // may be nil
}

// run proves the candidate to the coordinator at address and returns the grant,
// which is not verified. The binding is taken from the very connection on which
// the challenge came.
func (h handshake) run(ctx context.Context, address string) (*fealtyv1.JoinGrant, error) {
	at, done := h.at, h.done
	if at == nil {
		at = func(StepName) {}
	}
	if done == nil {
		done = func(StepName, string) {}
	}
	conn, err := mesh.DialPinned(target(address), credential.RootPin(h.cluster, h.pin), mesh.Options{
		Now: h.now, OnFailure: h.failed, GRPC: []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxGrantBytes))},
		Dialer: tellOnce(dialer(h.dial), func() { done(StepReach, address) }),
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := fealtyv1.NewAdmissionServiceClient(conn).Join(ctx)
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	info, ok := mesh.FromContext(stream.Context())
	if !ok {
		return nil, explain.New(explain.JoinNoBinding, "problem", "nothing is known of the connection")
	}
	done(StepTrust, info.Peer.ID.String())
	state, ok := info.ConnectionState()
	if !ok {
		return nil, explain.New(explain.JoinNoBinding, "problem", "the call came over no TLS connection")
	}
	at(StepClock)
	challenge := first.GetChallenge()
	if challenge == nil || challenge.GetServerTime().CheckValid() != nil {
		return nil, explain.New(explain.JoinGrantRefused, "coordinator", address, "problem", "it does not begin with a challenge")
	}
	detail, err := compareClocks(h.now(), challenge.GetServerTime().AsTime())
	if err != nil {
		return nil, err
	}
	done(StepClock, detail)
	at(StepProof)
	binding, err := proof.Binding(state)
	if err != nil {
		return nil, explain.Wrap(err, explain.JoinNoBinding, "problem", err.Error())
	}
	spki, err := h.key.SPKI()
	if err != nil {
		return nil, err
	}
	evidence, err := h.prover.Prove(ctx, proof.Transcript{
		Role: proof.Candidate, Cluster: h.cluster, Nonce: challenge.GetNonce(), Binding: binding, PublicKey: spki,
	})
	if err != nil {
		return nil, fmt.Errorf("make the proof: %w", err)
	}
	csr, err := ca.NewCSR(h.key.Signer())
	if err != nil {
		return nil, err
	}
	err = stream.Send(&fealtyv1.JoinRequest{
		ClusterId: h.cluster, Kind: string(h.kind), Csr: csr, Member: h.member, Machine: machineOf(h.kind),
		Proof: &fealtyv1.Proof{Type: evidence.Type, Claim: evidence.Claim, Evidence: evidence.Evidence, PublicKey: evidence.PublicKey},
	})
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: Recv has the reason
		return nil, err
	}
	answer, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, explain.New(explain.JoinGrantRefused, "coordinator", address, "problem", "it ended the exchange without an answer")
	}
	if err != nil {
		return nil, err
	}
	done(StepProof, evidence.Type)
	grant := answer.GetGrant()
	if grant == nil {
		return nil, explain.New(explain.JoinGrantRefused, "coordinator", address, "problem", "it answers the proof with something else than a grant")
	}
	return grant, nil
}

// compareClocks fails with JoinClockWrong if the two clocks differ by more than
// snapshots tolerate.
func compareClocks(local, remote time.Time) (string, error) {
	skew := local.Sub(remote)
	if skew.Abs() > snapshotform.ClockTolerance {
		return "", explain.New(explain.JoinClockWrong, "who", "this machine", "skew", skew.Abs().Round(time.Second).String(),
			"local", state.Stamp(local), "remote", state.Stamp(remote), "limit", snapshotform.ClockTolerance.String())
	}
	return fmt.Sprintf("they differ by %v", skew.Abs().Round(time.Millisecond)), nil
}

// target makes a gRPC target of host:port: the dialer resolves it.
func target(address string) string { return "passthrough:///" + address }

func dialer(dial func(context.Context, string) (net.Conn, error)) func(context.Context, string) (net.Conn, error) {
	if dial != nil {
		return dial
	}
	return func(ctx context.Context, addr string) (net.Conn, error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		return d.DialContext(ctx, "tcp", addr)
	}
}

// tellOnce calls reached after the first connection that dial makes.
func tellOnce(dial func(context.Context, string) (net.Conn, error), reached func()) func(context.Context, string) (net.Conn, error) {
	reached = sync.OnceFunc(reached)
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := dial(ctx, addr)
		if err == nil {
			reached()
		}
		return conn, err
	}
}

// machineOf is what this machine says of itself as it joins. Where a person works is
// nobody's business.
func machineOf(kind identity.Kind) *fealtyv1.Machine {
	if kind == identity.Admin || kind == identity.Readonly {
		return nil
	}
	f := hostinfo.Here()
	return &fealtyv1.Machine{Host: f.Host, Os: f.OS, Addresses: f.Addresses}
}
