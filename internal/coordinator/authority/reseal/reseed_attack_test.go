package reseal_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/reseal"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/test/wait"
)

// A reseed without a keeper that is cut off, wherever, and then the loss of every
// process: the owners of the shares of the head bring the cluster back, with every
// record. An owner with a share of the other seed is refused by name.
func TestOwnersEndACutOffReseed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		point string
		moved bool // the head
	}{
		{"reseed.after-freeze", false},
		{"reseed.after-ledger", false},
		{"set.after-swap", true},
		{"reseed.after-batch", true},
		{"reseed.after-move", true},
		{"adopt.before-identity", true},
	} {
		t.Run(tc.point, func(t *testing.T) {
			f, p := coordinatortest.NewFleet(t, nil), coordinatortest.NewPeople(t, "alice", "bob", "carol")
			if err := f.Set(coordinatortest.WithSeed(f.Manifest(""), p.Seed(2, ""))); err != nil {
				t.Fatal(err)
			}
			a := f.Member("a")
			banned := f.Member("b")
			if _, err := f.Local().Member.BanMember(f.Context(),
				&fealtyv1.BanMemberRequest{Kind: "data", Name: "b", Reason: "test"}); err != nil {
				t.Fatal(err)
			}
			records := recordText(f)
			oldAlice, oldBob := p.ShareFile(f.Store, "alice"), p.ShareFile(f.Store, "bob")
			f.Faults.Fail(tc.point, coordinatortest.ErrCrash)
			_, _ = coordinatortest.ReseedClient(f).CommitReseed(f.Context(), coordinatortest.PrepareReseed(f, nil))
			newAlice, newBob := p.ShareFile(f.Store, "alice"), p.ShareFile(f.Store, "bob")
			f.Stop()
			f.Faults.Disarm(tc.point)
			f.Start()
			if phase, why := f.C.Phase(); phase != "recovery" {
				t.Fatalf("%s (%s), want recovery", phase, why)
			}
			alice, bob, void := newAlice, newBob, oldAlice
			if !tc.moved {
				alice, bob, void = oldAlice, oldBob, newAlice
			}
			if _, err := f.Bring(void, recovery.Options{}); err == nil {
				t.Error("a share of the other seed was taken")
			}
			_, err := f.BringRaw(void, nil)
			coordinatortest.WantNamed(t, err, "alice")
			if _, err := f.Bring(alice, recovery.Options{}); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Bring(bob, recovery.Options{}); err != nil {
				t.Fatalf("the owners do not bring the cluster back: %v", err)
			}
			f.Await(authority.Ready)
			if !unlocked(f) {
				t.Error("the records are still locked")
			}
			if got := recordText(f); got != records {
				t.Errorf("the records are\n%s\nwant\n%s", got, records)
			}
			if err := rejoin(a); err != nil {
				t.Errorf("rejoin: %v", err)
			}
			coordinatortest.WantCode(t, rejoin(banned), errcode.JoinBanned)
		})
	}
}

// A store that hides the trust state while the records move costs time, and no
// cluster: the record lock and its ledger stay until everything is moved.
func TestMoveWaitsForTheTrustState(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("a")
	records := recordText(f)
	f.Faults.Fail("set.after-swap", coordinatortest.ErrCrash)
	f.Faults.Fail("adopt.begin", coordinatortest.ErrCrash) // of whoever follows the head too
	if _, err := coordinatortest.ReseedClient(f).CommitReseed(f.Context(), coordinatortest.PrepareReseed(f, nil)); err == nil {
		t.Fatal("the crash was survived")
	}
	f.Restart()
	f.Faults.Disarm("set.after-swap")
	hidden, err := f.Store.Get(t.Context(), bundle.StateKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Store.Commit(t.Context(), store.Tx{Delete: []string{bundle.StateKey}}); err != nil {
		t.Fatal(err)
	}
	f.Faults.Disarm("adopt.begin")
	for range 3 {
		f.C.Parts().Moves.Succession.Look(t.Context())
	}
	if unlocked(f) {
		t.Error("the record lock ended though the trust state was not moved")
	}
	if _, err := f.Store.Commit(t.Context(),
		store.Tx{Put: []store.Write{{Key: bundle.StateKey, Value: hidden.Value}}}); err != nil {
		t.Fatal(err)
	}
	f.C.Parts().Head.LookAgain()
	f.Await(authority.Ready)
	if got := recordText(f); got != records {
		t.Errorf("the records are\n%s\nwant\n%s", got, records)
	}
}

// Somebody who puts the record lock of a reseed back, with its ledger and records of that
// time, brings none of them back: a reseed ends once.
func TestRecordLockThatIsPutBack(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("a")
	a, err := f.Store.Get(t.Context(), record.MemberKey(identity.Data, "a"))
	if err != nil {
		t.Fatal(err)
	}
	kept := []store.Write{{Key: a.Key, Value: a.Value}}
	f.Faults.Fail("set.after-swap", coordinatortest.ErrCrash)
	f.Faults.Fail("adopt.begin", coordinatortest.ErrCrash) // of whoever follows the head too
	if _, err := coordinatortest.ReseedClient(f).CommitReseed(f.Context(), coordinatortest.PrepareReseed(f, nil)); err == nil {
		t.Fatal("the crash was survived")
	}
	f.Restart()
	l, err := f.Store.List(t.Context(), reseal.Prefix)
	if err != nil || len(l.Entries) != 2 {
		t.Fatalf("%d keys of the reseed, %v", len(l.Entries), err)
	}
	for _, e := range l.Entries {
		kept = append(kept, store.Write{Key: e.Key, Value: e.Value})
	}
	f.Faults.Disarm("set.after-swap")
	f.Faults.Disarm("adopt.begin")
	f.C.Parts().Head.LookAgain()
	f.Await(authority.Ready)
	if _, err := f.Local().Member.RemoveMember(f.Context(),
		&fealtyv1.RemoveMemberRequest{Kind: "data", Name: "a", Force: true, Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	f.Member("b")
	late := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "late"})
	if _, err := f.Store.Commit(t.Context(), store.Tx{Put: kept}); err != nil {
		t.Fatal(err)
	}
	f.Restart()
	f.Await(authority.Ready)
	if !unlocked(f) {
		t.Error("the records are locked")
	}
	rec, err := record.Get[record.Member](t.Context(), f.State().Records, a.Key)
	if !errors.Is(err, store.ErrForged) {
		t.Errorf("a member that was removed is back: %+v, %v", rec.Value, err)
	}
	if err := f.Node().Join(identity.Data, proof.NewTokenProver(late)); err != nil {
		t.Errorf("a token of after the reseed: %v", err)
	}
}

// A thief who kept the mesh CA key of the old seed, and opened a connection as an admin
// or coordinator before the change, is cut off by it; the stream of a member stands.
func TestConnectionsOfDecidersEndWithTheirRoot(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	dial := func(kind identity.Kind) coordinatortest.Conn {
		chain, key := coordinatortest.Certified(f.T, f.State(), "spiffe://"+coordinatortest.Cluster+"/"+string(kind)+"/mallory")
		cert := tls.Certificate{PrivateKey: key}
		for _, c := range chain {
			cert.Certificate = append(cert.Certificate, c.Raw)
		}
		conn, err := grpc.NewClient("passthrough:///"+f.Addr,
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
				Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
			})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	ask := func(conn coordinatortest.Conn) error {
		_, err := coordinatortest.NewClients(conn).Status.GetStatus(f.Context(), &fealtyv1.GetStatusRequest{})
		return err
	}
	conns := make(map[identity.Kind]coordinatortest.Conn)
	for _, kind := range []identity.Kind{identity.Admin, identity.Readonly} {
		conns[kind] = dial(kind)
		if err := ask(conns[kind]); err != nil {
			t.Fatalf("%s before the change: %v", kind, err)
		}
	}
	// An admin that is under the old root is still told that its own reseed is done.
	if _, err := fealtyv1.NewReseedServiceClient(conns[identity.Admin]).CommitReseed(f.Context(),
		coordinatortest.PrepareReseed(f, nil)); err != nil {
		t.Errorf("the answer to who asked: %v", err)
	}
	for kind, conn := range conns {
		wait.Until(t, fmt.Sprintf("%s under the old root is not served any more", kind),
			func() bool { return ask(conn) != nil })
	}
}
