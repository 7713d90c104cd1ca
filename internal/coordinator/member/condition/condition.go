// Package condition says in what condition a member is, by what a coordinator tells of it, who of many need somebody, and
// how many there are. A coordinator that answers with a few members of many and a command that was given all of them come to
// the same: both ask here.
package condition

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/snapshot"
)

// Condition is what can be said of a member at a glance.
type Condition string

// The conditions of a member, the first that fits. One that is not heard has not failed: it works on what it has
// verified. Unknown is one that a coordinator may hear which did not say.
const (
	Banned    Condition = record.Banned
	Replacing Condition = record.Replacing
	Expired   Condition = "expired"
	Draining  Condition = record.Draining
	Certified Condition = "certified" // people hold no stream
	Connected           = Condition(peer.Connected)
	NotHeard            = Condition(peer.NotHeard)
	Unknown             = Condition(peer.Unknown)
)

// Of looks at a member at now.
func Of(m *fealtyv1.Member, now time.Time) Condition {
	switch {
	case m.GetBanned():
		return Banned
	case m.GetState() == record.Replacing:
		return Replacing
	case !now.Before(m.GetSvidNotAfter().AsTime()):
		return Expired
	case m.GetState() == record.Draining:
		return Draining
	case IsPerson(m), m.GetKind() == string(identity.Coordinator):
		return Certified
	}
	return OfContact(m)
}

// OfContact says whether a member is heard: its state may hide that. A coordinator of an earlier release tells what it
// hears alone.
func OfContact(m *fealtyv1.Member) Condition {
	switch said, live := Condition(m.GetContact()), m.GetLive(); {
	case said == Connected, said == "" && live.GetConnected():
		return Connected
	case said == NotHeard, said == "" && live.GetLastReport() != nil:
		return NotHeard
	}
	return Unknown
}

// IsPerson reports whether a member is the certificate of a person or a tool, which holds no stream.
func IsPerson(m *fealtyv1.Member) bool { return record.IsSession(identity.Kind(m.GetKind())) }

// Fresh says how much of what a member holds is the newest that there is, by its own word. What it says nothing of is
// not counted: a bootstrap that the runtime took the place of.
func Fresh(live *fealtyv1.Live) (fresh, held int) {
	for _, h := range live.GetHeld() {
		switch h.GetFreshness() {
		case "":
			continue
		case string(snapshot.Fresh):
			fresh++
		}
		held++
	}
	return fresh, held
}

// AloneUntil is until when a member works without a coordinator: by its own word, which is known then, or, without one,
// no longer than its certificate.
func AloneUntil(m *fealtyv1.Member) (until time.Time, known bool) {
	end := m.GetSvidNotAfter().AsTime()
	if at := m.GetLive().GetAutonomousUntil(); at != nil && at.AsTime().Before(end) {
		return at.AsTime(), true
	}
	return end, m.GetLive().GetAutonomousUntil() != nil
}

// NeedsSomebody reports whether a member is not as it should be. A ban was somebody's will, and needs nobody.
func NeedsSomebody(m *fealtyv1.Member, now time.Time) bool {
	switch is, live := Of(m, now), m.GetLive(); {
	case is == Banned, is == Certified, is == Expired && IsPerson(m):
		return false
	case is == Connected && live.GetClockBehind() == nil && live.GetLogProblem() == "":
		fresh, held := Fresh(live)
		return live.GetConnected() && fresh < held
	}
	return true
}

// NeedSomebody returns the members that need somebody, those first that can work alone for the shortest time.
func NeedSomebody(members []*fealtyv1.Member, now time.Time) []*fealtyv1.Member {
	var out []*fealtyv1.Member
	for _, m := range members {
		if NeedsSomebody(m, now) {
			out = append(out, m)
		}
	}
	slices.SortStableFunc(out, func(a, b *fealtyv1.Member) int {
		x, _ := AloneUntil(a)
		y, _ := AloneUntil(b)
		return x.Compare(y)
	})
	return out
}

// Count counts members at now.
func Count(members []*fealtyv1.Member, now time.Time) *fealtyv1.MemberCounts {
	c := &fealtyv1.MemberCounts{}
	for _, m := range members {
		Add(c, m, now)
	}
	return c
}

// Add adds to c a member as it is at now. Of members that can work alone for as long, that one is named which was added
// first.
func Add(c *fealtyv1.MemberCounts, m *fealtyv1.Member, now time.Time) {
	if NeedsSomebody(m, now) {
		c.NeedSomebody++
	}
	if until := m.GetLive().GetAutonomousUntil(); until != nil && !m.GetBanned() {
		AddAlone(c, m.GetKind(), m.GetName(), until.AsTime(), m.GetLive().GetAutonomyLimit())
	}
	switch is := Of(m, now); {
	case is == Banned:
		c.Banned++
		return
	case is == Replacing:
		c.Replacing++
		return
	case IsPerson(m):
		if is != Expired {
			c.People++
		}
		return
	case is == Draining:
		c.Draining++
	case is == Expired:
		c.Expired++
	}
	addNode(c, m.GetKind(), m.GetLive().GetConnected())
}

// AddConnected adds to c a member of which there is nothing else to say than that it is connected. One that said until when
// it can work alone is added by [AddAlone] too.
func AddConnected(c *fealtyv1.MemberCounts, kind string) { addNode(c, kind, true) }

// AddAlone notes in c until when a member can work alone, and what ends that.
func AddAlone(c *fealtyv1.MemberCounts, kind, name string, until time.Time, limit string) {
	if c.LeastAutonomousUntil == nil || until.Before(c.LeastAutonomousUntil.AsTime()) {
		c.LeastAutonomous, c.LeastAutonomousUntil, c.LeastAutonomyLimit = kind+"/"+name, timestamppb.New(until), limit
	}
}

func addNode(c *fealtyv1.MemberCounts, kind string, connected bool) {
	c.Nodes++
	if connected {
		c.Connected++
	}
	i, found := slices.BinarySearchFunc(c.Kinds, kind, func(k *fealtyv1.KindCount, kind string) int {
		return strings.Compare(k.GetKind(), kind)
	})
	if !found {
		c.Kinds = slices.Insert(c.Kinds, i, &fealtyv1.KindCount{Kind: kind})
	}
	c.Kinds[i].Count++
}
