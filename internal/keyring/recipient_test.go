package keyring_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/manifest/template"
)

func inManifest(t rapid.TB, recipient string) bool {
	key, err := manifest.NewKey(bytes.Repeat([]byte{3}, 32))
	if err != nil {
		t.Fatal(err)
	}
	_, err = template.Write(template.Options{
		Cluster: "prod.example", Signers: []manifest.Signer{{Name: "alice", Key: key}},
		Owners:       []manifest.Owner{{Name: "alice", Recipient: recipient}},
		Coordinators: []template.Enrolled{{Name: "c0", Key: key}},
	})
	return err == nil
}

func canEncrypt(f keyring.ShareFile, recipient string) bool {
	_, err := keyring.SealShare(recipient, f)
	return err == nil
}

func blobOf(parts ...[]byte) string {
	var out []byte
	for _, p := range parts {
		out = binary.BigEndian.AppendUint32(out, uint32(len(p)))
		out = append(out, p...)
	}
	return base64.StdEncoding.EncodeToString(out)
}

// Manifest and keyring have a checker of recipients each, because a manifest is
// checked without cryptography. Each must take what the other takes: a recipient
// that nothing can be encrypted to is found before it counts.
func TestManifestTakesTheRecipientsThatSharesCanBeEncryptedTo(t *testing.T) {
	f := shareFile(t)
	var good []string
	for _, k := range keyPairs(t) {
		good = append(good, k.recipient)
	}
	modulus := append([]byte{0}, rsaKey().N.Bytes()...)
	odd := []string{
		"", "age1", "age1pq1", "ssh-ed25519", "ssh-rsa",
		"ssh-ed25519 " + blobOf([]byte("ssh-ed25519"), append([]byte{2}, make([]byte, 31)...)),
		"ssh-ed25519 " + blobOf([]byte("ssh-ed25519"), make([]byte, 32)),
		"ssh-ed25519 " + blobOf([]byte("ssh-ed25519"), append([]byte{1}, make([]byte, 31)...)),
		"ssh-ed25519 " + blobOf([]byte("ssh-ed25519"), bytes.Repeat([]byte{0xff}, 32)),
		"ssh-ed25519 " + blobOf([]byte("ssh-ed25519"), make([]byte, 31)),
		"ssh-rsa " + blobOf([]byte("ssh-rsa"), []byte{3}, modulus),
		"ssh-rsa " + blobOf([]byte("ssh-rsa"), []byte{1}, modulus),
		"ssh-rsa " + blobOf([]byte("ssh-rsa"), []byte{4}, modulus),
		"ssh-rsa " + blobOf([]byte("ssh-rsa"), []byte{0x83}, modulus),
		"ssh-rsa " + blobOf([]byte("ssh-rsa"), nil, modulus),
		"ssh-rsa " + blobOf([]byte("ssh-rsa"), bytes.Repeat([]byte{5}, 9), modulus),
		"ssh-rsa " + blobOf([]byte("ssh-rsa"), []byte{0, 3}, modulus),
		"ssh-rsa " + blobOf([]byte("ssh-rsa"), []byte{3}, modulus[1:]),
		"ssh-rsa " + blobOf([]byte("ssh-rsa"), []byte{3}, append([]byte{0}, modulus...)),
		"ssh-rsa " + blobOf([]byte("ssh-rsa"), []byte{3}, append([]byte{0, 1}, make([]byte, 255)...)),
		"ssh-rsa " + blobOf([]byte("ssh-rsa"), []byte{3}, append(bytes.Clone(modulus[:len(modulus)-1]), 2)),
		zeroRecipient(),
	}
	for _, recipient := range good {
		if !inManifest(t, recipient) {
			t.Errorf("the manifest does not take %.120q", recipient)
		}
	}
	// The manifest may be stricter, as it is with points in an odd spelling.
	for _, recipient := range append(good, odd...) {
		if m, k := inManifest(t, recipient), canEncrypt(f, recipient); m && !k {
			t.Errorf("the manifest takes it: %v, a share can be encrypted to it: %v: %.120q", m, k, recipient)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		recipient := []byte(rapid.SampledFrom(good).Draw(t, "recipient"))
		at := rapid.IntRange(0, len(recipient)-1).Draw(t, "at")
		recipient[at] = rapid.SampledFrom([]byte("qpzry9x8AQab/+= 1")).Draw(t, "character")
		if m, k := inManifest(t, string(recipient)), canEncrypt(f, string(recipient)); m && !k {
			t.Fatalf("the manifest takes it: %v, a share can be encrypted to it: %v: %q", m, k, recipient)
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		point := rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "point")
		recipient := fmt.Sprint("ssh-ed25519 ", blobOf([]byte("ssh-ed25519"), ed25519.PublicKey(point)))
		if m, k := inManifest(t, recipient), canEncrypt(f, recipient); m && !k {
			t.Fatalf("the manifest takes it: %v, a share can be encrypted to it: %v: %q", m, k, strings.TrimSpace(recipient))
		}
	})
}

// zeroRecipient is the X25519 key of 32 zeros, with a good checksum (BIP 173).
func zeroRecipient() string {
	const charset = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
	values := []byte{'a' >> 5, 'g' >> 5, 'e' >> 5, 0, 'a' & 31, 'g' & 31, 'e' & 31}
	data := make([]byte, 52)
	polymod := uint32(1)
	for _, v := range append(append(values, data...), 0, 0, 0, 0, 0, 0) {
		top := polymod >> 25
		polymod = polymod&0x1ffffff<<5 ^ uint32(v)
		for i, g := range []uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				polymod ^= g
			}
		}
	}
	polymod ^= 1
	for i := range 6 {
		data = append(data, byte(polymod>>(5*(5-i))&31))
	}
	out := "age1"
	for _, v := range data {
		out += string(charset[v])
	}
	return out
}
