package dashboard

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/dashboard/markup"
)

// reignsKept is how many changes of the leader are kept.
const reignsKept = 50

// reign is a time in which the same coordinator was seen to lead, or nobody was.
type reign struct {
	leader      string // empty: nobody leads
	term        uint64
	first, last time.Time // by the clock of the coordinator that answered
}

// note takes down who leads, as an answer says.
func note(reigns []reign, st *fealtyv1.GetStatusResponse) []reign {
	l := st.GetLeader()
	if l == nil {
		return reigns // a coordinator that is not ready does not know
	}
	now := st.GetNow().AsTime()
	if n := len(reigns); n > 0 && reigns[n-1].leader == l.GetName() && reigns[n-1].term == l.GetTerm() {
		out := slices.Clone(reigns)
		out[n-1].last = now
		return out
	}
	next := reign{l.GetName(), l.GetTerm(), now, now}
	if l.GetTerm() > 0 && l.GetSince() != nil {
		next.first = l.GetSince().AsTime()
	} else if l.GetTerm() == 0 {
		next.leader, next.first = "", now.Add(-l.GetNobodyFor().AsDuration())
	}
	return append(slices.Clone(reigns[max(0, len(reigns)-reignsKept+1):]), next)
}

// reigns is a picture of who led when, with its table.
func (v *view) reigns() markup.Part {
	v.source.mu.Lock()
	all := v.source.reigns
	v.source.mu.Unlock()
	if len(all) == 0 {
		return section("reigns", "Terms", el("p", text("No leader was seen yet.")))
	}
	const width, height = 800, 24
	from := all[0].first
	whole := max(v.now.Sub(from), time.Second)
	at := func(t time.Time) int { return int(float64(width) * float64(t.Sub(from)) / float64(whole)) }
	picture := parts{attr("viewBox", fmt.Sprintf("0 0 %d %d", width, height)), attr("role", "img"), attr("focusable", "false"),
		attr("aria-label", "Terms over time: the table has the times")}
	var rows [][]markup.Part
	for i, r := range all {
		until := r.last
		if i+1 < len(all) && r.leader == "" {
			until = all[i+1].first
		}
		fill := "bar"
		if i%2 == 1 {
			fill = "bar2"
		}
		who := markup.Part(text(r.leader))
		if r.leader == "" {
			fill, who = "badf", el("span", class("bad"), text("✖ nobody"))
		}
		x := max(0, at(r.first))
		picture = append(picture, el("rect", class(fill), attr("x", strconv.Itoa(x)), attr("y", "2"), attr("height", strconv.Itoa(height-4)),
			attr("width", strconv.Itoa(max(2, at(until)-x)))))
		rows = append([][]markup.Part{{who, text(strconv.FormatUint(r.term, 10)), v.age(r.first), v.age(r.last)}}, rows...)
	}
	return section("reigns", "Terms", el("p", class("note"), text("As this dashboard saw it since it was started, while a page was open. Where the picture is empty nobody looked.")),
		el("figure", el("svg", picture...), table("Terms, the newest first", []string{"Leader", "Term", "From", "Seen last"}, rows)))
}
