package storeguard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
)

// numbers is a store that holds a head, and of everything else numbers alone.
type numbers struct {
	store.Store
	head    store.Entry
	rev     store.Revision
	applied map[string]store.Revision // by transaction
	down    error                     // what reads return
	refuses error                     // what writes return
	wrote   int                       // how many writes came
}

func (n *numbers) Get(_ context.Context, key string) (store.Entry, error) {
	if n.down != nil || key != history.HeadKey {
		return store.Entry{}, errors.Join(n.down, store.ErrNotFound)
	}
	return n.head, nil
}

func (n *numbers) List(context.Context, string) (store.Listing, error) {
	return store.Listing{Revision: n.rev}, n.down
}

func (n *numbers) Commit(_ context.Context, tx store.Tx) (store.Revision, error) {
	if rev, ok := n.applied[tx.ID]; ok && tx.ID != "" {
		return rev, nil
	}
	n.wrote++
	if n.refuses != nil {
		return 0, n.refuses
	}
	n.rev++
	n.applied[tx.ID] = n.rev
	return n.rev, nil
}

func (n *numbers) CompareAndSwap(
	ctx context.Context, key string, old store.Revision, value []byte,
) (store.Revision, error) {
	return n.Commit(ctx, store.SwapTx(key, old, value))
}

// desk is a guard with what it is asked about.
type desk struct {
	t     *testing.T
	disk  *durabletest.Disk
	fs    durable.FS
	dir   string
	store *numbers
	log   bytes.Buffer
	now   time.Time
	ready bool
	older error
	moved int // how often the head was to be looked at

	writing atomic.Pointer[func()] // called once, before a file is written
	lost    int                    // how often it was told of a loss

	*storeguard.Guard
	seen store.Store // as the guard sees it
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	disk := durabletest.NewDisk()
	d := newDeskOn(t, disk.FS(), "/data")
	d.disk = disk
	return d
}

// newDeskOn returns a desk whose guard keeps its files in a folder of another disk.
func newDeskOn(t *testing.T, fs durable.FS, dir string) *desk {
	t.Helper()
	d := &desk{
		t: t, dir: dir, now: time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC), ready: true,
		store: &numbers{
			head:    store.Entry{Key: history.HeadKey, Value: []byte("head"), Version: 7},
			rev:     100,
			applied: make(map[string]store.Revision),
		},
	}
	d.fs = tells{fs, d}
	if err := d.fs.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	d.start()
	return d
}

// tells is a file system that tells its desk of writes.
type tells struct {
	durable.FS
	d *desk
}

func (f tells) WriteFile(name string, data []byte) error {
	if call := f.d.writing.Swap(nil); call != nil {
		(*call)()
	}
	return f.FS.WriteFile(name, data)
}

// start makes the guard anew, as a start of the process does.
func (d *desk) start() {
	d.Guard = storeguard.New(storeguard.Config{
		Store: d.store, StoreName: "memory", Patience: time.Second, Unguarded: []string{"word/"},
		FS: d.fs, Dir: d.dir, Now: func() time.Time { return d.now },
		InForce:   func() (storeguard.Head, bool) { return d.head(), d.ready },
		OlderHead: func() error { return d.older },
		Moved:     func() { d.moved++ },
		Lost:      func() { d.lost++ },
		Log:       slog.New(slog.NewTextHandler(&d.log, nil)), Failures: ratelimit.NewLogSampler(),
	})
	d.Load()
	d.seen = d.Observe(d.store)
}

// head is the one in force.
func (d *desk) head() storeguard.Head { return storeguard.Head{Version: 7, Record: []byte("head")} }

// looks reads the store, as any call does.
func (d *desk) looks() {
	d.t.Helper()
	if _, err := d.seen.List(d.t.Context(), "member/"); err != nil {
		d.t.Fatal(err)
	}
}

// goesBack has the store show less than before, to a look.
func (d *desk) goesBack() {
	d.t.Helper()
	d.looks()
	d.store.rev -= 10
	d.looks()
}

func (d *desk) puts(key string) error {
	_, err := d.seen.Commit(d.t.Context(), store.Tx{Put: []store.Write{{Key: key}}})
	return err
}

// A store that shows a lower revision than before lost something. From then on everything
// that decides is refused before it reaches the store, however it is written; what is
// written whatever is lost, and the restore, are not.
func TestStoreWentBack(t *testing.T) {
	d := newDesk(t)
	d.goesBack()
	loss := d.Lost()
	if loss == nil || loss.Kind != health.Revision || loss.Was != 100 || loss.Is != 90 || !loss.At.Equal(d.now) {
		t.Fatalf("it lost %+v", loss)
	}
	wrote := d.store.wrote
	swap := func(ctx context.Context, key string) error {
		_, err := d.seen.CompareAndSwap(ctx, key, 1, nil)
		return err
	}
	remove := func(ctx context.Context, keys ...string) error {
		_, err := d.seen.Commit(ctx, store.Tx{Delete: keys})
		return err
	}
	for what, err := range map[string]error{
		"a write":           d.puts("member/a"),
		"a swap":            swap(t.Context(), "member/a"),
		"a removal":         remove(t.Context(), "member/a"),
		"one among words":   remove(t.Context(), "word/a", "member/a"),
		"a name as of them": d.puts("word"),
	} {
		if !errors.Is(err, errcode.StoreWentBack) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if d.store.wrote != wrote {
		t.Errorf("%d changes reached the store", d.store.wrote-wrote)
	}
	restore := storeguard.AsRestore(t.Context())
	for what, err := range map[string]error{
		"a word": d.puts("word/a"), "a word less": remove(t.Context(), "word/a"),
		"a swap of a restore": swap(restore, "member/a"), "a change of a restore": remove(restore, "member/a"),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := d.LostError(); !errors.Is(err, errcode.StoreWentBack) || !strings.Contains(err.Error(), "100") {
		t.Errorf("it says %v", err)
	}
	if !strings.HasPrefix(d.LostReason(), "the store went back: it ") {
		t.Errorf("it says %q", d.LostReason())
	}
	if f := d.LostFindings(); len(f) != 1 || f[0].GetCode() != string(errcode.StoreWentBack) ||
		strings.Contains(f[0].GetSummary()+f[0].GetRemedy(), "{") {
		t.Errorf("it finds %v", f)
	}

	d.Restored(1_800_000_000)
	if d.Lost() != nil || d.LostError() != nil || d.LostReason() != "" || d.LostFindings() != nil {
		t.Errorf("after a restore: %v", d.LostError())
	}
	if err := d.puts("member/a"); err != nil {
		t.Errorf("after a restore: %v", err)
	}
}

// An older head that the store shows is told in place of a loss, and is a finding of
// somebody else.
func TestOlderHeadIsToldFirst(t *testing.T) {
	d := newDesk(t)
	d.goesBack()
	d.older = errcode.New(errcode.HistoryInvalid, "cluster", "c", "index", "3", "problem", "it is older")
	if err := d.LostError(); !errors.Is(err, errcode.HistoryInvalid) {
		t.Errorf("it says %v", err)
	}
	if err := d.puts("member/a"); !errors.Is(err, errcode.HistoryInvalid) {
		t.Errorf("a change: %v", err)
	}
	if f := d.LostFindings(); f != nil {
		t.Errorf("it finds %v", f)
	}
}

// Nothing is lost under a head that the store does not show any more, however it seems:
// the head is looked at instead.
func TestAnotherHeadIsLookedAt(t *testing.T) {
	for name, change := range map[string]func(d *desk){
		"a later version": func(d *desk) { d.store.head.Version++ },
		"another record":  func(d *desk) { d.store.head.Value = []byte("other") },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			change(d)
			d.goesBack()
			if d.Lost() != nil || d.moved != 1 {
				t.Errorf("it lost %v, and the head was to be looked at %d times", d.Lost(), d.moved)
			}
			if err := d.puts("member/a"); err != nil {
				t.Errorf("a change: %v", err)
			}
		})
	}
	t.Run("a store that is down", func(t *testing.T) {
		d := newDesk(t)
		d.store.down = errors.New("down")
		if d.Missed(t.Context(), d.head(), &health.Loss{Kind: health.Ban}) || d.Lost() != nil || d.moved != 1 {
			t.Errorf("it lost %v, and the head was to be looked at %d times", d.Lost(), d.moved)
		}
	})
	t.Run("what is lost stays so", func(t *testing.T) {
		d := newDesk(t)
		d.goesBack()
		d.store.head.Version++
		if !d.Missed(t.Context(), d.head(), &health.Loss{Kind: health.Ban}) || d.moved != 0 {
			t.Errorf("it lost %v, and the head was to be looked at %d times", d.Lost(), d.moved)
		}
	})
}

// Compare tells a loss from another head, and compares nothing for a restore.
func TestCompare(t *testing.T) {
	trust := func(counter uint64) health.Seen {
		return health.Seen{Revision: 100, Trust: &health.Trust{Counter: counter, Version: counter}}
	}
	d := newDesk(t)
	if err := d.Compare(t.Context(), d.head(), d.Begin(), trust(5)); err != nil {
		t.Fatal(err)
	}
	began := d.Begin()
	if began.Trust == nil || began.Trust.Counter != 5 {
		t.Fatalf("it saw %+v", began)
	}
	if err := d.Compare(storeguard.AsRestore(t.Context()), d.head(), began, trust(4)); err != nil || d.Lost() != nil {
		t.Errorf("a restore: %v, %v is lost", err, d.Lost())
	}
	other := d.head()
	other.Version = 6
	err := d.Compare(t.Context(), other, began, trust(4))
	c, ok := errors.AsType[*store.ConflictError](err)
	if !ok || c.Key != history.HeadKey || c.Want != 6 || d.moved != 1 {
		t.Errorf("under another head: %v", err)
	}
	err = d.Compare(t.Context(), d.head(), began, trust(4))
	if !errors.Is(err, errcode.StoreWentBack) || d.Lost() == nil || d.Lost().Kind != health.Counter {
		t.Errorf("a trust state of before: %v, %v is lost", err, d.Lost())
	}
}

// A coordinator that is not ready takes no revision for evidence: the store may be that of
// another cluster.
func TestNotReadySeesNothing(t *testing.T) {
	d := newDesk(t)
	d.ready = false
	d.goesBack()
	if err := d.puts("member/a"); err != nil {
		t.Fatal(err)
	}
	if d.Revision() != 0 || d.Lost() != nil {
		t.Errorf("it saw revision %d, and lost %v", d.Revision(), d.Lost())
	}
}

// A transaction that is sent again, because its answer was lost, has the revision at which
// it was applied: that is no store that went back, whatever was written in between.
func TestTransactionSentAgainIsNoLoss(t *testing.T) {
	d := newDesk(t)
	again := store.Tx{ID: store.NewTxID(), Put: []store.Write{{Key: "member/a"}}}
	first, err := d.seen.Commit(t.Context(), again)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.puts("member/b"); err != nil {
		t.Fatal(err)
	}
	if seen := d.Revision(); seen != uint64(first)+1 {
		t.Fatalf("revision %d was seen, and the transaction is of %d", seen, first)
	}
	second, err := d.seen.Commit(t.Context(), again)
	if err != nil || second != first || d.Lost() != nil {
		t.Errorf("revision %d, first %d, %v, taken for lost: %v", second, first, err, d.Lost())
	}
}

// All that was seen outlasts the process, and so does what was lost, until a restore; a
// revision of before is found by the first look of the next process.
func TestSeenOutlastsTheProcess(t *testing.T) {
	d := newDesk(t)
	d.looks()
	d.SawBundle([]byte("signed"))
	if err := d.Compare(t.Context(), d.head(), d.Begin(),
		health.Seen{Revision: 100, Trust: &health.Trust{Counter: 5}}); err != nil {
		t.Fatal(err)
	}
	d.Keep(t.Context())
	d.start()
	if d.Revision() != 100 || string(d.Bundle()) != "signed" || d.Begin().Trust.Counter != 5 || d.Lost() != nil {
		t.Fatalf("after a restart it saw %d, %q, %+v", d.Revision(), d.Bundle(), d.Begin().Trust)
	}
	d.store.rev = 99
	d.looks()
	d.Keep(t.Context())
	d.start()
	if d.Lost() == nil || !strings.Contains(d.log.String(), "was not restored since") {
		t.Fatalf("after another one %v is lost; the log: %s", d.Lost(), &d.log)
	}
	d.Restored(1_800_000_000)
	d.Keep(t.Context())
	d.start()
	if d.Lost() != nil {
		t.Errorf("after a restore and a restart %v is lost", d.Lost())
	}
}

// A file that cannot be read is a fault, and is not written over: a person may restore it.
func TestDamagedSeenIsKept(t *testing.T) {
	for _, name := range []string{storeguard.StoreSeenFile, storeguard.TrustSeenFile} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.disk.Put("/data/"+name, []byte("{"))
			d.start()
			if err := d.Fault(); err == nil || !strings.Contains(err.Error(), "/data/"+name) {
				t.Fatalf("the fault: %v", err)
			}
			d.looks()
			d.Keep(t.Context())
			if raw, err := d.fs.ReadFile("/data/"+name, 10); string(raw) != "{" || err != nil {
				t.Errorf("there is %q now, %v", raw, err)
			}
			if err := d.fs.Remove("/data/" + name); err != nil {
				t.Fatal(err)
			}
			if d.start(); d.Fault() != nil {
				t.Errorf("without the file: %v", d.Fault())
			}
		})
	}
}

// A disk that takes nothing is told, and stops nothing: it is written once it does.
func TestFullDisk(t *testing.T) {
	d := newDesk(t)
	d.looks()
	d.SawBundle([]byte("signed"))
	d.disk.Refuse(errors.New("no space"))
	d.Keep(t.Context())
	if !strings.Contains(d.log.String(), "would not be noticed after a restart") {
		t.Errorf("the log: %s", &d.log)
	}
	told := func(since time.Time) {
		t.Helper()
		found, value := d.UnkeptFindings(), 0
		if !since.IsZero() {
			value = 1
		}
		if len(found) != value || value == 1 && (found[0].GetCode() != string(errcode.StoreUnrecorded) ||
			!strings.Contains(found[0].GetSummary(), "/data") || !strings.Contains(found[0].GetSummary(), "no space") ||
			!strings.Contains(found[0].GetSummary(), since.Format(time.RFC3339))) {
			t.Errorf("findings: %v", found)
		}
		reg := prometheus.NewRegistry()
		d.RegisterMetrics(reg)
		metric := fmt.Sprintf("# HELP fealty_store_seen_unwritten 1 while what was seen of the store is not written down, for want "+
			"of space or inodes: one that goes back would not be noticed after a restart.\n"+
			"# TYPE fealty_store_seen_unwritten gauge\nfealty_store_seen_unwritten %d\n", value)
		if err := testutil.GatherAndCompare(reg, strings.NewReader(metric), "fealty_store_seen_unwritten"); err != nil {
			t.Error(err)
		}
	}
	began := d.now
	d.now = d.now.Add(time.Hour)
	d.KeepHead(t.Context(), "head-seen.json", []byte("head"))
	told(began)
	d.disk.Refuse(nil)
	d.Keep(t.Context())
	told(time.Time{})
	if raw, err := d.fs.ReadFile("/data/head-seen.json", 10); string(raw) != "head" || err != nil {
		t.Errorf("the head that could not be written is %q now, %v", raw, err)
	}
	if d.start(); d.Revision() != 100 || string(d.Bundle()) != "signed" {
		t.Errorf("after a restart it saw revision %d and %q", d.Revision(), d.Bundle())
	}
}

// Each loss is told in the log and to whoever leads, also if it is found just when what was
// seen is being written down. In the end that is written down once more.
func TestEveryLossIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		ctx, cancel := context.WithCancel(t.Context())
		lose := func(i int) {
			d.Missed(ctx, d.head(), &health.Loss{Kind: health.Ban, What: fmt.Sprintf("data/%d.", i)})
		}
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		for i := range 4 {
			synctest.Wait() // it waits for a change, or for the time to write
			if i%2 == 0 {
				lose(i)
			} else {
				d.store.rev++
				d.looks()
				call := func() { lose(i) }
				d.writing.Store(&call)
				time.Sleep(time.Second)
			}
			synctest.Wait()
			if n := strings.Count(d.log.String(), fmt.Sprintf("data/%d.", i)); n != 1 || d.lost != i+1 {
				t.Errorf("the log tells loss %d %d times, and whoever leads was told of %d", i, n, d.lost)
			}
			d.Restored(uint64(i) + 1)
		}
		synctest.Wait()
		d.looks() // just before the end
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if d.start(); d.Revision() != uint64(d.store.rev) {
			t.Errorf("what was seen last is not written down: %d", d.Revision())
		}
	})
}

// A caller that waits for a store that is whole waits until its context ends.
func TestUntilWhole(t *testing.T) {
	d := newDesk(t)
	if err := d.UntilWhole(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.goesBack()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.UntilWhole(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it waited for %v", err)
	}
}

// A store that refuses writes is told in a word, a sentence, a finding and the log, for each
// reason that there is, and no longer than it lasts; a conflict is none.
func TestRefusing(t *testing.T) {
	for _, reason := range store.Reasons() {
		t.Run(storeguard.Word(reason), func(t *testing.T) {
			d := newDesk(t)
			d.store.refuses = store.ErrConflict
			if err := d.puts("member/a"); !errors.Is(err, store.ErrConflict) || d.Writes().Reason != 0 {
				t.Errorf("a conflict: %v, %v", err, d.Writes())
			}
			d.store.refuses = &store.RefusedError{Reason: reason, Err: errors.New("of /secret/path")}
			err := d.puts("member/a")
			if store.ReasonOf(err) != reason || d.Writes().Reason != reason || !d.Writes().Blocks() {
				t.Fatalf("a write: %v, %v", err, d.Writes())
			}
			code := errcode.StoreRefuses
			if reason == store.NoSpace {
				code = errcode.StoreFull
			}
			if worded := storeguard.Refusal("the write", err); !errors.Is(worded, code) ||
				strings.Contains(worded.Error(), "secret") {
				t.Errorf("it is worded %v", worded)
			}
			word, sentence := d.Refusing()
			if word == "" || word != storeguard.Word(reason) || !strings.Contains(sentence, "nothing else is changed") {
				t.Errorf("it says %q, %q", word, sentence)
			}
			f := d.RefusingFindings()
			if len(f) != 1 || f[0].GetCode() != string(code) || f[0].GetRemedy() == "" ||
				strings.Contains(f[0].GetSummary()+f[0].GetRemedy(), "{") ||
				!strings.Contains(f[0].GetSummary(), "every change since 2026-03-01T09:00:00Z") {
				t.Errorf("it finds %v", f)
			}

			d.store.refuses = nil
			d.now = d.now.Add(time.Second)
			if err := d.puts("member/a"); err != nil {
				t.Fatal(err)
			}
			if word, sentence := d.Refusing(); word != storeguard.Word(reason) ||
				strings.Contains(sentence, "nothing else") {
				t.Errorf("once it takes one it says %q, %q", word, sentence)
			}
			if f := d.RefusingFindings(); len(f) != 1 || !strings.Contains(f[0].GetSummary(),
				"some changes from 2026-03-01T09:00:00Z until 2026-03-01T09:00:00Z") ||
				!strings.Contains(f[0].GetSummary(), "since 2026-03-01T09:00:01Z it takes some") {
				t.Errorf("once it takes one it finds %v", f)
			}
			d.now = d.now.Add(health.WriteSettles + time.Second)
			if word, sentence := d.Refusing(); word+sentence != "" || d.RefusingFindings() != nil {
				t.Errorf("in the end it says %q, %q", word, sentence)
			}
			if err := d.puts("member/a"); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(d.log.String(), `msg="the store takes`); n != 2 {
				t.Errorf("the log tells of it %d times:\n%s", n, &d.log)
			}
		})
	}
	if err := storeguard.Refusal("the write", store.ErrConflict); err != nil {
		t.Errorf("a conflict is worded %v", err)
	}
}

// When the store last did not answer is known by whoever was not answered.
func TestSilent(t *testing.T) {
	d := newDesk(t)
	if !d.SilentAt().IsZero() {
		t.Errorf("it was silent at %v", d.SilentAt())
	}
	if d.Silent(); !d.SilentAt().Equal(d.now) {
		t.Errorf("it was silent at %v, and not at %v", d.SilentAt(), d.now)
	}
}
