// Package bench measures what users wait for, beside the raw work in the same run
// where there is such a thing.
package bench

import (
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	devcluster "github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
)

// cluster starts a coordinator on SQLite, without members and without limits.
func cluster(b *testing.B) *devcluster.Cluster { return clusterOn(b, "") }

// clusterOn is cluster on the PostgreSQL database at store, if it names one.
func clusterOn(b *testing.B, store string) *devcluster.Cluster {
	b.Helper()
	c, err := devcluster.Start(b.Context(), devcluster.Options{
		DataDir: b.TempDir(), Store: store, Coordinators: 1, Members: []string{}, Release: "bench", Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Rates: coordinator.Rates{PerSource: 1e9, SourceBurst: 1e9, Overall: 1e9, OverallBurst: 1e9, PerMember: 1e9, MemberBurst: 1e9},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	})
	return c
}

// cpu returns the CPU time that this process, its clients included, has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	used, err := cpuTime()
	if err != nil {
		b.Fatal(err)
	}
	return used
}

func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}

// measure runs op in parallel, and reports operations a second and CPU time.
func measure(b *testing.B, op func() error) {
	b.Helper()
	b.SetParallelism(16)
	before := cpu(b)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := op(); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// BenchmarkJoin admits new members with one pool token: proof, durable record and
// use of the token, certificate, two signed snapshots. Candidates and coordinator
// share the CPU.
func BenchmarkJoin(b *testing.B) {
	j := newJoins(b, "")
	b.Run("connection-each", func(b *testing.B) {
		measure(b, func() error {
			n, err := j.first.Again()
			if err != nil {
				return err
			}
			_, err = n.Join(b.Context(), identity.Data, proof.NewTokenProver(j.token))
			return err
		})
	})
	b.Run("one-connection", func(b *testing.B) {
		measure(b, func() error { return j.one(b) })
	})
}

// BenchmarkJoinOnPostgres admits new members on both engines in turns, a few joins
// each, so that both have the same machine at the same time. The server is on this
// machine and syncs to the same disk; a network in between adds two round trips to
// a commit.
func BenchmarkJoinOnPostgres(b *testing.B) {
	server := pgtest.New(b)
	sqlite := newJoins(b, "")
	postgres := newJoins(b, server.URL(server.Database(b)))
	const turn, atOnce = 64, 32
	var onSQLite, onPostgres time.Duration
	b.ResetTimer()
	for left := b.N; left > 0; left -= turn {
		n := min(left, turn)
		onSQLite += sqlite.run(b, n, atOnce)
		onPostgres += postgres.run(b, n, atOnce)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/onSQLite.Seconds(), "sqlite-op/s")
	b.ReportMetric(float64(b.N)/onPostgres.Seconds(), "postgres-op/s")
	b.ReportMetric(onSQLite.Seconds()/onPostgres.Seconds(), "postgres/sqlite")
}

// joins is a load of joins on one cluster, over one connection.
type joins struct {
	cluster *devcluster.Cluster
	token   proof.JoinToken
	first   *devcluster.Candidate
	conn    grpc.ClientConnInterface
}

func newJoins(b *testing.B, store string) *joins {
	b.Helper()
	c := clusterOn(b, store)
	tok, err := c.Token(b.Context(), &fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 100_000})
	if err != nil {
		b.Fatal(err)
	}
	first, err := c.Candidate(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	conn, err := first.Dial()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return &joins{c, tok, first, conn}
}

func (j *joins) one(b *testing.B) error {
	n, err := j.first.Again()
	if err != nil {
		return err
	}
	_, err = n.JoinOver(b.Context(), j.conn, identity.Data, proof.NewTokenProver(j.token))
	return err
}

// run makes n joins, some of them at once, and returns how long they took.
func (j *joins) run(b *testing.B, n, atOnce int) time.Duration {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	begun := time.Now()
	for range atOnce {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := j.one(b); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(begun)
}

// BenchmarkRenew renews members, each over a connection with the key of its last
// renewal, as the coordinator demands: a handshake is part of it. A member's
// record bounds its valid certificates, so a member that reached the bound gives
// way to a new one.
func BenchmarkRenew(b *testing.B) {
	c := cluster(b)
	tok, err := c.Token(b.Context(), &fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 100_000})
	if err != nil {
		b.Fatal(err)
	}
	type member struct {
		*devcluster.Candidate
		chain [][]byte
		done  int
	}
	join := func() (*member, error) {
		n, err := c.Candidate(b.Context())
		if err != nil {
			return nil, err
		}
		grant, err := n.Join(b.Context(), identity.Data, proof.NewTokenProver(tok))
		return &member{Candidate: n, chain: grant.GetChain()}, err
	}
	pool := make(chan *member, 64)
	for range cap(pool) {
		m, err := join()
		if err != nil {
			b.Fatal(err)
		}
		pool <- m
	}
	measure(b, func() error {
		m := <-pool
		defer func() { pool <- m }()
		if m.done++; m.done > 50 {
			fresh, err := join()
			if err != nil {
				return err
			}
			m = fresh
		}
		conn, id, err := m.DialAs(m.chain)
		if err != nil {
			return err
		}
		defer conn.Close()
		chain, err := m.Renew(b.Context(), conn, id)
		if err == nil {
			m.chain = chain
		}
		return err
	})
}
