package owner_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// gatheredIn returns the keys of all shares that gather in a store.
func gatheredIn(t coordinatortest.TB, st store.Store) []string {
	t.Helper()
	l, err := st.List(context.Background(), owner.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range l.Entries {
		if !strings.HasPrefix(e.Key, owner.OpenPrefix) {
			out = append(out, e.Key)
		}
	}
	return out
}

// lostDesk returns a desk with three coordinators in its manifest, two of whose
// three owners it takes, after all of them stopped: d.c and the others hold nothing.
func lostDesk(t coordinatortest.TB) (d *coordinatortest.Desk, p *coordinatortest.People,
	others []*coordinator.Coordinator) {
	t.Helper()
	d, p = coordinatortest.NewDesk(t), coordinatortest.NewPeople(t, "carol", "alice",
		"bob") // not sorted, as in any manifest
	d.Seed = p.Seed(2, "")
	entries := coordinatortest.PoolEntries
	for _, dir := range []string{"two", "three"} {
		c, err := d.Another(dir)
		if err != nil {
			t.Fatalf("open %s: %v", dir, err)
		}
		entries += fmt.Sprintf("  - {name: coordinator-%s, kind: coordinator, match: [\"key:%s\"]}\n", dir,
			c.Parts().Self.EnrolmentKey())
		others = append(others, c)
	}
	if err := d.Set(entries); err != nil {
		t.Fatalf("first set: %v", err)
	}
	d.Restart()
	for i, c := range others {
		others[i] = againAt(d, c)
	}
	return d, p, others
}

// againAt starts another coordinator of the desk anew.
func againAt(d *coordinatortest.Desk, c *coordinator.Coordinator) *coordinator.Coordinator {
	d.T.Helper()
	if err := c.Close(); err != nil {
		d.T.Fatal(err)
	}
	c, err := d.Another(d.Dir(c))
	if err != nil {
		d.T.Fatal(err)
	}
	return c
}

func wantPhaseOf(t coordinatortest.TB, c *coordinator.Coordinator, want string) {
	t.Helper()
	if phase, why := c.Phase(); phase != want {
		t.Fatalf("%s is %s (%s), want %s", c.Parts().Self.EnrolmentKey(), phase, why, want)
	}
}

// Owners that reach different coordinators bring the seed back together: what each
// takes is passed on to all, and one rekey is written.
func TestSharesGatherOverReplicas(t *testing.T) {
	t.Parallel()
	d, p, others := lostDesk(t)
	two, three := others[0], others[1]
	epoch := coordinatortest.MustHead(t, d).AuthorityEpoch
	if got, err := coordinatortest.BringAt(t, d.C, p.ShareFile(d.Store, "alice")); err != nil ||
		!slices.Equal(got.GetBrought(), []string{"alice"}) {
		t.Fatalf("alice: %v, %v", got, err)
	}
	// The second opens an attempt of its own: it says what came there.
	if got, err := coordinatortest.BringAt(t, two, p.ShareFile(d.Store, "bob")); err != nil ||
		!slices.Equal(got.GetBrought(), []string{"bob"}) || got.GetRecovered() {
		t.Fatalf("bob: %v, %v", got, err)
	}
	// The third was asked by an owner who sent nothing yet.
	if _, err := three.Parts().Secrets.OwnerRecovery.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	coordinatortest.WantOnly(t, "go on", three.Parts().Secrets.OwnerRecovery.Look(t.Context()), "")
	wantPhaseOf(t, three, "recovery")
	coordinatortest.WantOnly(t, "go on", d.C.Parts().Secrets.OwnerRecovery.Look(t.Context()), "")
	coordinatortest.WantPhase(d, "ready", "")
	if got := d.State().Head; got.AuthorityEpoch != epoch+1 || got.Reason != "recovered by alice, bob" {
		t.Errorf("the head is %+v", got)
	}
	for _, c := range others {
		owners, shares, err := c.Parts().Secrets.OwnerRecovery.Collected(t.Context(),
			c.Parts().Secrets.OwnerRecovery.Current())
		if err != nil || !slices.Contains(owners, "alice") {
			t.Errorf("%s has the shares of %v (%v)", d.Dir(c), owners, err)
		}
		for _, s := range shares {
			s.Wipe()
		}
		coordinatortest.WantOnly(t, "go on", c.Parts().Secrets.OwnerRecovery.Look(t.Context()), "")
		if got := coordinatortest.MustHead(t, d); got.AuthorityEpoch != epoch+1 {
			t.Fatalf("%s wrote epoch %d", d.Dir(c), got.AuthorityEpoch)
		}
	}
	coordinatortest.WantOneKeyPerEpoch(t, d)
	// Their own attempts at the head of before are over, and what they left goes.
	d.Lead(d.C)
	coordinatortest.WantOnly(t, "prune", d.C.Parts().Secrets.OwnerRecovery.Drop(t.Context(), d.State()), "")
	if left := d.Store.Keys(owner.Prefix); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// Of two that have enough at once one writes the rekey, and no epoch has two keys.
func TestTwoFinishAtOnce(t *testing.T) {
	d, p, others := lostDesk(t)
	two := others[0]
	epoch := coordinatortest.MustHead(t, d).AuthorityEpoch
	for _, c := range []*coordinator.Coordinator{d.C, two} {
		if _, err := c.Parts().Secrets.OwnerRecovery.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := coordinatortest.BringShare(d, p.ShareFile(d.Store, "alice")); err != nil {
		t.Fatal(err)
	}
	d.Faults.Arm("rekey.before-swap", func() error {
		d.Faults.Disarm("rekey.before-swap")
		if err := two.Parts().Secrets.OwnerRecovery.Look(t.Context()); err != nil {
			t.Errorf("the other: %v", err)
		}
		return nil
	})
	_, err := coordinatortest.BringShare(d, p.ShareFile(d.Store, "bob"))
	coordinatortest.WantOnly(t, "bring", err, errcode.RecoveryOver)
	wantPhaseOf(t, two, "ready")
	coordinatortest.WantPhase(d, "recovery", "")
	if got := coordinatortest.MustHead(t, d).AuthorityEpoch; got != epoch+1 {
		t.Errorf("epoch %d, want %d", got, epoch+1)
	}
}

// An acknowledged share is with every attempt that was open, so that no crash of who
// took it costs it; wherever a gathering is cut off it goes on, and the epoch goes up
// once for each head that was written.
func TestGatheringCutOff(t *testing.T) {
	t.Parallel()
	for _, point := range []string{
		"recover.before-tell", "recover.after-tell", "recover.before-store", "recover.after-store",
		"recover.before-pass-on", "recover.after-pass-on", "recover.before-combine", "rekey.before-swap",
		"set.before-swap", "set.after-swap", "adopt.begin", "adopt.before-identity",
	} {
		for _, who := range []string{"taker", "other"} {
			t.Run(point+"/"+who, func(t *testing.T) {
				d, p, others := lostDesk(t)
				two := others[0]
				alice, bob := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob")
				epoch := coordinatortest.MustHead(t, d).AuthorityEpoch
				ask := func(c *coordinator.Coordinator, file keyring.ShareFile) {
					_, err := coordinatortest.BringAt(t, c, file)
					for _, fine := range []error{nil, errcode.RecoveryOver, errcode.RecoveryNotNeeded,
						coordinatortest.ErrCrash} {
						if errors.Is(err, fine) {
							return
						}
					}
					t.Fatalf("the share of %s: %v", file.Owner, err)
				}
				d.Faults.FailNext(point, 1, coordinatortest.ErrCrash)
				ask(d.C, alice)
				ask(two, bob)
				_, _ = d.C.Parts().Secrets.OwnerRecovery.Look(t.Context()),
					two.Parts().Secrets.OwnerRecovery.Look(t.Context()) // the fault may show here
				d.Faults.Disarm(point)
				crashed := &d.C
				if who == "other" {
					crashed = &two
				}
				*crashed = againAt(d, *crashed)
				ready := func() bool {
					return d.State().Phase == authority.Ready ||
						two.Parts().Head.State().Phase == authority.Ready
				}
				for range 4 {
					if ready() {
						break
					}
					ask(d.C, alice)
					ask(two, bob)
					_, _ = d.C.Parts().Secrets.OwnerRecovery.Look(
						t.Context()), two.Parts().Secrets.OwnerRecovery.Look(t.Context())
					d.C.Parts().Moves.Succession.Look(t.Context())
					two.Parts().Moves.Succession.Look(t.Context())
				}
				if !ready() {
					t.Fatalf("nobody is ready: %s, %s", d.State().Reason,
						two.Parts().Head.State().Reason)
				}
				if two.Parts().Head.State().Phase == authority.Ready {
					d.C = two
				}
				coordinatortest.WantOneKeyPerEpoch(t, d)
				// One rekey, and one more if a head was written whose key went with who wrote it.
				if moved := d.State().Head.AuthorityEpoch - epoch; moved < 1 || moved > 2 {
					t.Errorf("the epoch moved by %d", moved)
				}
			})
		}
	}
}

// A store that swaps, drops and damages gathered shares costs time and no more: what
// is no share of that owner for that attempt is removed, and passed on again.
func TestSwappedGatheredShares(t *testing.T) {
	d, p, others := lostDesk(t)
	two := others[0]
	g, err := d.C.Parts().Secrets.OwnerRecovery.Open(t.Context())
	coordinatortest.WantOnly(t, "open", err, "")
	other, err := two.Parts().Secrets.OwnerRecovery.Open(t.Context())
	coordinatortest.WantOnly(t, "open", err, "")
	if _, err := coordinatortest.BringAt(t, two, p.ShareFile(d.Store, "bob")); err != nil {
		t.Fatal(err)
	}
	mine, theirs := owner.Key(g.ID, "bob"), owner.Key(other.ID, "bob")
	valueOf := func(key string) []byte {
		e, err := d.Store.Get(t.Context(), key)
		coordinatortest.WantOnly(t, "get "+key, err, "")
		return e.Value
	}
	good := valueOf(mine)
	carol := p.ShareFile(d.Store, "carol").Share
	wrong := otherShare(t, p.ShareFile(d.Store, "bob").Share)
	for name, harm := range map[string]func() []byte{
		"of another attempt": func() []byte { return valueOf(theirs) },
		"damaged":            func() []byte { return good[:len(good)-40] },
		"of another owner": func() []byte {
			return coordinatortest.SentShare(t, g.Recipient(), g.ID[:], coordinatortest.Cluster, "carol", carol)
		},
		"wrong": func() []byte {
			return coordinatortest.SentShare(t, g.Recipient(), g.ID[:], coordinatortest.Cluster, "bob", wrong)
		},
	} {
		value := harm()
		d.Store.Alter(mine, func([]byte) []byte { return value })
		coordinatortest.WantOnly(t, name, d.C.Parts().Secrets.OwnerRecovery.Look(t.Context()), "")
		if got := d.C.Parts().Secrets.OwnerRecovery.Current().Brought(); len(got) > 0 {
			t.Fatalf("%s: it counted as the share of %v", name, got)
		}
		if slices.Contains(d.Store.Keys(mine), mine) {
			t.Errorf("%s: it is still there", name)
		}
		coordinatortest.WantOnly(t, name, two.Parts().Secrets.OwnerRecovery.Look(t.Context()), "")
		coordinatortest.WantOnly(t, name, d.C.Parts().Secrets.OwnerRecovery.Look(t.Context()), "")
		if got := d.C.Parts().Secrets.OwnerRecovery.Current().Brought(); !slices.Equal(got,
			[]string{"bob"}) {
			t.Fatalf("%s: after it was passed on again: %v", name, got)
		}
	}
	if string(good) == string(valueOf(mine)) {
		t.Error("nothing was passed on again")
	}
	if got, err := coordinatortest.BringShare(d, p.ShareFile(d.Store, "alice")); err != nil || !got.GetRecovered() {
		t.Fatalf("%v, %v", got, err)
	}
}

// Nobody but a coordinator that the manifest of the head admits, and that signed its
// attempt itself, is passed a share, whatever the store shows.
func TestForgedAttemptsGetNoShare(t *testing.T) {
	t.Parallel()
	d, p, others := lostDesk(t)
	two := others[0]
	_, thief, err := ed25519.GenerateKey(rand.Reader)
	coordinatortest.WantOnly(t, "key", err, "")
	mine, err := keyring.NewEphemeral()
	coordinatortest.WantOnly(t, "recipient", err, "")
	g, err := d.C.Parts().Secrets.OwnerRecovery.Open(t.Context())
	coordinatortest.WantOnly(t, "open", err, "")
	id := recovery.ID{7}
	stolen := func() []string {
		return slices.DeleteFunc(gatheredIn(t, d.Store),
			func(k string) bool { return !strings.HasPrefix(k, owner.Prefix+id.String()) })
	}
	place, err := owner.OpenKey(two.Parts().Self.EnrolmentKey())
	coordinatortest.WantOnly(t, "place", err, "")
	good := recovery.Open{Attempt: id, Cluster: coordinatortest.Cluster, Head: g.Head().Hash, Recipient: mine.Public(),
		Ends: d.Clock().Add(recovery.Life)}
	put := func(key string, value []byte) {
		t.Helper()
		_, err := d.C.Parts().Head.Overwrite(t.Context(), key, value)
		coordinatortest.WantOnly(t, "put", err, "")
	}
	signed := func(o recovery.Open, by ed25519.PrivateKey) []byte {
		raw, err := o.Sign(by, nil)
		coordinatortest.WantOnly(t, "sign", err, "")
		return raw
	}
	if _, err := coordinatortest.BringShare(d, p.ShareFile(d.Store, "alice")); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]func() []byte{
		"nobody's": func() []byte { return []byte("garbage") },
		"by a thief, in the place of a coordinator": func() []byte { return signed(good, thief) },
		"by a thief, who claims the key of a coordinator": func() []byte {
			return []byte(strings.Replace(string(signed(good, thief)), keyOfClaim(thief),
				two.Parts().Self.EnrolmentKey(), 1))
		},
		"of a coordinator, with the recipient of a thief": func() []byte {
			o := good
			theirs, err := keyring.NewEphemeral()
			coordinatortest.WantOnly(t, "recipient", err, "")
			o.Recipient = theirs.Public()
			return []byte(strings.Replace(string(signed(o, two.Parts().Self.PrivateKey())), theirs.Public(),
				mine.Public(),
				1))
		},
		"for another head": func() []byte { o := good; o.Head[0]++; return signed(o, two.Parts().Self.PrivateKey()) },
		"for another cluster": func() []byte {
			o := good
			o.Cluster = "other.example"
			return signed(o, two.Parts().Self.PrivateKey())
		},
		"over": func() []byte { o := good; o.Ends = d.Clock(); return signed(o, two.Parts().Self.PrivateKey()) },
		"for ever": func() []byte {
			o := good
			o.Ends = d.Clock().Add(24 * 365 * time.Hour)
			return signed(o, two.Parts().Self.PrivateKey())
		},
		"of another coordinator": func() []byte { return signed(good, others[1].Parts().Self.PrivateKey()) },
	} {
		put(place, value())
		coordinatortest.WantOnly(t, name, d.C.Parts().Secrets.OwnerRecovery.Look(t.Context()), "")
		if got := stolen(); len(got) > 0 {
			t.Fatalf("%s: %v", name, got)
		}
	}
	// As many as anybody likes, under keys that no manifest names: they are not even
	// looked at.
	for i := range 300 {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		coordinatortest.WantOnly(t, "key", err, "")
		own, err := owner.OpenKey(keyOfClaim(key))
		coordinatortest.WantOnly(t, "place", err, "")
		put(own, signed(good, key))
		put(fmt.Sprintf("%sx%d", owner.OpenPrefix, i), signed(good, key))
	}
	d.Store.Alter(place, func([]byte) []byte { return nil })
	coordinatortest.WantOnly(t, "endless", d.C.Parts().Secrets.OwnerRecovery.Look(t.Context()), "")
	if got := stolen(); len(got) > 0 {
		t.Fatalf("endless: %v", got)
	}
	// The harness works: what the coordinator itself signed gets the share.
	put(place, signed(good, two.Parts().Self.PrivateKey()))
	coordinatortest.WantOnly(t, "genuine", d.C.Parts().Secrets.OwnerRecovery.Look(t.Context()), "")
	if got := stolen(); !slices.Equal(got, []string{owner.Key(id, "alice")}) {
		t.Fatalf("genuine: %v", got)
	}
	e, err := d.Store.Get(t.Context(), owner.Key(id, "alice"))
	coordinatortest.WantOnly(t, "get", err, "")
	share, err := mine.Open(keyring.Attempt{ID: id.String(), Cluster: coordinatortest.Cluster, Owner: "alice"}, e.Value)
	coordinatortest.WantOnly(t, "open", err, "")
	share.Wipe()
}

func keyOfClaim(key ed25519.PrivateKey) string {
	return proof.KeyClaim(key.Public().(ed25519.PublicKey))
}

// A ready coordinator removes what ended, and leaves what others have open.
func TestOpenAttemptsOfOthersStay(t *testing.T) {
	t.Parallel()
	d, p, others := lostDesk(t)
	alice, bob := p.ShareFile(d.Store, "alice"), p.ShareFile(d.Store, "bob")
	coordinatortest.BringBoth(t, d, alice, bob)
	// At the new head the second one, which reaches no peer, is asked again.
	others[0] = againAt(d, others[0])
	if _, err := coordinatortest.BringAt(t, others[0], alice); err != nil {
		t.Fatal(err)
	}
	others[1] = againAt(d, others[1])
	if _, err := coordinatortest.BringAt(t, others[1], alice); err != nil {
		t.Fatal(err)
	}
	third := others[1].Parts().Secrets.OwnerRecovery.Current().ID
	others[1] = againAt(d, others[1]) // and opens another
	if _, err := others[1].Parts().Secrets.OwnerRecovery.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.Lead(d.C)
	coordinatortest.WantOnly(t, "prune", d.C.Parts().Secrets.OwnerRecovery.Drop(t.Context(), d.State()), "")
	got := gatheredIn(t, d.Store)
	want := []string{owner.Key(others[0].Parts().Secrets.OwnerRecovery.Current().ID, "alice")}
	if !slices.Equal(got, want) || slices.Contains(got, owner.Key(third, "alice")) {
		t.Errorf("kept %v, want %v", got, want)
	}
	if n := len(d.Store.Keys(owner.OpenPrefix)); n != 2 {
		t.Errorf("%d attempts are open, want 2", n)
	}
	d.Advance(recovery.Life)
	d.Lead(d.C)
	coordinatortest.WantOnly(t, "prune", d.C.Parts().Secrets.OwnerRecovery.Drop(t.Context(), d.State()), "")
	if left := d.Store.Keys(owner.Prefix); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}
