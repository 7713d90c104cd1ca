package coordinator

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/snapshot"
)

// In which form a header goes depends on what the member has, and on nothing else.
func TestFormOfDelivery(t *testing.T) {
	at := time.Date(2026, 11, 21, 7, 0, 0, 0, time.UTC)
	record := &publicationRecord{Generation: 20, AuthorityEpoch: 2, IssuedAt: at}
	is := &published{leaf: snapshot.Digest{2}, header: headerRecord{Content: "new", AuthorityEpoch: 2, ConfigVersion: 12}}
	said := func(content string, epoch, version, generation uint64) *holding {
		return &holding{content: content, epoch: epoch, version: version, generation: generation}
	}
	sent := func(content string, leaf byte, ago time.Duration) *holding {
		return &holding{content: content, epoch: 2, version: 12, generation: 19, leaf: snapshot.Digest{leaf}, issued: at.Add(-ago)}
	}
	for _, c := range []struct {
		name string
		has  *holding
		size int
		want sentForm
	}{
		{"nothing, small", nil, inlineBytes, sentWhole},
		{"nothing, large", nil, inlineBytes + 1, sentDetached},
		{"as it is", said("new", 2, 12, 20), 1, sentNothing},
		{"under an older record", said("new", 2, 12, 19), 1, sentRecord},
		{"of another version", said("new", 2, 11, 20), 1, sentRecord},
		{"of another epoch", said("new", 1, 12, 20), 1, sentRecord},
		{"other content of that version", said("old", 2, 12, 20), 1, sentWhole},
		{"sent already", sent("new", 2, publicationRenew-time.Second), 1, sentNothing},
		{"sent long ago", sent("new", 2, publicationRenew), inlineBytes + 1, sentRecord},
		{"sent under a clock that was ahead", sent("new", 2, -publicationRenew), 1, sentRecord},
		{"sent, then the header was renewed", sent("new", 1, time.Second), 1, sentRecord},
		{"sent another content", sent("old", 1, time.Second), 1, sentWhole},
		{"sent another content, large", sent("old", 1, time.Second), inlineBytes + 1, sentDetached},
	} {
		h, has := holding{}, c.has != nil
		if has {
			h = *c.has
		}
		if got := h.form(has, is, record, c.size); got != c.want {
			t.Errorf("who has %s is sent %q, want %q", c.name, got, c.want)
		}
	}
}

// envelopes returns what was sent of scope since the last call.
func (s *sentNews) envelopes(t *testing.T, scope snapshot.Scope) []*snapshot.Signed {
	t.Helper()
	var out []*snapshot.Signed
	for _, m := range s.sent {
		if m.GetSnapshot().GetScope() != string(scope) {
			continue
		}
		signed, err := snapshot.Unmarshal(m.GetSnapshot().GetEnvelope())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, signed)
	}
	s.sent = nil
	return out
}

// A newer record over the same header goes without the content, and what a member
// asks for goes whole, now and then.
func TestDeliveryResync(t *testing.T) {
	d := testDesk(t)
	m := d.joined("a")
	b := newPublisher()
	p := d.mustPublish(b)
	stream := &sentNews{ctx: t.Context()}
	dl := newDelivery(d.c, stream, m.id, nil)
	deliver := func() []*snapshot.Signed {
		t.Helper()
		dl.forget()
		if err := dl.sendTrust(); err != nil {
			t.Fatal(err)
		}
		if err := dl.sendPublished(t.Context()); err != nil {
			t.Fatal(err)
		}
		return stream.envelopes(t, snapshot.ScopeNodeRuntime)
	}
	if got := deliver(); len(got) != 1 || len(got[0].Content) == 0 {
		t.Fatalf("at first %d came", len(got))
	}
	if got := deliver(); len(got) != 0 {
		t.Fatalf("then %d came", len(got))
	}
	d.advance(publicationRenew)
	d.mustPublish(b)
	got := deliver()
	if len(got) != 1 || len(got[0].Content) != 0 || bytes.Equal(got[0].Publication.Record, p.state.value.Record) {
		t.Fatalf("with the next record %d came", len(got))
	}
	dl.resync([]string{"node_runtime", "everything", "node_runtime"})
	if got := deliver(); len(got) != 1 || len(got[0].Content) == 0 {
		t.Fatalf("who asked for the whole got %d", len(got))
	}
	dl.resync([]string{"node_runtime"})
	if got := deliver(); len(got) != 0 {
		t.Fatalf("who asked again at once got %d", len(got))
	}
	d.advance(resyncEvery)
	dl.resync(slices.Repeat([]string{"x"}, 1000))
	dl.resync([]string{"trust_bundle", "node_runtime"})
	dl.forget()
	if err := dl.sendTrust(); err != nil || len(stream.envelopes(t, snapshot.ScopeTrustBundle)) != 1 {
		t.Fatalf("the trust bundle did not come: %v", err)
	}
	if got := deliver(); len(got) != 1 || len(got[0].Content) == 0 {
		t.Fatalf("who asked later got %d", len(got))
	}
	if n := len(dl.asked); n != 2 {
		t.Errorf("%d scopes are remembered", n)
	}
}

// A member that does not read what it is sent holds up nobody.
func TestSlowMemberHoldsUpNobody(t *testing.T) {
	f := readyFleet(t, nil)
	slow, other := f.member("node-a"), f.member("node-b")
	ctx, cancel := context.WithCancel(f.ctx())
	defer cancel()
	open := func(n *node) fealtyv1.AgentService_ConnectClient {
		t.Helper()
		stream, err := newClients(n.conn()).agent.Connect(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&fealtyv1.ConnectRequest{Name: n.id.Name()}); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	// It asks for more and more, and reads nothing of it, until its window is full.
	sent := func() float64 { return testutil.ToFloat64(f.c.metrics.sent.WithLabelValues("node_runtime", "whole")) }
	stuck := open(slow)
	grows := func() bool {
		was := sent()
		f.advance(resyncEvery)
		if err := stuck.Send(&fealtyv1.ConnectRequest{Name: "node-a", Resync: []string{"trust_bundle", "node_runtime"}}); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Second); sent() == was; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return false
			}
		}
		return true
	}
	for n := 0; grows(); n++ {
		if n == 200 {
			t.Fatal("its window is never full: the test shows nothing")
		}
	}
	was := sent()
	stream := open(other)
	until(t, stream, snapshot.ScopeNodeRuntime)
	for range 3 {
		for _, roles := range []string{"roles: [ingress]", "roles: [ingress, egress]"} {
			if err := f.set(bytes.Replace(f.manifest(""), []byte("roles: [ingress, egress]"), []byte(roles), 1)); err != nil {
				t.Fatal(err)
			}
			until(t, stream, snapshot.ScopeNodeRuntime)
		}
	}
	if got := sent() - was; got < 7 {
		t.Errorf("%v were counted", got)
	}
}
