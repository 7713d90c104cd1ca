package coordinator

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fealty-io/fealty/mesh"
)

// Strangers beyond the room for them give way, and an operator can see it.
func TestRefusedConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	for range mesh.DefaultGateStrangers + 1 {
		conn, err := tls.Dial("tcp", f.addr, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}})
		if err == nil {
			defer conn.Close()
		}
	}
	for deadline := time.Now().Add(time.Minute); testutil.ToFloat64(f.c.metrics.refused) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no refusal was counted")
		}
		time.Sleep(time.Millisecond)
	}
}
