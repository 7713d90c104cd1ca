package cluster

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	internaltrust "github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// believes verifies an envelope by the trust bundle that a member has on disk.
func (c *Cluster) believes(t *testing.T, name string, raw []byte) error {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	signed, err := snapshot.Unmarshal(raw)
	must(err)
	claims, err := signed.Claims()
	must(err)
	me, incarnation, _ := claims.Header.Subject.Node()
	bundleRaw, err := state.ReadActive(durable.OS(), c.MemberDir(name), snapshot.ScopeTrustBundle)
	must(err)
	bundle, err := snapshot.Unmarshal(bundleRaw)
	must(err)
	keys, err := c.stealKeys(t.Context())
	must(err)
	trust := snapshot.Trust{Me: me, Incarnation: incarnation, ConfigRoot: keys.ConfigRoot().Public().(ed25519.PublicKey), Roles: claims.Header.Roles, Organizations: claims.Header.OrganizationIDs}
	if trust.Bundle, err = snapshot.Verify(bundle, trust, snapshot.Marks{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	_, err = snapshot.Verify(signed, trust, snapshot.Marks{}, time.Now())
	return err
}

// A cluster's config signing key is replaced while a member is away, then stolen, and
// then its signers revoke without it: at each step members that run stay connected and
// hold what the newest key signs.
func TestTrust(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, err := Start(ctx, Options{Release: "test", Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// holds waits until members hold a node_runtime that only this key signs.
	holds := func(key string, names ...string) {
		t.Helper()
		for _, name := range names {
			must(c.Await(ctx, name+" to hold what key "+key+" signs", func(ctx context.Context) (bool, error) {
				n, err := c.Node(ctx, name)
				if err != nil {
					return false, err
				}
				i := slices.IndexFunc(n.GetHeld(), func(h *fealtyv1.HeldSnapshot) bool { return h.GetScope() == "node_runtime" })
				return i >= 0 && slices.Equal(n.GetHeld()[i].GetSigners(), []string{key}) && n.GetConnected(), errors.New("it does not yet")
			}))
		}
	}
	all := []string{"node-a", "node-b", "node-c"}
	must(c.AwaitConnected(ctx, all...))
	first, err := c.SigningKey(ctx)
	must(err)
	holds(first.GetKeyId(), all...)

	// By and by: who is here confirms, who is away is named at the deadline and comes back.
	must(c.StopMember("node-c"))
	trust, err := c.Rotate(ctx, &fealtyv1.RotateConfigKeyRequest{Deadline: durationpb.New(8 * time.Second), Reason: "test"})
	must(err)
	if r := trust.GetLastRotation(); r.GetEnded() != "deadline" || !slices.Equal(r.GetMissing(), []string{"data/node-c"}) {
		t.Fatalf("the rotation ended %v", r)
	}
	second, err := c.SigningKey(ctx)
	must(err)
	must(c.RunMember(ctx, "node-c"))
	holds(second.GetKeyId(), all...)
	if trust, err = c.Rotate(ctx, &fealtyv1.RotateConfigKeyRequest{}); err != nil || trust.GetLastRotation().GetEnded() != "confirmed" {
		t.Fatalf("all are here, and it ended %v (%v)", trust.GetLastRotation(), err)
	}
	third, err := c.SigningKey(ctx)
	must(err)
	holds(third.GetKeyId(), all...)

	// Stolen: what the thief signs is genuine until the key is revoked, and then it is not.
	key, err := c.StealConfigKey(ctx, third.GetNumber())
	must(err)
	forged, err := c.Forge("node-a", key)
	must(err)
	must(c.believes(t, "node-a", forged))
	_, err = c.Rotate(ctx, &fealtyv1.RotateConfigKeyRequest{Compromised: third.GetKeyId(), Reason: "stolen"})
	must(err)
	fourth, err := c.SigningKey(ctx)
	must(err)
	holds(fourth.GetKeyId(), all...)
	err = c.believes(t, "node-a", forged)
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != internalsnapshot.ReasonSigner {
		t.Fatalf("what the thief signed: %v", err)
	}

	// Without a coordinator: the signers' word is enough, and it stays.
	digest := snapshot.DigestOf(must1(c.StealConfigKey(ctx, fourth.GetNumber())).Public().(ed25519.PublicKey))
	statement, err := c.Emergency(ctx, 1, func(e *internaltrust.Emergency) { e.ConfigKeys = []snapshot.Digest{digest} })
	must(err)
	must(c.StopCoordinators())
	resp, err := c.HandOver(ctx, "node-a", statement)
	must(err)
	if !resp.GetChanged() || !slices.Contains(resp.GetDistrusted(), "node_runtime") {
		t.Fatalf("%v", resp)
	}
	gone := func() {
		t.Helper()
		n, err := c.Node(ctx, "node-a")
		must(err)
		if slices.ContainsFunc(n.GetHeld(), func(h *fealtyv1.HeldSnapshot) bool { return h.GetScope() == "node_runtime" }) {
			t.Fatal("what the revoked key signed is in use")
		}
	}
	gone()
	must(c.StopMember("node-a"))
	must(c.RunMember(ctx, "node-a"))
	must(c.Await(ctx, "node-a to answer", func(ctx context.Context) (bool, error) {
		_, err := c.Node(ctx, "node-a")
		return err == nil, err
	}))
	gone()
	// And with one: it enters the bundle, and everybody gets what the next key signs.
	must(c.StartCoordinators(ctx))
	must(c.withTrust(func(t fealtyv1.TrustServiceClient) error {
		_, err := t.ApplyEmergency(ctx, &fealtyv1.ApplyEmergencyRequest{Statement: statement})
		return err
	}))
	fifth, err := c.SigningKey(ctx)
	must(err)
	holds(fifth.GetKeyId(), all...)
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
