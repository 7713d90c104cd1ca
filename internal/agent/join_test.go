package agent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"flag"
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
	"github.com/fealty-io/fealty/internal/durable/durabletest"
	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/identityform"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/verdict"
	"github.com/fealty-io/fealty/snapshot"
)

func TestJoin(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	var steps []enroll.StepName
	cfg := n.joinConfig(enroll.ByToken(f.token()))
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
	if r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED || r.ID.Kind() != identity.Data || r.Coordinator != coordinator || !slices.Equal(r.Coordinators, []string{coordinator}) {
		t.Errorf("result %+v", r)
	}
	if r.Autonomy != 24*time.Hour {
		t.Errorf("autonomy %v, want what the policy allows", r.Autonomy)
	}
	if n.has(dir.NextName) || n.has(dir.JournalName) {
		t.Error("a key or a journal is left behind")
	}
	a := n.mustOpen()
	defer a.Close()
	if a.me.ID != r.ID || trustVersion(a) != 10 || bootVersion(a) == 0 || a.unready() != "" {
		t.Errorf("opened as %v with trust %d, bootstrap %d, unready %q", a.me.ID, trustVersion(a), bootVersion(a), a.unready())
	}
	if _, err := n.open(); !errors.Is(err, explain.NodeLocked) {
		t.Errorf("a second process: %v", err)
	}
}

// keyOf makes the proof by a key that the fleet's manifest would name.
func (f *fleet) keyProof() enroll.Proof { return f.keyProofOf(identity.KeyOf(f.root)) }

// keyProofOf makes one that believes coordinators under the root of this pin.
func (f *fleet) keyProofOf(pin identity.KeyID) enroll.Proof {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	f.must(err)
	p, err := enroll.ByKey(testCluster, f.addresses(), pin, key)
	f.must(err)
	return p
}

func TestJoinByKey(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	r, err := n.join(f.keyProof())
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
		if _, err := enroll.ByKey(c.cluster, c.addresses, c.pin, c.key); !errors.Is(err, explain.BadValue) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A join whose answer was lost is the same request again: the cluster sees one
// member, and one key.
func TestJoinRepeatsItsKey(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	token := enroll.ByToken(f.token())
	f.do(func() { f.loseJoins = 2 })
	for range 2 {
		if _, err := n.join(token); !errors.Is(err, explain.Unreachable) && !errors.Is(err, explain.NodeNoCoordinator) {
			t.Fatalf("with a lost answer: %v", err)
		}
		if _, err := n.open(); !errors.Is(err, explain.NodeNotJoined) {
			t.Fatalf("opened without a grant: %v", err)
		}
	}
	r, err := n.join(token)
	if err != nil || r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
		t.Fatalf("%+v, %v", r, err)
	}
	if m := f.member(r.ID); len(m.older) != 0 {
		t.Errorf("the member had %d keys before", len(m.older))
	}
}

// Another join does not take the key of an earlier one: a key is one member's.
func TestJoinAnotherKeyForAnotherJoin(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	f.do(func() { f.loseJoins = 1 })
	if _, err := n.join(enroll.ByToken(f.token())); err == nil {
		t.Fatal("joined without an answer")
	}
	r, err := n.join(enroll.ByToken(f.token()))
	if err != nil || r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED {
		t.Fatalf("%+v, %v", r, err)
	}
	keys := make(map[identity.KeyID]bool)
	for _, m := range f.members {
		keys[m.key] = true
	}
	if len(keys) != 2 {
		t.Errorf("two members with %d keys", len(keys))
	}
}

func TestJoinRefusals(t *testing.T) {
	for _, c := range []struct {
		name  string
		given func(f *fleet) enroll.Proof
		want  explain.Code
		at    enroll.StepName
	}{
		{"refused by the coordinator", func(f *fleet) enroll.Proof {
			f.refuseJoin = explain.New(explain.TokenSpent)
			return enroll.ByToken(f.token())
		}, explain.TokenSpent, enroll.StepProof},
		{"refused for now", func(f *fleet) enroll.Proof {
			f.refuseJoin = explain.New(explain.RecoveryMode)
			return enroll.ByToken(f.token())
		}, explain.RecoveryMode, enroll.StepProof},
		{"without a reason", func(f *fleet) enroll.Proof {
			f.refuseJoin = status.Error(codes.Internal, "oops")
			return enroll.ByToken(f.token())
		}, explain.NodeNoCoordinator, enroll.StepProof},
		{"clock ahead", func(f *fleet) enroll.Proof { f.skew = -3 * time.Minute; return enroll.ByToken(f.token()) }, explain.JoinClockWrong, enroll.StepClock},
		{"clock behind", func(f *fleet) enroll.Proof { f.skew = 3 * time.Minute; return enroll.ByToken(f.token()) }, explain.JoinClockWrong, enroll.StepClock},
		{"another root", func(f *fleet) enroll.Proof {
			token := f.token()
			token.Pin[0] ^= 1
			return enroll.ByToken(token)
		}, explain.TokenForeign, enroll.StepTrust},
		{"another root, by key", func(f *fleet) enroll.Proof {
			pin := identity.KeyOf(f.root)
			pin[0] ^= 1
			return f.keyProofOf(pin)
		}, explain.PeerUntrusted, enroll.StepTrust},
		{"nobody there", func(f *fleet) enroll.Proof { f.down["all"] = true; return enroll.ByToken(f.token()) }, explain.NodeNoCoordinator, enroll.StepReach},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t)
			n := newNode(f)
			cfg := n.joinConfig(c.given(f))
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
			if _, err := n.open(); !errors.Is(err, explain.NodeNotJoined) {
				t.Errorf("after a refusal it opens: %v", err)
			}
		})
	}
}

// A clock that is ahead by up to two minutes, or behind by up to 30 seconds, keeps no node
// out. That certificates begin as early as the latter needs is for package ca to show.
func TestJoinWithAClockThatIsOff(t *testing.T) {
	for name, skew := range map[string]time.Duration{ // of the cluster, as this node sees it
		"ahead by 110 s": -110 * time.Second,
		"behind by 29 s": 29 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.skew = skew
			if _, err := newNode(f).join(enroll.ByToken(f.token())); err != nil {
				t.Error(err)
			}
		})
	}
}

// Each address is tried in turn, and its failure is kept.
func TestJoinTriesEachAddress(t *testing.T) {
	f := newFleet(t, "a.example:1", "b.example:2", "c.example:3")
	f.down["a.example:1"], f.down["b.example:2"] = true, true
	r, err := newNode(f).join(enroll.ByToken(f.token("a.example:1", "b.example:2", "c.example:3")))
	if err != nil || r.Coordinator != "c.example:3" {
		t.Fatalf("%+v, %v", r, err)
	}
	f.down["c.example:3"] = true
	_, err = newNode(f).join(enroll.ByToken(f.token("a.example:1", "b.example:2", "c.example:3")))
	var tried []string
	for _, e := range flatten(err) {
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
	f := newFleet(t, "old.example:1", "nat.example:2")
	f.down["old.example:1"] = true
	p, err := enroll.ByToken(f.token("old.example:1")).At([]string{"nat.example:2"}, "--coordinator")
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(f)
	r, err := n.join(p)
	if err != nil || r.Coordinator != "nat.example:2" || !slices.Contains(r.Coordinators, "nat.example:2") {
		t.Fatalf("%+v, %v", r, err)
	}
	other := newFleet(t, "nat.example:2") // another cluster there
	other.tokens = f.tokens
	_, err = newNode(other).join(p)
	if e := explain.Of(err); !errors.Is(err, explain.TokenForeign) || !strings.Contains(e.Why+e.Do, "--coordinator") {
		t.Errorf("a coordinator with another root: %v", err)
	}
	for _, bad := range [][]string{nil, {"nat.example"}} {
		if _, err := enroll.ByToken(f.token()).At(bad, "--coordinator"); !errors.Is(err, explain.BadValue) {
			t.Errorf("addresses %q: %v", bad, err)
		}
	}
}

// flatten returns all errors in the tree of err.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	out := []error{err}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		out = append(out, flatten(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, sub := range e.Unwrap() {
			out = append(out, flatten(sub)...)
		}
	}
	return out
}

// enemyGrants are grants that an enemy could make of a good one.
var enemyGrants = []struct {
	name string
	part string
	edit func(f *fleet, g *fealtyv1.JoinGrant)
}{
	{"no outcome", "outcome", func(_ *fleet, g *fealtyv1.JoinGrant) { g.Outcome = 0 }},
	{"outcome of the future", "outcome", func(_ *fleet, g *fealtyv1.JoinGrant) { g.Outcome = 9 }},
	{"no chain", "chain", func(_ *fleet, g *fealtyv1.JoinGrant) { g.Chain = nil }},
	{"chain without root", "chain", func(_ *fleet, g *fealtyv1.JoinGrant) { g.Chain = g.Chain[:2] }},
	{"a huge certificate", "chain", func(_ *fleet, g *fealtyv1.JoinGrant) { g.Chain[1] = make([]byte, identityform.MaxCertificateBytes+1) }},
	{"a leaf over another key", "chain", func(f *fleet, g *fealtyv1.JoinGrant) { g.Chain[0] = f.leafFor(identity.Data, "node-x", nil).Raw }},
	{"another root", "root", func(f *fleet, g *fealtyv1.JoinGrant) { g.Chain[2] = g.Chain[1] }},
	{"a root of somebody else", "root", func(f *fleet, g *fealtyv1.JoinGrant) { g.Chain[2] = newFleet(f.tb).root.Raw }},
	{"another kind", "chain", func(f *fleet, g *fealtyv1.JoinGrant) {
		g.Chain[0] = f.leafFor(identity.Coordinator, "c9", g.Chain[0]).Raw
	}},
	{"a mesh CA that is not accepted", "chain", func(f *fleet, g *fealtyv1.JoinGrant) {
		accepted, before := slices.Clone(f.meshKeys), f.mesh
		f.newMeshCA()
		leaf := f.leafFor(identity.Data, idIn(g).Name(), g.Chain[0])
		g.Chain = [][]byte{leaf.Raw, f.mesh.Certificate().Raw, f.root.Raw}
		f.meshKeys, f.mesh = accepted, before
	}},
	{"a mesh CA of nobody", "chain", func(f *fleet, g *fealtyv1.JoinGrant) {
		other := newFleet(f.tb)
		g.Chain[1] = other.mesh.Certificate().Raw
	}},
	{"no root statement", "root statement", func(_ *fleet, g *fealtyv1.JoinGrant) { g.RootStatement = nil }},
	{"a root statement of somebody else", "root statement", func(f *fleet, g *fealtyv1.JoinGrant) { g.RootStatement = newFleet(f.tb).rootStatement() }},
	{"no trust bundle", "trust bundle", func(_ *fleet, g *fealtyv1.JoinGrant) { g.TrustBundle = nil }},
	{"a trust bundle of somebody else", "trust bundle", func(f *fleet, g *fealtyv1.JoinGrant) { g.TrustBundle = newFleet(f.tb).trustBundle() }},
	{"a bootstrap for a trust bundle", "trust bundle", func(_ *fleet, g *fealtyv1.JoinGrant) { g.TrustBundle = g.NodeBootstrap }},
	{"a trust bundle that ended", "trust bundle", func(f *fleet, g *fealtyv1.JoinGrant) {
		h := f.trustHeader()
		h.IssuedAt, h.ValidFrom, h.RefreshAfter, h.ExpiresAt = h.IssuedAt.Add(-time.Hour), h.ValidFrom.Add(-time.Hour), h.IssuedAt.Add(-30*time.Minute), h.IssuedAt.Add(-time.Minute)
		g.TrustBundle = f.signTrust(h, f.content())
	}},
	{"a trust bundle with another root", "trust bundle", func(f *fleet, g *fealtyv1.JoinGrant) {
		content := f.content()
		content.Roots = [][]byte{newFleet(f.tb).root.Raw}
		g.TrustBundle = f.signTrust(f.trustHeader(), content)
	}},
	{"a trust bundle that bans the node", "chain", func(f *fleet, g *fealtyv1.JoinGrant) {
		content := f.content()
		leaf, err := dir.ParseCertificate(g.Chain[0])
		f.must(err)
		content.BannedKeys = []identity.KeyID{identity.KeyOf(leaf)}
		h := f.trustHeader()
		h.ConfigVersion++
		g.TrustBundle = f.signTrust(h, content)
	}},
	{"no bootstrap", "node_bootstrap", func(_ *fleet, g *fealtyv1.JoinGrant) { g.NodeBootstrap = nil }},
	{"a bootstrap for another node", "node_bootstrap", func(f *fleet, g *fealtyv1.JoinGrant) {
		id, err := identity.New(testCluster, identity.Data, "node-z")
		f.must(err)
		g.NodeBootstrap = f.bootstrap(&memberState{id: id, incarnation: identity.KeyID{1}})
	}},
	{"a bootstrap for another incarnation", "node_bootstrap", func(f *fleet, g *fealtyv1.JoinGrant) {
		g.NodeBootstrap = f.bootstrap(&memberState{id: idIn(g), incarnation: identity.KeyID{1}})
	}},
	{"a bootstrap of another epoch", "node_bootstrap", func(f *fleet, g *fealtyv1.JoinGrant) {
		g.NodeBootstrap = f.bootstrap(f.members["data/"+idIn(g).Name()], func(h *snapshot.Header, _ *snapshot.NodeBootstrap) { h.AuthorityEpoch = 9 })
	}},
	{"a trust bundle for a bootstrap", "node_bootstrap", func(f *fleet, g *fealtyv1.JoinGrant) {
		f.version++
		g.NodeBootstrap = f.trustBundle()
	}},
}

func idIn(g *fealtyv1.JoinGrant) identity.ID {
	leaf, err := dir.ParseCertificate(g.GetChain()[0])
	if err != nil {
		return identity.ID{}
	}
	id, _ := identity.FromCertificate(leaf)
	return id
}

// A grant of an enemy, even one who holds a coordinator's certificate, is worth
// nothing, and the next try works.
func TestJoinVerifiesTheGrant(t *testing.T) {
	parts := make(map[string]bool)
	for _, c := range enemyGrants {
		parts[c.part] = true
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t)
			n := newNode(f)
			token := enroll.ByToken(f.token())
			f.do(func() { f.editGrant = func(g *fealtyv1.JoinGrant) { c.edit(f, g) } })
			_, err := n.join(token)
			refused, ok := errors.AsType[*state.GrantError](err)
			if !errors.Is(err, explain.JoinGrantRefused) || !ok || refused.Part != c.part {
				t.Fatalf("%v, want a refusal of the %s", err, c.part)
			}
			if _, err := n.open(); !errors.Is(err, explain.NodeNotJoined) {
				t.Fatalf("after an enemy's grant it opens: %v", err)
			}
			f.do(func() { f.editGrant = nil })
			if r, err := n.join(token); err != nil || r.Outcome != fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER {
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
	f := newFleet(t)
	n := newNode(f)
	n.mustJoin()
	before := n.read(dir.SVIDName)
	if _, err := n.join(enroll.ByToken(f.token())); !errors.Is(err, explain.NodeJoined) {
		t.Fatalf("a join over an identity: %v", err)
	}
	other := newFleet(t)
	cfg := n.joinConfig(enroll.ByToken(other.token()))
	cfg.Rejoin, cfg.Dial = true, other.dial
	if _, err := enroll.Join(t.Context(), cfg); !errors.Is(err, explain.NodeJoined) {
		t.Fatalf("a rejoin to another root: %v", err)
	}
	if !bytes.Equal(before, n.read(dir.SVIDName)) {
		t.Fatal("the identity changed")
	}
	cfg = n.joinConfig(enroll.ByToken(f.token()))
	cfg.Rejoin = true
	r, err := enroll.Join(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	a := n.mustOpen()
	defer a.Close()
	if a.me.ID != r.ID || a.unready() != "" {
		t.Fatalf("after a rejoin: %v, %s", a.me.ID, a.unready())
	}
}

// A rejoin does not forget what the node has seen.
func TestRejoinKeepsMarks(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	n.mustJoin()
	a := n.mustOpen()
	f.trustChanged(func() {})
	f.must(a.take(t.Context(), "", f.trustBundle().GetEnvelope()))
	a.Close()
	f.do(func() { f.version -= 1 })
	cfg := n.joinConfig(enroll.ByToken(f.token()))
	cfg.Rejoin = true
	_, err := enroll.Join(t.Context(), cfg)
	if rejected, ok := errors.AsType[*snapshot.RejectedError](err); !ok || rejected.Reason != snapshot.ReasonVersion {
		t.Fatalf("an older bundle: %v", err)
	}
}

// The key of a renewal may be the member's current one: a rejoin that is refused
// must not lose it.
func TestRejoinKeepsTheKeyOfARenewal(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	n.mustJoin()
	a := n.mustOpen()
	f.do(func() { f.loseRenews = 1 })
	if err := a.renew(t.Context()); err == nil {
		t.Fatal("renewed without an answer")
	}
	pending := a.next.Key.ID
	a.Close()
	f.do(func() { f.refuseJoin = explain.New(explain.TokenSpent) })
	cfg := n.joinConfig(enroll.ByToken(f.token()))
	cfg.Rejoin = true
	if _, err := enroll.Join(t.Context(), cfg); !errors.Is(err, explain.TokenSpent) {
		t.Fatal(err)
	}
	a = n.mustOpen()
	defer a.Close()
	if a.next == nil || a.next.Key.ID != pending {
		t.Fatal("the key of the renewal is gone")
	}
	f.must(a.renew(t.Context()))
	if f.count(&f.clones) != 0 {
		t.Fatal("a clone alarm")
	}
}

// What a node has seen of another cluster means nothing to the next one, whatever
// its name: a wipe that was cut off leaves marks behind.
func TestJoinAfterAnotherCluster(t *testing.T) {
	other := newFleet(t)
	other.version = 1000
	left := joinedNode(other)
	f := newFleet(t)
	n := newNode(f)
	for _, name := range []string{dir.MarksAName, dir.MarksBName, dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Active), dir.SVIDName} {
		n.disk.Put(n.path(name), left.read(name))
	}
	n.mustJoin()
	a := n.mustOpen()
	defer a.Close()
	if a.unready() != "" || trustVersion(a) != 10 || len(a.status.Refusals()) != 0 {
		t.Errorf("%s, version %d, %v", a.unready(), trustVersion(a), a.status.Refusals())
	}
	if mark, _ := a.beliefs.Load().Marks.Get(snapshot.ScopeTrustBundle, snapshot.ClusterSubject()); mark.ConfigVersion != 10 {
		t.Errorf("the mark is at %d", mark.ConfigVersion)
	}
}

func TestJoinKinds(t *testing.T) {
	f := newFleet(t)
	for _, kind := range identity.Kinds() {
		n := newNode(f)
		cfg := n.joinConfig(enroll.ByToken(f.token()))
		cfg.Kind = kind
		_, err := enroll.Join(t.Context(), cfg)
		switch kind {
		case identity.Data, identity.Witness, identity.Shard, identity.Operator, identity.Provider:
			if err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		default:
			if !errors.Is(err, explain.BadValue) {
				t.Errorf("%s joins: %v", kind, err)
			}
		}
	}
}

// crash runs op on a disk whose power is cut at its nth mutating call, for every n,
// and calls check on what the disk comes back with. Under the race detector n is every
// fourth, and the disk comes back in the last of these ways alone.
func crash(t *testing.T, afters []durabletest.After, prepare func() (disk *durabletest.Disk, op func() error), check func(t *testing.T, done bool)) {
	t.Helper()
	if raceDetector {
		afters = afters[len(afters)-1:]
	}
	for _, after := range afters {
		for n := 1; ; n += everyNth(4) {
			disk, op := prepare()
			disk.FailAt(n, durabletest.ErrPowerCut)
			err := op()
			cut := disk.Failed()
			disk.Restart(after)
			if !cut && err != nil {
				t.Fatalf("%v, call %d: %v without a failure", after, n, err)
			}
			check(t, !cut)
			if t.Failed() {
				t.Fatalf("power cut at call %d, disk comes back as %v; the operation said: %v", n, after, err)
			}
			if !cut {
				t.Logf("%v: %d calls", after, n-1)
				break
			}
		}
	}
}

// everyNth returns by how much to go on with what is counted up, call by call: by one, or
// by n under the race detector. The test is among the rounds of tools/test.sh, which does
// each call.
func everyNth(n int) int {
	if raceDetector {
		return n
	}
	return 1
}

// fewerChecks has rapid check only so often in this test, unless -rapid.checks says how
// often. The flag is the process's: a test that calls this is not in parallel.
func fewerChecks(t *testing.T, checks string) {
	t.Helper()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
		if err := f.Value.Set(checks); err != nil {
			t.Fatal(err)
		}
	}
}

// A power cut at any point of a join leaves a machine that has joined or has not.
// Doing the same join again works, by the same key, and one that was durable is
// finished without asking anybody.
func TestJoinCrash(t *testing.T) {
	f := newFleet(t)
	var n *node
	var token enroll.Proof
	finished := 0
	crash(t, []durabletest.After{durabletest.Synced}, func() (*durabletest.Disk, func() error) {
		n, token = newNode(f), enroll.ByToken(f.token())
		return n.disk, func() error { _, err := n.join(token); return err }
	}, func(t *testing.T, done bool) {
		journaled, asked := n.has(dir.JournalName), f.joins
		r, err := n.join(token)
		switch {
		case journaled && (err != nil || f.joins != asked):
			t.Errorf("a durable join was not finished alone: %v, asked %d times", err, f.joins-asked)
		case journaled:
			finished++
		case err != nil && !errors.Is(err, explain.NodeJoined):
			t.Errorf("the same join again: %v", err)
		}
		if m := f.member(r.ID); len(m.older) != 0 {
			t.Error("the second try used another key")
		}
		a, err := n.open()
		if err != nil {
			t.Error(err)
			return
		}
		if a.unready() != "" || bootVersion(a) == 0 {
			t.Errorf("opened, and unready: %s", a.unready())
		}
		a.Close()
	})
	if finished == 0 {
		t.Error("no power cut left a durable join that was not finished")
	}
}

// However a disk comes back from a power cut amid a rejoin, the node is the old
// member or the new one, whole: never a mix.
func TestCommitCrash(t *testing.T) {
	f := newFleet(t)
	before := newNode(f)
	old := before.mustJoin().ID
	// The new identity, as a rejoin writes it down.
	f.trustChanged(func() {})
	var entry state.Journal
	for call := 1; entry.Anchor.ID.IsZero(); call++ {
		after := before.clone()
		cfg := after.joinConfig(enroll.ByToken(f.token()))
		cfg.Rejoin = true
		after.disk.FailAt(call, durabletest.ErrPowerCut)
		_, err := enroll.Join(t.Context(), cfg)
		if err == nil {
			t.Fatal("no power cut left a journal")
		}
		after.disk.Restart(durabletest.Synced)
		if after.has(dir.JournalName) {
			f.must(dir.Unseal(after.read(dir.JournalName), &entry))
		}
	}

	var n *node
	crash(t, durabletest.Afters(), func() (*durabletest.Disk, func() error) {
		n = before.clone()
		return n.disk, func() error {
			store, err := state.OpenStore(n.disk.FS(), n.dir)
			if err != nil {
				return err
			}
			defer store.Close()
			store.Pin = entry.Anchor.Pin
			return store.CommitJoin(entry)
		}
	}, func(t *testing.T, done bool) {
		a, err := n.open()
		if err != nil {
			t.Errorf("no member any more: %v", err)
			return
		}
		defer a.Close()
		want, trust := entry.Anchor.ID, uint64(11)
		if a.me.ID == old && !done {
			want, trust = old, 10
		}
		if a.me.ID != want || trustVersion(a) != trust || a.svid.Load().Leaf().URIs[0].String() != want.String() || a.unready() != "" {
			t.Errorf("%v with trust %d and the certificate of %v: %s", a.me.ID, trustVersion(a), a.svid.Load().Leaf().URIs, a.unready())
		}
		if boot, _ := a.beliefs.Load().Bootstrap(); boot.Node != want {
			t.Errorf("%v has the bootstrap of %v", a.me.ID, boot.Node)
		}
		if n.has(dir.JournalName) {
			t.Error("the journal is left behind")
		}
	})
}

// A disk error at any point of a join is an error, and the same join works then.
func TestJoinDiskErrors(t *testing.T) {
	f := newFleet(t)
	for _, errno := range []error{syscall.ENOSPC, syscall.EIO} {
		for call := 1; ; call += everyNth(4) {
			n, token := newNode(f), enroll.ByToken(f.token())
			n.disk.FailAt(call, errno)
			_, err := n.join(token)
			if !n.disk.Failed() {
				break
			}
			if err == nil {
				continue // what failed was sweeping
			}
			_, err = n.join(token)
			if err != nil && !errors.Is(err, explain.NodeJoined) {
				t.Fatalf("%v at call %d, then again: %v", errno, call, err)
			}
			a, err := n.open()
			if err != nil {
				t.Fatalf("%v at call %d: %v", errno, call, err)
			}
			a.Close()
		}
	}
}

// What a join wrote is not read by others, and a secret that is makes it stop.
func TestExposedIdentity(t *testing.T) {
	f := newFleet(t)
	n := newNode(f)
	n.mustJoin()
	n.disk.Chmod(n.path(dir.SVIDName), 0o644)
	if _, err := n.open(); !errors.Is(err, explain.NodeStateCorrupt) {
		t.Fatal(err)
	}
}

func TestJoinCancelled(t *testing.T) {
	f := newFleet(t)
	ctx, cancel := context.WithCancel(t.Context())
	cfg := newNode(f).joinConfig(enroll.ByToken(f.token()))
	cfg.Progress = func(s enroll.Step) {
		if s.Name == enroll.StepReach {
			cancel()
		}
	}
	if _, err := enroll.Join(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
