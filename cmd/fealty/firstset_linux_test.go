package main

import (
	"io"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/freeport"
)

// The first manifest is set as on Kubernetes: coordinators advertise an address that nobody
// answers before one of them is ready, and the one that is given leads to all of them in
// turn, of which one wrote the token.
func TestFirstSetOverAnAddressOfSeveral(t *testing.T) {
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, exe, "", "")
	nobody := freeAddr(t)
	for _, name := range three[:2] {
		f.listens[name], f.store = freeAddr(t), "sqlite:"+filepath.Join(f.dir, name+".db")
		f.spawn(name, "coordinator", "--data", name, "--listen", f.listens[name], "--advertise", nobody, "--log-level", "warn")
	}
	var key string
	for _, name := range three[:2] {
		f.until(name+" answers", func(out string) bool {
			key = regexp.MustCompile(`ed25519:[A-Za-z0-9+/=_-]{40,}`).FindString(out)
			return key != ""
		}, "status", "-o", "json", "--socket", f.socket(name))
	}
	wrote, other := three[1], three[0]
	f.must("manifest", "init", "--cluster", "prod.example", "--coordinator-key", wrote+"="+key,
		"--keeper", "file:"+filepath.Join(f.dir, "keeper.key"), "--signer-key-out", "alice.key", "--out", "m.yaml")
	token := filepath.Join(wrote, "setup-token")
	set := func(args ...string) []string {
		return append([]string{"manifest", "set", "m.yaml", "--setup-token-file", token}, args...)
	}

	f.wrong(t, mistake{
		"what coordinators advertise leads nowhere", set(), 4,
		[]string{"FE-X101: " + nobody + " cannot be reached"}, nil,
	})
	f.wrong(t, mistake{
		"another coordinator alone is there", set("--coordinator", f.listens[other]), 5,
		[]string{"FE-X105: " + f.listens[other] + " was not trusted", "in 12 attempts 1 another one did",
			"name its own with --coordinator"}, nil,
	})
	f.wrong(t, mistake{
		"the socket of a coordinator beside the token", set("--socket", f.socket(wrote)), 2,
		[]string{"FE-U103: --socket cannot be given together with --setup-token-file"}, nil,
	})
	service := inTurn(t, f.listens[other], f.listens[other], f.listens[other], f.listens[wrote])
	f.wrong(t, mistake{
		"an address that leads to both, after one that nobody answers",
		set("--coordinator", freeAddr(t), "--coordinator", service), 0,
		[]string{"kind genesis"}, nil,
	})
	f.ready(wrote)
	f.wrong(t, mistake{
		"the token again", set("--coordinator", f.listens[wrote]), 4,
		[]string{"FE-U105", "setup-token"}, nil,
	}, 3)
}

// freeAddr is an address of loopback that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// inTurn serves an address whose connections go to the others in turn, as those of a
// Service do.
func inTurn(t *testing.T, others ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(func() { l.Close() })
	all.Go(func() {
		for next := range slices.Values(slices.Repeat(others, 100)) {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", next)
			if err != nil {
				t.Error(err)
				from.Close()
				continue
			}
			all.Go(func() { _, _ = io.Copy(to, from); to.Close() })
			all.Go(func() { _, _ = io.Copy(from, to); from.Close() })
		}
	})
	return l.Addr().String()
}
