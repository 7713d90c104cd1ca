package main

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/internal/store/storetest/proxytest"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// TestPausedCoordinator stops the process that leads, of three on one store, with
// SIGSTOP, in the middle of writing that it lives: what it said last is on its way and
// did not arrive. Another leads after the lease. Then the write arrives, and the process
// runs again, which knows nothing of all that: the store takes neither that nor anything
// else that it does as the leader of before, and it goes on under the new one.
func TestPausedCoordinator(t *testing.T) {
	testlane.Nightly(t)
	for name, statement := range map[string]string{
		"postgres, before it may write": "fealty_begin",
		// The server ends a transaction in which nothing is said, and the lock with it.
		"postgres, with the lock of all commits": "fealty_advance",
	} {
		t.Run(name, func(t *testing.T) {
			server := pgtest.New(t)
			database := server.Database(t)
			way := pgtest.NewProxy(t, server.Addr())
			st, err := postgres.Open(t.Context(), server.URL(database), postgres.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			pauseLeader(t, st, server.URL(database), server.URLVia(way.Addr(), database), way.Proxy, func() { way.When(statement, proxytest.Hold) })
		})
	}
	t.Run("etcd", func(t *testing.T) {
		server := etcdtest.New(t, etcdtest.Options{})
		way := proxytest.New(t, server.Members[0].Addr())
		url := server.URL("/prod")
		st, err := etcd.Open(t.Context(), url, etcd.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		// As it stands in the log, and so in the request that writes.
		pauseLeader(t, st, url, server.URLVia(way.Addr(), "/prod"), way, func() { way.When(0, []byte(`"leader/beat"`), proxytest.Hold) })
	})
}

// pauseLeader does that with the coordinator that reaches the store st by way; hold
// makes way hold its next commit.
func pauseLeader(t *testing.T, st store.Store, url, byWay string, way *proxytest.Proxy, hold func()) {
	first := three[0]
	f := startThree(t, url, "info", map[string]string{first: byWay}, false)
	f.until(first+" leads", func(string) bool { name, _ := leads(t, st); return name == first }, "leader", "transfer", "--to", first, "--reason", "test", "--socket", f.socket(first))
	_, term := leads(t, st)
	hold()
	wait.Until(t, "a commit of the leader", func() bool { return !way.Pending() })
	process := f.runs[first].Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "another leader", func() bool { next, at := leads(t, st); return at > term && next != "" && next != first })

	way.Release()
	if err := process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	f.until(first+" follows", func(out string) bool {
		var status struct {
			Leader struct {
				Name string `json:"name"`
				Self bool   `json:"self"`
			} `json:"leader"`
		}
		return json.Unmarshal([]byte(out), &status) == nil && status.Leader.Name != "" && !status.Leader.Self
	}, "status", "-o", "json", "--socket", f.socket(first))
	wait.Until(t, "what it says of its end", func() bool {
		said, err := os.ReadFile(filepath.Join(f.dir, first+".log"))
		return err == nil && strings.Contains(string(said), "this coordinator leads no more")
	})
	f.ready(first)
	f.until(first+" serves", func(out string) bool { return out != "" }, "token", "create", "--entry", "nodes", "--socket", f.socket(first))

	wantBeatsInForce(t, st, term)
}

// wantBeatsInForce reads what was written of leadership after a term began: each beat is
// of the takeover that was in force.
func wantBeatsInForce(t *testing.T, st store.Store, term store.Revision) {
	t.Helper()
	now, err := st.Get(t.Context(), "leader/beat")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	force, beats := "", 0
	for change, err := range st.Changes(ctx, "leader/", term) {
		if err != nil {
			t.Fatal(err)
		}
		wrote := map[string]string{} // the nonces
		for _, e := range change.Put {
			// Before the record stands a code that only coordinators can check.
			var r struct {
				Nonce string `json:"nonce"`
			}
			if err := json.Unmarshal(e.Value[store.SealBytes:], &r); err != nil {
				t.Fatal(err)
			}
			wrote[e.Key] = r.Nonce
		}
		force = cmp.Or(wrote["leader/term"], force)
		if by, ok := wrote["leader/beat"]; ok && force != "" { // else it is of the term before, and in time
			beats++
			if by != force {
				t.Errorf("at %d, under %s, a beat of %s was written", change.Revision, force, by)
			}
		}
		if change.Revision > now.Version {
			break // one that came later, too
		}
	}
	if beats == 0 {
		t.Error("nobody beat")
	}
}
