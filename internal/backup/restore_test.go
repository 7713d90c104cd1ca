package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

var restoredAt = time.Unix(1_800_000_600, 0).UTC()

// plan returns what is planned for file, and a reader of it.
func (c *cluster) plan(t testing.TB, file []byte) (*backup.Intent, *backup.Reader) {
	t.Helper()
	found, err := backup.Check(bytes.NewReader(file), c.identities())
	if err != nil {
		t.Fatal(err)
	}
	plan, err := backup.Plan(found, restoredAt, "the database is gone")
	if err != nil {
		t.Fatal(err)
	}
	return plan, c.open(t, file)
}

func (c *cluster) open(t testing.TB, file []byte) *backup.Reader {
	t.Helper()
	r, err := backup.Open(bytes.NewReader(file), c.identities())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// restoredWhole compares a store with the backup.
func (c *cluster) restoredWhole(t *testing.T, st store.Store, plan *backup.Intent) {
	t.Helper()
	l, err := st.List(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	have := make(map[string]string)
	for _, e := range l.Entries {
		have[e.Key] = string(e.Value)
		if e.Version <= plan.Floor {
			t.Errorf("%s has version %d, the floor is %d", e.Key, e.Version, plan.Floor)
		}
	}
	for _, e := range c.entries {
		if have[e.Key] != string(e.Value) {
			t.Errorf("%s is %.20q, want %.20q", e.Key, have[e.Key], e.Value)
		}
	}
	if n := len(have) - len(c.entries); n != 1 {
		t.Errorf("%d entries more than the backup, want the intent", n)
	}
	intent, _, err := backup.ReadIntent(context.Background(), st)
	if err != nil || !intent.Whole || intent.Trailer != plan.Trailer || intent.Index != plan.Index || intent.AuthorityEpoch != plan.AuthorityEpoch {
		t.Errorf("the intent is %+v, %v", intent, err)
	}
}

func TestRestore(t *testing.T) {
	c, ctx := newCluster(t), context.Background()
	file := c.backup(t)
	plan, r := c.plan(t, file)
	if plan.Index < uint64(restoredAt.Unix()) || plan.AuthorityEpoch < uint64(restoredAt.Unix()) || uint64(plan.Floor) < uint64(restoredAt.Unix()) || plan.Floor <= c.header.Revision {
		t.Fatalf("planned %+v", plan)
	}
	st := storetest.NewMemory(0).Open()
	if _, err := backup.Restore(ctx, st, plan, r, nil); err != nil {
		t.Fatal(err)
	}
	c.restoredWhole(t, st, plan)
	// Again, with a signature: it is added, and nothing else happens.
	signed := *plan
	signed.Signatures = []history.Signature{{Key: manifest.Key(c.header.TransactionKey)}}
	before, _ := st.List(ctx, "member/")
	for range 2 {
		got, err := backup.Restore(ctx, st, &signed, c.open(t, file), nil)
		if err != nil || len(got.Signatures) != 1 {
			t.Fatalf("signed: %+v, %v", got, err)
		}
	}
	after, _ := st.List(ctx, "member/")
	for i := range before.Entries {
		if before.Entries[i].Version != after.Entries[i].Version {
			t.Errorf("%s was written again", before.Entries[i].Key)
		}
	}
	intent, _, err := backup.ReadIntent(ctx, st)
	if err != nil || len(intent.Signatures) != 1 {
		t.Errorf("the intent has %+v, %v", intent, err)
	}
}

// seen is a store that tells what is committed to it.
type seen struct {
	store.Store
	store.Raiser
	tell func(store.Tx)
}

func (s seen) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	s.tell(tx)
	return s.Store.Commit(ctx, tx)
}

// TestRestoreIsCut: entries come in transactions that every engine takes as they are, and a value that
// no such transaction takes comes alone. Backups of older releases have such values.
func TestRestoreIsCut(t *testing.T) {
	c := newCluster(t)
	add := func(name string, n, size int) {
		for i := range n {
			c.entries = append(c.entries, store.Entry{Key: fmt.Sprintf("z/%s/%04d", name, i), Value: bytes.Repeat([]byte{byte(i)}, size)})
		}
	}
	add("a", 2*store.CutOps, 100)
	add("b", 9, 300<<10)
	add("c", 2, store.MaxValueBytes)
	add("d", 5, 1)
	plan, r := c.plan(t, c.backup(t))
	inner := storetest.NewMemory(0).Open()
	commits, alone := 0, 0
	st := seen{inner, inner.(store.Raiser), func(tx store.Tx) {
		commits++
		switch n := len(tx.If) + len(tx.Put) + len(tx.Delete); {
		case n <= store.CutOps && tx.Size() <= store.CutBytes:
		case len(tx.Put) == 1:
			alone++
		default:
			t.Errorf("a transaction of %d operations and %d bytes", n, tx.Size())
		}
	}}
	if _, err := backup.Restore(t.Context(), st, plan, r, nil); err != nil {
		t.Fatal(err)
	}
	c.restoredWhole(t, inner, plan)
	if alone != 2 || commits > 14 {
		t.Errorf("%d transactions, %d of them of one large value", commits, alone)
	}
}

// TestRestoreCutOff fails at every step of a restore, each in a store of its own: what
// is there then is nobody's history, and the next try makes it whole.
func TestRestoreCutOff(t *testing.T) {
	c, ctx := newCluster(t), context.Background()
	for i := range 900 {
		c.entries = append(c.entries, store.Entry{Key: fmt.Sprintf("zone/%04d", i), Value: []byte("x")})
	}
	file := c.backup(t)
	crash := errors.New("crash")
	for _, point := range []string{"restore.after-raise", "restore.after-intent", "restore.after-batch", "restore.before-head", "restore.after-head"} {
		t.Run(point, func(t *testing.T) {
			plan, r := c.plan(t, file)
			st, faults := storetest.NewMemory(0).Open(), new(failpoint.Points)
			faults.FailNext(point, 1, crash)
			if _, err := backup.Restore(ctx, st, plan, r, faults); !errors.Is(err, crash) {
				t.Fatalf("it did not fail: %v", err)
			}
			_, _, headErr := history.New(st).Head(ctx)
			if visible := headErr == nil; visible != (point == "restore.after-head") {
				t.Errorf("a history is there: %v", visible)
			}
			// A restore that goes on plans for later, and the first plan stays where there
			// is one.
			again, r := c.plan(t, file)
			if point != "restore.after-raise" {
				again.Index += 1000
			}
			if _, err := backup.Restore(ctx, st, again, r, faults); err != nil {
				t.Fatal(err)
			}
			c.restoredWhole(t, st, plan)
		})
	}
}

// TestRestoreRefused walks the stores and files into which nothing is restored.
func TestRestoreRefused(t *testing.T) {
	c, other, ctx := newCluster(t), newCluster(t), context.Background()
	file := c.backup(t)
	begun := func(of *cluster, point string) store.Store {
		st, faults := storetest.NewMemory(0).Open(), new(failpoint.Points)
		if point != "" {
			faults.FailNext(point, 1, errors.New("crash"))
		}
		plan, r := of.plan(t, of.backup(t))
		_, _ = backup.Restore(ctx, st, plan, r, faults)
		return st
	}
	with := func(st store.Store, key string) store.Store {
		if _, err := st.CompareAndSwap(ctx, key, 0, []byte("x")); err != nil {
			t.Fatal(err)
		}
		return st
	}
	empty := func() store.Store { return storetest.NewMemory(0).Open() }
	for _, row := range []struct {
		name string
		st   store.Store
		file []byte
		want error
	}{
		{"a store with one entry", with(empty(), "replica/x"), file, backup.ErrOccupied},
		{"a store with another cluster", with(empty(), history.HeadKey), file, backup.ErrOccupied},
		{"another restore that was cut off", begun(other, "restore.after-intent"), file, backup.ErrOtherRestore},
		{"another restore", begun(other, ""), file, backup.ErrOtherRestore},
		{"somebody else wrote while it was cut off", with(begun(c, "restore.after-batch"), "member/data/evil"), file, backup.ErrOccupied},
		{"a head came meanwhile", with(begun(c, "restore.after-batch"), history.HeadKey), file, backup.ErrOccupied},
		{"an intent of a newer release", with(empty(), backup.IntentKey), file, backup.ErrVersion},
		{"an engine that cannot be raised", struct{ store.Store }{empty()}, file, backup.ErrNoFloor},
		{"a file that is cut", empty(), file[:len(file)-1], backup.ErrCut},
		{"another backup than was planned for", empty(), c.write(t, c.header, c.entries[:len(c.entries)-1], c.transaction), backup.ErrAltered},
	} {
		t.Run(row.name, func(t *testing.T) {
			plan, r := c.plan(t, file)
			var err error
			if !bytes.Equal(row.file, file) {
				r, err = backup.Open(bytes.NewReader(row.file), c.identities())
			}
			if err == nil {
				_, err = backup.Restore(ctx, row.st, plan, r, nil)
			}
			if !errors.Is(err, row.want) {
				t.Fatalf("got %v, want %v", err, row.want)
			}
			intent, _, _ := backup.ReadIntent(ctx, row.st)
			if row.want != nil && !errors.Is(row.want, backup.ErrOtherRestore) && intent != nil && intent.Whole {
				t.Error("and the store is a cluster's")
			}
		})
	}
	found, err := backup.Check(bytes.NewReader(file), c.identities())
	if err != nil {
		t.Fatal(err)
	}
	later := begun(c, "restore.after-batch")
	plan, err := backup.Plan(found, restoredAt.Add(time.Second), "")
	if err != nil {
		t.Fatal(err)
	}
	plan.Signatures = []history.Signature{{Key: manifest.Key(c.header.TransactionKey)}}
	if _, err := backup.Restore(ctx, later, plan, c.open(t, file), nil); !errors.Is(err, backup.ErrOtherRestore) {
		t.Errorf("signatures for other clocks than the restore was begun with: %v", err)
	}
	if have, _, err := backup.ReadIntent(ctx, later); err != nil || len(have.Signatures) > 0 || have.Ahead(plan) || !plan.Ahead(have) {
		t.Errorf("they are in the store: %+v, %v", have, err)
	}
	if _, err := backup.Plan(found, c.header.CreatedAt.Add(-time.Hour), ""); !errors.Is(err, backup.ErrClockBehind) {
		t.Errorf("with a clock that is behind: %v", err)
	}
}

// TestRestoreUnknown loses the answer of each write in turn.
func TestRestoreUnknown(t *testing.T) {
	c, ctx := newCluster(t), context.Background()
	file := c.backup(t)
	for n := range 3 {
		inner := storetest.NewMemory(0).Open()
		lossy, commits := storetest.NewLossy(inner), 0
		lossy.SetFates(func(call string) storetest.Fate {
			if call != "Commit" {
				return storetest.Pass
			}
			commits++
			if commits == n+1 {
				return storetest.LoseAnswer
			}
			return storetest.Pass
		})
		plan, r := c.plan(t, file)
		st := struct {
			store.Store
			store.Raiser
		}{lossy, inner.(store.Raiser)}
		if _, err := backup.Restore(ctx, st, plan, r, nil); err != nil {
			t.Fatalf("answer %d lost: %v", n, err)
		}
		if commits <= n {
			t.Fatalf("%d commits: none was lost", commits)
		}
		c.restoredWhole(t, inner, plan)
	}
}

func TestIntentForm(t *testing.T) {
	c := newCluster(t)
	plan, _ := c.plan(t, c.backup(t))
	plan.Signatures = []history.Signature{{Key: manifest.Key(c.header.TransactionKey), Signature: [64]byte{2}}}
	raw, err := plan.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := backup.DecodeIntent(raw)
	if err != nil {
		t.Fatal(err)
	}
	if raw2, err := again.Encode(); err != nil || !bytes.Equal(raw, raw2) {
		t.Fatalf("%s and again %s, %v", raw, raw2, err)
	}
	for name, bad := range map[string][]byte{
		"newer": bytes.Replace(raw, []byte("restore/v1"), []byte("restore/v2"), 1), "more": bytes.Replace(raw, []byte(`{"schema"`), []byte(`{"x":1,"schema"`), 1),
		"of another header": altered(t, plan, func(i *backup.Intent) { i.Header.Revision++ }), "of another end": altered(t, plan, func(i *backup.Intent) { i.Trailer.Header[0]++ }),
		"cut": raw[:len(raw)-2], "huge": []byte(strings.Repeat(" ", 1<<17)),
	} {
		if _, err := backup.DecodeIntent(bad); err == nil || !named(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// An intent of 64 KiB is read; one byte more is refused for its size, and not read.
	padded := func(n int) []byte { return append(slices.Clone(raw), bytes.Repeat([]byte(" "), n-len(raw))...) }
	if _, err := backup.DecodeIntent(padded(64 << 10)); err != nil {
		t.Errorf("as large as may be: %v", err)
	}
	if _, err := backup.DecodeIntent(padded(64<<10 + 1)); !errors.Is(err, backup.ErrAltered) || !strings.Contains(err.Error(), "at most 65536") {
		t.Errorf("too large: %v", err)
	}
}

// altered returns the bytes of i after a change.
func altered(t *testing.T, i *backup.Intent, change func(i *backup.Intent)) []byte {
	t.Helper()
	o := *i
	change(&o)
	raw, err := o.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
