package workloadapi_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// passVar is the socket that this program connects to. It sends the connection on file 3, and ends
// when that does.
const passVar = "FEALTY_TEST_PASS"

func TestMain(m *testing.M) {
	if socket := os.Getenv(passVar); socket != "" {
		pass(socket)
	}
	os.Exit(m.Run())
}

func pass(socket string) {
	defer os.Exit(0)
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	f, err := conn.(*net.UnixConn).File()
	if err != nil || unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0) != nil {
		return
	}
	_, _ = unix.Read(3, make([]byte, 1))
}

// passed starts a process that connects, and returns its connection and what ends it.
func (n *node) passed() (conn net.Conn, end func()) {
	n.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "theirs")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), passVar+"="+strings.TrimPrefix(n.conn.Target(), "unix://"))
	cmd.ExtraFiles = []*os.File{theirs}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		n.t.Fatal(err)
	}
	rights := make([]byte, unix.CmsgSpace(4))
	_, size, _, _, err := unix.Recvmsg(fds[0], make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		n.t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:size])
	if err != nil || len(messages) != 1 {
		n.t.Fatal(messages, err)
	}
	got, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		n.t.Fatal(err)
	}
	file := os.NewFile(uintptr(got[0]), "passed")
	defer file.Close()
	if conn, err = net.FileConn(file); err != nil {
		n.t.Fatal(err)
	}
	return conn, func() {
		unix.Close(fds[0])
		_ = cmd.Wait()
	}
}

// A stream sends nothing more once the process that opened it has ended, though another one has its
// connection: the kernel is asked before each answer, also where the same workloads are registered.
func TestEndedProcessGetsNoMore(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.Register("a")
	n.Certify("a")
	raw, end := n.passed()
	conn, err := grpc.NewClient("passthrough:///passed", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return raw, nil }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := pb.NewSpiffeWorkloadAPIClient(conn)
	svids, err := client.FetchX509SVID(n.ctx(), &pb.X509SVIDRequest{})
	if err != nil {
		t.Fatal(err)
	}
	bundles, err := client.FetchX509Bundles(n.ctx(), &pb.X509BundlesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := svids.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := bundles.Recv(); err != nil {
		t.Fatal(err)
	}
	end()
	n.Certify("a")
	if _, err := svids.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an identity after its process ended: %v", err)
	}
	n.SetRoots(true)
	if _, err := bundles.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a bundle after its process ended: %v", err)
	}
}
