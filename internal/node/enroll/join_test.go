package enroll_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/node/verdict"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
)

func TestJoin(t *testing.T) {
	f := nodetest.New(t)
	n := nodetest.NewMachine(f)
	var steps []enroll.StepName
	cfg := n.JoinConfig(enroll.ByToken(f.Token()))
	cfg.Progress = func(s enroll.Step) {
		if s.Err != nil {
			t.Errorf("step %s: %v", s.Name, s.Err)
		}
		steps = append(steps, s.Name)
	}
	r, err := enroll.Join(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if want := []enroll.StepName{enroll.StepToken, enroll.StepReach, enroll.StepTrust, enroll.StepClock, enroll.StepProof, enroll.StepIdentity, enroll.StepSnapshot}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
	if r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED || r.ID.Kind() != identity.Data || r.Coordinator != signedtest.Coordinator || !slices.Equal(r.Coordinators, []string{signedtest.Coordinator}) {
		t.Errorf("result %+v", r)
	}
	if r.Autonomy != 24*time.Hour {
		t.Errorf("autonomy %v, want what the policy allows", r.Autonomy)
	}
	if n.Has(dir.NextName) || n.Has(dir.JournalName) {
		t.Error("a key or a journal is left behind")
	}
	l := n.MustLoad()
	if l.Me.ID != r.ID || trustOf(l) != 10 || bootOf(l) == 0 || l.TrustState.Ready(f.Clock()) != "" {
		t.Errorf("opened as %v with trust %d, bootstrap %d, unready %q", l.Me.ID, trustOf(l), bootOf(l), l.TrustState.Ready(f.Clock()))
	}
	store, err := state.OpenStore(n.Disk.FS(), n.Dir)
	f.Must(err)
	defer store.Close()
	if _, err := n.Load(); !errors.Is(err, errcode.NodeLocked) {
		t.Errorf("a second process: %v", err)
	}
}

func TestJoinByKey(t *testing.T) {
	f := nodetest.New(t)
	n := nodetest.NewMachine(f)
	r, err := n.Join(f.KeyProof())
	if err != nil || r.ID.Name() != "node-k" {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, c := range []struct {
		name      string
		cluster   string
		addresses []string
		pin       identity.KeyID
		key       ed25519.PrivateKey
	}{
		{"cluster", "Prod", []string{"a:1"}, identity.KeyID{1}, make([]byte, 64)},
		{"no address", "prod", nil, identity.KeyID{1}, make([]byte, 64)},
		{"no port", "prod", []string{"a"}, identity.KeyID{1}, make([]byte, 64)},
		{"no pin", "prod", []string{"a:1"}, identity.KeyID{}, make([]byte, 64)},
		{"no key", "prod", []string{"a:1"}, identity.KeyID{1}, nil},
	} {
		if _, err := enroll.ByKey(c.cluster, c.addresses, c.pin, c.key); !errors.Is(err, errcode.BadValue) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A join whose answer was lost is the same request again: the cluster sees one
// member, and one key.
func TestJoinRepeatsItsKey(t *testing.T) {
	f := nodetest.New(t)
	n := nodetest.NewMachine(f)
	token := enroll.ByToken(f.Token())
	f.Do(func() { f.Faults.LoseJoins = 2 })
	for range 2 {
		if _, err := n.Join(token); !errors.Is(err, errcode.Unreachable) && !errors.Is(err, errcode.NodeNoCoordinator) {
			t.Fatalf("with a lost answer: %v", err)
		}
		if _, err := n.Load(); !errors.Is(err, errcode.NodeNotJoined) {
			t.Fatalf("opened without a grant: %v", err)
		}
	}
	r, err := n.Join(token)
	if err != nil || r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
		t.Fatalf("%+v, %v", r, err)
	}
	if m := f.Member(r.ID); len(m.Older) != 0 {
		t.Errorf("the member had %d keys before", len(m.Older))
	}
}

// Another join does not take the key of an earlier one: a key is one member's.
func TestJoinAnotherKeyForAnotherJoin(t *testing.T) {
	f := nodetest.New(t)
	n := nodetest.NewMachine(f)
	f.Do(func() { f.Faults.LoseJoins = 1 })
	if _, err := n.Join(enroll.ByToken(f.Token())); err == nil {
		t.Fatal("joined without an answer")
	}
	r, err := n.Join(enroll.ByToken(f.Token()))
	if err != nil || r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED {
		t.Fatalf("%+v, %v", r, err)
	}
	keys := make(map[identity.KeyID]bool)
	for _, m := range f.Members {
		keys[m.Key] = true
	}
	if len(keys) != 2 {
		t.Errorf("two members with %d keys", len(keys))
	}
}

func TestJoinRefusals(t *testing.T) {
	for _, c := range []struct {
		name  string
		given func(f *nodetest.Fleet) enroll.Proof
		want  errcode.Code
		at    enroll.StepName
	}{
		{"refused by the coordinator", func(f *nodetest.Fleet) enroll.Proof {
			f.Faults.RefuseJoin = errcode.New(errcode.TokenSpent)
			return enroll.ByToken(f.Token())
		}, errcode.TokenSpent, enroll.StepProof},
		{"refused for now", func(f *nodetest.Fleet) enroll.Proof {
			f.Faults.RefuseJoin = errcode.New(errcode.RecoveryMode)
			return enroll.ByToken(f.Token())
		}, errcode.RecoveryMode, enroll.StepProof},
		{"without a reason", func(f *nodetest.Fleet) enroll.Proof {
			f.Faults.RefuseJoin = status.Error(codes.Internal, "oops")
			return enroll.ByToken(f.Token())
		}, errcode.NodeNoCoordinator, enroll.StepProof},
		{"clock ahead", func(f *nodetest.Fleet) enroll.Proof {
			f.Faults.Skew = -3 * time.Minute
			return enroll.ByToken(f.Token())
		}, errcode.JoinClockWrong, enroll.StepClock},
		{"clock behind", func(f *nodetest.Fleet) enroll.Proof {
			f.Faults.Skew = 3 * time.Minute
			return enroll.ByToken(f.Token())
		}, errcode.JoinClockWrong, enroll.StepClock},
		{"another root", func(f *nodetest.Fleet) enroll.Proof {
			token := f.Token()
			token.Pin[0] ^= 1
			return enroll.ByToken(token)
		}, errcode.TokenForeign, enroll.StepTrust},
		{"another root, by key", func(f *nodetest.Fleet) enroll.Proof {
			pin := identity.KeyOf(f.Root)
			pin[0] ^= 1
			return f.KeyProofOf(pin)
		}, errcode.PeerUntrusted, enroll.StepTrust},
		{"nobody there", func(f *nodetest.Fleet) enroll.Proof { f.Faults.Down["all"] = true; return enroll.ByToken(f.Token()) }, errcode.NodeNoCoordinator, enroll.StepReach},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := nodetest.New(t)
			n := nodetest.NewMachine(f)
			cfg := n.JoinConfig(c.given(f))
			failedAt := enroll.StepName("")
			cfg.Progress = func(s enroll.Step) {
				if s.Err != nil {
					failedAt = s.Name
				}
			}
			_, err := enroll.Join(t.Context(), cfg)
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			if failedAt != c.at {
				t.Errorf("failed at step %q, want %q", failedAt, c.at)
			}
			if _, err := n.Load(); !errors.Is(err, errcode.NodeNotJoined) {
				t.Errorf("after a refusal it opens: %v", err)
			}
		})
	}
}

// A clock that is ahead by up to two minutes, or behind by up to 30 seconds, keeps no node
// out. That certificates begin as early as the latter needs is for package pki to show.
func TestJoinWithAClockThatIsOff(t *testing.T) {
	for name, skew := range map[string]time.Duration{ // of the cluster, as this node sees it
		"ahead by 110 s": -110 * time.Second,
		"behind by 29 s": 29 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			f := nodetest.New(t)
			f.Faults.Skew = skew
			if _, err := nodetest.NewMachine(f).Join(enroll.ByToken(f.Token())); err != nil {
				t.Error(err)
			}
		})
	}
}

// Each address is tried in turn, and its failure is kept.
func TestJoinTriesEachAddress(t *testing.T) {
	f := nodetest.New(t, "a.example:1", "b.example:2", "c.example:3")
	f.Faults.Down["a.example:1"], f.Faults.Down["b.example:2"] = true, true
	r, err := nodetest.NewMachine(f).Join(enroll.ByToken(f.Token("a.example:1", "b.example:2", "c.example:3")))
	if err != nil || r.Coordinator != "c.example:3" {
		t.Fatalf("%+v, %v", r, err)
	}
	f.Faults.Down["c.example:3"] = true
	_, err = nodetest.NewMachine(f).Join(enroll.ByToken(f.Token("a.example:1", "b.example:2", "c.example:3")))
	var tried []string
	for _, e := range nodetest.Flatten(err) {
		if at, ok := e.(*verdict.AddressError); ok {
			tried = append(tried, at.Address)
		}
	}
	if want := []string{"a.example:1", "b.example:2", "c.example:3"}; !slices.Equal(tried, want) {
		t.Errorf("the error knows of %v, want %v: %v", tried, want, err)
	}
	if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
		t.Errorf("the network's error is not in %v", err)
	}
}

// A token is good at addresses that it does not name, and the node goes on there. The
// pin in it still says whom to believe.
func TestJoinElsewhere(t *testing.T) {
	f := nodetest.New(t, "old.example:1", "nat.example:2")
	f.Faults.Down["old.example:1"] = true
	p, err := enroll.ByToken(f.Token("old.example:1")).At([]string{"nat.example:2"}, "--coordinator")
	if err != nil {
		t.Fatal(err)
	}
	n := nodetest.NewMachine(f)
	r, err := n.Join(p)
	if err != nil || r.Coordinator != "nat.example:2" || !slices.Contains(r.Coordinators, "nat.example:2") {
		t.Fatalf("%+v, %v", r, err)
	}
	other := nodetest.New(t, "nat.example:2") // another cluster there
	other.Tokens = f.Tokens
	_, err = nodetest.NewMachine(other).Join(p)
	if e := errcode.Of(err); !errors.Is(err, errcode.TokenForeign) || !strings.Contains(e.Why+e.Do, "--coordinator") {
		t.Errorf("a coordinator with another root: %v", err)
	}
	for _, bad := range [][]string{nil, {"nat.example"}} {
		if _, err := enroll.ByToken(f.Token()).At(bad, "--coordinator"); !errors.Is(err, errcode.BadValue) {
			t.Errorf("addresses %q: %v", bad, err)
		}
	}
}

// A grant of an enemy, even one who holds a coordinator's certificate, is worth
// nothing, and the next try works.
func TestJoinVerifiesTheGrant(t *testing.T) {
	parts := make(map[string]bool)
	for _, c := range nodetest.EnemyGrants {
		parts[c.Part] = true
		t.Run(c.Name, func(t *testing.T) {
			f := nodetest.New(t)
			n := nodetest.NewMachine(f)
			token := enroll.ByToken(f.Token())
			f.Do(func() { f.Faults.EditGrant = func(g *fealtyv1.JoinGrant) { c.Edit(f, g) } })
			_, err := n.Join(token)
			refused, ok := errors.AsType[*state.GrantError](err)
			if !errors.Is(err, errcode.JoinGrantRefused) || !ok || refused.Part != c.Part {
				t.Fatalf("%v, want a refusal of the %s", err, c.Part)
			}
			if _, err := n.Load(); !errors.Is(err, errcode.NodeNotJoined) {
				t.Fatalf("after an enemy's grant it opens: %v", err)
			}
			f.Do(func() { f.Faults.EditGrant = nil })
			if r, err := n.Join(token); err != nil || r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
				t.Fatalf("the next try: %+v, %v", r, err)
			}
		})
	}
	for _, part := range []string{"outcome", "chain", "root", "root statement", "trust bundle", "node_bootstrap"} {
		if !parts[part] {
			t.Errorf("no case refuses the %s", part)
		}
	}
}

func TestJoinExisting(t *testing.T) {
	f := nodetest.New(t)
	n := nodetest.NewMachine(f)
	n.MustJoin()
	before := n.Read(dir.SVIDName)
	if _, err := n.Join(enroll.ByToken(f.Token())); !errors.Is(err, errcode.NodeJoined) {
		t.Fatalf("a join over an identity: %v", err)
	}
	other := nodetest.New(t)
	cfg := n.JoinConfig(enroll.ByToken(other.Token()))
	cfg.Rejoin, cfg.Dial = true, other.Dial
	if _, err := enroll.Join(t.Context(), cfg); !errors.Is(err, errcode.NodeJoined) {
		t.Fatalf("a rejoin to another root: %v", err)
	}
	if !bytes.Equal(before, n.Read(dir.SVIDName)) {
		t.Fatal("the identity changed")
	}
	cfg = n.JoinConfig(enroll.ByToken(f.Token()))
	cfg.Rejoin = true
	r, err := enroll.Join(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if l := n.MustLoad(); l.Me.ID != r.ID || l.TrustState.Ready(f.Clock()) != "" {
		t.Fatalf("after a rejoin: %v, %s", l.Me.ID, l.TrustState.Ready(f.Clock()))
	}
}

// Marks of another cluster mean nothing to the next one, whatever
// its name: a wipe that was cut off leaves marks behind.
func TestJoinAfterAnotherCluster(t *testing.T) {
	other := nodetest.New(t)
	other.Version = 1000
	left := nodetest.NewMachine(other)
	left.MustJoin()
	f := nodetest.New(t)
	n := nodetest.NewMachine(f)
	for _, name := range []string{dir.MarksAName, dir.MarksBName, dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Active), dir.SVIDName} {
		n.Disk.Put(n.Path(name), left.Read(name))
	}
	n.MustJoin()
	l := n.MustLoad()
	if ready := l.TrustState.Ready(f.Clock()); ready != "" || trustOf(l) != 10 || len(l.Refused) != 0 || len(l.Earlier) != 0 {
		t.Errorf("%s, version %d, %v, %v", ready, trustOf(l), l.Refused, l.Earlier)
	}
	if mark, _ := l.TrustState.Marks.Get(snapshot.ScopeTrustBundle, snapshot.ClusterSubject()); mark.ConfigVersion != 10 {
		t.Errorf("the mark is at %d", mark.ConfigVersion)
	}
}

func TestJoinKinds(t *testing.T) {
	f := nodetest.New(t)
	for _, kind := range identity.Kinds() {
		n := nodetest.NewMachine(f)
		cfg := n.JoinConfig(enroll.ByToken(f.Token()))
		cfg.Kind = kind
		_, err := enroll.Join(t.Context(), cfg)
		switch kind {
		case identity.Data, identity.Witness, identity.Shard, identity.Operator, identity.Provider:
			if err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		default:
			if !errors.Is(err, errcode.BadValue) {
				t.Errorf("%s joins: %v", kind, err)
			}
		}
	}
}

// A power cut at any point of a join leaves a machine that has joined or has not.
// Doing the same join again works, by the same key, and one that was durable is
// finished without asking anybody.
func TestJoinCrash(t *testing.T) {
	f := nodetest.New(t)
	var n *nodetest.Machine
	var token enroll.Proof
	finished := 0
	nodetest.Crash(t, []durabletest.After{durabletest.Synced}, func() (*durabletest.Disk, func() error) {
		n, token = nodetest.NewMachine(f), enroll.ByToken(f.Token())
		return n.Disk, func() error { _, err := n.Join(token); return err }
	}, func(t *testing.T, done bool) {
		journaled, asked := n.Has(dir.JournalName), f.Seen.Joins
		r, err := n.Join(token)
		switch {
		case journaled && (err != nil || f.Seen.Joins != asked):
			t.Errorf("a durable join was not finished alone: %v, asked %d times", err, f.Seen.Joins-asked)
		case journaled:
			finished++
		case err != nil && !errors.Is(err, errcode.NodeJoined):
			t.Errorf("the same join again: %v", err)
		}
		if m := f.Member(r.ID); len(m.Older) != 0 {
			t.Error("the second try used another key")
		}
		l, err := n.Load()
		if err != nil {
			t.Error(err)
			return
		}
		if ready := l.TrustState.Ready(f.Clock()); ready != "" || bootOf(l) == 0 {
			t.Errorf("opened, and unready: %s", ready)
		}
	})
	if finished == 0 {
		t.Error("no power cut left a durable join that was not finished")
	}
}

// However a disk comes back from a power cut amid a rejoin, the node is the old
// member or the new one, whole: never a mix.
func TestCommitCrash(t *testing.T) {
	f := nodetest.New(t)
	before := nodetest.NewMachine(f)
	old := before.MustJoin().ID
	// The new identity, as a rejoin writes it down.
	f.TrustChanged(func() {})
	var entry state.Journal
	for call := 1; entry.Anchor.ID.IsZero(); call++ {
		after := before.Clone()
		cfg := after.JoinConfig(enroll.ByToken(f.Token()))
		cfg.Rejoin = true
		after.Disk.FailAt(call, durabletest.ErrPowerCut)
		_, err := enroll.Join(t.Context(), cfg)
		if err == nil {
			t.Fatal("no power cut left a journal")
		}
		after.Disk.Restart(durabletest.Synced)
		if after.Has(dir.JournalName) {
			f.Must(dir.Unseal(after.Read(dir.JournalName), &entry))
		}
	}

	var n *nodetest.Machine
	nodetest.Crash(t, durabletest.Afters(), func() (*durabletest.Disk, func() error) {
		n = before.Clone()
		return n.Disk, func() error {
			store, err := state.OpenStore(n.Disk.FS(), n.Dir)
			if err != nil {
				return err
			}
			defer store.Close()
			store.Pin = entry.Anchor.Pin
			return store.CommitJoin(entry)
		}
	}, func(t *testing.T, done bool) {
		l, err := n.Load()
		if err != nil {
			t.Errorf("no member any more: %v", err)
			return
		}
		want, trust := entry.Anchor.ID, uint64(11)
		if l.Me.ID == old && !done {
			want, trust = old, 10
		}
		ready := l.TrustState.Ready(f.Clock())
		if l.Me.ID != want || trustOf(l) != trust || l.SVID.Leaf().URIs[0].String() != want.String() || ready != "" {
			t.Errorf("%v with trust %d and the certificate of %v: %s", l.Me.ID, trustOf(l), l.SVID.Leaf().URIs, ready)
		}
		if boot, _ := l.TrustState.Bootstrap(); boot.Node != want {
			t.Errorf("%v has the bootstrap of %v", l.Me.ID, boot.Node)
		}
		if n.Has(dir.JournalName) {
			t.Error("the journal is left behind")
		}
	})
}

// A disk error at any point of a join is an error, and the same join works then.
func TestJoinDiskErrors(t *testing.T) {
	f := nodetest.New(t)
	for _, errno := range []error{syscall.ENOSPC, syscall.EIO} {
		for call := 1; ; call += nodetest.EveryNth(4) {
			n, token := nodetest.NewMachine(f), enroll.ByToken(f.Token())
			n.Disk.FailAt(call, errno)
			_, err := n.Join(token)
			if !n.Disk.Failed() {
				break
			}
			if err == nil {
				continue // what failed was sweeping
			}
			_, err = n.Join(token)
			if err != nil && !errors.Is(err, errcode.NodeJoined) {
				t.Fatalf("%v at call %d, then again: %v", errno, call, err)
			}
			if _, err := n.Load(); err != nil {
				t.Fatalf("%v at call %d: %v", errno, call, err)
			}
		}
	}
}

// A node whose identity others can read is not opened.
func TestExposedIdentity(t *testing.T) {
	f := nodetest.New(t)
	n := nodetest.NewMachine(f)
	n.MustJoin()
	n.Disk.Chmod(n.Path(dir.SVIDName), 0o644)
	if _, err := n.Load(); !errors.Is(err, errcode.NodeStateCorrupt) {
		t.Fatal(err)
	}
}

func TestJoinCancelled(t *testing.T) {
	f := nodetest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cfg := nodetest.NewMachine(f).JoinConfig(enroll.ByToken(f.Token()))
	cfg.Progress = func(s enroll.Step) {
		if s.Name == enroll.StepReach {
			cancel()
		}
	}
	if _, err := enroll.Join(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// trustOf is the version of the trust bundle in use, bootOf that of the node_bootstrap; 0 for none.
func trustOf(l *state.Loaded) uint64 {
	return nodetest.VersionOf(l.TrustState, snapshot.ScopeTrustBundle)
}
func bootOf(l *state.Loaded) uint64 {
	return nodetest.VersionOf(l.TrustState, snapshot.ScopeNodeBootstrap)
}
