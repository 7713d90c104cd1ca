//go:build linux

package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/storetest"
	"github.com/fealty-io/fealty/internal/store/storetest/proxytest"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// impatient finds out soon that nobody answers. A server of a busy machine is to be heard all the same.
var impatient = etcd.Options{Timeout: 2 * time.Second, Heartbeat: 200 * time.Millisecond, Log: slog.New(slog.DiscardHandler)}

// TestLinearizableWhileKilled records random calls while servers are killed and
// started again: the only one, and one of three.
func TestLinearizableWhileKilled(t *testing.T) {
	testlane.Nightly(t)
	for _, members := range []int{1, 3} {
		t.Run(fmt.Sprintf("one of %d", members), func(t *testing.T) {
			c := etcdtest.New(t, etcdtest.Options{Members: members})
			url := c.URL(c.Prefix())
			open := func(t testing.TB) store.Store { return openAt(t, url, impatient) }
			storetest.LinearizableWhileBroken(t, open, func(time int) error {
				m := c.Members[time%members]
				stop := m.Kill
				if time%4 == 3 {
					stop = m.Stop
				}
				return errors.Join(stop(), m.Start())
			})
		})
	}
}

// TestLostCommit loses a commit, or the answer to it, in each way. Another
// connection tells what became of it, so that nobody notices; and it happened once.
func TestLostCommit(t *testing.T) {
	prefix := server.Prefix()
	p := proxytest.New(t, server.Members[0].Addr())
	patient := impatient // a large commit of a busy machine takes its time
	patient.Timeout = 4 * time.Second
	s := openAt(t, server.URLVia(p.Addr(), prefix), patient)
	direct := openAt(t, server.URL(prefix), etcd.Options{})
	for _, large := range []bool{false, true} {
		for _, fate := range []proxytest.Fate{proxytest.LoseAnswer, proxytest.LoseRequest, proxytest.LoseBoth, proxytest.CutAfter, proxytest.CutBefore} {
			t.Run(fmt.Sprintf("large %v fate %d", large, fate), func(t *testing.T) {
				before := mustCommit(t, s, put("warm", "x"))
				mark := fmt.Sprintf("mark %v %d", large, fate)
				tx := put("k", mark)
				tx.ID = store.NewTxID()
				trigger := []byte(mark)
				if large {
					tx.Put = append(tx.Put, store.Write{Key: "large", Value: bytes.Repeat([]byte("x"), 3<<20)})
					trigger = []byte(`"pending":{"stage":`) // which decides it
				}
				p.When(0, trigger, fate)
				r, err := s.Commit(t.Context(), tx)
				if p.Pending() {
					t.Fatal("nothing was lost")
				}
				if err != nil {
					t.Fatalf("Commit: %v", err)
				}
				again, err := direct.Commit(t.Context(), tx)
				if err != nil || again != r {
					t.Fatalf("Commit again: %d, %v, want %d", again, err, r)
				}
				last := mustCommit(t, direct, put("after", "x"))
				for c, err := range direct.Changes(t.Context(), "k", before) {
					if err != nil {
						t.Fatal(err)
					}
					if c.Revision != r || len(c.Put) != 1 || string(c.Put[0].Value) != mark {
						t.Fatalf("change %+v, want %q at %d", c, mark, r)
					}
					break
				}
				if e, err := direct.Get(t.Context(), "k"); err != nil || e.Version != r || last <= r {
					t.Fatalf("Get: %d, %v, want %d", e.Version, err, r)
				}
			})
		}
	}
}

// TestNobodyAnswers: a commit that nobody can settle is in doubt, and its outcome
// is known and final once somebody answers again.
func TestNobodyAnswers(t *testing.T) {
	prefix := server.Prefix()
	p := proxytest.New(t, server.Members[0].Addr())
	s := openAt(t, server.URLVia(p.Addr(), prefix), impatient)
	direct := openAt(t, server.URL(prefix), etcd.Options{})
	for _, arrives := range []bool{true, false} {
		mustCommit(t, s, put("warm", "x"))
		mark := fmt.Sprintf("mark %v", arrives)
		tx := put("k", mark)
		tx.ID = store.NewTxID()
		fate := proxytest.LoseBoth
		if arrives {
			fate = proxytest.LoseAnswer
		}
		p.AloneWhen(0, []byte(mark), fate)
		c := s.Begin(t.Context(), tx)
		wait.Until(t, "the commit", func() bool { return !p.Pending() })
		if arrives {
			wait.Until(t, "its arrival", func() bool { e, _ := direct.Get(t.Context(), "k"); return string(e.Value) == mark })
		}
		p.BlackHole()
		if _, err := c.Wait(); !errors.Is(err, store.ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Commit: %v, want ErrUnknownOutcome and no word of the caller's deadline", err)
		}
		// A commit that did not begin is not in doubt.
		if _, err := s.Commit(t.Context(), put("k", "never")); err == nil || errors.Is(err, store.ErrUnknownOutcome) {
			t.Fatalf("Commit to nobody: %v", err)
		}
		p.Heal()
		_, err := direct.Outcome(t.Context(), tx.ID)
		if (err == nil) != arrives || err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("Outcome: %v; it arrived: %v", err, arrives)
		}
		wait.Until(t, "the server", func() bool { _, err := s.Get(t.Context(), "warm"); return err == nil })
		if _, err := s.Commit(t.Context(), tx); (err == nil) != arrives || err != nil && !errors.Is(err, store.ErrVoided) {
			t.Fatalf("Commit again: %v; it arrived: %v", err, arrives)
		}
	}
}

// TestSilentMember: a member that swallows everything, and one that is stopped,
// send neither events nor errors. A watcher that follows through them hears all the same.
func TestSilentMember(t *testing.T) {
	testlane.Nightly(t)
	c := etcdtest.New(t, etcdtest.Options{Members: 3})
	prefix := c.Prefix()
	other := openAt(t, c.URLVia(c.Members[2].Addr(), prefix), etcd.Options{})
	p := proxytest.New(t, c.Members[0].Addr())
	for _, silence := range []struct {
		name     string
		via      string
		on, over func() error
	}{
		{"swallowed", p.Addr() + "," + c.Members[2].Addr(), func() error { p.BlackHole(); return nil }, func() error { p.Heal(); return nil }},
		{"stopped", c.Members[1].Addr() + "," + c.Members[2].Addr(), c.Members[1].Pause, c.Members[1].Resume},
	} {
		t.Run(silence.name, func(t *testing.T) {
			s := openAt(t, c.URLVia(silence.via, prefix), impatient)
			mustCommit(t, other, put("k", "before"))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			entries, changes := make(chan string), make(chan string)
			var following sync.WaitGroup
			defer following.Wait()
			defer cancel()
			following.Go(func() {
				for ctx.Err() == nil {
					// A watch may end with an error, such as while no member leads.
					for e, err := range s.Watch(ctx, "k") {
						if err != nil {
							break
						}
						select {
						case entries <- string(e.Value):
						case <-ctx.Done():
							return
						}
					}
				}
			})
			at := mustList(t, s)
			following.Go(func() {
				for ctx.Err() == nil {
					for c, err := range s.Changes(ctx, "k", at) {
						if err != nil {
							break
						}
						at = c.Revision
						for _, e := range c.Put {
							select {
							case changes <- string(e.Value):
							case <-ctx.Done():
								return
							}
						}
					}
				}
			})
			hear := func(want string) {
				t.Helper()
				for _, from := range []chan string{entries, changes} {
					for got := ""; got != want; {
						select {
						case got = <-from:
						case <-ctx.Done():
							t.Fatalf("%q was not heard", want)
						}
					}
				}
			}
			// Now both wait, and nothing else is under way: nobody but the follower can
			// notice.
			mustCommit(t, other, put("k", "heard"))
			hear("heard")
			// A read of theirs would notice, too.
			wait.Until(t, "them to wait", func() bool { return silence.via[:len(p.Addr())] != p.Addr() || p.Quiet() > 50*time.Millisecond })
			if err := silence.on(); err != nil {
				t.Fatal(err)
			}
			wait.Until(t, "a commit past the silent member", func() bool { _, err := other.Commit(ctx, put("k", "after")); return err == nil })
			hear("after") // while the member is silent still
			if err := silence.over(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func mustList(t testing.TB, s store.Store) store.Revision {
	t.Helper()
	l, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return l.Revision
}

// TestCompacted: somebody compacts etcd all the time, up to its newest revision.
// Nobody notices.
func TestCompacted(t *testing.T) {
	prefix := server.Prefix()
	url := server.URL(prefix)
	kv := pb.NewKVClient(server.Conn(t))
	open := func(t testing.TB) store.Store { return openAt(t, url, etcd.Options{}) }
	storetest.LinearizableWhileBroken(t, open, func(int) error {
		for range 200 {
			now, err := kv.Range(context.Background(), &pb.RangeRequest{Key: []byte("k")})
			if err != nil {
				return err
			}
			// That someone else was there first is no failure.
			_, _ = kv.Compact(context.Background(), &pb.CompactionRequest{Revision: now.Header.Revision, Physical: false})
		}
		return nil
	})
	// A listing of several pages, and its values that stand apart, are of one moment.
	s := openAt(t, url, etcd.Options{})
	for i := range 3 {
		tx := store.Tx{}
		for k := range 250 {
			tx.Put = append(tx.Put, store.Write{Key: fmt.Sprintf("page/%d/%03d", i, k), Value: bytes.Repeat([]byte("x"), 5<<10)})
		}
		mustCommit(t, s, tx)
	}
	p := proxytest.New(t, server.Members[0].Addr())
	via := openAt(t, server.URLVia(p.Addr(), prefix), etcd.Options{})
	p.When(0, []byte("page/0/199\x00"), proxytest.Hold) // where the second page begins
	listed := make(chan error, 1)
	go func() {
		l, err := via.List(t.Context(), "page/")
		if err == nil && len(l.Entries) != 750 {
			err = fmt.Errorf("%d entries", len(l.Entries))
		}
		listed <- err
	}()
	wait.Until(t, "the second page", func() bool { return !p.Pending() })
	now, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("elsewhere")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Compact(t.Context(), &pb.CompactionRequest{Revision: now.Header.Revision}); err != nil {
		t.Fatal(err)
	}
	p.Release()
	if err := <-listed; err != nil {
		t.Fatalf("List: %v", err)
	}
	// The log is the store's own.
	last := mustList(t, s)
	for c, err := range s.Changes(t.Context(), "", 0) {
		if err != nil {
			t.Fatalf("Changes: %v", err)
		}
		if c.Revision >= last-1 {
			break
		}
	}
}

// TestHalfMoved: a large commit was decided, and then its writer is cut off. Others
// see all of it, wherever it stands, and the next who commits moves the rest.
func TestHalfMoved(t *testing.T) {
	prefix := server.Prefix()
	p := proxytest.New(t, server.Members[0].Addr())
	patient := impatient // its steps are many, and a busy machine must not end them before the cut
	patient.Timeout = 10 * time.Second
	s := openAt(t, server.URLVia(p.Addr(), prefix), patient)
	direct := openAt(t, server.URL(prefix), etcd.Options{})
	mustCommit(t, s, store.Tx{Put: []store.Write{{Key: "a", Value: []byte("old")}, {Key: "m/gone"}, {Key: "z", Value: bytes.Repeat([]byte("o"), 10<<10)}}})
	before := mustList(t, s)
	large := store.Tx{ID: "large", Delete: []string{"m/gone", "m/never"}}
	for i := range 900 {
		large.Put = append(large.Put, store.Write{Key: fmt.Sprintf("m/%03d", i), Value: bytes.Repeat([]byte("n"), 5<<10)})
	}
	large.Put = append(large.Put, store.Write{Key: "a", Value: []byte("new")}, store.Write{Key: "z", Value: []byte("new")})
	// After some steps: the first is the entry of m/000, which is then read again.
	p.AloneWhen(0, []byte(prefix+"/e/m/300"+"\x12"), proxytest.CutBefore)
	c := s.Begin(t.Context(), large)
	wait.Until(t, "the middle of the move", func() bool { return !p.Pending() })
	r, err := c.Wait()
	if err != nil {
		t.Fatalf("Commit: %v, though it was decided", err)
	}
	raw := readAll(t, prefix)
	if !strings.Contains(raw["head"], `"pending"`) || raw["e/m/000"] == "" || raw["e/m/899"] != "" {
		t.Fatalf("it is not in the middle: head %s, %d keys", raw["head"], len(raw))
	}
	check := func(t *testing.T) {
		t.Helper()
		l, err := direct.List(t.Context(), "")
		if err != nil || len(l.Entries) != 902 || l.Revision < r {
			t.Fatalf("List: %d entries at %d, %v", len(l.Entries), l.Revision, err)
		}
		for _, e := range l.Entries {
			want := "new"
			if strings.HasPrefix(e.Key, "m/") {
				want = strings.Repeat("n", 5<<10)
			}
			if e.Version != r || string(e.Value) != want {
				t.Fatalf("List: %s at %d, %d bytes", e.Key, e.Version, len(e.Value))
			}
		}
		for key, want := range map[string]string{"a": "new", "z": "new", "m/899": strings.Repeat("n", 5<<10)} {
			if e, err := direct.Get(t.Context(), key); err != nil || e.Version != r || string(e.Value) != want {
				t.Fatalf("Get(%s): %d, %v", key, e.Version, err)
			}
		}
		if _, err := direct.Get(t.Context(), "m/gone"); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("Get of what was deleted: %v", err)
		}
		for c, err := range direct.Changes(t.Context(), "", before) {
			if err != nil || c.Revision != r || len(c.Put) != 902 || fmt.Sprint(c.Delete) != "[m/gone]" {
				t.Fatalf("Changes: %d puts, deletes %v at %d, %v", len(c.Put), c.Delete, c.Revision, err)
			}
			break
		}
	}
	check(t)
	// Outcome writes, so it moves the rest.
	if got, err := direct.Outcome(t.Context(), "large"); err != nil || got != r {
		t.Fatalf("Outcome: %d, %v, want %d", got, err, r)
	}
	raw = readAll(t, prefix)
	if strings.Contains(raw["head"], `"pending"`) || raw["e/m/899"] == "" {
		t.Fatal("it was not moved")
	}
	for k := range raw {
		if strings.HasPrefix(k, "s/") {
			t.Fatalf("%s is still there", k)
		}
	}
	check(t)
	p.Heal()
	mustAgain := func() bool { _, err := s.Commit(t.Context(), put("back", "x")); return err == nil }
	wait.Until(t, "the first writer", mustAgain)
	direct.Get(t.Context(), "back")
}

// TestHalfMovedLeavesNothing: the writer is cut off right before or after the step that
// replaces an entry whose value stands apart, and of which there is no log any more.
// That value goes all the same.
func TestHalfMovedLeavesNothing(t *testing.T) {
	testlane.Nightly(t)
	prefix := server.Prefix()
	o := impatient
	o.RetainCommits = 8
	p := proxytest.New(t, server.Members[0].Addr())
	s := openAt(t, server.URLVia(p.Addr(), prefix), o)
	for _, last := range []bool{false, true} {
		direct := openAt(t, server.URL(prefix), o)
		old := mustCommit(t, direct, store.Tx{Put: []store.Write{{Key: "x", Value: bytes.Repeat([]byte("o"), 10<<10)}}})
		wait.Until(t, "its log to go", func() bool {
			mustCommit(t, direct, put("tick", "tock"))
			return readAll(t, prefix)[fmt.Sprintf("l/%016x/0000", uint64(old))] == ""
		})
		var large store.Tx
		n := etcd.UsableOps - 2 // and the two that are about x end the first step
		if last {
			n++ // the second of them begins the next one
		}
		for i := range n {
			large.Put = append(large.Put, store.Write{Key: fmt.Sprintf("m/%03d", i)})
		}
		large.Put = append(large.Put, store.Write{Key: "x", Value: []byte("new")})
		next := uint64(mustList(t, direct)) + 1
		// Nobody else is there who would move the rest before it is looked at.
		if err := direct.Close(); err != nil {
			t.Fatal(err)
		}
		// With a value after it: the follower names this key too, as the end of what it reads.
		p.AloneWhen(0, fmt.Appendf(nil, "%s/l/%016x/0000\x12", prefix, next), proxytest.CutBefore)
		c := s.Begin(t.Context(), large)
		wait.Until(t, "the last step", func() bool { return !p.Pending() })
		if _, err := c.Wait(); err != nil {
			t.Fatalf("Commit: %v, though it was decided", err)
		}
		if raw := readAll(t, prefix); !strings.Contains(raw["head"], `"pending"`) || raw["e/m/000"] == "" {
			t.Fatalf("it is not in the middle: head %s", raw["head"])
		}
		direct = openAt(t, server.URL(prefix), o)
		mustCommit(t, direct, put("tick", "tock")) // which moves the rest
		for k := range readAll(t, prefix) {
			if strings.HasPrefix(k, "b/") {
				t.Errorf("cut after all but %v: %s is still there", last, k)
			}
		}
		p.Heal()
		wait.Until(t, "the first writer", func() bool { _, err := s.Commit(t.Context(), put("back", "x")); return err == nil })
	}
}

// readAll reads what is in etcd under a prefix.
func readAll(t testing.TB, prefix string) map[string]string {
	t.Helper()
	kv := pb.NewKVClient(server.Conn(t))
	out := map[string]string{}
	for from := prefix + "/"; ; {
		page, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(prefix + "0"), Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Kvs {
			out[strings.TrimPrefix(string(e.Key), prefix+"/")] = string(e.Value)
			from = string(e.Key) + "\x00"
		}
		if !page.More {
			return out
		}
	}
}

// TestNothingLeft: what nobody needs any more goes, and nothing else does: values
// that stand apart go with the last who needs them, entry or log.
func TestNothingLeft(t *testing.T) {
	prefix := server.Prefix()
	o := etcd.Options{RetainCommits: 8}
	s := openAt(t, server.URL(prefix), o)
	long := func(seed, n int) []byte { return bytes.Repeat([]byte{byte('a' + seed%26)}, n) }
	want := map[string][]byte{}
	write := func(key string, value []byte) store.Write {
		want[key] = value
		return store.Write{Key: key, Value: value}
	}
	mustCommit(t, s, store.Tx{Put: []store.Write{write("kept", long(0, 600<<10)), write("kept/small", []byte("x"))}})
	for i := range 40 {
		tx := store.Tx{ID: fmt.Sprintf("id/%d", i), Put: []store.Write{write(fmt.Sprintf("k%d", i%3), long(i, 20<<10)), write("short", long(i, 10))}}
		if i%10 == 9 {
			tx.Put = append(tx.Put, write("large", long(i, 2<<20)))
		}
		if i%7 == 6 {
			key := fmt.Sprintf("k%d", (i+1)%3)
			tx.Delete = []string{key}
			delete(want, key)
		}
		mustCommit(t, s, tx)
		s.Outcome(t.Context(), fmt.Sprintf("void/%d", i))
	}
	check := func() map[string]string {
		l, err := s.List(t.Context(), "")
		if err != nil || len(l.Entries) != len(want) {
			t.Fatalf("List: %d entries, want %d; %v", len(l.Entries), len(want), err)
		}
		for _, e := range l.Entries {
			if !bytes.Equal(e.Value, want[e.Key]) {
				t.Fatalf("%s holds %d bytes that are not its own", e.Key, len(e.Value))
			}
		}
		return readAll(t, prefix)
	}
	// Entries take a key each, those that stand apart one more for each 512 KiB:
	// kept 2, large 4, k0 to k2 one each at most. Of 8 to 16 commits there is log.
	wait.Until(t, "old changes to go", func() bool {
		count := map[string]int{}
		for k := range readAll(t, prefix) {
			count[k[:2]]++
		}
		return count["l/"] <= 20 && count["t/"] <= 20 && count["b/"] <= 2+4+3+20 && count["s/"] == 0
	})
	check()
	// And all but the newest commits' after they were replaced by short ones.
	for key := range want {
		mustCommit(t, s, store.Tx{Put: []store.Write{write(key, []byte("short"))}})
	}
	for range 40 {
		mustCommit(t, s, put("short", "short"))
	}
	want["short"] = []byte("short")
	wait.Until(t, "the long values to go", func() bool {
		for k := range readAll(t, prefix) {
			if strings.HasPrefix(k, "b/") {
				return false
			}
		}
		return true
	})
	check()
}

// TestFull fills etcd up to its quota. Nothing is written then, and reads go on;
// when there is space again, so do writes.
func TestFull(t *testing.T) {
	testlane.Nightly(t)
	c := etcdtest.New(t, etcdtest.Options{Args: []string{"--quota-backend-bytes=16777216"}})
	s := openAt(t, c.URL(c.Prefix()), etcd.Options{})
	acked, last := map[string]store.Revision{}, ""
	var err error
	for i := 0; err == nil; i++ {
		if i == 1000 {
			t.Fatal("it does not get full")
		}
		var r store.Revision
		last = fmt.Sprintf("k%d", i)
		if r, err = s.Commit(t.Context(), put(last, strings.Repeat("x", 200<<10))); err == nil {
			acked[last] = r
		}
	}
	if !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrUnknownOutcome) {
		t.Fatalf("Commit: %v, want ErrFull", err)
	}
	check := func() {
		t.Helper()
		l, err := s.List(t.Context(), "k")
		if err != nil || len(l.Entries) != len(acked) {
			t.Fatalf("List: %d entries, %d were acknowledged; %v", len(l.Entries), len(acked), err)
		}
		for _, e := range l.Entries {
			if acked[e.Key] != e.Version {
				t.Fatalf("%s is at %d, acknowledged at %d", e.Key, e.Version, acked[e.Key])
			}
		}
	}
	check()
	if _, err := s.Commit(t.Context(), put(last, "x")); !errors.Is(err, store.ErrFull) {
		t.Fatalf("Commit: %v, want ErrFull", err)
	}
	// A transaction that is staged is refused as a whole, too.
	tx := put(last, strings.Repeat("y", 3<<20))
	if _, err := s.Commit(t.Context(), tx); !errors.Is(err, store.ErrFull) {
		t.Fatalf("large Commit: %v, want ErrFull", err)
	}
	check()
	raiseQuota(t, c)
	wait.Until(t, "space", func() bool {
		r, err := s.Commit(t.Context(), put(last, "x"))
		acked[last] = r
		return err == nil
	})
	check()
}

// TestFullAtOnce: of many who write when the last space is used up, some are told so
// although etcd did what they asked for: its members look at the space before and
// after. Nobody is told that nothing was written when something was.
func TestFullAtOnce(t *testing.T) {
	testlane.Nightly(t)
	c := etcdtest.New(t, etcdtest.Options{Args: []string{"--quota-backend-bytes=16777216"}})
	var all []*etcd.Store
	for range 12 {
		all = append(all, openAt(t, c.URL(c.Prefix()), etcd.Options{Log: slog.New(slog.DiscardHandler)}))
	}
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() {
			for i := range 1000 {
				key := fmt.Sprintf("k%d", i)
				_, err := s.Commit(t.Context(), put(key, strings.Repeat("x", 300<<10)))
				if err == nil {
					continue
				}
				_, there := s.Get(t.Context(), key)
				if !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrUnknownOutcome) || !errors.Is(there, store.ErrNotFound) {
					t.Errorf("Commit: %v, Get: %v", err, there)
				}
				return
			}
			t.Error("it does not get full")
		})
	}
	wg.Wait()
}

// TestLateRequest: a commit is on its way for long, longer than anyone waits for it.
// A caller that was told that nothing was written will not see it arrive.
func TestLateRequest(t *testing.T) {
	prefix := server.Prefix()
	first, second := proxytest.New(t, server.Members[0].Addr()), proxytest.New(t, server.Members[0].Addr())
	s := openAt(t, server.URLVia(first.Addr()+","+second.Addr(), prefix), impatient)
	direct := openAt(t, server.URL(prefix), etcd.Options{})
	mustCommit(t, s, put("k", "before"))
	first.When(0, []byte("late"), proxytest.Hold)
	// The second member tells that nothing happened yet. When the commit is decided
	// anew, nobody tells anything any more, and so it fails.
	second.When(0, []byte(prefix+"/e/k"), proxytest.LoseBoth)
	c := s.Begin(t.Context(), put("k", "late"))
	wait.Until(t, "the request", func() bool { return !first.Pending() })
	first.BlackHole()
	wait.Until(t, "the answer of the second", func() bool { return !second.Pending() })
	second.BlackHole()
	_, err := c.Wait()
	if err == nil || errors.Is(err, store.ErrUnknownOutcome) {
		t.Fatalf("Commit: %v, though it was known that nothing was written", err)
	}
	first.Release()
	// A late write arrives before this, or has come to nothing by it.
	deadline := time.Now().Add(time.Second)
	for arrived := false; !arrived && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		e, read := direct.Get(t.Context(), "k")
		arrived = string(e.Value) == "late"
		if read != nil || arrived {
			t.Fatalf("Commit: %v, and then it is there: %q, %v", err, e.Value, read)
		}
	}
	first.Heal()
	second.Heal()
}

// TestReplaced: another store under the same prefix is not taken for the one that
// was opened, so that versions do not come back.
func TestReplaced(t *testing.T) {
	prefix := server.Prefix()
	s := openAt(t, server.URL(prefix), impatient)
	r := mustCommit(t, s, put("k", "1"))
	kv := pb.NewKVClient(server.Conn(t))
	if _, err := kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte(prefix + "/"), RangeEnd: []byte(prefix + "0")}); err != nil {
		t.Fatal(err)
	}
	wantServerError := func(says string) {
		t.Helper()
		_, get := s.Get(t.Context(), "k")
		_, commit := s.CompareAndSwap(t.Context(), "k", r, []byte("2"))
		for _, err := range []error{get, commit} {
			if e, ok := errors.AsType[*engine.ServerError](err); !ok || !strings.Contains(e.Error(), says) || errors.Is(err, store.ErrUnknownOutcome) {
				t.Fatalf("%v, want a ServerError about %q", err, says)
			}
		}
	}
	wantServerError("no store under this prefix")
	other := openAt(t, server.URL(prefix), etcd.Options{})
	for range 3 {
		mustCommit(t, other, put("k", "other"))
	}
	wantServerError("another store")
}
