package decide

import (
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
)

// memory is what one coordinator of a test holds.
type memory struct {
	phase  Phase
	head   Head
	before []history.Hash
	seeds  []history.Salt
	mesh   []identity.KeyID
}

func (m *memory) Phase() Phase                    { return m.phase }
func (m *memory) Head() Head                      { return m.head }
func (m *memory) Knows(h history.Hash) bool       { return h == m.head.Hash || slices.Contains(m.before, h) }
func (m *memory) HoldsSeed(s history.Salt) bool   { return slices.Contains(m.seeds, s) }
func (m *memory) HoldsMesh(k identity.KeyID) bool { return slices.Contains(m.mesh, k) }

// headNumber returns a head of a chain that has its own mesh CA key.
func headNumber(n byte) Head {
	return Head{Hash: history.Hash{n}, Previous: history.Hash{n - 1}, Index: uint64(n), Seed: history.Salt{1}, Mesh: identity.KeyID{n}}
}

func at(n byte) *memory {
	m := &memory{phase: Ready, head: headNumber(n), seeds: []history.Salt{{1}}, mesh: []identity.KeyID{{n}}}
	for i := range n {
		m.before = append(m.before, history.Hash{i})
	}
	return m
}

func recovering(m *memory) *memory { m.phase = Recovery; return m }

func TestJudge(t *testing.T) {
	for name, tc := range map[string]struct {
		m    *memory
		seen byte
		want Verdict
	}{
		"the head in force":                       {at(5), 5, Same},
		"its parent":                              {at(5), 4, Older},
		"an older ancestor":                       {at(5), 1, Older},
		"its child":                               {at(5), 6, Another},
		"a head from elsewhere":                   {at(5), 99, Another},
		"the head that was, while looking":        {recovering(at(5)), 5, Another},
		"an ancestor, while looking":              {recovering(at(5)), 4, Another},
		"any, by one that has seen none so far":   {&memory{phase: Recovery}, 1, Another},
		"any, by one for which there was none":    {&memory{phase: Uninitialized}, 1, Another},
		"the zero hash is no ancestor of genesis": {&memory{phase: Ready, head: headNumber(1)}, 0, Another},
	} {
		if got := Judge(tc.m, history.Hash{tc.seen}); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// A head that stays for reads loses nothing: each of these alone is a reason to give it
// up.
func TestStaysAndActs(t *testing.T) {
	next, holds := headNumber(6), at(5)
	holds.mesh = append(holds.mesh, next.Mesh)
	reseeded := next
	reseeded.Seed = history.Salt{2}
	for name, tc := range map[string]struct {
		m     *memory
		next  Head
		ended Result
		want  bool
	}{
		"lost, with the next key in memory":   {holds, next, Conflict, true},
		"failed":                              {holds, next, Failed, false},
		"the next key is nowhere else":        {at(5), next, Conflict, false},
		"another seed":                        {holds, reseeded, Conflict, false},
		"it was looking for its head already": {recovering(at(6)), next, Conflict, false},
	} {
		if got := Stays(tc.m, tc.next, tc.ended); got != tc.want {
			t.Errorf("%s: it stays: %v", name, got)
		}
	}
	for _, phase := range []Phase{Uninitialized, Recovery, Ready} {
		for _, last := range []Verdict{Same, Older, Another} {
			if got := Acts(phase, last); got != (phase == Ready && last != Another) {
				t.Errorf("phase %v, verdict %d: it acts: %v", phase, last, got)
			}
		}
	}
}

func TestFits(t *testing.T) {
	h := headNumber(3)
	for _, tc := range []struct {
		seed history.Salt
		mesh identity.KeyID
		want bool
	}{{h.Seed, h.Mesh, true}, {history.Salt{2}, h.Mesh, false}, {h.Seed, identity.KeyID{2}, false}} {
		if got := h.Fits(tc.seed, tc.mesh); got != tc.want {
			t.Errorf("Fits(%v, %v) = %v", tc.seed[0], tc.mesh[0], got)
		}
	}
}

// Every combination of what can be amiss: secrets are given in one of them alone.
func TestGiveAndTake(t *testing.T) {
	given := 0
	for _, phase := range []Phase{Uninitialized, Recovery, Ready} {
		for _, stored := range []byte{4, 5, 6} {
			for _, asked := range []byte{4, 5, 6} {
				for _, admitted := range []bool{true, false} {
					m := at(5)
					m.phase = phase
					want := Given
					switch {
					case !admitted:
						want = Stranger // before anything is said about what is here
					case phase != Ready:
						want = NotReady
					case stored != 5:
						want = Behind
					case asked != 5:
						want = OtherHead
					default:
						given++
					}
					if got := Give(m, history.Hash{stored}, history.Hash{asked}, admitted); got != want {
						t.Errorf("phase %v, stored %d, asked %d, admitted %v: %v, want %v", phase, stored, asked, admitted, got, want)
					}
				}
			}
		}
	}
	if given != 1 {
		t.Errorf("secrets were given in %d cases", given)
	}
	for _, tc := range []struct {
		m        *memory
		next     byte
		admitted bool
		want     Answer
	}{
		{at(5), 6, true, Given}, {at(5), 6, false, Stranger}, {recovering(at(5)), 6, true, NotReady},
		{at(5), 7, true, OtherHead}, {at(5), 5, true, OtherHead}, {at(6), 6, true, OtherHead},
	} {
		if got := Take(tc.m, headNumber(tc.next), tc.admitted); got != tc.want {
			t.Errorf("take %d at %d, %v: %v, want %v", tc.next, tc.m.head.Index, tc.m.phase, got, tc.want)
		}
	}
	for _, b := range [][3]bool{{true, true, true}, {true, false, false}, {false, true, false}, {false, false, false}} {
		if Prepares(b[0], b[1]) != b[2] {
			t.Errorf("prepares %v", b)
		}
	}
}

// The order of a move: no result leads to a head before its key is made and sealed,
// and what may be in force is never dropped.
func TestMove(t *testing.T) {
	results := []Result{OK, Failed, Conflict, Unknown, Overtaken}
	var walk func(m Move, path []Stage, swapped Result, depth int)
	ends := map[Stage]bool{}
	walk = func(m Move, path []Stage, swapped Result, depth int) {
		if depth > 10 {
			t.Fatalf("no end: %v", path)
		}
		path = append(slices.Clone(path), m.Stage())
		switch m.Stage() {
		case Swap:
			if !slices.Equal(path, []Stage{Make, Seal, Prepare, Swap}) {
				t.Errorf("swapped after %v", path)
			}
		case Adopt:
			if swapped != OK {
				t.Errorf("adopted after a swap that ended %v", swapped)
			}
		case Drop:
			if slices.Contains(path, Swap) && swapped != Conflict && swapped != Failed {
				t.Errorf("dropped after a swap that ended %v", swapped)
			}
		case Done:
			ends[path[len(path)-2]] = true
			return
		}
		for _, r := range results {
			next, s := m, swapped
			if m.Stage() == Swap {
				s = r
			}
			next.Ended(r)
			walk(next, path, s, depth+1)
		}
	}
	walk(Move{}, nil, Failed, 0)
	if !ends[Adopt] || !ends[Keep] || !ends[Drop] {
		t.Errorf("ends %v", ends)
	}
	if !Decided(headNumber(3), headNumber(3)) || !Decided(headNumber(3), headNumber(4)) || Decided(headNumber(4), headNumber(3)) {
		t.Error("a candidate is forgotten before it is decided, or never")
	}
}

// search runs one that finds nothing until the time end, and returns when it did what.
func search(s *Search, m Memory, head Head, admitted bool, found Found, end time.Duration) (steps []Step, times []time.Duration) {
	for now := time.Duration(0); ; {
		step, wait := s.Next(now, m, head, admitted)
		if step == Wait {
			if now += wait; now >= end {
				return steps, times
			}
			continue
		}
		steps, times = append(steps, step), append(times, now)
		if step == AskPeers {
			s.Ended(now, step, found)
		} else {
			s.Ended(now, step, Nothing)
		}
	}
}

func TestSearch(t *testing.T) {
	head := headNumber(6)
	empty := &memory{phase: Recovery}
	t.Run("finds nothing", func(t *testing.T) {
		steps, times := search(new(Search), empty, head, true, Nothing, 2*time.Minute)
		if !slices.Equal(steps[:2], []Step{AskPeers, AskKeepers}) || slices.Contains(steps, Rekey) {
			t.Errorf("steps %v", steps)
		}
		if times[0] != 0 || times[2] <= 0 || times[2] >= time.Second {
			t.Errorf("rounds at %v", times)
		}
		for i := 2; i < len(times); i++ {
			if pause := times[i] - times[i-1]; pause > lastPause {
				t.Errorf("a pause of %v", pause)
			}
		}
		if n := len(steps) / 2; n < 8 || n > 16 {
			t.Errorf("%d rounds in two minutes", n)
		}
	})
	t.Run("has it all", func(t *testing.T) {
		m := at(5)
		m.mesh = append(m.mesh, head.Mesh)
		if step, _ := new(Search).Next(0, recovering(m), head, true); step != FromMemory {
			t.Errorf("it begins with %v", step)
		}
		// A head that does not come into force is tried again, and not at once.
		s := new(Search)
		s.Next(0, m, head, true)
		s.Ended(0, FromMemory, Nothing)
		if step, wait := s.Next(0, m, head, true); step != Wait || wait <= 0 {
			t.Errorf("after a failure %v, %v", step, wait)
		}
		if step, _ := s.Next(time.Second, m, head, true); step != FromMemory {
			t.Errorf("later %v", step)
		}
	})
	t.Run("heals", func(t *testing.T) {
		m := recovering(at(5)) // the seed, and not the key of 6
		steps, times := search(new(Search), m, head, true, Nothing, time.Minute)
		i := slices.Index(steps, Rekey)
		if i < 2 || times[i] < HealAfter || times[i] > HealAfter+time.Second {
			t.Fatalf("steps %v at %v", steps, times)
		}
		if steps[i-2] != AskPeers || times[i-2] != times[i] {
			t.Error("peers were not asked once more")
		}
		steps, times = search(&Search{HealAfter: time.Second}, m, head, true, Nothing, 2*time.Second)
		if i := slices.Index(steps, Rekey); i < 0 || times[i] != time.Second {
			t.Errorf("with HealAfter: steps %v at %v", steps, times)
		}
		if steps, _ := search(new(Search), m, head, true, Nobody, time.Second); !slices.Equal(steps[:3], []Step{AskPeers, AskKeepers, Rekey}) {
			t.Errorf("without a peer: %v", steps)
		}
		if steps, _ := search(new(Search), m, head, false, Nobody, time.Minute); slices.Contains(steps, Rekey) {
			t.Error("one that the head's manifest does not admit moved the head")
		}
		other := head
		other.Seed = history.Salt{2}
		if steps, _ := search(new(Search), m, other, true, Nobody, time.Minute); slices.Contains(steps, Rekey) {
			t.Error("one that holds another seed moved the head")
		}
	})
	t.Run("another head", func(t *testing.T) {
		s, m := new(Search), recovering(at(5))
		search(s, m, head, true, Nothing, 9*time.Second)
		if step, _ := s.Next(9*time.Second, m, headNumber(7), true); step != AskPeers {
			t.Errorf("at a new head it begins with %v", step)
		}
		s.Ended(9*time.Second, AskPeers, Nothing)
		s.Ended(9*time.Second, AskKeepers, Nothing)
		if step, _ := s.Next(9*time.Second, m, headNumber(7), true); step != Wait {
			t.Errorf("it heals the new head at once: %v", step)
		}
	})
	t.Run("pushed", func(t *testing.T) {
		s := new(Search)
		search(s, empty, head, true, Nothing, 30*time.Second)
		now := 31 * time.Second
		s.Push(now)
		if step, _ := s.Next(now, empty, head, true); step != AskPeers {
			t.Errorf("a push led to %v", step)
		}
		s.Ended(now, AskPeers, Nothing)
		s.Ended(now, AskKeepers, Nothing)
		s.Next(now, empty, head, true)
		s.Push(now)
		if step, wait := s.Next(now, empty, head, true); step != Wait || wait > pushPause {
			t.Errorf("a flood of pushes led to %v, %v", step, wait)
		}
	})
	t.Run("jitter", func(t *testing.T) {
		for _, r := range []float64{0, 0.999} {
			s := &Search{Random: func() float64 { return r }}
			_, times := search(s, empty, head, true, Nothing, 3*time.Second)
			if p := times[2]; p > firstPause || p < firstPause/2 {
				t.Errorf("the first pause is %v", p)
			}
		}
	})
}
