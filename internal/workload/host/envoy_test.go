package host_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	discoveryv3 "github.com/fealty-io/fealty/api/envoy/service/discovery/v3"
	secretv3 "github.com/fealty-io/fealty/api/envoy/service/secret/v3"
)

// Envoy gets certificate and roots by SDS, and what changes of them, by its own messages. A proxy
// is a process like any other: it gets what it is registered for.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	client := filepath.Join(t.TempDir(), "envoyclient")
	// With the settings of the program that is shipped, what was compiled for that is in Go's build cache.
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace,nethttpomithttp2", "-o", client,
		".")
	build.Dir = "../sds/testdata/envoyclient"
	build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f := fleet(t)
	m := joined(t, f, "node-a")
	start := func(names ...string) *lines {
		t.Helper()
		cmd := exec.Command(client, append([]string{m.socket}, names...)...)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return &lines{t, bufio.NewScanner(out)}
	}
	m.serves() // the program does not try again
	start("default").until("error", "PermissionDenied")
	put(t, f, service("edge", fmt.Sprintf("workload: {uid: %d, path: %s}\n", os.Getuid(), client)))
	m.program().until("error PermissionDenied") // another program of the same user
	const id = "spiffe://test.example/workload/edge"
	await := func() *lines {
		for { // until the agent has heard of the service
			p := start("default", "ROOTCA")
			if line := p.next(); !strings.HasPrefix(line, "error") {
				if !strings.HasPrefix(line, "default: "+id+", 2 certificates, serial ") {
					t.Fatalf("got %q", line)
				}
				return p
			}
		}
	}
	p := await()
	p.until("ROOTCA: 1 roots")
	p.until("version")
	byID := start(id, "spiffe://test.example", "spiffe://test.example/workload/other")
	byID.until(id + ": " + id)
	byID.until("spiffe://test.example: 1 roots")
	byID.until("version")
	all := start()
	all.until(id + ": " + id)
	all.until("spiffe://test.example: 1 roots")

	// Once it is registered no more, the stream ends.
	put(t, f, service("edge", ""))
	p.until("error", "PermissionDenied")

	conn, err := grpc.NewClient("unix://"+m.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for name, req := range map[string]*discoveryv3.DiscoveryRequest{
		"another type": {TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener"},
		"many names":   {ResourceNames: make([]string, 129)},
		"a long name":  {ResourceNames: []string{strings.Repeat("x", 2049)}},
	} {
		if _, err := secretv3.NewSecretDiscoveryServiceClient(conn).FetchSecrets(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}
