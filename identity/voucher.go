package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/fealty-io/fealty/internal/identity"
)

var errNoVoucher = errors.New("certificate names no member that vouches for it")

// VoucherOf returns the member that vouches for a workload, and the key that it asked
// with. A coordinator writes both into the common name of the workload's certificate, as
// "<kind>/<name> <key id>": the workload is believed as long as neither is banned, so that
// what ends a member ends what it vouched for.
//
// Leaf must have been verified ([Bundle.Verify] refuses a workload without a voucher).
// Otherwise the error says that leaf is of no workload, or was not minted by a cluster.
func VoucherOf(leaf *x509.Certificate) (ID, KeyID, error) {
	id, err := FromCertificate(leaf)
	if err != nil {
		return ID{}, KeyID{}, fmt.Errorf("%w: %w", errNoVoucher, err)
	}
	if id.Kind() != Workload {
		return ID{}, KeyID{}, fmt.Errorf("%w: %s is no workload", errNoVoucher, identity.Clip(id.String()))
	}
	return voucherOf(leaf, id)
}

// voucherOf is VoucherOf of a leaf that is known to be that of the workload id.
func voucherOf(leaf *x509.Certificate, id ID) (ID, KeyID, error) {
	name := leaf.Subject.CommonName
	path, hex, _ := strings.Cut(name, " ")
	kind, member, _ := strings.Cut(path, "/")
	voucher, err := New(id.Cluster(), Kind(kind), member)
	if err != nil {
		return ID{}, KeyID{}, fmt.Errorf("%w: common name %s: %w", errNoVoucher, identity.Clip(name), err)
	}
	key, err := ParseKeyID(hex)
	if err != nil {
		return ID{}, KeyID{}, fmt.Errorf("%w: common name %s: %w", errNoVoucher, identity.Clip(name), err)
	}
	// One spelling: nothing that two readers could take for two members.
	if voucher.Kind() == Workload || identity.VoucherName(path, hex) != name {
		return ID{}, KeyID{}, fmt.Errorf("%w: common name %s", errNoVoucher, identity.Clip(name))
	}
	return voucher, key, nil
}
