package host_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
)

// BenchmarkOneWorkload measures how long a change of the config takes from the call that makes it to a
// process that it concerns, on a node where a thousand workloads listen: a service goes from the user
// of one to that of another. Coordinator, store and agent are real, on this machine and its disk. Half
// a second lies between two changes: those that come at once are told together.
func BenchmarkOneWorkload(b *testing.B) {
	const workloads, firstUID, atOnce = 1000, 200000, 50
	if os.Getuid() != 0 {
		b.Skip("connects as a thousand users, which takes root")
	}
	f := fleet(b)
	m := joined(b, f, "node-a")
	m.serves()
	if err := os.Chmod(filepath.Dir(m.socket), 0o755); err != nil {
		b.Fatal(err)
	}
	extra := func(n int) string {
		return service("extra", fmt.Sprintf("workload: {uid: %d}\n", firstUID+n))
	}
	records := [][]byte{[]byte(extra(0))}
	for n := range workloads {
		records = append(records, []byte(service(fmt.Sprintf("s%d", n), fmt.Sprintf("workload: {uid: %d}\n", firstUID+n))))
	}
	for some := range slices.Chunk(records, atOnce) {
		if _, err := fealtyv1.NewConfigServiceClient(f.LocalConn()).PutConfig(b.Context(),
			&fealtyv1.PutConfigRequest{Records: some}); err != nil {
			b.Fatal(err)
		}
	}
	type answer struct {
		who, identities int
		at              time.Time
	}
	answers := make(chan answer, workloads)
	for n := range workloads {
		client, ctx := over(b, as(b, firstUID+n, m.socket))
		go func() {
			for listen(ctx, client, func(identities int) { answers <- answer{n, identities, time.Now()} }) {
				time.Sleep(10 * time.Millisecond) // nothing was assigned yet
			}
		}()
	}
	has := make([]int, workloads)
	until := func(done func() bool) time.Time {
		for {
			select {
			case a := <-answers:
				if has[a.who] = a.identities; done() {
					return a.at
				}
			case <-time.After(time.Minute):
				b.Fatal("it was never told")
			}
		}
	}
	until(func() bool { return has[0] == 2 && !slices.Contains(has, 0) })
	var took []time.Duration
	n := 0
	for b.Loop() {
		next := (n + 1) % workloads
		b.StopTimer()
		time.Sleep(500 * time.Millisecond)
		b.StartTimer()
		began := time.Now()
		put(b, f, extra(next))
		took = append(took, until(func() bool { return has[next] == 2 }).Sub(began))
		n = next
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
}

// listen tells how many identities a process has, until its stream ends. It reports whether another
// one may have them.
func listen(ctx context.Context, client pb.SpiffeWorkloadAPIClient, tell func(identities int)) bool {
	s, err := client.FetchX509SVID(ctx, &pb.X509SVIDRequest{}, grpc.WaitForReady(true))
	for err == nil {
		var got *pb.X509SVIDResponse
		if got, err = s.Recv(); err == nil {
			tell(len(got.GetSvids()))
		}
	}
	code := status.Code(err)
	return ctx.Err() == nil && (code == codes.PermissionDenied || code == codes.Unavailable)
}
