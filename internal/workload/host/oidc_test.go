package host_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/test/wait"
)

// issuer is a fleet whose coordinator serves the web, and how outsiders ask it.
type issuer struct {
	*coordinatortest.Fleet
	t      testing.TB
	url    string
	client *http.Client
	asked  atomic.Int64 // for keys
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "web"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der},
		"tls.key": {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i := &issuer{t: t}
	i.Fleet = coordinatortest.NewFleet(t, func(c *coordinator.Config) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		i.url = "https://" + l.Addr().String() + "/prod"
		c.Publishing = coordinator.Publishing{Web: l, WebCert: filepath.Join(dir, "tls.crt"),
			WebKey: filepath.Join(dir, "tls.key")}
	})
	if err := i.Set(i.Manifest(`  - {name: runners, kind: data, match: ["token:runners"], roles: [egress]}
workloads: {token_issuer: "` + i.url + `"}
`)); err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()} // without HTTP/2 there was none to change
	transport.TLSClientConfig.RootCAs.AddCert(cert)
	i.client = &http.Client{Transport: counting{transport, &i.asked}}
	t.Cleanup(transport.CloseIdleConnections)
	return i
}

// counting counts the requests for keys.
type counting struct {
	http.RoundTripper
	asked *atomic.Int64
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/jwks.json") {
		c.asked.Add(1)
	}
	return c.RoundTripper.RoundTrip(r)
}

// verifier is an outsider that found the issuer just now, and keeps the keys that it is given.
func (i *issuer) verifier() *oidc.Provider {
	i.t.Helper()
	p, err := oidc.NewProvider(oidc.ClientContext(context.Background(), i.client), i.url)
	if err != nil {
		i.t.Fatal(err)
	}
	return p
}

func verify(p *oidc.Provider, audience, token string) error {
	_, err := p.Verifier(&oidc.Config{ClientID: audience}).Verify(context.Background(), token)
	return err
}

// rotated replaces the config signing key, and returns once the one before has left.
func (i *issuer) rotated() {
	i.t.Helper()
	trust := fealtyv1.NewTrustServiceClient(i.LocalConn())
	if _, err := trust.RotateConfigKey(i.t.Context(), &fealtyv1.RotateConfigKeyRequest{
		Deadline: durationpb.New(time.Hour), Reason: "test"}); err != nil {
		i.t.Fatal(err)
	}
	wait.UntilNil(i.t, "the rotation ends", func() error {
		resp, err := trust.GetTrust(i.t.Context(), &fealtyv1.GetTrustRequest{})
		if err != nil {
			i.t.Fatal(err)
		}
		if t := resp.GetTrust(); t.GetRotation() != nil || len(t.GetConfigKeys()) != 1 {
			return fmt.Errorf("%v", t.GetRotation())
		}
		return nil
	})
}

// A token that an unmodified SPIFFE client got is verified by an unmodified client of OpenID Connect
// that knows the issuer alone, before and after the config signing key was replaced.
func TestTokensAreVerifiedByOpenIDConnect(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	m := joined(t, i.Fleet, "node-a")
	put(t, i.Fleet, service("billing", fmt.Sprintf("workload: {id: billing/api, uid: %d}\n", os.Getuid())))
	m.program().until("svid")
	client, err := workloadapi.New(t.Context(), workloadapi.WithAddr("unix://"+m.socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	token := func(audience string) string {
		t.Helper()
		svid, err := client.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: audience})
		if err != nil {
			t.Fatal(err)
		}
		return svid.Marshal()
	}
	first, early := token("ledger"), i.verifier()
	id, err := early.Verifier(&oidc.Config{ClientID: "ledger"}).Verify(t.Context(), first)
	if err != nil || id.Issuer != i.url || id.Subject != "spiffe://test.example/workload/billing/api" {
		t.Fatalf("%+v, %v", id, err)
	}
	if got, err := client.ValidateJWTSVID(t.Context(), first, "ledger"); err != nil || got.ID.String() != id.Subject {
		t.Errorf("by the agent: %v, %v", got, err)
	}

	// Of the same claims, with a key of somebody else, under whatever name.
	parts := strings.Split(first, ".")
	parsed, err := jose.ParseSigned(first, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	kid := parsed.Signatures[0].Header.KeyID
	foreign, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := func(kid string) string {
		t.Helper()
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: foreign, KeyID: kid}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := signer.Sign(parsed.UnsafePayloadWithoutVerification())
		if err != nil {
			t.Fatal(err)
		}
		text, err := signed.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name, tc := range map[string][2]string{
		"a foreign key":                     {"ledger", forged("foreign")},
		"a foreign key by the name of ours": {"ledger", forged(kid)},
		"another audience":                  {"shop", first},
		"no algorithm":                      {"ledger", "eyJhbGciOiJub25lIn0." + parts[1] + "."},
	} {
		if err := verify(early, tc[0], tc[1]); err == nil {
			t.Errorf("%s: it is verified", name)
		}
	}
	late := &oidc.Config{ClientID: "ledger", Now: func() time.Time { return time.Now().Add(6 * time.Minute) }}
	if _, err := early.Verifier(late).Verify(t.Context(), first); err == nil {
		t.Error("a token that has ended is verified")
	}
	if _, err := oidc.NewProvider(oidc.ClientContext(t.Context(), i.client), strings.TrimSuffix(i.url, "/prod")); err == nil {
		t.Error("another issuer has the same documents")
	}

	// A verifier that asked before the rotation knows the key that comes with it, and one that asks
	// after it the key that left.
	before := i.asked.Load()
	i.rotated()
	second := token("shop")
	if now, err := jose.ParseSigned(second, []jose.SignatureAlgorithm{jose.ES256}); err != nil ||
		now.Signatures[0].Header.KeyID == kid {
		t.Fatalf("signed by the same key, %v", err)
	}
	if err := verify(early, "shop", second); err != nil {
		t.Errorf("a new token, by an early verifier: %v", err)
	}
	if got := i.asked.Load(); got != before {
		t.Errorf("keys were asked for %d times again", got-before)
	}
	after := i.verifier()
	for audience, token := range map[string]string{"ledger": first, "shop": second} {
		if err := verify(after, audience, token); err != nil {
			t.Errorf("the token for the %s, by a late verifier: %v", audience, err)
		}
	}

	// A key that was stolen is known to nobody who asks from then on.
	trust := fealtyv1.NewTrustServiceClient(i.LocalConn())
	shown, err := trust.GetTrust(t.Context(), &fealtyv1.GetTrustRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.RotateConfigKey(t.Context(), &fealtyv1.RotateConfigKeyRequest{Reason: "test",
		Compromised: shown.GetTrust().GetConfigKeys()[0].GetKeyId()}); err != nil {
		t.Fatal(err)
	}
	if err := verify(i.verifier(), "shop", second); err == nil {
		t.Error("a token by a stolen key is verified")
	}
	if err := verify(i.verifier(), "ledger", first); err != nil {
		t.Errorf("a token by the key before it: %v", err)
	}
	// What the stolen key signed counts no more, and the node may have it before what takes its place.
	var third string
	wait.Until(t, "the node has what the key after it signed", func() bool {
		svid, err := client.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "third"})
		if err == nil {
			third = svid.Marshal()
		}
		return err == nil
	})
	if err := verify(after, "third", third); err != nil {
		t.Errorf("a token by the key after it, by who asked before: %v", err)
	}
}
