package auditlog

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// HeadsAge is for how long a chain is remembered after a checkpoint told of it. It gets entries
// for [MaxChainAge] alone, and some later whose transaction took that long. That of a shard gets those
// later that it wrote down while it had no coordinator.
const HeadsAge = 24 * time.Hour

const (
	// clocksDiffer is how much the clocks of those who write entries and those who make
	// checkpoints may differ.
	clocksDiffer = 2 * time.Hour
	// maxHeads bounds the chains that are remembered, and sweepHeads is how often those are
	// looked for that are remembered no longer.
	maxHeads   = 100_000
	sweepHeads = time.Hour
)

// Heads remembers how far each chain is behind a checkpoint, as the signed checkpoints
// tell it, and so finds what is wrong with the notes in the store that say the same: nothing
// else would cover what a chain gets after its note was removed or set back.
//
// The zero value has read no checkpoint of a log that has none.
type Heads struct {
	last   Known
	at     time.Time // of the last checkpoint
	since  time.Time // chains that began before may be unknown; zero: none is
	swept  time.Time
	chains map[string]Head
	breaks []Break // that checkpoints show, and that none tells of; at most MaxBreaks
}

// Last is the last checkpoint that was read.
func (h *Heads) Last() Known { return h.last }

// Breaks are those that the checkpoints show, and that none of them tells of.
func (h *Heads) Breaks() []Break { return slices.Clone(h.breaks) }

// Forget makes h begin anew with the checkpoint that is read next. Chains that began before
// since may then be unknown; the zero time says that it is the first checkpoint of the log.
func (h *Heads) Forget(since time.Time) { *h = Heads{since: since} }

// Follow reads one more checkpoint.
func (h *Heads) Follow(c *Claim) {
	if h.chains == nil {
		h.chains = make(map[string]Head)
	}
	h.breaks = slices.DeleteFunc(h.breaks, func(b Break) bool { return slices.Contains(c.Breaks, b) })
	if h.last.Number > 0 && (c.Number != h.last.Number+1 || c.Previous != h.last.Hash) {
		h.wrong("", "checkpoint %d does not follow checkpoint %d as it was", c.Number, h.last.Number)
	}
	for _, l := range c.Lines {
		was, known := h.chains[l.Chain]
		if l.From != was.Number && (known || h.knows(l.Chain)) {
			h.wrong(l.Chain, "checkpoint %d covers what comes after entry %d, and those before it end at %d", c.Number, l.From, was.Number)
		}
		h.set(l.Chain, Head{Number: l.To, Hash: l.Hash, At: c.At, Broken: was.Broken})
	}
	for _, b := range c.Breaks {
		// One that is further back leaves its end as it is.
		if e := h.chains[b.Chain]; b.Chain != "" && b.Number > 0 && b.Number >= e.Number {
			e.Broken, e.At = true, c.At
			h.set(b.Chain, e)
		}
	}
	h.last, h.at = Known{c.Number, c.Hash}, c.At
	if c.At.Sub(h.swept) >= sweepHeads {
		over := c.At.Add(-HeadsAge)
		maps.DeleteFunc(h.chains, func(_ string, e Head) bool { return e.At.Before(over) })
		if h.swept = c.At; h.since.Before(over) {
			h.since = over
		}
	}
}

// set remembers the end of a chain. Without room for it, no chain is expected to be known that
// began before now.
func (h *Heads) set(chain string, e Head) {
	if _, known := h.chains[chain]; !known && len(h.chains) >= maxHeads {
		h.since = e.At
		return
	}
	h.chains[chain] = e
}

func (h *Heads) wrong(chain, format string, args ...any) {
	if b := (Break{Chain: chain, Problem: fmt.Sprintf(format, args...)}); len(h.breaks) < MaxBreaks && !slices.Contains(h.breaks, b) {
		h.breaks = append(h.breaks, b)
	}
}

// knows reports whether chain would be known if a checkpoint told of it.
func (h *Heads) knows(chain string) bool {
	return h.since.IsZero() || Began(chain).After(h.since.Add(clocksDiffer))
}

// Check compares the note of a chain with what checkpoints tell. It returns how far the chain is
// behind one, and what is wrong with the note; unread says that it cannot be read.
func (h *Heads) Check(chain string, note Head, unread bool) (is Head, problem string) {
	was, known := h.chains[chain]
	switch {
	case !known && !h.knows(chain):
		return note, "" // whoever goes on from an unreadable one tells of it
	case unread:
		return was, "the note of how far it is behind a checkpoint cannot be read"
	case note.Number != was.Number || note.Hash != was.Hash:
		return was, fmt.Sprintf("it is behind a checkpoint up to entry %d, and its note says %d", was.Number, note.Number)
	case note.Broken && !was.Broken:
		return was, "its note says that it is broken, and no checkpoint does"
	}
	return note, ""
}

// Missing are the chains, sorted, that have no note. One may be over: see [MayGrow].
func (h *Heads) Missing(noted map[string]bool) []string {
	var out []string
	for chain, e := range h.chains {
		if !noted[chain] && !e.Broken && h.at.Sub(e.At) < HeadsAge {
			out = append(out, chain)
		}
	}
	slices.Sort(out)
	return out
}

// Head returns how far a chain is behind a checkpoint.
func (h *Heads) Head(chain string) Head { return h.chains[chain] }

// Over forgets a chain that gets no entry any more.
func (h *Heads) Over(chain string) { delete(h.chains, chain) }

// MayGrow reports whether a chain may get entries at a time, by whichever clock.
func MayGrow(chain string, now time.Time) bool {
	return now.Before(Began(chain).Add(MaxChainAge + clocksDiffer))
}

// Began is when a chain began, by the clock of its writer.
func Began(chain string) time.Time {
	_, start, _ := strings.Cut(chain, "/")
	digits, _, _ := strings.Cut(start, "-")
	nanos, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		nanos = 1<<63 - 1 // 20 digits have room for more
	}
	return time.Unix(0, nanos)
}
