package agent_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// joinedNode returns a node that holds two versions of the trust bundle (10 and 11)
// and its bootstrap.
func joinedNode(f *nodetest.Fleet) *node {
	f.TB.Helper()
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	f.TrustChanged(func() {})
	f.Must(n.take(a, f.TrustBundle()))
	a.Close()
	return n
}

// lengths returns the lengths to cut size bytes to: all of them in the nightly lane, and a sample
// that has both ends in the quick one.
func lengths(size int) []int {
	step := testlane.Rounds(997, 1)
	var out []int
	for i := range size {
		if i == size-1 || i%step == 0 {
			out = append(out, i)
		}
	}
	return out
}

// damages are what a bad disk makes of a file: cut at any length, a bit turned at
// any place, something appended.
func damages(data []byte, each func(what string, damaged []byte)) {
	for _, i := range lengths(len(data)) {
		each(fmt.Sprintf("cut to %d of %d bytes", i, len(data)), data[:i])
		flipped := bytes.Clone(data)
		flipped[i] ^= 1 << (i % 8)
		each(fmt.Sprintf("bit turned in byte %d of %d", i, len(data)), flipped)
	}
	each("a byte appended", append(bytes.Clone(data), '\n'))
}

// Damage of the identity is told to a person; it is never used, and never replaced
// silently.
func TestDamagedIdentity(t *testing.T) {
	f := nodetest.New(t)
	joined := joinedNode(f)
	for _, name := range []string{dir.SVIDName, dir.AnchorName} {
		n := joined.clone()
		damages(joined.Read(name), func(what string, damaged []byte) {
			n.Disk.Put(n.Path(name), damaged)
			a, err := n.open()
			if a != nil {
				a.Close()
			}
			if !errors.Is(err, errcode.NodeStateCorrupt) {
				t.Fatalf("%s, %s: %v", name, what, err)
			}
			if !bytes.Equal(n.Read(name), damaged) {
				t.Fatalf("%s, %s: it was replaced", name, what)
			}
			if strings.Contains(err.Error(), "PRIVATE") {
				t.Fatalf("%s, %s: the error quotes the file: %v", name, what, err)
			}
		})
	}
	n := joined.clone()
	f.Must(n.Disk.FS().Remove(n.Path(dir.SVIDName)))
	if _, err := n.open(); !errors.Is(err, errcode.NodeStateCorrupt) || errors.Is(err, errcode.NodeNotJoined) {
		t.Errorf("without a certificate: %v", err)
	}
	// The error's advice to a person works.
	r, err := n.Join(enroll.ByToken(f.Token()))
	if err != nil {
		t.Fatal(err)
	}
	a := n.mustOpen()
	defer a.Close()
	if a.Node().Me().ID != r.ID || a.Unready() != "" {
		t.Errorf("joined anew: %v, %s", a.Node().Me().ID, a.Unready())
	}
}

// A damaged snapshot falls back to the previous one, is reported, and mended by
// what a coordinator sends.
func TestDamagedSnapshot(t *testing.T) {
	f := nodetest.New(t)
	joined := joinedNode(f)
	current := f.TrustBundle()
	name := dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Active)
	n := joined.clone()
	damages(joined.Read(name), func(what string, damaged []byte) {
		n.Disk.Put(n.Path(name), damaged)
		a, err := n.open()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer a.Close()
		if trustVersion(a) != 10 || bootVersion(a) == 0 || a.Unready() != "" {
			t.Fatalf("%s: version %d, bootstrap %d, %s", what, trustVersion(a), bootVersion(a), a.Unready())
		}
		if got := a.Node().Status().Refusals(); len(got) != 1 || got[0].Scope != string(snapshot.ScopeTrustBundle) {
			t.Fatalf("%s: reported as %v", what, got)
		}
		if err := n.take(a, current); err != nil || trustVersion(a) != 11 || len(a.Node().Status().Refusals()) != 0 {
			t.Fatalf("%s, sent again: %v, version %d, %v", what, err, trustVersion(a), a.Node().Status().Refusals())
		}
	})
}

// Every other file may be damaged too: the node comes up with what is whole.
func TestDamagedFiles(t *testing.T) {
	f := nodetest.New(t)
	joined := joinedNode(f)
	a := joined.mustOpen()
	f.Must(take(t.Context(), a, "trust_bundle", []byte("garbage"))) // leaves a refusal
	key, err := a.Renewal().NextKey()
	f.Must(err)
	a.Close()
	for _, c := range []struct {
		name  string
		check func(a *agent.Agent) string
	}{
		{dir.SnapshotName(snapshot.ScopeNodeBootstrap, dir.Active), func(a *agent.Agent) string {
			if trustVersion(a) != 11 || bootVersion(a) != 0 || a.Unready() != "" {
				return "the bundle is not in use, or a damaged bootstrap is"
			}
			return ""
		}},
		{dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Previous), func(a *agent.Agent) string {
			if trustVersion(a) != 11 {
				return "the bundle is not in use"
			}
			return ""
		}},
		{dir.NextName, func(a *agent.Agent) string {
			if a.Renewal().Next() != nil {
				return "a damaged key is used"
			}
			return a.Unready()
		}},
		{dir.RefusalsName, func(a *agent.Agent) string { return a.Unready() }},
		{dir.JournalName, func(a *agent.Agent) string { return a.Unready() }},
		{dir.MarksAName, func(a *agent.Agent) string { return a.Unready() }},
		{dir.MarksBName, func(a *agent.Agent) string { return a.Unready() }},
	} {
		n := joined.clone()
		n.Disk.Put(n.Path(dir.NextName), joined.Read(dir.NextName))
		n.Disk.Put(n.Path(dir.RefusalsName), joined.Read(dir.RefusalsName))
		data := []byte(dir.SealHead + strings.Repeat("0", 64) + dir.SealBody + "{}" + dir.SealTail)
		if c.name != dir.JournalName {
			data = joined.Read(c.name)
		}
		damages(data, func(what string, damaged []byte) {
			n.Disk.Put(n.Path(c.name), damaged)
			a, err := n.open()
			if err != nil {
				t.Fatalf("%s, %s: %v", c.name, what, err)
			}
			defer a.Close()
			if msg := c.check(a); msg != "" {
				t.Fatalf("%s, %s: %s", c.name, what, msg)
			}
			if c.name != dir.NextName && (a.Renewal().Next() == nil || a.Renewal().Next().Key.ID != key.ID) {
				t.Fatalf("%s, %s: the key under way is gone", c.name, what)
			}
		})
	}
}

// Of two copies of the marks the newer one counts.
func TestMarksCopies(t *testing.T) {
	f := nodetest.New(t)
	n := joinedNode(f)
	a := n.mustOpen()
	before := n.Read(dir.MarksAName)
	f.TrustChanged(func() {})
	f.Must(n.take(a, f.TrustBundle()))
	a.Close()
	for _, name := range []string{dir.MarksAName, dir.MarksBName} {
		c := n.clone()
		c.Disk.Put(c.Path(name), before)
		a := c.mustOpen()
		mark, _ := a.Node().TrustState().Marks.Get(snapshot.ScopeTrustBundle, snapshot.ClusterSubject())
		if mark.ConfigVersion != 12 {
			t.Errorf("with an old %s the mark is at %d", name, mark.ConfigVersion)
		}
		a.Close()
	}
}

// A node that lost its marks is no new node: it uses nothing of what is on disk,
// takes nothing older than that, and goes on when a coordinator has spoken.
func TestLostMarks(t *testing.T) {
	f := nodetest.New(t)
	joined := joinedNode(f)
	lose := func() *node {
		n := joined.clone()
		f.Must(n.Disk.FS().Remove(n.Path(dir.MarksAName)))
		n.Disk.Put(n.Path(dir.MarksBName), []byte("gone"))
		return n
	}
	n := lose()
	a := n.mustOpen()
	if trustVersion(a) != 0 || bootVersion(a) != 0 || a.Unready() == "" || len(a.Held()) != 0 {
		t.Fatalf("without marks version %d is in use, unready: %q", trustVersion(a), a.Unready())
	}
	if m, err := a.Node().Source().Current(t.Context()); err != nil || m.ID() != a.Node().Me().ID {
		t.Fatalf("it cannot reach a coordinator: %v", err)
	}
	h := f.TrustHeader()
	h.ConfigVersion = 10
	f.Must(n.take(a, f.SignTrust(h, f.Content())))
	if trustVersion(a) != 0 {
		t.Fatal("an older one than is on disk is in use")
	}
	a.Close()

	for _, c := range []struct {
		name string
		want uint64
	}{{"the same", 11}, {"a newer one", 12}} {
		n := lose()
		a := n.mustOpen()
		if c.want == 12 {
			f.TrustChanged(func() {})
		}
		f.Must(n.take(a, f.TrustBundle()))
		if trustVersion(a) != c.want || a.Unready() != "" {
			t.Fatalf("%s: version %d, %s", c.name, trustVersion(a), a.Unready())
		}
		a.Close()
		a = n.mustOpen()
		if trustVersion(a) != c.want || a.Unready() != "" {
			t.Fatalf("%s, after a restart: version %d, %s", c.name, trustVersion(a), a.Unready())
		}
		a.Close()
	}
}

// After a loss of the marks each scope waits for a coordinator by itself, over
// restarts, and what a mirror or a file gives is no answer.
func TestLostMarksWaitForACoordinator(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	id := n.MustJoin().ID
	m := f.Member(id)
	a := n.mustOpen()
	var runtime *fealtyv1.SignedSnapshot
	f.Do(func() { runtime = f.Runtime(&m) })
	f.Must(n.take(a, runtime))
	a.Close()
	f.Must(n.Disk.FS().Remove(n.Path(dir.MarksAName)))
	f.Must(n.Disk.FS().Remove(n.Path(dir.MarksBName)))
	restart := func() {
		a.Close()
		a = n.mustOpen()
	}
	restart()
	defer func() { a.Close() }()
	inUse := func(want ...snapshot.Scope) {
		t.Helper()
		b := a.Node().TrustState()
		if got := slices.Sorted(maps.Keys(b.Active)); !slices.Equal(got, want) {
			t.Fatalf("in use are %q, want %q; refusals %v", got, want, a.Node().Status().Refusals())
		}
	}
	const mirror state.Origin = "mirror"
	bundle := f.TrustBundle()
	f.Must(a.Contact().Take(t.Context(), mirror, state.Offer{Scope: "trust_bundle", Raw: bundle.GetEnvelope()}))
	inUse()
	if got := a.Node().Status().Refusals(); len(got) != 1 || got[0].Reason != string(snapshot.ReasonUnrecorded) {
		t.Errorf("from a mirror: %v", got)
	}
	f.Must(n.take(a, bundle))
	inUse(snapshot.ScopeTrustBundle)
	restart() // what was not confirmed is not because the marks are there again
	inUse(snapshot.ScopeTrustBundle)
	f.Must(a.Contact().Take(t.Context(), mirror, state.Offer{Scope: "node_runtime", Raw: runtime.GetEnvelope()}))
	inUse(snapshot.ScopeTrustBundle)
	f.Must(n.take(a, runtime))
	inUse(snapshot.ScopeNodeRuntime, snapshot.ScopeTrustBundle)
	restart()
	inUse(snapshot.ScopeNodeRuntime, snapshot.ScopeTrustBundle)
	f.Do(func() { runtime = f.Runtime(&m) })
	f.Must(a.Contact().Take(t.Context(), mirror, state.Offer{Scope: "node_runtime", Raw: runtime.GetEnvelope()}))
	if h := a.Node().TrustState().Active[snapshot.ScopeNodeRuntime]; !bytes.Equal(h.Raw, runtime.GetEnvelope()) {
		t.Errorf("what a coordinator confirmed a mirror may renew: %v", a.Node().Status().Refusals())
	}
}

// A live node that lost its marks mends itself.
func TestLostMarksMend(t *testing.T) {
	f := nodetest.New(t)
	n := joinedNode(f).clone()
	f.Must(n.Disk.FS().Remove(n.Path(dir.MarksAName)))
	f.Must(n.Disk.FS().Remove(n.Path(dir.MarksBName)))
	a := n.mustOpen()
	n.run(a)
	wait.Until(t, "what holds now is in use", func() bool { return a.Unready() == "" && bootVersion(a) != 0 })
}

// The parts of a directory name one node.
func TestWrongNode(t *testing.T) {
	f := nodetest.New(t)
	one, two := joinedNode(f), joinedNode(f)
	n := one.clone()
	n.Disk.Put(n.Path(dir.SVIDName), two.Read(dir.SVIDName))
	if _, err := n.open(); !errors.Is(err, errcode.NodeWrong) {
		t.Errorf("with the certificate of another node: %v", err)
	}
	// A snapshot of another node is not used either.
	n = one.clone()
	n.Disk.Put(n.Path(dir.SnapshotName(snapshot.ScopeNodeBootstrap, dir.Active)),
		two.Read(dir.SnapshotName(snapshot.ScopeNodeBootstrap, dir.Active)))
	a := n.mustOpen()
	defer a.Close()
	if bootVersion(a) != 0 || len(a.Node().Status().Refusals()) != 1 {
		t.Errorf("bootstrap %d is in use, refusals %v", bootVersion(a), a.Node().Status().Refusals())
	}
	// Nor is a certificate under another root with the same name in it.
	other := nodetest.New(t)
	n = one.clone()
	key, err := dir.NewKeyPair()
	f.Must(err)
	a2 := one.mustOpen()
	id := a2.Node().Me().ID
	a2.Close()
	foreign, err := dir.EncodeSVID(dir.SVID{Key: key, Chain: other.Issue(key.Signer().Public(), id, time.Hour)})
	f.Must(err)
	n.Disk.Put(n.Path(dir.SVIDName), foreign)
	if _, err := n.open(); !errors.Is(err, errcode.NodeStateCorrupt) {
		t.Errorf("with a certificate of another root: %v", err)
	}
}

// An anchor whose parts do not fit is damaged, however well it is sealed.
func TestAnchorParts(t *testing.T) {
	f := nodetest.New(t)
	joined := joinedNode(f)
	other := nodetest.New(t)
	for _, c := range []struct {
		name string
		edit func(*state.Anchor)
	}{
		{"pin", func(a *state.Anchor) { a.Pin[0] ^= 1 }},
		{"root", func(a *state.Anchor) { a.Root = other.Root.Raw }},
		{"root and pin", func(a *state.Anchor) { a.Root, a.Pin = other.Root.Raw, identity.KeyOf(other.Root) }},
		{"root statement", func(a *state.Anchor) { a.RootStatement = other.RootStatement() }},
		{"no root statement", func(a *state.Anchor) { a.RootStatement = nil }},
		{"cluster", func(a *state.Anchor) { a.Cluster = "other.example" }},
		{"kind", func(a *state.Anchor) { a.Kind = identity.Shard }},
		{"incarnation", func(a *state.Anchor) { a.Incarnation = identity.KeyID{} }},
		{"id", func(a *state.Anchor) { a.ID = identity.ID{} }},
	} {
		n := joined.clone()
		var a state.Anchor
		f.Must(dir.Unseal(joined.Read(dir.AnchorName), &a))
		c.edit(&a)
		data, err := dir.Seal(a)
		f.Must(err)
		n.Disk.Put(n.Path(dir.AnchorName), data)
		if _, err := n.open(); !errors.Is(err, errcode.NodeStateCorrupt) && !errors.Is(err, errcode.NodeWrong) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A node that was off for longer than its bundle lives is not ready and not lost:
// it remembers bans, reaches a coordinator, and comes back.
func TestExpiredBundle(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	f.TrustChanged(func() { f.Banned = append(f.Banned, identity.KeyID{7}) })
	n.MustJoin()
	f.Shift.Store(int64(60 * time.Hour))
	a := n.mustOpen()
	defer a.Close()
	if trustVersion(a) != 0 || a.Unready() == "" {
		t.Fatalf("an expired bundle %d is in use", trustVersion(a))
	}
	m, err := a.Node().Source().Current(t.Context())
	f.Must(err)
	if !m.ID().IsZero() {
		t.Fatal("an expired identity is presented")
	}
	if !slices.Contains(m.Bundle().BannedKeys(), identity.KeyID{7}) {
		t.Error("the bans are forgotten")
	}
	// Nothing else verifies under it.
	id := f.Member(a.Node().Me().ID)
	var boot []byte
	f.Do(func() { boot = f.Bootstrap(&id).GetEnvelope() })
	f.Must(take(t.Context(), a, "node_bootstrap", boot))
	if got := a.Node().Status().Refusals(); len(got) == 0 || bootVersion(a) != 0 {
		t.Errorf("under an expired bundle a bootstrap is in use, refusals %v", got)
	}
}

// A machine whose clock was never set comes up, does not forget who it is, and goes by
// the time that was signed.
func TestClockNeverSet(t *testing.T) {
	f := nodetest.New(t)
	n := joinedNode(f)
	f.Shift.Store(-int64(time.Since(time.Unix(0, 0))))
	a := n.mustOpen()
	defer a.Close()
	if reason := a.Unready(); reason != "" || a.Node().Now().Year() < 2000 || a.Node().Clock.Behind() == 0 {
		t.Errorf("it is %v, %v behind; %s", a.Node().Now(), a.Node().Clock.Behind(), reason)
	}
}

func TestOpenWithoutAnything(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	if _, err := n.open(); !errors.Is(err, errcode.NodeNotJoined) {
		t.Fatal(err)
	}
	if _, err := n.Disk.FS().ReadDir(signedtest.DataDir); err == nil {
		t.Error("a mistyped folder was made")
	}
}

func TestSealed(t *testing.T) {
	type content struct{ A, B string }
	data, err := dir.Seal(content{"a", "<&>\u2028"})
	if err != nil {
		t.Fatal(err)
	}
	var got content
	if err := dir.Unseal(data, &got); err != nil || got != (content{"a", "<&>\u2028"}) {
		t.Fatalf("%v, %v", got, err)
	}
	damages(data, func(what string, damaged []byte) {
		if err := dir.Unseal(damaged, &got); !errors.Is(err, dir.ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
	})
}

func FuzzUnseal(f *testing.F) {
	data, _ := dir.Seal(state.Anchor{Cluster: "c"})
	f.Add(data)
	f.Add([]byte(dir.SealHead))
	f.Fuzz(func(t *testing.T, data []byte) {
		var a state.Anchor
		if dir.Unseal(data, &a) == nil {
			if _, err := a.Verify(time.Now()); err == nil {
				t.Error("made up an anchor")
			}
		}
	})
}

// bend turns bits of one byte of data and cuts it. Fuzz targets take such changes
// rather than bytes: keys are made at run time, and each worker has its own.
func bend(data []byte, offset uint16, xor byte, length uint16) []byte {
	data = bytes.Clone(data)
	if len(data) > 0 {
		data[int(offset)%len(data)] ^= xor
	}
	return data[:len(data)-min(int(length), len(data))]
}

func FuzzSVID(f *testing.F) {
	fl := nodetest.New(f)
	key, err := dir.NewKeyPair()
	fl.Must(err)
	id, _ := identity.New(signedtest.Cluster, identity.Data, "n")
	data, err := dir.EncodeSVID(dir.SVID{Key: key, Chain: fl.Issue(key.Signer().Public(), id, time.Hour)})
	fl.Must(err)
	f.Add(uint16(0), byte(0), uint16(0))
	f.Add(uint16(30), byte(1), uint16(1))
	f.Fuzz(func(t *testing.T, offset uint16, xor byte, length uint16) {
		bent := bend(data, offset, xor, length)
		s, _, err := dir.ParseSVID(bent)
		if err != nil {
			if !errors.Is(err, dir.ErrDamaged) {
				t.Error(err)
			}
			return
		}
		if again, err := dir.EncodeSVID(s); err != nil || !bytes.Equal(again, bent) {
			t.Error("two spellings of one identity")
		}
	})
}

// No byte of the identity may change unseen, and none be missing.
func TestSVIDBytes(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	data := n.Read(dir.SVIDName)
	if _, _, err := dir.ParseSVID(data); err != nil {
		t.Fatal(err)
	}
	var me state.Anchor
	f.Must(dir.Unseal(n.Read(dir.AnchorName), &me))
	verified, err := me.Verify(f.Clock())
	f.Must(err)
	for i := range data {
		if _, _, err := dir.ParseSVID(data[:i]); !errors.Is(err, dir.ErrDamaged) {
			t.Errorf("cut to %d bytes: %v", i, err)
		}
		if i%3 != 0 {
			continue // the others take long: it is signatures that catch them
		}
		flipped := bytes.Clone(data)
		flipped[i] ^= 1 << (i % 8)
		if s, _, err := dir.ParseSVID(flipped); err == nil && verified.Owns(s.Chain) == nil {
			t.Errorf("a bit turned in byte %d goes unseen", i)
		}
	}
}

// A grant is judged without a panic, whatever it is, and only what was
// signed for this very key is admitted.
func FuzzGrant(f *testing.F) {
	fl := nodetest.New(f)
	key, err := dir.NewKeyPair()
	fl.Must(err)
	id, _ := identity.New(signedtest.Cluster, identity.Data, "n")
	m := &signedtest.Member{ID: id, Key: key.ID, Incarnation: key.ID}
	good := &fealtyv1.JoinGrant{
		Outcome:       fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED,
		Chain:         dir.RawChain(fl.Issue(key.Signer().Public(), id, time.Hour)),
		RootStatement: fl.RootStatement(), TrustBundle: fl.TrustBundle(), NodeBootstrap: fl.Bootstrap(m),
	}
	f.Add(byte(0), uint16(0), byte(0), uint16(0))
	f.Add(byte(4), uint16(99), byte(1), uint16(0))
	w := state.Wanted{Cluster: signedtest.Cluster, Kind: identity.Data, Pin: identity.KeyOf(fl.Root), Key: key}
	want, err := state.VerifyGrant(good, w, fl.Clock)
	fl.Must(err)
	f.Fuzz(func(t *testing.T, part byte, offset uint16, xor byte, length uint16) {
		g := proto.CloneOf(good)
		parts := []*[]byte{&g.Chain[0], &g.Chain[1], &g.Chain[2], &g.RootStatement, &g.TrustBundle.Envelope,
			&g.NodeBootstrap.Envelope}
		p := parts[int(part)%len(parts)]
		*p = bend(*p, offset, xor, length)
		got, err := state.VerifyGrant(g, w, fl.Clock)
		if err != nil {
			if _, ok := err.(*state.GrantError); !ok {
				t.Errorf("an untyped refusal: %v", err)
			}
			return
		}
		// The signed text counts: a signature has several spellings.
		same := got.Me.ID == id && bytes.Equal(got.SVID.Leaf().RawTBSCertificate, want.SVID.Leaf().RawTBSCertificate) &&
			len(got.Accepted) == len(want.Accepted)
		for i := range got.Accepted {
			same = same && got.Accepted[i].V.HeaderDigest() == want.Accepted[i].V.HeaderDigest()
		}
		if !same {
			t.Error("admitted something else than was signed")
		}
	})
}
