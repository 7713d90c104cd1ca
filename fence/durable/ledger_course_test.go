package durable_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
)

// course is a receiver whose disk fails, and the same receiver without a disk, which never
// does: that is the model.
type course struct {
	t      *rapid.T
	disk   *durabletest.Disk
	ledger *durable.Ledger
	model  *fence.Ledger
	signs  func(domain, holder string, ownership uint64) fence.Verified[fence.Assignment]

	// unknown is what failed last: it is on the disk, or it is not.
	unknown func(*fence.Ledger)

	admitted map[string]bool
	owner    map[string]fence.Assigned // promised, and acknowledged
	newest   map[string]fence.Epoch    // obeyed, and acknowledged
}

// However often the disk fails, the power goes and the receiver is started
// again: a token that was admitted is admitted never again, no mark goes down, and after a
// promise nothing below it is admitted. The ledger holds all that was acknowledged, and
// perhaps the one call that failed; and it knows how many bytes of its file that needs.
func TestLedgerCourse(t *testing.T) {
	a := newAuthority(t)
	assignments := make(map[string]fence.Verified[fence.Assignment])
	rapid.Check(t, func(rt *rapid.T) {
		x := &course{t: rt, disk: newDisk(t), model: fence.NewLedger(lenient), admitted: make(map[string]bool),
			owner: make(map[string]fence.Assigned), newest: make(map[string]fence.Epoch),
			signs: func(domain, holder string, ownership uint64) fence.Verified[fence.Assignment] {
				name := fmt.Sprint(domain, holder, ownership)
				if _, ok := assignments[name]; !ok {
					assignments[name] = a.assign(t, domain, holder, ownership, 1)
				}
				return assignments[name]
			}}
		x.ledger = enrolled(t, x.disk, lenient)
		durable.SetSlack(x.ledger, 400) // it is written anew now and then
		rt.Repeat(map[string]func(*rapid.T){
			"admit":       func(*rapid.T) { x.admit() },
			"admit again": func(*rapid.T) { x.admit() },
			"promise":     func(*rapid.T) { x.promise() },
			"forget":      func(*rapid.T) { x.forget() },
			"disk fails": func(*rapid.T) {
				x.disk.FailAt(rapid.IntRange(1, 7).Draw(rt, "call"), rapid.SampledFrom([]error{durabletest.ErrPowerCut, syscall.EIO,
					syscall.ENOSPC}).Draw(rt, "fault"))
			},
			"rewrite": func(*rapid.T) {
				switch err := x.ledger.Rewrite(rt.Context()); {
				case err == nil:
					x.unknown = nil // what failed is not in it
				case x.ledger.Status().Broken == nil && x.ledger.Status().Rewriting == nil:
					rt.Fatalf("it could not be written anew, and says nothing: %v", err)
				}
			},
			"power cut": func(*rapid.T) { x.restart() },
			"": func(*rapid.T) {
				if is := dump(durable.Memory(x.ledger)); !same(is, dump(x.model)) {
					rt.Fatalf("it shows %v, want %v", is, dump(x.model))
				}
				if live, needed := x.ledger.Status().Live, durable.Needed(x.ledger); live != needed {
					rt.Fatalf("it says that it needs %d bytes, and needs %d", live, needed)
				}
			},
		})
	})
}

func (x *course) admit() {
	n := rapid.Uint32Range(1, 3).Draw(x.t, "life")
	holder := rapid.SampledFrom([]string{"s1", "s2"}).Draw(x.t, "holder")
	resource := rapid.SampledFrom([]string{"d-1", "d-2", "e-1", "alone"}).Draw(x.t, "resource")
	c := life(holder, 0, n).claim(resource, rapid.Uint64Range(1, 9).Draw(x.t, "sequence"))
	if domain, _, ok := strings.Cut(resource, "-"); ok {
		c = inside(c, domain, rapid.Uint64Range(0, 4).Draw(x.t, "ownership"))
	}
	change, modelErr := x.model.Check(c)
	err := x.ledger.Admit(x.t.Context(), c)
	switch {
	case err == nil:
		token := fmt.Sprint(c.Holder, c.Resource, c.Token.Epoch, c.Token.Sequence)
		if x.admitted[token] {
			x.t.Fatalf("%s was admitted twice", token)
		}
		x.admitted[token] = true
		if c.Token.Epoch < x.newest[holder] {
			x.t.Fatalf("epoch %v was admitted after %v", c.Token.Epoch, x.newest[holder])
		}
		x.newest[holder] = c.Token.Epoch
		if owner := x.owner[c.Domain]; c.Domain != "" && (owner.Ownership != c.Token.Ownership || owner.Holder != holder) {
			x.t.Fatalf("%s acted in %s under ownership %d, and %v is promised", holder, c.Domain, c.Token.Ownership, owner)
		}
		if err := x.model.Admit(c); err != nil {
			x.t.Fatalf("it admitted what the model refuses: %v", err)
		}
	case errors.Is(err, fence.ErrRefused):
		if reasonOf(err) != reasonOf(modelErr) {
			x.t.Fatalf("%v, and the model says %v", err, modelErr)
		}
	default:
		x.failed(err, func(l *fence.Ledger) { l.Set(change) })
	}
}

func (x *course) promise() {
	domain, holder := rapid.SampledFrom([]string{"d", "e"}).Draw(x.t, "domain"), rapid.SampledFrom([]string{"s1", "s2", ""}).Draw(x.t, "holder")
	v := x.signs(domain, holder, rapid.Uint64Range(1, 4).Draw(x.t, "ownership"))
	change, modelErr := x.model.CheckPromise(v)
	switch err := x.ledger.Promise(x.t.Context(), v); {
	case err == nil:
		if err := x.model.Promise(v); err != nil {
			x.t.Fatalf("it promised what the model refuses: %v", err)
		}
		x.owner[domain] = x.model.Promised(domain)
	case errors.Is(err, fence.ErrRefused):
		if reasonOf(err) != reasonOf(modelErr) {
			x.t.Fatalf("%v, and the model says %v", err, modelErr)
		}
	default:
		x.failed(err, func(l *fence.Ledger) { l.Set(change) })
	}
}

func (x *course) forget() {
	resource := rapid.SampledFrom([]string{"d-1", "e-1", "alone"}).Draw(x.t, "resource")
	if err := x.ledger.Forget(x.t.Context(), resource); err != nil {
		x.failed(err, func(l *fence.Ledger) { l.Forget(resource) })
		return
	}
	x.model.Forget(resource)
}

// failed notes the call that broke the ledger, or came after one that did: the ledger can
// break after an answer, too, when it is written anew. Those after it reach no disk.
func (x *course) failed(err error, change func(*fence.Ledger)) {
	if !errors.Is(err, durable.ErrBroken) {
		x.t.Fatal(err)
	}
	if x.unknown == nil {
		x.unknown = change
	}
}

// restart cuts the power. Of what was not synced there is left what chance says.
func (x *course) restart() {
	broken := x.ledger.Status().Broken != nil
	names := rapid.Bool().Draw(x.t, "names")
	kept, zeros := rapid.IntRange(0, 300).Draw(x.t, "kept"), rapid.Bool().Draw(x.t, "zeros")
	x.disk.RestartWith(names, func(_ string, unsynced []byte) []byte {
		left := unsynced[:min(kept, len(unsynced))]
		if zeros {
			left = append(left[:len(left):len(left)], make([]byte, len(unsynced)-len(left))...)
		}
		return left
	})
	var err error
	if x.ledger, err = durable.OpenLedgerOn(x.disk.FS(), "/r", lenient); err != nil {
		x.t.Fatal(err)
	}
	durable.SetSlack(x.ledger, 400)
	is := dump(durable.Memory(x.ledger))
	if !same(is, dump(x.model)) && broken && x.unknown != nil {
		x.unknown(x.model)
	}
	if !same(is, dump(x.model)) {
		x.t.Fatalf("it holds %v, want %v", is, dump(x.model))
	}
	x.unknown = nil
	for _, domain := range []string{"d", "e"} {
		x.owner[domain] = x.ledger.Promised(domain) // one that failed may have come
	}
}

// The model of the histories below is two holders' newest lives, the marks of two
// resources, and who owns the domain of one of them.
type told struct {
	admit               bool // or a promise
	holder, resource    string
	life                uint32
	sequence, ownership uint64
	assignee            string
	claim               fence.Claim
	assignment          fence.Verified[fence.Assignment]
}

type believed struct {
	lives    [2]uint32
	marks    [2][2]uint64 // life<<32 | sequence, by holder and resource
	promised uint64
	owner    string
}

var holdersOf, resourcesOf = []string{"s1", "s2"}, []string{"alone", "d-1"}

func index(of []string, s string) int {
	if of[0] == s {
		return 0
	}
	return 1
}

var oneAfterTheOther = porcupine.Model{
	Init: func() any { return believed{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, reason := state.(believed), input.(told), output.(fence.Reason)
		if !in.admit {
			switch {
			case in.ownership < s.promised:
				return reason == fence.ReasonMoved, s
			case in.ownership == s.promised && in.assignee != s.owner:
				return reason == fence.ReasonOwner, s
			}
			s.promised, s.owner = in.ownership, in.assignee
			return reason == "", s
		}
		h, r := index(holdersOf, in.holder), index(resourcesOf, in.resource)
		mark := uint64(in.life)<<32 | in.sequence
		switch {
		case in.life < s.lives[h]:
			return reason == fence.ReasonStale, s
		case r == 1 && (s.promised == 0 || in.ownership > s.promised):
			return reason == fence.ReasonUnpromised, s
		case r == 1 && in.ownership < s.promised:
			return reason == fence.ReasonMoved, s
		case r == 1 && in.holder != s.owner:
			return reason == fence.ReasonOwner, s
		case mark == s.marks[h][r]:
			return reason == fence.ReasonDuplicate, s
		case mark < s.marks[h][r]:
			return reason == fence.ReasonStale, s
		}
		s.lives[h], s.marks[h][r] = in.life, mark
		return reason == "", s
	},
}

// Calls that come at once are answered as if they had come one after the other: a batch
// decides nothing that its own parts would have changed. That holds for a ledger without a
// disk, too.
func TestLedgerIsLinearizable(t *testing.T) {
	a := newAuthority(t)
	const workers, calls, rounds = 6, 6, 120
	for round := range rounds {
		var l fence.Marks = enrolled(t, newDisk(t), lenient)
		if round%2 == 1 {
			l = fence.InMemory(fence.NewLedger(lenient))
		}
		random := rand.New(rand.NewPCG(uint64(round), 1))
		var inputs [workers][calls]told
		for w := range inputs {
			for i := range inputs[w] {
				in := told{admit: random.IntN(5) > 0, holder: holdersOf[random.IntN(2)], resource: resourcesOf[random.IntN(2)],
					life: 1 + random.Uint32N(2), sequence: 1 + random.Uint64N(4), ownership: 1 + random.Uint64N(2)}
				in.assignee = holdersOf[random.IntN(2)]
				if in.admit {
					in.claim = life(in.holder, 0, in.life).claim(in.resource, in.sequence)
					if in.resource == "d-1" {
						in.claim = inside(in.claim, "d", in.ownership)
					}
				} else {
					in.assignment = a.assign(t, "d", in.assignee, in.ownership, 1)
				}
				inputs[w][i] = in
			}
		}
		began := time.Now()
		var mu sync.Mutex
		var history []porcupine.Operation
		var wait sync.WaitGroup
		for w := range inputs {
			wait.Go(func() {
				for _, in := range inputs[w] {
					op := porcupine.Operation{ClientId: w, Input: in, Call: int64(time.Since(began))}
					var err error
					if in.admit {
						err = l.Admit(t.Context(), in.claim)
					} else {
						err = l.Promise(t.Context(), in.assignment)
					}
					op.Output, op.Return = reasonOf(err), int64(time.Since(began))
					mu.Lock()
					history = append(history, op)
					mu.Unlock()
				}
			})
		}
		wait.Wait()
		if got := porcupine.CheckOperationsTimeout(oneAfterTheOther, history, time.Minute); got != porcupine.Ok {
			for _, op := range history {
				in := op.Input.(told)
				t.Logf("%d..%d %v %s %s life %d sequence %d ownership %d to %s: %q", op.Call, op.Return, in.admit, in.holder, in.resource,
					in.life, in.sequence, in.ownership, in.assignee, op.Output)
			}
			t.Fatalf("round %d: %v", round, got)
		}
	}
}

// Processes that race for one directory admit each token once: whoever has the directory
// knows what the others admitted.
func TestTwoReceivers(t *testing.T) {
	if dir := os.Getenv("FEALTY_TEST_LEDGER"); dir != "" {
		beReceiver(dir)
		return
	}
	dir := t.TempDir()
	l, err := durable.EnrolLedger(dir, lenient)
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	const processes = 3
	var out [processes]bytes.Buffer
	var running [processes]*exec.Cmd
	for i := range running {
		cmd := exec.Command(os.Args[0], "-test.run=^TestTwoReceivers$")
		cmd.Env = append(os.Environ(), "FEALTY_TEST_LEDGER="+dir)
		cmd.Stdout, cmd.Stderr = &out[i], os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running[i] = cmd
	}
	seen := make(map[string]int)
	for i, cmd := range running {
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v\n%s", i, err, out[i].String())
		}
		for lines := bufio.NewScanner(&out[i]); lines.Scan(); {
			if token, ok := strings.CutPrefix(lines.Text(), "admitted "); ok {
				seen[token]++
			}
		}
	}
	for token, n := range maps.All(seen) {
		if n != 1 {
			t.Errorf("%s was admitted %d times", token, n)
		}
	}
	if len(seen) == 0 || seen[fmt.Sprint(tokens)] != 1 {
		t.Errorf("%d tokens were admitted, and the last one %d times", len(seen), seen[fmt.Sprint(tokens)])
	}
}

const tokens = 30

// beReceiver is offered tokens whenever nobody else has the directory.
func beReceiver(dir string) {
	p := life("s1", 0, 1)
	for n := uint64(1); n <= tokens; {
		l, err := durable.OpenLedger(dir, lenient)
		if errors.Is(err, durable.ErrLocked) {
			continue
		}
		for end := n + 3; err == nil && n < end; n++ {
			if err = l.Admit(context.Background(), p.claim("m", n)); err == nil {
				fmt.Println("admitted", n)
			} else if errors.Is(err, fence.ErrRefused) {
				err = nil
			}
		}
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// FuzzReadLedger reads what may stand in a file: it is refused, or holds what a ledger may
// hold, and takes no more room than its bytes.
func FuzzReadLedger(f *testing.F) {
	disk := newDisk(f)
	l := enrolled(f, disk, lenient)
	for n := range uint64(3) {
		if err := l.Admit(f.Context(), life("s1", 0, 1).claim(fmt.Sprint("m-", n), n+1)); err != nil {
			f.Fatal(err)
		}
	}
	if err := l.Forget(f.Context(), "m-1"); err != nil {
		f.Fatal(err)
	}
	data, err := disk.FS().ReadFile("/r/ledger", 1<<20)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data, []byte(nil), 0)
	f.Add(data[:len(data)-3], []byte("FLog"), 40)
	f.Add([]byte(nil), data[60:], 0)
	f.Fuzz(func(t *testing.T, file, frame []byte, cut int) {
		// A frame with this body, whose checksums are right: what only its writer can do.
		if cut > 0 && cut < len(file) {
			file = durable.WithFrame(file[:cut], frame)
		} else if len(frame) > 0 {
			file = durable.WithFrame(nil, frame)
		}
		memory := fence.NewLedger(lenient)
		if err := durable.ReadLedger(bytes.NewReader(file), memory); err != nil {
			return
		}
		for c := range memory.All() {
			if c.Mark.Sequence == 0 && c.Process.Epoch == 0 && c.Assigned.Ownership == 0 && c.Pair.Holder == "" {
				t.Errorf("it holds %v", c)
			}
		}
	})
}
