package coordinator_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/member/condition"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

// drawnMember is a member as a round has it.
type drawnMember struct {
	kind           identity.Kind
	state          string
	ends           time.Duration // from now
	ban            string        // "", "banned", "altered"
	altered        bool
	stream         string // "", "open", "closed", "polls"
	reports        []drawnReport
	called, paused bool
	short, held    time.Duration // what its process reports; 0: nothing of that
}

// drawnReport is what a member says; the last one is of now, and each one before it of a minute earlier.
type drawnReport struct {
	freshness []string
	version   uint64
	behind    time.Duration
	log       string
	alone     time.Duration // from now; 0: it does not say
}

func drawMember(r *rapid.T) (m drawnMember) {
	one := func(what string, all ...string) string { return rapid.SampledFrom(all).Draw(r, what) }
	m.kind = rapid.SampledFrom([]identity.Kind{identity.Data, identity.Data, identity.Shard, identity.Admin}).Draw(r, "kind")
	m.state = one("state", record.Active, record.Active, record.Active, record.Draining, record.Replacing)
	m.ends = rapid.SampledFrom([]time.Duration{time.Hour, time.Hour, time.Hour, 0, -time.Second}).Draw(r, "ends")
	m.ban = one("ban", "", "", "", "", "banned", "altered")
	m.altered = rapid.IntRange(0, 7).Draw(r, "altered") == 0
	m.stream = one("stream", "", "open", "open", "open", "closed", "polls")
	for range rapid.IntRange(0, 3).Draw(r, "reports") {
		m.reports = append(m.reports, drawnReport{
			freshness: rapid.SliceOfN(rapid.SampledFrom([]string{string(snapshot.Fresh), string(snapshot.Fresh), "",
				string(snapshot.Stale)}), 0, 3).Draw(r, "freshness"),
			version: rapid.SampledFrom([]uint64{1, 1, 1, 1 << 40}).Draw(r, "version"),
			behind:  rapid.SampledFrom([]time.Duration{0, 0, 0, time.Minute}).Draw(r, "behind"),
			log:     one("log", "", "", "", "no space"),
			alone:   rapid.SampledFrom([]time.Duration{0, 30 * time.Minute, 40 * time.Minute, 2 * time.Hour}).Draw(r, "alone"),
		})
	}
	m.called, m.paused = rapid.Bool().Draw(r, "called"), rapid.IntRange(0, 3).Draw(r, "paused") == 0
	m.short = rapid.SampledFrom([]time.Duration{0, 0, time.Minute, time.Hour}).Draw(r, "short")
	m.held = rapid.SampledFrom([]time.Duration{0, 0, time.Second, time.Hour}).Draw(r, "held")
	return m
}

// enter makes a member what it is to be, and returns what undoes that.
func (m drawnMember) enter(t coordinatortest.TB, d *coordinatortest.Desk, name string) (undo func()) {
	s, members := d.State(), d.C.Parts().Membership
	key, banKey := record.MemberKey(m.kind, name), record.BanIDKey(m.kind, name)
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Put(key, 0, record.Member{Kind: m.kind, Name: name, State: m.state, Entry: "pool", NotAfter: d.Clock().Add(m.ends)})
	if m.ban != "" {
		ch.Put(banKey, 0, record.Ban{Reason: "a test", At: d.Clock()})
	}
	if _, err := ch.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	flip := func(value []byte) []byte {
		value[len(value)-1] ^= 1
		return value
	}
	if m.ban == "altered" {
		d.Store.Alter(banKey, flip)
	}
	if m.altered {
		d.Store.Alter(key, flip)
	}
	id, err := identity.New(s.Manifest.Cluster, m.kind, name)
	if err != nil {
		t.Fatal(err)
	}
	if live := members.Live(); m.kind != identity.Admin {
		if m.called {
			live.Called(id, fence.Epoch(1<<32|1), "", d.Clock())
			live.SaysPaused(id, m.paused)
			if m.short+m.held > 0 {
				live.ShardReported(id, fence.Epoch(1<<32|1), "", &fealtyv1.ShardReport{Number: 1, Every: durationpb.New(time.Second),
					ShortFor: durationpb.New(m.short), HeldFor: durationpb.New(m.held)})
			}
		}
		switch m.stream {
		case "polls":
			live.Polls(id, time.Minute)
		case "open", "closed":
			stream := live.Opened(id, "")
			if m.stream == "closed" {
				defer live.Closed(id, stream, true)
			}
		}
		for i, said := range m.reports {
			req := &fealtyv1.ConnectRequest{Release: "dev", LogProblem: said.log, LogDropped: 1}
			for j, freshness := range said.freshness {
				req.Held = append(req.Held, &fealtyv1.HeldSnapshot{Scope: string(snapshot.Scopes()[j]),
					AuthorityEpoch: s.Head.AuthorityEpoch, ConfigVersion: said.version, Freshness: freshness})
			}
			if said.behind > 0 {
				req.ClockBehind = durationpb.New(said.behind)
			}
			if said.alone > 0 {
				req.AutonomousUntil, req.AutonomyLimit = timestamppb.New(d.Clock().Add(said.alone)), "degraded.max"
			}
			live.Reported(id, req, d.Clock().Add(-time.Duration(len(m.reports)-1-i)*time.Minute))
		}
	}
	return func() {
		d.Store.Remove(key)
		if m.ban != "" {
			d.Store.Remove(banKey)
		}
		members.Live().Forget(id)
	}
}

// ofMembers are the codes of what is found of members one by one.
var ofMembers = []errcode.Code{errcode.MemberBaseline, errcode.MemberExpired, errcode.MemberSilent, errcode.MemberStale,
	errcode.MemberClock, errcode.ShardPaused, errcode.ShardShort, errcode.ShardHolds, errcode.LogFailing, errcode.StoreClaimed}

// Of any fleet, the short form of the status finds and counts what the long one does, and what is found if every member is
// looked at, whether it seems well or not; and it shows those members of the long one that need somebody, in their order.
func TestShortStatusIsTheLongOne(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	status := d.C.Parts().Shown.Status
	round, well, shown := 0, 0, 0
	testlane.Checks(t, 200, 2000)
	rapid.Check(t, func(r *rapid.T) {
		d.C.Parts().Membership.Listens(d.Clock().Add(-rapid.SampledFrom([]time.Duration{0, peer.SilentAfter}).Draw(r, "listens")))
		round++
		genuine := 0
		for i := range rapid.IntRange(0, 12).Draw(r, "members") {
			m := drawMember(r)
			defer m.enter(r, d, fmt.Sprintf("n-%06d-%02d", round, i))()
			if !m.altered {
				genuine++
			}
		}
		size := rapid.Uint32Range(1, 4).Draw(r, "size")
		long, err := status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
		if err != nil || long.GetNextPageToken() != "" || len(long.GetMembers()) != genuine {
			r.Fatalf("%d members, want %d; next is %q, %v", len(long.GetMembers()), genuine, long.GetNextPageToken(), err)
		}
		short, err := status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{PageSize: size, NeedSomebody: true})
		if err != nil {
			r.Fatal(err)
		}
		now := long.GetNow().AsTime()
		need := condition.NeedSomebody(long.GetMembers(), now)
		if want := need[:min(len(need), int(size))]; !sameMessages(short.GetMembers(), want) || short.GetNextPageToken() != "" {
			r.Errorf("the short form shows %v, want %v; next is %q", short.GetMembers(), want, short.GetNextPageToken())
		}
		if want := condition.Count(long.GetMembers(), now); !proto.Equal(long.GetCounts(), want) {
			r.Errorf("counted as %v, want %v", long.GetCounts(), want)
		}
		found, baseline, contacts, err := coordinator.FoundOf(t.Context(), d.C, long, long.GetMembers())
		if err != nil {
			r.Fatal(err)
		}
		var got []string
		for _, f := range long.GetFindings() {
			if slices.Contains(ofMembers, errcode.Code(f.GetCode())) {
				got = append(got, f.String())
			}
		}
		var want []string
		for _, f := range found {
			want = append(want, f.String())
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			r.Errorf("found\n%q\nwant\n%q", got, want)
		}
		if !proto.Equal(long.GetBaseline(), baseline) || !proto.Equal(long.GetContacts(), contacts) {
			r.Errorf("baseline %v and contacts %v, want %v and %v", long.GetBaseline(), long.GetContacts(), baseline, contacts)
		}
		well, shown = well+len(long.GetMembers())-len(need), shown+len(short.GetMembers())
		for _, st := range []*fealtyv1.GetStatusResponse{long, short} {
			st.Members, st.StoreLatency = nil, nil
		}
		if !proto.Equal(short, long) {
			r.Errorf("the short form is\n%v\nthe long one\n%v", short, long)
		}
	})
	if well == 0 || shown == 0 {
		t.Errorf("%d members were well, and %d were shown", well, shown)
	}
}

func sameMessages[M proto.Message](a, b []M) bool {
	return slices.EqualFunc(a, b, func(x, y M) bool { return proto.Equal(x, y) })
}

// With the token of a page the short form is that page: a client that began at a coordinator of an earlier release goes on
// at any other.
func TestShortStatusGoesOnWithThePagesOfEarlierReleases(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	for i := range 3 {
		drawnMember{kind: identity.Data, state: record.Active, ends: time.Hour}.enter(t, d, fmt.Sprint("n-", i))
	}
	first, err := d.C.Parts().Shown.Status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{PageSize: 2})
	if err != nil || len(first.GetMembers()) != 2 {
		t.Fatal(first.GetMembers(), err)
	}
	second, err := d.C.Parts().Shown.Status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{PageSize: 2, NeedSomebody: true,
		PageToken: first.GetNextPageToken()})
	if err != nil || len(second.GetMembers()) != 1 || second.GetMembers()[0].GetName() != "n-2" || second.GetCounts() != nil {
		t.Errorf("the second page is %v, %v", second, err)
	}
}

// The short form while the store is out of reach is that of what was last known.
func TestShortStatusWithoutTheStore(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	drawnMember{kind: identity.Data, state: record.Active, ends: time.Hour, stream: "open"}.enter(t, d, "well")
	drawnMember{kind: identity.Data, state: record.Active, ends: time.Hour}.enter(t, d, "away")
	status := d.C.Parts().Shown.Status
	if _, err := status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	d.Store.SetDown(coordinatortest.ErrDown)
	short, err := status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{NeedSomebody: true})
	if err != nil || len(short.GetMembers()) != 1 || short.GetMembers()[0].GetName() != "away" ||
		short.GetCounts().GetNodes() != 2 || short.GetCounts().GetNeedSomebody() != 1 || short.GetContacts().GetConnected() != 1 {
		t.Errorf("the short form is %v, %v", short, err)
	}
}

// A status reads each record of members, and of the trust state with its bans, once, and makes no message of a member that
// is well and on no page: but for what the store copies, which is one allocation, a member costs it none.
func TestStatusMakesNothingOfWhoIsWell(t *testing.T) {
	const few, many = 500, 2500
	allocs := make(map[string][]float64)
	for _, n := range []int{few, many} {
		d := fleetOf(t, n)
		coordinatortest.BanAt(d, t, identity.Data, "n-000001")
		for name, req := range map[string]*fealtyv1.GetStatusRequest{"short": {NeedSomebody: true}, "long": {PageSize: 1}} {
			ask := func() {
				st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(), req)
				if c := st.GetCounts(); err != nil || int(c.GetNodes()) != n-1 || c.GetBanned() != 1 {
					t.Fatal(st.GetCounts(), err)
				}
			}
			for prefix, want := range map[string]int{record.MemberPrefix: n, bundle.Prefix: len(d.Store.Keys(bundle.Prefix))} {
				d.Store.CountReads(prefix)
				if ask(); d.Store.ReadSince() != want {
					t.Errorf("%s, %d members: not all %d records of %s are read once", name, n, want, prefix)
				}
			}
			allocs[name] = append(allocs[name], testing.AllocsPerRun(5, ask))
		}
	}
	for name, of := range allocs {
		if each := (of[1] - of[0]) / (many - few); each > 2 {
			t.Errorf("%s: each further member that is well costs %.1f allocations", name, each)
		}
	}
}
