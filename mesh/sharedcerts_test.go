package mesh // inside: a bound that takes more mesh CAs than a test can afford to issue

import (
	"crypto/x509"
	"testing"
)

// No more certificates are kept than the bound, and those that were asked for longest ago go.
func TestSharedCertsAreBounded(t *testing.T) {
	var s sharedCerts
	cert := func(n int) *x509.Certificate { return &x509.Certificate{Raw: []byte{byte(n)}} }
	first := cert(0)
	for n := range 3 * maxSharedCerts {
		s.of(cert(n))
		if s.of(first) != s.of(cert(0)) {
			t.Fatalf("after %d others a certificate that is in use is kept twice", n)
		}
	}
	if len(s.last) != maxSharedCerts {
		t.Errorf("%d certificates are kept, want %d", len(s.last), maxSharedCerts)
	}
	if again := cert(1); s.of(again) != again {
		t.Error("one that was not asked for since is still kept")
	}
}
