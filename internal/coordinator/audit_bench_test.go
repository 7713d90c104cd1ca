package coordinator // the baseline writes entries as a release before chains did, which takes a door inside

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/proof"
)

// unchained gives entries places in no chain, as a release before chains did.
type unchained struct{ real *auditlog.Writer }

func (u unchained) Stamp(ctx context.Context, entries []auditEntry) (*auditlog.Stamped, error) {
	s, err := u.real.Stamp(ctx, nil) // so that the transaction has something to end
	if err != nil {
		return nil, err
	}
	s.Writes = nil
	for _, e := range entries {
		raw, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		random := make([]byte, 4)
		rand.Read(random)
		s.Writes = append(s.Writes, auditlog.Write{Key: fmt.Sprintf("%s%020d-%s", auditPrefix, e.At.UnixNano(), hex.EncodeToString(random)), Value: raw})
	}
	return s, nil
}

// places chooses between both.
type switched struct {
	mu            sync.RWMutex
	plain         bool // guarded by mu
	chains, plane auditPlaces
}

func (s *switched) Stamp(ctx context.Context, entries []auditEntry) (*auditlog.Stamped, error) {
	s.mu.RLock()
	plain := s.plain
	s.mu.RUnlock()
	if plain {
		return s.plane.Stamp(ctx, entries)
	}
	return s.chains.Stamp(ctx, entries)
}

// BenchmarkJoinsWithChains has machines join at three coordinators at once, in batches with
// and without chains in turn, and reports how much longer those with chains take, the
// checkpoint of each batch among them.
func BenchmarkJoinsWithChains(b *testing.B) {
	const batch = 48
	f, replicas := peerFleet(b, 2, func(cfg *Config) {
		cfg.Rates = Rates{PerSource: 1e6, SourceBurst: 1e6}
	})
	all := []*fleet{f}
	for _, r := range replicas {
		r.start()
		r.awaitHead(f)
		all = append(all, r)
	}
	var turns []*switched
	for _, r := range all {
		s := &switched{chains: r.c.auditWriter}
		own, err := auditlog.NewWriter("00000000000000ff", r.c.now)
		if err != nil {
			b.Fatal(err)
		}
		s.plane = unchained{own}
		r.c.state.Load().records.audit = s
		turns = append(turns, s)
	}
	joins := func(plain bool) time.Duration {
		for _, s := range turns {
			s.mu.Lock()
			s.plain = plain
			s.mu.Unlock()
		}
		tok := f.token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: batch})
		nodes := make([]*node, batch)
		for i := range nodes {
			nodes[i] = all[i%len(all)].node()
		}
		began := time.Now()
		var wg sync.WaitGroup
		for _, n := range nodes {
			wg.Go(func() {
				if err := n.join(identity.Data, proof.NewTokenProver(tok)); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		if !plain {
			for _, r := range all {
				if err := ignoreConflict(r.c.checkpoint(f.ctx(), r.c.state.Load(), 0)); err != nil {
					b.Error(err)
				}
			}
		}
		return time.Since(began)
	}
	joins(true)
	joins(false)
	var with, without time.Duration
	b.ResetTimer()
	for i := range b.N {
		// Whoever comes second has more members before it.
		if i%2 == 0 {
			with += joins(false)
			without += joins(true)
		} else {
			without += joins(true)
			with += joins(false)
		}
	}
	b.ReportMetric(float64(with)/float64(without), "with/without")
	b.ReportMetric(float64(with)/float64(b.N*batch)/1e6, "ms/join-with")
	b.ReportMetric(float64(without)/float64(b.N*batch)/1e6, "ms/join-without")
}
