package enroll

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/proof"
)

// Proof is what a candidate shows, and to whom. Make it with [ByToken], [ByKey] or
// [ByX509].
type Proof struct {
	what      string // names the proof without giving it away
	cluster   string
	addresses []string
	pin       identity.KeyID
	prover    proof.Prover
	token     bool
	expires   time.Time // of a token
	placed    string    // what named the addresses instead of the token; blank: nothing did
}

// ByToken proves with a join token, which also says where to go and whom to
// believe there.
func ByToken(t proof.JoinToken) Proof {
	return Proof{
		what: "token:" + t.ID, cluster: t.Cluster, addresses: slices.Clone(t.Addresses), pin: t.Pin,
		prover: proof.NewTokenProver(t), token: true, expires: t.Expires,
	}
}

// ByKey proves with a key that the manifest names. pin is the key of the cluster's
// root: whoever answers without it is not believed.
func ByKey(cluster string, addresses []string, pin identity.KeyID, key ed25519.PrivateKey) (Proof, error) {
	if len(key) != ed25519.PrivateKeySize {
		return Proof{}, badValue("the key", "of this form", "an Ed25519 private key")
	}
	if err := checkPlace(cluster, addresses, pin); err != nil {
		return Proof{}, err
	}
	public := key.Public().(ed25519.PublicKey)
	return Proof{
		what: "key:" + proof.KeyClaim(public), cluster: cluster, addresses: slices.Clone(addresses), pin: pin,
		prover: proof.NewKeyProver(key),
	}, nil
}

// ByX509 proves with a certificate of an operator's PKI, to whose roots the manifest
// gives entry. source has the certificate and its key; it is asked for each proof, so
// that what rotates is proven as it is. pin is as for [ByKey].
//
// Errors are BadValue of package errcode, or that of the source.
func ByX509(ctx context.Context, cluster string, addresses []string, pin identity.KeyID,
	source credential.Source) (Proof, error) {
	if err := checkPlace(cluster, addresses, pin); err != nil {
		return Proof{}, err
	}
	m, err := source.Current(ctx)
	if err != nil {
		return Proof{}, err
	}
	chain := m.Chain()
	if len(chain) == 0 {
		return Proof{}, badValue("the certificate", "missing", "material with a certificate and its key")
	}
	return Proof{
		what: "x509:" + subjectOf(chain[0]), cluster: cluster, addresses: slices.Clone(addresses), pin: pin,
		prover: ProverOf(source),
	}, nil
}

func badValue(name, value, want string) error {
	return errcode.New(errcode.BadValue, "name", name, "value", value, "want", want)
}

// checkPlace checks where a proof without a token goes.
func checkPlace(cluster string, addresses []string, pin identity.KeyID) error {
	if err := identity.CheckCluster(cluster); err != nil {
		return badValue("the cluster", fmt.Sprintf("%q", cluster), "the cluster's id, such as prod.example")
	}
	if pin.IsZero() {
		return badValue("the pin", "blank", "the SHA-256 of the root's public key, as fealty status -o wide shows it")
	}
	if len(addresses) == 0 || len(addresses) > state.MaxAddresses {
		return badValue("the list of coordinators", fmt.Sprintf("of %d", len(addresses)),
			fmt.Sprintf("1 to %d addresses, host:port", state.MaxAddresses))
	}
	for _, a := range addresses {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return badValue("the coordinator", fmt.Sprintf("%q", a), "host:port")
		}
	}
	return nil
}

// At returns the proof for coordinators at other addresses than those that it came
// with: behind a NAT or a load balancer, or after a move. by names who says so, such as
// "--coordinator". The pin decides who is believed there, as before.
func (p Proof) At(addresses []string, by string) (Proof, error) {
	if err := checkPlace(p.cluster, addresses, p.pin); err != nil {
		return Proof{}, err
	}
	p.addresses, p.placed = slices.Clone(addresses), by
	return p, nil
}

// Cluster is the cluster that the proof is for.
func (p Proof) Cluster() string { return p.cluster }

// String names the proof without giving it away.
func (p Proof) String() string { return p.what }

// Purpose names one join: whoever repeats it uses the same key.
func (p Proof) Purpose(kind identity.Kind) string {
	h := sha256.New()
	for _, part := range []string{p.cluster, p.pin.String(), string(kind), p.what} {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		h.Write([]byte(part))
	}
	return "join:" + hex.EncodeToString(h.Sum(nil))
}

// ProverOf proves with what source holds at the time of each proof.
func ProverOf(source credential.Source) proof.Prover {
	return proof.NewX509Prover(func(ctx context.Context) (proof.X509Credential, error) {
		m, err := source.Current(ctx)
		if err != nil {
			return proof.X509Credential{}, err
		}
		return proof.X509Credential{Chain: m.Chain(), Key: m.Key()}, nil
	})
}

// subjectOf names what a certificate is for: the same for each certificate that takes
// the place of another, whatever its key.
func subjectOf(c *x509.Certificate) string {
	h := sha256.New()
	h.Write(c.RawSubject)
	for _, e := range c.Extensions {
		if e.Id.String() == "2.5.29.17" { // subject alternative names (RFC 5280 §4.2.1.6)
			h.Write(e.Value)
		}
	}
	return fmt.Sprintf("%.64q:%x", c.Subject.CommonName, h.Sum(nil)[:8])
}
