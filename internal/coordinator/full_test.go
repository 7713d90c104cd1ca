package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
)

// However long the store is full, a certificate ends within the stretch that bans count
// in; and the head that the store shows is enough for being ready.
func TestFullStoreLasts(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	m := d.Joined("a")
	end := recordedEnd(d, m)
	d.Store.SetFull(true)
	for d.Clock().Before(end.Add(record.Stretch - time.Minute)) {
		d.Advance(30 * time.Minute)
		d.C.Parts().Moves.Succession.Look(t.Context())
		if !d.Clock().Before(end.Add(record.Stretch)) {
			break
		}
		if err := coordinatortest.RenewRecorded(m); err != nil {
			t.Fatalf("%v after its record ends: %v", d.Clock().Sub(end), err)
		}
		if m.Leaf.NotAfter.After(end.Add(record.Stretch)) {
			t.Fatalf("certified until %v, and its record ends at %v", m.Leaf.NotAfter, end)
		}
		if a := d.C.Health().Readiness(); !a.OK || a.Store != "full" {
			t.Fatalf("readiness: %+v", a)
		}
	}
	if m.Leaf.NotAfter.Before(end.Add(record.Stretch - time.Minute)) {
		t.Errorf("certified until %v alone, and its record ends at %v", m.Leaf.NotAfter, end)
	}
	d.Advance(end.Add(record.Stretch - time.Second/2).Sub(d.Clock()))
	d.C.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.WantOnly(t, "for longer than that", coordinatortest.RenewPastGuard(d, m), errcode.StoreFull)
}

// That the store is full is told by status, readiness, a metric and the log, and is over
// when it took a write; what nobody wrote for is no news.
func TestFullStoreIsTold(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	m := d.Joined("a")
	told := func(what string, want bool) {
		t.Helper()
		d.C.SelfChecked().Set(d.Clock())
		metric := "# HELP fealty_store_full 1 while the store refuses writes, because it has no space left or was " +
			"made read-only.\n# TYPE fealty_store_full gauge\nfealty_store_full " +
			map[bool]string{false: "0", true: "1"}[want] + "\n"
		if err := testutil.GatherAndCompare(d.C.Registry(), strings.NewReader(metric),
			"fealty_store_full"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := len(coordinatortest.FindingsAt(d, t, errcode.StoreFull)) == 1; got != want {
			t.Errorf("%s: a finding: %v", what, got)
		}
		a := d.C.Health().Readiness()
		if !a.OK || (a.Store == "full") != want || (a.Reason != "") != want || strings.Contains(a.Reason, "secret") {
			t.Errorf("%s: readiness %+v", what, a)
		}
		if !d.C.Health().Liveness().OK {
			t.Errorf("%s: it is not alive", what)
		}
	}
	told("before", false)
	d.Store.SetFull(true)
	told("before anybody wrote", false)
	coordinatortest.WantOnly(t, "a new key", m.Renew(), errcode.StoreFull)
	told("after a write", true)
	d.Advance(time.Hour)
	d.C.Parts().Moves.Succession.Look(t.Context())
	told("an hour later, when nobody wrote since", true)
	d.Store.SetFull(false)
	coordinatortest.WantOnlyNil(t, m.Renew())
	told("after one that was taken", false)

	// A store with space for little: beats are taken, and what is large is not.
	d.Store.SetFull(true)
	coordinatortest.WantOnly(t, "a new key", m.Renew(), errcode.StoreFull)
	d.Store.SetFull(false)
	d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	told("while large writes are refused", true)
	d.Advance(health.WriteSettles + time.Second)
	d.C.Parts().Moves.Succession.Look(t.Context())
	told("when none was refused for long", false)
}

// While the store is full nothing is half applied: a manifest, a token, a config and a
// rotation are refused by name and leave all as it was, or are done.
func TestFullStoreAppliesNothing(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	before, head := d.Store.Snapshot(), d.State().Head.Hash
	d.Store.SetFull(true)
	_, put := coordinatortest.PutAt(d, coordinatortest.QosRecord)
	_, token := coordinatortest.Served[fealtyv1.TokenServiceServer](d.C.Parts().Admission.RegisterServices).CreateToken(
		context.Background(),
		&fealtyv1.CreateTokenRequest{Entry: "pool"})
	_, rotate := coordinatortest.TrustService(d).RotateConfigKey(context.Background(), &fealtyv1.RotateConfigKeyRequest{})
	_, rekey := coordinatortest.Rekey(d)
	for what, err := range map[string]error{
		"a manifest": d.Set(coordinatortest.PoolEntries + "  - {name: more, kind: witness, match: [\"token:more\"]}\n"),
		"a token":    token, "a rotation": rotate, "another mesh CA": rekey, "a config": put,
	} {
		if !errors.Is(err, errcode.StoreFull) && !errors.Is(err, store.ErrFull) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for key, e := range d.Store.Snapshot() {
		if old, ok := before[key]; !ok || string(old.Value) != string(e.Value) {
			t.Errorf("%s was written", key)
		}
	}
	if s := d.State(); s.Phase != authority.Ready || s.Head.Hash != head {
		t.Errorf("it is %v at %v", s.Phase, s.Head.Hash)
	}
	d.Store.SetFull(false)
	coordinatortest.WantOnlyNil(t, d.Set(coordinatortest.PoolEntries+"  - {name: more, kind: witness, match: [\"token:more\"]}\n"))
}

// Why a store that is read takes no writes is told by readiness, by a finding, to who
// asked for a change, and where nobody leads for it; and from when on it takes some. A
// member has its recorded key certified again whatever the reason is.
func TestRefusingStoreIsTold(t *testing.T) {
	t.Parallel()
	for _, reason := range store.Reasons() {
		refused := coordinatortest.RefusedFor(reason)
		for _, err := range []error{refused, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, refused)} {
			name := "refused"
			if errors.Is(err, store.ErrUnknownOutcome) {
				name = "unknown"
			}
			t.Run(storeguard.Word(reason)+" "+name,
				func(t *testing.T) { t.Parallel(); testRefusingStore(t, reason, err) })
		}
	}
}

func testRefusingStore(t *testing.T, reason store.Reason, refused error) {
	d := coordinatortest.PoolDesk(t)
	m := d.Joined("a")
	d.Joined("b")
	d.Store.SetRefusing(refused)
	code := errcode.StoreRefuses
	if reason == store.NoSpace {
		code = errcode.StoreFull
	}
	answer := code
	if errors.Is(refused, store.ErrUnknownOutcome) {
		answer = errcode.StoreOutcomeUnknown
	}
	shows := func(what, text string, err error) {
		t.Helper()
		told := err != nil && (strings.Contains(errcode.Of(err).Why, text) || reason == store.NoSpace &&
			strings.Contains(errcode.Of(err).Why, "no space left"))
		if !errors.Is(err, answer) || !told || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s with %q", what, err, answer, text)
		}
	}
	shows("a new key", reason.String(), m.Renew())
	_, err := d.Members().BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data", Name: "b", Reason: "x"})
	shows("a ban", reason.String(), err)
	end := recordedEnd(d, m)
	for d.Clock().Before(end.Add(time.Hour)) {
		d.Advance(20 * time.Minute)
		d.C.Parts().Moves.Succession.Look(t.Context())
		coordinatortest.WantOnlyNil(t, coordinatortest.RenewRecorded(m)) // for longer than in an outage: what is read is so
	}
	if m.Leaf.NotAfter.Before(end.Add(coordinator.DefaultMaxHeadAge)) {
		t.Errorf("it is certified until %v, and its record ends at %v", m.Leaf.NotAfter, end)
	}
	told := func(what, word, text string) {
		t.Helper()
		if a := d.C.Health().Readiness(); !a.OK || a.Store != word || !strings.Contains(a.Reason, text) ||
			(a.Reason == "") != (text == "") {
			t.Errorf("%s: readiness %+v, want %q with %q", what, a, word, text)
		}
		for _, other := range []errcode.Code{errcode.StoreFull, errcode.StoreRefuses} {
			if got, want := len(coordinatortest.FindingsAt(d, t, other)), word != "ok" && other == code; got == 1 != want ||
				got > 1 {
				t.Errorf("%s: %d findings %s", what, got, other)
			}
		}
	}
	told("meanwhile", storeguard.Word(reason), "has taken no writes for")
	told("meanwhile", storeguard.Word(reason), reason.String())
	// People are told what the store said; a member that asked is not, as that may name paths and servers.
	said := `in its words: "of /secret/path"`
	told("meanwhile", storeguard.Word(reason), said)
	if n := counted(t, d.C.Registry(), storeguard.Word(reason)); n == 0 {
		t.Errorf("no failure is counted for %s", storeguard.Word(reason))
	}
	found := coordinatortest.FindingsAt(d, t, code)[0]
	if !strings.Contains(found.GetSummary(), said) {
		t.Errorf("the finding lacks %q: %v", said, found)
	}
	if !strings.Contains(found.GetSummary(), "every change since") || strings.Contains(found.GetRemedy(), "{") ||
		found.GetRemedy() == "" {
		t.Errorf("the finding: %v", found)
	}
	d.Store.SetDown(coordinatortest.ErrDown) // as one whose file is gone, once it is opened anew
	if got := coordinatortest.FindingsAt(d, t, code); len(got) != 1 || len(coordinatortest.FindingsAt(d, t,
		errcode.StoreUnreachable)) != 1 {
		t.Errorf("%d findings %s when it cannot be read either, want that and %s", len(got), code,
			errcode.StoreUnreachable)
	}
	d.Store.SetDown(nil)
	d.Lapse()
	d.Pass(election.NobodyAfter)
	d.C.Parts().Election.Step(t.Context())
	if got := d.C.Parts().Election.Findings(); len(got) != 1 || !strings.Contains(got[0].GetSummary(),
		reason.String()) || strings.Contains(got[0].GetSummary(), "altering") {
		t.Errorf("nobody leads: %v", got)
	}

	d.Store.SetRefusing(nil)
	back := d.Clock().UTC().Format("15:04:05")
	d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	told("as soon as it takes one", storeguard.Word(reason), "since "+back+" UTC the store takes some writes")
	if text := coordinatortest.FindingsAt(d, t, code)[0].GetSummary(); !strings.Contains(text, "some changes from") ||
		!strings.Contains(text, "it takes some") {
		t.Errorf("as soon as it takes one: %s", text)
	}
	d.Advance(health.WriteSettles + time.Second)
	d.C.Parts().Moves.Succession.Look(t.Context())
	told("when none was refused for long", "ok", "")
}
