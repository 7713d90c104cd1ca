//go:build linux

package etcdtest_test

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
)

// TestServers kills servers and finds what they confirmed when they are back.
func TestServers(t *testing.T) {
	for _, o := range []etcdtest.Options{{}, {Members: 3}, {TLS: true}} {
		c := etcdtest.New(t, o)
		kv := pb.NewKVClient(c.Conn(t))
		if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Value: []byte("v")}); err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		for _, end := range []func() error{c.Kill, c.Stop} {
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			// By a connection of its own: the old one waits before it tries again.
			got, err := pb.NewKVClient(c.Conn(t)).Range(t.Context(), &pb.RangeRequest{Key: []byte("k")})
			if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "v" {
				t.Fatalf("%+v: %v, %v after a restart", o, got, err)
			}
		}
	}
}
