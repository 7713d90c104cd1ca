package agent_test

import (
	"errors"
	"testing"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/snapshot"
)

// A rejoin does not forget what the node has seen.
func TestRejoinKeepsMarks(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	f.TrustChanged(func() {})
	f.Must(take(t.Context(), a, "", f.TrustBundle().GetEnvelope()))
	a.Close()
	f.Do(func() { f.Version -= 1 })
	cfg := n.JoinConfig(enroll.ByToken(f.Token()))
	cfg.Rejoin = true
	_, err := enroll.Join(t.Context(), cfg)
	if rejected, ok := errors.AsType[*snapshot.RejectedError](err); !ok || rejected.Reason != snapshot.ReasonVersion {
		t.Fatalf("an older bundle: %v", err)
	}
}

// The key of a renewal may be the member's current one: a rejoin that is refused
// must not lose it.
func TestRejoinKeepsTheKeyOfARenewal(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	f.Do(func() { f.Faults.LoseRenews = 1 })
	if err := a.Renewal().Renew(t.Context()); err == nil {
		t.Fatal("renewed without an answer")
	}
	pending := a.Renewal().Next().Key.ID
	a.Close()
	f.Do(func() { f.Faults.RefuseJoin = errcode.New(errcode.TokenSpent) })
	cfg := n.JoinConfig(enroll.ByToken(f.Token()))
	cfg.Rejoin = true
	if _, err := enroll.Join(t.Context(), cfg); !errors.Is(err, errcode.TokenSpent) {
		t.Fatal(err)
	}
	a = n.mustOpen()
	defer a.Close()
	if a.Renewal().Next() == nil || a.Renewal().Next().Key.ID != pending {
		t.Fatal("the key of the renewal is gone")
	}
	f.Must(a.Renewal().Renew(t.Context()))
	if f.Count(&f.Seen.Clones) != 0 {
		t.Fatal("a clone alarm")
	}
}
