package owner_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/test/logs"
	"github.com/fealty-io/fealty/test/wait"
)

// thief answers owners in place of a coordinator, and keeps what they send.
type thief struct {
	fealtyv1.UnimplementedRecoveryServiceServer
	// answer makes the offer and the history, for the binding of the owner's own
	// connection.
	answer func(ctx context.Context, binding []byte) (*fealtyv1.RecoveryOffer, *history.History, error)

	mu     sync.Mutex
	stolen []*fealtyv1.RecoverRequest // guarded by mu
	asked  int                        // guarded by mu
}

func (s *thief) Recover(stream fealtyv1.RecoveryService_RecoverServer) error {
	cs, ok := proof.ConnectionState(stream.Context())
	var binding []byte
	if ok {
		binding, _ = proof.Binding(cs)
	}
	s.mu.Lock()
	s.asked++
	s.mu.Unlock()
	offer, h, err := s.answer(stream.Context(), binding)
	if err != nil {
		return err
	}
	if err := stream.Send(&fealtyv1.RecoverResponse{Step: &fealtyv1.RecoverResponse_Offer{Offer: offer}}); err != nil {
		return err
	}
	if err := owner.Pages(h, func(page *fealtyv1.RecoveryHistory) error {
		return stream.Send(&fealtyv1.RecoverResponse{Step: &fealtyv1.RecoverResponse_History{History: page}})
	}); err != nil {
		return err
	}
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.stolen = append(s.stolen, req)
	s.mu.Unlock()
	return stream.Send(&fealtyv1.RecoverResponse{Step: &fealtyv1.RecoverResponse_Progress{Progress: offer.GetProgress()}})
}

// serve serves the thief over TLS of its own, and returns its address.
func (s *thief) serve(t testing.TB) string {
	t.Helper()
	return coordinatortest.ServeAlone(t, func(to grpc.ServiceRegistrar) {
		fealtyv1.RegisterRecoveryServiceServer(to, s)
	})
}

// Nobody but a coordinator that the share's own history admits gets a share: not
// somebody in between, nor another coordinator with the true history, nor one with
// a history of its own making.
func TestNobodyElseGetsAShare(t *testing.T) {
	t.Parallel()
	f, p := coordinatortest.NewOwnedFleet(t, nil)
	alice := p.ShareFile(f.Store, "alice")
	trueManifest := f.State().Manifest
	coordinatortest.LoseKeeper(f)
	g, err := f.C.Parts().Secrets.OwnerRecovery.Open(t.Context())
	coordinatortest.WantOnly(t, "open", err, "")
	_, own, err := ed25519.GenerateKey(rand.Reader)
	coordinatortest.WantOnly(t, "key", err, "")
	mine, err := keyring.NewEphemeral()
	coordinatortest.WantOnly(t, "recipient", err, "")

	// offerBy is an offer for h, proven over binding by key, to the thief's recipient.
	offerBy := func(key ed25519.PrivateKey, cluster string, head history.Hash, binding []byte) *fealtyv1.RecoveryOffer {
		attempt := make([]byte, 16)
		claim, evidence, err := proof.ProveRecovery(key,
			proof.RecoveryTranscript{Cluster: cluster, Attempt: attempt, Binding: binding, Recipient: mine.Public(),
				Head: head[:]})
		if err != nil {
			t.Error(err)
		}
		return &fealtyv1.RecoveryOffer{Cluster: cluster, Attempt: attempt, Recipient: mine.Public(), Key: claim,
			Evidence: evidence}
	}
	// realOffer is what the true coordinator says to somebody in between.
	realOffer := func(ctx context.Context) (*fealtyv1.RecoveryOffer, *history.History, error) {
		conn, err := grpc.NewClient("passthrough:///"+f.Addr,
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true,
				MinVersion: tls.VersionTLS13})))
		if err != nil {
			return nil, nil, err
		}
		defer conn.Close()
		stream, err := fealtyv1.NewRecoveryServiceClient(conn).Recover(ctx)
		if err != nil {
			return nil, nil, err
		}
		first, err := stream.Recv()
		return first.GetOffer(), g.History(), err
	}
	// forge makes a history whose manifest admits the thief, signed by key.
	forge := func(key ed25519.PrivateKey, after *history.History) *history.History {
		text := bytes.ReplaceAll(trueManifest.Bytes(), []byte(f.C.EnrolmentKey()),
			[]byte(proof.KeyClaim(own.Public().(ed25519.PublicKey))))
		m, err := manifest.Parse(text)
		coordinatortest.WantOnly(t, "parse", err, "")
		tr := history.Genesis(m)
		tr.MeshCAKey, tr.Salt = [32]byte{1}, history.Salt{1}
		for _, o := range m.Seed.People() {
			tr.ShareCommitments = append(tr.ShareCommitments,
				history.ShareCommitment{Owner: o.Name, Hash: alice.Share.Commitment(coordinatortest.Cluster, 1)})
		}
		st := coordinatortest.NewMemStore()
		_, err = history.New(st).Append(t.Context(), nil, tr, m, key)
		coordinatortest.WantOnly(t, "append", err, "")
		h, err := history.New(st).Load(t.Context())
		coordinatortest.WantOnly(t, "load", err, "")
		if after != nil {
			h.Head = after.Head // the true one's signature, over another link
		}
		return h
	}
	headOf := func(h *history.History) history.Hash { return sha256.Sum256(h.Links[len(h.Links)-1]) }

	for _, tc := range []struct {
		name   string
		want   errcode.Code
		answer func(ctx context.Context, binding []byte) (*fealtyv1.RecoveryOffer, *history.History, error)
	}{
		{"relay of the true coordinator's offer", errcode.RecoveryUnproven,
			func(ctx context.Context, _ []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				return realOffer(ctx)
			}},
		{"relay with the thief's recipient", errcode.RecoveryUnproven,
			func(ctx context.Context, _ []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				o, h, err := realOffer(ctx)
				if o != nil {
					o.Recipient = mine.Public()
				}
				return o, h, err
			}},
		{"true history, key of no coordinator", errcode.RecoveryUnproven,
			func(_ context.Context, b []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				return offerBy(own, coordinatortest.Cluster, g.Head().Hash, b), g.History(), nil
			}},
		{"true history, claimed key of the coordinator", errcode.RecoveryUnproven,
			func(_ context.Context, b []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				o := offerBy(own, coordinatortest.Cluster, g.Head().Hash, b)
				o.Key = f.C.EnrolmentKey()
				return o, g.History(), nil
			}},
		{"true history, no proof", errcode.RecoveryUnproven,
			func(_ context.Context, b []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				o := offerBy(own, coordinatortest.Cluster, g.Head().Hash, b)
				o.Evidence = nil
				return o, g.History(), nil
			}},
		{"coordinator's key over another head", errcode.RecoveryUnproven,
			func(_ context.Context, b []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				return offerBy(f.C.Parts().Self.PrivateKey(), coordinatortest.Cluster, history.Hash{1},
					b), g.History(), nil
			}},
		{"history of the thief's own seed", errcode.RecoveryHistory,
			func(_ context.Context, b []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				h := forge(own, nil)
				return offerBy(own, coordinatortest.Cluster, headOf(h), b), h, nil
			}},
		{"forged link under the true head record", errcode.RecoveryHistory,
			func(_ context.Context, b []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				h := forge(own, g.History())
				return offerBy(own, coordinatortest.Cluster, headOf(h), b), h, nil
			}},
		{"history without links", errcode.RecoveryHistory,
			func(_ context.Context, b []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				return offerBy(own, coordinatortest.Cluster, g.Head().Hash,
					b), &history.History{Head: g.History().Head}, nil
			}},
		{"history without manifests", errcode.RecoveryHistory,
			func(_ context.Context, b []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				return offerBy(own, coordinatortest.Cluster, g.Head().Hash, b), &history.History{Head: g.History().Head,
					Links: g.History().Links, Manifests: map[manifest.Hash][]byte{}}, nil
			}},
		{"another cluster", errcode.PeerOtherCluster,
			func(_ context.Context, b []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				return offerBy(own, "other.example", g.Head().Hash, b), g.History(), nil
			}},
		{"no attempt", errcode.RecoveryUnproven,
			func(_ context.Context, b []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				o := offerBy(own, coordinatortest.Cluster, g.Head().Hash, b)
				o.Attempt = nil
				return o, g.History(), nil
			}},
		{"an empty offer", errcode.RecoveryUnproven,
			func(context.Context, []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
				return nil, g.History(), nil
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &thief{answer: tc.answer}
			_, err := coordinatortest.BringTo(t, s.serve(t), alice, recovery.Options{Endpoint: "thief"})
			coordinatortest.WantCode(t, err, tc.want)
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.stolen) > 0 || s.asked != 1 {
				t.Errorf("asked %d times, and %d requests were stolen", s.asked, len(s.stolen))
			}
		})
	}
	// The owner's knowledge beside the file stops it too, at the true coordinator.
	_, err = f.Bring(alice, recovery.Options{Expect: recovery.Expect{Manifest: manifest.Hash{1}}})
	coordinatortest.WantCode(t, err, errcode.RecoveryUnexpected)
	_, err = f.Bring(alice, recovery.Options{Expect: recovery.Expect{Pin: [32]byte{1}}})
	coordinatortest.WantCode(t, err, errcode.RecoveryUnexpected)
	if kept := gatheredIn(t, f.Store); len(kept) > 0 {
		t.Errorf("shares were kept: %v", kept)
	}
	// The harness works: with the coordinator's own key over the owner's connection a
	// share comes.
	honest := &thief{answer: func(_ context.Context, b []byte) (*fealtyv1.RecoveryOffer, *history.History, error) {
		return offerBy(f.C.Parts().Self.PrivateKey(), coordinatortest.Cluster, g.Head().Hash, b), g.History(), nil
	}}
	_, err = coordinatortest.BringTo(t, honest.serve(t), alice,
		recovery.Options{Expect: recovery.Expect{Manifest: trueManifest.Hash(), Pin: alice.RootPin}})
	coordinatortest.WantOnly(t, "bring to who has the key", err, "")
	if len(honest.stolen) != 1 {
		t.Fatalf("%d requests", len(honest.stolen))
	}
	// Even then it is bound to one attempt, cluster and owner.
	for name, a := range map[string]keyring.Attempt{
		"attempt": {ID: recovery.ID{9}.String(), Cluster: coordinatortest.Cluster, Owner: "alice"},
		"cluster": {ID: recovery.ID{}.String(), Cluster: "other.example", Owner: "alice"},
		"owner":   {ID: recovery.ID{}.String(), Cluster: coordinatortest.Cluster, Owner: "bob"},
	} {
		if _, err := mine.Open(a, honest.stolen[0].GetShare()); err == nil {
			t.Errorf("it opens for another %s", name)
		}
	}
}

// Streams of owners are bounded in number, and by source.
func TestRecoveriesAreBounded(t *testing.T) {
	t.Parallel()
	f, p := coordinatortest.NewOwnedFleet(t, nil)
	alice := p.ShareFile(f.Store, "alice")
	coordinatortest.LoseKeeper(f)
	r := f.C.Parts().Secrets.OwnerRecovery.Places()
	var held []*ratelimit.Slot
	for range owner.MaxPerSource {
		place, err := r.Enter(t.Context(), "127.0.0.1", coordinatortest.Epoch0)
		coordinatortest.WantOnly(t, "enter", err, "")
		held = append(held, place)
	}
	_, err := f.Bring(alice, recovery.Options{})
	coordinatortest.WantCode(t, err, errcode.RateLimited)
	for _, place := range held {
		place.Leave()
	}
	_, err = f.Bring(alice, recovery.Options{})
	coordinatortest.WantOnly(t, "bring", err, "")
	// A stream gives its place back a moment after its caller has the answer.
	wait.Until(t, "streams that ended are not counted", func() bool { return r.InUse() == 0 })
	for range 2 * owner.RecoveryBurst { // it refills meanwhile
		if _, err = f.Bring(alice, recovery.Options{DryRun: true}); err != nil {
			break
		}
	}
	coordinatortest.WantCode(t, err, errcode.RateLimited)
}

// I8: after a recovery, with its failures, neither store nor log nor metrics nor
// errors hold seed, shares, derived keys or mesh CA key in any usual form.
func TestRecoveryLeaksNothing(t *testing.T) {
	t.Parallel()
	var log logs.Text
	f, p := coordinatortest.NewOwnedFleet(t, func(c *coordinator.Config) {
		c.Log = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	files := make(map[string]keyring.ShareFile)
	for _, n := range p.Names {
		files[n] = p.ShareFile(f.Store, n)
	}
	coordinatortest.LoseKeeper(f)
	var said bytes.Buffer // errors and answers, as whoever called saw them
	say := func(p any, err error) { fmt.Fprintf(&said, "%v %+v %v\n", p, p, err) }
	wrong := files["bob"]
	wrong.Share = otherShare(t, wrong.Share)
	say(f.Bring(wrong, recovery.Options{}))
	say(f.BringRaw(wrong, nil))
	say(f.BringRaw(files["alice"], func(_ *fealtyv1.RecoveryOffer, r *fealtyv1.RecoverRequest) { r.Owner = "bob" }))
	say(f.Bring(files["alice"], recovery.Options{}))
	f.Faults.FailNext("rekey.before-swap", 1, coordinatortest.ErrCrash)
	say(f.Bring(files["carol"], recovery.Options{}))
	gathered, err := f.Store.List(t.Context(), "")
	coordinatortest.WantOnly(t, "list", err, "")
	// It may be back by itself before that: the shares are in.
	progress, err := f.Bring(files["carol"], recovery.Options{})
	say(progress, err)
	if (err != nil || !progress.Recovered) && errcode.Of(err).Code != errcode.RecoveryNotNeeded {
		t.Fatalf("%+v, %v", progress, err)
	}
	f.Await(authority.Ready)
	// The coordinator that brought it back says so once the shares are gone, a moment after
	// it is ready.
	wait.Until(t, "the log tells of the recovery", func() bool {
		return bytes.Contains(log.Bytes(), []byte("recovered by its owners"))
	})
	say(files, nil)

	s := f.State()
	mesh, err := s.MeshCA().Key().Bytes()
	coordinatortest.WantOnly(t, "mesh key", err, "")
	thief := coordinatortest.Steal(s)
	secrets := map[string][]byte{
		"seed": thief.Seed.Reveal(), "mesh CA key": mesh, "record MAC key": thief.Keys.RecordMAC(), "store " +
			"key": thief.Keys.StoreSeal(),
		"wrong share": wrong.Share.Reveal(),
	}
	for n, file := range files {
		secrets["share of "+n] = file.Share.Reveal()
	}
	for n, k := range p.Keys {
		secrets["key of "+n] = []byte(k.String())
	}
	after, err := f.Store.List(t.Context(), "")
	coordinatortest.WantOnly(t, "list", err, "")
	places := map[string][]byte{"log": log.Bytes(), "errors and answers": said.Bytes()}
	for _, e := range slices.Concat(gathered.Entries, after.Entries) {
		places["store "+e.Key] = append(places["store "+e.Key], e.Value...)
	}
	families, err := f.C.Registry().Gather()
	coordinatortest.WantOnly(t, "gather", err, "")
	places["metrics"] = []byte(fmt.Sprint(families))
	if !bytes.Contains(places["metrics"], []byte("fealty_recovery_shares_total")) ||
		!bytes.Contains(places["log"], []byte("recovered by its owners")) {
		t.Error("log or metrics say nothing of the recovery: this test looks at nothing")
	}
	found := 0
	for where, text := range places {
		for what, secret := range secrets {
			if leaked := coordinatortest.FormOf(text, secret); leaked != "" {
				t.Errorf("%s holds the %s in %s", where, what, leaked)
			}
		}
		if coordinatortest.FormOf(text, []byte("fealty")) != "" {
			found++
		}
	}
	if found == 0 {
		t.Error("the scan finds nothing at all")
	}
}
