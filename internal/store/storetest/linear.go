package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/conformance"
)

// The model of a store over a few keys. A commit is known by a number of its
// own, which is also the value that it writes; 0 is absence. Versions do not
// appear in the state, because the version of a commit with a lost answer is
// not known: instead a condition names the commit that wrote the version, and
// observed checks apart that versions and commits belong together.
const linearKeys = 3

type linearState struct {
	revision store.Revision // highest that is known to have been reached
	cells    [linearKeys]int
}

type linearCall struct {
	name    string           // get, list, commit
	key     int              // of a get
	number  int              // of a commit
	want    map[int]int      // conditions of a commit: key → commit that wrote it
	puts    [linearKeys]bool // of a commit
	deletes [linearKeys]bool
}

type linearAnswer struct {
	cells    [linearKeys]int // of a list; of a get, in the place of its key
	revision store.Revision  // of a list or a commit
	conflict bool
	unknown  bool
}

var linearModel = porcupine.Model{
	Init: func() any { return linearState{} },
	Step: func(state, input, output any) (bool, any) {
		s, call, answer := state.(linearState), input.(linearCall), output.(linearAnswer)
		switch call.name {
		case "get":
			return answer.cells[call.key] == s.cells[call.key], s
		case "list":
			if answer.cells != s.cells || answer.revision < s.revision {
				return false, s
			}
			s.revision = answer.revision
			return true, s
		}
		holds := true
		for key, number := range call.want {
			holds = holds && s.cells[key] == number
		}
		switch {
		case answer.conflict:
			return !holds, s
		case !holds:
			// A commit without an answer may have met a conflict.
			return answer.unknown, s
		case !answer.unknown && answer.revision <= s.revision:
			return false, s // revision order is commit order
		}
		for key := range linearKeys {
			if call.puts[key] {
				s.cells[key] = call.number
			}
			if call.deletes[key] {
				s.cells[key] = 0
			}
		}
		if !answer.unknown {
			s.revision = answer.revision
		}
		return true, s
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}

// observed collects which commit wrote which version.
type observed struct {
	mu       sync.Mutex
	versions map[store.Revision]int // guarded by mu
	commits  map[int]store.Revision // guarded by mu
	wrong    string                 // first contradiction; guarded by mu
}

func (o *observed) add(version store.Revision, number int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, seen := o.versions[version]
	v, known := o.commits[number]
	if seen && n != number || known && v != version {
		o.wrong = fmt.Sprintf("version %d is of commit %d, and of %d at version %d", version, number, n, v)
	}
	o.versions[version], o.commits[number] = number, version
}

// linearClient makes random calls and records them.
type linearClient struct {
	id     int
	s      store.Store
	prefix string
	rng    *rand.Rand
	start  time.Time
	seen   *observed
	number func() int // of the next commit
	last   [linearKeys]struct {
		version store.Revision
		number  int
	}
	history []porcupine.Operation
}

func (c *linearClient) key(k int) string { return fmt.Sprintf("%s%d", c.prefix, k) }

// note takes what was read of a key.
func (c *linearClient) note(k int, e store.Entry) int {
	number := 0
	if e.Version != 0 {
		if _, err := fmt.Sscan(string(e.Value), &number); err != nil {
			number = -1 // a value that nobody wrote
		}
		c.seen.add(e.Version, number)
	}
	c.last[k].version, c.last[k].number = e.Version, number
	return number
}

func (c *linearClient) step(ctx context.Context) error {
	op := porcupine.Operation{ClientId: c.id}
	var answer linearAnswer
	var err error
	record := func(call linearCall) {
		op.Input, op.Output = call, answer
		op.Return = int64(time.Since(c.start))
		if answer.unknown {
			op.Return = math.MaxInt64 // it may happen until the end of time
		}
		c.history = append(c.history, op)
	}
	op.Call = int64(time.Since(c.start))
	switch n := c.rng.IntN(10); {
	case n < 3:
		k := c.rng.IntN(linearKeys)
		var e store.Entry
		e, err = c.s.Get(ctx, c.key(k))
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return ignoreLost(err) // a read without an answer says nothing
		}
		answer.cells[k] = c.note(k, e)
		record(linearCall{name: "get", key: k})
		return nil
	case n < 5:
		var l store.Listing
		l, err = c.s.List(ctx, c.prefix)
		if err != nil {
			return ignoreLost(err)
		}
		answer.revision = l.Revision
		var entries [linearKeys]store.Entry
		for _, e := range l.Entries {
			entries[e.Key[len(e.Key)-1]-'0'] = e
		}
		for k, e := range entries {
			answer.cells[k] = c.note(k, e)
		}
		record(linearCall{name: "list"})
		return nil
	}

	call := linearCall{name: "commit", number: c.number(), want: map[int]int{}}
	tx := store.Tx{ID: store.NewTxID()}
	value := fmt.Append(nil, call.number)
	for k := range linearKeys {
		switch c.rng.IntN(5) {
		case 0, 1:
			call.puts[k] = true
			tx.Put = append(tx.Put, store.Write{Key: c.key(k), Value: value})
		case 2:
			call.deletes[k] = true
			tx.Delete = append(tx.Delete, c.key(k))
		}
		if c.rng.IntN(3) == 0 {
			call.want[k] = c.last[k].number
			tx.If = append(tx.If, store.Condition{Key: c.key(k), Version: c.last[k].version})
		}
	}
	if len(tx.Put)+len(tx.Delete) == 0 {
		call.puts[0] = true
		tx.Put = []store.Write{{Key: c.key(0), Value: value}}
	}
	callCtx, cancel := ctx, context.CancelFunc(func() {})
	if c.rng.IntN(8) == 0 {
		callCtx, cancel = context.WithTimeout(ctx, time.Duration(c.rng.IntN(2000))*time.Microsecond)
	}
	answer.revision, err = c.s.Commit(callCtx, tx)
	cancel()
	if errors.Is(err, store.ErrUnknownOutcome) && c.rng.IntN(2) == 0 {
		// Resolve it, as long as it takes. Or never: then it stays in doubt.
		for {
			answer.revision, err = c.s.Outcome(ctx, tx.ID)
			if err == nil || errors.Is(err, store.ErrNotFound) {
				break
			}
			if ignoreLost(err) != nil {
				return err
			}
		}
	}
	switch {
	case err == nil:
		c.seen.add(answer.revision, call.number)
	case errors.Is(err, store.ErrConflict):
		answer.conflict = true
	case errors.Is(err, store.ErrUnknownOutcome):
		answer.unknown = true
	case errors.Is(err, store.ErrNotFound), errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return nil // certainly not applied: it has no place in the history
	default:
		return err
	}
	record(call)
	return nil
}

func ignoreLost(err error) error {
	if errors.Is(err, conformance.ErrLost) {
		return nil
	}
	return err
}

// linearClients is how many clients make calls.
const linearClients = 5

// testLinearizable makes random calls from many sides over connections that
// lose requests and answers and deliver late, and asks for one order of all
// calls that explains every answer.
func testLinearizable(t *testing.T, e Engine) {
	const rounds, clients, steps = 25, linearClients, 14
	rng := random(t)
	all := handles(t, e, clients)
	unknown, total := 0, 0
	for round := range rounds {
		var mu sync.Mutex
		commits := 0 // guarded by mu
		number := func() int {
			mu.Lock()
			defer mu.Unlock()
			commits++
			return commits
		}
		seen := &observed{versions: map[store.Revision]int{}, commits: map[int]store.Revision{}}
		start := time.Now()
		var cs []*linearClient
		var wrappers []*Wrapper
		for i, s := range all {
			w := NewLossy(s)
			fates := rand.New(rand.NewPCG(rng.Uint64(), 1))
			w.SetFates(func(string) Fate {
				switch fates.IntN(20) {
				case 0:
					return LoseAnswer
				case 1:
					return LoseRequest
				case 2:
					return Delay
				}
				return Pass
			})
			wrappers = append(wrappers, w)
			cs = append(cs, &linearClient{
				id: i, s: w, prefix: fmt.Sprintf("linear/%d/", round), rng: rand.New(rand.NewPCG(rng.Uint64(), 2)),
				start: start, seen: seen, number: number,
			})
		}
		ctx := limited(t)
		var wg sync.WaitGroup
		for i, c := range cs {
			wg.Go(func() {
				for range steps {
					if err := c.step(ctx); err != nil {
						t.Errorf("client %d: %v", c.id, err)
						return
					}
					if c.rng.IntN(4) == 0 {
						wrappers[(i+1)%clients].Deliver(ctx)
					}
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		if seen.wrong != "" {
			t.Fatalf("round %d: %s", round, seen.wrong)
		}
		var history []porcupine.Operation
		for _, c := range cs {
			for _, op := range c.history {
				if op.Output.(linearAnswer).unknown {
					// Its client goes on, so it needs a line of its own.
					unknown++
					op.ClientId = clients + unknown
				}
				history = append(history, op)
				total++
			}
		}
		if got := porcupine.CheckOperationsTimeout(linearModel, history, patience); got != porcupine.Ok {
			for _, op := range history {
				t.Logf("client %d %9d–%9d %s", op.ClientId, op.Call, op.Return, linearModel.DescribeOperation(op.Input, op.Output))
			}
			t.Fatalf("round %d: history of %d calls is %v", round, len(history), got)
		}
	}
	t.Logf("%d calls in %d rounds, %d of them without an answer", total, rounds, unknown)
}
