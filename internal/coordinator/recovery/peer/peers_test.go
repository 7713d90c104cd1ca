package peer_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	coordinatorpeer "github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/test/logs"
)

// An empty replica becomes ready from a peer, without a human and without a transition,
// and the audit log shows who gave what to whom, by which proof.
func TestEmptyReplicaRecoversFromAPeer(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	r.Start()
	r.AwaitHead(f)
	a, b := f.State(), r.State()
	if !a.Secrets.Same(b.Secrets) || a.MeshKey != b.MeshKey || a.RootPin != b.RootPin || a.Head.Hash != b.Head.Hash ||
		b.Head.Index != 1 {
		t.Error("it is ready with other secrets, or at another head")
	}
	given, received := coordinatortest.Audited(f, "seed.given"), coordinatortest.Audited(f, "seed.received",
		"mesh.received")
	if len(given) != 1 || given[0].Target != "coordinator/coordinator-2" ||
		given[0].Actor != "spiffe://test.example/coordinator/coordinator-1" ||
		given[0].Fields["key"] != r.C.EnrolmentKey() ||
		given[0].Fields["head"] != a.Head.Hash.String() || given[0].Fields["proof"] == "" {
		t.Errorf("the audit log says of the giver %+v", given)
	}
	if len(received) != 2 || received[0].Fields["via"] != "peer" ||
		received[0].Fields["key"] != f.C.EnrolmentKey() || received[0].Fields["from"] != "coordinator-1" ||
		given[0].At.After(received[0].At) {
		t.Errorf("the audit log says of the taker %+v", received)
	}
	// It serves: a member joins at it, and both of them know the member.
	r.Member("node-a")
	if c := r.Catalog(); !strings.Contains(c, "node-a") || c != f.Catalog() {
		t.Errorf("the catalog is %s", c)
	}
}

// Several replicas that start at once are all ready, and so is each after a restart
// while another one runs.
func TestReplicasRecoverTogether(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 3, nil)
	for _, r := range rs {
		r.Start()
	}
	for _, r := range rs {
		r.AwaitHead(f)
	}
	f.Kill()
	f.Start()
	f.AwaitHead(rs[0])
	if got := len(coordinatortest.Audited(f, "seed.given")); got != 4 {
		t.Errorf("the seed was given %d times", got)
	}
}

// Of two peers the first of which fails, the second one's secrets count; and the
// failure of the first is in the log and in the metric.
func TestSecondPeerAfterTheFirst(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 2, nil)
	given := make(chan struct{})                   // by the first one
	gave := sync.OnceFunc(func() { close(given) }) // on a busy machine it may be asked again
	good := laterTo(t, f.Addr, given)
	bad := coordinatortest.ServePeer(t, &liar{key: rs[1].Key, state: f.State(),
		secrets: func(s *fealtyv1.PeerSecrets) { s.MeshCa = nil; gave() }})
	var log logs.Text
	rs[0].Link.Lie(coordinatortest.HideReplicas)
	rs[0].Config = func(c *coordinator.Config) {
		c.Peers = []string{bad, "dns:peers.example:" + portOf(good)}
		c.Machine.LookupHost = func(_ context.Context, name string) ([]string, error) {
			if name != "peers.example" {
				return nil, errors.New("no such name")
			}
			return []string{"127.0.0.1", "127.0.0.1"}, nil
		}
		c.Log = log.Logger(slog.LevelInfo)
	}
	rs[0].Start()
	rs[0].AwaitHead(f)
	if n := gathered(t, rs[0], "fealty_peer_recoveries_total", "outcome", "mesh"); n < 1 {
		t.Errorf("the metric counts %v failures", n)
	}
	if n := gathered(t, rs[0], "fealty_peer_recoveries_total", "outcome", "received"); n != 1 {
		t.Errorf("the metric counts %v", n)
	}
	if text := string(log.Bytes()); !strings.Contains(text, "peer recovery failed") ||
		!strings.Contains(text, "step=6") || !strings.Contains(text, bad) {
		t.Errorf("the log does not say that the first peer failed: %s", text)
	}
	took := coordinatortest.Audited(f, "seed.received")
	if len(took) != 1 || took[0].Fields["from"] != "coordinator-1" {
		t.Errorf("it recovered from %+v", took)
	}
}

// A name that does not resolve is a failure with its own name, and keeps nobody from
// being asked.
func TestPeerNameThatDoesNotResolve(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	r.Config = func(c *coordinator.Config) {
		c.Peers = []string{"dns:gone.example:7443"}
		c.Machine.LookupHost = func(context.Context, string) ([]string, error) {
			return nil,
				errors.New("no such host")
		}
	}
	r.Link.Lie(coordinatortest.HideReplicas)
	r.Start()
	_, err := askOnce(r, coordinatortest.Loaded(r))
	wantStep(t, err, peer.StepProof, "dns:gone.example:7443")
	r.Link.Lie(nil)
	r.AwaitHead(f)
}

// The store goes out of reach in the middle of a recovery: nothing is adopted, and once
// it is back the coordinator is ready by itself.
func TestStoreOutOfReachDuringPeerRecovery(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	cut := make(chan struct{})
	var once sync.Once
	r.Faults.Arm("peer.before-head", func() error {
		once.Do(func() { r.Link.Cut(errors.New("the store is gone")); close(cut) })
		return nil
	})
	r.Start()
	<-cut
	r.AwaitState("the reason", func(s *authority.State) bool { return strings.Contains(s.Reason, "step 6 (mesh)") })
	r.Link.Cut(nil)
	r.AwaitHead(f)
}

// A head that appears while a coordinator runs, and whose mesh CA key it has not: it
// asks for it, without a human, by the watch and by a call that finds out first.
func TestPeerRecoveryOfARunningCoordinator(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	r.Start()
	r.AwaitHead(f)
	refuse := errors.New("not now")
	r.Faults.Fail("peer.before-reread", refuse) // it does not take what is prepared
	if err := coordinatortest.SetPeople(f, coordinatortest.MoreCoordinators(t)); err != nil {
		t.Fatal(err)
	}
	r.AwaitHead(f)
	if got := len(coordinatortest.Audited(f, "seed.given")); got != 2 {
		t.Errorf("the seed was given %d times: it came back without a peer", got)
	}
	if got := coordinatortest.Audited(f, "mesh.prepared"); len(got) != 0 {
		t.Errorf("the key was prepared: %v", got)
	}

	// It does not hear of the next one; a call does.
	r.Link.Deafen(true)
	if err := coordinatortest.SetPeople(f, ""); err != nil {
		t.Fatal(err)
	}
	before := r.State()
	if _, err := r.Local().Token.CreateToken(r.Context(), &fealtyv1.CreateTokenRequest{Entry: "pool",
		Name: "n"}); err == nil && r.State() == before {
		t.Error("a token was made under an old head")
	}
	r.AwaitHead(f)
	r.Link.Deafen(false)
}

// The setter gives the new mesh CA key to a ready peer before the head moves, so that
// its crash right after the swap costs nothing: the peer adopts the head by itself.
func TestPreparedPeerSurvivesTheSetter(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 2, nil)
	r := rs[0]
	r.Start()
	r.AwaitHead(f)
	coordinatortest.AwaitReplica(r, func(r coordinatorpeer.Record) bool { return r.Phase == "ready" })
	before := r.State()
	// It dies with the answer of the swap.
	f.Faults.Arm("set.after-swap", func() error {
		f.Link.Cut(
			coordinatortest.ErrKilled)
		return coordinatortest.ErrCrash
	})
	if err := coordinatortest.SetPeople(f, coordinatortest.MoreCoordinators(t)); err == nil {
		t.Fatal("the setter did not crash")
	}
	f.Stop()
	r.AwaitState("the new head",
		func(s *authority.State) bool { return s.Phase == authority.Ready && s.Head.Index == 2 })
	after := r.State()
	if after.MeshKey == before.MeshKey || after.MeshKey != after.Head.MeshCAKey || after.Head.AuthorityEpoch != 2 {
		t.Errorf("it is at epoch %d with mesh CA key %s", after.Head.AuthorityEpoch, after.MeshKey)
	}
	took := coordinatortest.Audited(r, "mesh.prepared")
	if len(took) != 1 || took[0].Fields["from"] != "coordinator-1" ||
		took[0].Fields["mesh_ca_key"] != after.MeshKey.String() ||
		took[0].Actor != "spiffe://test.example/coordinator/coordinator-2" {
		t.Errorf("the audit log says %+v", took)
	}
	// And it gives what the next one needs, the setter too.
	rs[1].Start()
	rs[1].AwaitHead(r)
	f.Link.Cut(nil)
	f.Start()
	f.AwaitHead(r)
}

// For every coordinator that holds the seed the audit log shows where from, and whoever
// gave it had proof of whom it gave it to.
func TestAuditShowsWhereEverySeedCameFrom(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 3, nil)
	rs[0].Start()
	rs[0].AwaitHead(f)
	f.Kill() // the others have it from the first replica
	for _, r := range rs[1:] {
		r.Start()
		r.AwaitHead(rs[0])
	}
	s := rs[0].State()
	given, received := coordinatortest.Audited(f, "seed.given"), coordinatortest.Audited(f, "seed.received")
	if len(given) != 3 || len(received) != 3 {
		t.Fatalf("given %d times, received %d times", len(given), len(received))
	}
	holds := map[string]bool{f.C.EnrolmentKey(): true} // it made the seed
	for i, g := range given {
		key, err := proof.ParseKeyClaim(g.Fields["key"])
		coordinatortest.WantOnly(t, "key", err, "")
		evidence, err := base64.StdEncoding.DecodeString(g.Fields["proof"])
		coordinatortest.WantOnly(t, "proof", err, "")
		digest, err := base64.StdEncoding.DecodeString(g.Fields["transcript"])
		coordinatortest.WantOnly(t, "transcript", err, "")
		found, ok := s.Manifest.Match(identity.Coordinator, []string{"key:" + g.Fields["key"]})
		if !ok || found.Name != g.Fields["to"] || !ed25519.Verify(key, digest,
			evidence) || g.Fields["head"] != s.Head.Hash.String() {
			t.Errorf("hand-over %d is not to a coordinator of the manifest in force that proved itself: %+v", i, g)
		}
		// The giver held it, by an entry of before.
		j := slices.IndexFunc(received,
			func(e record.AuditEntry) bool { return strings.HasSuffix(e.Actor, "/"+found.Name) })
		if j < 0 || !holds[received[j].Fields["key"]] || received[j].At.Before(g.At) {
			t.Errorf("%s received it from nobody who held it: %+v", found.Name, received)
		}
		holds[g.Fields["key"]] = true
	}
}

func portOf(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
