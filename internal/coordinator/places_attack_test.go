package coordinator_test

import (
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/proof"
)

// crowds of strangers: from how many addresses they come, how many calls each of these
// begins, and how many places there are.
var crowds = map[string]struct{ addresses, calls, most int }{
	"8 addresses":                      {8, owner.MaxPerSource + 1, owner.MaxBringing},
	"64 addresses":                     {64, 1, owner.MaxBringing},
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
				client := fealtyv1.NewRecoveryServiceClient(coordinatortest.StrangerFrom(f, i))
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

// Strangers who say that they are a coordinator, by its name, and then nothing more,
// hold up no coordinator that comes back.
func TestStrangersHoldUpNoCoordinator(t *testing.T) {
	t.Parallel()
	for name, crowd := range crowds {
		t.Run(name, func(t *testing.T) {
			f, rs := coordinatortest.NewPeerFleet(t, 1, func(cfg *coordinator.Config) { cfg.LimitPeers(crowd.most) })
			r := rs[0]
			for i := range crowd.addresses {
				client := fealtyv1.NewPeerServiceClient(coordinatortest.StrangerFrom(f, i))
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
		stream, err := fealtyv1.NewAdmissionServiceClient(coordinatortest.StrangerFrom(f, i)).Join(f.Context())
		if err == nil {
			_, err = stream.Recv() // the challenge
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	f.Member("node-a")
}
