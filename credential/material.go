// Package credential holds the key material that a process proves itself with,
// and keeps it good while it rotates.
//
// A [Material] is one immutable set: a certificate chain with its private key,
// and the [identity.Bundle] that the process believes about others. A [Source]
// says which one is current and when that changes. These are its promises:
//
//   - Material is checked when it is made, so a torn file, a key of another
//     certificate or an expired leaf never becomes current; the last good one
//     stays (I14) and the reason is kept.
//   - [ServerTLS] and [ClientTLS] speak TLS 1.3 only, hand out and take no
//     session tickets, never look at the system's roots, and verify the chain and
//     the logical identity in every handshake, never the address.
//   - A server picks material for each connection, a client for each config;
//     rotation breaks no connection (I18). Ending a connection whose peer expired
//     or was banned is left to package mesh.
//   - No value of this package prints a private key, with any formatting verb.
//
// The package opens no sockets and starts no goroutines. [Files] alone reads files. Package
// credential/workloadapi has a source that asks a SPIFFE agent.
package credential

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
)

// ErrNoMaterial is what a [Source] answers that has no material yet, and what a
// server gets that is to serve with material without a certificate.
var ErrNoMaterial = errors.New("credential: no certificate yet: this process has not been issued an identity; join first, or wait until the join succeeds")

// Reason says why material was refused. It is short and fixed, to serve as a
// metric label.
type Reason string

const (
	// Incomplete: no bundle, or only one of chain and key, or a nil certificate.
	Incomplete Reason = "Incomplete"
	// KeyMismatch: the private key is not the leaf's.
	KeyMismatch Reason = "KeyMismatch"
	// Expired: a certificate of the chain is past its end, or before its start.
	Expired Reason = "Expired"
	// Untrusted: the chain leads to no root of the bundle, or breaks the profile.
	Untrusted Reason = "Untrusted"
	// Banned: the bundle bans the identity or the key.
	Banned Reason = "Banned"
	// NoIdentity: the leaf does not carry exactly one identity of the cluster, or an
	// agent says that the process has none.
	NoIdentity Reason = "NoIdentity"
	// Unreadable: a file is missing, too large or cannot be read, or it changes while
	// it is read; an agent does not answer.
	Unreadable Reason = "Unreadable"
	// Malformed: a file does not hold what it should in PEM, or is cut short; likewise
	// what an agent gives, in DER.
	Malformed Reason = "Malformed"
	// UnfitKey: the key is the leaf's, and cannot make the proof that it is for. Only files for a proof are refused so:
	// see [FilesConfig].
	UnfitKey Reason = "UnfitKey"
	// OtherIdentity: fit material, but of another identity or cluster than the one
	// in use, or without an identity where there was one.
	OtherIdentity Reason = "OtherIdentity"
)

// MaterialError says why material was refused. Nothing changed: what was in use
// stays in use.
type MaterialError struct {
	Reason Reason
	Detail string // what was found; holds no key material
	Err    error  // the cause, such as an *identity.ChainError; may be nil
}

func (e *MaterialError) Error() string {
	msg := "credential: material refused (" + string(e.Reason) + "): " + e.Detail
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

// Unwrap returns the cause.
func (e *MaterialError) Unwrap() error { return e.Err }

// mode is what material can do. It is fixed for the life of a source, except
// that a process may gain its identity.
type mode byte

const (
	trustOnly mode = iota // verify others, present nothing
	mutual                // present an identity of the cluster and verify others
	ephemeral             // present a self-signed leaf, verify nobody
	proving               // prove a certificate of an operator's PKI; no connection is made with it
)

// MaterialConfig is what [NewMaterial] checks.
type MaterialConfig struct {
	// Chain is the leaf and its mesh CA, optionally followed by the root. Empty,
	// together with Key: the process verifies others and presents nothing.
	Chain []*x509.Certificate

	// Key is the private key of the leaf.
	Key crypto.Signer

	// Bundle is what the process believes about certificates. Required.
	Bundle *identity.Bundle

	// Now is the clock that expiry is compared with, here and in the handshakes
	// made with the material. Nil means time.Now.
	Now func() time.Time
}

// Material is one immutable set of credentials. It is safe for concurrent use
// and safe to log: its text form is identity, expiry and fingerprint.
type Material struct {
	mode        mode
	chain       []*x509.Certificate
	signer      func() crypto.Signer // a closure, so that no printer walks into the key
	bundle      *identity.Bundle
	roots       *identity.OperatorRoots // of proving material; nil otherwise
	id          identity.ID
	fingerprint [32]byte
	notAfter    time.Time
	now         func() time.Time

	cert     *tls.Certificate // leaf and mesh CA; nil for trust alone
	withRoot *tls.Certificate // leaf, mesh CA and root; nil if the bundle lacks it
}

// NewMaterial checks cfg and returns the material. It fails with a
// [*MaterialError] unless the key is the leaf's, the chain verifies against the
// bundle now, nothing in it is banned, and the leaf carries exactly one identity
// of the bundle's cluster.
func NewMaterial(cfg MaterialConfig) (*Material, error) {
	now := cfg.Now
	if now == nil {
		now = time.Now
	}
	if cfg.Bundle == nil {
		return nil, &MaterialError{Reason: Incomplete, Detail: "there is no trust bundle; give the roots of the cluster"}
	}
	m := &Material{bundle: cfg.Bundle, now: now}
	switch {
	case len(cfg.Chain) == 0 && cfg.Key == nil:
		m.seal()
		return m, nil
	case len(cfg.Chain) == 0:
		return nil, &MaterialError{Reason: Incomplete, Detail: "there is a private key but no certificate; give both or none"}
	case cfg.Key == nil:
		return nil, &MaterialError{Reason: Incomplete, Detail: "there is a certificate but no private key; give both or none"}
	case slices.Contains(cfg.Chain, nil):
		return nil, &MaterialError{Reason: Incomplete, Detail: "the chain has an empty place where a certificate should be"}
	}
	leaf := cfg.Chain[0]
	if !sameKey(cfg.Key.Public(), leaf.PublicKey) {
		return nil, errOtherKey()
	}
	v, err := cfg.Bundle.Verify(cfg.Chain, now())
	if err != nil {
		return nil, &MaterialError{Reason: chainReason(err), Detail: "the chain does not verify against the bundle of cluster " + cfg.Bundle.Cluster(), Err: err}
	}
	if v.IDErr != nil {
		return nil, &MaterialError{Reason: NoIdentity, Detail: "the leaf must carry exactly one identity of cluster " + cfg.Bundle.Cluster(), Err: v.IDErr}
	}
	key := cfg.Key
	m.mode, m.id = mutual, v.ID
	m.chain = slices.Clone(cfg.Chain)
	m.signer = func() crypto.Signer { return key }
	m.seal()
	return m, nil
}

// proofConfig is what currentProof checks.
type proofConfig struct {
	// Chain is the leaf, then its issuers in order; the root may be left out.
	Chain []*x509.Certificate
	// Key is the private key of the leaf.
	Key crypto.Signer
	// Roots are those of the PKI that issued the chain.
	Roots []*x509.Certificate
	// Now is the clock that dates are compared with. Nil means time.Now.
	Now func() time.Time
}

// currentProof returns material that proves a certificate of an operator's PKI to a
// coordinator, which then issues an identity. The leaf needs no SPIFFE id, and no
// connection is made with the material: [ServerTLS] and [ClientTLS] fail with
// [ErrNoMaterial]. It fails with a [*MaterialError] unless the key is the leaf's and
// the chain verifies now, for client authentication.
func currentProof(cfg proofConfig) (*Material, error) {
	m, _, err := newProof(cfg, false, func(r *identity.OperatorRoots, now time.Time) (*identity.ChainError, error) {
		return nil, r.Verify(cfg.Chain, now, x509.ExtKeyUsageClientAuth)
	})
	return m, err
}

// acceptedProof is currentProof for what an earlier release took. newer is why nobody has to
// believe it any more, if that is so.
func acceptedProof(cfg proofConfig) (m *Material, newer, err error) {
	return newProof(cfg, true, func(r *identity.OperatorRoots, now time.Time) (*identity.ChainError, error) {
		return r.VerifyAccepted(cfg.Chain, now, x509.ExtKeyUsageClientAuth)
	})
}

func newProof(cfg proofConfig, accepted bool, verify func(*identity.OperatorRoots, time.Time) (*identity.ChainError, error)) (_ *Material, newer, err error) {
	now := cfg.Now
	if now == nil {
		now = time.Now
	}
	if len(cfg.Chain) == 0 || cfg.Key == nil || slices.Contains(cfg.Chain, nil) {
		return nil, nil, &MaterialError{Reason: Incomplete, Detail: "a proof needs a certificate and its private key"}
	}
	roots, err := identity.NewOperatorRoots(cfg.Roots)
	if err != nil {
		return nil, nil, &MaterialError{Reason: Incomplete, Detail: "the CA certificates cannot be used", Err: err}
	}
	if !sameKey(cfg.Key.Public(), cfg.Chain[0].PublicKey) {
		return nil, nil, errOtherKey()
	}
	unfit := func(err error) error {
		return &MaterialError{Reason: chainReason(err), Detail: "the chain does not verify against the CA certificates", Err: err}
	}
	found, err := verify(roots, now())
	if err != nil {
		return nil, nil, unfit(err)
	}
	if found != nil {
		newer = unfit(found)
	}
	if problem := internalidentity.CheckProofKey(cfg.Chain[0].PublicKey); problem != "" {
		err := &MaterialError{Reason: UnfitKey, Detail: "the leaf certificate has " + problem}
		if !accepted {
			return nil, nil, err
		}
		newer = err
	}
	key := cfg.Key
	m := &Material{mode: proving, chain: slices.Clone(cfg.Chain), signer: func() crypto.Signer { return key }, roots: roots, now: now}
	m.seal()
	return m, newer, nil
}

func errOtherKey() *MaterialError {
	return &MaterialError{Reason: KeyMismatch, Detail: "the private key does not belong to the leaf certificate; replace both together"}
}

// ephemeralLifetime is how long the certificate of [NewEphemeral] is valid. It
// is long because nobody relies on it: clients pin the key.
const ephemeralLifetime = 365 * 24 * time.Hour

// NewEphemeral returns material for a server that has no identity yet: a fresh
// P-256 key under a self-signed certificate that names nobody. The server asks
// no client for a certificate; a client knows it by its key alone, [Material.Pin],
// which somebody has to bring it on a trusted way. An [Issued] source changes from
// it to issued material, and never back. A nil now means time.Now.
func NewEphemeral(now func() time.Time) (*Material, error) {
	if now == nil {
		now = time.Now
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("credential: make the key of an ephemeral certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("credential: make the serial number of an ephemeral certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)), // positive: RFC 5280 §4.1.2.2
		Subject:               pkix.Name{CommonName: "not yet initialized"},
		NotBefore:             now().Add(-time.Hour),
		NotAfter:              now().Add(ephemeralLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("credential: sign an ephemeral certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("credential: read back an ephemeral certificate: %w", err)
	}
	m := &Material{mode: ephemeral, chain: []*x509.Certificate{leaf}, signer: func() crypto.Signer { return key }, now: now}
	m.seal()
	return m, nil
}

// seal derives what follows from the fields that are set.
func (m *Material) seal() {
	m.cert, m.withRoot, m.notAfter = nil, nil, time.Time{}
	if len(m.chain) > 0 {
		for _, c := range m.chain {
			if m.notAfter.IsZero() || c.NotAfter.Before(m.notAfter) {
				m.notAfter = c.NotAfter
			}
		}
		if m.mode == proving {
			m.fingerprint = m.sum()
			return // no connection is made with it
		}
		present := presented(m.chain)
		m.cert = tlsCertificate(present, m.signer)
		if m.mode == mutual {
			if root := m.root(); root != nil {
				m.withRoot = tlsCertificate(append(slices.Clone(present), root), m.signer)
			}
		}
	}
	m.fingerprint = m.sum()
}

// presented returns what of chain is sent to a peer: all but a root at its end, which
// the peer has or does not believe.
func presented(chain []*x509.Certificate) []*x509.Certificate {
	if last := chain[len(chain)-1]; len(chain) > 1 && bytes.Equal(last.RawSubject, last.RawIssuer) {
		return chain[: len(chain)-1 : len(chain)-1]
	}
	return chain
}

// root returns the bundle's root that signed the mesh CA, or nil.
func (m *Material) root() *x509.Certificate {
	if len(m.chain) < 2 {
		return nil
	}
	for _, r := range m.bundle.Roots() {
		// The signature alone decides: two roots may share a name while they overlap.
		if m.chain[1].CheckSignatureFrom(r) == nil {
			return r
		}
	}
	return nil
}

// sum hashes everything that tells two materials apart, each part with its
// length before it:
//
//	label, mode, identity, number of certificates, each certificate's DER, fingerprint of the bundle
//
// The private key is covered by the leaf, which it has been checked against.
func (m *Material) sum() [32]byte {
	h := sha256.New()
	part := func(b []byte) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	part([]byte("fealty/credential/material/v1"))
	part([]byte{byte(m.mode)})
	part([]byte(m.id.String()))
	part(binary.BigEndian.AppendUint64(nil, uint64(len(m.chain))))
	for _, c := range m.chain {
		part(c.Raw)
	}
	if m.bundle != nil {
		f := m.bundle.Fingerprint()
		part(f[:])
	}
	if m.roots != nil {
		for _, c := range m.roots.Certificates() {
			part(c.Raw)
		}
	}
	return [32]byte(h.Sum(nil))
}

// Chain returns a copy of the chain, leaf first; empty for trust alone.
func (m *Material) Chain() []*x509.Certificate { return slices.Clone(m.chain) }

// Key returns the private key, or nil. Never print it.
func (m *Material) Key() crypto.Signer {
	if m.signer == nil {
		return nil
	}
	return m.signer()
}

// Bundle returns what the process believes about certificates; nil for
// ephemeral material and that of a proof.
func (m *Material) Bundle() *identity.Bundle { return m.bundle }

// ID returns the identity of the leaf; zero for material of trust alone, of a proof,
// and for ephemeral material.
func (m *Material) ID() identity.ID { return m.id }

// Fingerprint is equal for equal material, and differs for any changed byte of
// chain or bundle, identity or mode. It is no secret.
func (m *Material) Fingerprint() [32]byte { return m.fingerprint }

// NotAfter returns the earliest end of a certificate in the chain; zero without
// a chain.
func (m *Material) NotAfter() time.Time { return m.notAfter }

// Pin returns the SHA-256 of the leaf's SubjectPublicKeyInfo, which a pin of the leaf
// names; zero without a chain.
func (m *Material) Pin() identity.KeyID {
	if len(m.chain) == 0 {
		return identity.KeyID{}
	}
	return identity.KeyOf(m.chain[0])
}

// TrustOnly returns material that verifies as m does and presents nothing, for a
// process that rejoins by a proof after its certificate expired. It returns nil
// for ephemeral material, which trusts nobody.
func (m *Material) TrustOnly() *Material {
	if m.bundle == nil {
		return nil
	}
	t := &Material{bundle: m.bundle, now: m.now}
	t.seal()
	return t
}

// withBundle returns m with another bundle. The own chain is not verified again:
// what others think of us does not change what we must think of them.
func (m *Material) withBundle(b *identity.Bundle) *Material {
	n := &Material{mode: m.mode, chain: m.chain, signer: m.signer, bundle: b, id: m.id, now: m.now}
	n.seal()
	return n
}

// String returns identity, expiry and the start of the fingerprint.
func (m *Material) String() string {
	if m == nil {
		return "no material"
	}
	f := hex.EncodeToString(m.fingerprint[:8])
	switch m.mode {
	case proving:
		return fmt.Sprintf("certificate key %s until %s (%s)", m.Pin(), m.notAfter.UTC().Format(time.RFC3339), f)
	case mutual:
		return fmt.Sprintf("%s until %s (%s)", m.id, m.notAfter.UTC().Format(time.RFC3339), f)
	case ephemeral:
		return fmt.Sprintf("ephemeral key %s (%s)", m.Pin(), f)
	}
	return fmt.Sprintf("trust in %s, no certificate (%s)", m.bundle.Cluster(), f)
}

// Format prints String for every verb, %#v included.
func (m *Material) Format(w fmt.State, _ rune) { io.WriteString(w, m.String()) }

// LogValue is String.
func (m *Material) LogValue() slog.Value { return slog.StringValue(m.String()) }

// MarshalText is String. There is no way back.
func (m *Material) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func sameKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// chainReason maps what identity says about a chain to a reason to refuse
// material.
func chainReason(err error) Reason {
	if e, ok := errors.AsType[*identity.ChainError](err); ok {
		switch e.Reason {
		case identity.ErrExpired:
			return Expired
		case identity.ErrBanned:
			return Banned
		}
	}
	return Untrusted
}

// hiddenKey signs with a private key and prints nothing. A tls.Config is a
// struct of exported fields: any printer walks it, and an ed25519.PrivateKey in
// there would come out as bytes.
type hiddenKey struct{ signer func() crypto.Signer }

func (k *hiddenKey) Public() crypto.PublicKey { return k.signer().Public() }
func (k *hiddenKey) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return k.signer().Sign(rand, digest, opts)
}
func (k *hiddenKey) String() string               { return "private key (hidden)" }
func (k *hiddenKey) Format(w fmt.State, _ rune)   { io.WriteString(w, k.String()) }
func (k *hiddenKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }
func (k *hiddenKey) LogValue() slog.Value         { return slog.StringValue(k.String()) }

func tlsCertificate(chain []*x509.Certificate, signer func() crypto.Signer) *tls.Certificate {
	c := &tls.Certificate{PrivateKey: &hiddenKey{signer}, Leaf: chain[0]}
	for _, x := range chain {
		c.Certificate = append(c.Certificate, x.Raw)
	}
	return c
}
