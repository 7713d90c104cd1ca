package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/internal/store/storetest/proxytest"
	"github.com/fealty-io/fealty/test/testlane"
)

// TestStartAgainOnPostgres: the cluster is in the database, not in the process.
func TestStartAgainOnPostgres(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := pgtest.New(t)
	testStartAgain(t, server.URL(server.Database(t)))
}

// busy is a cluster whose members are connected and at which candidates join and
// renew, until it is settled.
type busy struct {
	*Cluster
	*ledger
	token   proof.JoinToken
	joining sync.WaitGroup
	stop    context.CancelFunc
}

func keepBusy(t *testing.T, store string) *busy {
	t.Helper()
	c, err := Start(t.Context(), Options{
		DataDir: t.TempDir(), Store: store, Members: []string{"node-a", "node-b"}, Release: "test",
		Log:   slog.New(slog.NewTextHandler(io.Discard, nil)),
		Rates: coordinator.Rates{PerSource: 1e9, SourceBurst: 1e9, Overall: 1e9, OverallBurst: 1e9, PerMember: 1e9, MemberBurst: 1e9},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	tok, err := c.Token(t.Context(), &fealtyv1.CreateTokenRequest{Entry: PoolEntry, Uses: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	first, err := c.Candidate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	b := &busy{
		Cluster: c, token: tok, stop: stop,
		ledger: &ledger{acked: make(map[string]identity.KeyID), sent: make(map[string]identity.KeyID)},
	}
	for range 4 {
		b.joining.Go(func() {
			if err := b.joiner(ctx, c, tok, first); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { stop(); b.joining.Wait() })
	return b
}

// admitted counts the candidates that were told so.
func (b *busy) admitted() int {
	b.ledger.mu.Lock()
	defer b.ledger.mu.Unlock()
	return len(b.acked)
}

// goesOn waits until more candidates are admitted.
func (b *busy) goesOn(t *testing.T) {
	t.Helper()
	before := b.admitted()
	err := await(t.Context(), "candidates to be admitted", func(context.Context) (bool, error) {
		now := b.admitted()
		return now > before+4, fmt.Errorf("%d were, and %d are", before, now)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// settle lets the joins end, waits until the members are back, and compares.
func (b *busy) settle(t *testing.T) {
	t.Helper()
	b.stop()
	b.joining.Wait()
	if err := b.AwaitConnected(t.Context(), "node-a", "node-b"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.Done():
		t.Fatal("the coordinator ended")
	default:
	}
	st, err := b.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.check(t.Context(), t, b.Cluster, b.token, st)
	t.Logf("%d candidates admitted, %d certificates", len(b.acked), len(b.certs))
}

// TestPostgresKilled kills the database server with SIGKILL again and again while
// candidates join. The coordinator stays up, finds out about the writes whose
// answers were lost, and goes on when the server is back.
func TestPostgresKilled(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := pgtest.New(t)
	b := keepBusy(t, server.URL(server.Database(t)))
	random := rand.New(rand.NewPCG(testlane.Seed(t), 1))
	for range 4 {
		b.goesOn(t)
		// The moment is random on purpose; nothing is waited for.
		time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
		if err := errors.Join(server.Kill(), server.Start()); err != nil {
			t.Fatal(err)
		}
	}
	b.goesOn(t)
	b.settle(t)
}

// TestPostgresAnswersLost cuts the connection to the database in every third
// commit, now before the server has it and now after: both look the same from
// here, and of neither may a candidate be told what is not so.
func TestPostgresAnswersLost(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	p := pgtest.NewProxy(t, server.Addr())
	b := keepBusy(t, server.URLVia(p.Addr(), server.Database(t)))
	for i := range testlane.Rounds(6, 30) {
		p.WhenAgain(2, "fealty_commit", []proxytest.Fate{proxytest.CutAfter, proxytest.CutBefore}[i%2])
		if err := await(t.Context(), "a commit", func(context.Context) (bool, error) { return !p.Pending(), nil }); err != nil {
			t.Fatal(err)
		}
	}
	b.goesOn(t)
	b.settle(t)
}
