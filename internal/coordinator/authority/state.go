package authority

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/proof"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// Phase is what a coordinator can do.
type Phase = decide.Phase

const (
	// Uninitialized: the store holds no history. Only a first set is served.
	Uninitialized = decide.Uninitialized
	// Recovery: a history exists, and its keys are not in this memory, or the
	// state in memory is not its head.
	Recovery = decide.Recovery
	// Ready: everything is served.
	Ready = decide.Ready
)

// State is all that one head of the history means. It is immutable but for the
// mesh CA's certificate, which is made again before it ends.
type State struct {
	Phase  Phase
	Reason string // why it is not ready
	// Mend is the part of Reason that whoever runs this machine can mend, whole: a keeper that
	// cannot be used here. Nil: there is none.
	Mend *errcode.Error
	// Ownerless: nobody owns a share of the seed, so that nobody can be asked to bring one. It
	// is said by the manifest that the store claims, which nothing vouches for in recovery mode.
	Ownerless bool
	// last is the newest ready state, for one in recovery mode: its seed spares the
	// keeper, and its head must be in the history that comes next.
	last *State

	Chain       *history.Verified
	Manifest    *manifest.Manifest // in force
	Head        history.Link
	HeadVersion store.Revision // of the head's key: a condition of every transaction
	HeadRecord  []byte         // as the store holds it
	Secrets     *Secrets
	Records     record.Records
	Root        *x509.Certificate
	RootPin     identity.KeyID // hash of the root's public key: what tokens pin
	MeshKey     identity.KeyID
	issuer      atomic.Pointer[pki.Issuer]
	X509Roots   *identity.OperatorRoots // of the manifest's x509 proof; nil: it takes none
	X509Fault   error                   // why they cannot be used
	// RootStatement introduces the config root key to who pins the root.
	RootStatement []byte
	Bundle        *bundle.Authority // under which trust bundles are made

	RestoreWindow *RestoreWindow // what is not known since the last restore; nil: there was none
}

// Ready returns s, or the last ready state before it; nil if there was none.
func (s *State) Ready() *State {
	if s.Phase == Ready {
		return s
	}
	return s.last
}

// StoredHead is the head as the store showed it.
func (s *State) StoredHead() storeguard.Head {
	return storeguard.Head{Version: s.HeadVersion, Record: s.HeadRecord}
}

// MeshCA returns the mesh CA of the head; its certificate may be due again.
func (s *State) MeshCA() *pki.MeshCA { return s.issuer.Load().MeshCA() }

// FreshMeshCA returns the mesh CA of the head with a certificate that covers what is
// issued now.
func (s *State) FreshMeshCA(now time.Time) (*pki.MeshCA, error) {
	issuer, err := s.freshIssuer(now)
	if err != nil {
		return nil, err
	}
	return issuer.MeshCA(), nil
}

// freshIssuer returns the issuer of s with a mesh CA certificate that covers
// what is issued now. A clock that jumped, or a machine that slept, is no reason
// to sign under one that has ended.
func (s *State) freshIssuer(now time.Time) (*pki.Issuer, error) {
	issuer := s.issuer.Load()
	mesh, err := freshMesh(s, issuer.MeshCA(), now)
	if err != nil || mesh == issuer.MeshCA() {
		return issuer, err
	}
	if issuer, err = pki.NewIssuer(mesh, s.Manifest.Cluster); err != nil {
		return nil, err
	}
	s.issuer.Store(issuer) // of two at once either will do: the key is the same
	return issuer, nil
}

// Issue certifies publicKey for id until notAfter, and returns the chain that is
// presented with it: leaf, mesh CA, root.
func (s *State) Issue(publicKey any, id identity.ID, entry *manifest.Entry, notAfter, now time.Time) ([][]byte, error) {
	return s.issue(pki.Request{
		PublicKey: publicKey, ID: id, TTL: notAfter.Sub(now),
		DNSNames: entry.DNSNames, IPs: entry.IPs,
	}, now)
}

// IssueWorkload is Issue for a workload that voucher vouches for, as the common name
// that package internal/identity makes of it says.
func (s *State) IssueWorkload(publicKey any, id identity.ID, voucher string, notAfter, now time.Time) ([][]byte,
	error) {
	return s.issue(pki.Request{PublicKey: publicKey, ID: id, Voucher: voucher, TTL: notAfter.Sub(now)}, now)
}

func (s *State) issue(r pki.Request, now time.Time) ([][]byte, error) {
	issuer, err := s.freshIssuer(now)
	if err != nil {
		return nil, err
	}
	leaf, err := issuer.Issue(r, now)
	if err != nil {
		return nil, err
	}
	return [][]byte{leaf.Raw, issuer.MeshCA().Certificate().Raw, s.Root.Raw}, nil
}

// Recovering is the state of a coordinator that has a history and not its head, or not its
// keys, because of err. last is the ready state before it; nil: there was none.
func Recovering(last *State, err error) *State {
	return &State{Phase: Recovery, Reason: err.Error(), Mend: mendable(err), last: last}
}

// mendable returns what of err is to be mended on this machine: a root that is not the one it pins,
// which nothing else mends, before a keeper that cannot be read, and that before one that opens nothing;
// nil if there is none.
func mendable(err error) (found *errcode.Error) {
	for _, code := range []errcode.Code{errcode.RootNotPinned, errcode.KeeperUnusable, errcode.KeeperCannot} {
		if found = within(err, code); found != nil {
			return found
		}
	}
	return nil
}

// within returns the first error of the tree of err that has a code.
func within(err error, code errcode.Code) *errcode.Error {
	switch x := err.(type) {
	case *errcode.Error:
		if x.Code == code {
			return x
		}
		return within(x.Unwrap(), code)
	case interface{ Unwrap() error }:
		return within(x.Unwrap(), code)
	case interface{ Unwrap() []error }:
		for _, err := range x.Unwrap() {
			if e := within(err, code); e != nil {
				return e
			}
		}
	}
	return nil
}

// New builds the ready state of the head of v and its secrets. Its records are in from, and
// audit says where entries of the audit log go. It is an error if mesh is not the mesh CA
// of the head, or secrets are not those that the last change of root named.
func New(v *history.Verified, secrets *Secrets, root *x509.Certificate, mesh *pki.MeshCA,
	from store.Store, audit record.AuditPlaces, now time.Time) (*State, error) {
	// The seed is the one that the history verified under.
	if head := decide.HeadOf(v.Current()); !head.Fits(head.Seed, mesh.KeyID()) {
		return nil, fmt.Errorf("the mesh CA key %s is not the one of the head, %s", mesh.KeyID(), head.Mesh)
	}
	auth, err := secrets.Records()
	if err != nil {
		return nil, err
	}
	s := &State{
		Phase:    Ready,
		Chain:    v,
		Manifest: v.Manifest(), Head: *v.Current(), HeadVersion: v.Version(), HeadRecord: v.Head().Encode(),
		Secrets: secrets,
		Records: record.Records{Store: from, Auth: auth, Audit: audit,
			Next: new(atomic.Pointer[record.Records])},
		Root: root, RootPin: identity.KeyOf(root), MeshKey: mesh.KeyID(),
	}
	s.Bundle = &bundle.Authority{
		Manifest: s.Manifest, Head: s.Head, Root: root, MeshKey: s.MeshKey, Links: bundle.RecentLinks(v),
		ConfigRoot: secrets.ConfigRoot, ConfigKey: secrets.ConfigSigning, TokenKey: secrets.TokenSigning,
	}
	if err := s.followReseeds(); err != nil {
		return nil, err
	}
	mesh, err = freshMesh(s, mesh, now)
	if err != nil {
		return nil, err
	}
	issuer, err := pki.NewIssuer(mesh, s.Manifest.Cluster)
	if err != nil {
		return nil, err
	}
	s.issuer.Store(issuer)
	// It was parsed and set with them. One proof less is no reason to serve nobody.
	s.X509Roots, s.X509Fault = proof.OperatorRoots(s.Manifest)
	if s.RootStatement, err = (snapshot.RootStatement{
		ClusterID: s.Manifest.Cluster, ConfigRoot: s.Bundle.PublicRoot(), SeedEpoch: s.Head.SeedEpoch,
		IssuedAt: now.UTC().Truncate(time.Second),
	}).Sign(secrets.RootCA()); err != nil {
		return nil, fmt.Errorf("sign the root statement: %w", err)
	}
	return s, nil
}

// MeshLife is how long a mesh CA's certificate is valid: twice the longest SVID,
// so that at half of it a new one still covers every SVID that it signs.
func MeshLife(m *manifest.Manifest) time.Duration { return 2 * m.LongestSVIDTTL() }

// freshMesh returns mesh with a certificate that covers the longest SVID issued
// now. The key stays: one mesh key, one epoch (I9).
func freshMesh(s *State, mesh *pki.MeshCA, now time.Time) (*pki.MeshCA, error) {
	if mesh.Certificate().NotAfter.Sub(now) > MeshLife(s.Manifest)*3/4 && !now.Before(mesh.Certificate().NotBefore) {
		return mesh, nil
	}
	again, err := pki.RenewMeshCA(s.Root, s.Secrets.RootCA(), mesh, s.Manifest.Cluster, MeshLife(s.Manifest), now)
	if err != nil {
		return nil, fmt.Errorf("certify the mesh CA key again: %w", err)
	}
	return again, nil
}

// followReseeds fills in what s knows of changes of root, and checks that its keys
// are those that the last one named: a seed that was replaced acts for nobody.
func (s *State) followReseeds() error {
	if !s.Chain.TransactionKey().Equal(s.Secrets.TransactionKey()) {
		return errors.New("the seed in memory is not the one of the head: it was replaced by a reseed")
	}
	reseeds := s.Chain.Reseeds()
	for _, l := range reseeds[max(0, len(reseeds)-internalsnapshot.MaxRootChanges):] {
		change, err := l.SignedRootChange()
		if err != nil {
			return err
		}
		raw, err := change.Marshal()
		if err != nil {
			return err
		}
		s.Bundle.RootChanges = append(s.Bundle.RootChanges, raw)
		s.Bundle.RootEpoch = l.AuthorityEpoch
	}
	if len(reseeds) == 0 {
		return nil
	}
	last := reseeds[len(reseeds)-1].Reseed
	if last.Root != s.RootPin || !bytes.Equal(last.ConfigRoot[:], s.Bundle.PublicRoot()) {
		return errors.New("root and config root key are not those that the signers authorized")
	}
	return nil
}

// SharesMade returns the last transition up to the head that made shares.
func (s *State) SharesMade() history.Link { return SharesMade(s.Chain.Links()) }

// SharesMade returns the last of links that made shares: a reshare or a reseed, or the
// first. There is at least one.
func SharesMade(links []history.Link) history.Link {
	for i := len(links) - 1; i > 0; i-- {
		switch links[i].Kind {
		case history.KindReshare, history.KindReseed:
			return links[i]
		}
	}
	return links[0]
}
