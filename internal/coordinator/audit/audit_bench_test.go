package audit_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/audit"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/proof"
)

// unchained gives entries places in no chain, as a release before chains did.
type unchained struct{ real *auditlog.Writer }

func (u unchained) Stamp(ctx context.Context, entries []record.AuditEntry) (*auditlog.Stamped, error) {
	s, err := u.real.Stamp(ctx, nil) // so that the transaction has something to end
	if err != nil {
		return nil, err
	}
	s.Writes, s.Begins = nil, ""
	for _, e := range entries {
		raw, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		random := make([]byte, 4)
		rand.Read(random)
		s.Writes = append(s.Writes, auditlog.Write{Key: fmt.Sprintf("%s%020d-%s", auditlog.Prefix, e.At.UnixNano(),
			hex.EncodeToString(random)), Value: raw})
	}
	return s, nil
}

// switched chooses between both.
type switched struct {
	mu            sync.RWMutex
	plain         bool // guarded by mu
	chains, plane record.AuditPlaces
}

// newSwitched has c, whose clock now is, choose, from chains on.
func newSwitched(t testing.TB, c *coordinator.Coordinator, now func() time.Time) *switched {
	t.Helper()
	own, err := auditlog.NewWriter("00000000000000ff", now)
	if err != nil {
		t.Fatal(err)
	}
	s := &switched{chains: c.Parts().Auditing.Places(), plane: unchained{own}}
	c.Parts().Head.State().Records.Audit = s
	return s
}

func (s *switched) choose(plain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plain = plain
}

func (s *switched) Stamp(ctx context.Context, entries []record.AuditEntry) (*auditlog.Stamped, error) {
	s.mu.RLock()
	plain := s.plain
	s.mu.RUnlock()
	if plain {
		return s.plane.Stamp(ctx, entries)
	}
	return s.chains.Stamp(ctx, entries)
}

// BenchmarkJoinsWithChains has machines join at three coordinators at once, in rounds with and without
// chains in turn, and reports how much longer, and how much more of the processor, those with chains take.
//
// The leader makes a checkpoint a minute, whoever joins, over up to 1,024 entries. A round has none on purpose, but the
// leader's own may fall into any; one over what the rounds left is timed after them, and reported by itself and as a
// share of the minute.
func BenchmarkJoinsWithChains(b *testing.B) {
	const batch = 24
	f, replicas := coordinatortest.NewPeerFleet(b, 2, func(cfg *coordinator.Config) {
		cfg.Rates = coordinator.Rates{PerSource: 1e6, SourceBurst: 1e6}
		cfg.Log = slog.New(slog.DiscardHandler)
	})
	all := []*coordinatortest.Fleet{f}
	for _, r := range replicas {
		r.Start()
		r.AwaitHead(f)
		all = append(all, r)
	}
	var turns []*switched
	for _, r := range all {
		turns = append(turns, newSwitched(b, r.C, r.Clock))
	}
	// round returns what a join of it took, on the clock and of the processor.
	round := func(plain bool) (wall, processor float64) {
		for _, s := range turns {
			s.choose(plain)
		}
		tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: batch})
		nodes := make([]*coordinatortest.Node, batch)
		for i := range nodes {
			nodes[i] = all[i%len(all)].Node()
		}
		runtime.GC()
		began, used := time.Now(), processorTime(b)
		var wg sync.WaitGroup
		for _, n := range nodes {
			wg.Go(func() {
				if err := n.Join(identity.Data, proof.NewTokenProver(tok)); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		return time.Since(began).Seconds() / batch, (processorTime(b) - used).Seconds() / batch
	}
	checkpoint := func() (entries uint64, took time.Duration) {
		leader, _, _ := coordinatortest.AwaitLeader(b, all...)
		before := coordinatortest.AuditReport(b, leader.C, leader.Store, leader.Clock()).Covered
		began := time.Now()
		if err := leader.C.Parts().Audit.Checkpoint(f.Context(), leader.State(), 0); err != nil {
			b.Error(err)
		}
		took = time.Since(began)
		return coordinatortest.AuditReport(b, leader.C, leader.Store, leader.Clock()).Covered - before, took
	}
	for range 2 {
		round(true)
		round(false)
	}
	checkpoint()
	var walls, processors []float64 // of pairs: with chains, by without
	var with, without float64
	b.ResetTimer()
	for i := range b.N {
		// The second one has more members before it.
		order := []bool{false, true}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		var wall, processor [2]float64 // with, without
		for _, plain := range order {
			k := 0
			if plain {
				k = 1
			}
			wall[k], processor[k] = round(plain)
		}
		walls, processors = append(walls, wall[0]/wall[1]), append(processors, processor[0]/processor[1])
		with, without = with+wall[0], without+wall[1]
	}
	b.StopTimer()
	entries, took := checkpoint()
	low, middle, high := spread(walls)
	b.ReportMetric(low, "wall-ratio-low")
	b.ReportMetric(middle, "wall-ratio")
	b.ReportMetric(high, "wall-ratio-high")
	low, middle, high = spread(processors)
	b.ReportMetric(low, "cpu-ratio-low")
	b.ReportMetric(middle, "cpu-ratio")
	b.ReportMetric(high, "cpu-ratio-high")
	b.ReportMetric(1e3*with/float64(b.N), "ms/join-with")
	b.ReportMetric(1e3*without/float64(b.N), "ms/join-without")
	b.ReportMetric(float64(took.Microseconds())/1e3, "ms/checkpoint")
	b.ReportMetric(float64(entries), "entries/checkpoint")
	b.ReportMetric(100*took.Seconds()/audit.CheckpointPause.Seconds(), "%of-a-minute/checkpoint")
}

// BenchmarkPlaces is what a join's entry costs the processor before it is committed, with a place in a
// chain and without.
func BenchmarkPlaces(b *testing.B) {
	w, err := auditlog.NewWriter("00000000000000ff", time.Now)
	if err != nil {
		b.Fatal(err)
	}
	e := record.AuditEntry{At: time.Now().UTC(), Actor: "spiffe://test.example/data/node-1", Action: "member.admit",
		Target: "spiffe://test.example/data/node-1",
		Fields: map[string]string{"proof": "token", "selector": "token:pool",
			"entry": "pool", "key": "ed25519:" + strings.Repeat("a", 43)}}
	for name, places := range map[string]record.AuditPlaces{"chain": w, "none": unchained{w}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s, err := places.Stamp(b.Context(), []record.AuditEntry{e})
				if err != nil {
					b.Fatal(err)
				}
				s.Applied()
			}
		})
	}
}

// spread returns the median of ratios, and the bounds of the 95% in which the median of as many others
// would be.
func spread(ratios []float64) (low, middle, high float64) {
	n := len(ratios)
	random := mathrand.New(mathrand.NewPCG(1, 2))
	medians := make([]float64, 2000)
	for i := range medians {
		again := make([]float64, n)
		for j := range again {
			again[j] = ratios[random.IntN(n)]
		}
		medians[i] = median(again)
	}
	slices.Sort(medians)
	return medians[len(medians)/40], median(ratios), medians[len(medians)-1-len(medians)/40]
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// processorTime is what this process has used of the processor.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
