package trust_test

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
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	trustpkg "github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/errcode"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

// look does what the loops of c do on one round: the trust state, the rotation.
func look(d *coordinatortest.Desk, c *coordinator.Coordinator) error {
	d.Lead(c)
	s := c.Parts().Head.State()
	if err := c.Parts().Bundle.Refresh(context.Background(), s, true); err != nil {
		return err
	}
	return c.Parts().Trust.FollowRotation(context.Background(), s)
}

func mustLook(d *coordinatortest.Desk) {
	d.T.Helper()
	coordinatortest.FollowMembers(d, d.C)
	if err := look(d, d.C); err != nil {
		d.T.Fatalf("look: %v", err)
	}
}

// states returns the config keys by what they do.
func keyStates(d *coordinatortest.Desk) []string {
	d.T.Helper()
	resp, err := coordinatortest.TrustService(d).GetTrust(context.Background(), &fealtyv1.GetTrustRequest{})
	if err != nil {
		d.T.Fatal(err)
	}
	var out []string
	for _, k := range resp.GetTrust().GetConfigKeys() {
		out = append(out, fmt.Sprintf("%d %s", k.GetNumber(), k.GetState()))
	}
	return out
}

// member is a node that keeps what it accepted, as its disk does, and reports it.
type keeping struct {
	*coordinatortest.Reader
	m    *coordinatortest.Machine
	disk *snapshot.Signed   // its node_runtime
	v    *snapshot.Verified // what it knows of it
}

func keepingAt(d *coordinatortest.Desk, name string) *keeping {
	d.T.Helper()
	m := d.Joined(name)
	return &keeping{Reader: coordinatortest.ReaderOf(m), m: m}
}

// fetch takes the newest bundle and then what is published, as a stream delivers it.
func (k *keeping) fetch(d *coordinatortest.Desk) error {
	k.Follow(d)
	return k.pull(d)
}

// pull takes what is published, by the bundle that the member has.
func (k *keeping) pull(d *coordinatortest.Desk) error {
	d.T.Helper()
	p := d.C.Parts().Publication.View()
	i, ok := p.Find(publication.RuntimePath(string(k.m.ID.Kind()) + "/" + k.m.ID.Name()))
	if !ok {
		return errors.New("nothing is published for it")
	}
	signed, err := p.Signed(i)
	if err != nil {
		return err
	}
	v, err := k.Read(d, p)
	if r, ok := errors.AsType[*snapshot.RejectedError](err); ok && r.Reason == snapshot.ReasonUnchanged {
		return k.start(d) // it looks at what it has under the bundle that it has
	}
	if err == nil {
		k.disk, k.v = signed, v
	}
	return err
}

// start verifies what is on disk, as after a restart out of all contact.
func (k *keeping) start(d *coordinatortest.Desk) error {
	if k.disk == nil {
		return nil
	}
	v, err := snapshot.Recheck(k.disk, k.Trust, k.Marks, d.Clock())
	if err == nil {
		k.v = v
	}
	return err
}

// report tells a coordinator what the member holds.
func (k *keeping) report(d *coordinatortest.Desk, c *coordinator.Coordinator) {
	h := k.Trust.Bundle.Header()
	held := []*fealtyv1.HeldSnapshot{{Scope: string(snapshot.ScopeTrustBundle), AuthorityEpoch: h.AuthorityEpoch,
		ConfigVersion: h.ConfigVersion}}
	if k.v != nil {
		held = append(held, &fealtyv1.HeldSnapshot{Scope: string(snapshot.ScopeNodeRuntime),
			Signers: k.v.SignerKeyIDs()})
	}
	c.Parts().Membership.Live().Opened(k.m.ID, "")
	c.Parts().Membership.Live().Reported(k.m.ID, &fealtyv1.ConnectRequest{Held: held}, d.Clock())
}

// The old key leaves when every member holds everything under the new one, and not
// before. One that is away all the time finds its way back.
func TestRotation(t *testing.T) {
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("away %v", away), func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			members := []*keeping{keepingAt(d, "a"), keepingAt(d, "b")}
			b := publication.NewPublisher()
			coordinatortest.FollowMembers(d, d.C)
			coordinatortest.MustPublish(d, b)
			for _, m := range members {
				if err := m.fetch(d); err != nil {
					t.Fatal(err)
				}
				m.report(d, d.C)
			}
			resp := coordinatortest.Rotate(d, time.Hour)
			if got := keyStates(d); !slices.Equal(got, []string{"1 leaving", "2 introduced"}) ||
				resp.GetNumber() != 2 {
				t.Fatalf("keys %v, %v", got, resp)
			}
			_, err := coordinatortest.TrustService(d).RotateConfigKey(t.Context(), &fealtyv1.RotateConfigKeyRequest{})
			coordinatortest.WantOnly(t, "a second rotation", err, errcode.TrustRotating)
			// A member with the bundle of before reads what both keys sign.
			if n := len(coordinatortest.MustPublish(d, b).State.Value.Signatures); n != 2 {
				t.Fatalf("%d signatures", n)
			}
			for i, m := range members {
				if err := m.pull(d); err != nil {
					t.Fatalf("member %d under its old bundle: %v", i, err)
				}
			}
			mustLook(d)
			if got := keyStates(d); len(got) != 2 {
				t.Fatalf("nobody confirmed, and the keys are %v", got)
			}
			// The bundle alone is not enough: what is on disk has to stand on the new key.
			half := members[0].Trust.Bundle
			members[0].Follow(d)
			members[0].report(d, d.C)
			mustLook(d)
			if got := keyStates(d); len(got) != 2 {
				t.Fatalf("a member has the bundle alone, and the keys are %v", got)
			}
			if half.Header().ConfigVersion >= members[0].Trust.Bundle.Header().ConfigVersion {
				t.Fatal("the bundle has no version of its own")
			}
			for i, m := range members {
				if away && i == 1 {
					continue
				}
				if err := m.fetch(d); err != nil {
					t.Fatal(err)
				}
				m.report(d, d.C)
			}
			mustLook(d)
			trust := func() *fealtyv1.Trust {
				resp, err := coordinatortest.TrustService(d).GetTrust(t.Context(), &fealtyv1.GetTrustRequest{})
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
				d.Advance(time.Hour)
				mustLook(d)
			}
			if got := keyStates(d); !slices.Equal(got, []string{"2 signing"}) {
				t.Fatalf("keys %v", got)
			}
			if r := trust().GetLastRotation(); r.GetEnded() != how || !slices.Equal(r.GetMissing(), missing) {
				t.Fatalf("it ended %v", r)
			}
			if keys := d.Store.Keys(trustpkg.RolloutPrefix); len(keys) != 0 {
				t.Errorf("left over: %v", keys)
			}
			if n := len(coordinatortest.MustPublish(d, b).State.Value.Signatures); n != 1 {
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
			if n := coordinatortest.Rotate(d, time.Hour).GetNumber(); n != 3 {
				t.Errorf("the next key has number %d", n)
			}
		})
	}
}

// A key that left in a rotation is told to verifiers of tokens for some minutes. Where somebody else
// may hold it, it is told no more, at once.
func TestCompromisedKeyThatLeft(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	told := func() int {
		t.Helper()
		resp, err := coordinatortest.TrustService(d).GetTrust(t.Context(), &fealtyv1.GetTrustRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return len(resp.GetTrust().GetTokenKeys())
	}
	coordinatortest.Rotate(d, time.Hour)
	d.Advance(time.Hour)
	mustLook(d)
	if got := keyStates(d); !slices.Equal(got, []string{"2 signing"}) || told() != 3 {
		t.Fatalf("keys %v, %d are told", got, told())
	}
	compromised := func() error {
		_, err := coordinatortest.TrustService(d).RotateConfigKey(t.Context(),
			&fealtyv1.RotateConfigKeyRequest{Compromised: d.State().Bundle.KeyID(1), Reason: "stolen"})
		return err
	}
	if err := compromised(); err != nil {
		t.Fatal(err)
	}
	if got := keyStates(d); !slices.Equal(got, []string{"2 signing"}) || told() != 2 {
		t.Errorf("keys %v, %d are told", got, told())
	}
	if keys, _, err := d.C.Parts().Bundle.View().VerifierKeys(d.State().Bundle, d.Clock()); err != nil || len(keys) != 2 {
		t.Errorf("%d keys are served (%v)", len(keys), err)
	}
	coordinatortest.WantOnly(t, "once more", compromised(), errcode.NotFound)
}

// A key that somebody else may hold signs nothing more, at once: what it signed
// before and later is refused by who has the bundle, and everything is signed again.
func TestCompromisedKey(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	m := keepingAt(d, "a")
	b := publication.NewPublisher()
	coordinatortest.FollowMembers(d, d.C)
	coordinatortest.MustPublish(d, b)
	if err := m.fetch(d); err != nil {
		t.Fatal(err)
	}
	stolen := d.State().Bundle.KeyID(1)
	compromised := func(key, reason string, dry bool) (*fealtyv1.RotateConfigKeyResponse, error) {
		return coordinatortest.TrustService(d).RotateConfigKey(t.Context(),
			&fealtyv1.RotateConfigKeyRequest{Compromised: key, Reason: reason, DryRun: dry})
	}
	_, err := compromised(stolen, "", false)
	coordinatortest.WantOnly(t, "no reason", err, errcode.RequestField)
	_, err = compromised("0123456789abcdef", "x", false)
	coordinatortest.WantOnly(t, "another key", err, errcode.NotFound)
	_, err = coordinatortest.TrustService(d).RotateConfigKey(t.Context(),
		&fealtyv1.RotateConfigKeyRequest{Compromised: stolen, Reason: "x", Deadline: durationpb.New(time.Hour)})
	coordinatortest.WantOnly(t, "a deadline", err, errcode.RequestField)
	if _, err := compromised(stolen, "stolen", true); err != nil || len(keyStates(d)) != 1 {
		t.Fatalf("a dry run made the keys %v (%v)", keyStates(d), err)
	}
	before := d.C.Parts().Publication.View()
	resp, err := compromised(stolen, "stolen", false)
	if err != nil || resp.GetNumber() != 2 {
		t.Fatalf("%v (%v)", resp, err)
	}
	if got := keyStates(d); !slices.Equal(got, []string{"1 revoked", "2 signing"}) {
		t.Fatalf("keys %v", got)
	}
	again, err := compromised(stolen, "stolen", false)
	if err != nil || again.GetNumber() != 2 {
		t.Fatalf("twice: %v (%v)", again, err)
	}
	p := coordinatortest.MustPublish(d, b)
	if len(p.State.Value.Signatures) != 1 || p.State.Value.Generation == before.State.Value.Generation {
		t.Fatal("what was published is not signed again")
	}
	m.Follow(d)
	if err := m.start(d); err == nil {
		t.Fatal("what the stolen key signed is used at a start")
	}
	if err := m.pull(d); err != nil {
		t.Fatalf("what the new key signs: %v", err)
	}
	// The thief's signatures from now on: the same tree, in a generation to come.
	r := snapshot.Record{
		ClusterID: coordinatortest.Cluster, AuthorityEpoch: d.State().Head.AuthorityEpoch,
		Generation: p.State.Value.Generation + 1000,
		Root:       p.Tree.Root(), TreeSize: uint64(p.Tree.Size()), IssuedAt: d.Clock(), FreshUntil: d.Clock().Add(time.Hour),
		Revocations: d.C.Parts().Bundle.View().Revocations,
	}
	forged, err := r.Sign(d.State().Secrets.ConfigSigning(1))
	if err != nil {
		t.Fatal(err)
	}
	i, _ := p.Find(publication.RuntimePath("data/a"))
	signed, err := p.Signed(i)
	if err != nil {
		t.Fatal(err)
	}
	signed.Publication = forged
	_, err = snapshot.Verify(signed, m.Trust, m.Marks, d.Clock())
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != internalsnapshot.ReasonSigner {
		t.Fatalf("what the stolen key signed later: %v", err)
	}
	// It survives a restart, another replica agrees, and another rotation keeps it.
	d.Restart()
	coordinatortest.Rotate(d, time.Hour)
	if got := keyStates(d); !slices.Equal(got, []string{"1 revoked", "2 leaving", "3 introduced"}) {
		t.Fatalf("keys %v", got)
	}
	// Stolen meanwhile: of the two that sign, the other one is left, and the rotation over.
	if _, err := coordinatortest.TrustService(d).RotateConfigKey(t.Context(),
		&fealtyv1.RotateConfigKeyRequest{Compromised: d.State().Bundle.KeyID(2), Reason: "too"}); err != nil {
		t.Fatal(err)
	}
	if got := keyStates(d); !slices.Equal(got, []string{"1 revoked", "2 revoked", "3 signing"}) {
		t.Fatalf("keys %v", got)
	}
	m.Follow(d)
	content, _ := m.Trust.Bundle.TrustBundle()
	if n := len(content.ConfigKeys); n != 3 {
		t.Fatalf("%d keys in the bundle", n)
	}
	for _, k := range content.ConfigKeys {
		if k.Revoked == (slices.Equal(k.Key, d.State().Bundle.PublicKey(3))) {
			t.Errorf("key %s: revoked %v", k.ID(), k.Revoked)
		}
	}
	// At the limit nothing is revoked by halves.
	for range internalsnapshot.MaxConfigKeys {
		n, _ := d.C.Parts().Bundle.View().ConfigKeys[len(d.C.Parts().Bundle.View().ConfigKeys)-1], 0
		if _, err = compromised(d.State().Bundle.KeyID(n.Number), "again", false); err != nil {
			break
		}
	}
	coordinatortest.WantOnly(t, "a full list", err, errcode.TrustFull)
	// The signers still have room: an admin who used up his does not take theirs.
	last := d.C.Parts().Bundle.View().ConfigKeys[len(d.C.Parts().Bundle.View().ConfigKeys)-1]
	raw := coordinatortest.Statement(d, 1, func(e *trust.Emergency) {
		e.ConfigKeys = []snapshot.Digest{snapshot.DigestOf(d.State().Bundle.PublicKey(last.Number))}
	})
	if _, err := coordinatortest.TrustService(d).ApplyEmergency(t.Context(),
		&fealtyv1.ApplyEmergencyRequest{Statement: raw}); err != nil {
		t.Errorf("a statement of the signers, when an admin used up the keys: %v", err)
	}
}

// The next start, or another replica, goes on from what a crash leaves at each step.
func TestRotationCrashes(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"rotate.introduce.before-commit", "rotate.introduce.after-commit",
		"rotate.before-end", "rotate.after-end", "publish.before-commit", "publish.after-commit"} {
		t.Run(point, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			m := keepingAt(d, "a")
			coordinatortest.FollowMembers(d, d.C)
			coordinatortest.MustPublish(d, publication.NewPublisher())
			if err := m.fetch(d); err != nil {
				t.Fatal(err)
			}
			crash := errors.New("crash")
			d.Faults.FailNext(point, 1, crash)
			crashed := false
			step := func(f func() error) {
				t.Helper()
				if err := f(); errors.Is(err, crash) {
					crashed = true
					d.Restart()
					coordinatortest.FollowMembers(d, d.C)
				} else if err != nil && !errors.Is(err, errcode.TrustRotating) {
					t.Fatal(err)
				}
			}
			for range 4 {
				if got := keyStates(d); len(got) == 1 && got[0] == "1 signing" {
					step(func() error {
						_, err := coordinatortest.TrustService(d).RotateConfigKey(t.Context(),
							&fealtyv1.RotateConfigKeyRequest{})
						return err
					})
				}
				for range 2 { // once more, for one that was cut off
					step(func() error { return coordinatortest.PublishAll(d, d.C, publication.NewPublisher()) })
				}
				if err := m.fetch(d); err != nil {
					t.Fatalf("keys %v: %v", keyStates(d), err)
				}
				m.report(d, d.C)
				step(func() error { return look(d, d.C) })
			}
			if got := keyStates(d); !slices.Equal(got, []string{"2 signing"}) || !crashed {
				t.Fatalf("keys %v, crashed %v", got, crashed)
			}
			if err := m.fetch(d); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A member that confirmed at one replica has confirmed for all, also after a
// restart, and a replica that lags neither ends a rotation nor publishes under keys
// of before.
func TestRotationOfReplicas(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	other, err := d.Another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	coordinatortest.WantOnly(t,
		"set", d.Set(coordinatortest.PoolEntries+fmt.Sprintf(
			"  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
			other.Parts().Self.EnrolmentKey())), "")
	other.Parts().Moves.Succession.Look(t.Context())
	a, b := keepingAt(d, "a"), keepingAt(d, "b")
	coordinatortest.FollowMembers(d, d.C)
	pub := publication.NewPublisher()
	coordinatortest.MustPublish(d, pub)
	coordinatortest.FollowMembers(d, other)
	if err := look(d, other); err != nil {
		t.Fatal(err)
	}
	coordinatortest.Rotate(d, time.Hour)
	// The other one has not heard of it: what it would publish is void.
	if err := coordinatortest.PublishAll(d, other, publication.NewPublisher()); err == nil {
		if n := len(other.Parts().Publication.View().State.Value.Signatures); n != 2 {
			t.Fatalf("a replica that lags published under %d keys", n)
		}
	}
	coordinatortest.MustPublish(d, pub)
	for _, m := range []*keeping{a, b} {
		if err := m.fetch(d); err != nil {
			t.Fatal(err)
		}
	}
	a.report(d, d.C)
	b.report(d, other)
	mustLook(d)
	if got := keyStates(d); len(got) != 2 {
		t.Fatalf("one of two confirmed here, and the keys are %v", got)
	}
	d.Restart()
	coordinatortest.FollowMembers(d, d.C)
	for range 2 { // the first look reads that there is a rotation
		if err := look(d, other); err != nil {
			t.Fatal(err)
		}
	}
	if got := keyStates(d); !slices.Equal(got, []string{"2 signing"}) {
		t.Fatalf("each confirmed at one replica, and the keys are %v", got)
	}
	if err := look(d, d.C); err != nil {
		t.Fatal(err)
	}
	if x, y := d.C.Parts().Bundle.View(), other.Parts().Bundle.View(); x.Version != y.Version ||
		x.ContentHash != y.ContentHash {
		t.Error("the replicas do not agree")
	}
}

// A view of the members that was not read yet ends no rotation: it shows nobody who
// has not confirmed.
func TestRotationWaitsForTheMembers(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	keepingAt(d, "a")
	coordinatortest.Rotate(d, time.Hour)
	d.Restart()
	if err := look(d, d.C); err != nil {
		t.Fatal(err)
	}
	if got := keyStates(d); len(got) != 2 {
		t.Fatalf("keys %v", got)
	}
}

// In whatever order things happen, no member is without config: what it has on disk
// stands under the bundle that it has, and when it hears from a coordinator it reads
// what is published.
func TestRotationLosesNoConfig(t *testing.T) {
	testlane.Checks(t, 8, 1000) // each is a cluster of its own
	rapid.Check(t, func(rt *rapid.T) {
		d := coordinatortest.ReadyDesk(rt, "")
		d.T = rt
		defer func() { _ = d.C.Close() }()
		coordinatortest.WantOnlyNil(rt, d.Set(coordinatortest.PoolEntries))
		var members []*keeping
		for i := range 3 {
			members = append(members, keepingAt(d, string(rune('a'+i))))
		}
		pub := publication.NewPublisher()
		coordinatortest.FollowMembers(d, d.C)
		coordinatortest.MustPublish(d, pub)
		for _, m := range members {
			coordinatortest.WantOnlyNil(rt, m.fetch(d))
		}
		member := rapid.SampledFrom(members)
		rt.Repeat(map[string]func(*rapid.T){
			"rotate": func(rt *rapid.T) {
				_, err := coordinatortest.TrustService(d).RotateConfigKey(context.Background(),
					&fealtyv1.RotateConfigKeyRequest{Deadline: durationpb.New(time.Duration(rapid.IntRange(1,
						100).Draw(rt, "minutes")) * time.Minute)})
				if err != nil && !errors.Is(err, errcode.TrustRotating) && !errors.Is(err, errcode.TrustFull) {
					rt.Fatal(err)
				}
			},
			"compromised": func(rt *rapid.T) {
				keys := d.C.Parts().Bundle.View().ConfigKeys
				k := rapid.SampledFrom(keys).Draw(rt, "key")
				_, err := coordinatortest.TrustService(d).RotateConfigKey(context.Background(),
					&fealtyv1.RotateConfigKeyRequest{Compromised: d.State().Bundle.KeyID(k.Number), Reason: "test"})
				if err != nil && !errors.Is(err, errcode.TrustFull) {
					rt.Fatal(err)
				}
			},
			"publish": func(*rapid.T) { coordinatortest.MustPublish(d, pub) },
			"comes": func(rt *rapid.T) {
				m := member.Draw(rt, "member")
				m.Follow(d)
				coordinatortest.MustPublish(d, pub)
				coordinatortest.WantOnlyNil(rt, m.pull(d))
				coordinatortest.WantOnlyNil(rt, m.start(d))
				m.report(d, d.C)
			},
			"look": func(*rapid.T) { mustLook(d) },
			"time": func(rt *rapid.T) {
				d.Advance(time.Duration(rapid.IntRange(1, 60).Draw(rt,
					"minutes")) * time.Minute)
			},
			"restart": func(*rapid.T) {
				d.Restart()
				coordinatortest.FollowMembers(d, d.C)
				coordinatortest.WantOnlyNil(rt, look(d, d.C))
			},
			"": func(rt *rapid.T) {
				signing := 0
				for _, k := range d.C.Parts().Bundle.View().ConfigKeys {
					if k.Signing(d.Clock()) {
						signing++
					}
				}
				if signing < 1 || signing > internalsnapshot.MaxSignatures {
					rt.Fatalf("%d keys sign", signing)
				}
				for _, m := range members {
					coordinatortest.WantOnlyNil(rt, m.start(d))
				}
			},
		})
	})
}
