package credential_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// Every reason for which material is refused, with at least one way to earn it.
// OtherIdentity belongs to Issued.
func TestNewMaterialRefuses(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	foreign := pkitest.NewAuthority(t, "other.example")
	id := a.ID(t, identity.Data, "n1")
	chain, key := a.Issue(t, id)
	expired, expiredKey := a.Issue(t, id, pkitest.Expired())
	early, earlyKey := a.Issue(t, id, pkitest.NotYetValid())
	stranger, strangerKey := foreign.Issue(t, foreign.ID(t, identity.Data, "n1"))
	nobody, nobodyKey := a.IssueRaw(t, func(*x509.Certificate) {})
	both, bothKey := a.IssueRaw(t, func(c *x509.Certificate) {
		c.URIs = []*url.URL{id.URL(), a.ID(t, identity.Admin, "root").URL()}
	})
	crossed, crossedKey := a.Issue(t, foreign.ID(t, identity.Data, "n1"))
	ban := a.Bundle(func(c *identity.BundleConfig) { c.BannedIDs = []identity.ID{id} })

	for _, tc := range []struct {
		name   string
		chain  []*x509.Certificate
		key    crypto.Signer
		bundle *identity.Bundle
		want   credential.Reason
	}{
		{"no bundle", chain, key, nil, credential.Incomplete},
		{"chain without key", chain, nil, a.Bundle(), credential.Incomplete},
		{"key without chain", nil, key, a.Bundle(), credential.Incomplete},
		{"hole in chain", []*x509.Certificate{chain[0], nil}, key, a.Bundle(), credential.Incomplete},
		{"new certificate, old key", chain, expiredKey, a.Bundle(), credential.KeyMismatch},
		{"expired", expired, expiredKey, a.Bundle(), credential.Expired},
		{"not yet valid", early, earlyKey, a.Bundle(), credential.Expired},
		{"other root", stranger, strangerKey, a.Bundle(), credential.Untrusted},
		{"leaf alone", chain[:1], key, a.Bundle(), credential.Untrusted},
		{"banned", chain, key, ban, credential.Banned},
		{"no SAN", nobody, nobodyKey, a.Bundle(), credential.NoIdentity},
		{"two SANs", both, bothKey, a.Bundle(), credential.NoIdentity},
		{"SAN of another cluster", crossed, crossedKey, a.Bundle(), credential.NoIdentity},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := credential.NewMaterial(credential.MaterialConfig{Chain: tc.chain, Key: tc.key, Bundle: tc.bundle})
			e, ok := errors.AsType[*credential.MaterialError](err)
			if !ok || e.Reason != tc.want || m != nil {
				t.Fatalf("NewMaterial = %v, %v, want reason %s", m, err, tc.want)
			}
		})
	}
}

func TestMaterialClock(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	chain, key := a.Issue(t, a.ID(t, identity.Data, "n1"), pkitest.WithTTL(time.Hour))
	late := func() time.Time { return time.Now().Add(2 * time.Hour) }
	_, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: a.Bundle(), Now: late})
	if !errors.Is(err, identity.ErrExpired) {
		t.Fatalf("by a clock that is past its end: %v", err)
	}
}

func TestFingerprint(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	b := pkitest.NewAuthority(t, cluster)
	key := pkitest.NewKey(t)
	id := a.ID(t, identity.Data, "n1")
	chain, _ := a.Issue(t, id, pkitest.WithKey(key))
	chain3 := append(slices.Clone(chain), a.Root().Cert)
	again, _ := a.Issue(t, id, pkitest.WithKey(key)) // another serial number
	other, _ := a.Issue(t, a.ID(t, identity.Data, "n2"), pkitest.WithKey(key))
	kind, _ := a.Issue(t, a.ID(t, identity.Shard, "n1"), pkitest.WithKey(key))
	banned := a.Bundle(func(c *identity.BundleConfig) { c.BannedIDs = []identity.ID{a.ID(t, identity.Data, "n9")} })
	twoRoots := a.Bundle(func(c *identity.BundleConfig) { c.Roots = append(c.Roots, b.Root().Cert) })

	make := func(chain []*x509.Certificate, bundle *identity.Bundle) [32]byte {
		cfg := credential.MaterialConfig{Bundle: bundle, Chain: chain}
		if chain != nil {
			cfg.Key = key
		}
		m, err := credential.NewMaterial(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return m.Fingerprint()
	}
	if make(chain, a.Bundle()) != make(slices.Clone(chain), a.Bundle()) {
		t.Fatal("equal material has two fingerprints")
	}
	eph1, err := credential.NewEphemeral(nil)
	if err != nil {
		t.Fatal(err)
	}
	eph2, err := credential.NewEphemeral(nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[[32]byte]string{}
	for name, f := range map[string][32]byte{
		"base":            make(chain, a.Bundle()),
		"root attached":   make(chain3, a.Bundle()),
		"serial":          make(again, a.Bundle()),
		"name":            make(other, a.Bundle()),
		"kind":            make(kind, a.Bundle()),
		"ban":             make(chain, banned),
		"root added":      make(chain, twoRoots),
		"mode":            make(nil, a.Bundle()),
		"mode, other ban": make(nil, banned),
		"ephemeral":       eph1.Fingerprint(),
		"ephemeral again": eph2.Fingerprint(),
	} {
		if was, ok := seen[f]; ok {
			t.Errorf("%s and %s have one fingerprint", was, name)
		}
		seen[f] = name
	}
}

func TestTrustOnly(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	m := material(t, a, identity.Data, "n1").TrustOnly()
	if !m.ID().IsZero() || len(m.Chain()) != 0 || m.Key() != nil || m.Fingerprint() != trustOnly(t, a.Bundle()).Fingerprint() {
		t.Fatalf("TrustOnly keeps more than the bundle: %v", m)
	}
}

// Nothing that prints material or the configs made from it shows a key: for each
// key type, verb and encoder.
func TestNothingPrintsAKey(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	ed, ec := pkitest.NewEd25519Key(t), pkitest.NewKey(t)
	ecBytes, err := ec.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		key    crypto.Signer
		secret []byte
	}{{"ed25519", ed, ed.Seed()}, {"ecdsa", ec, ecBytes}} {
		t.Run(tc.name, func(t *testing.T) {
			m := material(t, a, identity.Data, "n1", pkitest.WithKey(tc.key))
			src := credential.NewIssued(m)
			server := credential.ServerTLS(credential.Static(m), credential.ServerOptions{})
			perConn, err := server.GetConfigForClient(&tls.ClientHelloInfo{})
			if err != nil {
				t.Fatal(err)
			}
			client := clientTLS(t, m, credential.AnyOfKind(identity.Data))
			cert, err := client.GetClientCertificate(new(tls.CertificateRequestInfo))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			for _, v := range []any{m, *m, src, credential.Static(m), server, perConn, client, cert, *cert, perConn.Certificates,
				struct{ m *credential.Material }{m}, []*credential.Material{m}, struct{ m credential.Material }{*m}} {
				for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
					fmt.Fprintf(&out, verb+"\n", v)
				}
				j, _ := json.Marshal(v) // configs hold functions and fail to encode
				out.Write(j)
				slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
				slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
			}
			text := out.String()
			if !strings.Contains(text, m.ID().String()) {
				t.Fatal("the printed form does not name the identity")
			}
			dec := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(tc.secret[:8])), " "), "[]")
			for _, form := range []string{
				string(tc.secret), hex.EncodeToString(tc.secret[:8]), strings.ToUpper(hex.EncodeToString(tc.secret[:8])),
				dec, strings.ReplaceAll(dec, " ", ", "), base64.StdEncoding.EncodeToString(tc.secret[:6]),
				strings.Trim(fmt.Sprintf("%#v", tc.secret[:8]), "[]byte{}"),
			} {
				if strings.Contains(text, form) {
					t.Errorf("a printed form holds the key as %q", form)
				}
			}
		})
	}
}

func TestIssued(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	foreign := pkitest.NewAuthority(t, "other.example")
	now := time.Now()
	clock := func() time.Time { return now }
	issue := func(a *pkitest.Authority, kind identity.Kind, name string, opts ...pkitest.IssueOption) *credential.Material {
		chain, key := a.Issue(t, a.ID(t, kind, name), opts...)
		m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: a.Bundle(), Now: clock})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	good := issue(a, identity.Data, "n1")
	brief := issue(a, identity.Data, "n1", pkitest.WithTTL(time.Hour))
	eph, err := credential.NewEphemeral(clock)
	if err != nil {
		t.Fatal(err)
	}
	src := credential.NewIssued(good)
	now = now.Add(2 * time.Hour) // brief is over

	for _, tc := range []struct {
		name string
		m    *credential.Material
		want credential.Reason
	}{
		{"nil", nil, credential.Incomplete},
		{"expired since it was made", brief, credential.Expired},
		{"other name", issue(a, identity.Data, "n2"), credential.OtherIdentity},
		{"other kind", issue(a, identity.Shard, "n1"), credential.OtherIdentity},
		{"other cluster", issue(foreign, identity.Data, "n1"), credential.OtherIdentity},
		{"no identity", trustOnly(t, a.Bundle()), credential.OtherIdentity},
		{"ephemeral", eph, credential.OtherIdentity},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changed := src.Changed()
			err := src.Adopt(tc.m)
			e, ok := errors.AsType[*credential.MaterialError](err)
			if !ok || e.Reason != tc.want {
				t.Fatalf("Adopt = %v, want reason %s", err, tc.want)
			}
			if cur, err := src.Current(context.Background()); cur != good || err != nil {
				t.Fatalf("after a refusal Current = %v, %v, want the last good", cur, err)
			}
			if src.Failure() != err {
				t.Fatalf("Failure = %v, want the refusal", src.Failure())
			}
			if closed(changed) {
				t.Fatal("a refusal looks like a change")
			}
		})
	}
	t.Run("renewed", func(t *testing.T) {
		changed, next := src.Changed(), issue(a, identity.Data, "n1")
		if err := src.Adopt(next); err != nil {
			t.Fatal(err)
		}
		if cur, _ := src.Current(context.Background()); cur != next || !closed(changed) || src.Failure() != nil {
			t.Fatalf("Current = %v, Failure = %v", cur, src.Failure())
		}
		changed = src.Changed()
		if err := src.Adopt(next); err != nil || closed(changed) {
			t.Fatalf("equal material: %v, changed %v", err, closed(changed))
		}
	})
	t.Run("other cluster, without identity", func(t *testing.T) {
		src := credential.NewIssued(trustOnly(t, a.Bundle()))
		for _, m := range []*credential.Material{trustOnly(t, foreign.Bundle()), issue(foreign, identity.Data, "n1")} {
			if err := src.Adopt(m); err == nil {
				t.Fatalf("adopted %v", m)
			}
		}
	})
	t.Run("gains", func(t *testing.T) {
		src := credential.NewIssued(nil)
		if _, err := src.Current(context.Background()); !errors.Is(err, credential.ErrNoMaterial) {
			t.Fatal(err)
		}
		for _, m := range []*credential.Material{eph, trustOnly(t, a.Bundle()), good} {
			if err := src.Adopt(m); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A certificate that a process made for itself is not adopted once it has ended, and is until then.
func TestEphemeralEnds(t *testing.T) {
	made := time.Now().Truncate(time.Second)
	now := made
	eph, err := credential.NewEphemeral(func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	end := eph.Chain()[0].NotAfter
	for _, tc := range []struct {
		name string
		at   time.Time
		want credential.Reason
	}{
		{"when it was made", made, ""},
		{"at its end", end, ""},
		{"after its end", end.Add(time.Second), credential.Expired},
	} {
		now = tc.at
		src := credential.NewIssued(nil)
		err := src.Adopt(eph)
		if e, _ := errors.AsType[*credential.MaterialError](err); tc.want == "" && err != nil || tc.want != "" && (e == nil || e.Reason != tc.want) {
			t.Errorf("%s: Adopt = %v, want reason %q", tc.name, err, tc.want)
		}
		if cur, err := src.Current(context.Background()); (cur == eph) != (tc.want == "") || (err == nil) != (tc.want == "") {
			t.Errorf("%s: Current = %v, %v", tc.name, cur, err)
		}
	}
}

// A bundle that bans ourselves, or drops our mesh CA, still takes effect here.
func TestTrustOutlivesOwnChain(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	m := material(t, a, identity.Data, "n1")
	src := credential.NewIssued(m)
	ban := a.Bundle(func(c *identity.BundleConfig) { c.BannedIDs = []identity.ID{m.ID()}; c.MeshKeys = nil })
	changed := src.Changed()
	if err := src.Trust(ban); err != nil {
		t.Fatal(err)
	}
	cur, _ := src.Current(context.Background())
	if cur.Bundle() != ban || cur.ID() != m.ID() || cur.Fingerprint() == m.Fingerprint() || !closed(changed) {
		t.Fatalf("Current = %v", cur)
	}
	for _, b := range []*identity.Bundle{nil, pkitest.NewAuthority(t, "other.example").Bundle()} {
		if err := src.Trust(b); err == nil || src.Failure() != err {
			t.Fatalf("Trust(%v) = %v, Failure %v", b.Cluster(), err, src.Failure())
		}
		if again, _ := src.Current(context.Background()); again != cur {
			t.Fatal("a refused bundle replaced the current one")
		}
	}
	if err := credential.NewIssued(nil).Trust(ban); !errors.Is(err, credential.ErrNoMaterial) {
		t.Fatal(err)
	}
}

// A source that cannot change gives the same each time, and says that it cannot.
func TestStatic(t *testing.T) {
	m := material(t, pkitest.NewAuthority(t, cluster), identity.Data, "n1")
	src := credential.Static(m)
	for range 2 {
		if got, err := src.Current(context.Background()); err != nil || got != m || src.Changed() != nil {
			t.Fatalf("%v, %v, changes %v", got, err, src.Changed() != nil)
		}
	}
	if _, err := credential.Static(nil).Current(context.Background()); !errors.Is(err, credential.ErrNoMaterial) {
		t.Fatal(err)
	}
	if credential.Static(nil).Changed() != nil {
		t.Fatal("a source that cannot change offers a channel")
	}
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
