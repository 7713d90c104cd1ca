package status_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// together is a fleet of coordinators that share the clock by which they hear each other.
type together struct {
	t     *testing.T
	all   []*coordinatortest.Fleet
	since time.Time
	moved atomic.Int64
}

func newTogether(t *testing.T, n int) *together {
	t.Helper()
	x := &together{t: t, since: time.Now()}
	f := coordinatortest.ReadyFleet(t, func(cfg *coordinator.Config) { cfg.Machine.Elapsed = x.elapsed })
	x.all = []*coordinatortest.Fleet{f}
	for range n - 1 {
		x.all = append(x.all, coordinatortest.NewReplica(t, f))
	}
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	for _, r := range x.all[1:] {
		r.Start()
		r.AwaitHead(f)
	}
	for _, r := range x.all {
		coordinatortest.AwaitReplica(r, func(r peer.Record) bool { return r.Phase == "ready" })
	}
	x.ask(x.all...) // they know each other
	x.pass(peer.Settle)
	return x
}

func (x *together) elapsed() time.Duration {
	return time.Since(x.since) + time.Duration(x.moved.Load())
}

func (x *together) pass(d time.Duration) { x.moved.Add(int64(d)) }

// ask has each of some ask the others once.
func (x *together) ask(some ...*coordinatortest.Fleet) {
	for _, f := range some {
		f.C.Parts().Peers.Ask(f.Context(), f.State())
	}
}

// unheard lets the time pass after which some miss who does not answer them.
func (x *together) unheard(some ...*coordinatortest.Fleet) {
	for range peer.Asks {
		x.ask(some...)
	}
	x.pass(peer.After)
	x.ask(some...)
}

// finds wants exactly these findings with a code that has the prefix: each is the code,
// and a part of the summary. Who was asked may not have answered in the two seconds that it has, on a
// busy machine: f asks again then.
func finds(t *testing.T, f *coordinatortest.Fleet, prefix string, want ...[2]string) {
	t.Helper()
	first := true
	wait.UntilNil(t, "the findings of "+f.C.Parts().Self.NameIn(f.State().Manifest), func() error {
		if !first {
			f.C.Parts().Peers.Ask(f.Context(), f.State())
		}
		first = false
		var got []string
		for _, x := range coordinatortest.GetStatus(f).GetFindings() {
			if strings.HasPrefix(x.GetCode(), prefix) {
				got = append(got, x.GetCode()+" "+x.GetSummary())
			}
		}
		if !slices.EqualFunc(got, want, func(got string, w [2]string) bool {
			return strings.HasPrefix(got, w[0]) && strings.Contains(got, w[1])
		}) {
			return fmt.Errorf("it finds %q; want %q", got, want)
		}
		return nil
	})
}

const ofCoordinators = "FE-R11"

// missing is the finding that a coordinator is not heard.
func missing(name string) [2]string {
	return [2]string{string(errcode.CoordinatorUnheard), "missing: " + name + ": "}
}

// A coordinator that died is found on every other one, whether it led or not, until it is
// back. One that stopped in order is missed by nobody.
func TestDeadCoordinatorIsFound(t *testing.T) {
	t.Parallel()
	x := newTogether(t, 3)
	for _, f := range x.all {
		finds(t, f, ofCoordinators)
	}
	first, second, third := x.all[0], x.all[1], x.all[2]

	if leader, _, _ := coordinatortest.AwaitLeader(t, x.all...); leader != first {
		_, err := coordinatortest.LeaderClient(leader).TransferLeader(t.Context(),
			&fealtyv1.TransferLeaderRequest{To: "coordinator-1"})
		coordinatortest.WantOnlyNil(t, err)
	}
	first.Kill() // it led
	x.unheard(second, third)
	finds(t, second, ofCoordinators, missing("coordinator-1"))
	finds(t, third, ofCoordinators, missing("coordinator-1"))
	eventually(t, "who answers, and not who died: the second", func() error {
		x.ask(second)
		if got := coordinatortest.GetStatus(second).GetReplicas(); got[0].GetUnheardFor().AsDuration() < peer.After ||
			got[1].GetUnheardFor() != nil || got[2].GetUnheardFor().AsDuration() >= peer.After {
			return fmt.Errorf("the coordinators are shown as %v", got)
		}
		return nil
	})

	first.Start()
	first.Await(authority.Ready)
	coordinatortest.AwaitReplica(first, func(r peer.Record) bool { return r.Phase == "ready" && !r.Stopped })
	wait.Until(t, "the first is heard again", func() bool {
		x.ask(second, third)
		since, _ := second.C.Parts().Peers.Silent(enrolmentKey(first))
		return since < peer.After
	})
	finds(t, second, ofCoordinators)

	third.Stop()
	x.unheard(first, second)
	x.pass(time.Hour)
	finds(t, second, ofCoordinators)
	if r := coordinatortest.GetStatus(second).GetReplicas()[2]; !r.GetStopped() || r.GetUnheardFor() != nil {
		t.Errorf("who stopped is shown as %v", r)
	}
}

func enrolmentKey(f *coordinatortest.Fleet) string { return f.C.EnrolmentKey() }

// "Nothing needs attention" is a promise: a coordinator that just began to listen, while the
// others are dead, is settling, and says for how long and what it does not know; after that the
// two are one finding, which says what the next loss stops.
func TestSettlingIsNotWell(t *testing.T) {
	t.Parallel()
	x := newTogether(t, 3)
	first := x.all[0]
	coordinatortest.WantOnlyNil(t, first.Set(first.Manifest("baseline: {data: 0}\n")))
	verdict := func() *fealtyv1.Verdict {
		t.Helper()
		return coordinatortest.GetStatus(first).GetVerdict()
	}
	first.C.Parts().Peers.Listen()
	x.ask(first)
	// The time that passed at once ended the lease of whoever led: somebody takes over first.
	eventually(t, "with everybody heard in the first minute", func() error {
		if v := verdict(); v.GetState() != "well" || len(v.GetUnknown()) != 0 {
			return fmt.Errorf("it is %v, and finds %v", v, coordinatortest.GetStatus(first).GetFindings())
		}
		return nil
	})
	x.all[1].Kill()
	x.all[2].Kill()
	first.C.Parts().Peers.Listen()
	x.pass(20 * time.Second)
	eventually(t, "in the first minute, with the others dead", func() error {
		v := verdict()
		if left := v.GetSettlesIn().AsDuration(); v.GetState() != "settling" || left <= 0 || left > 40*time.Second ||
			!strings.Contains(strings.Join(v.GetUnknown(), "; "), "coordinator-2, coordinator-3") {
			return fmt.Errorf("it is %v, and finds %v", v, coordinatortest.GetStatus(first).GetFindings())
		}
		return nil
	})
	x.pass(peer.Settle)
	x.unheard(first)
	if v := verdict(); v.GetState() != "attention" {
		t.Errorf("then it is %v", v)
	}
	finds(t, first, ofCoordinators, [2]string{string(errcode.CoordinatorUnheard),
		"1 of 3 coordinators left: the next loss stops joins, renewals and changes"})
}

// A coordinator that just became ready misses nobody; one that is dismissed is missed no more.
func TestWhoIsNotMissed(t *testing.T) {
	t.Parallel()
	x := newTogether(t, 2)
	first, second := x.all[0], x.all[1]
	second.Kill()
	first.C.Parts().Peers.Listen()
	x.unheard(first)
	finds(t, first, ofCoordinators)
	x.pass(peer.Settle)
	finds(t, first, ofCoordinators, missing("coordinator-2"))

	replicas := first.Replicas
	first.Replicas = nil // the manifest of one coordinator
	if err := first.Set(first.Manifest("")); err != nil {
		t.Fatal(err)
	}
	first.Replicas = replicas
	x.ask(first)
	finds(t, first, ofCoordinators)
}

// One that is gone for good is forgotten by an admin. One that may run is not, and what
// runs after all says so again.
func TestForgetCoordinator(t *testing.T) {
	t.Parallel()
	x := newTogether(t, 3)
	first, second, third := x.all[0], x.all[1], x.all[2]
	forget := func(f *coordinatortest.Fleet, name string, dry bool) (*fealtyv1.ForgetCoordinatorResponse, error) {
		return fealtyv1.NewCoordinatorServiceClient(f.LocalConn()).ForgetCoordinator(f.Context(),
			&fealtyv1.ForgetCoordinatorRequest{Name: name, Reason: "its machine burned", DryRun: dry})
	}
	for name, want := range map[string]errcode.Code{
		"coordinator-1": errcode.CoordinatorHeard, "coordinator-2": errcode.CoordinatorHeard,
		"nobody": errcode.NotFound,
	} {
		if _, err := forget(first, name, false); !errors.Is(errcode.Of(err), want) {
			t.Errorf("forget %s: %v; want %s", name, err, want)
		}
	}

	second.Kill()
	x.unheard(first, third)
	if out, err := forget(third, "coordinator-2", true); err != nil || len(out.GetForgotten()) != 1 {
		t.Errorf("a dry run: %v, %v", out, err)
	}
	finds(t, first, ofCoordinators, missing("coordinator-2"))
	out, err := forget(third, "coordinator-2", false)
	if err != nil || len(out.GetForgotten()) != 1 || out.GetForgotten()[0].GetName() != "coordinator-2" {
		t.Fatalf("forget: %v, %v", out, err)
	}
	x.ask(first)
	finds(t, first, ofCoordinators)
	finds(t, third, ofCoordinators)
	if got := coordinatortest.Audited(first, "coordinator.forget"); len(got) != 1 || got[0].Target != "coordinator-2" ||
		got[0].Reason != "its machine burned" {
		t.Errorf("the audit log has %v", got)
	}

	second.Start()
	second.Await(authority.Ready)
	coordinatortest.AwaitReplica(second, func(r peer.Record) bool { return r.Phase == "ready" })
	second.Kill()
	x.ask(first)
	x.unheard(first)
	finds(t, first, ofCoordinators, missing("coordinator-2"))
}

// All coordinators tell what one alone can find: what the leader cannot compile, and what
// fails on one machine.
func TestFindingsOfOthersAreTold(t *testing.T) {
	t.Parallel()
	x := newTogether(t, 2)
	const lost = "kind: peer\nname: lost\nmember: data/nobody\naddresses: [\"h:1\"]\nclass: bootstrap"
	first := x.all[0]
	first.Member("node-a")
	if _, err := fealtyv1.NewConfigServiceClient(first.LocalConn()).PutConfig(first.Context(),
		coordinatortest.PutRequest(lost)); err != nil {
		t.Fatal(err)
	}
	found := func(f *coordinatortest.Fleet) []*fealtyv1.Finding {
		return slices.DeleteFunc(coordinatortest.GetStatus(f).GetFindings(),
			func(x *fealtyv1.Finding) bool { return x.GetCode() != string(errcode.ConfigNotGiven) })
	}
	// The time that passed ended the first lease: whoever leads now finds it by itself.
	var leader, other *coordinatortest.Fleet
	var own []*fealtyv1.Finding
	wait.Until(t, "the leader finds something itself", func() bool {
		one, _, others := coordinatortest.AwaitLeader(t, x.all...)
		leader, other = one, others[0]
		own = found(leader)
		return len(own) > 0 && own[0].GetCoordinator() == ""
	})
	name := leader.C.Parts().Self.NameIn(leader.State().Manifest)
	x.ask(other)
	told := found(other)
	if len(own) != 1 || len(told) != 1 || told[0].GetSummary() != own[0].GetSummary() ||
		told[0].GetRemedy() != own[0].GetRemedy() || told[0].GetCoordinator() != name ||
		own[0].GetCoordinator() != "" {
		t.Errorf("the leader finds %v, the other one %v", own, told)
	}

	// The last words of the one that told it are no finding of their own once it is gone.
	leader.Kill()
	x.unheard(other)
	// It leads now, and finds the same by itself.
	if told := slices.DeleteFunc(found(other),
		func(x *fealtyv1.Finding) bool { return x.GetCoordinator() != name }); len(told) > 0 {
		t.Errorf("of a coordinator that is gone it tells %v", told)
	}
}

// Members are connected, not heard, or unknown: while a coordinator that may hear them
// does not answer, nothing of it is an alarm. A poll counts for twice its interval.
func TestContactOfMembers(t *testing.T) {
	t.Parallel()
	x := newTogether(t, 2)
	first, second := x.all[0], x.all[1]
	if err := first.Set(first.Manifest("baseline: {data: 2}\n")); err != nil {
		t.Fatal(err)
	}
	second.AwaitHead(first)
	a, b := first.Member("node-a"), first.Member("node-b")
	a.Fleet = second
	stream, err := coordinatortest.NewClients(a.Conn()).Agent.Connect(first.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: "node-a"}); err != nil {
		t.Fatal(err)
	}
	coordinatortest.Until(t, stream, snapshot.ScopeNodeBootstrap)
	first.C.Parts().Membership.Listens(time.Unix(0, 0))
	check := func(step, ofA, ofB, state string, want *fealtyv1.Contacts, codes ...errcode.Code) {
		t.Helper()
		eventually(t, step, func() error {
			st := coordinatortest.GetStatus(first)
			var got []string
			for _, m := range st.GetMembers() {
				got = append(got, m.GetContact())
			}
			if !slices.Equal(got, []string{ofA, ofB}) || st.GetBaseline().GetState() != state ||
				st.GetBaseline().GetNeeded() != 2 || !proto.Equal(st.GetContacts(), want) {
				return fmt.Errorf("members are %q, the baseline is %v, counted are %v", got, st.GetBaseline(),
					st.GetContacts())
			}
			var found []errcode.Code
			for _, f := range st.GetFindings() {
				if strings.HasPrefix(f.GetCode(), "FE-M") {
					found = append(found, errcode.Code(f.GetCode()))
				}
			}
			if !slices.Equal(found, codes) {
				return fmt.Errorf("found are %q; want %q", found, codes)
			}
			return nil
		})
	}
	first.Advance(peer.SilentAfter + time.Second)
	check("at first", "connected", "not heard", "not met", &fealtyv1.Contacts{Connected: 1, NotHeard: 1},
		errcode.MemberBaseline, errcode.MemberSilent)

	poll, err := fealtyv1.NewSnapshotServiceClient(b.Conn()).Poll(first.Context(),
		&fealtyv1.PollRequest{Name: "node-b", Interval: durationpb.New(time.Minute)})
	for err == nil {
		_, err = poll.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	check("after a poll", "connected", "connected", "met", &fealtyv1.Contacts{Connected: 2})
	x.pass(2*time.Minute + time.Second)
	check("twice its interval later", "connected", "not heard", "not met", &fealtyv1.Contacts{Connected: 1,
		NotHeard: 1}, errcode.MemberBaseline, errcode.MemberSilent)

	second.Kill()
	check("a coordinator does not answer", "unknown", "unknown", "unknown", &fealtyv1.Contacts{Unknown: 2,
		Unanswered: []string{"coordinator-2"}})
	x.unheard(first)
	check("it is missed", "unknown", "unknown", "unknown", &fealtyv1.Contacts{Unknown: 2,
		Unanswered: []string{"coordinator-2"}})
	if _, err := fealtyv1.NewCoordinatorServiceClient(first.LocalConn()).ForgetCoordinator(first.Context(),
		&fealtyv1.ForgetCoordinatorRequest{Name: "coordinator-2"}); err != nil {
		t.Fatal(err)
	}
	check("it is forgotten", "not heard", "not heard", "not met", &fealtyv1.Contacts{NotHeard: 2},
		errcode.MemberBaseline, errcode.MemberSilent, errcode.MemberSilent)
}
