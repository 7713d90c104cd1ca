package host_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	spiffe "github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/credential/workloadapi"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/test/wait"
)

// Go programs of two members have their identities from the agents there, know each other by them
// over renewals, and go on while an agent is away or errs.
func TestSourceOfAnAgent(t *testing.T) {
	t.Parallel()
	f := fleet(t)
	a, b := joined(t, f, "node-a"), joined(t, f, "node-b")
	type opened struct {
		source *workloadapi.Source
		err    error
	}
	early := make(chan opened, 1)
	go func() { // before anybody said who this process is
		source, err := (workloadapi.Config{Address: "unix://" + a.socket, Log: logger(t)}).Open(t.Context())
		early <- opened{source, err}
	}()
	me := fmt.Sprintf("workload: {id: billing/api, uid: %d}\n", os.Getuid())
	put(t, f, service("billing", me))
	got := <-early
	if got.err != nil {
		t.Fatal(got.err)
	}
	client := got.source
	defer client.Close()
	id, err := identity.Parse("spiffe://test.example/workload/billing/api")
	if err != nil {
		t.Fatal(err)
	}
	server, err := workloadapi.Config{Address: "unix://" + b.socket, ID: id, Log: logger(t)}.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	speak := func() {
		t.Helper()
		cfg, err := credential.ClientTLS(client, credential.ExactID(id), credential.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		served := make(chan error, 1)
		go func() {
			served <- tls.Server(far, credential.ServerTLS(server, credential.ServerOptions{})).Handshake()
		}()
		if err := errors.Join(tls.Client(near, cfg).Handshake(), <-served); err != nil {
			t.Fatal(err)
		}
	}
	speak()

	// The agent goes away, and comes back without the certificate.
	material, err := client.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	changed := client.Changed()
	a.Stop()
	reason := func() credential.Reason {
		e, _ := errors.AsType[*credential.MaterialError](client.Failure())
		if e == nil {
			return ""
		}
		return e.Reason
	}
	wait.Until(t, "the source says that the agent is away", func() bool { return reason() == credential.Unreadable })
	speak()
	kept, err := filepath.Glob(filepath.Join(a.Dir, "workloads", "*.pem"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("on disk: %v, %v", kept, err)
	}
	if err := os.Remove(kept[0]); err != nil {
		t.Fatal(err)
	}
	a.start()
	<-changed
	if m, err := client.Current(t.Context()); err != nil || m.Pin() == material.Pin() || m.ID() != id || client.Failure() != nil {
		t.Errorf("after the agent came back: %v, %v, %v", m, err, client.Failure())
	}
	speak()

	// The process becomes somebody else, then nobody, by a mistake of an operator.
	put(t, f, service("billing", fmt.Sprintf("workload: {id: reports, uid: %d}\n", os.Getuid())))
	wait.Until(t, "the source says that it is another's", func() bool { return reason() == credential.OtherIdentity })
	put(t, f, service("billing", "workload: {id: reports, uid: 4000000000}\n"))
	wait.Until(t, "the source says that it is nobody", func() bool { return reason() == credential.NoIdentity })
	speak()
	put(t, f, service("billing", me))
	wait.Until(t, "the source has what it had", func() bool { return client.Failure() == nil })
	speak()
}

// The source keeps with a real agent what every source keeps.
func TestWorkloadAPIIsASource(t *testing.T) {
	t.Parallel()
	f := fleet(t)
	m := joined(t, f, "node-a")
	put(t, f, service("reports", fmt.Sprintf("workload: {uid: %d}\n", os.Getuid())))
	mine := service("billing", fmt.Sprintf("workload: {id: billing/api, uid: %d}\n", os.Getuid()))
	nobodys := service("billing", "")
	put(t, f, mine)
	id, err := identity.Parse("spiffe://test.example/workload/billing/api")
	if err != nil {
		t.Fatal(err)
	}
	client, err := spiffe.New(t.Context(), spiffe.WithAddr("unix://"+m.socket))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// leaf is what the agent gives as id; nil: nothing.
	leaf := func(t testing.TB) *x509.Certificate {
		all, err := client.FetchX509SVIDs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, svid := range all {
			if svid.ID.String() == id.String() {
				return svid.Certificates[0]
			}
		}
		return nil
	}
	pkitest.Run(t, func(t *testing.T) *pkitest.Subject {
		put(t, f, mine)
		source, err := workloadapi.Config{Address: "unix://" + m.socket, ID: id, Log: logger(t)}.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { source.Close() })
		gone := func(t testing.TB) {
			put(t, f, nobodys)
			wait.Until(t, "the process is another", func() bool { return leaf(t) == nil })
			kept, err := filepath.Glob(filepath.Join(m.Dir, "workloads", "*.pem"))
			for _, file := range kept { // it may not be swept yet
				err = errors.Join(err, os.RemoveAll(file))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return &pkitest.Subject{
			Source: source, Failure: source.Failure, Stop: func() { source.Close() },
			// A workload that is registered anew has another certificate.
			Rotate: func(t testing.TB) *x509.Certificate {
				gone(t)
				put(t, f, mine)
				var now *x509.Certificate
				wait.Until(t, "the process is who it was", func() bool { now = leaf(t); return now != nil })
				return now
			},
			Bad: []pkitest.Bad{{Name: "another workload's", Reason: credential.OtherIdentity, Put: gone}},
		}
	})
}
