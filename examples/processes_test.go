package examples_test

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/test/member"
)

// built builds an example, which is as short as is promised and reads no PEM.
func built(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	build(t, path, "./"+name)
	source, err := os.ReadFile(filepath.Join(name, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), "\n"); n > 60 || strings.Contains(string(source), "pem") {
		t.Errorf("%s has %d lines, at most 60 are promised, and no PEM", name, n)
	}
	return path
}

// Programs with certificates of somebody's own PKI in files know each other, and go on when the
// files are replaced.
func TestFilesProgram(t *testing.T) {
	t.Parallel()
	path := built(t, "grpc-files")
	pki := pkitest.NewPKI(t, "corp", nil)
	write := func(id string) (paths []string) {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "tls")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		uri, err := url.Parse(id)
		if err != nil {
			t.Fatal(err)
		}
		key := pkitest.NewKey(t)
		chain := pki.Issue(t, key, func(c *x509.Certificate) { c.URIs = []*url.URL{uri} })
		for name, content := range map[string][]byte{"tls.crt": pkitest.PEM(chain...),
			"tls.key": pkitest.KeyPEM(t, key), "ca.crt": pkitest.PEM(pki.Root.Cert)} {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return []string{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")}
	}
	const server, client = "spiffe://corp.example/workload/billing", "spiffe://corp.example/workload/ledger"
	ofServer, ofClient := write(server), write(client)
	serving := start(t, path, append(ofServer, "127.0.0.1:0")...)
	address := strings.TrimPrefix(serving.say(t, "serving on "), "serving on ")
	wrong := start(t, path, append(ofClient, address, client)...)
	wrong.say(t, "IdentityMismatch")
	asking := start(t, path, append(ofClient, address, server)...)
	asking.say(t, "SERVING <nil>")
	serving.say(t, "called by "+client)
	for i, id := range map[int]string{0: server, 1: client} {
		for j, fresh := range write(id) {
			if err := os.Rename(fresh, [][]string{ofServer, ofClient}[i][j]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		asking.say(t, "SERVING <nil>")
	}
}

// Programs with identities of the agents of two members know each other, and go on while the
// agents are away.
func TestWorkloadProgram(t *testing.T) {
	t.Parallel()
	path := built(t, "grpc-workload")
	f := coordinatortest.NewFleet(t, nil)
	err := f.Set(f.Manifest("  - {name: runners, kind: data, match: [\"token:runners\"], roles: [egress]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	sockets := make(map[string]string)
	var members []*member.Member
	for node, workload := range map[string]string{"node-a": "billing", "node-b": "ledger"} {
		short, err := os.MkdirTemp("", "w") // the path of a socket is short
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(short) })
		sockets[workload] = "unix://" + filepath.Join(short, "s")
		m := member.Join(t, f, "runners", node)
		m.Start(func(c *agent.Config) { c.Sockets.Workloads = filepath.Join(short, "s") })
		members = append(members, m)
		_, err = fealtyv1.NewConfigServiceClient(f.LocalConn()).PutConfig(t.Context(), &fealtyv1.PutConfigRequest{
			Records: [][]byte{fmt.Appendf(nil, "kind: service\nname: %s\ntype: process\nmembers: [data/%s]\n"+
				"workload: {uid: %d}\n", workload, node, os.Getuid())}})
		if err != nil {
			t.Fatal(err)
		}
	}
	as := func(workload string, args ...string) *program {
		return startIn(t, []string{"SPIFFE_ENDPOINT_SOCKET=" + sockets[workload]}, path, args...)
	}
	const server, client = "spiffe://test.example/workload/billing", "spiffe://test.example/workload/ledger"
	address := strings.TrimPrefix(as("billing", "127.0.0.1:0").say(t, "serving on "), "serving on ")
	as("ledger", address, client).say(t, "IdentityMismatch")
	asking := as("ledger", address, server)
	asking.say(t, "SERVING <nil>")
	for _, m := range members {
		m.Stop()
	}
	for range 2 {
		asking.say(t, "SERVING <nil>")
	}
}
