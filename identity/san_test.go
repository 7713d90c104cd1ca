package identity_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/identity"
)

// FromCertificate must not rely on the profile: a caller may ask it about any
// certificate. Encodings that crypto/x509 passes over identify nobody.
func TestFromCertificateOfAnyCertificate(t *testing.T) {
	w := newWorld(t)
	const uri = "spiffe://prod.example/shard/eu-1"
	good := san(0x86, uri)
	for _, tc := range []struct {
		name  string
		value []byte // of the extension; nil for none
		want  string
	}{
		{"good", good, ""},
		{"none", nil, "absent"},
		{"no names", []byte{0x30, 0}, "absent"},
		{"a DNS name alone", san(0x82, "prod.example"), "absent"},
		{"a constructed URI", san(0xa6, uri), "malformed"},
		{"a universal tag", san(0x16, uri), "malformed"},
		{"bytes behind", append(good[:len(good):len(good)], 5, 0), "malformed"},
		{"an empty URI", san(0x86, ""), "malformed"},
		{"a NUL behind", san(0x86, uri+"\x00"), "malformed"},
	} {
		// As a parser would give it, had it let the bytes pass.
		c := &x509.Certificate{Raw: []byte{0x30, 0}}
		if tc.value != nil {
			c.Extensions = []pkix.Extension{{Id: oidSAN, Value: tc.value}}
		}
		id, err := identity.FromCertificate(c)
		if tc.want == "" {
			if err != nil || id.String() != uri {
				t.Errorf("%s: %v, %v", tc.name, id, err)
			}
			continue
		}
		if refusal, ok := errors.AsType[*identity.SANError](err); !ok || refusal.Reason != tc.want || !id.IsZero() {
			t.Errorf("%s: %v, %v, want %s", tc.name, id, err, tc.want)
		}
		// The ID that Parse found is kept.
		if _, ok := errors.AsType[*identity.IDError](err); ok && tc.want != "malformed" {
			t.Errorf("%s: %v is an IDError", tc.name, err)
		}
		if !strings.Contains(err.Error(), "have the certificate issued with exactly one URI SAN") {
			t.Errorf("%s: no advice in %v", tc.name, err)
		}
	}
	if _, err := identity.FromCertificate(nil); !errors.Is(err, identity.ErrNoIdentity) {
		t.Errorf("nil: %v", err)
	}
	// c.URIs is what a template says, not what was signed.
	template := *w.leaf
	template.Extensions = nil
	if id, err := identity.FromCertificate(&template); !errors.Is(err, identity.ErrNoIdentity) {
		t.Errorf("a template: %v, %v", id, err)
	}
}
