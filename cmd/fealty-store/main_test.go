package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fealty-io/fealty/internal/store/embedded"
)

// A person who starts it by hand is told what starts it.
func TestCommandLine(t *testing.T) {
	for _, row := range []struct {
		args             []string
		in               string
		status           int
		printed, refused string
	}{
		{args: []string{"--version"}, printed: "etcd 3."},
		{args: []string{"--help"}, printed: "--store embedded"},
		{args: []string{"--data", "/x"}, status: 2, refused: "--store embedded"},
		{status: 1, refused: "no line of settings"},
		{in: `{"protocol":99,"dir":"/x"}` + "\n", status: 1, refused: "another release"},
		{in: `{"protocol":1,"dir":"/no/such/folder"}` + "\n", status: 1, refused: "no such file"},
	} {
		var out, errs bytes.Buffer
		if got := run(row.args, strings.NewReader(row.in), &out, &errs); got != row.status {
			t.Errorf("%v: exit status %d, want %d", row.args, got, row.status)
		}
		if !strings.Contains(out.String(), row.printed) || !strings.Contains(errs.String(), row.refused) {
			t.Errorf("%v prints %q and %q, want %q and %q in them", row.args, &out, &errs, row.printed, row.refused)
		}
	}
}

// A store that used up its space takes writes again by itself once there is some. Nobody else could reach it to do that.
func TestSpace(t *testing.T) {
	dir, err := os.MkdirTemp("", "fs") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	settings, err := json.Marshal(embedded.Settings{Protocol: embedded.Protocol, Dir: dir, QuotaBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { signal.Reset() }) // of which run ignores some
	in, owner := io.Pipe()
	ready, out := io.Pipe()
	ended := make(chan int, 1)
	var log bytes.Buffer
	go func() { ended <- run(nil, in, out, &log) }()
	if _, err := owner.Write(append(settings, '\n')); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len(embedded.ReadyLine)+1)
	if _, err := io.ReadFull(ready, line); err != nil || string(line) != embedded.ReadyLine+"\n" {
		t.Fatalf("it said %q, %v", line, err)
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, embedded.SocketName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	kv := etcdserverpb.NewKVClient(conn)
	var revision int64
	write := func() error {
		r, err := kv.Put(t.Context(), &etcdserverpb.PutRequest{Key: []byte("k"), Value: bytes.Repeat([]byte("x"), 1<<20)}, grpc.WaitForReady(true))
		if err == nil {
			revision = r.Header.Revision
		}
		return err
	}
	for range 100 {
		if err = write(); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "database space exceeded") {
		t.Fatalf("a write to a full store: %v", err)
	}
	if _, err := kv.Compact(t.Context(), &etcdserverpb.CompactionRequest{Revision: revision, Physical: true}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if err = write(); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("it takes no writes: %v", err)
		}
	}
	conn.Close()
	owner.Close()
	if status := <-ended; status != 0 {
		t.Errorf("it ended with %d:\n%s", status, &log)
	}
}
