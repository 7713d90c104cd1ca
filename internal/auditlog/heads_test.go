package auditlog_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
)

// headsOf follows the checkpoints of a log.
func headsOf(t testing.TB, since time.Time, log []record) *auditlog.Heads {
	t.Helper()
	h := new(auditlog.Heads)
	h.Forget(since)
	for _, r := range log {
		if _, ok := auditlog.ParseCheckpointKey(r.key); !ok {
			continue
		}
		c, err := auditlog.DecodeCheckpoint(r.value)
		if err != nil {
			t.Fatal(err)
		}
		h.Follow(c)
	}
	return h
}

// later makes a checkpoint after the last one of s, which edit alters, and reads it.
func (s *scribe) later(edit func(*auditlog.Checkpoint)) *auditlog.Claim {
	s.t.Helper()
	c := auditlog.Checkpoint{Cluster: s.cluster, Number: s.last.Number + 1, At: s.last.At, First: 1, Previous: s.last.Hash}
	edit(&c)
	value, _, err := c.Sign(s.key)
	if err != nil {
		s.t.Fatal(err)
	}
	claim, err := auditlog.DecodeCheckpoint(value)
	if err != nil {
		s.t.Fatal(err)
	}
	s.last = claim
	return claim
}

// TestHeads compares notes with what checkpoints tell.
func TestHeads(t *testing.T) {
	t.Parallel()
	s := three(t)
	chain, _, _ := auditlog.ParseKey(s.records[1].key)
	end := s.ends[chain]
	true1 := auditlog.Head{Number: end.To, Hash: end.Hash, At: start}
	stranger := strings.Replace(chain, "aa/", "cc/", 1)
	other := strings.Repeat("ab", 32)
	var hash auditlog.Hash
	if err := hash.UnmarshalText([]byte(other)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		since time.Time // from when all chains are known
		chain string
		note  func(auditlog.Head) auditlog.Head
		text  bool // the note is none
		want  string
		is    auditlog.Head
	}{
		{name: "true", chain: chain, is: true1},
		{name: "less", chain: chain, note: func(h auditlog.Head) auditlog.Head { h.Number--; return h }, want: "up to entry 9, and its note says 8", is: true1},
		{name: "more", chain: chain, note: func(h auditlog.Head) auditlog.Head { h.Number++; return h }, want: "its note says 10", is: true1},
		{name: "another entry", chain: chain, note: func(h auditlog.Head) auditlog.Head { h.Hash = hash; return h }, want: "its note says 9", is: true1},
		{name: "broken", chain: chain, note: func(h auditlog.Head) auditlog.Head { h.Broken = true; return h }, want: "no checkpoint does", is: true1},
		{name: "none that can be read", chain: chain, text: true, want: "cannot be read", is: true1},
		{name: "a new chain", chain: stranger, note: func(auditlog.Head) auditlog.Head { return auditlog.Head{At: start} }, is: auditlog.Head{At: start}},
		{name: "a new chain that has a beginning", chain: stranger, want: "up to entry 0"},
		{name: "a new chain that is broken", chain: stranger, note: func(auditlog.Head) auditlog.Head { return auditlog.Head{Broken: true} }, want: "no checkpoint does"},
		{name: "a chain of before what is known", since: start.Add(-time.Hour), chain: stranger, is: true1},
		{name: "a chain of after what is known", since: start.Add(-3 * time.Hour), chain: stranger, want: "up to entry 0"},
	} {
		h := headsOf(t, tc.since, s.log())
		note := true1
		if tc.note != nil {
			note = tc.note(note)
		}
		is, problem := h.Check(tc.chain, note, tc.text)
		if is != tc.is || (problem == "") != (tc.want == "") || !strings.Contains(problem, tc.want) {
			t.Errorf("%s: %+v, %q", tc.name, is, problem)
		}
	}
}

// TestHeadsMissing: a chain whose note is gone is missed for a day, unless it is broken or over.
func TestHeadsMissing(t *testing.T) {
	t.Parallel()
	s := three(t)
	h := headsOf(t, time.Time{}, s.log())
	chains := make([]string, 0, 2)
	noted := map[string]bool{}
	for c := range s.ends {
		chains = append(chains, c)
		noted[c] = true
	}
	slices.Sort(chains)
	want := func(what string, noted map[string]bool, missing ...string) {
		t.Helper()
		if got := h.Missing(noted); !slices.Equal(got, missing) {
			t.Errorf("%s: %v", what, got)
		}
	}
	want("all are there", noted)
	want("all are gone", nil, chains...)
	if got := h.Head(chains[0]); got.Number != s.ends[chains[0]].To {
		t.Errorf("%+v", got)
	}
	// A break in what is behind leaves the end as it is, and one at the end does not.
	h.Follow(s.later(func(c *auditlog.Checkpoint) {
		c.Breaks = []auditlog.Break{{Chain: chains[0], Number: 1, Problem: "it is not there"}, {Chain: chains[1], Number: s.ends[chains[1]].To + 1, Problem: "it cannot be read"}}
	}))
	want("one is broken", nil, chains[0])
	if _, problem := h.Check(chains[1], auditlog.Head{Number: s.ends[chains[1]].To, Hash: s.ends[chains[1]].Hash, Broken: true}, false); problem != "" {
		t.Errorf("a note of a break that is told: %s", problem)
	}
	h.Follow(s.later(func(c *auditlog.Checkpoint) { c.At = start.Add(auditlog.HeadsAge - time.Minute) }))
	want("a day later, nearly", nil, chains[0])
	h.Follow(s.later(func(c *auditlog.Checkpoint) { c.At = start.Add(auditlog.HeadsAge + 30*time.Minute) }))
	want("a day later", nil)
	// It is forgotten then, and what a note says of so old a chain is believed.
	h.Follow(s.later(func(c *auditlog.Checkpoint) { c.At = start.Add(auditlog.HeadsAge + 3*time.Hour) }))
	if is, problem := h.Check(chains[0], auditlog.Head{Number: 77}, false); is.Number != 77 || problem != "" {
		t.Errorf("%+v, %s", is, problem)
	}
	h = headsOf(t, time.Time{}, s.log())
	h.Over(chains[0])
	want("one is over", nil, chains[1])
}

// TestHeadsFollow: a checkpoint that does not follow the one before is a break until one tells of it.
func TestHeadsFollow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		edit func(s *scribe, chain string, c *auditlog.Checkpoint)
		want string
	}{
		{"it follows", func(*scribe, string, *auditlog.Checkpoint) {}, ""},
		{"it goes on", func(s *scribe, chain string, c *auditlog.Checkpoint) {
			c.Lines = []auditlog.Line{{Chain: chain, From: s.ends[chain].To, To: s.ends[chain].To + 1, Hash: s.last.Hash}}
		}, ""},
		{"one is left out", func(_ *scribe, _ string, c *auditlog.Checkpoint) { c.Number++ }, "checkpoint 5 does not follow checkpoint 3"},
		{"it names another one", func(_ *scribe, _ string, c *auditlog.Checkpoint) { c.Previous[0] ^= 1 }, "checkpoint 4 does not follow"},
		{"a chain goes on elsewhere", func(s *scribe, chain string, c *auditlog.Checkpoint) {
			c.Lines = []auditlog.Line{{Chain: chain, From: 3, To: 20, Hash: s.last.Hash}}
		}, "covers what comes after entry 3, and those before it end at 9"},
		{"a new chain has a beginning", func(s *scribe, chain string, c *auditlog.Checkpoint) {
			c.Lines = []auditlog.Line{{Chain: strings.Replace(chain, "aa/", "cc/", 1), From: 3, To: 20, Hash: s.last.Hash}}
		}, "end at 0"},
	} {
		s := three(t)
		chain, _, _ := auditlog.ParseKey(s.records[1].key)
		h := headsOf(t, time.Time{}, s.log())
		h.Follow(s.later(func(c *auditlog.Checkpoint) { tc.edit(s, chain, c) }))
		breaks := h.Breaks()
		if len(breaks) > 1 || (len(breaks) == 0) != (tc.want == "") || tc.want != "" && !strings.Contains(breaks[0].String(), tc.want) {
			t.Errorf("%s: %v", tc.name, breaks)
		}
		if h.Last() != (auditlog.Known{Number: s.last.Number, Hash: s.last.Hash}) {
			t.Errorf("%s: the last is %+v", tc.name, h.Last())
		}
		h.Follow(s.later(func(c *auditlog.Checkpoint) { c.Breaks = breaks }))
		if len(h.Breaks()) > 0 {
			t.Errorf("%s: after it was told: %v", tc.name, h.Breaks())
		}
	}
}

// TestMayGrow: a chain gets entries for an hour, by whichever clock.
func TestMayGrow(t *testing.T) {
	t.Parallel()
	chain, _, _ := auditlog.ParseKey(three(t).records[1].key)
	for after, want := range map[time.Duration]bool{0: true, 3*time.Hour - time.Second: true, 3 * time.Hour: false} {
		if got := auditlog.MayGrow(chain, start.Add(after)); got != want {
			t.Errorf("%v after its start: %v", after, got)
		}
	}
	if !auditlog.MayGrow(strings.Repeat("a", 16)+"/99999999999999999999-00000000", start) {
		t.Error("one that is not over yet is over")
	}
}

// TestHeadsAreBounded: so many chains are remembered. Of one more nothing is known, and so its note is
// believed, as is that of any chain that began before it came.
func TestHeadsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 100_000
	chain, _, _ := auditlog.ParseKey(three(t).records[1].key)
	name := func(i int) string { return strings.Replace(chain, "aa/", fmt.Sprintf("a%06d/", i), 1) }
	h := new(auditlog.Heads)
	c := &auditlog.Claim{Checkpoint: auditlog.Checkpoint{Number: 1, At: start}}
	for i := range most {
		c.Lines = append(c.Lines, auditlog.Line{Chain: name(i), To: 1})
	}
	h.Follow(c)
	claims := auditlog.Head{Number: 77}
	if _, problem := h.Check(name(most-1), claims, false); problem == "" {
		t.Error("the last chain that there is room for is not remembered")
	}
	if _, problem := h.Check(name(most), claims, false); problem == "" {
		t.Error("a chain that no checkpoint told of is believed, and all others are known")
	}
	h.Follow(&auditlog.Claim{Checkpoint: auditlog.Checkpoint{Number: 2, At: start, Lines: []auditlog.Line{{Chain: name(most), To: 1}}}})
	if is, problem := h.Check(name(most), claims, false); problem != "" || is != claims {
		t.Errorf("one more than there is room for: %+v, %s", is, problem)
	}
	if _, problem := h.Check(name(0), claims, false); problem == "" {
		t.Error("one more took the place of a chain that was remembered")
	}
}
