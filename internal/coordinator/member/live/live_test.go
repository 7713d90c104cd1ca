package live_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/snapshot"
)

var now = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func TestBootstrapTurns(t *testing.T) {
	id, err := identity.New("test.example", identity.Data, "a")
	if err != nil {
		t.Fatal(err)
	}
	l := live.New(nil)
	l.Opened(id, "")
	for want := time.Duration(0); want <= live.MaxBootstrapWait; want += live.BootstrapPause {
		if w, err := l.BootstrapWait(id, now); w != want || err != nil {
			t.Fatalf("a turn waits %v (%v), want %v", w, err, want)
		}
	}
	for range 100 { // however often it asks, no turn comes for free
		_, err := l.BootstrapWait(id, now)
		if !errors.Is(err, errcode.RateLimited) {
			t.Fatalf("refused by %v", err)
		}
	}
	if w, err := l.BootstrapWait(id, now.Add(live.BootstrapPause)); w != live.MaxBootstrapWait || err != nil {
		t.Fatalf("the turn after a refusal waits %v (%v)", w, err)
	}
	if w, err := l.BootstrapWait(id, now.Add(-24*time.Hour)); w != 0 || err != nil {
		t.Fatalf("after the clock went back it waits %v (%v)", w, err)
	}
	l.Closed(id, nil, true)
	if l.Message(id) == nil {
		t.Fatal("a member was forgotten with its stream")
	}
	l.Forget(id)
	l.Opened(id, "")
	l.Closed(id, nil, false)
	if len(l.All()) != 0 {
		t.Fatal("who is no member is remembered after its stream")
	}
}

// All that a report holds beside what is asked for is let go: the live state lasts as
// long as the membership, and everybody who looks at the fleet is sent it.
func TestReportsLeaveNothingBehind(t *testing.T) {
	l := live.New(nil)
	id, err := identity.New("test.example", identity.Data, "a")
	if err != nil {
		t.Fatal(err)
	}
	l.Opened(id, "")
	large := strings.Repeat("x", 1<<20)
	stuffed := timestamppb.New(time.Unix(1, 0))
	stuffed.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), large))
	bundle := &fealtyv1.HeldSnapshot{Scope: string(snapshot.ScopeTrustBundle), AuthorityEpoch: 1, ConfigVersion: 2,
		ContentHash: make([]byte, 32), Generation: 3, Freshness: large}
	hash := bundle.ContentHash
	bundle.ProtoReflect().SetUnknown(stuffed.ProtoReflect().GetUnknown())
	report := &fealtyv1.ConnectRequest{Release: large, SvidNotAfter: stuffed, AutonomousUntil: stuffed,
		Held: []*fealtyv1.HeldSnapshot{
			bundle, {Scope: large}, {Scope: string(snapshot.ScopeNodeRuntime), ContentHash: []byte(large)},
		}}
	l.Reported(id, report, time.Now())
	shown := l.Message(id)
	if n := proto.Size(shown); n > 1<<10 {
		t.Errorf("the live state of a member takes %d bytes", n)
	}
	if unsafe.StringData(shown.GetRelease()) == unsafe.StringData(large) {
		t.Error("the whole text of the release is kept")
	}
	held := live.HeldOf(report.GetHeld())
	if got := held[string(snapshot.ScopeTrustBundle)]; len(held) != 1 || proto.Size(got) > 100 ||
		got.GetAuthorityEpoch() != 1 || got.GetConfigVersion() != 2 || got.GetGeneration() != 3 ||
		!bytes.Equal(got.GetContentHash(), hash) {
		t.Errorf("kept of what it holds: %d scopes", len(held))
	}
}

func TestNewerLive(t *testing.T) {
	at := func(s int64, connected bool) *fealtyv1.Live {
		return &fealtyv1.Live{LastReport: &timestamppb.Timestamp{Seconds: s}, Connected: connected}
	}
	old, recent, here := at(1, false), at(2, false), at(1, true)
	for _, tt := range []struct{ a, b, want *fealtyv1.Live }{
		{nil, nil, nil}, {old, nil, old}, {nil, old, old}, {old, recent, recent}, {recent, old, recent}, {recent, here, here}, {here, recent, here},
	} {
		if got := live.Newer(tt.a, tt.b); got != tt.want {
			t.Errorf("of %v and %v: %v", tt.a, tt.b, got)
		}
	}
}

// A member's agent and its process may talk to two coordinators: of both messages the process that
// called last counts, whichever says more of the agent, and neither is changed.
func TestNewerProcess(t *testing.T) {
	at := func(report, call int64, incarnation string) *fealtyv1.Live {
		l := &fealtyv1.Live{Release: fmt.Sprint(report)}
		if report > 0 {
			l.LastReport = &timestamppb.Timestamp{Seconds: report}
		}
		if call > 0 {
			l.Process = &fealtyv1.Process{Incarnation: incarnation, LastCall: &timestamppb.Timestamp{Seconds: call}}
		}
		return l
	}
	for _, tt := range []struct {
		name                 string
		a, b                 *fealtyv1.Live
		release, incarnation string
	}{
		{"one has both", at(2, 2, "new"), at(1, 1, "old"), "2", "new"},
		{"each has one", at(2, 0, ""), at(1, 1, "a"), "2", "a"},
		{"each has the newer of one", at(2, 1, "old"), at(1, 2, "new"), "2", "new"},
		{"the agent alone", at(2, 0, ""), at(1, 0, ""), "2", ""},
		{"the process alone, and nothing", at(0, 1, "a"), nil, "0", "a"},
	} {
		for range 2 {
			before := []proto.Message{proto.Clone(tt.a), proto.Clone(tt.b)}
			got := live.Newer(tt.a, tt.b)
			if got.GetRelease() != tt.release || got.GetProcess().GetIncarnation() != tt.incarnation {
				t.Errorf("%s: %v", tt.name, got)
			}
			if !proto.Equal(before[0], tt.a) || !proto.Equal(before[1], tt.b) {
				t.Errorf("%s: what others read was changed", tt.name)
			}
			tt.a, tt.b = tt.b, tt.a
		}
	}
}

// The process that called last says whether it is paused: another one says so itself, and a member
// that is gone says nothing.
func TestPaused(t *testing.T) {
	l, now := live.New(func() time.Duration { return 0 }), time.Unix(1000, 0)
	id, err := identity.New("prod.example", identity.Shard, "eu-1")
	if err != nil {
		t.Fatal(err)
	}
	want := func(what string, n int) {
		t.Helper()
		if got := l.Paused(now.Add(-time.Minute)); got != n || l.Message(id).GetProcess().GetPaused() != (n == 1) {
			t.Errorf("%s: %d are paused, want %d; %v", what, got, n, l.Message(id))
		}
	}
	l.SaysPaused(id, true)
	want("one that was not served", 0)
	l.Called(id, 1, "a", now)
	l.SaysPaused(id, true)
	want("one that says so", 1)
	l.Called(id, 1, "a", now)
	want("the same, which calls for something else", 1)
	l.SaysPaused(id, false)
	want("one that acts again", 0)
	l.SaysPaused(id, true)
	l.Called(id, 1, "b", now)
	want("another process", 0)
	l.SaysPaused(id, true)
	l.Called(id, 2, "b", now)
	want("another life", 0)
	l.SaysPaused(id, true)
	if got := l.Paused(now); got != 0 {
		t.Errorf("%d are paused that were heard after now", got)
	}
	l.Forget(id)
	want("a member that is gone", 0)
}
