package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	devcluster "github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/mesh"
)

// Loads of [BenchmarkCoordinator].
const (
	joinEach  = "join-connection-each"
	joinOne   = "join-one-connection"
	renewOpen = "renew-open-connection"
	renewNew  = "renew-connection-each"
)

// A round has so many operations, and so many of them at once.
const (
	perRound = 400
	atOnce   = 16
)

// BenchmarkCoordinator measures the CPU time of a coordinator for one join and for one renewal, until
// it rests: what it publishes because of them is part of it. The coordinator is this process.
// Candidates and members are in another one, and so is PostgreSQL, whose time is apart.
func BenchmarkCoordinator(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) { measureCoordinator(b, "", nil) })
	b.Run("postgres", func(b *testing.B) {
		server := pgtest.New(b)
		measureCoordinator(b, server.URL(server.Database(b)), server)
	})
}

func measureCoordinator(b *testing.B, store string, server *pgtest.Server) {
	j := newJoins(b, store)
	clients := startProcess[load, struct{}](b, clientsRole)
	clients.tell(b, load{Token: j.token.Line()})
	for _, what := range []string{joinEach, joinOne, renewOpen, renewNew} {
		b.Run(what, func(b *testing.B) {
			var ours, database []time.Duration
			for b.Loop() {
				clients.tell(b, load{Prepare: what})
				rest(b, server)
				before, beside := cpu(b), databaseCPU(b, server)
				clients.tell(b, load{Do: what})
				rest(b, server)
				ours = append(ours, cpu(b)-before)
				database = append(database, databaseCPU(b, server)-beside)
			}
			b.ReportMetric(0, "ns/op") // of a round
			b.ReportMetric(float64(median(ours).Microseconds())/perRound, "coordinator-cpu-µs/op")
			if server != nil {
				b.ReportMetric(float64(median(database).Microseconds())/perRound, "postgres-cpu-µs/op")
			}
		})
	}
}

// rest waits until this process, and the database beside it, have next to nothing to do.
func rest(b *testing.B, server *pgtest.Server) {
	b.Helper()
	for quiet := 0; quiet < 4; {
		before := cpu(b) + databaseCPU(b, server)
		time.Sleep(100 * time.Millisecond)
		if quiet++; cpu(b)+databaseCPU(b, server)-before > 2*time.Millisecond {
			quiet = 0
		}
	}
}

// databaseCPU returns the CPU time that the processes of a server have used; nil has none.
func databaseCPU(b *testing.B, server *pgtest.Server) time.Duration {
	b.Helper()
	if server == nil {
		return 0
	}
	pid, err := os.ReadFile(filepath.Join(server.Data(), "postmaster.pid"))
	if err != nil {
		b.Fatal(err)
	}
	master, _, _ := strings.Cut(string(pid), "\n")
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		b.Fatal(err)
	}
	var ticks int64
	for _, path := range all {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		// pid (name) state ppid …, of which utime is the 14th (proc_pid_stat(5)).
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		times := fields[11:13]
		switch {
		case filepath.Base(filepath.Dir(path)) == master:
			times = fields[11:15] // and those of children that ended
		case fields[1] != master:
			continue
		}
		for _, f := range times {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100
}

// load is an order to the process of the clients.
type load struct {
	Token string `json:"token,omitempty"`
	// Prepare makes what the load needs, and Do is the load.
	Prepare string `json:"prepare,omitempty"`
	Do      string `json:"do,omitempty"`
}

// beClients is the process of the clients.
func beClients(in io.Reader, out io.Writer) error {
	var c clients
	defer c.close()
	return obey(in, out, func(l load) (struct{}, error) { return struct{}{}, c.do(l) })
}

// clients are candidates and members.
type clients struct {
	token    proof.JoinToken
	first    *devcluster.Candidate
	stranger *mesh.Conn
	members  []*loadMember // of the load that is prepared
}

type loadMember struct {
	*devcluster.Candidate
	chain [][]byte
	conn  *mesh.Conn
	id    identity.ID
}

func (c *clients) do(l load) (err error) {
	ctx := context.Background()
	switch {
	case l.Token != "":
		if c.token, err = proof.ParseJoinToken(l.Token); err != nil {
			return err
		}
		if c.first, err = devcluster.NewCandidate(c.token); err != nil {
			return err
		}
		return nil
	case l.Prepare != "":
		c.close()
		c.members = make([]*loadMember, perRound)
		if c.stranger, err = c.first.Dial(); err != nil {
			return err
		}
		return together(func(i int) (err error) {
			m := new(loadMember)
			c.members[i] = m
			if m.Candidate, err = c.first.Again(); err != nil || l.Prepare == joinEach || l.Prepare == joinOne {
				return err
			}
			if err = c.join(ctx, m, false); err != nil || l.Prepare == renewNew {
				return err
			}
			if m.conn, m.id, err = m.DialAs(m.chain); err != nil {
				return err
			}
			// Any answer says that the connection stands: this one, that members may not ask that.
			_, err = fealtyv1.NewStatusServiceClient(m.conn).GetStatus(ctx, &fealtyv1.GetStatusRequest{})
			if status.Code(err) == codes.PermissionDenied {
				return nil
			}
			return fmt.Errorf("open a connection: %w", err)
		})
	}
	return together(func(i int) (err error) {
		m := c.members[i]
		switch l.Do {
		case joinEach, joinOne:
			return c.join(ctx, m, l.Do == joinEach)
		case renewNew:
			if m.conn, m.id, err = m.DialAs(m.chain); err != nil {
				return err
			}
		}
		m.chain, err = m.Renew(ctx, m.conn, m.id)
		return err
	})
}

func (c *clients) join(ctx context.Context, m *loadMember, alone bool) error {
	conn := c.stranger
	if alone {
		var err error
		if conn, err = m.Dial(); err != nil {
			return err
		}
		defer conn.Close()
	}
	grant, err := m.JoinOver(ctx, conn, identity.Data, proof.NewTokenProver(c.token))
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	m.chain = grant.GetChain()
	return nil
}

func (c *clients) close() {
	if c.stranger != nil {
		c.stranger.Close()
		c.stranger = nil
	}
	for _, m := range c.members {
		if m != nil && m.conn != nil {
			m.conn.Close()
		}
	}
	c.members = nil
}

// together does the operations of a round, some of them at once.
func together(do func(i int) error) error {
	var next atomic.Int64
	var all sync.WaitGroup
	failed := make([]error, atOnce)
	for w := range atOnce {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < perRound && failed[w] == nil; i = int(next.Add(1)) - 1 {
				failed[w] = do(i)
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}
