package order_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/fence"
	internalsigned "github.com/fealty-io/fealty/internal/signed"
	"github.com/fealty-io/fealty/internal/signed/order"
)

const (
	cluster = "test.example"
	plan    = "shard-plan" // the kind of the documents
	// typeDocument is written here once more, so that a change of it shows.
	typeDocument = "fealty/document/v1"
)

// authority signs statements for tests, and opens them.
type authority struct {
	fence.Authority
	key ed25519.PrivateKey
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return authority{fence.Authority{Cluster: cluster, Key: func(id string) (ed25519.PublicKey, bool) {
		return public, id == fence.KeyID(public)
	}}, key}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func documentOf(cluster, kind string, version, authorityEpoch uint64) order.Document {
	return order.Document{Cluster: cluster, Kind: kind, Version: version, Digest: sha256.Sum256([]byte("a plan")),
		AuthorityEpoch: authorityEpoch}
}

// The statements of all kinds are tested by those of package fence: fence.TestStatements.

// A document is what it was signed as: of the kind that its reader wants, of a version, and of one
// digest in one spelling. The payload is written here once more, so that a change of it shows.
func TestDocuments(t *testing.T) {
	a := newAuthority(t)
	is := documentOf(cluster, plan, 7, 3)
	const of, epoch, kind, version = "cluster test.example\n", "authority-epoch 3\n", "kind shard-plan\n", "version 7\n"
	digest := fmt.Sprintf("%x", is.Digest)
	sum := "sha256 " + digest + "\n"
	head := of + epoch + kind + version
	good := signed(a.key, typeDocument, head+sum)
	if got, err := order.OpenDocument(a.Authority, plan, good); err != nil || got != is {
		t.Fatalf("what the format says: %v, %v", got, err)
	}
	if text := must(is.Sign(a.key)); text != good {
		t.Errorf("it is signed as %q, want %q", text, good)
	}
	for _, tc := range []struct{ name, says, payload string }{
		{"version 0", "version 0", of + epoch + kind + "version 0\n" + sum},
		{"a version with a leading zero", "no number in its line version", of + epoch + kind + "version 07\n" + sum},
		{"a version with a sign", "no number in its line version", of + epoch + kind + "version +7\n" + sum},
		{"a version below zero", "no number in its line version", of + epoch + kind + "version -7\n" + sum},
		{"a version of 65 bits", "no number in its line version",
			of + epoch + kind + "version 18446744073709551616\n" + sum},
		{"a version that is no number", "no number in its line version", of + epoch + kind + "version new\n" + sum},
		{"authority epoch 0", "authority epoch 0", of + "authority-epoch 0\n" + kind + version + sum},
		{"another kind", "another kind than shard-plan", of + epoch + "kind shard-plans\n" + version + sum},
		{"a kind in capitals", "another kind than shard-plan", of + epoch + "kind Shard-Plan\n" + version + sum},
		{"no kind", "another kind than shard-plan", of + epoch + "kind \n" + version + sum},
		{"a digest in capitals", "another spelling", head + "sha256 " + strings.ToUpper(digest) + "\n"},
		{"a digest with one capital", "another spelling", head + "sha256 " + oneCapital(t, digest) + "\n"},
		{"a digest that is a byte short", "no SHA-256 in its line sha256", head + "sha256 " + digest[2:] + "\n"},
		{"a digest that is a byte long", "no SHA-256 in its line sha256", head + "sha256 " + digest + "00\n"},
		{"a digest with half a byte", "no SHA-256 in its line sha256", head + "sha256 " + digest[1:] + "\n"},
		{"a digest of a letter that is no digit", "no SHA-256 in its line sha256",
			head + "sha256 " + digest[:63] + "g\n"},
		{"a digest with a prefix", "no SHA-256 in its line sha256", head + "sha256 0x" + digest[2:] + "\n"},
		{"a digest with a blank after it", "no SHA-256 in its line sha256", head + "sha256 " + digest + " \n"},
		{"a digest with blanks before it", "no SHA-256 in its line sha256", head + "sha256  " + digest + "\n"},
		{"no digest", "no SHA-256 in its line sha256", head + "sha256 \n"},
		{"no line of the digest", "no line sha256", head},
		{"no line of the version", "no line version", of + epoch + kind + sum},
		{"no line of the kind", "no line kind", of + epoch + version + sum},
		{"a digest of another function", "no line sha256", head + "sha512 " + digest + "\n"},
		{"another order", "no line kind", of + epoch + version + kind + sum},
		{"a line more", "another spelling than its own, or more than it says", head + sum + sum},
		{"no end", "no line sha256", head + strings.TrimSuffix(sum, "\n")},
		{"a carriage return", "no SHA-256 in its line sha256", head + strings.TrimSuffix(sum, "\n") + "\r\n"},
	} {
		if got, err := order.OpenDocument(a.Authority, plan, signed(a.key, typeDocument, tc.payload)); !errors.Is(err,
			fence.ErrMalformed) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, %v", tc.name, got, err)
		}
	}
	other := signed(a.key, typeDocument, "cluster other.example\n"+epoch+kind+version+sum)
	if got, err := order.OpenDocument(a.Authority, plan, other); !errors.Is(err, fence.ErrUntrusted) {
		t.Errorf("another cluster: %v, %v", got, err)
	}
	for _, wanted := range []string{"", "shard", "shard-plans", "Shard-Plan"} {
		if got, err := order.OpenDocument(a.Authority, wanted, good); !errors.Is(err, fence.ErrMalformed) {
			t.Errorf("a reader of kind %q: %v, %v", wanted, got, err)
		}
	}
	if text := must(documentOf(cluster, "other", 7, 3).Sign(a.key)); must(order.OpenDocument(a.Authority, "other",
		text)).Kind != "other" {
		t.Errorf("a reader of kind other does not get its own")
	}
	// The longest one there is still travels.
	longest := a.Authority
	longest.Cluster = strings.Repeat("c", internalsigned.MaxName)
	long := documentOf(longest.Cluster, strings.Repeat("k", internalsigned.MaxName), 1<<64-1, 1<<64-1)
	if got, err := order.OpenDocument(longest, long.Kind, must(long.Sign(a.key))); err != nil || got != long {
		t.Errorf("the longest document: %v", err)
	}
}

// oneCapital makes the first letter of a digest a capital.
func oneCapital(t *testing.T, digest string) string {
	t.Helper()
	i := strings.IndexAny(digest, "abcdef")
	if i < 0 {
		t.Fatalf("%s has no letter", digest)
	}
	return digest[:i] + strings.ToUpper(digest[i:i+1]) + digest[i+1:]
}

// signed signs a payload as package signed documents it, whatever it says.
func signed(key ed25519.PrivateKey, typ, payload string) string {
	text := "FealtyPAEv1"
	for _, part := range []string{typ, cluster, payload} {
		text += fmt.Sprintf(" %d %s", len(part), part)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(payload)) + "." + fence.KeyID(key.Public().(ed25519.PublicKey)) + "." +
		encode(ed25519.Sign(key, []byte(text)))
}
