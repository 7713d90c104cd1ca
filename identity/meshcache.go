package identity

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"slices"
	"sync/atomic"

	"github.com/fealty-io/fealty/internal/identity"
)

// maxCheckedMeshCAs bounds what a [Bundle] remembers: a cluster has one mesh CA per
// coordinator, and twice that while their keys change.
const maxCheckedMeshCAs = 32

// meshCache remembers mesh CAs whose profile and signature were found good under a
// bundle's roots, because nearly every chain comes with one of a few and to check it
// again costs as much as to check the leaf. The zero value is empty and ready.
//
// It remembers what can never change for the same bytes under the same roots, and
// nothing else: dates, bans, whether the key is listed, which root is named and what the
// leaf says are decided on every run of [Bundle.Verify]. Refusals are not remembered, and
// only a chain that was accepted brings its mesh CA in, so that strangers neither fill
// the cache nor empty it.
type meshCache struct {
	// The newest first, at most maxCheckedMeshCAs. The slice that it points to is
	// never written again; a change stores another slice.
	list atomic.Pointer[[]checkedMeshCA]
}

type checkedMeshCA struct {
	der  [sha256.Size]byte // of the whole certificate, its signature included
	cert *x509.Certificate // parsed from bytes that nobody else has
}

// find returns the mesh CA that consists of these bytes if it was found good, or nil.
func (m *meshCache) find(raw []byte) *x509.Certificate {
	list := m.list.Load()
	if list == nil {
		return nil
	}
	der := sha256.Sum256(raw)
	for _, checked := range *list {
		if checked.der == der {
			return checked.cert
		}
	}
	return nil
}

// add remembers own, which must have been checked and be nobody else's. It pushes the
// oldest out of a full cache: that one is checked in full when it comes again.
func (m *meshCache) add(own *x509.Certificate) {
	entry := checkedMeshCA{sha256.Sum256(own.Raw), own}
	for {
		old := m.list.Load()
		var list []checkedMeshCA
		if old != nil {
			list = *old
		}
		if slices.ContainsFunc(list, func(e checkedMeshCA) bool { return e.der == entry.der }) {
			return
		}
		list = slices.Concat([]checkedMeshCA{entry}, list[:min(len(list), maxCheckedMeshCAs-1)])
		if m.list.CompareAndSwap(old, &list) {
			return
		}
	}
}

// remember keeps the mesh CA of a chain that was accepted, for the bundle's later runs.
//
// The caller that passed the chain holds its certificates and could change them, or have made up
// their fields. So what is kept is parsed anew and checked from its bytes alone, once.
func (p *path) remember() {
	own, err := x509.ParseCertificate(bytes.Clone(p.meshCA.Raw))
	if err != nil {
		return
	}
	q := path{bundle: p.bundle, chain: p.chain[:2], meshCA: own}
	if q.run(anchorRules) != nil || identity.MeshCAProfile().CheckShape(own) != nil || signedBy(own, q.roots[0]) != "" {
		return
	}
	p.bundle.checked.add(own)
}
