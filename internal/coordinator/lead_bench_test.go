//go:build linux

package coordinator

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
)

// BenchmarkFailover measures how long it takes from the end of a leader to the first
// write of the next: the publication of a member that joined at another coordinator
// meanwhile. Run it with -benchtime 100x for the figures of docs/reference/benchmarks.md.
func BenchmarkFailover(b *testing.B) {
	for _, engine := range []string{"sqlite", "postgres"} {
		for _, how := range []string{"killed", "stopped"} {
			b.Run(engine+"/"+how, func(b *testing.B) {
				var open func() store.Store
				if engine == "postgres" {
					server, err := pgtest.Start()
					if err != nil {
						b.Fatal(err)
					}
					b.Cleanup(func() { server.Close() })
					url := server.URL(server.Database(b))
					open = func() store.Store {
						st, err := postgres.Open(context.Background(), url, postgres.Options{})
						if err != nil {
							b.Fatal(err)
						}
						return st
					}
				}
				failover(b, open, how == "killed")
			})
		}
	}
}

func failover(b *testing.B, open func() store.Store, killed bool) {
	all := coordinatorsWith(b, open, nil)
	var took []time.Duration
	joined := 0
	for b.Loop() {
		leader, _, others := awaitLeader(b, all...)
		joined++
		name := fmt.Sprintf("n%d", joined)
		began, ended := time.Now(), make(chan struct{})
		if killed {
			leader.link.cut(errKilled)
		}
		go func() { leader.stop(); close(ended) }()
		others[0].member(name)
		next, _, _ := awaitLeader(b, others...)
		next.awaitTold("data/" + name)
		took = append(took, time.Since(began))
		<-ended
		leader.link.cut(nil)
		leader.start()
		leader.await(phaseReady)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "median-ms")
	b.ReportMetric(float64(took[(len(took)*99+99)/100-1].Milliseconds()), "p99-ms")
	b.ReportMetric(0, "ns/op")
}
