// Inside, as a program has no names to enter by.
package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/provider/conformance"
)

// The example keeps the contract, over restarts too, and is short.
func TestConformance(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	var end context.CancelFunc
	done := make(chan error, 1)
	begin := func() {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		var ctx context.Context
		ctx, end = context.WithCancel(context.Background())
		go func() { done <- run(ctx, dir, l) }()
	}
	begin()
	defer func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	kept := 0
	err = conformance.Check(t.Context(), conformance.Target{Conn: conn, Holder: provider.InsecureHolder,
		Restart: func(context.Context) error {
			end()
			err := <-done
			begin()
			return err
		}}, func(r conformance.Result) {
		switch r.Outcome {
		case conformance.Kept:
			kept++
		case conformance.Broken:
			t.Errorf("%s: %s", r.Case, r.Why)
		}
	})
	// Those of domains need an authority.
	if want := len(conformance.Cases()) - 3; err != nil || kept != want {
		t.Errorf("%d cases were kept, %v, want %d", kept, err, want)
	}
	text, err := os.ReadFile("main.go")
	if n := bytes.Count(text, []byte("\n")); err != nil || n >= 150 {
		t.Errorf("the example has %d lines, %v, want fewer than 150", n, err)
	}
}
