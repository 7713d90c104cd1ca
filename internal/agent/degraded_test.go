package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/manifest"
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
func testFacts() facts {
	f := facts{
		contact: true, held: make(map[snapshot.Scope]standing), lists: make(map[snapshot.Scope]bool), word: testWord, svidEnd: testWord.Add(svidFor),
		policy: degradedPolicy{max: maxFor, routeTTL: routeFor, sessionTTL: sessionFor},
	}
	for _, p := range manifest.Permissions() {
		f.policy.allow = append(f.policy.allow, string(p))
	}
	for _, scope := range snapshot.Scopes() {
		if scope == snapshot.ScopeNodeBootstrap {
			continue // a node_runtime took its place
		}
		f.held[scope], f.lists[scope] = standing{fresh: testWord.Add(freshFor), expires: testWord.Add(lifetime)}, true
	}
	return f
}

// The actions of the table, in groups that are refused for the same reasons.
var actionGroups = map[string][]Action{
	"services": {ContinueServices}, "routes": {PreserveRoutes}, "sessions": {PreserveSessions}, "validate": {ValidatePeers},
	"back":      {ReconnectPeers, ReportLater},
	"endpoints": {UseStorageEndpoints},
	"new":       {StartServices, ResolveSecrets}, "admit": {AdmitSessions},
	"forbidden": {
		ApproveEnrollment, IssueCertificates, AssignRoles, ChangeClusterPolicy, ChangeOrganizationPolicy,
		RotateTrustRoots, PromotePartition, FetchUnrelatedSecrets, CreateServiceAuthority,
	},
	"unknown": {"", "become_root", "Continue_services"},
}

func TestActionsAreAllTested(t *testing.T) {
	var tested, rows []Action
	for _, group := range actionGroups {
		tested = append(tested, group...)
	}
	for _, r := range actionRules() {
		rows = append(rows, r.action)
		if !slices.Contains(tested, r.action) {
			t.Errorf("%s is in no group of the test", r.action)
		}
		if (r.class == byPolicy) != (r.policy != "") || r.why == "" {
			t.Errorf("the row of %s is not whole: %+v", r.action, r)
		}
	}
	for _, p := range manifest.Permissions() {
		if !slices.Contains(rows, Action(p)) {
			t.Errorf("the manifest can allow %s, which has no row", p)
		}
	}
	if slices.Sort(rows); len(slices.Compact(rows)) != len(actionRules()) {
		t.Error("an action has two rows")
	}
}

// What is permitted in each state, with the policy on and off, before and after each
// bound. A group that is not named is permitted.
func TestGuard(t *testing.T) {
	const hour = time.Hour
	degraded := freshFor + staleFor // the first instant
	no := func(f *facts) {}
	off := func(f *facts) { f.policy.allow = nil }
	type refused map[string]refusalReason
	alone := func(more refused) refused { // what no state but contact permits
		out := refused{"forbidden": forbiddenAction, "unknown": unknownAction}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	old := func(more refused) refused {
		out := alone(refused{"new": needsRecord, "admit": needsRecord})
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	allOff := refused{"services": notAllowed, "routes": notAllowed, "sessions": notAllowed, "validate": notAllowed, "back": notAllowed, "endpoints": notAllowed}
	unsure := refused{"validate": revocationsUnknown, "new": revocationsUnknown, "admit": revocationsUnknown, "forbidden": revocationsUnknown}
	expired := alone(refused{"services": scopeExpired, "routes": scopeExpired, "sessions": scopeExpired, "validate": scopeExpired, "endpoints": scopeExpired, "new": scopeExpired, "admit": scopeExpired})
	for _, tc := range []struct {
		name  string
		edit  func(*facts)
		after time.Duration // of the last word
		want  refused
	}{
		{"in contact", no, 0, nil},
		{"in contact, policy off", off, 0, nil},
		{"fresh from a mirror", func(f *facts) { f.contact = false }, 0, alone(nil)},
		{"the last fresh instant", no, freshFor - 1, nil},
		{"a coordinator without news", no, freshFor, alone(nil)},
		{"stale", func(f *facts) { f.contact = false }, freshFor, alone(nil)},
		{"stale, policy off", off, freshFor, alone(nil)},
		{"stale, no degraded mode", func(f *facts) { f.policy = degradedPolicy{} }, freshFor, alone(refused{"validate": revocationsUnknown, "new": revocationsUnknown, "admit": revocationsUnknown})},
		{"the last stale instant", no, degraded - 1, alone(nil)},
		{"degraded", no, degraded, old(nil)},
		{"degraded, policy off", off, degraded, old(allOff)},
		{"degraded, one allowed", func(f *facts) { f.policy.allow = []string{"validate_peers"} }, degraded,
			old(refused{"services": notAllowed, "routes": notAllowed, "sessions": notAllowed, "back": notAllowed, "endpoints": notAllowed})},
		{"degraded, policy lists what is forbidden", func(f *facts) {
			f.policy.allow = append(f.policy.allow, "become_root", "")
			for _, a := range slices.Concat(actionGroups["forbidden"], actionGroups["new"], actionGroups["admit"]) {
				f.policy.allow = append(f.policy.allow, string(a))
			}
		}, degraded, old(nil)},
		{"degraded, for no time at all", func(f *facts) { f.policy.max = 0 }, degraded, old(refused{"services": boundOver, "routes": boundOver, "sessions": boundOver, "validate": boundOver})},
		{"degraded, the snapshot of the policy expired", func(f *facts) { f.until = testWord.Add(degraded) }, degraded,
			old(refused{"services": notAllowed, "routes": notAllowed, "sessions": notAllowed, "validate": notAllowed, "endpoints": notAllowed})},
		{"degraded, just before", func(f *facts) { f.until = testWord.Add(degraded + 1) }, degraded, old(nil)},
		{"fresh, the snapshot of the policy expired", func(f *facts) { f.until = testWord }, 0, nil},
		{"the last instant of routes", no, routeFor - 1, old(nil)},
		{"routes over", no, routeFor, old(refused{"routes": boundOver})},
		{"sessions over", no, sessionFor, old(refused{"routes": boundOver, "sessions": boundOver})},
		{"a route_ttl above the maximum", func(f *facts) { f.policy.routeTTL, f.policy.sessionTTL = 100*hour, 100*hour }, maxFor - 1, old(nil)},
		{"and after it", func(f *facts) { f.policy.routeTTL, f.policy.sessionTTL = 100*hour, 100*hour }, maxFor, old(refused{"services": boundOver, "routes": boundOver, "sessions": boundOver, "validate": boundOver})},
		{"the maximum over", no, maxFor, old(refused{"services": boundOver, "routes": boundOver, "sessions": boundOver, "validate": boundOver})},
		{"the maximum over, policy off", off, maxFor, old(allOff)},
		{"revoked", func(f *facts) { f.withdrawn = limitIdentity }, 0,
			refused{"services": withdrawn, "routes": withdrawn, "sessions": withdrawn, "validate": withdrawn, "new": withdrawn, "admit": withdrawn}},
		{"revoked, degraded", func(f *facts) { f.withdrawn = limitRoles }, degraded,
			alone(refused{"services": withdrawn, "routes": withdrawn, "sessions": withdrawn, "validate": withdrawn, "new": withdrawn, "admit": withdrawn})},
		{"certificate over", no, svidFor, old(refused{"services": identityOver, "routes": identityOver, "sessions": identityOver, "validate": identityOver, "new": identityOver, "admit": identityOver})},
		{"certificate over while fresh", func(f *facts) { f.svidEnd = testWord }, 0,
			refused{"services": identityOver, "routes": identityOver, "sessions": identityOver, "validate": identityOver, "new": identityOver, "admit": identityOver}},
		{"expired", no, lifetime, expired},
		{"expired, policy off", off, lifetime, func() refused {
			out := alone(expired)
			out["back"] = notAllowed
			return out
		}()},
		{"no trust bundle", func(f *facts) { delete(f.held, snapshot.ScopeTrustBundle) }, 0,
			alone(refused{"services": scopeMissing, "routes": scopeMissing, "sessions": scopeMissing, "validate": scopeMissing, "new": scopeMissing, "admit": scopeMissing})},
		{"no assignment", func(f *facts) { delete(f.held, snapshot.ScopeServiceAssignment) }, 0, refused{"services": scopeMissing, "new": scopeMissing}},
		{"nothing assigned", func(f *facts) {
			delete(f.held, snapshot.ScopeServiceAssignment)
			delete(f.lists, snapshot.ScopeServiceAssignment)
		}, 0, nil},
		{"expired routes", func(f *facts) { f.held[snapshot.ScopeRoutePolicy] = standing{testWord, testWord} }, 0, refused{"routes": scopeExpired}},
		{"degraded routes", func(f *facts) {
			f.held[snapshot.ScopeRoutePolicy] = standing{testWord.Add(-staleFor), testWord.Add(hour)}
			f.policy.allow = nil
		}, 0, refused{"routes": notAllowed}},
		{"degraded assignment", func(f *facts) {
			f.held[snapshot.ScopeServiceAssignment] = standing{testWord.Add(-staleFor), testWord.Add(hour)}
		}, 0, refused{"new": needsRecord}},
		{"expired endpoints", func(f *facts) { f.held[snapshot.ScopeStorageDirectory] = standing{testWord, testWord} }, 0, refused{"endpoints": scopeExpired}},
		{"revocations missing", func(f *facts) { f.missing = true }, 0, unsure},
		{"revocations missing, degraded", func(f *facts) { f.missing = true }, degraded, old(refused{"validate": revocationsUnknown})},
		{"behind", func(f *facts) { f.behind = true }, 0, old(refused{"validate": revocationsUnknown})},
		{"behind, policy off", func(f *facts) { f.behind = true; f.policy.allow = nil }, 0, old(allOff)},
		{"behind, the maximum over", func(f *facts) { f.behind, f.word = true, testWord.Add(-maxFor) }, 0,
			old(refused{"services": boundOver, "routes": boundOver, "sessions": boundOver, "validate": boundOver})},
	} {
		f := testFacts()
		tc.edit(&f)
		now := testWord.Add(tc.after)
		for group, actions := range actionGroups {
			for _, action := range actions {
				err := f.permit(action, now)
				got, _ := errors.AsType[*RefusedError](err)
				want, refused := tc.want[group]
				if group == "unknown" && want == "" && tc.want["forbidden"] != "" && tc.want["forbidden"] != revocationsUnknown {
					t.Fatalf("%s: the row forgets the unknown", tc.name)
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
		action Action
		after  time.Duration
		edit   func(*facts)
		code   explain.Code
		bound  string
		ended  time.Duration
	}{
		{IssueCertificates, 5 * time.Hour, nil, explain.ActionNeedsContact, "", 0},
		{"become_root", 5 * time.Hour, nil, explain.ActionNeedsContact, "", 0},
		{ContinueServices, 2 * time.Hour, func(f *facts) { f.policy.allow = nil }, explain.ActionNotAllowed, "", 0},
		{ContinueServices, 5 * time.Hour, nil, explain.ActionBoundOver, "degraded.max", maxFor},
		{PreserveRoutes, 5 * time.Hour, nil, explain.ActionBoundOver, "degraded.route_ttl", routeFor},
		{PreserveSessions, 5 * time.Hour, nil, explain.ActionBoundOver, "degraded.session_ttl", sessionFor},
		{ContinueServices, svidFor, nil, explain.ActionBoundOver, "svid", svidFor},
		{ContinueServices, lifetime, nil, explain.ActionBoundOver, "trust_bundle", lifetime},
	} {
		f := f
		if tc.edit != nil {
			tc.edit(&f)
		}
		err := f.permit(tc.action, testWord.Add(tc.after))
		got, ok := errors.AsType[*RefusedError](err)
		if !ok || !errors.Is(err, tc.code) || got.Bound != tc.bound || tc.bound != "" && !got.Ended.Equal(testWord.Add(tc.ended)) {
			t.Errorf("%s: %+v (%v), want %s, %s", tc.action, got, err, tc.code, tc.bound)
			continue
		}
		worded, _ := errors.AsType[*explain.Error](err)
		if worded.Fields["action"] != string(tc.action) || worded.Fields["state"] == "" || worded.Do == "" {
			t.Errorf("%s: %v", tc.action, worded.Fields)
		}
	}
}

func drawPolicy(t *rapid.T, label string) degradedPolicy {
	names := append([]string{"issue_certificates", "become_root"}, func() (out []string) {
		for _, p := range manifest.Permissions() {
			out = append(out, string(p))
		}
		return out
	}()...)
	hours := rapid.IntRange(0, 12)
	span := func(name string) time.Duration { return time.Duration(hours.Draw(t, label+name)) * time.Hour }
	return degradedPolicy{rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t, label+" allow"), span(" max"), span(" route_ttl"), span(" session_ttl")}
}

func drawFacts(t *rapid.T) facts {
	f := testFacts()
	f.policy = drawPolicy(t, "ceiling")
	f.contact, f.behind, f.missing = rapid.Bool().Draw(t, "contact"), rapid.Bool().Draw(t, "behind"), rapid.Bool().Draw(t, "missing")
	if rapid.Bool().Draw(t, "narrowed") {
		f.until = testWord.Add(time.Duration(rapid.IntRange(0, 14).Draw(t, "until")) * time.Hour)
	}
	f.withdrawn = rapid.SampledFrom([]string{"", "", "", "", limitIdentity, limitRoles}).Draw(t, "withdrawn")
	f.svidEnd = testWord.Add(time.Duration(rapid.IntRange(1, 14).Draw(t, "svid")) * time.Hour)
	for _, scope := range snapshot.Scopes() {
		if _, ok := f.held[scope]; !ok {
			continue
		}
		switch end := time.Duration(rapid.IntRange(-1, 14).Draw(t, string(scope))) * time.Hour; {
		case end < 0:
			delete(f.held, scope)
			f.lists[scope] = rapid.Bool().Draw(t, "listed") || scope == snapshot.ScopeTrustBundle || scope == snapshot.ScopeNodeRuntime
		default:
			f.held[scope] = standing{fresh: testWord.Add(end / 2), expires: testWord.Add(end)}
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
		narrow.policy, base.policy = f.policy.narrowed(by), f.policy.base()
		now := testWord.Add(time.Duration(rapid.IntRange(0, 15*60).Draw(t, "minutes")) * time.Minute)
		for _, r := range actionRules() {
			err := f.permit(r.action, now)
			if err != nil && narrow.permit(r.action, now) == nil {
				t.Fatalf("%s is permitted by the snapshot alone: %v", r.action, err)
			}
			if err != nil && base.permit(r.action, now) == nil {
				t.Fatalf("%s is permitted by the base alone: %v", r.action, err)
			}
		}
	})
}

// Out of contact what is forbidden is refused, whatever is held and whatever the
// policy says; and in every state what has ended stays ended until there is news.
func TestForbiddenAndOverStaySo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFacts(t)
		over := make(map[Action]error)
		for minutes := 0; minutes < 15*60; minutes += rapid.IntRange(1, 90).Draw(t, "step") {
			now := testWord.Add(time.Duration(minutes) * time.Minute)
			for _, r := range actionRules() {
				err := f.permit(r.action, now)
				if was := over[r.action]; was != nil && err == nil {
					t.Fatalf("%s is permitted again after %d minutes without news; it was refused: %v", r.action, minutes, was)
				}
				over[r.action] = err
				if err == nil && r.class == byContact && (!f.contact || f.overall(now) != snapshot.Fresh || f.behind || f.missing) {
					t.Fatalf("%s is permitted in %+v", r.action, f)
				}
				for _, scope := range r.needs {
					if s, ok := f.held[scope]; err == nil && ok && !now.Before(s.expires) {
						t.Fatalf("%s outlives its %s", r.action, scope)
					}
				}
				if err == nil && r.bound != noBound && f.degraded(now) && !now.Before(f.end(r.bound)) {
					t.Fatalf("%s outlives %s", r.action, r.bound)
				}
			}
			for _, unknown := range actionGroups["unknown"] {
				if f.permit(unknown, now) == nil && !(f.contact && f.partition(now) == Connected) {
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
		until, limit := f.alone()
		if err := f.permit(ContinueServices, until); err == nil {
			t.Fatalf("it says that it stops at %v by %s, and does not", until, limit)
		}
		before := until.Add(-time.Nanosecond)
		if before.Before(testWord) {
			return
		}
		if err := f.permit(ContinueServices, before); err != nil {
			t.Fatalf("it says that it works until %v by %s, and stops before: %v", until, limit, err)
		}
	})
}

func TestAutonomy(t *testing.T) {
	for _, tc := range []struct {
		name  string
		edit  func(*facts)
		after time.Duration
		limit string
	}{
		{"policy ends first", func(*facts) {}, maxFor, limitMax},
		{"certificate ends first", func(f *facts) { f.svidEnd = testWord.Add(time.Hour) }, time.Hour, limitSVID},
		{"trust bundle ends first", func(f *facts) {
			f.held[snapshot.ScopeTrustBundle] = standing{testWord, testWord.Add(time.Minute)}
		}, time.Minute, "trust_bundle"},
		{"assignment ends first", func(f *facts) {
			f.held[snapshot.ScopeServiceAssignment] = standing{testWord, testWord.Add(time.Minute)}
		}, time.Minute, "service_assignment"},
		{"an expired directory ends no service", func(f *facts) { f.held[snapshot.ScopePeerDirectory] = standing{testWord, testWord} }, maxFor, limitMax},
		{"not allowed", func(f *facts) { f.policy.allow = nil }, freshFor + staleFor, limitAllowed},
		{"the snapshot of the policy ends first", func(f *facts) { f.until = testWord.Add(2 * time.Hour) }, 2 * time.Hour, "degraded_mode_policy"},
		{"for no time", func(f *facts) { f.policy.max = 0 }, freshFor + staleFor, limitMax},
		{"behind", func(f *facts) { f.behind = true }, maxFor, limitMax},
		{"revoked", func(f *facts) { f.withdrawn = limitRoles }, 0, limitRoles},
		{"no terms", func(f *facts) { delete(f.held, snapshot.ScopeNodeRuntime) }, 0, "node_runtime"},
	} {
		f := testFacts()
		tc.edit(&f)
		if until, limit := f.alone(); !until.Equal(testWord.Add(tc.after)) || limit != tc.limit {
			t.Errorf("%s: until %v by %s, want %v by %s", tc.name, until.Sub(testWord), limit, tc.after, tc.limit)
		}
	}
}

func ExampleRefusedError() {
	f := testFacts()
	fmt.Println(f.permit(IssueCertificates, testWord.Add(2*time.Hour)))
	// Output: FE-N108: issue_certificates is refused while this node is record_stale (state degraded, reason forbidden) (no node decides this alone: it takes a coordinator, a record that is fresh, or revocations that are known): bring the node back into contact: fealty status on it shows whom it misses; do not work around it
}
