package coordinatortest

import (
	"crypto/ed25519"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// SignerKey is the key of a signer as a manifest names it.
func SignerKey(t TB, key ed25519.PrivateKey) manifest.Key {
	t.Helper()
	public, err := manifest.NewKey(key.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	return public
}

// SignedBy are the signatures of signers over a statement.
func SignedBy(t TB, statement []byte, signers ...ed25519.PrivateKey) (out []*fealtyv1.ManifestSignature) {
	t.Helper()
	for _, s := range signers {
		out = append(out, &fealtyv1.ManifestSignature{Key: SignerKey(t, s).String(), Signature: ed25519.Sign(s, statement)})
	}
	return out
}

// SignChange signs a change of root.
func SignChange(t TB, change []byte, signers ...ed25519.PrivateKey) []*fealtyv1.ManifestSignature {
	t.Helper()
	return SignedBy(t, snapshot.PAE(snapshot.TypeRootChange, Cluster, change), signers...)
}
