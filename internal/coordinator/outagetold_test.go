package coordinator_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
)

// Why the store does not answer is told apart, with its own words: to whoever calls, in status, in readiness
// and in a metric. A stranger is told why, and not the words. It is over by itself.
func TestWhyTheStoreDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for o, want := range map[store.Outage]struct {
		code errcode.Code
		word string
	}{
		store.Unreachable:  {errcode.StoreUnreachable, "unreachable"},
		store.Locked:       {errcode.StoreHeld, "locked"},
		store.LoginRefused: {errcode.StoreLoginRefused, "login-refused"},
		store.Overloaded:   {errcode.StoreOverloaded, "too-many-connections"},
		store.Standby:      {errcode.StoreUnsuitable, "standby"},
		store.Unsuitable:   {errcode.StoreUnsuitable, "unsuitable"},
		store.Unreadable:   {errcode.StoreUnreachable, "unreadable"},
	} {
		t.Run(want.word, func(t *testing.T) {
			t.Parallel()
			d := coordinatortest.PoolDesk(t)
			m := d.Joined("a")
			const words = "no entry for user fealty at 10.9.8.7"
			d.Store.SetDown(store.NewOutage(o, words, errors.New("engine: "+words)))

			_, err := coordinatortest.Served[fealtyv1.TokenServiceServer](d.C.Parts().Admission.RegisterServices).
				CreateToken(t.Context(), &fealtyv1.CreateTokenRequest{Entry: "pool"})
			told := errcode.Of(errcode.Of(err).GRPCStatus().Err())
			if told.Code != want.code || !errors.Is(told, errcode.StoreUnreachable) || !strings.Contains(told.Why, words) ||
				errcode.ExitCode(told) != errcode.ExitUnreachable {
				t.Errorf("a member is told %v, exit status %d", told, errcode.ExitCode(told))
			}
			stranger := errcode.Of(errcode.Of(storeguard.ForStrangers(err)).GRPCStatus().Err())
			if stranger.Code != want.code || !strings.Contains(stranger.Why, o.String()) || strings.Contains(stranger.Error(), "fealty at") {
				t.Errorf("a stranger is told %v", stranger)
			}
			coordinatortest.WantOutage(t, "a new key", m.Renew(), want.code)
			coordinatortest.WantOnlyNil(t, coordinatortest.RenewRecorded(m)) // as in every outage

			d.C.SelfChecked().Set(d.Clock())
			if a := d.C.Health().Readiness(); !a.OK || a.Store != "failing" || a.Failure != want.word || !strings.Contains(a.Reason, words) {
				t.Errorf("readiness: %+v", a)
			}
			if !d.C.Health().Liveness().OK {
				t.Error("it is not alive")
			}
			if found := coordinatortest.FindingsAt(d, t, want.code); len(found) != 1 || !strings.Contains(found[0].GetSummary(), words) {
				t.Errorf("findings: %v", found)
			}
			if n := counted(t, d.C.Registry(), want.word); n == 0 {
				t.Errorf("no failure is counted for %s", want.word)
			}

			d.Store.SetDown(nil)
			coordinatortest.WantOnlyNil(t, m.Renew())
			d.Advance(health.WriteSettles + time.Second)
			coordinatortest.WantOnlyNil(t, m.Renew())
			d.C.Parts().Moves.Succession.Look(t.Context())
			d.C.SelfChecked().Set(d.Clock())
			if a := d.C.Health().Readiness(); a.Store != "ok" || a.Failure != "" || a.Reason != "" || len(coordinatortest.FindingsAt(d, t, want.code)) != 0 {
				t.Errorf("when it is over: %+v, %v", a, coordinatortest.FindingsAt(d, t, want.code))
			}
		})
	}
}

// counted returns how many calls of the store failed for a reason.
func counted(t *testing.T, reg *prometheus.Registry, reason string) float64 {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range all {
		if family.GetName() == "fealty_store_failures_total" {
			for _, m := range family.GetMetric() {
				if m.GetLabel()[0].GetValue() == reason {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	t.Fatalf("there is no counter for %q", reason)
	return 0
}
