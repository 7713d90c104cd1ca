package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/workload/workloadtest"
	"github.com/fealty-io/fealty/test/wait"
)

// BenchmarkOneWorkload measures how long a change of the config takes from the call that makes it to a
// process that it concerns, on a node where a thousand workloads listen: a service goes from the user
// of one to that of another. Coordinator and agent are processes of the program, on this machine and
// its disk, with the settings that they come with; all workloads are in the process of the benchmark.
// Half a second lies between two changes: those that come at once are told together.
func BenchmarkOneWorkload(b *testing.B) {
	const workloads, firstUID, atOnce = 1000, 200000, 50
	if os.Getuid() != 0 {
		b.Skip("connects as a thousand users, which takes root")
	}
	f := startFlooded(b)
	socket := f.agent("node-a")
	admin, err := grpc.NewClient("unix:"+filepath.Join(f.dir, "c", "admin.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer admin.Close()
	configs := fealtyv1.NewConfigServiceClient(admin)
	put := func(records ...[]byte) {
		if _, err := configs.PutConfig(b.Context(), &fealtyv1.PutConfigRequest{Records: records}); err != nil {
			b.Fatal(err)
		}
	}
	service := func(name string, n int) []byte {
		return fmt.Appendf(nil, "kind: service\nname: %s\ntype: process\nworkload: {uid: %d}\n", name, firstUID+n)
	}
	records := [][]byte{service("extra", 0)}
	for n := range workloads {
		records = append(records, service(fmt.Sprintf("s%d", n), n))
	}
	for some := range slices.Chunk(records, atOnce) {
		put(some...)
	}
	type answer struct {
		who, identities int
		at              time.Time
	}
	answers := make(chan answer, workloads)
	for n := range workloads {
		client, ctx := workloadtest.Over(b, workloadtest.As(b, firstUID+n, socket))
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
			case <-time.After(2 * time.Minute):
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
		put(service("extra", next))
		took = append(took, until(func() bool { return has[next] == 2 }).Sub(began))
		n = next
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
}

// agent has a node join, starts its agent, and returns the socket of its workloads once that serves
// them, whoever they are.
func (f *flooded) agent(name string) (socket string) {
	f.t.Helper()
	f.must("join", strings.TrimSpace(f.must("token", "create", "--entry", "nodes")), "--data", name)
	open, err := os.MkdirTemp("", "fealty-workloads-")
	if err == nil {
		f.t.Cleanup(func() { os.RemoveAll(open) })
		err = os.Chmod(open, 0o755)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	socket = filepath.Join(open, "spiffe.sock")
	cmd := f.fealty(context.WithoutCancel(f.t.Context()), "agent", "--data", name, "--workload-socket", socket,
		"--log-level", "error")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	wait.Until(f.t, "the agent's socket", func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return socket
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
