package delivery_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/delivery"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// A newer record over the same header goes without the content, and what a member
// asks for goes whole, now and then.
func TestDeliveryResync(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	m := d.Joined("a")
	b := publication.NewPublisher()
	p := coordinatortest.MustPublish(d, b)
	stream := &coordinatortest.SentNews{Ctx: t.Context()}
	dl := d.C.Parts().Delivery.NewSender(stream, m.ID, nil)
	deliver := func() []*snapshot.Signed {
		t.Helper()
		dl.Forget()
		if err := dl.SendTrust(); err != nil {
			t.Fatal(err)
		}
		if err := dl.SendPublished(t.Context()); err != nil {
			t.Fatal(err)
		}
		return stream.Envelopes(t, snapshot.ScopeNodeRuntime)
	}
	if got := deliver(); len(got) != 1 || len(got[0].Content) == 0 {
		t.Fatalf("at first %d came", len(got))
	}
	if got := deliver(); len(got) != 0 {
		t.Fatalf("then %d came", len(got))
	}
	d.Advance(publication.Renew)
	coordinatortest.MustPublish(d, b)
	got := deliver()
	if len(got) != 1 || len(got[0].Content) != 0 || bytes.Equal(got[0].Publication.Record, p.State.Value.Record) {
		t.Fatalf("with the next record %d came", len(got))
	}
	dl.Resync([]string{"node_runtime", "everything", "node_runtime"})
	if got := deliver(); len(got) != 1 || len(got[0].Content) == 0 {
		t.Fatalf("who asked for the whole got %d", len(got))
	}
	dl.Resync([]string{"node_runtime"})
	if got := deliver(); len(got) != 0 {
		t.Fatalf("who asked again at once got %d", len(got))
	}
	d.Advance(delivery.ResyncEvery)
	dl.Resync(slices.Repeat([]string{"x"}, 1000))
	dl.Resync([]string{"trust_bundle", "node_runtime"})
	dl.Forget()
	if err := dl.SendTrust(); err != nil || len(stream.Envelopes(t, snapshot.ScopeTrustBundle)) != 1 {
		t.Fatalf("the trust bundle did not come: %v", err)
	}
	if got := deliver(); len(got) != 1 || len(got[0].Content) == 0 {
		t.Fatalf("who asked later got %d", len(got))
	}
	if n := dl.Asked(); n != 2 {
		t.Errorf("%d scopes are remembered", n)
	}
}

// A member that does not read what it is sent holds up nobody.
func TestSlowMemberHoldsUpNobody(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	slow, other := f.Member("node-a"), f.Member("node-b")
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	open := func(n *coordinatortest.Node) fealtyv1.AgentService_ConnectClient {
		t.Helper()
		stream, err := coordinatortest.NewClients(n.Conn()).Agent.Connect(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&fealtyv1.ConnectRequest{Name: n.ID.Name()}); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	// It asks for more and more, and reads nothing of it, until its window is full.
	sent := func() float64 {
		return coordinatortest.CounterOf(f.C.Registry(), "fealty_snapshot_sent_total", "whole", "node_runtime")
	}
	stuck := open(slow)
	grows := func() bool {
		was := sent()
		f.Advance(delivery.ResyncEvery)
		if err := stuck.Send(&fealtyv1.ConnectRequest{Name: "node-a",
			Resync: []string{"trust_bundle", "node_runtime"}}); err != nil {
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
	coordinatortest.Until(t, stream, snapshot.ScopeNodeRuntime)
	if _, err := other.VerifyGrant(); err != nil {
		t.Fatal(err)
	}
	version := uint64(0)
	for range 3 {
		for _, roles := range [][]string{{"ingress"}, {"egress", "ingress"}} { // sorted, as a header has them
			role := "roles: [" + strings.Join(roles, ", ") + "]"
			if err := f.Set(bytes.Replace(f.Manifest(""), []byte("roles: [ingress, egress]"), []byte(role),
				1)); err != nil {
				t.Fatal(err)
			}
			// A record of before may be renewed meanwhile, as the clock moved: that one is
			// no answer to this change, and a change back before it was published is none.
			for was := version; version == was; {
				sent, _ := coordinatortest.Until(t, stream, snapshot.ScopeNodeRuntime)
				signed, err := snapshot.Unmarshal(sent.GetEnvelope())
				if err != nil {
					t.Fatal(err)
				}
				v, err := snapshot.VerifyHeader(signed, other.Trust, snapshot.Marks{}, f.Clock())
				if err != nil {
					t.Fatal(err)
				}
				// A node_runtime says what roles its node has, so none is refused for them.
				if h := v.Header(); slices.Equal(h.Roles, roles) {
					version = h.ConfigVersion
				}
			}
		}
	}
	// The last one is counted after it was sent.
	wait.Until(t, "seven are counted", func() bool { return sent()-was >= 7 })
}

// acting is a member as it takes what it is sent, in any form: it verifies all of it,
// keeps it, and pulls what it lacks.
type acting struct {
	*coordinatortest.Reader
	m      *coordinatortest.Machine
	stream *coordinatortest.SentNews
	dl     *delivery.Sender
	held   map[snapshot.Scope]*snapshot.Verified
	forms  map[string]int
}

func actingOf(m *coordinatortest.Machine, t *testing.T) *acting {
	t.Helper()
	a := &acting{Reader: coordinatortest.ReaderOf(m), m: m, stream: &coordinatortest.SentNews{Ctx: t.Context()},
		held: make(map[snapshot.Scope]*snapshot.Verified), forms: make(map[string]int)}
	a.dl = m.Desk.C.Parts().Delivery.NewSender(a.stream, m.ID, nil)
	return a
}

// hear takes what there is for the member, and returns the scopes that came.
func (a *acting) hear(t *testing.T) []string {
	t.Helper()
	d := a.m.Desk
	a.dl.Forget()
	if err := a.dl.SendTrust(); err != nil {
		t.Fatal(err)
	}
	a.Follow(d)
	if err := a.dl.SendPublished(t.Context()); err != nil {
		t.Fatal(err)
	}
	var scopes []string
	for _, m := range a.stream.Sent {
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
			t.Fatalf("%s does not take its %s: %v", a.m.ID.Name(), scope, err)
		}
		if a.Marks, err = snapshot.Accept(a.Marks, v); err != nil {
			t.Fatal(err)
		}
		a.held[scope] = v
		if scope == snapshot.ScopeNodeRuntime {
			h := v.Header()
			a.Trust.Roles, a.Trust.Organizations = h.Roles, h.OrganizationIDs
		}
	}
	a.stream.Sent = nil
	return scopes
}

func (a *acting) take(t *testing.T, scope snapshot.Scope, signed *snapshot.Signed) (*snapshot.Verified, error) {
	t.Helper()
	now := a.m.Desk.Clock()
	checked, err := snapshot.VerifyHeader(signed, a.Trust, a.Marks, now)
	if err != nil {
		return nil, err
	}
	switch held := a.held[scope]; {
	case len(signed.Content) > 0:
		a.forms["whole"]++
		return checked.Complete(signed.Content)
	case len(signed.Patch) > 0:
		a.forms["patch"]++
		v, _, err := checked.CompletePatch(held, signed.Patch)
		return v, err
	case held != nil && held.Header().ContentHash == checked.Header().ContentHash:
		a.forms["record"]++
		return checked.Complete([]byte(held.ContentJSON()))
	}
	a.forms["detached"]++
	hash := checked.Header().ContentHash
	got := &pulled{ctx: as(t.Context(), a.m)}
	if err := pull(a.m, got, hash[:]); err != nil {
		t.Fatalf("%s cannot pull its %s: %v", a.m.ID.Name(), scope, err)
	}
	return checked.Complete(got.got)
}

// Members of two organizations hear of a change what is theirs, in the form that they
// need, and nothing of the other; what they hold in the end is what is published, to the
// byte. Nobody pulls what is not its own (I12).
func TestDeliveryToTenants(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	names := []string{"acme", "globex", "edge", "both"}
	members := make(map[string]*acting)
	for _, name := range names {
		m := d.Machine()
		if err := m.Join(identity.Data, proof.NewTokenProver(d.Token(&fealtyv1.CreateTokenRequest{Entry: name,
			Name: name + "-2"}))); err != nil {
			t.Fatal(err)
		}
		members[name] = actingOf(m, t)
	}
	p := coordinatortest.MustPublish(d, b)
	for _, name := range names {
		got := members[name].hear(t)
		if len(got) < 3 || got[0] != string(snapshot.ScopeNodeRuntime) {
			t.Fatalf("%s hears %v", name, got)
		}
		for scope, v := range members[name].held {
			for _, org := range []string{"acme", "globex"} {
				theirs := slices.Contains(members[name].Trust.Organizations, org)
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
		for _, i := range p.Of(identity.Data, name+"-2") {
			own[p.Header(i).Header.Content] = true
		}
		for hash, content := range p.Contents() {
			d.Advance(time.Second)
			digest, err := snapshot.ParseDigest(hash)
			if err != nil {
				t.Fatal(err)
			}
			got := &pulled{ctx: as(t.Context(), a.m)}
			err = pull(a.m, got, digest[:])
			if own[hash] && (err != nil || !bytes.Equal(got.got, content)) || !own[hash] &&
				(err == nil || len(got.got) != 0) {
				t.Errorf("%s pulls %s, its own: %v: %d bytes, %v", name, content, own[hash], len(got.got), err)
			}
			if !own[hash] {
				coordinatortest.WantCode(t, err, errcode.NotFound)
			}
		}
	}
	// A route of one organization changes: who has that organization hears, by a patch.
	coordinatortest.MustPut(d, "kind: route\nname: acme-new\norganization: acme\nmatch: host new\nto: [acme-peer]\n")
	p = coordinatortest.MustPublish(d, b)
	for name, want := range map[string]bool{"acme": true, "globex": false, "both": true} {
		before := members[name].forms["patch"]
		if got := members[name].hear(t); slices.Contains(got, "route_policy") != want || len(got) > 1 {
			t.Errorf("%s hears %v", name, got)
		}
		if got := members[name].forms["patch"] - before; got == 1 != want {
			t.Errorf("%s got %d patches", name, got)
		}
	}
	for _, name := range names {
		members[name].hear(t)
	}
	// A member that missed a version gets the whole: no patch fits.
	for _, match := range []string{"newer", "newest"} {
		coordinatortest.MustPut(d, "kind: route\nname: acme-new\norganization: acme\nmatch: host "+match+"\nto: [acme-peer]\n")
		p = coordinatortest.MustPublish(d, b)
		members["acme"].hear(t)
	}
	patches, wholes := members["both"].forms["patch"], members["both"].forms["whole"]
	if members["both"].hear(t); members["both"].forms["patch"] != patches ||
		members["both"].forms["whole"] != wholes+1 {
		t.Errorf("who missed a version is sent %v", members["both"].forms)
	}
	// So does who was away, and what it has then is the same.
	late := actingOf(members["acme"].m, t)
	late.hear(t)
	for _, a := range []*acting{members["acme"], late} {
		for _, i := range p.Of(identity.Data, "acme-2") {
			h := p.Header(i)
			if v := a.held[h.Scope]; v == nil || v.ContentJSON() != string(p.Content(h.Header.Content)) {
				t.Errorf("%s is not what is published", h.Scope)
			}
		}
	}
	// A newer record alone moves no content.
	d.Advance(publication.Renew)
	coordinatortest.MustPublish(d, b)
	was := members["both"].forms["record"]
	if got := members["both"].hear(t); members["both"].forms["record"]-was != len(got) || len(got) < 3 {
		t.Errorf("with a newer record came %v, as %v", got, members["both"].forms)
	}
}

// Large content is pulled, and a change of it is patched.
func TestDeliveryOfMuch(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	var routes []string
	for i := range 200 {
		routes = append(routes,
			fmt.Sprintf("kind: route\nname: acme-%03d\norganization: acme\nmatch: \"host %s\"\nto: [acme-peer]\n", i,
				strings.Repeat("x", 100)))
	}
	coordinatortest.MustPut(d, strings.Join(routes, "---\n"))
	m := coordinatortest.JoinedAs(d, "acme", "acme-3")
	coordinatortest.MustPublish(d, b)
	a := actingOf(m, t)
	a.hear(t)
	if a.forms["detached"] != 1 || a.forms["patch"] != 0 {
		t.Fatalf("it came as %v", a.forms)
	}
	coordinatortest.MustPut(d, "kind: route\nname: acme-100\norganization: acme\nmatch: host changed\nto: [acme-peer]\n")
	coordinatortest.MustPublish(d, b)
	a.hear(t)
	if v, _ := a.held[snapshot.ScopeRoutePolicy].RoutePolicy(); a.forms["detached"] != 1 || a.forms["patch"] != 1 ||
		len(v.Routes) != 201 {
		t.Fatalf("the change came as %v, with %d routes", a.forms, len(v.Routes))
	}
	// After a resync it is the whole again.
	a.dl.Resync([]string{"route_policy"})
	a.Marks = snapshot.Marks{}
	a.held = make(map[snapshot.Scope]*snapshot.Verified)
	if got := a.hear(t); len(got) != 1 || a.forms["detached"] != 2 {
		t.Fatalf("who asked for the whole got %v as %v", got, a.forms)
	}
}
