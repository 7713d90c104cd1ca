package buffer_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/audit/buffer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/test/logs"
	"github.com/fealty-io/fealty/test/testlane"
)

// answer is what becomes of a commit.
type answer int

const (
	given      answer = iota
	refused           // nothing is written, and the store says so
	late              // it is written, and nobody hears of it until somebody asks again
	lost              // it is not written, and nobody hears of it until somebody asks again
	neverHeard        // it is written, and nobody can ask what became of it
	neverKnew         // it is not written, and nobody can ask what became of it
)

// ledger is a store that holds what transactions put, each applied once by its ID.
type ledger struct {
	store.Store
	entries map[string]store.Entry
	applied map[string]store.Revision // by ID; 0: it never will be
	rev     store.Revision
	next    answer // of the next commit
	sees    func(store.Tx)
	silent  bool // nobody can ask what became of a commit
}

func (l *ledger) Commit(_ context.Context, tx store.Tx) (store.Revision, error) {
	if l.sees != nil {
		l.sees(tx)
	}
	how := l.next
	l.next, l.silent = given, how == neverHeard || how == neverKnew
	if how == refused {
		return 0, store.ErrFull
	}
	if how == lost || how == neverKnew {
		return 0, store.ErrUnknownOutcome
	}
	rev, err := l.apply(tx)
	if how != given && err == nil {
		err = store.ErrUnknownOutcome
	}
	return rev, err
}

func (l *ledger) apply(tx store.Tx) (store.Revision, error) {
	if rev, ok := l.applied[tx.ID]; ok && tx.ID != "" {
		if rev == 0 {
			return 0, store.ErrVoided
		}
		return rev, nil
	}
	for _, i := range tx.If {
		if i.Key != history.HeadKey && l.entries[i.Key].Version != i.Version {
			return 0, &store.ConflictError{Key: i.Key, Want: i.Version}
		}
	}
	l.rev++
	for _, w := range tx.Put {
		l.entries[w.Key] = store.Entry{Key: w.Key, Value: w.Value, Version: l.rev}
	}
	l.applied[tx.ID] = l.rev
	return l.rev, nil
}

func (l *ledger) Outcome(_ context.Context, id string) (store.Revision, error) {
	if l.silent {
		return 0, errors.New("it does not answer")
	}
	if rev := l.applied[id]; rev != 0 {
		return rev, nil
	}
	l.applied[id] = 0
	return 0, store.ErrNotFound
}

// told returns the entries that are in the log, in the order in which they were written.
func (l *ledger) told(t *testing.T) (out []*auditlog.Entry) {
	t.Helper()
	written := slices.SortedFunc(maps.Values(l.entries), func(a, b store.Entry) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), strings.Compare(a.Key, b.Key))
	})
	for _, w := range written {
		if !strings.HasPrefix(w.Key, auditlog.ChainPrefix) {
			continue
		}
		e, err := auditlog.Decode(w.Key, w.Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// desk is a queue over a ledger.
type desk struct {
	t     *testing.T
	store *ledger
	log   logs.Text
	now   time.Time
	*buffer.Queue
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, now: time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC), store: &ledger{
		entries: make(map[string]store.Entry), applied: make(map[string]store.Revision),
	}}
	d.Queue = buffer.New(buffer.Config{
		Store: d.store, Now: func() time.Time { return d.now }, Log: d.log.Logger(slog.LevelInfo),
	})
	if err := d.Open("0123456789abcdef"); err != nil {
		t.Fatal(err)
	}
	return d
}

// adds queues an entry.
func (d *desk) adds(target string) {
	d.Add(record.AuditEntry{At: d.now, Actor: "a", Action: "test.queued", Target: target})
}

// changes commits a change with entries, whose answer the next one of the store is.
func (d *desk) changes(targets ...string) (*record.Change, error) {
	ch := record.Records{Store: d.store, Audit: d.Places()}.LockedChange(1)
	for _, target := range targets {
		ch.Audit(d.now, record.AuditEntry{Actor: "a", Action: "test.changed", Target: target})
	}
	_, err := ch.Commit(d.t.Context())
	return ch, err
}

// drains writes all that waits.
func (d *desk) drains() {
	d.t.Helper()
	d.store.silent = false
	if err := d.Write(d.t.Context()); err != nil || d.Waiting() != 0 {
		d.t.Fatalf("%d wait, %v", d.Waiting(), err)
	}
}

// Entries are written once and in their order, whatever becomes of the answers of the store,
// and so are those of changes of which nobody knows whether they were made.
func TestWrittenOnce(t *testing.T) {
	random := mathrand.New(mathrand.NewPCG(testlane.Seed(t), 1))
	d := newDesk(t)
	queued, sure, maybe := []string(nil), map[string]bool{}, map[string]bool{}
	for step := range 2000 {
		target := fmt.Sprint("target ", step)
		switch random.IntN(4) {
		case 0, 1:
			d.adds(target)
			queued, sure[target] = append(queued, target), true
		case 2:
			d.store.next = answer(random.IntN(int(neverKnew) + 1))
			ch, err := d.changes(target, target+" too")
			switch {
			case err == nil:
				sure[target], sure[target+" too"] = true, true
			case errors.Is(err, store.ErrUnknownOutcome) && random.IntN(4) == 0:
				maybe[target], maybe[target+" too"] = true, true
			default:
				d.Again(ch)
				sure[target], sure[target+" too"] = true, true
			}
		case 3:
			d.store.next = answer(random.IntN(int(neverKnew) + 1))
			_ = d.Write(t.Context())
		}
		d.store.next = given
	}
	d.drains()
	told, order := map[string]int{}, []string(nil)
	for _, e := range d.store.told(t) {
		told[e.Target]++
		if e.Action == "test.queued" {
			order = append(order, e.Target)
		}
	}
	for target, n := range told {
		if n != 1 || !sure[target] && !maybe[target] {
			t.Errorf("%s is told %d times", target, n)
		}
	}
	for target := range sure {
		if told[target] == 0 {
			t.Errorf("%s is not told", target)
		}
	}
	if !slices.Equal(order, queued) {
		t.Error("they are told in another order than that in which they were queued")
	}
}

// A batch whose answer was lost may be there: what is written after it takes neither its
// place nor its entries once more, and if it is not there it is told after all, however long the
// store says nothing.
func TestAnswerLost(t *testing.T) {
	for name, tc := range map[string]struct {
		answer answer
		want   []string
	}{
		"and it was written":                         {late, []string{"first", "second"}},
		"and it was not written":                     {lost, []string{"first", "second"}},
		"for long, and it was written":               {neverHeard, []string{"first", "second"}},
		"for long, and it was not written after all": {neverKnew, []string{"second", "first"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.adds("first")
			d.store.next = tc.answer
			if err := d.Write(t.Context()); !errors.Is(err, store.ErrUnknownOutcome) {
				t.Fatal(err)
			}
			for range 3 { // while the store says nothing of it nothing else is written
				if err := d.Write(t.Context()); d.store.silent != (err != nil) || d.store.silent != (d.Waiting() > 0) {
					t.Fatalf("%d wait, %v", d.Waiting(), err)
				}
			}
			if _, err := d.changes("second"); err != nil {
				t.Fatal(err)
			}
			d.drains()
			var told []string
			for _, e := range d.store.told(t) {
				told = append(told, e.Target)
			}
			if !slices.Equal(told, tc.want) {
				t.Errorf("the log tells %q", told)
			}
		})
	}
}

// Of a change nothing is queued but its entries, whatever is known of it, and they
// keep their places if they may be there.
func TestAgainMakesNoChange(t *testing.T) {
	for name, how := range map[string]answer{
		"it was refused": refused, "it was not made, as is found later": lost, "it was made, as is found later": late,
		"it was made": neverHeard, "it was not made": neverKnew,
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			ch := record.Records{Store: d.store, Audit: d.Places()}.LockedChange(1)
			ch.Tx.Put = append(ch.Tx.Put, store.Write{Key: "member/a", Value: []byte("x")})
			ch.Audit(d.now, record.AuditEntry{Actor: "a", Action: "test.changed", Target: "target"})
			d.store.next = how
			if _, err := ch.Commit(t.Context()); err == nil {
				d.store.silent = false
				return // it was asked for, and is made
			}
			d.store.silent = false
			_, made := d.store.entries["member/a"]
			d.Again(ch)
			if d.Waiting() != 1 {
				t.Errorf("%d wait", d.Waiting())
			}
			d.drains()
			if told := d.store.told(t); len(told) != 1 || told[0].Target != "target" {
				t.Errorf("the log tells %v", told)
			}
			if _, ok := d.store.entries["member/a"]; ok != made {
				t.Errorf("the change was made: %v, and is made now: %v", made, ok)
			}
		})
	}
}

// Entries that wait are cut into transactions by what they take, however long they are.
func TestQueueIsCut(t *testing.T) {
	d := newDesk(t)
	var want []string
	add := func(n, bytes int) {
		for range n {
			target := fmt.Sprint(len(want))
			want = append(want, target)
			d.Add(record.AuditEntry{At: d.now, Actor: "a", Action: "test.queued", Target: target,
				Fields: map[string]string{"long": strings.Repeat("x", bytes)}})
		}
	}
	add(3*store.CutOps, 10)
	add(12, 250<<10)
	add(30, 10)
	commits := 0
	d.store.sees = func(tx store.Tx) {
		commits++
		if n := len(tx.If) + len(tx.Put) + len(tx.Delete); n > store.CutOps || tx.Size() > store.CutBytes {
			t.Errorf("a transaction of %d operations and %d bytes", n, tx.Size())
		}
	}
	d.drains()
	var got []string
	for _, e := range d.store.told(t) {
		got = append(got, e.Target)
	}
	if !slices.Equal(got, want) {
		t.Errorf("written was %v", got)
	}
	if commits > 8 {
		t.Errorf("it took %d transactions", commits)
	}
}

// Entries that do not fit are counted, and the count is written once.
func TestBounded(t *testing.T) {
	d := newDesk(t)
	for i := range buffer.MaxWaiting + 7 {
		d.adds(fmt.Sprint(i))
	}
	d.store.next = refused
	if err := d.Write(t.Context()); !errors.Is(err, store.ErrFull) || d.Waiting() != buffer.MaxWaiting {
		t.Fatalf("without a store: %v, %d wait", err, d.Waiting())
	}
	d.store.next = late // written, and nobody heard
	if err := d.Write(t.Context()); !errors.Is(err, store.ErrUnknownOutcome) {
		t.Fatalf("of a lost answer it says %v", err)
	}
	d.drains()
	queued, dropped := 0, []string(nil)
	for _, e := range d.store.told(t) {
		switch e.Action {
		case "test.queued":
			if e.Target != fmt.Sprint(queued) {
				t.Fatalf("after %d comes %s", queued, e.Target)
			}
			queued++
		case "audit.dropped":
			dropped = append(dropped, e.Fields["entries"])
		}
	}
	if queued != buffer.MaxWaiting || !slices.Equal(dropped, []string{"7"}) {
		t.Errorf("%d entries, and %v are told as dropped", queued, dropped)
	}

	// The place of a change whose answer was lost counts as one.
	for i := range buffer.MaxWaiting {
		d.adds(fmt.Sprint(i))
	}
	d.store.next = neverHeard
	ch, err := d.changes("target", "target too")
	if !errors.Is(err, store.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	if d.Again(ch); d.Waiting() != buffer.MaxWaiting {
		t.Errorf("%d wait", d.Waiting())
	}
}

// An entry is in the log of the process at once, and in the store within seconds of when it
// takes one; what keeps it is told.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		ctx, cancel := context.WithCancel(t.Context())
		d.adds("target")
		if !strings.Contains(d.log.String(), "audit entry waits for the store") {
			t.Errorf("the log: %s", &d.log)
		}
		d.store.next = refused
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if d.Waiting() != 1 || !strings.Contains(d.log.String(), "queued audit entries are not written yet") {
			t.Errorf("%d wait; the log: %s", d.Waiting(), &d.log)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if d.Waiting() != 0 || len(d.store.told(t)) != 1 {
			t.Errorf("%d wait, and %d are told", d.Waiting(), len(d.store.told(t)))
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// A process that has no key has no chains.
func TestOpenNeedsAName(t *testing.T) {
	if err := buffer.New(buffer.Config{}).Open("somebody"); err == nil {
		t.Error("chains begin under any name")
	}
}
