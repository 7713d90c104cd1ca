// Package examples_test runs the programs for members with a real coordinator and real agents.
package examples_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	folder "github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/member"
)

// joined has an agent join and run until the test ends, and returns its folder.
func joined(t *testing.T, f *coordinatortest.Fleet, name string) string {
	t.Helper()
	m := member.Join(t, f, "pool", name)
	m.Start()
	return m.Dir
}

// program is an example that runs until the test ends.
type program struct {
	name  string
	lines *bufio.Scanner
}

func start(t *testing.T, path string, args ...string) *program {
	t.Helper()
	return startIn(t, nil, path, args...)
}

// startIn starts an example with more in its environment.
func startIn(t *testing.T, env []string, path string, args ...string) *program {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = t.Output()
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
	return &program{strings.Join(append([]string{filepath.Base(path)}, args...), " "), bufio.NewScanner(out)}
}

// mostLines is how much a program says at most before what is waited for: it asks once a second.
const mostLines = 300

// say reads what the program says until a line has one of the words, and returns it.
func (p *program) say(t *testing.T, words ...string) string {
	t.Helper()
	for range mostLines {
		if !p.lines.Scan() {
			break
		}
		for _, w := range words {
			if strings.Contains(p.lines.Text(), w) {
				return p.lines.Text()
			}
		}
	}
	t.Fatalf("%s never said %q, the last line is %q", p.name, words, p.lines.Text())
	return ""
}

// build builds examples with the settings of the program that is shipped, so that what was compiled
// for that is found in Go's build cache.
func build(t *testing.T, to string, packages ...string) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"build", "-buildvcs=false", "-trimpath",
		"-tags=grpcnotrace,nethttpomithttp2", "-o", to}, packages...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// The programs for members find each other by identity, go on over renewals of both, and serve
// nobody who is banned. They are as short as is promised, and read no PEM.
func TestPrograms(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	build(t, bin+"/", "./grpc", "./http", "./verify")
	for name, most := range map[string]int{"grpc": 60, "http": 60, "verify": 25} {
		source, err := os.ReadFile(filepath.Join(name, "main.go"))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(source), "\n"); n > most || strings.Contains(string(source), "pem") {
			t.Errorf("%s has %d lines, at most %d are promised, and no PEM", name, n, most)
		}
	}
	f := coordinatortest.ReadyFleet(t, nil)
	a, b := joined(t, f, "node-a"), joined(t, f, "node-b")
	const server, client = "spiffe://test.example/data/node-a", "spiffe://test.example/data/node-b"
	clients, refusals := map[string]*program{}, map[string]string{}
	for _, name := range []string{"grpc", "http"} {
		serving := start(t, filepath.Join(bin, name), a, "127.0.0.1:0")
		address := strings.TrimPrefix(serving.say(t, "serving on "), "serving on ")
		wrong := start(t, filepath.Join(bin, name), b, address, client)
		// The whole of the error: what a network does to a call names identities too.
		failed := mesh.HandshakeError{Reason: mesh.IdentityMismatch, Endpoint: address, Expected: client}
		wrong.say(t, strings.TrimPrefix(failed.Error(), "mesh: "))
		failed.Reason, failed.Expected = mesh.ClientRejected, server
		refusals[name] = strings.TrimPrefix(failed.Error(), "mesh: ")
		clients[name] = start(t, filepath.Join(bin, name), b, address, server)
	}
	served := func() {
		t.Helper()
		clients["grpc"].say(t, "SERVING <nil>")
		clients["http"].say(t, "200 OK hello, "+client)
	}
	served()
	for _, dir := range []string{b, a} {
		conn, err := mesh.DialLocal(filepath.Join(dir, folder.SocketName))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fealtyv1.NewNodeServiceClient(conn).RenewIdentity(t.Context(), &fealtyv1.RenewIdentityRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 7 { // seconds, in which each program has looked at its folder
		served()
	}

	verify := func(dir, file string) (string, error) {
		out, err := exec.Command(filepath.Join(bin, "verify"), dir, file).CombinedOutput()
		return string(out), err
	}
	signed := filepath.Join(a, "snapshots", "node_runtime.active")
	if out, err := verify(a, signed); err != nil || !strings.HasPrefix(out, "node_runtime ") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := verify(b, signed); err == nil || !strings.Contains(out, "refused") {
		t.Errorf("another node's: %v: %s", err, out)
	}

	_, err := fealtyv1.NewMemberServiceClient(f.LocalConn()).BanMember(t.Context(),
		&fealtyv1.BanMemberRequest{Kind: "data", Name: "node-b", Reason: "stolen"})
	if err != nil {
		t.Fatal(err)
	}
	banned, err := identity.Parse(client)
	if err != nil {
		t.Fatal(err)
	}
	// The call that finds the ban is told of it, unless the connection went before: then its
	// successor is refused.
	cut := &mesh.CutError{Reason: mesh.PeerBanned, ID: banned}
	clients["grpc"].say(t, status.Convert(cut).Err().Error(), refusals["grpc"])
	clients["http"].say(t, "403 Forbidden "+cut.Error(), refusals["http"])
}
