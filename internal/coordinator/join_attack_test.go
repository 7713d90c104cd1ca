package coordinator_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
)

// Changes that a candidate may not make to its own request: every alteration is
// refused, and the catalog stays as it was.
func TestBadJoinRequests(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("node-a")
	spent := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "spent"})
	if err := f.Node().Join(identity.Data, proof.NewTokenProver(spent)); err != nil {
		t.Fatal(err)
	}
	revoked := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	if _, err := f.Local().Token.RevokeToken(f.Context(), &fealtyv1.RevokeTokenRequest{Id: revoked.ID}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Node().Join(identity.Data,
			proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "small"}))); err != nil {
			t.Fatal(err)
		}
	}
	var recorded *fealtyv1.JoinRequest
	recorder := f.Node()
	recorder.Alter = func(r *fealtyv1.JoinRequest) { recorded = r }
	if err := recorder.Join(identity.Data,
		proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 3}))); err != nil {
		t.Fatal(err)
	}
	before := f.Catalog()

	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr := func(template *x509.CertificateRequest, key any) func(*fealtyv1.JoinRequest) {
		der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
		if err != nil {
			t.Fatal(err)
		}
		return func(r *fealtyv1.JoinRequest) { r.Csr = der }
	}
	cases := []struct {
		name  string
		token *proof.JoinToken // nil: a fresh one
		kind  identity.Kind
		alter func(*fealtyv1.JoinRequest)
		want  errcode.Code
	}{
		{name: "no proof", alter: func(r *fealtyv1.JoinRequest) { r.Proof = nil }, want: errcode.ProofUnknownType},
		{name: "larger than a message of strangers may be",
			alter: func(r *fealtyv1.JoinRequest) { r.Member = strings.Repeat("x", coordinator.MaxStrangerBytes) },
			want:  errcode.MessageTooLarge},
		{name: "unknown type of proof", alter: func(r *fealtyv1.JoinRequest) { r.Proof.Type = "telepathy" },
			want: errcode.ProofUnknownType},
		{name: "forged signature", alter: func(r *fealtyv1.JoinRequest) { r.Proof.Evidence[0] ^= 1 },
			want: errcode.TokenUnknown},
		{name: "unknown token", alter: func(r *fealtyv1.JoinRequest) { r.Proof.Claim = strings.Repeat("a", 16) },
			want: errcode.TokenUnknown},
		{name: "token id that is a path", alter: func(r *fealtyv1.JoinRequest) { r.Proof.Claim = "../trust/state" },
			want: errcode.TokenUnknown},
		{name: "token proof sold as a key", alter: func(r *fealtyv1.JoinRequest) { r.Proof.Type = "key" },
			want: errcode.JoinUnauthorized},
		{name: "replayed request",
			alter: func(r *fealtyv1.JoinRequest) { r.Proof, r.Csr = recorded.Proof, recorded.Csr },
			want:  errcode.TokenUnknown},
		{name: "spent token, another key", token: &spent, want: errcode.TokenSpent},
		{name: "revoked token", token: &revoked, want: errcode.TokenRevoked},
		{name: "wrong cluster", alter: func(r *fealtyv1.JoinRequest) { r.ClusterId = "other.example" },
			want: errcode.JoinWrongCluster},
		{name: "empty cluster", alter: func(r *fealtyv1.JoinRequest) { r.ClusterId = "" },
			want: errcode.JoinWrongCluster},
		{name: "wrong kind", kind: identity.Shard, want: errcode.JoinKindMismatch},
		{name: "kind coordinator", kind: identity.Coordinator, want: errcode.JoinKindMismatch},
		{name: "kind workload", kind: identity.Workload, want: errcode.JoinKindMismatch},
		{name: "no kind", kind: "-", want: errcode.JoinKindMismatch},
		{name: "no CSR", alter: func(r *fealtyv1.JoinRequest) { r.Csr = nil }, want: errcode.JoinBadCSR},
		{name: "garbage CSR", alter: func(r *fealtyv1.JoinRequest) { r.Csr = []byte("garbage") },
			want: errcode.JoinBadCSR},
		{name: "somebody else's CSR", alter: csr(&x509.CertificateRequest{}, p384), want: errcode.TokenUnknown},
		{name: "oversized CSR", alter: func(r *fealtyv1.JoinRequest) { r.Csr = make([]byte, 9<<10) },
			want: errcode.JoinBadCSR},
		{name: "RSA key", alter: csr(&x509.CertificateRequest{}, rsaKey), want: errcode.TokenUnknown},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			tok := tc.token
			if tok == nil {
				fresh := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
				tok = &fresh
			}
			kind := tc.kind
			switch kind {
			case "":
				kind = identity.Data
			case "-":
				kind = ""
			}
			n := f.Node()
			n.Alter = tc.alter
			coordinatortest.WantCode(t, n.Join(kind, proof.NewTokenProver(*tok)), tc.want)
			if got := f.Catalog(); got != before {
				t.Fatalf("the catalog changed:\n%s", got)
			}
		})
	}

	// A CSR over the candidate's own key, whose proof is good, with names in it.
	for _, tc := range []struct {
		name     string
		template *x509.CertificateRequest
	}{
		{"foreign DNS name", &x509.CertificateRequest{DNSNames: []string{"bank.example"}}},
		{"own subject", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "root"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := f.Node()
			n.Alter = csr(tc.template, n.Key)
			tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
			coordinatortest.WantCode(t, n.Join(identity.Data, proof.NewTokenProver(tok)), errcode.JoinBadCSR)
			if f.Catalog() != before {
				t.Fatal("the catalog changed")
			}
		})
	}
	t.Run("entry full", func(t *testing.T) {
		tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "small"})
		coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewTokenProver(tok)), errcode.JoinEntryFull)
	})
	t.Run("name taken", func(t *testing.T) {
		tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "node-a"})
		coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewTokenProver(tok)), errcode.JoinNameTaken)
	})
	t.Run("expired token", func(t *testing.T) {
		tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Ttl: durationpb.New(time.Minute)})
		f.Advance(time.Minute + time.Second)
		coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewTokenProver(tok)), errcode.TokenExpired)
	})
	t.Run("oversized message", func(t *testing.T) {
		n := f.Node()
		n.Alter = func(r *fealtyv1.JoinRequest) { r.Proof.Evidence = make([]byte, 2<<20) }
		err := n.Join(identity.Data, proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})))
		coordinatortest.WantCode(t, err, errcode.MessageTooLarge)
	})
	if f.Catalog() != before {
		t.Fatal("the catalog changed")
	}
}
