package summary

import (
	"fmt"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/coordinator/member/condition"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// Condition is what can be said of a member at a glance, the worst first.
type Condition struct {
	Word  string
	Shape string
	Paint term.Paint
}

// The conditions of a member. One that is not heard has not failed: it works on what it has
// verified. Unknown is one that a coordinator may hear which did not say.
var (
	banned    = Condition{"banned", "✖", term.Red}
	replacing = Condition{"replacing", "◌", term.Amber}
	Draining  = Condition{"draining", "◐", term.Amber}
	Expired   = Condition{"expired", "✖", term.Red}
	NotHeard  = Condition{"not heard", "▲", term.Amber}
	Unknown   = Condition{"unknown", "?", term.Dim}
	Connected = Condition{"connected", "●", term.Green}
	Certified = Condition{"certified", "●", term.Green} // people hold no stream
)

// shown is how a condition is shown.
func shown(is condition.Condition) Condition {
	switch is {
	case condition.Banned:
		return banned
	case condition.Replacing:
		return replacing
	case condition.Draining:
		return Draining
	case condition.Expired:
		return Expired
	case condition.NotHeard:
		return NotHeard
	case condition.Connected:
		return Connected
	case condition.Certified:
		return Certified
	}
	return Unknown
}

// CountWords says the counts of members, and what each of them counts; "" if there is nobody.
func CountWords(n *fealtyv1.MemberCounts) string {
	var kinds, apart []string
	for _, k := range n.GetKinds() {
		kinds = append(kinds, fmt.Sprintf("%d %s", k.GetCount(), k.GetKind()))
	}
	add := func(to *[]string, count uint32, word string) {
		if count > 0 {
			*to = append(*to, fmt.Sprintf("%d %s", count, word))
		}
	}
	out := strings.Join(kinds, ", ")
	var among []string
	add(&among, n.GetDraining(), "draining")
	add(&among, n.GetExpired(), "expired")
	if len(among) > 0 {
		out += " (" + strings.Join(among, ", ") + ")"
	}
	add(&apart, n.GetReplacing(), "being replaced")
	add(&apart, n.GetBanned(), "banned")
	if n.GetPeople() > 0 {
		apart = append(apart, humanize.Plural(n.GetPeople(), "person or tool", "people and tools"))
	}
	return command.JoinWords(out, "; apart from these ", strings.Join(apart, ", "))
}

// Cell is how a table shows it.
func (c Condition) Cell() term.Cell { return term.Painted(c.Paint, c.Shape+" "+c.Word) }

// Member looks at a member at now.
func Member(m *fealtyv1.Member, now time.Time) Condition { return shown(condition.Of(m, now)) }

// Contact says whether a member is heard.
func Contact(m *fealtyv1.Member) Condition { return shown(condition.OfContact(m)) }

// Alone says for how long a member still works without a coordinator.
func Alone(m *fealtyv1.Member, now time.Time) string {
	switch until, known := condition.AloneUntil(m); {
	case !now.Before(until):
		return "no longer"
	case known:
		return "for " + humanize.Span(until.Sub(now))
	}
	return "not known"
}
