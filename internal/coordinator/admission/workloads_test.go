package admission_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/errcode"
	internaljwtsvid "github.com/fealty-io/fealty/internal/jwtsvid"
	"github.com/fealty-io/fealty/internal/pki"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// service is a record that registers a workload.
func service(name, more, workload string) string {
	return fmt.Sprintf("kind: service\nname: %s\ntype: process\n%sworkload: {%s}\n", name, more, workload)
}

// desk is a coordinator with two members, of which the first is of acme and the second of globex,
// and this config.
func desk(t *testing.T, records ...string) (d *coordinatortest.Desk, acme, globex *coordinatortest.Machine) {
	t.Helper()
	d = coordinatortest.Tenants(t)
	acme, globex = coordinatortest.JoinedAs(d, "acme", "a-1"), coordinatortest.JoinedAs(d, "globex", "g-1")
	coordinatortest.FollowMembers(d, d.C)
	publish(d, strings.Join(records, "\n---\n"))
	return d, acme, globex
}

func publish(d *coordinatortest.Desk, text string) {
	coordinatortest.MustPut(d, text)
	coordinatortest.MustPublish(d, publication.NewPublisher())
}

func as(m *coordinatortest.Machine) context.Context {
	return identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
}

func server(d *coordinatortest.Desk) fealtyv1.WorkloadServiceServer {
	return coordinatortest.Served[fealtyv1.WorkloadServiceServer](d.C.Parts().Workloads.RegisterServices)
}

func certify(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine, names ...string) (
	[]*fealtyv1.WorkloadCertificate, error) {
	t.Helper()
	req := &fealtyv1.CertifyWorkloadsRequest{Name: m.ID.Name()}
	for _, name := range names {
		key, err := coordinatortest.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		csr, err := pki.NewCSR(key)
		if err != nil {
			t.Fatal(err)
		}
		req.Workloads = append(req.Workloads, &fealtyv1.WorkloadRequest{Workload: name, Csr: csr})
	}
	resp, err := server(d).CertifyWorkloads(as(m), req)
	return resp.GetCertificates(), err
}

// outcomes are "ok" or "no", for each certificate.
func outcomes(certs []*fealtyv1.WorkloadCertificate) string {
	var out []string
	for _, c := range certs {
		switch {
		case c.GetRefusal() == "" && len(c.GetChain()) == 3:
			out = append(out, "ok")
		case c.GetRefusal() != "" && len(c.GetChain()) == 0:
			out = append(out, "no")
		default:
			out = append(out, "neither")
		}
	}
	return strings.Join(out, " ")
}

// A member vouches for what its published assignment registers, and for nothing else: not for
// another organization's, not for what is placed elsewhere, and not for what was taken away.
func TestOnlyWhatIsAssigned(t *testing.T) {
	t.Parallel()
	d, acme, globex := desk(t,
		service("web", "organization: acme\n", "id: acme/web, uid: 1"),
		service("shared", "", "uid: 2"),
		service("placed", "members: [data/g-1]\n", "uid: 3"),
		"kind: service\nname: plain\ntype: process\n",
		service("twice", "", "id: shared, uid: 4, ttl: 5m"),
	)
	for _, tc := range []struct {
		m     *coordinatortest.Machine
		names []string
		want  string
	}{
		{acme, []string{"acme/web", "shared", "placed", "plain", "web", "nobody", ""}, "ok ok no no no no no"},
		{globex, []string{"acme/web", "shared", "placed"}, "no ok ok"},
	} {
		got, err := certify(t, d, tc.m, tc.names...)
		if err != nil || outcomes(got) != tc.want {
			t.Errorf("%s asks for %v: %s, %v, want %s", tc.m.ID, tc.names, outcomes(got), err, tc.want)
		}
	}
	if got := coordinatortest.CounterOf(d.C.Registry(), "fealty_workload_certificates_total", "refused", "certificate"); got != 6 {
		t.Errorf("%v refusals were counted, want 6", got)
	}
	publish(d, "kind: service\nname: web\ntype: process\norganization: acme\n")
	if got, err := certify(t, d, acme, "acme/web"); err != nil || outcomes(got) != "no" {
		t.Errorf("after it was taken away: %s, %v", outcomes(got), err)
	}
}

// A coordinator that goes on with what was published before, as the store was altered, certifies by it while that is fresh,
// and then nobody: whether it is still so, nobody can say.
func TestAlteredAssignmentsCertifyWhileFresh(t *testing.T) {
	t.Parallel()
	d, acme, _ := desk(t, service("web", "organization: acme\n", "id: acme/web, uid: 1"))
	leader, other := d.C, d.Second(coordinatortest.TenantEntries)
	defer other.Close()
	look := func() *publication.View {
		t.Helper()
		p := other.Parts().Publication
		if _, err := p.Publish(t.Context(), other.Parts().Head.State(), publication.NewPublisher()); err != nil {
			t.Fatal(err)
		}
		return p.View()
	}
	publish(d, "kind: qos\nname: gold\npriority: 1\n")
	look()
	want := func(when, want string) {
		t.Helper()
		d.C = other
		defer func() { d.C = leader }()
		if got, err := certify(t, d, acme, "acme/web"); err != nil || outcomes(got) != want {
			t.Errorf("%s: %s, %v, want %s", when, outcomes(got), err, want)
		}
	}
	want("before", "ok")
	publish(d, "kind: service\nname: web\ntype: process\norganization: acme\n")
	d.Store.Tell(func(ch store.Change) store.Change { ch.Revision++; return ch })
	d.Store.Alter(publication.StateKey, func(raw []byte) []byte { raw[len(raw)-1] ^= 1; return raw })
	if p := look(); !p.Serves() || !p.Behind() {
		t.Fatal("it is not behind")
	}
	want("while it is fresh", "ok")
	d.Advance(publication.Fresh)
	want("when it is not any more", "no")
	d.Store.Tell(nil)
	publish(d, "kind: qos\nname: gold\npriority: 2\n")
	publish(d, service("web", "organization: acme\n", "id: acme/web, uid: 1"))
	if p := look(); p.Behind() {
		t.Fatal("it is behind")
	}
	want("at the end", "ok")
	d.Advance(publication.Fresh)
	want("while nobody leads", "ok")
}

// The certificate is of the workload, names the member and its key, lives as long as the record
// says, and never longer than the member's own.
func TestCertificate(t *testing.T) {
	t.Parallel()
	d, acme, _ := desk(t, service("web", "", "id: acme/web, uid: 1, ttl: 24h"), service("short", "", "uid: 2, ttl: 5m"))
	parsed := func(name string) *x509.Certificate {
		t.Helper()
		got, err := certify(t, d, acme, name)
		if err != nil || outcomes(got) != "ok" {
			t.Fatal(outcomes(got), err)
		}
		var chain []*x509.Certificate
		for _, der := range got[0].GetChain() {
			c, err := x509.ParseCertificate(der)
			if err != nil {
				t.Fatal(err)
			}
			chain = append(chain, c)
		}
		v, err := d.C.Parts().Bundle.View().Bundle.Verify(chain, d.Clock())
		if err != nil || v.ID.Kind() != identity.Workload {
			t.Fatalf("%v, %v", v.ID, err)
		}
		return chain[0]
	}
	leaf := parsed("acme/web")
	member, key, err := identity.VoucherOf(leaf)
	if err != nil || member != acme.ID || key != identity.KeyOf(acme.Leaf) {
		t.Errorf("vouched for by %v, %v, %v, want %v", member, key, err, acme.ID)
	}
	if leaf.NotAfter.After(acme.Leaf.NotAfter) {
		t.Errorf("it ends at %v, and the member's at %v", leaf.NotAfter, acme.Leaf.NotAfter)
	}
	if life := parsed("short").NotAfter.Sub(d.Clock()); life > 5*time.Minute || life < 4*time.Minute {
		t.Errorf("it lives for %v, want 5m", life)
	}
	// Near the end of the member's certificate it is short, and then it is none.
	d.Advance(acme.Leaf.NotAfter.Sub(d.Clock()) - time.Minute)
	d.LookAgain()
	if end := parsed("acme/web").NotAfter; end.After(acme.Leaf.NotAfter) {
		t.Errorf("it ends at %v, and the member's at %v", end, acme.Leaf.NotAfter)
	}
	d.Advance(2 * time.Minute)
	d.LookAgain()
	if got, err := certify(t, d, acme, "acme/web"); err == nil && outcomes(got) != "no" {
		t.Errorf("after the end of the member's certificate: %s", outcomes(got))
	}
}

// A member that is banned, or presents an older key, vouches for nobody; requests are bounded.
func TestNobodyElse(t *testing.T) {
	t.Parallel()
	d, acme, globex := desk(t, service("web", "", "uid: 1"))
	for name, names := range map[string][]string{"none": nil, "too many": make([]string, 65)} {
		if _, err := certify(t, d, acme, names...); errcode.CodeOf(err) != string(errcode.RequestField) {
			t.Errorf("%s: %v", name, err)
		}
	}
	resp, err := server(d).CertifyWorkloads(as(acme), &fealtyv1.CertifyWorkloadsRequest{Name: "a-1",
		Workloads: []*fealtyv1.WorkloadRequest{{Workload: "web", Csr: []byte("no")}, {Workload: "web"}}})
	if err != nil || outcomes(resp.GetCertificates()) != "no no" {
		t.Errorf("what is no request for a certificate: %s, %v", outcomes(resp.GetCertificates()), err)
	}
	coordinatortest.BanAt(d, t, identity.Data, "g-1")
	if got, err := certify(t, d, globex, "web"); err == nil {
		t.Errorf("a banned member: %s", outcomes(got))
	}
	old := *acme
	for range 2 { // the last key but one is the last, as far as its holder may know
		if err := acme.Renew(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := certify(t, d, &old, "web"); errcode.CodeOf(err) != string(errcode.RenewOlderKey) {
		t.Errorf("by an older key: %s, %v", outcomes(got), err)
	}
	if got, err := certify(t, d, acme, "web"); err != nil || outcomes(got) != "ok" {
		t.Errorf("by the newest key: %s, %v", outcomes(got), err)
	}
}

// Tokens are for the audiences that were asked for, and are verified by the keys that the trust
// bundle vouches for, through a rotation of the config signing key.
func TestTokens(t *testing.T) {
	t.Parallel()
	d, acme, _ := desk(t, service("web", "organization: acme\n", "id: acme/web, uid: 1"))
	sign := func(name string, audience ...string) *fealtyv1.SignedToken {
		t.Helper()
		resp, err := server(d).SignTokens(as(acme), &fealtyv1.SignTokensRequest{Name: "a-1",
			Tokens: []*fealtyv1.TokenRequest{{Workload: name, Audience: audience}}})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetTokens()[0]
	}
	domain := spiffeid.RequireTrustDomainFromString(coordinatortest.Cluster)
	keys := func() *jwtbundle.Bundle {
		t.Helper()
		resp, err := server(d).TokenKeys(as(acme), &fealtyv1.TokenKeysRequest{Name: "a-1"})
		if err != nil {
			t.Fatal(err)
		}
		var statements []internaljwtsvid.Statement
		for _, k := range resp.GetKeys() {
			statements = append(statements, internaljwtsvid.Statement{Key: k.GetKey(), Signer: k.GetSigner(), Signature: k.GetSignature()})
		}
		good, refused := internaljwtsvid.VerifyKeys(coordinatortest.Cluster, statements, configKeys(t, d), d.Clock())
		if len(refused) > 0 || len(good) == 0 {
			t.Fatal(good, refused)
		}
		bundle := jwtbundle.New(domain)
		for _, k := range good {
			if err := bundle.AddJWTAuthority(k.ID, k.Public); err != nil {
				t.Fatal(err)
			}
		}
		return bundle
	}
	first := sign("acme/web", "ledger", "shop")
	svid, err := jwtsvid.ParseAndValidate(first.GetToken(), keys(), []string{"ledger"})
	if err != nil {
		t.Fatal(err)
	}
	if svid.ID.String() != "spiffe://test.example/workload/acme/web" || svid.Claims["vouched_by"] != acme.ID.String() ||
		svid.Claims["vouched_by_key"] != identity.KeyOf(acme.Leaf).String() || len(svid.Audience) != 2 ||
		svid.Expiry.Sub(d.Clock()) > 5*time.Minute {
		t.Errorf("got %+v", svid)
	}
	for name, tc := range map[string]*fealtyv1.SignedToken{
		"another's":          sign("globex/web", "ledger"),
		"no audience":        sign("acme/web"),
		"a blank audience":   sign("acme/web", ""),
		"a doubled audience": sign("acme/web", "a", "a"),
		"a long audience":    sign("acme/web", strings.Repeat("a", 257)),
		"many audiences":     sign("acme/web", strings.Split(strings.Repeat("a,b,c,d,e,f,g,h,i,", 2), ",")...),
	} {
		if tc.GetToken() != "" || tc.GetRefusal() == "" {
			t.Errorf("%s: %v", name, tc)
		}
	}
	// While the key is rotated, tokens are by the older one; both verify.
	before := keys().JWTAuthorities()
	coordinatortest.Rotate(d, time.Hour)
	during := keys()
	if len(during.JWTAuthorities()) != len(before)+1 {
		t.Errorf("%d keys during the rotation, and %d before", len(during.JWTAuthorities()), len(before))
	}
	again := sign("acme/web", "ledger")
	old := jwtbundle.FromJWTAuthorities(domain, before)
	for name, bundle := range map[string]*jwtbundle.Bundle{"who heard of it": during, "who did not": old} {
		if _, err := jwtsvid.ParseAndValidate(again.GetToken(), bundle, []string{"ledger"}); err != nil {
			t.Errorf("a token of the rotation, by %s: %v", name, err)
		}
	}
}

// A member asks for 50 tokens at once and 5 in a second after that, and another member as ever: what it is
// told beyond that is a limit that passes by itself.
func TestTokensAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	d := coordinatortest.UnopenedDesk(t)
	d.Alter = func(c *coordinator.Config) { c.Rates = coordinator.Rates{} } // those of a coordinator that is told none
	d.Open()
	coordinatortest.WantOnlyNil(t, d.Set(coordinatortest.TenantEntries))
	acme, other := coordinatortest.JoinedAs(d, "acme", "a-1"), coordinatortest.JoinedAs(d, "acme", "a-2")
	coordinatortest.FollowMembers(d, d.C)
	publish(d, "kind: organization\nname: acme\n---\n"+service("web", "organization: acme\n", "id: acme/web, uid: 1"))
	// asks asks for tokens until one is refused or so many were given.
	asks := func(m *coordinatortest.Machine, most int) (given int, err error) {
		for ; given < most; given++ {
			resp, err := server(d).SignTokens(as(m), &fealtyv1.SignTokensRequest{Name: m.ID.Name(),
				Tokens: []*fealtyv1.TokenRequest{{Workload: "acme/web", Audience: []string{fmt.Sprint("audience-", given)}}}})
			if err != nil {
				return given, err
			}
			if got := resp.GetTokens()[0]; got.GetToken() == "" {
				t.Fatalf("no token: %s", got.GetRefusal())
			}
		}
		return given, nil
	}
	given, err := asks(acme, 1000)
	coordinatortest.WantOnly(t, "more tokens at once", err, errcode.RateLimited)
	if given != 50 || !strings.Contains(err.Error(), "5 a second, 50 at once") {
		t.Errorf("%d tokens were given at once, and then: %v", given, err)
	}
	if given, err := asks(other, 50); err != nil {
		t.Errorf("another member was given %d: %v", given, err)
	}
	d.Advance(time.Second)
	if given, err := asks(acme, 1000); given != 5 || err == nil {
		t.Errorf("a second later %d more were given, and then: %v", given, err)
	}
}

// Tokens name the issuer of the manifest in force, and none where it names none.
func TestTokensNameTheirIssuer(t *testing.T) {
	t.Parallel()
	d, acme, _ := desk(t, service("web", "", "id: acme/web, uid: 1"))
	plain := d.Extra
	for _, issuer := range []string{"", "https://id.example/prod", "https://other.example", ""} {
		d.Extra = plain
		if issuer != "" {
			d.Extra += "workloads: {token_issuer: \"" + issuer + "\"}\n"
		}
		if err := d.Set(d.Extra); err != nil {
			t.Fatal(err)
		}
		resp, err := server(d).SignTokens(as(acme), &fealtyv1.SignTokensRequest{Name: "a-1",
			Tokens: []*fealtyv1.TokenRequest{{Workload: "acme/web", Audience: []string{"ledger"}}}})
		if err != nil {
			t.Fatal(err)
		}
		svid, err := jwtsvid.ParseInsecure(resp.GetTokens()[0].GetToken(), []string{"ledger"})
		if err != nil {
			t.Fatal(err)
		}
		if got, there := svid.Claims["iss"]; there != (issuer != "") || there && got != issuer {
			t.Errorf("iss is %v, want %q", got, issuer)
		}
	}
}

// configKeys are those that the trust bundle in force lists.
func configKeys(t *testing.T, d *coordinatortest.Desk) []snapshot.ConfigKey {
	t.Helper()
	bundle, _, err := d.State().Bundle.Open(d.C.Parts().Bundle.View().Signed)
	if err != nil {
		t.Fatal(err)
	}
	return bundle.ConfigKeys
}

// A service that is revoked by its name registers nobody, whatever is still published.
func TestRevokedService(t *testing.T) {
	t.Parallel()
	d, acme, _ := desk(t, service("web", "", "uid: 1"))
	coordinatortest.ApplyEmergency(d, coordinatortest.Statement(d, 1, func(e *trust.Emergency) {
		e.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedService, Name: "web"}}
	}), false)
	if got, err := certify(t, d, acme, "web"); err != nil || outcomes(got) != "no" {
		t.Errorf("got %s, %v", outcomes(got), err)
	}
}
