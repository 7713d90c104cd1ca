package state_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/state"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// What the agent tells of itself: contact, the last trouble, and what was refused.
func TestCondition(t *testing.T) {
	now := time.Unix(1000, 0)
	c := &state.Condition{Now: func() time.Time { return now }}
	c.Closed(nil)
	if v := c.View(); v.Connected || !v.Lost.IsZero() || v.LastError() != "" {
		t.Errorf("before any contact: %+v", v)
	}
	c.Closed(errors.New("no route"))
	c.Renewed(errors.New("not now\nlater"))
	if v := c.View(); v.LastError() != "no route; renewal: not now; later" {
		t.Errorf("%q", v.LastError())
	}
	c.Opened("c1:1")
	c.Renewed(nil)
	c.RenewsAt(now.Add(time.Hour))
	if v := c.View(); !v.Connected || v.Coordinator != "c1:1" || v.LastError() != "" || v.Stream != nil || !v.NextRenewal.Equal(now.Add(time.Hour)) {
		t.Errorf("connected: %+v", v)
	}
	c.Closed(errors.New("cut"))
	lost := now
	now = now.Add(time.Minute)
	c.Closed(nil) // again, for whatever reason
	if v := c.View(); v.Connected || !v.Lost.Equal(lost) || v.LastError() != "cut" || v.Coordinator != "c1:1" {
		t.Errorf("lost: %+v", v)
	}
	if !c.Stands("active") || c.Stands("active") || !c.Stands("draining") || c.View().Standing != "draining" {
		t.Error("the news of its standing are told wrong")
	}
}

// A refusal is worth writing down when it is another one, or after a while.
func TestConditionRefusals(t *testing.T) {
	at := time.Unix(1000, 0)
	c := &state.Condition{}
	of := func(scope, reason, detail string, after time.Duration) state.Refusal {
		return state.Refusal{Scope: scope, Reason: reason, Detail: detail, At: at.Add(after)}
	}
	for _, tc := range []struct {
		name string
		r    state.Refusal
		want bool
	}{
		{"the first", of("b", "x", "y", 0), true},
		{"the same", of("b", "x", "y", 0), false},
		{"the same, a little later", of("b", "x", "y", time.Minute-1), false},
		{"the same, a minute later", of("b", "x", "y", time.Minute), true},
		{"the same, by a clock that was set back", of("b", "x", "y", 0), true},
		{"another reason", of("b", "z", "y", 0), true},
		{"another detail", of("b", "z", "w", 0), true},
		{"of another scope", of("a", "z", "w", 0), true},
	} {
		_, before := c.RefusalsAt()
		if got := c.Refused(tc.r); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
		if _, after := c.RefusalsAt(); (after > before) != tc.want {
			t.Errorf("%s: the number of refusals went from %d to %d", tc.name, before, after)
		}
	}
	if all := c.Refusals(); len(all) != 2 || all[0].Scope != "a" || all[1].Scope != "b" || all[1].Detail != "w" {
		t.Errorf("%+v", all)
	}
	if !c.Resolved("a") || c.Resolved("a") || len(c.Refusals()) != 1 {
		t.Error("what was resolved stands, or is resolved twice")
	}
}

// What is told of a refusal is bounded and printable, and its label is none that a sender makes up.
func TestRefusalOf(t *testing.T) {
	now := time.Unix(1000, 0)
	long := strings.Repeat("ü", state.MaxDetailBytes)
	rejected := &snapshot.RejectedError{Scope: qosScope, Reason: internalsnapshot.ReasonHash, Detail: long}
	for _, tc := range []struct {
		name, scope           string
		err                   error
		wantScope, wantReason string
	}{
		{"a rejection", "", fmt.Errorf("so: %w", rejected), "qos_policy", internalsnapshot.ReasonHash},
		{"of an unknown scope", "made/up", &snapshot.RejectedError{Scope: "made/up", Reason: "x"}, "other", "x"},
		{"of a scope that the sender called otherwise", "route_policy", rejected, "qos_policy", internalsnapshot.ReasonHash},
		{"no snapshot at all", "qos_policy", errors.New(long), "qos_policy", "malformed"},
		{"no snapshot of any scope", "x", errors.New("y"), "other", "malformed"},
	} {
		r := state.RefusalOf(tc.scope, tc.err, now)
		if r.Scope != tc.wantScope || r.Reason != tc.wantReason || len(r.Detail) > state.MaxDetailBytes || !utf8.ValidString(r.Detail) || !r.At.Equal(now) {
			t.Errorf("%s: %+v", tc.name, r)
		}
	}
	for limit, want := range map[int]string{0: "", 1: "?", 2: "ü", 3: "üa", 4: "üa"} {
		if got := state.Clip("üa", limit); got != want {
			t.Errorf("%d bytes: %q", limit, got)
		}
	}
	if got := state.OneLine(nil); got != "" {
		t.Errorf("no error: %q", got)
	}
	if got := state.OneLine(errcode.New(errcode.NodeNotJoined, "dir", "/d")); !strings.HasPrefix(got, string(errcode.NodeNotJoined)+": ") || strings.Contains(got, "\n") {
		t.Errorf("%q", got)
	}
	if got := state.OneLine(errors.New("a\nb")); got != "a; b" {
		t.Errorf("%q", got)
	}
}

// What may be good a little later, and what is refused for good.
func TestWaits(t *testing.T) {
	for _, tc := range []struct {
		scope  snapshot.Scope
		reason snapshot.Reason
		want   bool
	}{
		{qosScope, internalsnapshot.ReasonSigner, true}, {qosScope, internalsnapshot.ReasonSignature, true}, {qosScope, internalsnapshot.ReasonEpoch, true},
		{runtimeScope, internalsnapshot.ReasonSigner, true}, {bundleScope, internalsnapshot.ReasonSigner, false}, {"x", internalsnapshot.ReasonSigner, false},
		{qosScope, internalsnapshot.ReasonSubject, true}, {qosScope, internalsnapshot.ReasonGrants, true}, {runtimeScope, internalsnapshot.ReasonSubject, false},
		{bootScope, internalsnapshot.ReasonGrants, false}, {"x", internalsnapshot.ReasonGrants, false},
		{qosScope, internalsnapshot.ReasonHash, false}, {qosScope, internalsnapshot.ReasonValidity, false}, {qosScope, snapshot.ReasonVersion, false},
	} {
		if got := state.Waits(tc.scope, tc.reason); got != tc.want {
			t.Errorf("%s of %s: %v", tc.reason, tc.scope, got)
		}
	}
	if state.OrderOf(string(bundleScope)) != 0 || state.OrderOf("x") != len(state.Scopes) || state.OrderOf(string(bootScope)) >= state.OrderOf(string(qosScope)) {
		t.Error("scopes are not in the order in which they are verified")
	}
	if !state.Known(qosScope) || state.Known("x") {
		t.Error("scopes are known wrong")
	}
}

// One holds it at a time, and who waits stops waiting with its context.
func TestSemaphore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := state.NewSemaphore()
		release, err := s.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while it is held: %v", err)
		}
		release()
		if _, err := s.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("for one whose time is over: %v", err)
		}
		release, err = s.Acquire(t.Context())
		if err != nil {
			t.Fatalf("after it was given back: %v", err)
		}
		got := make(chan struct{})
		go func() {
			if release, err := s.Acquire(t.Context()); err == nil {
				release()
			}
			close(got)
		}()
		synctest.Wait()
		select {
		case <-got:
			t.Error("two hold it")
		default:
		}
		release()
		<-got
	})
}

// Who waits is woken by what comes after it began to wait.
func TestNotifier(t *testing.T) {
	var n state.Notifier
	n.Notify() // nobody waits
	one := n.Wait()
	if n.Wait() != one {
		t.Error("two who wait do so in two ways")
	}
	select {
	case <-one:
		t.Error("woken by what was before")
	default:
	}
	n.Notify()
	<-one
	if n.Wait() == one {
		t.Error("the next one does not wait")
	}
	ch := make(chan struct{}, 1)
	state.Notify(ch)
	state.Notify(ch) // never waits
	<-ch
	var d state.Decisive[int]
	if d.Load() != nil {
		t.Error("there is a value before any")
	}
	var order []string
	d.Store(new(int))
	d.Tend(func() { order = append(order, fmt.Sprint("before ", *d.Load())) }, func() { order = append(order, fmt.Sprint("after ", *d.Load())) })
	seven := 7
	d.Store(&seven)
	if got := strings.Join(order, ", "); got != "before 0, after 7" {
		t.Error(got)
	}
}
