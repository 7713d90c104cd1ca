package grants_test

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/grants"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/errorinfo"
	"github.com/fealty-io/fealty/internal/signed"
)

// world is a member of which several processes call.
type world struct {
	t *testing.T
	d *coordinatortest.Desk
	m *coordinatortest.Machine
}

func newWorld(t *testing.T) *world {
	d := coordinatortest.PoolDesk(t)
	return &world{t, d, d.Joined("a")}
}

// calls has a process call, and wants it to be served, or refused for a reason.
func (w *world) calls(what string, life fence.Life, want fence.Reason) {
	w.t.Helper()
	_, err := w.d.C.Parts().Fencing.Grants.Serve(coordinatortest.Calls(w.m, life), w.d.State())
	if want == "" {
		if err != nil {
			w.t.Errorf("%s: %v, want it served", what, err)
		}
		return
	}
	coordinatortest.WantOnly(w.t, what, err, errcode.ProcessOvertaken)
	if errors.Is(err, fence.ErrEnded) != want.Ends() || !errors.Is(err, fence.ErrRefused) {
		w.t.Errorf("%s: %v does not match what %s does", what, err, want)
	}
	s := status.Convert(err)
	said := errorinfo.Reason(err, signed.ErrorDomain)
	if said != string(want) || s.Code() != codes.FailedPrecondition {
		w.t.Errorf("%s: %v says %q, want %s", what, s.Code(), said, want)
	}
	if strings.Contains(s.String(), life.Epoch.String()) {
		w.t.Errorf("%s: the refusal tells a mark: %v", what, s)
	}
}

// The newest life of the newest grant is served, and no other: not the one before it from the
// moment when the grant was given, and it is ended once its successor called.
func TestNewestProcessIsServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.calls("one of a member that was granted nothing", fence.Life{}, "")
	first := w.d.Process(w.m)
	w.calls("one of an earlier release", fence.Life{}, "")
	w.calls("the first", first, "")
	w.calls("the first, again", first, "")
	w.calls("one of an earlier release beside it", fence.Life{}, fence.ReasonStale)

	// A start while no coordinator answered counts a life by itself.
	second := coordinatortest.NextLife(first)
	w.calls("its next life", second, "")
	w.calls("the life before", first, fence.ReasonStale)
	copied := coordinatortest.NextLife(first)
	w.calls("a copy of its folder, with the same life", copied, fence.ReasonClone)
	w.calls("a copy of its folder, a life later", coordinatortest.NextLife(copied), fence.ReasonClone)
	w.calls("the life of now", second, "")

	granted := w.d.Process(w.m)
	w.calls("the one before, while the next did not call yet", second, fence.ReasonUngranted)
	w.calls("one of an earlier release, as the next may be", fence.Life{}, "")
	w.calls("the next", granted, "")
	w.calls("the one before", second, fence.ReasonStale)
	w.calls("one that was never heard, of the grant before", coordinatortest.NextLife(second), fence.ReasonStale)
	w.calls("one of an earlier release", fence.Life{}, fence.ReasonStale)

	other := granted
	other.Incarnation = fence.NewIncarnation()
	w.calls("another process under the same grant", other, fence.ReasonClone)
	w.d.Restart()
	w.calls("the newest, after the coordinator's restart", granted, "")
	w.calls("the one before, then", second, fence.ReasonStale)
}

// A process that was granted something and ended before it called leaves its number behind: the
// member's next life under the grant before is told nothing, and is not ended, as nobody is known
// to be in charge.
func TestGrantThatNobodyUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.d.Process(w.m)
	w.calls("the first", first, "")
	w.d.Process(w.m) // its answer is lost
	next := coordinatortest.NextLife(first)
	w.calls("the next life", next, fence.ReasonUngranted)
	last := w.d.Process(w.m)
	w.calls("the next grant", last, "")
	w.calls("the life of before", next, fence.ReasonStale)
}

// Lives since the last one that was heard, up to those that a lineage names.
func TestLivesThatWereNotHeard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.d.Process(w.m)
	w.calls("the first", first, "")
	near := first
	for range signed.MaxLineage {
		near = coordinatortest.NextLife(near)
	}
	far := coordinatortest.NextLife(near)
	w.calls("one life too many", far, fence.ReasonUngranted)
	w.calls("as many as a lineage names", near, "")
	w.calls("then one more", far, "")
	skipped := coordinatortest.NextLife(far)
	skipped.Epoch++
	w.calls("one that skips a life", skipped, fence.ReasonClone)
}

// A store that went back knows a lower number than its member has: the signed grant shows it,
// and nothing else does.
func TestStoreWentBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.d.Process(w.m)
	back, err := record.Get[grants.Record](t.Context(), w.d.State().Records, grants.KeyOf(identity.Data, "a"))
	if err != nil {
		t.Fatal(err)
	}
	second := w.d.Process(w.m)
	w.calls("the second", second, "")
	put := func(r grants.Record) {
		t.Helper()
		now, err := record.Get[grants.Record](t.Context(), w.d.State().Records, grants.KeyOf(identity.Data, "a"))
		if err != nil {
			t.Fatal(err)
		}
		ch := w.d.State().Records.NewChange(w.d.State().HeadVersion)
		ch.Put(grants.KeyOf(identity.Data, "a"), now.Version, r)
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	put(back.Value)
	bare := second
	bare.Grant = ""
	w.calls("a number that nobody signed", bare, fence.ReasonUngranted)
	mixed := second
	mixed.Grant = first.Grant
	w.calls("the number of another grant", mixed, fence.ReasonUngranted)
	w.calls("the first, of which nobody knows any more", first, "")
	w.calls("the second, which shows its grant", second, "")
	w.calls("the first, then", first, fence.ReasonStale)
	w.d.Store.Remove(grants.KeyOf(identity.Data, "a"))
	w.calls("the second, when the record is lost", second, "")
	if got := w.d.Process(w.m); got.Epoch.Grant() != second.Epoch.Grant()+1 {
		t.Errorf("then grant %d is given", got.Epoch.Grant())
	}
	before := grants.Record{Number: 9} // of a release that kept no incarnation
	put(before)
	odd := fence.Life{Epoch: fence.NewEpoch(9, 1), Incarnation: fence.NewIncarnation()}
	w.calls("a record without an incarnation", odd, "")
	odd.Incarnation = fence.NewIncarnation()
	w.calls("and another process after it", odd, fence.ReasonClone)
}

// What is no life is refused as a request, and ends nobody.
func TestLivesThatAreNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.d.Process(w.m)
	b := w.d.Joined("b")
	foreign := w.d.Process(b)
	foreign.Epoch = first.Epoch
	for name, edit := range map[string]func(metadata.MD){
		"no token":               func(md metadata.MD) { md.Set(signed.TokenKey, "x") },
		"two tokens":             func(md metadata.MD) { md.Append(signed.TokenKey, md.Get(signed.TokenKey)...) },
		"no lineage":             func(md metadata.MD) { md.Set(signed.LineageKey, "x") },
		"another member's grant": func(md metadata.MD) { md.Set(signed.GrantKey, foreign.Grant) },
	} {
		ctx := coordinatortest.Calls(w.m, first)
		md, _ := metadata.FromIncomingContext(ctx)
		md = md.Copy()
		edit(md)
		_, err := w.d.C.Parts().Fencing.Grants.Serve(metadata.NewIncomingContext(ctx, md), w.d.State())
		coordinatortest.WantOnly(t, name, err, errcode.RequestField)
	}
	w.calls("the process all the same", first, "")
}
