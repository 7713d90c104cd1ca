package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	trustpkg "github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/snapshot"
)

func (d *desk) trustService() fealtyv1.TrustServiceServer {
	return served[fealtyv1.TrustServiceServer](d.c.Rooms().Trust.RegisterServices)
}

func (d *desk) rotate(deadline time.Duration) *fealtyv1.RotateConfigKeyResponse {
	d.t.Helper()
	resp, err := d.trustService().RotateConfigKey(context.Background(),
		&fealtyv1.RotateConfigKeyRequest{Deadline: durationpb.New(deadline), Reason: "test"})
	if err != nil {
		d.t.Fatalf("rotate: %v", err)
	}
	return resp
}

// look does what the loops of c do on one round: the trust state, the rotation.
func (d *desk) look(c *coordinator.Coordinator) error {
	d.lead(c)
	s := c.Rooms().Head.State()
	if err := c.Rooms().Bundle.Refresh(context.Background(), s, true); err != nil {
		return err
	}
	return c.Rooms().Trust.FollowRotation(context.Background(), s)
}

func (d *desk) mustLook() {
	d.t.Helper()
	d.follow(d.c)
	if err := d.look(d.c); err != nil {
		d.t.Fatalf("look: %v", err)
	}
}

// states returns the config keys by what they do.
func (d *desk) keyStates() []string {
	d.t.Helper()
	resp, err := d.trustService().GetTrust(context.Background(), &fealtyv1.GetTrustRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	var out []string
	for _, k := range resp.GetTrust().GetConfigKeys() {
		out = append(out, fmt.Sprintf("%d %s", k.GetNumber(), k.GetState()))
	}
	return out
}

// member is a node that keeps what it accepted, as its disk does, and reports it.
type keeping struct {
	*reader
	m    *machine
	disk *snapshot.Signed   // its node_runtime
	v    *snapshot.Verified // what it knows of it
}

func (d *desk) keeping(name string) *keeping {
	d.t.Helper()
	m := d.joined(name)
	return &keeping{reader: m.reader(), m: m}
}

// fetch takes the newest bundle and then what is published, as a stream delivers it.
func (k *keeping) fetch(d *desk) error {
	k.follow(d)
	return k.pull(d)
}

// pull takes what is published, by the bundle that the member has.
func (k *keeping) pull(d *desk) error {
	d.t.Helper()
	p := d.c.Rooms().Publication.View()
	i, ok := p.Find(publication.RuntimePath(string(k.m.id.Kind()) + "/" + k.m.id.Name()))
	if !ok {
		return errors.New("nothing is published for it")
	}
	signed, err := p.Signed(i)
	if err != nil {
		return err
	}
	v, err := k.read(d, p)
	if r, ok := errors.AsType[*snapshot.RejectedError](err); ok && r.Reason == snapshot.ReasonUnchanged {
		return k.start(d) // it looks at what it has under the bundle that it has
	}
	if err == nil {
		k.disk, k.v = signed, v
	}
	return err
}

// start verifies what is on disk, as after a restart out of all contact.
func (k *keeping) start(d *desk) error {
	if k.disk == nil {
		return nil
	}
	v, err := snapshot.Recheck(k.disk, k.trust, k.marks, d.clock())
	if err == nil {
		k.v = v
	}
	return err
}

// report tells a coordinator what the member holds.
func (k *keeping) report(d *desk, c *coordinator.Coordinator) {
	h := k.trust.Bundle.Header()
	held := []*fealtyv1.HeldSnapshot{{Scope: string(snapshot.ScopeTrustBundle), AuthorityEpoch: h.AuthorityEpoch,
		ConfigVersion: h.ConfigVersion}}
	if k.v != nil {
		held = append(held, &fealtyv1.HeldSnapshot{Scope: string(snapshot.ScopeNodeRuntime),
			Signers: k.v.SignerKeyIDs()})
	}
	c.Rooms().Membership.Live().Opened(k.m.id, "")
	c.Rooms().Membership.Live().Reported(k.m.id, &fealtyv1.ConnectRequest{Held: held}, d.clock())
}

// The old key leaves when every member holds everything under the new one, and not
// before. One that is away all the time finds its way back.
func TestRotation(t *testing.T) {
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("away %v", away), func(t *testing.T) {
			d := testDesk(t)
			members := []*keeping{d.keeping("a"), d.keeping("b")}
			b := publication.NewPublisher()
			d.follow(d.c)
			d.mustPublish(b)
			for _, m := range members {
				if err := m.fetch(d); err != nil {
					t.Fatal(err)
				}
				m.report(d, d.c)
			}
			resp := d.rotate(time.Hour)
			if got := d.keyStates(); !slices.Equal(got, []string{"1 leaving", "2 introduced"}) ||
				resp.GetNumber() != 2 {
				t.Fatalf("keys %v, %v", got, resp)
			}
			_, err := d.trustService().RotateConfigKey(t.Context(), &fealtyv1.RotateConfigKeyRequest{})
			wantOnly(t, "a second rotation", err, explain.TrustRotating)
			// Who has the bundle of before reads what both keys sign.
			if n := len(d.mustPublish(b).State.Value.Signatures); n != 2 {
				t.Fatalf("%d signatures", n)
			}
			for i, m := range members {
				if err := m.pull(d); err != nil {
					t.Fatalf("member %d under its old bundle: %v", i, err)
				}
			}
			d.mustLook()
			if got := d.keyStates(); len(got) != 2 {
				t.Fatalf("nobody confirmed, and the keys are %v", got)
			}
			// The bundle alone is not enough: what is on disk has to stand on the new key.
			half := members[0].trust.Bundle
			members[0].follow(d)
			members[0].report(d, d.c)
			d.mustLook()
			if got := d.keyStates(); len(got) != 2 {
				t.Fatalf("a member has the bundle alone, and the keys are %v", got)
			}
			if half.Header().ConfigVersion >= members[0].trust.Bundle.Header().ConfigVersion {
				t.Fatal("the bundle has no version of its own")
			}
			for i, m := range members {
				if away && i == 1 {
					continue
				}
				if err := m.fetch(d); err != nil {
					t.Fatal(err)
				}
				m.report(d, d.c)
			}
			d.mustLook()
			trust := func() *fealtyv1.Trust {
				resp, err := d.trustService().GetTrust(t.Context(), &fealtyv1.GetTrustRequest{})
				if err != nil {
					t.Fatal(err)
				}
				return resp.GetTrust()
			}
			how, missing := "confirmed", []string(nil)
			if away {
				how, missing = "deadline", []string{"data/b"}
				if r := trust().GetRotation(); r.GetMembers() != 2 || r.GetConfirmed() != 1 ||
					!slices.Equal(r.GetMissing(), missing) {
					t.Fatalf("progress %v", r)
				}
				d.advance(time.Hour)
				d.mustLook()
			}
			if got := d.keyStates(); !slices.Equal(got, []string{"2 signing"}) {
				t.Fatalf("keys %v", got)
			}
			if r := trust().GetLastRotation(); r.GetEnded() != how || !slices.Equal(r.GetMissing(), missing) {
				t.Fatalf("it ended %v", r)
			}
			if keys := d.store.keys(trustpkg.RolloutPrefix); len(keys) != 0 {
				t.Errorf("left over: %v", keys)
			}
			if n := len(d.mustPublish(b).State.Value.Signatures); n != 1 {
				t.Fatalf("%d signatures", n)
			}
			for i, m := range members {
				if away && i == 1 {
					if err := m.pull(d); !errors.Is(err, snapshot.ErrRejected) {
						t.Fatalf("a member reads what a key signed that it does not know: %v", err)
					}
					if err := m.start(d); err != nil {
						t.Fatalf("what it has is gone: %v", err)
					}
				}
				if err := m.fetch(d); err != nil {
					t.Fatalf("member %d comes back: %v", i, err)
				}
				if err := m.start(d); err != nil {
					t.Fatalf("member %d starts: %v", i, err)
				}
			}
			// And once more: numbers are not used again.
			if n := d.rotate(time.Hour).GetNumber(); n != 3 {
				t.Errorf("the next key has number %d", n)
			}
		})
	}
}

// A key that somebody else may hold signs nothing more, at once: what it signed
// before and later is refused by who has the bundle, and everything is signed again.
func TestCompromisedKey(t *testing.T) {
	t.Parallel()
	d := testDesk(t)
	m := d.keeping("a")
	b := publication.NewPublisher()
	d.follow(d.c)
	d.mustPublish(b)
	if err := m.fetch(d); err != nil {
		t.Fatal(err)
	}
	stolen := d.state().Bundle.KeyID(1)
	compromised := func(key, reason string, dry bool) (*fealtyv1.RotateConfigKeyResponse, error) {
		return d.trustService().RotateConfigKey(t.Context(),
			&fealtyv1.RotateConfigKeyRequest{Compromised: key, Reason: reason, DryRun: dry})
	}
	_, err := compromised(stolen, "", false)
	wantOnly(t, "no reason", err, explain.RequestField)
	_, err = compromised("0123456789abcdef", "x", false)
	wantOnly(t, "another key", err, explain.NotFound)
	_, err = d.trustService().RotateConfigKey(t.Context(),
		&fealtyv1.RotateConfigKeyRequest{Compromised: stolen, Reason: "x", Deadline: durationpb.New(time.Hour)})
	wantOnly(t, "a deadline", err, explain.RequestField)
	if _, err := compromised(stolen, "stolen", true); err != nil || len(d.keyStates()) != 1 {
		t.Fatalf("a dry run made the keys %v (%v)", d.keyStates(), err)
	}
	before := d.c.Rooms().Publication.View()
	resp, err := compromised(stolen, "stolen", false)
	if err != nil || resp.GetNumber() != 2 {
		t.Fatalf("%v (%v)", resp, err)
	}
	if got := d.keyStates(); !slices.Equal(got, []string{"1 revoked", "2 signing"}) {
		t.Fatalf("keys %v", got)
	}
	again, err := compromised(stolen, "stolen", false)
	if err != nil || again.GetNumber() != 2 {
		t.Fatalf("twice: %v (%v)", again, err)
	}
	p := d.mustPublish(b)
	if len(p.State.Value.Signatures) != 1 || p.State.Value.Generation == before.State.Value.Generation {
		t.Fatal("what was published is not signed again")
	}
	m.follow(d)
	if err := m.start(d); err == nil {
		t.Fatal("what the stolen key signed is used at a start")
	}
	if err := m.pull(d); err != nil {
		t.Fatalf("what the new key signs: %v", err)
	}
	// What the thief signs now: the same tree, in a generation to come.
	r := snapshot.Record{
		ClusterID: testCluster, AuthorityEpoch: d.state().Head.AuthorityEpoch,
		Generation: p.State.Value.Generation + 1000,
		Root:       p.Tree.Root(), TreeSize: p.Tree.Size(), IssuedAt: d.clock(), FreshUntil: d.clock().Add(time.Hour),
		Revocations: d.c.Rooms().Bundle.View().Revocations,
	}
	forged, err := r.Sign(d.state().Secrets.ConfigSigning(1))
	if err != nil {
		t.Fatal(err)
	}
	i, _ := p.Find(publication.RuntimePath("data/a"))
	signed, err := p.Signed(i)
	if err != nil {
		t.Fatal(err)
	}
	signed.Publication = forged
	_, err = snapshot.Verify(signed, m.trust, m.marks, d.clock())
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != snapshot.ReasonSigner {
		t.Fatalf("what the stolen key signed later: %v", err)
	}
	// It survives a restart, another replica agrees, and another rotation keeps it.
	d.restart()
	d.rotate(time.Hour)
	if got := d.keyStates(); !slices.Equal(got, []string{"1 revoked", "2 leaving", "3 introduced"}) {
		t.Fatalf("keys %v", got)
	}
	// Stolen meanwhile: of the two that sign, the other one is left, and the rotation over.
	if _, err := d.trustService().RotateConfigKey(t.Context(),
		&fealtyv1.RotateConfigKeyRequest{Compromised: d.state().Bundle.KeyID(2), Reason: "too"}); err != nil {
		t.Fatal(err)
	}
	if got := d.keyStates(); !slices.Equal(got, []string{"1 revoked", "2 revoked", "3 signing"}) {
		t.Fatalf("keys %v", got)
	}
	m.follow(d)
	content, _ := m.trust.Bundle.TrustBundle()
	if n := len(content.ConfigKeys); n != 3 {
		t.Fatalf("%d keys in the bundle", n)
	}
	for _, k := range content.ConfigKeys {
		if k.Revoked == (slices.Equal(k.Key, d.state().Bundle.PublicKey(3))) {
			t.Errorf("key %s: revoked %v", k.ID(), k.Revoked)
		}
	}
	// At the limit nothing is revoked by halves.
	for range snapshot.MaxConfigKeys {
		n, _ := d.c.Rooms().Bundle.View().ConfigKeys[len(d.c.Rooms().Bundle.View().ConfigKeys)-1], 0
		if _, err = compromised(d.state().Bundle.KeyID(n.Number), "again", false); err != nil {
			break
		}
	}
	wantOnly(t, "a full list", err, explain.TrustFull)
	// The signers still have room: an admin who used up his does not take theirs.
	last := d.c.Rooms().Bundle.View().ConfigKeys[len(d.c.Rooms().Bundle.View().ConfigKeys)-1]
	raw := d.statement(1, func(e *snapshot.Emergency) {
		e.ConfigKeys = []snapshot.Digest{snapshot.DigestOf(d.state().Bundle.PublicKey(last.Number))}
	})
	if _, err := d.trustService().ApplyEmergency(t.Context(),
		&fealtyv1.ApplyEmergencyRequest{Statement: raw}); err != nil {
		t.Errorf("a statement of the signers, when an admin used up the keys: %v", err)
	}
}

// What a crash leaves at each step is what the next start, or another replica, goes
// on from.
func TestRotationCrashes(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"rotate.introduce.before-commit", "rotate.introduce.after-commit",
		"rotate.before-end", "rotate.after-end", "publish.before-commit", "publish.after-commit"} {
		t.Run(point, func(t *testing.T) {
			d := testDesk(t)
			m := d.keeping("a")
			d.follow(d.c)
			d.mustPublish(publication.NewPublisher())
			if err := m.fetch(d); err != nil {
				t.Fatal(err)
			}
			crash := errors.New("crash")
			d.faults.FailNext(point, 1, crash)
			crashed := false
			step := func(f func() error) {
				t.Helper()
				if err := f(); errors.Is(err, crash) {
					crashed = true
					d.restart()
					d.follow(d.c)
				} else if err != nil && !errors.Is(err, explain.TrustRotating) {
					t.Fatal(err)
				}
			}
			for range 4 {
				if got := d.keyStates(); len(got) == 1 && got[0] == "1 signing" {
					step(func() error {
						_, err := d.trustService().RotateConfigKey(t.Context(), &fealtyv1.RotateConfigKeyRequest{})
						return err
					})
				}
				for range 2 { // once more, for one that was cut off
					step(func() error { return d.publishAll(d.c, publication.NewPublisher()) })
				}
				if err := m.fetch(d); err != nil {
					t.Fatalf("keys %v: %v", d.keyStates(), err)
				}
				m.report(d, d.c)
				step(func() error { return d.look(d.c) })
			}
			if got := d.keyStates(); !slices.Equal(got, []string{"2 signing"}) || !crashed {
				t.Fatalf("keys %v, crashed %v", got, crashed)
			}
			if err := m.fetch(d); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Who confirmed at one replica has confirmed for all, also after a restart, and a
// replica that lags neither ends a rotation nor publishes under keys of before.
func TestRotationOfReplicas(t *testing.T) {
	d := testDesk(t)
	other, err := d.another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	wantOnly(t,
		"set", d.set(poolEntries+fmt.Sprintf("  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
			other.Rooms().Self.EnrolmentKey())), "")
	other.Rooms().Authority.Look(t.Context())
	a, b := d.keeping("a"), d.keeping("b")
	d.follow(d.c)
	pub := publication.NewPublisher()
	d.mustPublish(pub)
	d.follow(other)
	if err := d.look(other); err != nil {
		t.Fatal(err)
	}
	d.rotate(time.Hour)
	// The other one has not heard of it: what it would publish is void.
	if err := d.publishAll(other, publication.NewPublisher()); err == nil {
		if n := len(other.Rooms().Publication.View().State.Value.Signatures); n != 2 {
			t.Fatalf("a replica that lags published under %d keys", n)
		}
	}
	d.mustPublish(pub)
	for _, m := range []*keeping{a, b} {
		if err := m.fetch(d); err != nil {
			t.Fatal(err)
		}
	}
	a.report(d, d.c)
	b.report(d, other)
	d.mustLook()
	if got := d.keyStates(); len(got) != 2 {
		t.Fatalf("one of two confirmed here, and the keys are %v", got)
	}
	d.restart()
	d.follow(d.c)
	for range 2 { // the first look reads that there is a rotation
		if err := d.look(other); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.keyStates(); !slices.Equal(got, []string{"2 signing"}) {
		t.Fatalf("each confirmed at one replica, and the keys are %v", got)
	}
	if err := d.look(d.c); err != nil {
		t.Fatal(err)
	}
	if x, y := d.c.Rooms().Bundle.View(), other.Rooms().Bundle.View(); x.Version != y.Version ||
		x.ContentHash != y.ContentHash {
		t.Error("the replicas do not agree")
	}
}

// A view of the members that was not read yet ends no rotation: it shows nobody who
// has not confirmed.
func TestRotationWaitsForTheMembers(t *testing.T) {
	d := testDesk(t)
	d.keeping("a")
	d.rotate(time.Hour)
	d.restart()
	if err := d.look(d.c); err != nil {
		t.Fatal(err)
	}
	if got := d.keyStates(); len(got) != 2 {
		t.Fatalf("keys %v", got)
	}
}

// In whatever order things happen, no member is without config: what it has on disk
// stands under the bundle that it has, and when it hears from a coordinator it reads
// what is published.
func TestRotationLosesNoConfig(t *testing.T) {
	if raceDetector {
		fewerChecks(t, "10")
	}
	rapid.Check(t, func(rt *rapid.T) {
		d := readyDesk(rt, "")
		d.t = rt
		defer func() { _ = d.c.Close() }()
		wantOnlyNil(rt, d.set(poolEntries))
		var members []*keeping
		for i := range 3 {
			members = append(members, d.keeping(string(rune('a'+i))))
		}
		pub := publication.NewPublisher()
		d.follow(d.c)
		d.mustPublish(pub)
		for _, m := range members {
			wantOnlyNil(rt, m.fetch(d))
		}
		member := rapid.SampledFrom(members)
		rt.Repeat(map[string]func(*rapid.T){
			"rotate": func(rt *rapid.T) {
				_, err := d.trustService().RotateConfigKey(context.Background(),
					&fealtyv1.RotateConfigKeyRequest{Deadline: durationpb.New(time.Duration(rapid.IntRange(1,
						100).Draw(rt, "minutes")) * time.Minute)})
				if err != nil && !errors.Is(err, explain.TrustRotating) && !errors.Is(err, explain.TrustFull) {
					rt.Fatal(err)
				}
			},
			"compromised": func(rt *rapid.T) {
				keys := d.c.Rooms().Bundle.View().ConfigKeys
				k := rapid.SampledFrom(keys).Draw(rt, "key")
				_, err := d.trustService().RotateConfigKey(context.Background(),
					&fealtyv1.RotateConfigKeyRequest{Compromised: d.state().Bundle.KeyID(k.Number), Reason: "test"})
				if err != nil && !errors.Is(err, explain.TrustFull) {
					rt.Fatal(err)
				}
			},
			"publish": func(*rapid.T) { d.mustPublish(pub) },
			"comes": func(rt *rapid.T) {
				m := member.Draw(rt, "member")
				m.follow(d)
				d.mustPublish(pub)
				wantOnlyNil(rt, m.pull(d))
				wantOnlyNil(rt, m.start(d))
				m.report(d, d.c)
			},
			"look":    func(*rapid.T) { d.mustLook() },
			"time":    func(rt *rapid.T) { d.advance(time.Duration(rapid.IntRange(1, 60).Draw(rt, "minutes")) * time.Minute) },
			"restart": func(*rapid.T) { d.restart(); d.follow(d.c); wantOnlyNil(rt, d.look(d.c)) },
			"": func(rt *rapid.T) {
				signing := 0
				for _, k := range d.c.Rooms().Bundle.View().ConfigKeys {
					if k.Signing(d.clock()) {
						signing++
					}
				}
				if signing < 1 || signing > snapshot.MaxSignatures {
					rt.Fatalf("%d keys sign", signing)
				}
				for _, m := range members {
					wantOnlyNil(rt, m.start(d))
				}
			},
		})
	})
}

func wantOnlyNil(t rapidTB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
