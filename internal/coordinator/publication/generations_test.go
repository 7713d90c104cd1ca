package publication_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// crowdSize is more members than three generations tell of.
const crowdSize = 140

// ownEntries are as many entries as the crowd has members, so that each is told something of its own,
// for these roles.
func ownEntries(roles string) string {
	var out strings.Builder
	out.WriteString(coordinatortest.PoolEntries)
	for i := range crowdSize {
		fmt.Fprintf(&out, "  - {name: e%03d, kind: data, match: [\"token:e%03d\"], roles: [%s], organizations: [acme]}\n",
			i, i, roles)
	}
	return out.String()
}

// smallGenerations has a generation be as small as other transactions are.
func smallGenerations(cfg *coordinator.Config) { cfg.Publishing.Operations = store.CutOps }

// ownCrowd makes a member for each of [ownEntries].
func ownCrowd(d *coordinatortest.Desk) {
	d.T.Helper()
	s := d.State()
	for i := range crowdSize {
		r := record.Member{Kind: identity.Data, Name: fmt.Sprintf("n%04d", i), State: record.Active}
		r.Entry = fmt.Sprintf("e%03d", i)
		r.Selectors, r.Incarnation = []string{"token:" + r.Entry}, coordinatortest.KeyNumber(i)
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(record.MemberKey(r.Kind, r.Name), 0, r)
		if _, err := ch.Commit(context.Background()); err != nil {
			d.T.Fatal(err)
		}
	}
	coordinatortest.FollowMembers(d, d.C)
}

// A reader of the store between two transactions of a publication sees a generation, and all of it.
func TestGenerationsAreWhole(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDeskWith(t, ownEntries("ingress"), smallGenerations)
	ownCrowd(d)
	ahead, swept := 0, 0
	d.Store.Follow(func(tx store.Tx) {
		state, contents, deleted := false, 0, 0
		for _, w := range tx.Put {
			state = state || w.Key == publication.StateKey
			if strings.HasPrefix(w.Key, publication.ContentPrefix) {
				contents++
			}
		}
		for _, key := range tx.Delete {
			if strings.HasPrefix(key, publication.ContentPrefix) {
				deleted++
			}
		}
		if !state && contents+deleted == 0 {
			return
		}
		if !state {
			ahead, swept = ahead+contents, swept+deleted
		}
		p, err := d.C.Parts().Publication.Load(t.Context(), d.State())
		if err != nil || p.Broken || p.Len() != len(d.Store.Keys(publication.PackedPrefix)) {
			t.Errorf("%d headers of %d are read after %d puts and %d deletes (%v)", p.Len(),
				len(d.Store.Keys(publication.PackedPrefix)), len(tx.Put), len(tx.Delete), err)
		}
	})
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	coordinatortest.WantOnly(t, "set", d.Set(ownEntries("egress")), "")
	p := coordinatortest.MustPublish(d, b)
	d.Store.Follow(nil)
	coordinatortest.WantWholeAt(d, t, p)
	if ahead < crowdSize || swept == 0 {
		t.Errorf("%d contents were written ahead, and %d orphans swept", ahead, swept)
	}
}

// A kill anywhere on the way of a large publication leaves generations that are whole, and nothing that
// stays for good.
func TestCrashOnTheWay(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"publish.after-contents", "publish.before-commit", "publish.after-commit",
		"publish.before-sweep"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			d := coordinatortest.ReadyDeskWith(t, ownEntries("ingress"), smallGenerations)
			ownCrowd(d)
			b := publication.NewPublisher()
			coordinatortest.MustPublish(d, b)
			coordinatortest.WantOnly(t, "set", d.Set(ownEntries("egress")), "")
			killed := errors.New("killed")
			d.Faults.Fail(at, killed)
			if err := coordinatortest.PublishAll(d, d.C, b); !errors.Is(err, killed) {
				t.Fatal(err)
			}
			d.Faults.Disarm(at)
			d.Restart()
			p, err := d.C.Parts().Publication.Load(t.Context(), d.State())
			if err != nil || !p.Serves() {
				t.Fatalf("it is left broken (%v)", err)
			}
			if n, _ := runtimes(p); n != crowdSize {
				t.Fatalf("%d members are told something", n)
			}
			coordinatortest.FollowMembers(d, d.C)
			coordinatortest.WantWholeAt(d, t, coordinatortest.MustPublish(d, publication.NewPublisher()))
		})
	}
}

// coordinator2 is the entry of another coordinator.
func coordinator2(c *coordinator.Coordinator) string {
	return fmt.Sprintf("  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n", c.Parts().Self.EnrolmentKey())
}

// twoDesks is a desk with another coordinator beside it, and a crowd that nobody was told of.
func twoDesks(t *testing.T) (*coordinatortest.Desk, *coordinator.Coordinator) {
	t.Helper()
	d := coordinatortest.ReadyDeskWith(t, ownEntries("ingress"), smallGenerations)
	other, err := d.Another("other")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	coordinatortest.WantOnly(t, "set", d.Set(ownEntries("ingress")+coordinator2(other)), "")
	other.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.MustPublish(d, publication.NewPublisher())
	coordinatortest.WantOnlyNil(t, coordinatortest.PublishAll(d, other, publication.NewPublisher()))
	coordinatortest.MustPublish(d, publication.NewPublisher()) // both know this one
	ownCrowd(d)
	coordinatortest.FollowMembers(d, other)
	return d, other
}

// Contents that were written for a commit that did not come go with the next leader, though it read
// the publication before they were there.
func TestContentsOfAnEndedTerm(t *testing.T) {
	t.Parallel()
	d, other := twoDesks(t)
	killed := errors.New("killed")
	d.Faults.Fail("publish.after-contents", killed)
	if err := coordinatortest.PublishAll(d, d.C, publication.NewPublisher()); !errors.Is(err, killed) {
		t.Fatal(err)
	}
	d.Faults.Disarm("publish.after-contents")
	for i := range crowdSize / 2 { // so that nobody needs theirs
		ch := d.State().Records.NewChange(d.State().HeadVersion)
		ch.Drop(record.MemberKey(identity.Data, fmt.Sprintf("n%04d", i)))
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	coordinatortest.FollowMembers(d, other)
	coordinatortest.WantOnlyNil(t, coordinatortest.PublishAll(d, other, publication.NewPublisher()))
	coordinatortest.WantWholeAt(d, t, other.Parts().Publication.View())
}

// One that is late with its commit names nothing that was swept meanwhile, and sweeps nothing that
// another one is about to name.
func TestSweepWhilePublishing(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"publish.after-contents", "publish.before-commit", "publish.before-sweep"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			d, other := twoDesks(t)
			b := publication.NewPublisher()
			if at == "publish.before-sweep" {
				coordinatortest.MustPublish(d, b)
				coordinatortest.WantOnly(t, "set", d.Set(ownEntries("egress")+coordinator2(other)), "")
				other.Parts().Moves.Succession.Look(t.Context())
			}
			met := false
			d.Faults.Arm(at, func() error {
				d.Faults.Disarm(at)
				met = true
				coordinatortest.FollowMembers(d, other)
				return coordinatortest.PublishAll(d, other, publication.NewPublisher())
			})
			if err := coordinatortest.PublishAll(d, d.C, b); !errors.Is(err, store.ErrConflict) || !met {
				t.Fatalf("one that is late: %v", err)
			}
			coordinatortest.WantWholeAt(d, t, other.Parts().Publication.View())
			coordinatortest.WantWholeAt(d, t, coordinatortest.MustPublish(d, b))
		})
	}
}

// crowdIs has the first n of the crowd be in a state.
func crowdIs(d *coordinatortest.Desk, state string, n int) {
	d.T.Helper()
	s := d.State()
	for i := range n {
		name := fmt.Sprintf("n%04d", i)
		r := d.Record(identity.Data, name)
		r.Value.State = state
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(record.MemberKey(identity.Data, name), r.Version, r.Value)
		if _, err := ch.Commit(context.Background()); err != nil {
			d.T.Fatal(err)
		}
	}
	coordinatortest.FollowMembers(d, d.C)
}

// A sweep whose answer was lost, and which comes late, takes nothing that is about to be named, though
// the same coordinator leads under the same term.
func TestSweepThatComesLate(t *testing.T) {
	t.Parallel()
	const some = 40 // fit into one generation, with their contents ahead of it
	d := coordinatortest.ReadyDeskWith(t, ownEntries("ingress"), smallGenerations)
	ownCrowd(d)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	crowdIs(d, record.Draining, some)
	var late store.Tx
	d.Store.Intercept(func(tx store.Tx) {
		sweeps := len(tx.Put) == 0 && slices.ContainsFunc(tx.Delete,
			func(key string) bool { return strings.HasPrefix(key, publication.ContentPrefix) })
		if sweeps && late.ID == "" {
			late = tx.Clone()
			d.Store.Lose(coordinatortest.LostForGoodN, coordinatortest.Answered)
		}
	})
	if err := coordinatortest.PublishAll(d, d.C, b); !errors.Is(err, store.ErrUnknownOutcome) || len(late.Delete) < some {
		t.Fatalf("a sweep of %d whose answer is lost: %v", len(late.Delete), err)
	}
	d.Store.Intercept(nil)
	term, _, _ := d.C.Parts().Election.Leading()
	crowdIs(d, record.Active, some)
	came := false
	d.Faults.Arm("publish.after-contents", func() error {
		_, err := d.Store.Commit(t.Context(), late)
		came = came || errors.Is(err, store.ErrConflict) || err == nil
		return nil
	})
	p := coordinatortest.MustPublish(d, publication.NewPublisher())
	if now, _, _ := d.C.Parts().Election.Leading(); now != term || !came {
		t.Fatalf("term %d, and then %d; the sweep came: %v", term, now, came)
	}
	coordinatortest.WantWholeAt(d, t, p)
	if got, err := d.C.Parts().Publication.Load(t.Context(), d.State()); err != nil || got.Broken {
		t.Errorf("it is read as broken (%v)", err)
	}
}

// However often the config changes what everybody is told, each group's turn comes, and that of members.
func TestGroupsTakeTurns(t *testing.T) {
	t.Parallel()
	const groups, crowd = 200, 40 // of which the first are more than two generations tell of
	entries := new(strings.Builder)
	for i := range groups {
		fmt.Fprintf(entries, "  - {name: e%03d, kind: data, match: [\"token:e%03d\"], roles: [core], organizations: [o%03d]}\n", i, i, i)
	}
	d := coordinatortest.ReadyDeskWith(t, entries.String(), smallGenerations)
	s := d.State()
	member := func(name string, group int) {
		r := record.Member{Kind: identity.Data, Name: name, State: record.Active}
		r.Entry = fmt.Sprintf("e%03d", group)
		r.Selectors, r.Incarnation = []string{"token:" + r.Entry}, coordinatortest.KeyNumber(group)
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(record.MemberKey(r.Kind, r.Name), 0, r)
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		coordinatortest.FollowMembers(d, d.C)
	}
	for i := range groups {
		member(fmt.Sprintf("n%04d", i), i)
	}
	b, given := publication.NewPublisher(), make(map[int]bool)
	d.Lead(d.C)
	for more := true; more; {
		var err error
		if more, err = d.C.Parts().Publication.Publish(t.Context(), d.State(), b); err != nil {
			t.Fatal(err)
		}
		for i := range groups {
			if d.C.Parts().Publication.View() == nil {
				break // it is the first write of all
			}
			given[len(d.C.Parts().Publication.View().Of(identity.Data, fmt.Sprintf("n%04d", i)))] = true
		}
	}
	if delete(given, 0); len(given) != 1 {
		t.Errorf("a member was told something before its group was: %v headers", given)
	}
	was := d.C.Parts().Publication.View().State.Value.Generation
	for i := range 10 {
		coordinatortest.MustPut(d, fmt.Sprintf("kind: qos\nname: gold\npriority: %d\n", i))
		if i == 3 {
			for n := range crowd {
				member(fmt.Sprintf("late%02d", n), groups-1)
			}
		}
		if _, err := d.C.Parts().Publication.Publish(t.Context(), d.State(), b); err != nil {
			t.Fatal(err)
		}
	}
	if n, _ := runtimes(d.C.Parts().Publication.View()); n != groups+crowd {
		t.Errorf("%d of %d members that came meanwhile were told something", n-groups, crowd)
	}
	late := 0
	for _, h := range d.C.Parts().Publication.View().Headers() {
		if h.Scope == snapshot.ScopeQoSPolicy && h.Header.ConfigVersion <= was {
			late++
		}
	}
	if late > 0 {
		t.Errorf("%d of %d groups were told nothing new in %d generations", late, groups, 10)
	}
}
