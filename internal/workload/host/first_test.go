package host_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// BenchmarkFirstSVID measures how long after its agent began to start a process has its first
// identity: on a node that joined and knows nothing yet, and on one that is started again. The
// process connects and asks again at once when it is refused; coordinator and agent are real, on this machine.
func BenchmarkFirstSVID(b *testing.B) {
	f := fleet(b)
	put(b, f, service("first", fmt.Sprintf("workload: {uid: %d, path: %s}\n", os.Getuid(), executable(b))))
	var first, again []time.Duration
	n := 0
	for b.Loop() {
		m := enrolled(b, f, fmt.Sprintf("node-%d", n))
		n++
		first = append(first, m.untilCertified())
		m.Stop()
		again = append(again, m.untilCertified())
		m.Stop()
	}
	for name, took := range map[string][]time.Duration{"first": first, "restarted": again} {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, name+"-p50-ms")
		b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, name+"-max-ms")
	}
}

func executable(tb testing.TB) string {
	tb.Helper()
	path, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// untilCertified starts the agent, and returns how long it took until this process had a certificate.
func (m *machine) untilCertified() time.Duration {
	m.t.Helper()
	soon := backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}
	conn, err := grpc.NewClient("unix://"+m.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: soon, MinConnectTimeout: time.Second}))
	if err != nil {
		m.t.Fatal(err)
	}
	defer conn.Close()
	client := pb.NewSpiffeWorkloadAPIClient(conn)
	ctx := metadata.AppendToOutgoingContext(m.t.Context(), "workload.spiffe.io", "true")
	began := time.Now()
	m.start()
	for {
		s, err := client.FetchX509SVID(ctx, &pb.X509SVIDRequest{}, grpc.WaitForReady(true))
		if err == nil {
			_, err = s.Recv()
		}
		switch status.Code(err) {
		case codes.OK:
			return time.Since(began)
		case codes.PermissionDenied, codes.Unavailable:
		default:
			m.t.Fatal(err)
		}
	}
}
