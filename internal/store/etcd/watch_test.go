//go:build linux

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/test/wait"
)

// relay is a server that hands calls on to a real one, and whose watches say that they
// were begun, and then nothing: as of a member that lost what it watches for.
type relay struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	kv      pb.KVClient
	watches atomic.Int64
}

func (r *relay) Range(ctx context.Context, q *pb.RangeRequest) (*pb.RangeResponse, error) {
	return r.kv.Range(ctx, q)
}

func (r *relay) Txn(ctx context.Context, q *pb.TxnRequest) (*pb.TxnResponse, error) {
	return r.kv.Txn(ctx, q)
}

func (r *relay) Watch(stream pb.Watch_WatchServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(&pb.WatchResponse{Header: &pb.ResponseHeader{}, Created: true}); err != nil {
		return err
	}
	r.watches.Add(1)
	<-stream.Context().Done()
	return stream.Context().Err()
}

// serve returns the address of r.
func (r *relay) serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	pb.RegisterKVServer(g, r)
	pb.RegisterWatchServer(g, r)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// TestSilentWatch: reads are answered, and the watch says nothing. A watcher hears by
// the beat all the same, and the watch is given up for another one.
func TestSilentWatch(t *testing.T) {
	r := &relay{kv: pb.NewKVClient(server.Conn(t))}
	prefix := server.Prefix()
	s := openAt(t, server.URLVia(r.serve(t), prefix), impatient)
	other := openAt(t, server.URL(prefix), etcd.Options{})
	wait.Until(t, "a watch", func() bool { return r.watches.Load() > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := r.watches.Load()
	mustCommit(t, other, put("k", "0"))
	for e, err := range s.Watch(ctx, "k") {
		if err != nil {
			t.Fatal(err)
		}
		if string(e.Value) == "3" {
			break
		}
		mustCommit(t, other, put("k", string(rune(e.Value[0]+1))))
	}
	wait.Until(t, "another watch", func() bool { return r.watches.Load() > began })
}

// TestCompactionOfEverything: with compaction=everything a store gives up what etcd keeps
// of old revisions. A watcher misses nothing meanwhile; one that was away for too long
// is told so, lists, and goes on.
func TestCompactionOfEverything(t *testing.T) {
	url := server.URL(server.Prefix()) + "&compaction=everything"
	kv := pb.NewKVClient(server.Conn(t))
	const commits, kept = 300, 100
	s := openAt(t, url, etcd.Options{RetainCommits: kept, Retention: time.Second}.CompactAfter(time.Millisecond))
	first := mustCommit(t, s, put("k", "first"))
	now, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k")})
	if err != nil {
		t.Fatal(err)
	}
	compacted := func() bool {
		_, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k"), Revision: now.Header.Revision})
		return status.Convert(err).Message() == status.Convert(rpctypes.ErrGRPCCompacted).Message()
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	heard := make(chan store.Revision, commits+1)
	following := make(chan error, 1)
	go func() {
		for c, err := range s.Changes(ctx, "k", first) {
			if err != nil {
				following <- err
				return
			}
			if heard <- c.Revision; len(c.Put) == 1 && string(c.Put[0].Value) == "last" {
				following <- nil
				return
			}
		}
	}()
	var made []store.Revision
	for i := range commits {
		made = append(made, mustCommit(t, s, put("k", fmt.Sprint(i))))
		if i%(kept/4) == 0 {
			// Further behind than what is kept it would be told so.
			wait.Until(t, "who follows", func() bool { return len(heard) == len(made) || len(following) > 0 })
		}
	}
	wait.Until(t, "the compaction", compacted)
	made = append(made, mustCommit(t, s, put("k", "last")))
	if err := <-following; err != nil {
		t.Fatalf("who keeps up was told: %v", err)
	}
	close(heard)
	if got := slices.Collect(func(yield func(store.Revision) bool) {
		for r := range heard {
			if !yield(r) {
				return
			}
		}
	}); !slices.Equal(got, made) {
		t.Errorf("of %d changes it heard of %d", len(made), len(got))
	}

	// Far behind.
	for _, err := range s.Changes(ctx, "k", first) {
		if gone, ok := errors.AsType[*store.CompactedError](err); !ok || gone.After != first || gone.Oldest <= first {
			t.Fatalf("who is far behind was told: %v", err)
		}
		break
	}
	l, err := s.List(ctx, "k")
	if err != nil || len(l.Entries) != 1 || string(l.Entries[0].Value) != "last" {
		t.Fatalf("the list is %v, %v", l, err)
	}
	next := mustCommit(t, s, put("k", "next"))
	for c, err := range s.Changes(ctx, "k", l.Revision) {
		if err != nil || c.Revision != next {
			t.Errorf("after the list it is told of %d, %v, want %d", c.Revision, err, next)
		}
		break
	}
}
