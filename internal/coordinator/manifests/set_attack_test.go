package manifests_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/manifest"
)

// Two people set a manifest for the same head: one wins, and the other is shown
// the new head.
func TestConcurrentSetsHaveOneWinner(t *testing.T) {
	f := coordinatortest.ReadyFleet(t, nil)
	head := f.State().Head
	errs := make(chan error, 2)
	for i := range cap(errs) {
		req := &fealtyv1.SetManifestRequest{Manifest: f.Manifest(fmt.Sprintf("  - {name: extra-%d, kind: data, match: "+
			"[\"token:extra-%d\"]}\n", i, i))}
		f.Sign(req, head.Hash)
		client := f.Local().Manifest
		go func() {
			_, err := client.SetManifest(f.Context(), req)
			errs <- err
		}()
	}
	won := 0
	for range cap(errs) {
		if err := <-errs; err == nil {
			won++
		} else {
			coordinatortest.WantCode(t, err, errcode.ManifestStale)
		}
	}
	if won != 1 {
		t.Fatalf("%d sets won, want 1", won)
	}
	if got := f.State().Head; got.Index != head.Index+1 || got.Previous != head.Hash {
		t.Fatalf("the head is index %d after %v, want the child of %v", got.Index, got.Previous, head.Hash)
	}
}

func TestBadSets(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	head := f.State().Head
	_, foreign, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	foreignKey, err := manifest.NewKey(foreign.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	good := f.Manifest("  - {name: extra, kind: data, match: [\"token:extra\"]}\n")
	signed := func(change func(*fealtyv1.SetManifestRequest)) *fealtyv1.SetManifestRequest {
		req := &fealtyv1.SetManifestRequest{Manifest: good}
		f.Sign(req, head.Hash)
		change(req)
		return req
	}
	for _, tc := range []struct {
		name string
		req  *fealtyv1.SetManifestRequest
		want errcode.Code
	}{
		{"malformed", signed(func(r *fealtyv1.SetManifestRequest) { r.Manifest = []byte("cluster: [") }),
			errcode.ManifestInvalid},
		{"contradictory", signed(func(r *fealtyv1.SetManifestRequest) {
			r.Manifest = append(r.Manifest, []byte("  - {name: pool, kind: witness, match: [\"token:pool\"]}\n")...)
		}), errcode.ManifestInvalid},
		{"unsigned", signed(func(r *fealtyv1.SetManifestRequest) { r.Signatures = nil }), errcode.ManifestUnsigned},
		{"signature over another manifest",
			signed(func(r *fealtyv1.SetManifestRequest) {
				r.Manifest = append(r.Manifest,
					'\n')
			}), errcode.ManifestMissigned},
		{"flipped signature", signed(func(r *fealtyv1.SetManifestRequest) { r.Signatures[0].Signature[3] ^= 1 }),
			errcode.ManifestMissigned},
		{"foreign signer", signed(func(r *fealtyv1.SetManifestRequest) {
			r.Signatures = []*fealtyv1.ManifestSignature{{Key: foreignKey.String(),
				Signature: ed25519.Sign(foreign, make([]byte, 10))}}
		}), errcode.SignatureForeign},
		{"for an older head", signed(func(r *fealtyv1.SetManifestRequest) { r.CurrentTransition = make([]byte, 32) }),
			errcode.ManifestStale},
		{"a first set again", signed(func(r *fealtyv1.SetManifestRequest) { r.CurrentTransition = nil }),
			errcode.HistoryInitialized},
		{"without this coordinator", signed(func(r *fealtyv1.SetManifestRequest) {
			r.Manifest = []byte(strings.Replace(string(r.Manifest), f.C.EnrolmentKey(),
				foreignKey.String(),
				1))
		}), errcode.ManifestLeavesOut},
		{"another cluster", signed(func(r *fealtyv1.SetManifestRequest) {
			r.Manifest = []byte(strings.Replace(string(r.Manifest), coordinatortest.Cluster, "other.example", 1))
		}), errcode.RequestField},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := f.Local().Manifest.SetManifest(f.Context(), tc.req)
			coordinatortest.WantCode(t, err, tc.want)
			if got := f.State().Head.Hash; got != head.Hash {
				t.Fatal("the head moved")
			}
		})
	}
	t.Run("replayed onto the next head", func(t *testing.T) {
		req := signed(func(*fealtyv1.SetManifestRequest) {})
		if _, err := f.Local().Manifest.SetManifest(f.Context(), req); err != nil {
			t.Fatal(err)
		}
		now := f.State().Head.Hash
		req.CurrentTransition = now[:]
		_, err := f.Local().Manifest.SetManifest(f.Context(), req)
		coordinatortest.WantCode(t, err, errcode.ManifestMissigned)
	})
}

func TestSetsThatWouldStopTheCluster(t *testing.T) {
	t.Run("renaming this coordinator", func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		m := strings.Replace(string(d.Manifest(coordinatortest.PoolEntries)), "{name: coordinator-1,",
			"{name: renamed,", 1)
		_, err := d.C.Parts().Moves.Manifests.Set(t.Context(), d.Request([]byte(m)), false)
		coordinatortest.WantOnly(t, "set", err, errcode.RequestField)
	})
	t.Run("more mesh CA keys than a bundle holds", func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		rec, err := record.Get[bundle.State](t.Context(), d.State().Records, bundle.StateKey)
		if err != nil {
			t.Fatal(err)
		}
		for i := range identity.MaxMeshKeys - 1 {
			rec.Value.MeshKeys = append(rec.Value.MeshKeys,
				bundle.MeshKey{Key: coordinatortest.KeyNumber(i), AuthorityEpoch: 1,
					AcceptUntil: d.Clock().Add(time.Hour)})
		}
		rec.Value.Change++
		ch := d.State().Records.NewChange(d.State().HeadVersion)
		ch.Put(bundle.StateKey, rec.Version, rec.Value)
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		coordinatortest.WantOnly(t, "a set that moves authority",
			d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t,
				2)),
			errcode.RateLimited)
		coordinatortest.WantOnly(t, "a set that does not", d.Set(coordinatortest.EntriesOf(false)), "")
		d.Advance(time.Hour)
		coordinatortest.WantOnly(t, "an hour later",
			d.Set(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t, 2)), "")
	})
}
