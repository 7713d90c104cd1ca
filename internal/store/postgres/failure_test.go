package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/internal/store/storetest"
	"github.com/fealty-io/fealty/internal/store/storetest/proxytest"
	"github.com/fealty-io/fealty/test/logs"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// impatient is for tests in which answers do not come. A server of a busy machine is to be heard all the same: within half
// of it a lock, within a quarter the next statement of a transaction.
var impatient = postgres.Options{Timeout: 3 * time.Second, Heartbeat: 50 * time.Millisecond}

// outcome asks until there is an answer: as long as the server does not know
// either, it is none.
func outcome(t *testing.T, s store.Store, id string) (r store.Revision, err error) {
	t.Helper()
	wait.UntilNil(t, "an outcome", func() error {
		if r, err = s.Outcome(t.Context(), id); errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	return r, err
}

// TestLostCommit loses each part of a commit, in each way, and looks at what the
// caller is told.
func TestLostCommit(t *testing.T) {
	database := server.Database(t)
	p := pgtest.NewProxy(t, server.Addr())
	s := openAt(t, server.URLVia(p.Addr(), database), impatient)
	direct := openAt(t, server.URL(database), postgres.Options{})
	for _, c := range []struct {
		name      string
		statement string
		fate      proxytest.Fate
		unknown   bool // the caller is told so
		applied   bool
		retried   bool // nobody notices at all
	}{
		{"answer to COMMIT", "fealty_commit", proxytest.LoseAnswer, true, true, false},
		{"connection after COMMIT", "fealty_commit", proxytest.CutAfter, true, true, false},
		{"COMMIT and what the server says to that", "fealty_commit", proxytest.LoseBoth, true, false, false},
		// The server says that it gave up waiting.
		{"COMMIT", "fealty_commit", proxytest.LoseRequest, false, false, false},
		{"connection before COMMIT", "fealty_commit", proxytest.CutBefore, true, false, false},
		{"answer to BEGIN", "fealty_begin", proxytest.LoseAnswer, false, false, false},
		{"BEGIN", "fealty_begin", proxytest.LoseRequest, false, false, false},
		{"connection before BEGIN", "fealty_begin", proxytest.CutBefore, false, true, true},
		{"connection after BEGIN", "fealty_begin", proxytest.CutAfter, false, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			mustCommit(t, s, put("warm", "x"))
			tx := put(c.name, "1")
			tx.ID = store.NewTxID()
			p.When(c.statement, c.fate)
			r, err := s.Commit(t.Context(), tx)
			if p.Pending() {
				t.Fatal("nothing was lost")
			}
			if errors.Is(err, store.ErrUnknownOutcome) != c.unknown || (err == nil) != c.retried {
				t.Fatalf("Commit: %d, %v", r, err)
			}
			if errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("Commit: %v blames the caller's deadline", err)
			}
			if err != nil && !c.unknown {
				// As it says, nothing was written. The ID is free.
				if _, err := direct.Get(t.Context(), c.name); !errors.Is(err, store.ErrNotFound) {
					t.Fatalf("Get: %v", err)
				}
				wait.Until(t, "the next commit", func() bool { _, err := s.Commit(t.Context(), tx); return err == nil })
				return
			}
			// Every caller gets the same, final answer.
			for _, who := range []store.Store{direct, s} {
				got, err := outcome(t, who, tx.ID)
				if (err == nil) != c.applied || r != 0 && got != r {
					t.Fatalf("Outcome: %d, %v; committed at %d", got, err, r)
				}
				r = got
			}
			again, err := s.Commit(t.Context(), tx)
			if c.applied && (err != nil || again != r) || !c.applied && !errors.Is(err, store.ErrVoided) {
				t.Fatalf("Commit again: %d, %v", again, err)
			}
			if e, _ := direct.Get(t.Context(), c.name); e.Version != r {
				t.Fatalf("Get: version %d, want %d", e.Version, r)
			}
		})
	}
}

// TestLostGroup loses the answer to a group of jobs, of which some wrote nothing.
func TestLostGroup(t *testing.T) {
	database := server.Database(t)
	p := pgtest.NewProxy(t, server.Addr())
	s := openAt(t, server.URLVia(p.Addr(), database), impatient)
	known := put("known", "1")
	known.ID = "known"
	knownAt := mustCommit(t, s, known)
	release := hold(t, database)
	var wg sync.WaitGroup
	var wrote, conflict, repeated, late error
	var again store.Revision
	// One job is waiting for the lock, the others gather behind it.
	first := s.Begin(t.Context(), put("first", "1"))
	wait.Until(t, "the lock", func() bool { return waitingForLock(t, database) == 1 })
	wg.Go(func() { _, wrote = s.Commit(t.Context(), put("wrote", "1")) })
	wg.Go(func() { _, conflict = s.CompareAndSwap(t.Context(), "known", knownAt+1000, nil) })
	wg.Go(func() { again, repeated = s.Commit(t.Context(), known) })
	wait.Until(t, "the group to gather", func() bool { return s.Queued() == 3 })
	// A conflict with what the group itself writes.
	wg.Go(func() { _, late = s.CompareAndSwap(t.Context(), "wrote", 1000, nil) })
	wait.Until(t, "the group to gather", func() bool { return s.Queued() == 4 })
	p.WhenAgain(1, "fealty_commit", proxytest.LoseAnswer)
	release()
	if _, err := first.Wait(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if p.Pending() {
		t.Fatal("nothing was lost")
	}
	if !errors.Is(wrote, store.ErrUnknownOutcome) {
		t.Errorf("who wrote: %v", wrote)
	}
	if !errors.Is(conflict, store.ErrConflict) {
		t.Errorf("who met a conflict with what was there before: %v", conflict)
	}
	if repeated != nil || again != knownAt {
		t.Errorf("who was there before: %d, %v", again, repeated)
	}
	if late == nil || errors.Is(late, store.ErrUnknownOutcome) || errors.Is(late, store.ErrConflict) {
		t.Errorf("who met a conflict with what may not be there, and wrote nothing: %v", late)
	}
}

// hold locks the revision row, so that commits wait for release.
func hold(t testing.TB, database string) (release func()) {
	t.Helper()
	conn := server.Connect(t, database)
	tx, err := conn.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "select from fealty_revision for update"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// waitingForLock counts the connections to database that wait for a lock.
func waitingForLock(t testing.TB, database string) (n int) {
	conn := server.Connect(t, database)
	defer conn.Close(context.Background())
	if err := conn.QueryRow(context.Background(), "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestLostNotices ends the listening connection, from the server's side, while
// something is committed.
func TestLostNotices(t *testing.T) {
	database := server.Database(t)
	// With a heartbeat that comes too late to help.
	s := openAt(t, server.URL(database), postgres.Options{Heartbeat: time.Hour})
	other := openAt(t, server.URL(database), postgres.Options{})
	follow(t, s, func(round int) (string, string) {
		// In one transaction, so that nobody listens when it is committed.
		conn := server.Connect(t, database)
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "select from fealty_revision for update"); err != nil {
			t.Fatal(err)
		}
		// Its last question is whether it listens, or for the keys that were written. It may
		// still be on its way back from the last round; while the commit waits it tries.
		wait.Until(t, "a listener is ended", func() bool {
			ended := 0
			err := conn.QueryRow(t.Context(), `select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
				and (query like '%pg_listening_channels%' or query like 'select key from fealty_log where seq%')`).Scan(&ended)
			if err != nil {
				t.Fatal(err)
			}
			return ended > 0
		})
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		value := fmt.Sprint(round)
		mustCommit(t, other, put("k", value))
		return "k", value
	})
}

// TestHalfOpen makes all connections of a store silent, without ending them,
// while something is committed.
func TestHalfOpen(t *testing.T) {
	database := server.Database(t)
	p := pgtest.NewProxy(t, server.Addr())
	s := openAt(t, server.URLVia(p.Addr(), database), impatient)
	other := openAt(t, server.URL(database), postgres.Options{})
	follow(t, s, func(round int) (string, string) {
		p.Freeze()
		value := fmt.Sprint(round)
		mustCommit(t, other, put("k", value))
		return "k", value
	})
}

// TestDeaf follows through a connection on which notices are lost from some time
// on, though everything else passes.
func TestDeaf(t *testing.T) {
	database := server.Database(t)
	p := pgtest.NewProxy(t, server.Addr())
	s := openAt(t, server.URLVia(p.Addr(), database), impatient)
	other := openAt(t, server.URL(database), postgres.Options{})
	p.Deafen()
	follow(t, s, func(round int) (string, string) {
		value := fmt.Sprint(round)
		mustCommit(t, other, put("k", value))
		return "k", value
	})
}

// follow watches through s, and follows changes, while disturb commits something
// three times, and waits until it is told. A watch may end when what it depends
// on broke; then it begins again, as callers do.
func follow(t *testing.T, s store.Store, disturb func(round int) (key, value string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start, err := s.List(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	watched, changed := make(chan string, 100), make(chan string, 100)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for ctx.Err() == nil {
			for e, err := range s.Watch(ctx, "k") {
				if err == nil {
					watched <- string(e.Value)
				}
			}
		}
	})
	wg.Go(func() {
		after := start.Revision
		for ctx.Err() == nil {
			for c, err := range s.Changes(ctx, "k", after) {
				if err == nil {
					changed <- string(c.Put[0].Value)
					after = c.Revision
				}
			}
		}
	})
	<-watched // that it is absent
	for round := range 3 {
		begun := time.Now()
		_, value := disturb(round)
		for told := ""; told != value; {
			select {
			case told = <-watched:
			case <-ctx.Done():
				t.Fatalf("round %d: the watch missed it", round)
			}
		}
		select {
		case told := <-changed:
			if told != value {
				t.Fatalf("round %d: change %q, want %q", round, told, value)
			}
		case <-ctx.Done():
			t.Fatalf("round %d: the change was missed", round)
		}
		t.Logf("round %d: told after %v", round, time.Since(begun).Round(time.Millisecond))
	}
}

// TestNotices counts the notices of commits of all sizes.
func TestNotices(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	database := server.Database(t)
	s := openAt(t, server.URL(database), postgres.Options{})
	raw := server.Connect(t, database)
	if _, err := raw.Exec(t.Context(), "listen "+s.Channel()); err != nil {
		t.Fatal(err)
	}
	var many store.Tx
	for i := range store.MaxTxOps {
		many.Put = append(many.Put, store.Write{Key: fmt.Sprintf("%0*d", store.MaxKeyBytes, i)})
	}
	for _, tx := range []store.Tx{put("k", "small"), many, put("large", strings.Repeat("x", store.MaxValueBytes))} {
		r := mustCommit(t, s, tx)
		n, err := raw.WaitForNotification(ctx)
		if err != nil || n.Payload != fmt.Sprint(r) {
			t.Fatalf("notice %+v, %v, want %d", n, err, r)
		}
	}
	// A group has one.
	release := hold(t, database)
	var wg sync.WaitGroup
	first := s.Begin(t.Context(), put("first", ""))
	wait.Until(t, "the lock", func() bool { return waitingForLock(t, database) == 1 })
	for i := range 20 {
		wg.Go(func() { mustCommit(t, s, put(fmt.Sprint("group/", i), "x")) })
	}
	wait.Until(t, "the group to gather", func() bool { return s.Queued() == 20 })
	release()
	wg.Wait()
	if _, err := first.Wait(); err != nil {
		t.Fatal(err)
	}
	last := mustCommit(t, s, put("last", ""))
	var told []string
	for len(told) == 0 || told[len(told)-1] != fmt.Sprint(last) {
		n, err := raw.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, n.Payload)
	}
	if len(told) != 3 {
		t.Fatalf("notices %v of one commit, a group and one commit", told)
	}
	// And it is one PostgreSQL transaction.
	var transactions int
	if err := raw.QueryRow(t.Context(), "select count(distinct xmin::text) from fealty_log where key like 'group/%'").Scan(&transactions); err != nil || transactions != 1 {
		t.Fatalf("%d transactions for a group, %v", transactions, err)
	}
}

// fail makes COMMIT fail on the server, the next times.
func fail(t testing.TB, database, code string, times int) {
	server.Exec(t, database,
		"create sequence if not exists failures",
		fmt.Sprintf(`create or replace function fail() returns trigger language plpgsql as $$
		begin
			if nextval('failures') <= %d then raise exception 'made to fail' using errcode = '%s'; end if;
			return null;
		end $$`, times, code),
		"create constraint trigger fail after update on fealty_revision deferrable initially deferred for each row execute function fail()")
}

// TestLogWithMoreRowsThanACommitWrites: a log that somebody altered ends no process.
func TestLogWithMoreRowsThanACommitWrites(t *testing.T) {
	database := server.Database(t)
	s := openAt(t, server.URL(database), postgres.Options{})
	base := mustCommit(t, s, put("k", "base"))
	server.Exec(t, database, "alter table fealty_log drop constraint fealty_log_pkey",
		fmt.Sprintf("insert into fealty_log (seq, key) select %d, 'row/' || n from generate_series(1, 3000) n", (int64(base)+1)*1024),
		fmt.Sprintf("update fealty_revision set revision = %d", base+1))
	for change, err := range s.Changes(t.Context(), "row/", base) {
		if err == nil || !strings.Contains(err.Error(), "it was altered") {
			t.Errorf("%d changes, %v", len(change.Delete), err)
		}
		break
	}
}

// TestCommitRefused: what the server refuses at the very end was not written, and
// no reason for doubt.
func TestCommitRefused(t *testing.T) {
	database := server.Database(t)
	s := openAt(t, server.URL(database), postgres.Options{})
	base := mustCommit(t, s, put("k", "base"))
	fail(t, database, "53100", 1) // disk full
	_, err := s.Commit(t.Context(), put("k", "refused"))
	if store.ReasonOf(err) != store.NoSpace || errors.Is(err, store.ErrUnknownOutcome) || !strings.Contains(err.Error(), "made to fail") {
		t.Fatalf("Commit: %v", err)
	}
	if e, err := s.Get(t.Context(), "k"); err != nil || e.Version != base {
		t.Fatalf("Get: %+v, %v", e, err)
	}
	if r := mustCommit(t, s, put("k", "again")); r != base+1 {
		t.Fatalf("revision %d after %d", r, base)
	}
}

// TestNoticesRefused: a full queue of notices stops the notices, not the commits.
func TestNoticesRefused(t *testing.T) {
	database := server.Database(t)
	var log logs.Text
	s := openAt(t, server.URL(database), postgres.Options{Log: log.Logger(slog.LevelInfo)})
	other := openAt(t, server.URL(database), postgres.Options{Heartbeat: 50 * time.Millisecond})
	fail(t, database, "54000", 1)
	follow(t, other, func(round int) (string, string) {
		value := fmt.Sprint(round)
		mustCommit(t, s, put("k", value))
		return "k", value
	})
	if !strings.Contains(log.String(), "without notices") {
		t.Errorf("log: %s", log.String())
	}
}

// TestGroupFailsAlone: of a group that the server refuses, what it can store is
// stored.
func TestGroupFailsAlone(t *testing.T) {
	database := server.Database(t)
	s := openAt(t, server.URL(database), postgres.Options{})
	mustCommit(t, s, put("k", "base"))
	server.Exec(t, database, "alter table fealty_kv add constraint no_bad check (key <> 'bad')")
	release := hold(t, database)
	first := s.Begin(t.Context(), put("first", ""))
	wait.Until(t, "the lock", func() bool { return waitingForLock(t, database) == 1 })
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		key := fmt.Sprint("good/", i)
		if i == 3 {
			key = "bad"
		}
		wg.Go(func() { _, errs[i] = s.Commit(t.Context(), put(key, "x")) })
	}
	wait.Until(t, "the group to gather", func() bool { return s.Queued() == len(errs) })
	release()
	wg.Wait()
	first.Wait()
	for i, err := range errs {
		if (err != nil) != (i == 3) || errors.Is(err, store.ErrUnknownOutcome) {
			t.Errorf("commit %d: %v", i, err)
		}
	}
}

// TestCancelAtEachStage gives up commits that wait outside of the queue, in it,
// for their turn in the database, and for the answer to what was sent.
func TestCancelAtEachStage(t *testing.T) {
	database := server.Database(t)
	s := openAt(t, server.URL(database), postgres.Options{Queue: 1})
	base := mustCommit(t, s, put("k", "base"))
	type call struct {
		*postgres.Pending
		id     string
		cancel context.CancelFunc
	}
	begin := func(id string) call {
		ctx, cancel := context.WithCancel(t.Context())
		tx := put("stage/"+id, id)
		tx.ID = id
		return call{s.Begin(ctx, tx), id, cancel}
	}
	giveUp := func(c call) {
		t.Helper()
		c.cancel()
		_, err := c.Wait()
		if !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnknownOutcome) != (c.id == "sent") {
			t.Fatalf("%s: %v", c.id, err)
		}
	}
	release := hold(t, database)
	turn := begin("turn")
	wait.Until(t, "the lock", func() bool { return waitingForLock(t, database) == 1 })
	queued := begin("queued")
	wait.Until(t, "a full queue", func() bool { return s.Queued() == 1 })
	outside := begin("outside")
	for _, c := range []call{outside, queued, turn} {
		giveUp(c)
	}
	// Readers do not wait for any of this.
	if e, err := s.Get(t.Context(), "k"); err != nil || e.Version != base {
		t.Fatalf("Get while the writer waits: %+v, %v", e, err)
	}
	release()
	// The statement that was sent waits for a table.
	conn := server.Connect(t, database)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table fealty_log in exclusive mode"); err != nil {
		t.Fatal(err)
	}
	sent := begin("sent")
	wait.Until(t, "the table", func() bool { return waitingForLock(t, database) == 1 })
	giveUp(sent)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []call{sent, turn, queued, outside} {
		_, err := s.Outcome(t.Context(), c.id)
		if (err == nil) != (c.id == "sent") {
			t.Errorf("Outcome(%s) = %v", c.id, err)
		}
		e, err := s.Get(t.Context(), "stage/"+c.id)
		if (err == nil) != (c.id == "sent") || err == nil && string(e.Value) != c.id {
			t.Errorf("Get(%s) = %q, %v", c.id, e.Value, err)
		}
	}
}

// TestTakeover: a deposed leader's write fails, however close it was, in whatever
// order the two arrive.
func TestTakeover(t *testing.T) {
	database := server.Database(t)
	old, next := openAt(t, server.URL(database), postgres.Options{}), openAt(t, server.URL(database), postgres.Options{})
	for round := range 20 {
		leader := mustCommit(t, old, put("leader", fmt.Sprint("old ", round)))
		release := hold(t, database)
		tx := put("order", fmt.Sprint("of the old ", round))
		tx.If = []store.Condition{{Key: "leader", Version: leader}}
		take := store.SwapTx("leader", leader, []byte("next"))
		var write, takeover *postgres.Pending
		if round%2 == 0 {
			write = old.Begin(t.Context(), tx)
			wait.Until(t, "the lock", func() bool { return waitingForLock(t, database) == 1 })
			takeover = next.Begin(t.Context(), take)
		} else {
			takeover = next.Begin(t.Context(), take)
			wait.Until(t, "the lock", func() bool { return waitingForLock(t, database) == 1 })
			write = old.Begin(t.Context(), tx)
		}
		wait.Until(t, "both", func() bool { return waitingForLock(t, database) == 2 })
		release()
		wrote, err := write.Wait()
		took, takeErr := takeover.Wait()
		if takeErr != nil {
			t.Fatalf("takeover: %v", takeErr)
		}
		if err == nil && wrote > took || err != nil && !errors.Is(err, store.ErrConflict) {
			t.Fatalf("round %d: the old leader wrote at %d, %v, after it was deposed at %d", round, wrote, err, took)
		}
	}
}

// TestRestartUnnoticed: a restart of the server between two calls is not the
// caller's business.
func TestRestartUnnoticed(t *testing.T) {
	s := openAt(t, server.URL(server.Database(t)), postgres.Options{Heartbeat: time.Hour})
	for i, stop := range []func() error{server.Stop, server.Kill, server.Stop} {
		r := mustCommit(t, s, put("k", fmt.Sprint(i)))
		// So that all connections are there, and die.
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() { s.List(t.Context(), "") })
		}
		wg.Wait()
		again(t, stop)
		if i != 1 {
			if e, err := s.Get(t.Context(), "k"); err != nil || e.Version != r {
				t.Fatalf("Get after a restart: %+v, %v", e, err)
			}
		}
		mustCommit(t, s, put("k", "after"))
		if l, err := s.List(t.Context(), ""); err != nil || len(l.Entries) != 1 {
			t.Fatalf("List after a restart: %+v, %v", l, err)
		}
	}
}

// TestDown: without a server every call fails with the reason, in time.
func TestDown(t *testing.T) {
	way := pgtest.NewProxy(t, server.Addr())
	for _, c := range []struct {
		name     string
		addr     string
		down, up func() error
	}{
		{"stopped", server.Addr(), server.Stop, server.Start},
		// Nobody is told: neither of connections there are, nor of those to come.
		{"swallowed", way.Addr(), func() error { way.BlackHole(); return nil }, func() error { way.Heal(); return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			brief := impatient // many calls wait for as long; what has to be answered is tried again
			brief.Timeout = time.Second
			url := server.URLVia(c.addr, server.Database(t))
			var s *postgres.Store
			wait.UntilNil(t, "the store is opened", func() (err error) { s, err = postgres.Open(t.Context(), url, brief); return err })
			t.Cleanup(func() { s.Close() })
			commits := func(value string) {
				wait.UntilNil(t, "a commit", func() error { _, err := s.Commit(t.Context(), put("k", value)); return err })
			}
			commits("1")
			if err := c.down(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := c.up(); err != nil {
					t.Fatal(err)
				}
				commits("2")
			}()
			calls := map[string]func() error{
				"Get":     func() error { _, err := s.Get(t.Context(), "k"); return err },
				"List":    func() error { _, err := s.List(t.Context(), ""); return err },
				"Commit":  func() error { _, err := s.Commit(t.Context(), put("k", "lost")); return err },
				"Outcome": func() error { _, err := s.Outcome(t.Context(), "id"); return err },
			}
			for range 2 { // on connections there were, and without any
				for name, call := range calls {
					err := call()
					if err == nil || errors.Is(err, store.ErrUnknownOutcome) || errors.Is(err, store.ErrNotFound) || errors.Is(err, context.DeadlineExceeded) ||
						strings.Contains(err.Error(), server.Password()) || !strings.Contains(err.Error(), c.addr) {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
		})
	}
}

// TestSynchronousStandby: what a standby has not confirmed is not acknowledged.
func TestSynchronousStandby(t *testing.T) {
	testlane.Nightly(t)
	database := server.Database(t)
	// The warning that a wait was cut short must come all the same.
	server.Exec(t, "postgres", "alter database "+database+" set client_min_messages = error")
	s, other := openAt(t, server.URL(database), impatient), openAt(t, server.URL(database), impatient)
	patient := openAt(t, server.URL(database), postgres.Options{Timeout: time.Minute})
	mustCommit(t, s, put("k", "1"))
	mustCommit(t, patient, put("k", "1"))
	set := func(names string) {
		server.Exec(t, "postgres", "alter system set synchronous_standby_names = '"+names+"'", "select pg_reload_conf()")
	}
	standbyWaits := func() (pid int) {
		conn := server.Connect(t, "postgres")
		defer conn.Close(context.Background())
		err := conn.QueryRow(t.Context(), "select pid from pg_stat_activity where wait_event = 'SyncRep'").Scan(&pid)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			t.Fatal(err)
		}
		return pid
	}
	set("nobody")
	defer set("")
	// The server takes a while to hear of the setting.
	var id string
	wait.Until(t, "a commit that waits", func() bool {
		id = store.NewTxID()
		tx := put(id, "1")
		tx.ID = id
		_, err := s.Commit(t.Context(), tx)
		return errors.Is(err, store.ErrUnknownOutcome)
	})
	// Giving up did not make it visible, to anybody.
	if _, err := other.Get(t.Context(), id); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("Get of what no standby has: %v", err)
	}
	if _, err := other.Outcome(t.Context(), id); err == nil || errors.Is(err, store.ErrNotFound) {
		t.Fatalf("Outcome of what no standby has: %v", err)
	}
	pid := standbyWaits()
	if pid == 0 {
		t.Fatal("nobody waits")
	}
	// An operator's cancel cuts the wait short. The one who gave up has to wait for a
	// standby before they answer with what is visible now.
	server.Exec(t, "postgres", fmt.Sprintf("select pg_cancel_backend(%d)", pid))
	wait.Until(t, "it to be visible", func() bool { _, err := other.Get(t.Context(), id); return err == nil })
	if r, err := s.Outcome(t.Context(), id); err == nil || errors.Is(err, store.ErrNotFound) {
		t.Fatalf("Outcome of what no standby has: %d, %v", r, err)
	}
	set("")
	if _, err := outcome(t, s, id); err != nil {
		t.Fatalf("Outcome: %v", err)
	}
	// The same while the caller waits: the server then answers COMMIT with success
	// and a warning.
	set("nobody")
	var waiting *postgres.Pending
	for pid = 0; pid == 0; pid = standbyWaits() {
		waiting = patient.Begin(t.Context(), put("cut short", "1"))
		wait.Until(t, "the commit", func() bool { return waiting.Ended() || standbyWaits() != 0 })
	}
	server.Exec(t, "postgres", fmt.Sprintf("select pg_cancel_backend(%d)", pid))
	if _, err := waiting.Wait(); !errors.Is(err, store.ErrUnknownOutcome) {
		t.Fatalf("Commit whose wait for a standby was cut short: %v", err)
	}
}

// TestAsynchronousReplica says what a failover would lose.
func TestAsynchronousReplica(t *testing.T) {
	testlane.Nightly(t)
	server := pgtest.New(t) // that of the others does not write to a disk, which is said too
	database := server.Database(t)
	var log logs.Text
	o := postgres.Options{Log: log.Logger(slog.LevelInfo)}
	openAt(t, server.URL(database), o)
	if log.String() != "" {
		t.Fatalf("log of a server that is in order: %s", log.String())
	}
	// It receives the server's log as a replica does.
	replica := server.Command("pg_receivewal", "-D", t.TempDir(), "-d", strings.Replace(server.SocketURL("postgres"), "postgres:///postgres", "postgres:///", 1), "--no-sync", "--no-loop")
	replica.Stderr = &log
	start(t, replica)
	conn := server.Connect(t, "postgres")
	wait.Until(t, "the replica", func() bool {
		var n int
		if err := conn.QueryRow(t.Context(), "select count(*) from pg_stat_replication").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n > 0
	})
	openAt(t, server.URL(database), o)
	if !strings.Contains(log.String(), "asynchronous") || strings.Contains(log.String(), server.Password()) {
		t.Fatalf("log: %s", log.String())
	}
}

func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr.Credential = nil // its files are the test's
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// TestLinearizableWhileKilled records random calls while the server is killed and
// started again and again.
func TestLinearizableWhileKilled(t *testing.T) {
	testlane.Nightly(t)
	url := server.URL(server.Database(t))
	open := func(t testing.TB) store.Store {
		s, err := postgres.Open(context.Background(), url, postgres.Options{Heartbeat: 200 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	storetest.LinearizableWhileBroken(t, open, func(time int) error {
		stop := server.Kill
		if time%4 == 3 {
			stop = server.Stop
		}
		return errors.Join(stop(), server.Start())
	})
}

// TestReadOnly: a server that becomes read-only, as hosted ones do whose disk fills up,
// is read on connections of before and on new ones, and says by name that it takes no
// writes; when it takes them again, so does the store.
func TestReadOnly(t *testing.T) {
	server := pgtest.New(t)
	database := server.Database(t)
	s := openAt(t, server.URL(database), postgres.Options{Log: slog.New(slog.DiscardHandler)})
	base := mustCommit(t, s, put("k", "base"))
	none, err := freeport.Addr() // of a server that is gone
	if err != nil {
		t.Fatal(err)
	}
	several := openAt(t, server.URLVia(none+","+server.Addr(), database), postgres.Options{Log: slog.New(slog.DiscardHandler)})
	set := func(value string) {
		server.Exec(t, database, "set default_transaction_read_only = off", "alter system set default_transaction_read_only = "+value, "select pg_reload_conf()")
	}
	wantFull := func(when string) {
		t.Helper()
		tx := put("k", "refused")
		tx.ID = store.NewTxID()
		if _, err := s.Commit(t.Context(), tx); store.ReasonOf(err) != store.ReadOnly || !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrUnknownOutcome) {
			t.Fatalf("%s: Commit: %v, want ErrFull", when, err)
		}
		if _, err := s.Outcome(t.Context(), tx.ID); !errors.Is(err, store.ErrFull) {
			t.Fatalf("%s: Outcome: %v, want ErrFull", when, err)
		}
		if e, err := s.Get(t.Context(), "k"); err != nil || e.Version != base {
			t.Fatalf("%s: Get: %+v, %v", when, e, err)
		}
		if l, err := s.List(t.Context(), ""); err != nil || len(l.Entries) != 1 {
			t.Fatalf("%s: List: %v, %v", when, l, err)
		}
	}
	set("on")
	wait.Until(t, "the server to be read-only", func() bool {
		r, err := s.Commit(t.Context(), put("k", "base"))
		if err == nil {
			base = r
		}
		return err != nil
	})
	wantFull("on connections of before")
	server.Exec(t, database, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
	wantFull("on new connections")
	if _, err := postgres.Open(t.Context(), server.URL(database), postgres.Options{}); !cannotHold(err) || !errors.Is(err, store.ErrFull) {
		t.Errorf("Open: %v, want a ServerError that matches ErrFull", err)
	}
	// Of several servers the one that takes writes is meant: another one may be a primary
	// of before, which is kept from writing.
	if _, err := several.Get(t.Context(), "k"); !cannotHold(err) {
		t.Errorf("Get from one of several: %v, want a ServerError", err)
	}
	set("off")
	wait.Until(t, "the server to take writes", func() bool {
		_, err := s.Commit(t.Context(), put("k", "again"))
		return err == nil
	})
}
