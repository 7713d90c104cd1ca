package identity_test

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
)

// encodesToItself is the rule of encoding in terms of encoding/asn1.
func encodesToItself(c *x509.Certificate) bool {
	algorithm := pkix.AlgorithmIdentifier{Algorithm: ecdsaSHA256}
	body, err := asn1.Marshal(struct {
		Version    int `asn1:"optional,explicit,default:0,tag:0"`
		Serial     *big.Int
		Algorithm  pkix.AlgorithmIdentifier
		Issuer     asn1.RawValue
		Validity   struct{ NotBefore, NotAfter time.Time }
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Extensions []pkix.Extension `asn1:"omitempty,optional,explicit,tag:3"`
	}{
		Version:    c.Version - 1,
		Serial:     c.SerialNumber,
		Algorithm:  algorithm,
		Issuer:     asn1.RawValue{FullBytes: c.RawIssuer},
		Validity:   struct{ NotBefore, NotAfter time.Time }{c.NotBefore.UTC(), c.NotAfter.UTC()},
		Subject:    asn1.RawValue{FullBytes: c.RawSubject},
		PublicKey:  asn1.RawValue{FullBytes: c.RawSubjectPublicKeyInfo},
		Extensions: c.Extensions,
	})
	if err != nil {
		return false
	}
	whole, err := asn1.Marshal(struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: body}, algorithm, asn1.BitString{Bytes: c.Signature, BitLength: 8 * len(c.Signature)}})
	return err == nil && bytes.Equal(whole, c.Raw)
}

// sameEncoding compares the rule with encodesToItself.
func sameEncoding(t testing.TB, der []byte) (parsed, accepted bool) {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return false, false
	}
	detail := identity.Encoding(c, time.Time{})
	if accepted = detail == ""; accepted != encodesToItself(c) {
		t.Fatalf("encoding says %q, encoding/asn1 %v: %x", detail, !accepted, der)
	}
	return true, accepted
}

// Every certificate that the other tests forge, and every one that differs from a good
// one in a bit, is encoded or not as encoding/asn1 has it.
func TestEncodingAgrees(t *testing.T) {
	w, k := newWorld(t), newKeys(t)
	count := map[bool]int{}
	add := func(der []byte) {
		if parsed, accepted := sameEncoding(t, der); parsed {
			count[accepted]++
		}
	}
	for _, c := range w.chain(true) {
		add(c.Raw)
		for i := range len(c.Raw) * 8 {
			der := bytes.Clone(c.Raw)
			der[i/8] ^= 1 << (i % 8)
			add(der)
		}
	}
	for _, level := range []string{leaf, mesh, root} {
		for _, flaw := range flaws {
			f := w.apart(t, level)
			flaw.edit(t, f, k)
			add(f.sign(t))
		}
		// Both sides of where the encoding of a time changes, and where there is none.
		for _, year := range []int{0, 1, 1949, 1950, 1999, 2000, 2049, 2050, 9999} {
			for _, at := range []time.Time{time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(year, 12, 31, 23, 59, 59, 0, time.UTC)} {
				f := w.apart(t, level)
				f.Validity = validity(t, at, at)
				add(f.sign(t))
			}
		}
	}
	if count[true] < 1000 || count[false] < 50 {
		t.Errorf("accepted and refused: %v: the test is too narrow", count)
	}
}

func FuzzEncodingAgrees(f *testing.F) {
	w := fuzzWorld(f)
	for _, c := range w.chain(true) {
		f.Add(c.Raw)
	}
	for _, flaw := range flaws {
		if flaw.levels != cas && flaw.levels != mesh && flaw.levels != root && flaw.rule != "public-key" && flaw.rule != "signature-algorithm" && flaw.rule != "parsed" {
			forged := w.apart(f, leaf)
			flaw.edit(f, forged, nil)
			f.Add(forged.sign(f))
		}
	}
	f.Fuzz(func(t *testing.T, der []byte) { sameEncoding(t, der) })
}
