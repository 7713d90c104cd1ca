package coordinator_test

import (
	"context"
	"crypto/tls"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/test/wait"
)

// Strangers beyond the room for them give way, and an operator can see it.
func TestRefusedConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	// All at once, so that all stand at a time: who is silent is cut after a while.
	var dials sync.WaitGroup
	defer dials.Wait()
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	stranger := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"}}}
	for range 8 {
		dials.Go(func() {
			for range 256 { // what a gate has room for
				if ctx.Err() != nil {
					return
				}
				if conn, err := stranger.DialContext(ctx, "tcp", f.Addr); err == nil {
					defer conn.Close()
				}
			}
		})
	}
	wait.Until(t, "a refusal is counted", func() bool {
		return coordinatortest.CounterOf(f.C.Registry(), "fealty_connections_refused_total") > 0
	})
}
