package live_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/live"
	"github.com/fealty-io/fealty/internal/explain"
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
		if !errors.Is(err, explain.RateLimited) {
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
