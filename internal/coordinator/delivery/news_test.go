package delivery // inside: what many are sent is made by no other package

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
)

// News for many are encoded once, and their bytes outlive the streams that they were sent on; other
// messages are encoded as gRPC does it.
func TestNewsForManyAreEncodedOnce(t *testing.T) {
	c := NewCodec()
	m := func(text string) *fealtyv1.ConnectResponse {
		return &fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: &fealtyv1.SignedSnapshot{
			Scope: "route_policy", Envelope: bytes.Repeat([]byte(text), 10_000)}}}
	}
	encode := func(v any) []byte {
		t.Helper()
		sent, err := c.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		raw := sent[0].ReadOnlyData()
		if len(sent) != 1 {
			t.Fatalf("a message is in %d pieces", len(sent))
		}
		got := &fealtyv1.ConnectResponse{}
		if err := c.Unmarshal(sent, got); err != nil {
			t.Fatal(err)
		}
		want := v
		if n, ok := v.(*News); ok {
			want = n.ConnectResponse
		}
		if !proto.Equal(got, want.(proto.Message)) {
			t.Error("another message arrives")
		}
		sent.Free() // as gRPC does once it is written
		return raw
	}
	all := newsForMany(m("all"))
	first := encode(all)
	for _, other := range []any{newsFor(m("one")), m("plain"), newsForMany(m("others"))} {
		encode(other) // in a buffer of the pool, if one was given back
		one, err := c.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		another, err := c.Marshal(all) // while the first is being written: no buffer of a pool is both
		if err != nil {
			t.Fatal(err)
		}
		if a, b := one[0].ReadOnlyData(), another[0].ReadOnlyData(); &a[0] != &first[0] || &b[0] != &first[0] {
			t.Fatal("what many are sent is encoded for each")
		}
		one.Free()
		another.Free()
	}
	if own := newsFor(m("own")); own.wire != nil {
		t.Error("what one member is sent is kept in its bytes too")
	}
}

// A server that was not given the codec sends the same.
func TestNewsWithoutItsCodec(t *testing.T) {
	m := &fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Standing{Standing: &fealtyv1.Standing{State: "active"}}}
	for _, n := range []*News{newsFor(m), newsForMany(m)} {
		sent, err := inProto().Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		got := &fealtyv1.ConnectResponse{}
		if err := inProto().Unmarshal(sent, got); err != nil || !proto.Equal(got, m) {
			t.Errorf("%v arrives: %v", got, err)
		}
	}
}
