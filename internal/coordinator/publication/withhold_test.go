package publication_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/quarantine"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// plain admits members of no role, which may run services.
const plain = "  - {name: plain, kind: data, match: [\"token:plain\"]}\n"

// servicesOn are n services on a member, as records.
func servicesOn(member string, from, n int) string {
	var docs []string
	for i := range n {
		docs = append(docs, fmt.Sprintf("kind: service\nname: s%02d\ntype: web\nmembers: [%s]\n", from+i, member))
	}
	return strings.Join(docs, "\n---\n")
}

// held is a desk with a member of n services, and what is published of it.
type held struct {
	*coordinatortest.Desk
	t *testing.T
	b *publication.Publisher
}

func newHeld(t *testing.T, n int) *held {
	t.Helper()
	h := &held{Desk: coordinatortest.ReadyDesk(t, plain), t: t, b: publication.NewPublisher()}
	coordinatortest.JoinedAs(h.Desk, "plain", "a")
	coordinatortest.JoinedAs(h.Desk, "plain", "b")
	coordinatortest.MustPut(h.Desk, servicesOn("data/a", 0, n))
	h.want("at first", n)
	return h
}

// services are those that the member is told to run.
func (h *held) services(name string) []string {
	h.t.Helper()
	p := coordinatortest.MustPublish(h.Desk, h.b)
	coordinatortest.WantWholeAt(h.Desk, h.t, p)
	for _, i := range p.Of(identity.Data, name) {
		if p.Header(i).Scope != snapshot.ScopeServiceAssignment {
			continue
		}
		var a snapshot.ServiceAssignment
		content := p.Content(p.Header(i).Header.Content)
		if err := snapshot.Decode(snapshot.ScopeServiceAssignment, content, &a); err != nil {
			h.t.Fatal(err)
		}
		var out []string
		for _, s := range a.Services {
			out = append(out, s.Name)
		}
		return out
	}
	return nil
}

func (h *held) want(when string, n int) {
	h.t.Helper()
	if got := h.services("a"); len(got) != n {
		h.t.Errorf("%s it is told to run %d services, want %d: %v", when, len(got), n, got)
	}
}

// told reports whether people are told that something is kept.
func (h *held) told() bool {
	h.t.Helper()
	return len(coordinatortest.FindingsAt(h.Desk, h.t, errcode.AssignmentHeld)) > 0
}

func (h *held) remove(from, n int) {
	h.t.Helper()
	req := &fealtyv1.DeleteConfigRequest{}
	for i := range n {
		req.Records = append(req.Records, &fealtyv1.ConfigRecord{Kind: "service", Name: fmt.Sprintf("s%02d", from+i)})
	}
	if _, err := coordinatortest.ConfigAt(h.Desk).DeleteConfig(h.t.Context(), req); err != nil {
		h.t.Fatal(err)
	}
}

// A member whose services lose their records keeps them until three looks in a row, a minute apart,
// find the same: however often it is compiled meanwhile, and whatever else is changed.
func TestLostServicesAreKept(t *testing.T) {
	t.Parallel()
	h := newHeld(t, 12)
	h.remove(0, 11)
	more := 0
	for look := range quarantine.Confirmations - 1 {
		for range 5 {
			coordinatortest.MustPut(h.Desk, servicesOn("data/a", 50+more, 1)) // so that it is looked at
			more++
			h.want(fmt.Sprintf("at look %d", look+1), 12)
		}
		if !h.told() {
			t.Errorf("at look %d nobody is told", look+1)
		}
		h.Advance(publication.WithholdEvery - time.Second)
		h.want("before the minute is over", 12)
		h.Advance(time.Second)
	}
	h.want("at the third look", 1+more)
	if h.want("after it", 1+more); h.told() {
		t.Error("people are told of what is over")
	}
}

// All services may be gone as well: then there is no assignment any more.
func TestAllServicesAreLost(t *testing.T) {
	t.Parallel()
	h := newHeld(t, 10)
	h.remove(0, 10)
	h.want("at the first look", 10)
	h.Advance(publication.WithholdEvery)
	h.want("at the second look", 10)
	h.Advance(publication.WithholdEvery)
	h.want("at the third look", 0)
}

// Records that come back end it, and what is lost after that counts from the first look again; and
// so it does for another leader.
func TestLostServicesComeBack(t *testing.T) {
	t.Parallel()
	h := newHeld(t, 12)
	h.remove(0, 12)
	h.want("at the first look", 12)
	h.Advance(publication.WithholdEvery)
	h.want("at the second look", 12)
	coordinatortest.MustPut(h.Desk, servicesOn("data/a", 0, 12))
	if h.want("with their records back", 12); h.told() {
		t.Error("people are told of what is over")
	}
	h.remove(0, 12)
	h.want("lost again", 12)
	h.Advance(publication.WithholdEvery)
	h.want("lost again, at the second look", 12)
	h.b = publication.NewPublisher()
	h.Advance(publication.WithholdEvery)
	h.want("under another leader", 12)
}

// A decision about a member is carried out at once, and so is one that takes little away.
func TestTakenAwayAtOnce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		had  int
		do   func(h *held)
		want int
	}{
		{"nine services", 9, func(h *held) { h.remove(0, 9) }, 0},
		{"a tenth is kept", 12, func(h *held) { h.remove(0, 10) }, 2},
		{"they are placed elsewhere", 12, func(h *held) { coordinatortest.MustPut(h.Desk, servicesOn("data/b", 0, 12)) }, 0},
		{"one of them is revoked", 12, func(h *held) {
			h.remove(0, 11)
			if _, err := coordinatortest.TrustService(h.Desk).Revoke(h.t.Context(), &fealtyv1.RevokeRequest{
				Kind: string(internalsnapshot.RevokedService), Name: "s11", Reason: "it leaked"}); err != nil {
				h.t.Fatal(err)
			}
		}, 0},
		{"the member is banned", 12, func(h *held) {
			h.remove(0, 12)
			coordinatortest.BanAt(h.Desk, h.t, identity.Data, "a")
		}, 0},
		{"the member is gone", 12, func(h *held) {
			h.remove(0, 12)
			h.Advance(time.Hour)
			h.C.Parts().Membership.Listens(h.Clock().Add(-time.Hour))
			coordinatortest.RemoveAt(h.Desk, h.t, identity.Data, "a")
			coordinatortest.FollowMembers(h.Desk, h.C)
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := newHeld(t, tc.had)
			tc.do(h)
			if h.want("then", tc.want); h.told() {
				t.Error("people are told that something is kept")
			}
		})
	}
}

// A commit that fails when it is believed changes nothing of that: the next one brings it.
func TestLostServicesAndALostCommit(t *testing.T) {
	t.Parallel()
	h := newHeld(t, 12)
	h.remove(0, 12)
	h.want("at the first look", 12)
	h.Advance(publication.WithholdEvery)
	h.want("at the second look", 12)
	h.Advance(publication.WithholdEvery)
	failed := errors.New("no commit")
	h.Faults.FailNext("publish.before-commit", 1, failed)
	if err := coordinatortest.PublishAll(h.Desk, h.C, h.b); !errors.Is(err, failed) {
		t.Fatalf("it was committed: %v", err)
	}
	h.want("with the next commit", 0)
}
