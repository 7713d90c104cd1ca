package workloadtest

import (
	"context"
	"net"
	"runtime"
	"testing"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// As connects to a socket as another user, which only root can: the kernel tells who a thread is when
// it connects.
func As(tb testing.TB, uid int, socket string) net.Conn {
	tb.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(uid int) {
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			panic(e) // a thread of another user must not go on
		}
	}
	become(uid)
	conn, err := net.Dial("unix", socket)
	become(0)
	if err != nil {
		tb.Fatal(err)
	}
	return conn
}

// Over returns the Workload API on a connection, which ends with the test, and a context with the
// header that it asks for.
func Over(tb testing.TB, raw net.Conn) (pb.SpiffeWorkloadAPIClient, context.Context) {
	tb.Helper()
	conn, err := grpc.NewClient("passthrough:///local", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return raw, nil }))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return pb.NewSpiffeWorkloadAPIClient(conn),
		metadata.AppendToOutgoingContext(tb.Context(), "workload.spiffe.io", "true")
}
