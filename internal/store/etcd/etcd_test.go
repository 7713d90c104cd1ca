//go:build linux

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/conformance"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/storetest"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// server is the one that all tests share; each has a prefix of its own. Tests do
// not run in parallel, because some kill it.
var server *etcdtest.Cluster

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if server, err = etcdtest.Start(etcdtest.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Close()
	return m.Run()
}

func openAt(t testing.TB, url string, o etcd.Options) *etcd.Store {
	t.Helper()
	var s *etcd.Store
	// A server of a busy machine may be slower than an impatient client waits.
	wait.UntilNil(t, "the store is opened", func() (err error) {
		if s, err = etcd.Open(context.Background(), url, o); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		return err
	})
	t.Cleanup(func() { s.Close() })
	return s
}

func put(key, value string) store.Tx {
	return store.Tx{Put: []store.Write{{Key: key, Value: []byte(value)}}}
}

func mustCommit(t testing.TB, s store.Store, tx store.Tx) store.Revision {
	t.Helper()
	r, err := s.Commit(t.Context(), tx)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// again stops the servers in some way, and starts them.
func again(t testing.TB, c *etcdtest.Cluster, stop func() error) {
	t.Helper()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
}

func engineOf(c *etcdtest.Cluster) storetest.Engine {
	return storetest.Engine{OutsideClock: true, New: func(t testing.TB, retain int) conformance.Database {
		url := c.URL(c.Prefix())
		open := func() (store.Store, error) {
			return etcd.Open(context.Background(), url, etcd.Options{RetainCommits: retain})
		}
		return conformance.Database{
			Shared: true,
			Open:   open,
			Restart: func(s store.Store) (store.Store, error) {
				if err := s.Close(); err != nil {
					return nil, err
				}
				again(t, c, c.Stop)
				return open()
			},
			Kill: func(s store.Store) (store.Store, error) {
				again(t, c, c.Kill)
				if err := s.Close(); err != nil {
					return nil, err
				}
				return open()
			},
		}
	}}
}

func TestConformance(t *testing.T) { storetest.Run(t, engineOf(server)) }

// TestConformanceFull is the case Full on servers of its own, whose quota is used up and
// then raised.
func TestConformanceFull(t *testing.T) {
	testlane.Nightly(t)
	c := etcdtest.New(t, etcdtest.Options{Args: []string{"--quota-backend-bytes=16777216"}})
	e := engineOf(c)
	inner := e.New
	e.New = func(t testing.TB, retain int) conformance.Database {
		db := inner(t, retain)
		db.Full = func(s store.Store, full bool) (store.Store, error) {
			if !full {
				raiseQuota(t, c)
			}
			return s, nil
		}
		return db
	}
	storetest.RunCase(t, e, "Full")
}

// raiseQuota gives the one member of c space again, as an operator does.
func raiseQuota(t testing.TB, c *etcdtest.Cluster) {
	t.Helper()
	c.Raise("--quota-backend-bytes=1073741824")
	again(t, c, c.Stop)
	maintenance := pb.NewMaintenanceClient(c.Conn(t))
	alarms, err := maintenance.Alarm(context.Background(), &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
	if err != nil || len(alarms.Alarms) == 0 {
		t.Fatalf("%v, %v", alarms, err)
	}
	for _, a := range alarms.Alarms {
		if _, err := maintenance.Alarm(context.Background(), &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.MemberID, Alarm: a.Alarm}); err != nil {
			t.Fatal(err)
		}
	}
}
