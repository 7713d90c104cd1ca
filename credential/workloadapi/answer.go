package workloadapi

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
)

// Limits of the parts of an answer, those of files of the same.
const (
	maxChainBytes  = 64 << 10
	maxKeyBytes    = 32 << 10
	maxBundleBytes = 512 << 10
)

// maxShown bounds how many identities an error names.
const maxShown = 8

// material judges an answer as a whole. want is whose it has to be; zero: that of its first
// identity. It wipes the keys of answer.
func material(answer *pb.X509SVIDResponse, want identity.ID, now func() time.Time) (*credential.Material,
	*credential.MaterialError) {
	defer func() {
		for _, svid := range answer.GetSvids() {
			clear(svid.GetX509SvidKey())
		}
	}()
	svid, bad := pick(answer.GetSvids(), want)
	if bad != nil {
		return nil, bad
	}
	chain, bad := certificates("the certificate", svid.GetX509Svid(), maxChainBytes)
	if bad != nil {
		return nil, bad
	}
	roots, bad := certificates("the bundle", svid.GetBundle(), maxBundleBytes)
	if bad != nil {
		return nil, bad
	}
	id, err := identity.FromCertificate(chain[0])
	if err != nil {
		return nil, &credential.MaterialError{Reason: credential.NoIdentity, Err: err,
			Detail: "the certificate of the agent must carry exactly one SPIFFE id, of the form " +
				"spiffe://CLUSTER/KIND/NAME"}
	}
	if id.String() != svid.GetSpiffeId() {
		return nil, refusal(credential.OtherIdentity, "the agent gives a certificate of %s as that of %.200q", id,
			svid.GetSpiffeId())
	}
	bundle, err := identity.NewOperatorBundle(id.Cluster(), roots)
	if err != nil {
		return nil, &credential.MaterialError{Reason: credential.Incomplete, Err: err,
			Detail: "the bundle of the agent cannot be used"}
	}
	key, bad := privateKey(svid.GetX509SvidKey())
	if bad != nil {
		return nil, bad
	}
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: bundle, Now: now})
	if err != nil {
		return nil, err.(*credential.MaterialError) // as it promises
	}
	return m, nil
}

// pick returns the part of an answer that is of want; of nobody in particular, the first
// (Workload API §5.3).
func pick(svids []*pb.X509SVID, want identity.ID) (*pb.X509SVID, *credential.MaterialError) {
	if len(svids) == 0 {
		return nil, refusal(credential.Incomplete, "the answer of the agent has no identity")
	}
	if want.IsZero() {
		return svids[0], nil
	}
	at := slices.IndexFunc(svids, func(s *pb.X509SVID) bool { return s.GetSpiffeId() == want.String() })
	if at >= 0 {
		return svids[at], nil
	}
	var names []string
	for _, s := range svids[:min(len(svids), maxShown)] {
		names = append(names, fmt.Sprintf("%.200q", s.GetSpiffeId()))
	}
	if more := len(svids) - maxShown; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return nil, refusal(credential.OtherIdentity, "the agent says that this process is %s, and wanted is %s",
		strings.Join(names, ", "), want)
}

// certificates reads DER, one certificate behind the other.
func certificates(what string, der []byte, most int) ([]*x509.Certificate, *credential.MaterialError) {
	switch {
	case len(der) == 0:
		return nil, refusal(credential.Incomplete, "the agent gives an identity without %s", what)
	case len(der) > most:
		return nil, refusal(credential.Malformed, "%s of the agent has %d bytes, limit %d", what, len(der), most)
	}
	certs, err := x509.ParseCertificates(der)
	if err != nil {
		// It quotes what was given.
		return nil, refusal(credential.Malformed, "%s of the agent cannot be read: %.300q", what, err.Error())
	}
	return certs, nil
}

// privateKey reads PKCS #8. Errors quote nothing of it.
func privateKey(der []byte) (crypto.Signer, *credential.MaterialError) {
	if len(der) == 0 {
		return nil, refusal(credential.Incomplete, "the agent gives a certificate without its private key")
	}
	if len(der) > maxKeyBytes {
		return nil, refusal(credential.Malformed, "the private key has %d bytes, limit %d", len(der), maxKeyBytes)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	signer, ok := key.(crypto.Signer)
	if err != nil || !ok {
		return nil, refusal(credential.Malformed, "the private key of the agent cannot be read, or does not sign")
	}
	return signer, nil
}

func refusal(reason credential.Reason, format string, args ...any) *credential.MaterialError {
	return &credential.MaterialError{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}
