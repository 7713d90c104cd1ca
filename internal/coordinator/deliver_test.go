package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/proof"
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
	dl := newSender(d.c.delivery, stream, m.id, nil)
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
	if len(got) != 1 || len(got[0].Content) != 0 || bytes.Equal(got[0].Publication.Record, p.state.Value.Record) {
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
	t.Parallel()
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
	sent := func() float64 {
		return testutil.ToFloat64(f.c.delivery.metrics.sent.WithLabelValues("node_runtime", "whole"))
	}
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
	// The last one is counted after it was sent.
	for deadline := time.Now().Add(time.Minute); sent()-was < 7; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v were counted", sent()-was)
		}
	}
}

// acting is a member as it takes what it is sent, in any form: it verifies all of it,
// keeps it, and pulls what it lacks.
type acting struct {
	*reader
	m      *machine
	stream *sentNews
	dl     *sender
	held   map[snapshot.Scope]*snapshot.Verified
	forms  map[sentForm]int
}

func (m *machine) acting(t *testing.T) *acting {
	t.Helper()
	a := &acting{reader: m.reader(), m: m, stream: &sentNews{ctx: t.Context()}, held: make(map[snapshot.Scope]*snapshot.Verified), forms: make(map[sentForm]int)}
	a.dl = newSender(m.d.c.delivery, a.stream, m.id, nil)
	return a
}

// hear takes what there is for the member, and returns the scopes that came.
func (a *acting) hear(t *testing.T) []string {
	t.Helper()
	d := a.m.d
	a.dl.forget()
	if err := a.dl.sendTrust(); err != nil {
		t.Fatal(err)
	}
	a.follow(d)
	if err := a.dl.sendPublished(t.Context()); err != nil {
		t.Fatal(err)
	}
	var scopes []string
	for _, m := range a.stream.sent {
		scope := snapshot.Scope(m.GetSnapshot().GetScope())
		if m.GetSnapshot() == nil || scope == snapshot.ScopeTrustBundle {
			continue
		}
		scopes = append(scopes, string(scope))
		signed, err := snapshot.Unmarshal(m.GetSnapshot().GetEnvelope())
		if err != nil {
			t.Fatal(err)
		}
		v, err := a.take(t, scope, signed)
		if err != nil {
			t.Fatalf("%s does not take its %s: %v", a.m.id.Name(), scope, err)
		}
		if a.marks, err = snapshot.Accept(a.marks, v); err != nil {
			t.Fatal(err)
		}
		a.held[scope] = v
		if scope == snapshot.ScopeNodeRuntime {
			h := v.Header()
			a.trust.Roles, a.trust.Organizations = h.Roles, h.OrganizationIDs
		}
	}
	a.stream.sent = nil
	return scopes
}

func (a *acting) take(t *testing.T, scope snapshot.Scope, signed *snapshot.Signed) (*snapshot.Verified, error) {
	t.Helper()
	now := a.m.d.clock()
	checked, err := snapshot.VerifyHeader(signed, a.trust, a.marks, now)
	if err != nil {
		return nil, err
	}
	switch held := a.held[scope]; {
	case len(signed.Content) > 0:
		a.forms[sentWhole]++
		return checked.Complete(signed.Content)
	case len(signed.Patch) > 0:
		a.forms[sentPatch]++
		v, _, err := checked.CompletePatch(held, signed.Patch)
		return v, err
	case held != nil && held.Header().ContentHash == checked.Header().ContentHash:
		a.forms[sentRecord]++
		return checked.Complete([]byte(held.ContentJSON()))
	}
	a.forms[sentDetached]++
	hash := checked.Header().ContentHash
	got := &pulled{ctx: a.m.as(t.Context())}
	if err := a.m.pull(got, hash[:]); err != nil {
		t.Fatalf("%s cannot pull its %s: %v", a.m.id.Name(), scope, err)
	}
	return checked.Complete(got.got)
}

// Members of two organizations hear of a change what is theirs, in the form that they
// need, and nothing of the other; what they hold in the end is what is published, to the
// byte. Nobody pulls what is not its own (I12).
func TestDeliveryToTenants(t *testing.T) {
	t.Parallel()
	d := tenants(t)
	b := newPublisher()
	d.mustPublish(b)
	names := []string{"acme", "globex", "edge", "both"}
	members := make(map[string]*acting)
	for _, name := range names {
		m := d.machine()
		if err := m.join(identity.Data, proof.NewTokenProver(d.token(&fealtyv1.CreateTokenRequest{Entry: name, Name: name + "-2"}))); err != nil {
			t.Fatal(err)
		}
		members[name] = m.acting(t)
	}
	p := d.mustPublish(b)
	for _, name := range names {
		got := members[name].hear(t)
		if len(got) < 3 || got[0] != string(snapshot.ScopeNodeRuntime) {
			t.Fatalf("%s hears %v", name, got)
		}
		for scope, v := range members[name].held {
			for _, org := range []string{"acme", "globex"} {
				theirs := slices.Contains(members[name].trust.Organizations, org)
				if !theirs && strings.Contains(v.ContentJSON(), org) {
					t.Errorf("%s holds something of %s in its %s: %s", name, org, scope, v.ContentJSON())
				}
			}
		}
	}
	// By hash as well: each content that is published, asked for by each member.
	for _, name := range names {
		a := members[name]
		own := make(map[string]bool)
		for _, i := range p.of(identity.Data, name+"-2") {
			own[p.headers[i].header.Content] = true
		}
		for hash, content := range p.contents {
			d.advance(time.Second)
			digest, err := snapshot.ParseDigest(hash)
			if err != nil {
				t.Fatal(err)
			}
			got := &pulled{ctx: a.m.as(t.Context())}
			err = a.m.pull(got, digest[:])
			if own[hash] && (err != nil || !bytes.Equal(got.got, content)) || !own[hash] && (err == nil || len(got.got) != 0) {
				t.Errorf("%s pulls %s, its own: %v: %d bytes, %v", name, content, own[hash], len(got.got), err)
			}
			if !own[hash] {
				wantCode(t, err, explain.NotFound)
			}
		}
	}
	// A route of one organization changes: who has that organization hears, by a patch.
	d.mustPut("kind: route\nname: acme-new\norganization: acme\nmatch: host new\nto: [acme-peer]\n")
	p = d.mustPublish(b)
	for name, want := range map[string]bool{"acme": true, "globex": false, "both": true} {
		before := members[name].forms[sentPatch]
		if got := members[name].hear(t); slices.Contains(got, "route_policy") != want || len(got) > 1 {
			t.Errorf("%s hears %v", name, got)
		}
		if got := members[name].forms[sentPatch] - before; got == 1 != want {
			t.Errorf("%s got %d patches", name, got)
		}
	}
	for _, name := range names {
		members[name].hear(t)
	}
	// Who missed a version gets the whole: no patch fits.
	for _, match := range []string{"newer", "newest"} {
		d.mustPut("kind: route\nname: acme-new\norganization: acme\nmatch: host " + match + "\nto: [acme-peer]\n")
		p = d.mustPublish(b)
		members["acme"].hear(t)
	}
	patches, wholes := members["both"].forms[sentPatch], members["both"].forms[sentWhole]
	if members["both"].hear(t); members["both"].forms[sentPatch] != patches || members["both"].forms[sentWhole] != wholes+1 {
		t.Errorf("who missed a version is sent %v", members["both"].forms)
	}
	// So does who was away, and what it has then is the same.
	late := members["acme"].m.acting(t)
	late.hear(t)
	for _, a := range []*acting{members["acme"], late} {
		for _, i := range p.of(identity.Data, "acme-2") {
			h := p.headers[i]
			if v := a.held[h.scope]; v == nil || v.ContentJSON() != string(p.contents[h.header.Content]) {
				t.Errorf("%s is not what is published", h.scope)
			}
		}
	}
	// A newer record alone moves no content.
	d.advance(publicationRenew)
	d.mustPublish(b)
	was := members["both"].forms[sentRecord]
	if got := members["both"].hear(t); members["both"].forms[sentRecord]-was != len(got) || len(got) < 3 {
		t.Errorf("with a newer record came %v, as %v", got, members["both"].forms)
	}
}

// What is large is pulled, and a change of it is patched.
func TestDeliveryOfMuch(t *testing.T) {
	t.Parallel()
	d := tenants(t)
	b := newPublisher()
	d.mustPublish(b)
	var routes []string
	for i := range 200 {
		routes = append(routes, fmt.Sprintf("kind: route\nname: acme-%03d\norganization: acme\nmatch: \"host %s\"\nto: [acme-peer]\n", i, strings.Repeat("x", 100)))
	}
	d.mustPut(strings.Join(routes, "---\n"))
	m := d.joinedAs("acme", "acme-3")
	d.mustPublish(b)
	a := m.acting(t)
	a.hear(t)
	if a.forms[sentDetached] != 1 || a.forms[sentPatch] != 0 {
		t.Fatalf("it came as %v", a.forms)
	}
	d.mustPut("kind: route\nname: acme-100\norganization: acme\nmatch: host changed\nto: [acme-peer]\n")
	d.mustPublish(b)
	a.hear(t)
	if v, _ := a.held[snapshot.ScopeRoutePolicy].RoutePolicy(); a.forms[sentDetached] != 1 || a.forms[sentPatch] != 1 || len(v.Routes) != 201 {
		t.Fatalf("the change came as %v, with %d routes", a.forms, len(v.Routes))
	}
	// After a resync it is the whole again.
	a.dl.resync([]string{"route_policy"})
	a.marks = snapshot.Marks{}
	a.held = make(map[snapshot.Scope]*snapshot.Verified)
	if got := a.hear(t); len(got) != 1 || a.forms[sentDetached] != 2 {
		t.Fatalf("who asked for the whole got %v as %v", got, a.forms)
	}
}

// Patches are made once, and a bounded number is kept.
func TestPatchesAreKept(t *testing.T) {
	c := newPatchCache()
	first := c.entry(patchKey{"a", "b"})
	if c.entry(patchKey{"a", "b"}) != first {
		t.Error("made twice")
	}
	for i := range 2 * maxPatches {
		c.entry(patchKey{"a", fmt.Sprint(i)})
	}
	if len(c.entries) != maxPatches || len(c.order) != maxPatches || c.entry(patchKey{"a", "b"}) == first {
		t.Errorf("%d are kept", len(c.entries))
	}
}

// A patch is for who has exactly its base.
func TestBaseOfDelivery(t *testing.T) {
	is := &published{header: headerRecord{Content: "new", AuthorityEpoch: 2, ConfigVersion: 12, Base: "old", BaseVersion: 11}}
	for _, c := range []struct {
		has  holding
		want bool
	}{
		{holding{content: "old", epoch: 2, version: 11}, true},
		{holding{content: "old", epoch: 2, version: 10}, false},
		{holding{content: "old", epoch: 1, version: 11}, false},
		{holding{content: "older", epoch: 2, version: 11}, false},
		{holding{}, false},
	} {
		if got := c.has.isBase(is); got != c.want {
			t.Errorf("%+v: %v", c.has, got)
		}
	}
	if (holding{epoch: 2}).isBase(&published{header: headerRecord{AuthorityEpoch: 2}}) {
		t.Error("what names no base has one")
	}
}
