package chaos

import (
	"fmt"
	"slices"
	"time"
)

// Span is a time in which something was so.
type Span struct{ From, To time.Time }

// Length is how long it was.
func (s Span) Length() time.Duration { return s.To.Sub(s.From) }

// Without returns what is left of a span outside of others, in their order.
func Without(whole Span, others ...Span) []Span {
	others = slices.Clone(others)
	slices.SortFunc(others, func(a, b Span) int { return a.From.Compare(b.From) })
	var left []Span
	from := whole.From
	for _, o := range others {
		if o.From.After(from) {
			left = append(left, Span{from, earlier(o.From, whole.To)})
		}
		from = later(from, o.To)
	}
	if from.Before(whole.To) {
		left = append(left, Span{from, whole.To})
	}
	return slices.DeleteFunc(left, func(s Span) bool { return s.Length() <= 0 })
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Both returns the times in which it was so of each of two.
func Both(a, b []Span) []Span {
	var both []Span
	for _, x := range a {
		for _, y := range b {
			if s := (Span{later(x.From, y.From), earlier(x.To, y.To)}); s.Length() > 0 {
				both = append(both, s)
			}
		}
	}
	return both
}

// Look is what a node held at a time.
type Look struct {
	At                  time.Time
	NotBefore, NotAfter time.Time // of its certificate
}

// Promise is what a cluster promises of the certificates of its nodes.
type Promise struct {
	// Renewed is how long a coordinator, the store and the node have to be up, at once and
	// without a break, for a certificate to be renewed that is due: of which two thirds of
	// the life are over.
	Renewed time.Duration
	// Back is how long for one that ran out to be replaced.
	Back time.Duration
}

// Certified returns what is wrong with the certificates of a node. The looks are sorted
// by their times. Up is when a coordinator, the store and the node could work together,
// for each of the coordinators.
func Certified(node string, looks []Look, p Promise, up ...[]Span) []string {
	var wrong []string
	var held Look // the first look at the certificate that it holds
	told := false // what is wrong with it
	for _, l := range looks {
		if !l.NotAfter.Equal(held.NotAfter) {
			held, told = l, false
		}
		if l.At.Before(l.NotAfter) || told {
			continue
		}
		// It could not renew a certificate before it held it.
		due := later(held.At, l.NotBefore.Add(l.NotAfter.Sub(l.NotBefore)*2/3))
		if held.At.After(l.NotAfter) {
			due = l.NotAfter // it came with one that had run out
		}
		if s, ok := longest(Span{due, l.NotAfter}, up); ok && s.Length() >= p.Renewed {
			told = true
			wrong = append(wrong, fmt.Sprintf("the certificate of %s ran out at %s, and all was up for %v from %s on, when it was due",
				node, clock(l.NotAfter), s.Length().Round(time.Millisecond), clock(s.From)))
		}
		if s, ok := longest(Span{later(held.At, l.NotAfter), l.At}, up); ok && s.Length() >= p.Back {
			told = true
			wrong = append(wrong, fmt.Sprintf("%s, whose certificate ran out at %s, was not back when all had been up for %v at %s",
				node, clock(l.NotAfter), s.Length().Round(time.Millisecond), clock(s.To)))
		}
	}
	return wrong
}

// longest returns the longest time of those within a span.
func longest(within Span, up [][]Span) (found Span, ok bool) {
	for _, spans := range up {
		for _, s := range Both([]Span{within}, spans) {
			if s.Length() > found.Length() {
				found, ok = s, true
			}
		}
	}
	return found, ok
}

// Changes counts the certificates that a node was seen with.
func Changes(looks []Look) (n int) {
	for i, l := range looks {
		if i == 0 || !l.NotAfter.Equal(looks[i-1].NotAfter) {
			n++
		}
	}
	return n
}

// RanOut returns how often a node was seen with a certificate that had run out, and the
// longest time that it was, from one look to another.
func RanOut(looks []Look) (times int, longest time.Duration) {
	var out time.Time // since when it is
	for _, l := range looks {
		switch {
		case l.At.Before(l.NotAfter):
			out = time.Time{}
		case out.IsZero():
			out = l.At
			times++
		default:
			longest = max(longest, l.At.Sub(out))
		}
	}
	return times, longest
}
