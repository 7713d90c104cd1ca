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
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/lifetimes"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/writable"
)

// seal is the write of a record, as another coordinator makes it.
func (d *desk) seal(t *testing.T, key string, value any) store.Write {
	t.Helper()
	w, err := d.state().Records.Seal(key, value)
	wantOnlyNil(t, err)
	return w
}

// What a full store shows decides, though this coordinator heard nothing of it: who was
// banned, removed or renewed elsewhere, and under which head.
func TestFullStoreIsObeyed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, d *desk, m *machine)
		want   explain.Code
	}{
		{"its identity is banned", func(t *testing.T, d *desk, m *machine) {
			w := d.seal(t, record.BanIDKey(identity.Data, "a"), record.Ban{Reason: "x", By: "y", At: d.clock()})
			d.store.write(w.Key, w.Value)
		}, explain.JoinBanned},
		{"its key is banned", func(t *testing.T, d *desk, m *machine) {
			w := d.seal(t, record.BanKeyKey(keyOf(t, m.key)), record.Ban{Reason: "x", By: "y", At: d.clock()})
			d.store.write(w.Key, w.Value)
		}, explain.JoinBanned},
		{"it was removed", func(t *testing.T, d *desk, m *machine) {
			d.store.alter(record.MemberKey(identity.Data, "a"), func([]byte) []byte { return nil })
		}, explain.RenewEntryGone},
		{"it was renewed elsewhere", func(t *testing.T, d *desk, m *machine) {
			rec := d.record(identity.Data, "a").Value
			next, err := newKey()
			wantOnlyNil(t, err)
			rec.Rekey(keyOf(t, next), d.clock().Add(time.Hour), d.clock(), time.Hour)
			w := d.seal(t, record.MemberKey(identity.Data, "a"), rec)
			d.store.write(w.Key, w.Value)
		}, explain.StoreBusy}, // the newer key may be its own; see renewRecorded
		{"its record is altered", func(t *testing.T, d *desk, m *machine) {
			d.store.alter(record.MemberKey(identity.Data, "a"), func(b []byte) []byte { b[len(b)-2] ^= 1; return b })
		}, explain.StoreForged},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := testDesk(t)
			m := d.joined("a")
			d.store.setFull(true)
			wantOnlyNil(t, m.again())
			tt.change(t, d, m)
			wantOnly(t, "its recorded key", d.past(m), tt.want)
		})
	}
}

// Between the look at the record and the attempt to write it, something happens that the
// refused transaction would have met: it is looked for after the refusal.
func TestFullStoreIsLookedAtLast(t *testing.T) {
	ban := record.Ban{Reason: "x", By: "y"}
	for name, tt := range map[string]struct {
		key   func(m *machine) string
		value any // nil: what is there, under another version
		want  explain.Code
	}{
		"its identity is banned": {func(*machine) string { return record.BanIDKey(identity.Data, "a") }, ban,
			explain.JoinBanned},
		"its key is banned": {func(m *machine) string { return record.BanKeyKey(keyOf(m.d.t, m.key)) }, ban,
			explain.JoinBanned},
		"another head is in force": {func(*machine) string { return history.HeadKey }, nil, explain.StoreBusy},
		"its record is another one": {func(*machine) string { return record.MemberKey(identity.Data, "a") }, nil,
			explain.StoreBusy},
	} {
		t.Run(name, func(t *testing.T) {
			d := testDesk(t)
			m := d.joined("a")
			key := tt.key(m)
			value := d.store.snapshot()[key].Value
			if tt.value != nil {
				value = d.seal(t, key, tt.value).Value
			}
			d.store.setFull(true)
			d.store.whenFull(func() { d.store.write(key, value) })
			wantOnly(t, "its recorded key", d.past(m), tt.want)
		})
	}
}

// However long the store is full, a certificate ends within the stretch that bans count
// in; and the head that the store shows is enough for being ready.
func TestFullStoreLasts(t *testing.T) {
	t.Parallel()
	d := testDesk(t)
	m := d.joined("a")
	end := d.recordedEnd(m)
	d.store.setFull(true)
	for d.clock().Before(end.Add(lifetimes.Stretch - time.Minute)) {
		d.advance(30 * time.Minute)
		d.c.Rooms().Authority.Look(t.Context())
		if !d.clock().Before(end.Add(lifetimes.Stretch)) {
			break
		}
		if err := m.again(); err != nil {
			t.Fatalf("%v after its record ends: %v", d.clock().Sub(end), err)
		}
		if m.leaf.NotAfter.After(end.Add(lifetimes.Stretch)) {
			t.Fatalf("certified until %v, and its record ends at %v", m.leaf.NotAfter, end)
		}
		if a := d.c.Health().Readiness(); !a.OK || a.Store != "full" {
			t.Fatalf("readiness: %+v", a)
		}
	}
	if m.leaf.NotAfter.Before(end.Add(lifetimes.Stretch - time.Minute)) {
		t.Errorf("certified until %v alone, and its record ends at %v", m.leaf.NotAfter, end)
	}
	d.advance(end.Add(lifetimes.Stretch - time.Second/2).Sub(d.clock()))
	d.c.Rooms().Authority.Look(t.Context())
	wantOnly(t, "for longer than that", d.past(m), explain.StoreFull)
}

// That the store is full is told by status, readiness, a metric and the log, and is over
// when it took a write; what nobody wrote for is no news.
func TestFullStoreIsTold(t *testing.T) {
	d := testDesk(t)
	m := d.joined("a")
	told := func(what string, want bool) {
		t.Helper()
		d.c.Pulsed().Set(d.clock())
		metric := "# HELP fealty_store_full 1 while the store refuses writes, because it has no space left or was " +
			"made read-only.\n# TYPE fealty_store_full gauge\nfealty_store_full " +
			map[bool]string{false: "0", true: "1"}[want] + "\n"
		if err := testutil.GatherAndCompare(d.c.Registry(), strings.NewReader(metric), "fealty_store_full"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := len(d.findings(t, explain.StoreFull)) == 1; got != want {
			t.Errorf("%s: a finding: %v", what, got)
		}
		a := d.c.Health().Readiness()
		if !a.OK || (a.Store == "full") != want || (a.Reason != "") != want || strings.Contains(a.Reason, "secret") {
			t.Errorf("%s: readiness %+v", what, a)
		}
		if !d.c.Health().Liveness().OK {
			t.Errorf("%s: it is not alive", what)
		}
	}
	told("before", false)
	d.store.setFull(true)
	told("before anybody wrote", false)
	wantOnly(t, "a new key", m.renew(), explain.StoreFull)
	told("after a write", true)
	d.advance(time.Hour)
	d.c.Rooms().Authority.Look(t.Context())
	told("an hour later, when nobody wrote since", true)
	d.store.setFull(false)
	wantOnlyNil(t, m.renew())
	told("after one that was taken", false)

	// A store with space for little: beats are taken, and what is large is not.
	d.store.setFull(true)
	wantOnly(t, "a new key", m.renew(), explain.StoreFull)
	d.store.setFull(false)
	d.token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	told("while large writes are refused", true)
	d.advance(writable.Settles + time.Second)
	d.c.Rooms().Authority.Look(t.Context())
	told("when none was refused for long", false)
}

// While the store is full nothing is half applied: a manifest, a token, a config and a
// rotation are refused by name and leave all as it was, or are done.
func TestFullStoreAppliesNothing(t *testing.T) {
	d := testDesk(t)
	d.joined("a")
	before, head := d.store.snapshot(), d.state().Head.Hash
	d.store.setFull(true)
	_, put := d.put(qosRecord)
	_, token := served[fealtyv1.TokenServiceServer](d.c.Rooms().Admission.RegisterServices).CreateToken(
		context.Background(),
		&fealtyv1.CreateTokenRequest{Entry: "pool"})
	_, rotate := d.trustService().RotateConfigKey(context.Background(), &fealtyv1.RotateConfigKeyRequest{})
	_, rekey := d.rekey()
	for what, err := range map[string]error{
		"a manifest": d.set(poolEntries + "  - {name: more, kind: witness, match: [\"token:more\"]}\n"),
		"a token":    token, "a rotation": rotate, "another mesh CA": rekey, "a config": put,
	} {
		if !errors.Is(err, explain.StoreFull) && !errors.Is(err, store.ErrFull) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for key, e := range d.store.snapshot() {
		if old, ok := before[key]; !ok || string(old.Value) != string(e.Value) {
			t.Errorf("%s was written", key)
		}
	}
	if s := d.state(); s.Phase != authority.Ready || s.Head.Hash != head {
		t.Errorf("it is %v at %v", s.Phase, s.Head.Hash)
	}
	d.store.setFull(false)
	wantOnlyNil(t, d.set(poolEntries+"  - {name: more, kind: witness, match: [\"token:more\"]}\n"))
}

// Why a store that is read takes no writes is told by readiness, by a finding, to who
// asked for a change, and where nobody leads for it; and from when on it takes some. A
// member has its recorded key certified again whatever the reason is.
func TestRefusingStoreIsTold(t *testing.T) {
	t.Parallel()
	for i, reason := range store.Reasons() {
		refused := refusedFor(reason)
		for _, err := range inTurn(i, refused, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, refused)) {
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
	d := testDesk(t)
	m := d.joined("a")
	d.joined("b")
	d.store.setRefusing(refused)
	code := explain.StoreRefuses
	if reason == store.NoSpace {
		code = explain.StoreFull
	}
	answer := code
	if errors.Is(refused, store.ErrUnknownOutcome) {
		answer = explain.StoreOutcomeUnknown
	}
	shows := func(what, text string, err error) {
		t.Helper()
		told := err != nil && (strings.Contains(explain.Of(err).Why, text) || reason == store.NoSpace &&
			strings.Contains(explain.Of(err).Why, "no space left"))
		if !errors.Is(err, answer) || !told || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s with %q", what, err, answer, text)
		}
	}
	shows("a new key", reason.String(), m.renew())
	_, err := d.members().BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data", Name: "b", Reason: "x"})
	shows("a ban", reason.String(), err)
	end := d.recordedEnd(m)
	for d.clock().Before(end.Add(time.Hour)) {
		d.advance(20 * time.Minute)
		d.c.Rooms().Authority.Look(t.Context())
		wantOnlyNil(t, m.again()) // for longer than in an outage: what is read is so
	}
	if m.leaf.NotAfter.Before(end.Add(coordinator.DefaultMaxHeadAge)) {
		t.Errorf("it is certified until %v, and its record ends at %v", m.leaf.NotAfter, end)
	}
	told := func(what, word, text string) {
		t.Helper()
		if a := d.c.Health().Readiness(); !a.OK || a.Store != word || !strings.Contains(a.Reason, text) ||
			(a.Reason == "") != (text == "") {
			t.Errorf("%s: readiness %+v, want %q with %q", what, a, word, text)
		}
		for _, other := range []explain.Code{explain.StoreFull, explain.StoreRefuses} {
			if got, want := len(d.findings(t, other)), word != "ok" && other == code; got == 1 != want || got > 1 {
				t.Errorf("%s: %d findings %s", what, got, other)
			}
		}
	}
	told("meanwhile", storeguard.Word(reason), "has taken no writes for")
	told("meanwhile", storeguard.Word(reason), reason.String())
	found := d.findings(t, code)[0]
	if !strings.Contains(found.GetSummary(), "every change since") || strings.Contains(found.GetRemedy(), "{") ||
		found.GetRemedy() == "" {
		t.Errorf("the finding: %v", found)
	}
	d.lapse()
	d.pass(election.NobodyAfter)
	d.c.Rooms().Election.Step(t.Context())
	if got := d.c.Rooms().Election.Findings(); len(got) != 1 || !strings.Contains(got[0].GetSummary(),
		reason.String()) || strings.Contains(got[0].GetSummary(), "altering") {
		t.Errorf("nobody leads: %v", got)
	}

	d.store.setRefusing(nil)
	back := d.clock().UTC().Format("15:04:05")
	d.token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	told("as soon as it takes one", storeguard.Word(reason), "since "+back+" UTC the store takes some writes")
	if text := d.findings(t, code)[0].GetSummary(); !strings.Contains(text, "some changes from") ||
		!strings.Contains(text, "it takes some") {
		t.Errorf("as soon as it takes one: %s", text)
	}
	d.advance(writable.Settles + time.Second)
	d.c.Rooms().Authority.Look(t.Context())
	told("when none was refused for long", "ok", "")
}
