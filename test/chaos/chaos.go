// Package chaos decides whether a cluster kept its promises while its processes were killed,
// stopped and cut off.
//
// While processes are killed and stopped, and stores go away, somebody writes down what
// was asked of the cluster and what it answered, what each node held, and who led:
//
//	Kept       what was acknowledged is there, or was overwritten later; what was refused is not
//	Leaders    each term has one leader, and nobody sees terms fall
//	Certified  no certificate ran out that could have been renewed, and who ran out came back
//
// None of it knows how the cluster works, and nothing here asks it: the package does no
// I/O. Times are those of the one machine on which everything ran.
package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Outcome is what the one who wrote was told.
type Outcome int

// A write whose outcome is unknown may have happened, or may happen yet.
const (
	Unknown Outcome = iota
	Acknowledged
	Refused
)

func (o Outcome) String() string {
	return [...]string{Unknown: "unknown", Acknowledged: "acknowledged", Refused: "refused"}[o]
}

// Write is one attempt to give a key a value. The empty value stands for a key that is
// not there.
type Write struct {
	Key, Value   string
	Call, Return time.Time
	Outcome      Outcome
	Said         string // by the cluster, for people
}

func (w Write) String() string {
	value := cmp.Or(w.Value, "nothing")
	return fmt.Sprintf("%s..%s %s = %s: %s %s", clock(w.Call), clock(w.Return), w.Key, value, w.Outcome, w.Said)
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }

// Kept compares the values that a cluster shows, when nobody writes any more, with what
// was written. It returns what is wrong: a value that was overwritten by a write that was
// acknowledged, that was refused, or that nobody wrote.
func Kept(writes []Write, shown map[string]string) []string {
	of := make(map[string][]Write)
	for _, w := range writes {
		of[w.Key] = append(of[w.Key], w)
	}
	for key := range shown {
		if _, ok := of[key]; !ok {
			of[key] = nil
		}
	}
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if why := kept(of[key], shown[key]); why != "" {
			wrong = append(wrong, fmt.Sprintf("%s is %s: %s", key, cmp.Or(shown[key], "not there"), why))
		}
	}
	return wrong
}

// kept says what is wrong with a value of a key, or nothing. A value is right if a write
// of it may have been the last one: none that was acknowledged began after its end. A
// write of unknown outcome has none.
func kept(writes []Write, value string) string {
	var lost, refused Write
	found, overwritten, no := false, false, false
	if value == "" { // as before the first write
		lost, overwritten = after(writes, time.Time{})
		if !overwritten {
			return ""
		}
		found = true
	}
	for _, w := range writes {
		switch {
		case w.Value != value:
		case w.Outcome == Refused:
			refused, no = w, true
		case w.Outcome == Unknown:
			return ""
		default:
			found = true
			later, over := after(writes, w.Return)
			if !over {
				return ""
			}
			lost, overwritten = later, true
		}
	}
	switch {
	case found && overwritten:
		return "lost is " + lost.String()
	case no:
		return "it was refused: " + refused.String()
	default:
		return "nobody wrote that"
	}
}

// after returns a write that was acknowledged and began after a time.
func after(writes []Write, end time.Time) (Write, bool) {
	i := slices.IndexFunc(writes, func(w Write) bool { return w.Outcome == Acknowledged && w.Call.After(end) })
	if i < 0 {
		return Write{}, false
	}
	return writes[i], true
}

// GoneBack returns the writes as they count after the store was put back, between two
// times: who put it back knows what it held at the first, and no more of what came
// between. The function survives names the writes that outlive that.
func GoneBack(writes []Write, copied, back time.Time, survives func(Write) bool) []Write {
	out := slices.Clone(writes)
	for i, w := range out {
		if w.Outcome == Acknowledged && w.Return.After(copied) && w.Call.Before(back) && !survives(w) {
			out[i].Outcome = Unknown
		}
	}
	return out
}

// Sight is what somebody said of leadership.
type Sight struct {
	By     string
	At     time.Time
	Leader string // empty: nobody leads
	Term   uint64
}

// Leaders returns what is wrong with what was said of leadership: a term of two leaders,
// and terms that fell in the eyes of one.
func Leaders(sights []Sight) []string {
	sights = slices.Clone(sights)
	slices.SortStableFunc(sights, func(a, b Sight) int { return a.At.Compare(b.At) })
	var wrong []string
	leads, seen := make(map[uint64]Sight), make(map[string]Sight)
	for _, s := range sights {
		if s.Leader == "" {
			continue
		}
		if was, ok := leads[s.Term]; !ok {
			leads[s.Term] = s
		} else if was.Leader != s.Leader {
			wrong = append(wrong, fmt.Sprintf("term %d is of %s, said %s at %s, and of %s, said %s at %s",
				s.Term, was.Leader, was.By, clock(was.At), s.Leader, s.By, clock(s.At)))
		}
		if was := seen[s.By]; was.Term > s.Term {
			wrong = append(wrong, fmt.Sprintf("%s saw term %d at %s, and term %d at %s", s.By, was.Term, clock(was.At), s.Term, clock(s.At)))
		}
		seen[s.By] = s
	}
	return wrong
}

// LeadersGoneBack is Leaders for a store that was put back at a time: whoever looks into it then may
// see again who led when it was copied. Each term that is new since then is above all of before.
func LeadersGoneBack(sights []Sight, back time.Time) []string {
	var before, since []Sight
	var last uint64
	known := make(map[uint64]bool)
	for _, s := range sights {
		if s.At.Before(back) {
			before = append(before, s)
			known[s.Term], last = true, max(last, s.Term)
		} else {
			since = append(since, s)
		}
	}
	wrong := append(Leaders(before), Leaders(since)...)
	for _, s := range since {
		if s.Leader != "" && s.Term < last && !known[s.Term] {
			wrong = append(wrong, fmt.Sprintf("%s saw term %d at %s, which is new, and %d was seen before the store "+
				"went back", s.By, s.Term, clock(s.At), last))
		}
	}
	return wrong
}

// Terms counts the terms that were seen.
func Terms(sights []Sight) int {
	terms := make(map[uint64]bool)
	for _, s := range sights {
		if s.Leader != "" {
			terms[s.Term] = true
		}
	}
	return len(terms)
}

// About returns the writes of a key, for people.
func About(writes []Write, key string) string {
	var out strings.Builder
	for _, w := range writes {
		if w.Key == key {
			fmt.Fprintf(&out, "  %s\n", w)
		}
	}
	return out.String()
}
