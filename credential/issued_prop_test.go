package credential_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"pgregory.net/rapid"
)

// An Issued source keeps this, whatever is offered to it, in whatever order
// and at whatever time: what is good stays (I14), a process keeps its identity and cluster, and
// a change is told exactly when there is one.
func TestIssuedKeepsTheGood(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	b := pkitest.NewAuthority(t, "other.example")
	start := time.Now()
	now := start
	clock := func() time.Time { return now }
	offers := []*credential.Material{nil}
	for _, auth := range []*pkitest.Authority{a, b} {
		trust, err := credential.NewMaterial(credential.MaterialConfig{Bundle: auth.Bundle(), Now: clock})
		if err != nil {
			t.Fatal(err)
		}
		offers = append(offers, trust)
		for _, name := range []string{"n1", "n2"} {
			for _, ttl := range []time.Duration{time.Hour, 10 * time.Hour} {
				chain, key := auth.Issue(t, auth.ID(t, identity.Data, name), pkitest.WithTTL(ttl))
				m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: auth.Bundle(), Now: clock})
				if err != nil {
					t.Fatal(err)
				}
				offers = append(offers, m)
			}
		}
	}
	eph, err := credential.NewEphemeral(clock)
	if err != nil {
		t.Fatal(err)
	}
	offers = append(offers, eph)
	bundles := []*identity.Bundle{nil, a.Bundle(), b.Bundle(), banning(a, "n1"), banning(b, "n2")}

	rapid.Check(t, func(t *rapid.T) {
		now = start
		src := credential.NewIssued(rapid.SampledFrom(offers).Draw(t, "first"))
		cur, _ := src.Current(context.Background())
		changed := src.Changed()

		// settle checks what holds after every step, given what the step returned.
		settle := func(err error) {
			next, nerr := src.Current(context.Background())
			if (next == nil) != errors.Is(nerr, credential.ErrNoMaterial) {
				t.Fatalf("Current = %v, %v", next, nerr)
			}
			if src.Failure() != err {
				t.Fatalf("Failure = %v after %v", src.Failure(), err)
			}
			if err != nil && next != cur {
				t.Fatalf("a refusal (%v) replaced %v by %v", err, cur, next)
			}
			differs := cur != next && (cur == nil || next == nil || cur.Fingerprint() != next.Fingerprint())
			if closed(changed) != differs {
				t.Fatalf("change told: %v; %v became %v", closed(changed), cur, next)
			}
			if cur != nil {
				switch {
				case next == nil:
					t.Fatalf("%v was lost", cur)
				case !cur.ID().IsZero() && next.ID() != cur.ID():
					t.Fatalf("%v became %v", cur, next)
				case cur.Bundle() != nil && (next.Bundle() == nil || next.Bundle().Cluster() != cur.Bundle().Cluster()):
					t.Fatalf("%v changed its cluster to %v", cur, next)
				}
			}
			cur, changed = next, src.Changed()
		}
		t.Repeat(map[string]func(*rapid.T){
			"adopt": func(t *rapid.T) {
				m := rapid.SampledFrom(offers).Draw(t, "offer")
				err := src.Adopt(m)
				if err == nil && !m.NotAfter().IsZero() && now.After(m.NotAfter()) {
					t.Fatalf("adopted %v at %v", m, now)
				}
				settle(err)
			},
			"trust": func(t *rapid.T) { settle(src.Trust(rapid.SampledFrom(bundles).Draw(t, "bundle"))) },
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "minutes")) * time.Minute)
			},
		})
	})
}

// banning returns a's bundle with a ban of one data node.
func banning(a *pkitest.Authority, name string) *identity.Bundle {
	return a.Bundle(func(c *identity.BundleConfig) {
		id, err := identity.New(a.Cluster(), identity.Data, name)
		if err != nil {
			panic(err)
		}
		c.BannedIDs = []identity.ID{id}
	})
}
