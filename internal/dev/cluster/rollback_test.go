package cluster

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/test/testlane"
)

// Somebody brings the database back as it was, by the engine's own means and not by
// fealty backup restore, while coordinators and members run. Nobody goes back with it:
// the coordinators stay at the head that they know and say by name what the store shows;
// nothing is changed, led or certified by the old state; who starts on it does not
// believe it; members keep what they know. A restore that the signers authorized is the
// way on.

// rollback is how a database is brought back: take notes its state as it is, and what
// take returns brings that back.
type rollback struct {
	opts Options
	take func(c *Cluster) (back func())
}

func TestRolledBackSQLite(t *testing.T) {
	t.Parallel()
	testRolledBack(t, rollback{take: func(c *Cluster) func() {
		file := filepath.Join(c.dir, storeFile)
		// As a snapshot of the disk has them: with all that the log holds, at one moment.
		was := make(map[string][]byte)
		whileNobodyWrites(t, file, func() {
			for _, f := range []string{"", "-wal", "-shm"} {
				raw, err := os.ReadFile(file + f)
				if err != nil {
					t.Fatal(err)
				}
				was[f] = raw
			}
		})
		return func() {
			// Over the very files that are open: what else could the OS allow.
			whileNobodyWrites(t, file, func() {
				for f, raw := range was {
					if err := overwrite(file+f, raw, f != "-shm"); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}})
}

// whileNobodyWrites calls f while nobody writes to a database that is open in this process,
// nor copies its log. A write that begins with the files of one moment and ends with those
// of another leaves a database that shows neither.
func whileNobodyWrites(t *testing.T, file string, f func()) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	copied := func() (bool, error) {
		var busy, pages, copied int
		err := db.QueryRowContext(t.Context(), "pragma wal_checkpoint(passive)").Scan(&busy, &pages, &copied)
		return busy == 0, err
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for done := false; !done; {
		if done, err = copied(); err != nil {
			t.Fatal(err)
		}
	}
	f()
}

// overwrite puts content in the place of that of a file, and cuts what is longer. A
// file that is mapped into memory must not be cut, not for a moment either: who reads
// it then is killed for it.
func overwrite(path string, content []byte, cut bool) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil && cut {
		err = f.Truncate(int64(len(content)))
	}
	return errors.Join(err, f.Close())
}

// A dump of before is loaded over the tables, as the manual of PostgreSQL says.
func TestRolledBackPostgres(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := pgtest.New(t)
	database := server.Database(t)
	testRolledBack(t, rollback{
		opts: Options{Store: server.URL(database), EmptyStore: server.URL(server.Database(t))},
		take: func(*Cluster) func() { return server.Copy(t, database) },
	})
}

// The server comes back behind its address with the disk of before.
func TestRolledBackPostgresDisk(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := pgtest.New(t)
	testRolledBack(t, rollback{
		opts: Options{Store: server.URL(server.Database(t)), EmptyStore: server.URL(server.Database(t))},
		take: func(*Cluster) func() { return takeDisk(t, server.Data(), server.Stop, server.Start) },
	})
}

// The keys of before are put back under the prefix, and later ones removed.
func TestRolledBackEtcd(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := etcdtest.New(t, etcdtest.Options{})
	testRolledBack(t, rollback{
		opts: Options{Store: server.URL("/fealty"), EmptyStore: server.URL("/restored")},
		take: func(*Cluster) func() {
			return server.Keep(t, "/fealty/")
		},
	})
}

// The server comes back behind its address with the disk of before.
func TestRolledBackEtcdDisk(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := etcdtest.New(t, etcdtest.Options{})
	testRolledBack(t, rollback{
		opts: Options{Store: server.URL("/fealty"), EmptyStore: server.URL("/restored")},
		take: func(*Cluster) func() {
			return takeDisk(t, server.Members[0].Data(), server.Stop, server.Start)
		},
	})
}

// takeDisk copies the folder of a server, which is stopped for it, and returns what
// brings it back.
func takeDisk(t *testing.T, dir string, stop, start func() error) func() {
	t.Helper()
	was := filepath.Join(t.TempDir(), "was")
	// As cp does it: owners and modes are the servers' own.
	copied := func(from, to string) error { return exec.Command("cp", "-a", from, to).Run() }
	if err := errors.Join(stop(), copied(dir, was), start()); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(stop(), os.RemoveAll(dir), copied(was, dir), start()); err != nil {
			t.Fatal(err)
		}
	}
}

func testRolledBack(t *testing.T, r rollback) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r.opts.Release, r.opts.Log = "test", slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	r.opts.DataDir = t.TempDir()
	c, err := Start(ctx, r.opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	stay := []string{"node-a", "node-b"}
	file, err := c.Backup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	back := r.take(c)
	// The changes newer than the copy: a ban, then another manifest, whose proof roots
	// move the authority epoch.
	if err := c.Await(ctx, "node-c to be banned", func(ctx context.Context) (bool, error) {
		err := c.WithAdmin(func(conn *grpc.ClientConn) error {
			_, err := fealtyv1.NewMemberServiceClient(conn).BanMember(ctx, &fealtyv1.BanMemberRequest{Kind: string(identity.Data), Name: "node-c", Reason: "after the copy"})
			return err
		})
		return err == nil, err // the store may be on its way back from being copied
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitBan(ctx, "node-c", stay...); err != nil {
		t.Fatal(err)
	}
	err = c.TrustRoot(ctx, pkitest.PEM(pkitest.NewPKI(t, "operator", time.Now).Root.Cert))
	if err == nil {
		err = c.AwaitReady(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	before, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.atEpoch(ctx, before.GetAuthorityEpoch(), stay...); err != nil {
		t.Fatal(err)
	}
	_, term, err := c.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wantForward := func(when string) {
		t.Helper()
		for _, name := range c.CoordinatorNames() {
			st, err := c.StatusOf(ctx, name)
			if err != nil {
				t.Errorf("%s, %s: %v", when, name, err)
				continue
			}
			if st.GetPhase() == "ready" && (st.GetAuthorityEpoch() < before.GetAuthorityEpoch() || st.GetHistoryIndex() < before.GetHistoryIndex()) {
				t.Errorf("%s, %s is ready at index %d of epoch %d, after %d of %d", when, name, st.GetHistoryIndex(), st.GetAuthorityEpoch(), before.GetHistoryIndex(), before.GetAuthorityEpoch())
			}
			if at := c.seenIndex(t, name); at < before.GetHistoryIndex() {
				t.Errorf("%s, %s remembers index %d, after %d", when, name, at, before.GetHistoryIndex())
			}
			c.mu.Lock()
			for _, r := range c.coordinators {
				if r.run == nil {
					continue
				}
				if at, ok := r.run.coordinator.Leading(); ok && at < term {
					t.Errorf("%s, %s leads under term %d, after %d", when, r.name, at, term)
				}
			}
			c.mu.Unlock()
		}
		for _, name := range stay {
			n, err := c.Node(ctx, name)
			if err != nil || n.GetAuthorityEpoch() < before.GetAuthorityEpoch() {
				t.Errorf("%s, %s is at epoch %d, after %d (%v)", when, name, n.GetAuthorityEpoch(), before.GetAuthorityEpoch(), err)
			}
			if err := c.AwaitBan(ctx, "node-c", name); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	// wantNamed waits until each coordinator says in its status what is wrong.
	wantNamed := func(when string) {
		t.Helper()
		for _, name := range c.CoordinatorNames() {
			if err := c.Await(ctx, name+" to say that the store went back, "+when, func(ctx context.Context) (bool, error) {
				st, err := c.StatusOf(ctx, name)
				if err != nil {
					return false, err
				}
				for _, f := range st.GetFindings() {
					if f.GetCode() == string(errcode.HistoryInvalid) {
						return true, nil
					}
				}
				return bytes.Contains([]byte(st.GetPhaseReason()), []byte(errcode.HistoryInvalid)), fmt.Errorf("%s: %s, %v", st.GetPhase(), st.GetPhaseReason(), st.GetFindings())
			}); err != nil {
				t.Error(err)
			}
		}
	}

	back()
	wantNamed("while it runs")
	wantForward("while it runs")
	// Nothing is decided on what is there.
	err = c.WithAdmin(func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewTokenServiceClient(conn).CreateToken(ctx, &fealtyv1.CreateTokenRequest{Entry: PoolEntry, Uses: 1})
		return err
	})
	if !errors.Is(errcode.Of(err), errcode.HistoryInvalid) {
		t.Errorf("a token on a store that went back: %v", err)
	}
	held, err := c.store.Get(ctx, history.HeadKey)
	if err != nil {
		t.Fatal(err)
	}
	if rec, err := history.DecodeRecord(held.Value); err != nil || rec.Index >= before.GetHistoryIndex() {
		t.Fatalf("the store shows index %d, %v: it did not go back", rec.Index, err)
	}
	// A coordinator that starts on it does not believe it.
	if err := c.StopCoordinators(); err != nil {
		t.Fatal(err)
	}
	if err := c.StartCoordinators(ctx); err != nil {
		t.Fatal(err)
	}
	wantNamed("at a start")
	wantForward("at a start")
	if again, err := c.store.Get(ctx, history.HeadKey); err != nil || again.Version != held.Version {
		t.Errorf("somebody moved the head of the old state: %v", err)
	}
	// The way on.
	if err := c.Restore(ctx, file, "the test goes back"); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitConnected(ctx, stay...); err != nil {
		t.Fatal(err)
	}
	wantForward("after the restore")
	if st, err := c.Status(ctx); err != nil || st.GetAuthorityEpoch() <= before.GetAuthorityEpoch() {
		t.Errorf("after the restore epoch %d, before %d (%v)", st.GetAuthorityEpoch(), before.GetAuthorityEpoch(), err)
	}
	if _, at, err := c.Leader(ctx); err != nil || at <= term {
		t.Errorf("after the restore term %d, before %d (%v)", at, term, err)
	}
}

// atEpoch waits until members are at an authority epoch.
func (c *Cluster) atEpoch(ctx context.Context, epoch uint64, names ...string) error {
	return c.Await(ctx, "members to follow the epoch", func(ctx context.Context) (bool, error) {
		for _, name := range names {
			n, err := c.Node(ctx, name)
			if err != nil || n.GetAuthorityEpoch() != epoch || !n.GetConnected() {
				return false, fmt.Errorf("%s is at epoch %d, connected %v: %w", name, n.GetAuthorityEpoch(), n.GetConnected(), err)
			}
		}
		return true, nil
	})
}

// seenIndex is the index of the newest head that a coordinator wrote down.
func (c *Cluster) seenIndex(t *testing.T, name string) uint64 {
	t.Helper()
	r, err := c.replica(name)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(c.coordinatorDir(r), "head-seen.json"))
	var m history.SeenHead
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m.Index
}
