package trust_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
)

// A ban of after the backup is in force again when any member shows the bundle that
// says so; nothing else is believed.
func TestPresented(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	a, lost := f.Member("a"), f.Member("b")
	atBackup := f.C.Parts().Bundle.View().Signed
	b := coordinatortest.Save(f, owners).Signed(f.Signer)
	coordinatortest.BanIn(f, lost)
	banned := f.C.Parts().Bundle.View().Signed
	first, _, err := coordinatortest.Present(f, banned)
	if err != nil || first.GetRestored() {
		t.Errorf("a cluster that was not restored wants %v, %v", first, err)
	}
	b.Restore()
	f.Start()
	f.Await(authority.Ready)
	if f.C.Parts().Bundle.Bans(lost.ID, identity.KeyOf(lost.Chain[0])) {
		t.Fatal("the restored cluster knows of the ban by itself")
	}
	other, _ := coordinatortest.NewOwnedFleet(t, nil)
	for name, raw := range map[string][]byte{
		"nothing": nil, "no bundle": []byte("x"), "altered": append(bytes.Clone(banned[:len(banned)-1]),
			banned[len(banned)-1]^1),
		"of before the backup": atBackup, "of after the restore": f.C.Parts().Bundle.View().Signed, "of another " +
			"cluster": other.C.Parts().Bundle.View().Signed,
	} {
		if _, done, err := coordinatortest.Present(f, raw); err == nil {
			t.Errorf("%s: %v", name, done)
		}
	}
	first, done, err := coordinatortest.Present(f, banned)
	if err != nil || done.GetTaken() < 2 {
		t.Fatalf("presented: %v, %v, %v", first, done, err)
	}
	if !f.C.Parts().Bundle.Bans(lost.ID, identity.KeyOf(lost.Chain[0])) {
		t.Error("the ban is not in force")
	}
	if f.C.Parts().Bundle.Bans(a.ID, identity.KeyOf(a.Chain[0])) {
		t.Error("somebody else is banned")
	}
	if _, _, err := coordinatortest.Present(f, banned); err == nil {
		t.Error("the same again is news")
	}
	// It stays, and a person can lift it.
	f.Restart()
	f.Await(authority.Ready)
	if !f.C.Parts().Bundle.Bans(lost.ID, identity.KeyOf(lost.Chain[0])) {
		t.Error("the ban is not in force after another start")
	}
	if _, err := f.Local().Member.UnbanMember(f.Context(),
		&fealtyv1.UnbanMemberRequest{Kind: "data", Name: "b"}); err != nil {
		t.Error(err)
	}
}

// Bundles of before a restore come late. A ban that a person lifted since then stays
// lifted, and the others are banned.
func TestPresentedAfterAnUnban(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	lifted, lost := f.Member("a"), f.Member("b")
	coordinatortest.BanIn(f, lifted)
	b := coordinatortest.Save(f, owners).Signed(f.Signer)
	coordinatortest.BanIn(f, lost)
	banned := f.C.Parts().Bundle.View().Signed
	b.Restore()
	f.Start()
	f.Await(authority.Ready)
	if _, err := f.Local().Member.UnbanMember(f.Context(),
		&fealtyv1.UnbanMemberRequest{Kind: "data", Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := coordinatortest.Present(f, banned); err != nil {
		t.Fatal(err)
	}
	v := f.C.Parts().Bundle.View().Bundle.BannedIDs()
	if slices.Contains(v, lifted.ID) || !slices.Contains(v, lost.ID) {
		t.Errorf("banned are %v; want b, and not a, whose ban was lifted after the restore", v)
	}
}

// The mesh CA keys of several authority epochs between the backup and the restore are
// accepted again, and none is said to be of the epoch of the bundle that names them all (I9).
func TestPresentedMeshKeys(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	f.Member("a")
	b := coordinatortest.Save(f, owners).Signed(f.Signer)
	for range 2 {
		if _, err := (coordinatortest.Served[fealtyv1.TrustServiceServer](
			f.C.Parts().Trust.RegisterServices)).RotateMeshKey(
			f.Context(),
			&fealtyv1.RotateMeshKeyRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	shown := f.C.Parts().Bundle.View().Signed
	b.Restore()
	f.Start()
	f.Await(authority.Ready)
	if _, done, err := coordinatortest.Present(f, shown); err != nil {
		t.Fatalf("presented: %v, %v", done, err)
	}
	tr, err := (coordinatortest.Served[fealtyv1.TrustServiceServer](f.C.Parts().Trust.RegisterServices)).GetTrust(
		f.Context(),
		&fealtyv1.GetTrustRequest{})
	if err != nil {
		t.Fatal(err)
	}
	epochs := make(map[uint64]int)
	for _, k := range tr.GetTrust().GetMeshKeys() {
		if epochs[k.GetAuthorityEpoch()]++; epochs[k.GetAuthorityEpoch()] > 1 && k.GetAuthorityEpoch() != 0 {
			t.Errorf("two mesh CA keys are of epoch %d", k.GetAuthorityEpoch())
		}
	}
	if epochs[0] == 0 {
		t.Errorf("the keys of the gap are of epochs %v", epochs)
	}
}

// renewedInGap returns a fleet that was restored, and a member of it that had renewed
// between the backup and the restore.
func renewedInGap(t *testing.T) (*coordinatortest.Fleet, *coordinatortest.Node) {
	t.Helper()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	a := f.Member("a")
	b := coordinatortest.Save(f, owners)
	f.Advance(time.Minute)
	if err := a.Renew(true); err != nil {
		t.Fatal(err)
	}
	f.Advance(time.Minute)
	b.Planned().Signed(f.Signer).Restore()
	f.Start()
	f.Await(authority.Ready)
	f.Advance(time.Minute)
	return f, a
}

// A member that renewed after the backup renews again: the certificate that it has is
// the cluster's own, though its record is of before.
func TestRenewAfterRestore(t *testing.T) {
	t.Parallel()
	_, a := renewedInGap(t)
	if err := a.Renew(true); err != nil {
		t.Errorf("after the restore: %v", err)
	}
}

// A certificate of the gap is in no record before a renewal is written. While the store is
// full none over its key is signed: nobody who removes the member would know of it, and
// the member could not renew by it.
func TestRenewAfterRestoreInFullStore(t *testing.T) {
	t.Parallel()
	f, a := renewedInGap(t)
	f.Link.Hold(func(store.Tx) error { return store.ErrFull })
	csr, err := pki.NewCSR(a.Key)
	if err != nil {
		t.Fatal(err)
	}
	again := &fealtyv1.RenewRequest{Name: a.ID.Name(), Csr: csr, RecordedKey: true}
	if resp, err := coordinatortest.NewClients(a.Conn()).Admission.Renew(f.Context(), again); err == nil {
		t.Error("while nothing can be written, a key is certified that no record has")
		if err := a.Adopt(resp.GetChain()); err != nil {
			t.Fatal(err)
		}
	} else {
		coordinatortest.WantCode(t, err, errcode.StoreFull)
	}
	f.Link.Hold(nil)
	if err := a.Renew(true); err != nil {
		t.Errorf("once there is space: %v", err)
	}
}

// A node follows the restore by the links that the coordinator gives for what it knows.
func TestLinks(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	b := coordinatortest.Save(f, owners).Signed(f.Signer)
	start := f.State()
	if err := f.Set(start.Manifest.Bytes()); err != nil {
		t.Fatal(err)
	}
	before := f.State()
	links := func(known history.Hash) [][]byte {
		stream, err := coordinatortest.RestoreClient(f).GetLinks(f.Context(), &fealtyv1.GetLinksRequest{Known: known[:]})
		if err != nil {
			t.Fatal(err)
		}
		var out [][]byte
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return out
			}
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, m.GetLinks()...)
		}
	}
	follow := func(from *authority.State, signers manifest.Signers, links [][]byte) (bool, error) {
		trail := history.NewTrail(from.Chain.Mark(), signers)
		for _, raw := range links {
			if err := trail.Add(raw); err != nil {
				return false, err
			}
		}
		return trail.LeadsTo(f.State().Chain.Mark())
	}
	if got := links(start.Head.Hash); len(got) != 1 {
		t.Fatalf("%d links of one set", len(got))
	} else if restored, err := follow(start, start.Manifest.Signers, got); err != nil || restored {
		t.Errorf("a set: %v, %v", restored, err)
	}
	if got := links(history.Hash{1}); len(got) != 0 {
		t.Errorf("%d links for who knows another history", len(got))
	}
	b.Restore()
	f.Start()
	f.Await(authority.Ready)
	got := links(before.Head.Hash)
	if restored, err := follow(before, before.Manifest.Signers, got); err != nil || !restored {
		t.Errorf("a restore: %v, %v", restored, err)
	}
	if _, err := follow(before, manifest.Signers{Threshold: 1,
		Keys: []manifest.Signer{{Key: manifest.Key(f.C.Parts().Self.PrivateKey().Public().(ed25519.PublicKey))}}},
		got); !errors.Is(err, history.ErrNoTrail) {
		t.Errorf("a restore that other signers signed: %v", err)
	}
	// After another restore, too, who knows a head of before the first has to see both.
	first := f.State()
	again := coordinatortest.Save(f, owners).Signed(f.Signer)
	f.Advance(time.Minute)
	again.Planned().Signed(f.Signer).Restore()
	f.Start()
	f.Await(authority.Ready)
	got = links(before.Head.Hash)
	if t1, err := history.Decode(got[0]); err != nil || t1.Index != first.Head.Index || len(got) != 2 {
		t.Errorf("%d links from another than the first restore: %v", len(got), err)
	}
	// The rest that goes along with the bundle does as well.
	if restored, err := follow(before, before.Manifest.Signers,
		f.C.Parts().Bundle.View().Links); err != nil || !restored {
		t.Errorf("the links with the bundle: %v, %v", restored, err)
	}
}

// stalledLinks takes no page before taken is closed.
type stalledLinks struct {
	grpc.ServerStream
	ctx   context.Context
	taken chan struct{}
}

func (s stalledLinks) Context() context.Context { return s.ctx }

func (s stalledLinks) Send(*fealtyv1.GetLinksResponse) error {
	<-s.taken
	return nil
}

// A stranger who asks for the links of the history and takes none does not hold the call
// for ever.
func TestLinksAreTakenInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		stream := stalledLinks{ctx: identity.NewContext(t.Context(), identity.Peer{Addr: "192.0.2.1:9"}),
			taken: make(chan struct{})}
		ended := make(chan error, 1)
		go func() {
			ended <- coordinatortest.Served[fealtyv1.RestoreServiceServer](d.C.Parts().Trust.RegisterServices).GetLinks(
				&fealtyv1.GetLinksRequest{Known: make([]byte, 32)}, stream)
		}()
		time.Sleep(ratelimit.TransferTime(trust.LinkPage))
		synctest.Wait()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it ended with %v", err)
			}
		default:
			t.Error("it waits still")
		}
		close(stream.taken)
	})
}
