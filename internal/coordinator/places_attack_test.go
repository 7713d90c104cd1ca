package coordinator_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/ownerrecovery"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/recovery"
	"github.com/fealty-io/fealty/mesh"
)

// strangerFrom returns a connection to f from the i-th of many addresses, each of which
// is in a network of its own.
func strangerFrom(f *coordinatortest.Fleet, i int) *mesh.Conn {
	f.T.Helper()
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, byte(1+i/250), byte(i%250), 1)}}
	conn, err := mesh.DialPinned(f.Addr, credential.Unproven(),
		mesh.Options{Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr)
		}})
	if err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(func() { conn.Close() })
	return conn
}

// crowds of strangers: from how many addresses they come, how many calls each of these
// begins, and how many places there are.
var crowds = map[string]struct{ addresses, calls, most int }{
	"8 addresses":                      {8, ownerrecovery.MaxPerSource + 1, ownerrecovery.MaxBringing},
	"64 addresses":                     {64, 1, ownerrecovery.MaxBringing},
	"64 addresses that take all there": {64, 1, 24},
}

// Strangers who begin recoveries and bring no share hold up no owner.
func TestStrangersHoldUpNoOwner(t *testing.T) {
	t.Parallel()
	for name, crowd := range crowds {
		t.Run(name, func(t *testing.T) {
			f, p := coordinatortest.NewOwnedFleet(t, func(cfg *coordinator.Config) { cfg.LimitOwners(crowd.most) })
			alice := p.ShareFile(f.Store, "alice")
			coordinatortest.LoseKeeper(f)
			for i := range crowd.addresses {
				client := fealtyv1.NewRecoveryServiceClient(strangerFrom(f, i))
				for range crowd.calls {
					stream, err := client.Recover(f.Context())
					if err == nil {
						_, _ = stream.Recv() // the offer, or a refusal; and then nothing more
					}
				}
			}
			_, err := f.Bring(alice, recovery.Options{})
			coordinatortest.WantOnly(t, "an owner among strangers", err, "")
		})
	}
}

// Strangers who verify, and take the history no further than they have to, hold up
// nobody who verifies; and they lose their places.
func TestStrangersHoldUpNobodyWhoVerifies(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	for i := range 4 { // more than one page
		long := string(f.Manifest("")) + strings.Repeat(fmt.Sprintf("#%d%s\n", i, strings.Repeat("x", 997)), 1000)
		if err := f.Set([]byte(long)); err != nil {
			t.Fatal(err)
		}
	}
	limits := f.C.Verifiers().Limits()
	limits.Patience = 2 * time.Second
	f.C.SetVerifiers(flowcontrol.New(limits))
	want := recovery.Expected{Manifest: f.C.Rooms().Head.State().Manifest}
	var held []fealtyv1.VerifyService_VerifyClient
	for i := range 8 {
		client := fealtyv1.NewVerifyServiceClient(strangerFrom(f, i))
		for range coordinator.VerifiersPerSource {
			stream, err := client.Verify(f.Context(), &fealtyv1.VerifyRequest{Nonce: make([]byte, proof.NonceBytes)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil { // the claim; the history stays where it is
				t.Fatal(err)
			}
			held = append(held, stream)
		}
	}
	_, err := verifyAt(t, f.Addr, want)
	coordinatortest.WantOnly(t, "a data owner among strangers", err, "")
	v := f.C.Verifiers()
	none := func() bool { return v.InUse() == 0 }
	for deadline := time.Now().Add(time.Minute); !none(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d streams that take nothing hold their places for ever", len(held))
		}
	}
}

// Strangers who say that they are a coordinator, by its name, and then nothing more,
// hold up no coordinator that comes back.
func TestStrangersHoldUpNoCoordinator(t *testing.T) {
	t.Parallel()
	for name, crowd := range crowds {
		t.Run(name, func(t *testing.T) {
			f, rs := coordinatortest.NewPeerFleet(t, 1, func(cfg *coordinator.Config) { cfg.LimitPeers(crowd.most) })
			r := rs[0]
			for i := range crowd.addresses {
				client := fealtyv1.NewPeerServiceClient(strangerFrom(f, i))
				for range crowd.calls {
					stream, err := client.Recover(f.Context())
					if err != nil {
						continue
					}
					_ = stream.Send(&fealtyv1.PeerServiceRecoverRequest{Step: &fealtyv1.PeerServiceRecoverRequest_Hello{Hello: &fealtyv1.PeerHello{
						Cluster: coordinatortest.Cluster, Head: make([]byte, 32), Nonce: make([]byte, proof.NonceBytes),
						Key: r.Enrolment, Recipient: "age1",
					}}})
				}
			}
			r.Start()
			r.AwaitHead(f)
		})
	}
}

// Strangers who begin to join and do not answer their challenge keep no member out.
func TestStrangersHoldUpNoJoin(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, func(cfg *coordinator.Config) { cfg.Limit(0, 48, 8) })
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		stream, err := fealtyv1.NewAdmissionServiceClient(strangerFrom(f, i)).Join(f.Context())
		if err == nil {
			_, err = stream.Recv() // the challenge
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	f.Member("node-a")
}
