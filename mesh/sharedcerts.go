package mesh

import (
	"crypto/x509"
	"slices"
	"sync"
)

// maxSharedCerts bounds the certificates that are shared: a cluster has one mesh CA per coordinator,
// twice that while their keys change, and its root.
const maxSharedCerts = 64

// sharedCerts has those connections whose chains hold the same certificate above the leaf keep one
// parsed copy of it. It decides nothing: a certificate is shared after the chain that it came in was
// verified, with what consists of the same bytes. Package identity keeps copies of its own to verify
// by, which nobody else can change. The zero value is ready; it may be used by several goroutines.
type sharedCerts struct {
	mu   sync.Mutex
	last []*x509.Certificate // the one that was asked for last first, at most maxSharedCerts; guarded by mu
}

// of returns the copy of cert that is shared, which is cert itself where there was none.
func (s *sharedCerts) of(cert *x509.Certificate) *x509.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.last, cert.Equal)
	if i < 0 {
		i = min(len(s.last), maxSharedCerts-1)
		s.last = append(s.last[:i], cert)
	}
	shared := s.last[i]
	copy(s.last[1:i+1], s.last[:i])
	s.last[0] = shared
	return shared
}
