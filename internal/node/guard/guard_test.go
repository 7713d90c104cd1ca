package guard_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/snapshot"
)

var testWord = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// Bounds of the facts that the tests begin with, after testWord.
const (
	freshFor   = 15 * time.Minute
	routeFor   = 2 * time.Hour
	sessionFor = 3 * time.Hour
	maxFor     = 4 * time.Hour
	lifetime   = 10 * time.Hour // of all snapshots
	svidFor    = 9 * time.Hour
)

// testFacts are those of a node that holds all that it may, with a policy that
// allows everything.
func testFacts() guard.Facts {
	f := guard.Facts{
		Contact: true, Active: make(map[snapshot.Scope]guard.Standing), Lists: make(map[snapshot.Scope]bool),
		Word: testWord, SVIDEnd: testWord.Add(svidFor),
		Policy: guard.DegradedPolicy{Max: maxFor, RouteTTL: routeFor, SessionTTL: sessionFor},
	}
	for _, p := range manifest.Permissions() {
		f.Policy.Allow = append(f.Policy.Allow, string(p))
	}
	for _, scope := range snapshot.Scopes() {
		if scope == snapshot.ScopeNodeBootstrap {
			continue // a node_runtime took its place
		}
		f.Active[scope], f.Lists[scope] = guard.Standing{Fresh: testWord.Add(freshFor),
			Expires: testWord.Add(lifetime)}, true
	}
	return f
}

// The actions of the table, in groups that are refused for the same reasons.
var actionGroups = map[string][]guard.Action{
	"services": {guard.ContinueServices}, "routes": {guard.PreserveRoutes}, "sessions": {guard.PreserveSessions},
	"validate":  {guard.ValidatePeers},
	"back":      {guard.ReconnectPeers, guard.ReportLater},
	"endpoints": {guard.UseStorageEndpoints},
	"new":       {guard.StartServices, guard.ResolveSecrets}, "admit": {guard.AdmitSessions},
	"forbidden": {
		guard.ApproveEnrollment, guard.IssueCertificates, guard.AssignRoles, guard.ChangeClusterPolicy,
		guard.ChangeOrganizationPolicy,
		guard.RotateTrustRoots, guard.PromotePartition, guard.FetchUnrelatedSecrets, guard.CreateServiceAuthority,
	},
	"unknown": {"", "become_root", "Continue_services"},
}

func TestActionsAreAllTested(t *testing.T) {
	var tested, rows []guard.Action
	for _, group := range actionGroups {
		tested = append(tested, group...)
	}
	for _, r := range guard.ActionRules() {
		rows = append(rows, r.Action)
		if !slices.Contains(tested, r.Action) {
			t.Errorf("%s is in no group of the test", r.Action)
		}
		if (r.Class == guard.ByPolicy) != (r.Policy != "") || r.Why == "" {
			t.Errorf("the row of %s is not whole: %+v", r.Action, r)
		}
	}
	for _, p := range manifest.Permissions() {
		if !slices.Contains(rows, guard.Action(p)) {
			t.Errorf("the manifest can allow %s, which has no row", p)
		}
	}
	if slices.Sort(rows); len(slices.Compact(rows)) != len(guard.ActionRules()) {
		t.Error("an action has two rows")
	}
}

// All that is permitted in each state, with the policy on and off, before and after each
// bound. A group that is not named is permitted.
func TestGuard(t *testing.T) {
	const hour = time.Hour
	degraded := freshFor + guard.StaleFor // the first instant
	no := func(f *guard.Facts) {}
	off := func(f *guard.Facts) { f.Policy.Allow = nil }
	type refused map[string]guard.RefusalReason
	alone := func(more refused) refused { // what no state but contact permits
		out := refused{"forbidden": guard.ForbiddenAction}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	old := func(more refused) refused {
		out := alone(refused{"new": guard.NeedsRecord, "admit": guard.NeedsRecord})
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	allOff := refused{"services": guard.NotAllowed, "routes": guard.NotAllowed, "sessions": guard.NotAllowed,
		"validate": guard.NotAllowed, "back": guard.NotAllowed, "endpoints": guard.NotAllowed}
	unsure := refused{"validate": guard.RevocationsUnknown, "new": guard.RevocationsUnknown,
		"admit": guard.RevocationsUnknown, "forbidden": guard.RevocationsUnknown}
	expired := alone(refused{"services": guard.ScopeExpired, "routes": guard.ScopeExpired,
		"sessions": guard.ScopeExpired, "validate": guard.ScopeExpired, "endpoints": guard.ScopeExpired,
		"new": guard.ScopeExpired, "admit": guard.ScopeExpired})
	for _, tc := range []struct {
		name  string
		edit  func(*guard.Facts)
		after time.Duration // of the last word
		want  refused
	}{
		{"in contact", no, 0, nil},
		{"in contact, policy off", off, 0, nil},
		{"fresh from a mirror", func(f *guard.Facts) { f.Contact = false }, 0, alone(nil)},
		{"the last fresh instant", no, freshFor - 1, nil},
		{"a coordinator without news", no, freshFor, alone(nil)},
		{"stale", func(f *guard.Facts) { f.Contact = false }, freshFor, alone(nil)},
		{"stale, policy off", off, freshFor, alone(nil)},
		{"stale, no degraded mode", func(f *guard.Facts) { f.Policy = guard.DegradedPolicy{} }, freshFor,
			alone(refused{"validate": guard.RevocationsUnknown, "new": guard.RevocationsUnknown,
				"admit": guard.RevocationsUnknown})},
		{"the last stale instant", no, degraded - 1, alone(nil)},
		{"degraded", no, degraded, old(nil)},
		{"degraded, policy off", off, degraded, old(allOff)},
		{"degraded, one allowed", func(f *guard.Facts) { f.Policy.Allow = []string{"validate_peers"} }, degraded,
			old(refused{"services": guard.NotAllowed, "routes": guard.NotAllowed, "sessions": guard.NotAllowed,
				"back": guard.NotAllowed, "endpoints": guard.NotAllowed})},
		{"degraded, policy lists what is forbidden", func(f *guard.Facts) {
			f.Policy.Allow = append(f.Policy.Allow, "become_root", "")
			for _, a := range slices.Concat(actionGroups["forbidden"], actionGroups["new"], actionGroups["admit"]) {
				f.Policy.Allow = append(f.Policy.Allow, string(a))
			}
		}, degraded, old(nil)},
		{"degraded, for no time at all", func(f *guard.Facts) { f.Policy.Max = 0 }, degraded,
			old(refused{"services": guard.BoundOver, "routes": guard.BoundOver, "sessions": guard.BoundOver,
				"validate": guard.BoundOver})},
		{"degraded, the snapshot of the policy expired", func(f *guard.Facts) { f.Until = testWord.Add(degraded) },
			degraded,
			old(refused{"services": guard.NotAllowed, "routes": guard.NotAllowed, "sessions": guard.NotAllowed,
				"validate": guard.NotAllowed, "endpoints": guard.NotAllowed})},
		{"degraded, just before", func(f *guard.Facts) { f.Until = testWord.Add(degraded + 1) }, degraded, old(nil)},
		{"fresh, the snapshot of the policy expired", func(f *guard.Facts) { f.Until = testWord }, 0, nil},
		{"the last instant of routes", no, routeFor - 1, old(nil)},
		{"routes over", no, routeFor, old(refused{"routes": guard.BoundOver})},
		{"sessions over", no, sessionFor, old(refused{"routes": guard.BoundOver, "sessions": guard.BoundOver})},
		{"a route_ttl above the maximum", func(f *guard.Facts) {
			f.Policy.RouteTTL, f.Policy.SessionTTL = 100*hour,
				100*hour
		}, maxFor - 1, old(nil)},
		{"and after it", func(f *guard.Facts) { f.Policy.RouteTTL, f.Policy.SessionTTL = 100*hour, 100*hour }, maxFor,
			old(refused{"services": guard.BoundOver, "routes": guard.BoundOver, "sessions": guard.BoundOver,
				"validate": guard.BoundOver})},
		{"the maximum over", no, maxFor, old(refused{"services": guard.BoundOver, "routes": guard.BoundOver,
			"sessions": guard.BoundOver, "validate": guard.BoundOver})},
		{"the maximum over, policy off", off, maxFor, old(allOff)},
		{"revoked", func(f *guard.Facts) { f.Withdrawn = guard.LimitIdentity }, 0,
			refused{"services": guard.Withdrawn, "routes": guard.Withdrawn, "sessions": guard.Withdrawn,
				"validate": guard.Withdrawn, "new": guard.Withdrawn, "admit": guard.Withdrawn}},
		{"revoked, degraded", func(f *guard.Facts) { f.Withdrawn = guard.LimitRoles }, degraded,
			alone(refused{"services": guard.Withdrawn, "routes": guard.Withdrawn, "sessions": guard.Withdrawn,
				"validate": guard.Withdrawn, "new": guard.Withdrawn, "admit": guard.Withdrawn})},
		{"certificate over", no, svidFor, old(refused{"services": guard.IdentityOver, "routes": guard.IdentityOver,
			"sessions": guard.IdentityOver, "validate": guard.IdentityOver, "new": guard.IdentityOver,
			"admit": guard.IdentityOver})},
		{"certificate over while fresh", func(f *guard.Facts) { f.SVIDEnd = testWord }, 0,
			refused{"services": guard.IdentityOver, "routes": guard.IdentityOver, "sessions": guard.IdentityOver,
				"validate": guard.IdentityOver, "new": guard.IdentityOver, "admit": guard.IdentityOver}},
		{"expired", no, lifetime, expired},
		{"expired, policy off", off, lifetime, func() refused {
			out := alone(expired)
			out["back"] = guard.NotAllowed
			return out
		}()},
		{"no trust bundle", func(f *guard.Facts) { delete(f.Active, snapshot.ScopeTrustBundle) }, 0,
			alone(refused{"services": guard.ScopeMissing, "routes": guard.ScopeMissing, "sessions": guard.ScopeMissing,
				"validate": guard.ScopeMissing, "new": guard.ScopeMissing, "admit": guard.ScopeMissing})},
		{"no assignment", func(f *guard.Facts) { delete(f.Active, snapshot.ScopeServiceAssignment) }, 0,
			refused{"services": guard.ScopeMissing, "new": guard.ScopeMissing}},
		{"nothing assigned", func(f *guard.Facts) {
			delete(f.Active, snapshot.ScopeServiceAssignment)
			delete(f.Lists, snapshot.ScopeServiceAssignment)
		}, 0, nil},
		{"expired routes", func(f *guard.Facts) {
			f.Active[snapshot.ScopeRoutePolicy] = guard.Standing{Fresh: testWord, Expires: testWord}
		}, 0, refused{"routes": guard.ScopeExpired}},
		{"degraded routes", func(f *guard.Facts) {
			f.Active[snapshot.ScopeRoutePolicy] = guard.Standing{Fresh: testWord.Add(-guard.StaleFor),
				Expires: testWord.Add(hour)}
			f.Policy.Allow = nil
		}, 0, refused{"routes": guard.NotAllowed}},
		{"degraded assignment", func(f *guard.Facts) {
			f.Active[snapshot.ScopeServiceAssignment] = guard.Standing{Fresh: testWord.Add(-guard.StaleFor),
				Expires: testWord.Add(hour)}
		}, 0, refused{"new": guard.NeedsRecord}},
		{"expired endpoints", func(f *guard.Facts) {
			f.Active[snapshot.ScopeStorageDirectory] = guard.Standing{Fresh: testWord, Expires: testWord}
		}, 0, refused{"endpoints": guard.ScopeExpired}},
		{"revocations missing", func(f *guard.Facts) { f.Missing = true }, 0, unsure},
		{"revocations missing, degraded", func(f *guard.Facts) { f.Missing = true }, degraded,
			old(refused{"validate": guard.RevocationsUnknown})},
		{"behind", func(f *guard.Facts) { f.Behind = true }, 0, old(refused{"validate": guard.RevocationsUnknown})},
		{"behind, policy off", func(f *guard.Facts) { f.Behind = true; f.Policy.Allow = nil }, 0, old(allOff)},
		{"behind, the maximum over", func(f *guard.Facts) { f.Behind, f.Word = true, testWord.Add(-maxFor) }, 0,
			old(refused{"services": guard.BoundOver, "routes": guard.BoundOver, "sessions": guard.BoundOver,
				"validate": guard.BoundOver})},
	} {
		f := testFacts()
		tc.edit(&f)
		now := testWord.Add(tc.after)
		for group, actions := range actionGroups {
			for _, action := range actions {
				err := f.Permit(action, now)
				got, _ := errors.AsType[*guard.RefusedError](err)
				want, refused := tc.want[group]
				if group == "unknown" { // whatever the state
					want, refused = guard.UnknownAction, true
				}
				switch {
				case !refused && err != nil:
					t.Errorf("%s: %q is refused: %v", tc.name, action, err)
				case refused && (got == nil || got.Reason != string(want) || got.Action != action):
					t.Errorf("%s: %q: %v, want %s", tc.name, action, err, want)
				}
			}
		}
	}
}

// A refusal names the action, the state, what ended it, and what to do.
func TestRefusalIsWorded(t *testing.T) {
	f := testFacts()
	for _, tc := range []struct {
		action guard.Action
		after  time.Duration
		edit   func(*guard.Facts)
		code   errcode.Code
		bound  string
		ended  time.Duration
	}{
		{guard.IssueCertificates, 5 * time.Hour, nil, errcode.ActionNeedsContact, "", 0},
		{"become_root", 5 * time.Hour, nil, errcode.ActionUnknown, "", 0},
		{"start_service", 0, nil, errcode.ActionUnknown, "", 0},
		{guard.ContinueServices, 2 * time.Hour, func(f *guard.Facts) { f.Policy.Allow = nil }, errcode.ActionNotAllowed,
			"", 0},
		{guard.ContinueServices, 5 * time.Hour, nil, errcode.ActionBoundOver, "degraded.max", maxFor},
		{guard.PreserveRoutes, 5 * time.Hour, nil, errcode.ActionBoundOver, "degraded.route_ttl", routeFor},
		{guard.PreserveSessions, 5 * time.Hour, nil, errcode.ActionBoundOver, "degraded.session_ttl", sessionFor},
		{guard.ContinueServices, svidFor, nil, errcode.ActionBoundOver, "svid", svidFor},
		{guard.ContinueServices, lifetime, nil, errcode.ActionBoundOver, "trust_bundle", lifetime},
	} {
		f := f
		if tc.edit != nil {
			tc.edit(&f)
		}
		err := f.Permit(tc.action, testWord.Add(tc.after))
		got, ok := errors.AsType[*guard.RefusedError](err)
		if !ok || !errors.Is(err, tc.code) || got.Bound != tc.bound || tc.bound != "" &&
			!got.Ended.Equal(testWord.Add(tc.ended)) {
			t.Errorf("%s: %+v (%v), want %s, %s", tc.action, got, err, tc.code, tc.bound)
			continue
		}
		worded, _ := errors.AsType[*errcode.Error](err)
		if worded.Fields["action"] != string(tc.action) || worded.Fields["state"] == "" || worded.Do == "" {
			t.Errorf("%s: %v", tc.action, worded.Fields)
		}
	}
}

func drawPolicy(t *rapid.T, label string) guard.DegradedPolicy {
	names := append([]string{"issue_certificates", "become_root"}, func() (out []string) {
		for _, p := range manifest.Permissions() {
			out = append(out, string(p))
		}
		return out
	}()...)
	hours := rapid.IntRange(0, 12)
	span := func(name string) time.Duration { return time.Duration(hours.Draw(t, label+name)) * time.Hour }
	return guard.DegradedPolicy{Allow: rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t,
		label+" allow"), Max: span(" max"), RouteTTL: span(" route_ttl"), SessionTTL: span(" session_ttl")}
}

func drawFacts(t *rapid.T) guard.Facts {
	f := testFacts()
	f.Policy = drawPolicy(t, "ceiling")
	f.Contact, f.Behind, f.Missing = rapid.Bool().Draw(t, "contact"), rapid.Bool().Draw(t,
		"behind"), rapid.Bool().Draw(t, "missing")
	if rapid.Bool().Draw(t, "narrowed") {
		f.Until = testWord.Add(time.Duration(rapid.IntRange(0, 14).Draw(t, "until")) * time.Hour)
	}
	f.Withdrawn = rapid.SampledFrom([]string{"", "", "", "", guard.LimitIdentity, guard.LimitRoles}).Draw(t,
		"withdrawn")
	f.SVIDEnd = testWord.Add(time.Duration(rapid.IntRange(1, 14).Draw(t, "svid")) * time.Hour)
	for _, scope := range snapshot.Scopes() {
		if _, ok := f.Active[scope]; !ok {
			continue
		}
		switch end := time.Duration(rapid.IntRange(-1, 14).Draw(t, string(scope))) * time.Hour; {
		case end < 0:
			delete(f.Active, scope)
			f.Lists[scope] = rapid.Bool().Draw(t, "listed") || scope == snapshot.ScopeTrustBundle ||
				scope == snapshot.ScopeNodeRuntime
		default:
			f.Active[scope] = guard.Standing{Fresh: testWord.Add(end / 2), Expires: testWord.Add(end)}
		}
	}
	return f
}

// A snapshot never widens the ceiling: what is permitted under a policy that was
// narrowed is permitted under the policy itself.
func TestNarrowedNeverWidens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFacts(t)
		by := drawPolicy(t, "snapshot")
		narrow, base := f, f
		narrow.Policy, base.Policy = f.Policy.Narrowed(by), f.Policy.Base()
		now := testWord.Add(time.Duration(rapid.IntRange(0, 15*60).Draw(t, "minutes")) * time.Minute)
		for _, r := range guard.ActionRules() {
			err := f.Permit(r.Action, now)
			if err != nil && narrow.Permit(r.Action, now) == nil {
				t.Fatalf("%s is permitted by the snapshot alone: %v", r.Action, err)
			}
			if err != nil && base.Permit(r.Action, now) == nil {
				t.Fatalf("%s is permitted by the base alone: %v", r.Action, err)
			}
		}
	})
}

// Out of contact what is forbidden is refused, whatever is held and whatever the
// policy says; and in every state what has ended stays ended until there is news.
func TestForbiddenAndOverStaySo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFacts(t)
		over := make(map[guard.Action]error)
		for minutes := 0; minutes < 15*60; minutes += rapid.IntRange(1, 90).Draw(t, "step") {
			now := testWord.Add(time.Duration(minutes) * time.Minute)
			for _, r := range guard.ActionRules() {
				err := f.Permit(r.Action, now)
				if was := over[r.Action]; was != nil && err == nil {
					t.Fatalf("%s is permitted again after %d minutes without news; it was refused: %v", r.Action,
						minutes, was)
				}
				over[r.Action] = err
				if err == nil && r.Class == guard.ByContact &&
					(!f.Contact || f.Overall(now) != snapshot.Fresh || f.Behind || f.Missing) {
					t.Fatalf("%s is permitted in %+v", r.Action, f)
				}
				for _, scope := range r.Needs {
					if s, ok := f.Active[scope]; err == nil && ok && !now.Before(s.Expires) {
						t.Fatalf("%s outlives its %s", r.Action, scope)
					}
				}
				if err == nil && r.Bound != guard.NoBound && f.Degraded(now) && !now.Before(f.End(r.Bound)) {
					t.Fatalf("%s outlives %s", r.Action, r.Bound)
				}
			}
			for _, unknown := range actionGroups["unknown"] {
				if f.Permit(unknown, now) == nil && !(f.Contact && f.Partition(now) == guard.Connected) {
					t.Fatalf("%q is permitted out of contact", unknown)
				}
			}
		}
	})
}

// How long the node says that it works alone is what the guard does.
func TestAutonomyIsTheGuards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFacts(t)
		until, limit := f.DegradedUntil()
		if err := f.Permit(guard.ContinueServices, until); err == nil {
			t.Fatalf("it says that it stops at %v by %s, and does not", until, limit)
		}
		before := until.Add(-time.Nanosecond)
		if before.Before(testWord) {
			return
		}
		if err := f.Permit(guard.ContinueServices, before); err != nil {
			t.Fatalf("it says that it works until %v by %s, and stops before: %v", until, limit, err)
		}
	})
}

func TestAutonomy(t *testing.T) {
	for _, tc := range []struct {
		name  string
		edit  func(*guard.Facts)
		after time.Duration
		limit string
	}{
		{"policy ends first", func(*guard.Facts) {}, maxFor, guard.LimitMax},
		{"certificate ends first", func(f *guard.Facts) { f.SVIDEnd = testWord.Add(time.Hour) }, time.Hour,
			guard.LimitSVID},
		{"trust bundle ends first", func(f *guard.Facts) {
			f.Active[snapshot.ScopeTrustBundle] = guard.Standing{Fresh: testWord, Expires: testWord.Add(time.Minute)}
		}, time.Minute, "trust_bundle"},
		{"assignment ends first", func(f *guard.Facts) {
			f.Active[snapshot.ScopeServiceAssignment] = guard.Standing{Fresh: testWord,
				Expires: testWord.Add(time.Minute)}
		}, time.Minute, "service_assignment"},
		{"an expired directory ends no service", func(f *guard.Facts) {
			f.Active[snapshot.ScopePeerDirectory] = guard.Standing{Fresh: testWord, Expires: testWord}
		}, maxFor, guard.LimitMax},
		{"not allowed", func(f *guard.Facts) { f.Policy.Allow = nil }, freshFor + guard.StaleFor, guard.LimitAllowed},
		{"the snapshot of the policy ends first", func(f *guard.Facts) { f.Until = testWord.Add(2 * time.Hour) },
			2 * time.Hour, "degraded_mode_policy"},
		{"for no time", func(f *guard.Facts) { f.Policy.Max = 0 }, freshFor + guard.StaleFor, guard.LimitMax},
		{"behind", func(f *guard.Facts) { f.Behind = true }, maxFor, guard.LimitMax},
		{"revoked", func(f *guard.Facts) { f.Withdrawn = guard.LimitRoles }, 0, guard.LimitRoles},
		{"no terms", func(f *guard.Facts) { delete(f.Active, snapshot.ScopeNodeRuntime) }, 0, "node_runtime"},
	} {
		f := testFacts()
		tc.edit(&f)
		if until, limit := f.DegradedUntil(); !until.Equal(testWord.Add(tc.after)) || limit != tc.limit {
			t.Errorf("%s: until %v by %s, want %v by %s", tc.name, until.Sub(testWord), limit, tc.after, tc.limit)
		}
	}
}

func ExampleRefusedError() {
	f := testFacts()
	fmt.Println(f.Permit(guard.IssueCertificates, testWord.Add(2*time.Hour)))
	// Output: FE-N108: issue_certificates is refused while this node is record_stale (state degraded, reason forbidden) (no node decides this alone: it takes a coordinator, a record that is fresh, or revocations that are known): bring the node back into contact: fealty status on it shows whom it misses; do not work around it
}

// Each scope is given until the action that it is for is refused, and until it ends.
func TestGivesByTheGuard(t *testing.T) {
	for _, scope := range snapshot.Scopes() {
		if scope == snapshot.ScopeNodeBootstrap {
			continue
		}
		f := testFacts()
		action, ok := guard.PartOf(scope)
		for after := time.Duration(0); after <= lifetime; after += 30 * time.Minute {
			now := testWord.Add(after)
			err := f.Gives(scope, now)
			want := now.Before(f.Active[scope].Expires) && (!ok || f.Permit(action, now) == nil)
			if (err == nil) != want {
				t.Errorf("%s after %v: %v", scope, after, err)
			}
		}
		delete(f.Active, scope)
		if refused, ok := errors.AsType[*guard.RefusedError](f.Gives(scope, testWord)); !ok ||
			refused.Reason != string(guard.ScopeMissing) {
			t.Errorf("%s without one: %v", scope, refused)
		}
	}
}
