package keyring_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"
	"filippo.io/age/armor"
	"golang.org/x/crypto/ssh"

	"github.com/fealty-io/fealty/internal/keyring"
)

// keyPair is an owner's key: the recipient that stands in the manifest and the
// file that the owner keeps.
type keyPair struct {
	name, recipient string
	file            []byte
	passphrase      string
}

func sshLine(t testing.TB, public any) string {
	t.Helper()
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

func sshPEM(t testing.TB, key any, passphrase string) []byte {
	t.Helper()
	var block *pem.Block
	var err error
	if passphrase == "" {
		block, err = ssh.MarshalPrivateKey(key, "alice@laptop")
	} else {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "alice@laptop", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block)
}

func ageFile(t testing.TB, plaintext string, armored bool, to age.Recipient) []byte {
	t.Helper()
	var out bytes.Buffer
	var dst io.WriteCloser = struct {
		io.Writer
		io.Closer
	}{&out, io.NopCloser(nil)}
	if armored {
		dst = armor.NewWriter(&out)
	}
	w, err := age.Encrypt(dst, to)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, plaintext)
	if err := errors.Join(w.Close(), dst.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// keyPairs has one of every kind that an owner can have. Encrypting them is slow
// on purpose, so it is done once.
func keyPairs(t testing.TB) []keyPair {
	t.Helper()
	made.Do(func() { pairs = makeKeyPairs(t) })
	if pairs == nil {
		t.Fatal("no keys")
	}
	return slices.Clone(pairs)
}

var (
	made  sync.Once
	pairs []keyPair
)

func makeKeyPairs(t testing.TB) []keyPair {
	t.Helper()
	x, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	scrypt, err := age.NewScryptRecipient("correct horse")
	if err != nil {
		t.Fatal(err)
	}
	scrypt.SetWorkFactor(10)
	_, ed, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	const phrase = "correct horse"
	return []keyPair{
		{"age", x.Recipient().String(), []byte("# created: today\n# public key: age1…\n\n" + x.String() + "\n"), ""},
		{"age with carriage returns", x.Recipient().String(), []byte("# created\r\n" + x.String() + "\r\n"), ""},
		{"age pq", hybrid.Recipient().String(), []byte(hybrid.String()), ""},
		{"age encrypted", x.Recipient().String(), ageFile(t, x.String()+"\n", false, scrypt), phrase},
		{"age encrypted, armored", x.Recipient().String(), ageFile(t, x.String()+"\n", true, scrypt), phrase},
		{"ed25519", sshLine(t, ed.Public()) + " alice@laptop", sshPEM(t, ed, ""), ""},
		{"ed25519 encrypted", sshLine(t, ed.Public()), sshPEM(t, ed, phrase), phrase},
		{"rsa", sshLine(t, &rsaKey().PublicKey), sshPEM(t, rsaKey(), ""), ""},
		{"rsa encrypted", sshLine(t, &rsaKey().PublicKey), sshPEM(t, rsaKey(), phrase), phrase},
	}
}

func (k keyPair) identities(t testing.TB) []age.Identity {
	t.Helper()
	asked := 0
	ids, err := keyring.ReadIdentities(k.file, func() ([]byte, error) { asked++; return []byte(k.passphrase), nil })
	if err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	if want := min(len(k.passphrase), 1); asked != want {
		t.Errorf("%s: asked %d times for the passphrase, want %d", k.name, asked, want)
	}
	return ids
}

func shareFile(t testing.TB) keyring.ShareFile {
	t.Helper()
	shares, err := keyring.Split(keyring.NewSeed(), 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	return keyring.ShareFile{
		Cluster: "prod.example", Owner: "alice", SeedEpoch: 7, Threshold: 2,
		TransactionKey: bytes.Repeat([]byte{9}, 32), RootPin: [32]byte{8}, Share: shares[2],
	}
}

func sameFile(a, b keyring.ShareFile) bool {
	return a.Cluster == b.Cluster && a.Owner == b.Owner && a.SeedEpoch == b.SeedEpoch && a.Threshold == b.Threshold &&
		a.TransactionKey.Equal(b.TransactionKey) && a.RootPin == b.RootPin && a.Share.Equal(b.Share)
}

func TestShareFileRoundTrip(t *testing.T) {
	f := shareFile(t)
	f.Cluster, f.Owner = strings.Repeat("c", 255), strings.Repeat("o", 255)
	pairs := keyPairs(t)
	ids := make([][]age.Identity, len(pairs))
	for i, k := range pairs {
		ids[i] = k.identities(t)
	}
	for i, k := range pairs {
		data, err := keyring.SealShare(k.recipient, f)
		if err != nil {
			t.Fatalf("%s: %v", k.name, err)
		}
		if !bytes.HasPrefix(data, []byte(armor.Header)) || bytes.Contains(data, f.Share.Reveal()[:12]) {
			t.Errorf("%s: not armored, or not encrypted: %s", k.name, data)
		}
		got, err := keyring.OpenShare(ids[i], data)
		if err != nil || !sameFile(got, f) {
			t.Errorf("%s: %+v, %v", k.name, got, err)
		}
		for j, other := range pairs {
			if strings.TrimSuffix(other.recipient, " alice@laptop") == strings.TrimSuffix(k.recipient, " alice@laptop") {
				continue // one key in two files
			}
			if _, err := keyring.OpenShare(ids[j], data); !errors.Is(err, keyring.ErrNotForYou) {
				t.Errorf("%s opened with %s: %v", k.name, other.name, err)
			}
		}
	}
	data, err := keyring.SealShare(pairs[0].recipient, f)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(ids[5], ids[0])
	if got, err := keyring.OpenShare(all, data); err != nil || !sameFile(got, f) {
		t.Error("the second of two keys:", err)
	}
	if _, err := keyring.OpenShare(nil, data); !errors.Is(err, keyring.ErrNotForYou) {
		t.Error("without a key:", err)
	}
}

// A file that the age tool encrypts to an SSH key opens here. The file was made
// with filippo.io/age/agessh 1.3.2 for the key with the seed 1, 2, 3, … 32.
func TestOpensWhatAgeEncryptsToSSH(t *testing.T) {
	const public = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHm1Vi6P5lT5QHixEuipi6eQH4U65pW+1+DjkQutBJZk"
	const file = `-----BEGIN AGE ENCRYPTED FILE-----
YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IHNzaC1lZDI1NTE5IGVWa0NLQSB4NklF
c2tlMm15a1BOZGJVOVBuczg0cFhheGxLNWs4MHlGWFUwRmVnQzNvCjduYWVnbjZD
MjBFR1F3c0lJUFNsclcyMDd2anMwMi9UN1B4bTJkZlQwb28KLS0tIDhyVkFtNERs
ZzBCTjl0ZkJ2SzIvZnJnR1Fqem1xZkVEYnJUS2ZYTTBJZFEKjvY4AiaKg0r1/x6m
HVh43jTr/+XBK98NC0Cm3b0bz0cGeaqoxuok
-----END AGE ENCRYPTED FILE-----
`
	key := ed25519.NewKeyFromSeed(fixedSeed(t).Reveal())
	if got := sshLine(t, key.Public()); got != public {
		t.Fatal(got)
	}
	ids, err := keyring.ReadIdentities(sshPEM(t, key, ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := keyring.DecryptWith(ids, []byte(file))
	if err != nil || string(got) != "opened\n" {
		t.Errorf("%q, %v", got, err)
	}
	// It is an age file of another program, and no share.
	if _, err := keyring.OpenShare(ids, []byte(file)); !errors.Is(err, keyring.ErrShareMalformed) {
		t.Error(err)
	}
}

// handMadeRSA wraps a file key as the age format says: OAEP with SHA-256 and the
// label, named by the first 4 bytes of the key's hash.
type handMadeRSA struct{ key *rsa.PublicKey }

func (r handMadeRSA) Wrap(fileKey []byte) ([]*age.Stanza, error) {
	public, err := ssh.NewPublicKey(r.key)
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(public.Marshal())
	body, err := rsa.EncryptOAEP(sha256.New(), rand.Reader, r.key, fileKey, []byte("age-encryption.org/v1/ssh-rsa"))
	return []*age.Stanza{{Type: "ssh-rsa", Args: []string{base64.RawStdEncoding.EncodeToString(id[:4])}, Body: body}}, err
}

func TestOpensRSAByTheFormat(t *testing.T) {
	ids, err := keyring.ReadIdentities(sshPEM(t, rsaKey(), ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := keyring.DecryptWith(ids, ageFile(t, "opened", true, handMadeRSA{&rsaKey().PublicKey}))
	if err != nil || string(got) != "opened" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSealShareRefuses(t *testing.T) {
	to := keyPairs(t)[0].recipient
	gone := shareFile(t).Share
	gone.Wipe()
	for name, spoil := range map[string]func(*keyring.ShareFile){
		"no cluster":       func(f *keyring.ShareFile) { f.Cluster = "" },
		"no owner":         func(f *keyring.ShareFile) { f.Owner = "" },
		"long owner":       func(f *keyring.ShareFile) { f.Owner = strings.Repeat("o", 256) },
		"long cluster":     func(f *keyring.ShareFile) { f.Cluster = strings.Repeat("o", 256) },
		"epoch 0":          func(f *keyring.ShareFile) { f.SeedEpoch = 0 },
		"threshold 0":      func(f *keyring.ShareFile) { f.Threshold = 0 },
		"threshold 256":    func(f *keyring.ShareFile) { f.Threshold = 256 },
		"no key":           func(f *keyring.ShareFile) { f.TransactionKey = nil },
		"a short key":      func(f *keyring.ShareFile) { f.TransactionKey = f.TransactionKey[1:] },
		"no pin":           func(f *keyring.ShareFile) { f.RootPin = [32]byte{} },
		"no share":         func(f *keyring.ShareFile) { f.Share = keyring.Share{} },
		"a share of zeros": func(f *keyring.ShareFile) { f.Share = gone },
	} {
		f := shareFile(t)
		spoil(&f)
		if data, err := keyring.SealShare(to, f); err == nil || data != nil {
			t.Error(name, "was encrypted")
		}
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	small, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for name, recipient := range map[string]string{
		"empty":              "",
		"a word":             "alice",
		"a private key":      small.String(),
		"another type":       sshLine(t, ec.Public()),
		"type of another":    strings.Replace(sshLine(t, &rsaKey().PublicKey), "ssh-rsa ", "ssh-ed25519 ", 1),
		"cut":                to[:len(to)-1],
		"mistyped":           to[:10] + "b" + to[11:],
		"not on the curve":   sshLine(t, ed25519.PublicKey(append([]byte{2}, make([]byte, 31)...))),
		"of order 1":         sshLine(t, ed25519.PublicKey(append([]byte{1}, make([]byte, 31)...))),
		"of order 4":         sshLine(t, ed25519.PublicKey(make([]byte, 32))),
		"only the type":      "ssh-ed25519",
		"far too long":       "ssh-rsa " + strings.Repeat("A", keyring.MaxShareFileBytes),
		"a passphrase":       "age1scrypt",
		"the zero recipient": "age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqtqzq8w",
	} {
		data, err := keyring.SealShare(recipient, shareFile(t))
		if !errors.Is(err, keyring.ErrRecipient) || data != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), small.String()[20:30]) {
			t.Errorf("%s: the error shows a private key: %v", name, err)
		}
	}
}

func TestOpenShareRefuses(t *testing.T) {
	k := keyPairs(t)[0]
	ids := k.identities(t)
	to, err := keyring.ParseRecipient(k.recipient)
	if err != nil {
		t.Fatal(err)
	}
	f := shareFile(t)
	good := keyring.Payload(f)
	seal := func(payload []byte) []byte { return ageFile(t, string(payload), true, to) }
	edit := func(change func([]byte) []byte) []byte { return seal(change(bytes.Clone(good))) }
	armored := seal(good)
	if got, err := keyring.OpenShare(ids, armored); err != nil || !sameFile(got, f) {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		data []byte
		want error
	}{
		{"nothing", nil, keyring.ErrShareMalformed},
		{"text", []byte("share"), keyring.ErrShareMalformed},
		{"not armored", ageFile(t, string(good), false, to), keyring.ErrShareMalformed},
		{"with something after it", append(bytes.Clone(armored), "more"...), keyring.ErrShareMalformed},
		{"too large", bytes.Repeat([]byte("\n"), keyring.MaxShareFileBytes+1), keyring.ErrShareMalformed},
		{"another version", edit(func(b []byte) []byte { return bytes.Replace(b, []byte("v1\n"), []byte("v2\n"), 1) }), keyring.ErrShareVersion},
		{"a version of letters", edit(func(b []byte) []byte { return bytes.Replace(b, []byte("v1\n"), []byte("vx\n"), 1) }), keyring.ErrShareMalformed},
		{"a long version", edit(func(b []byte) []byte { return bytes.Replace(b, []byte("v1\n"), []byte("v123456789\n"), 1) }), keyring.ErrShareMalformed},
		{"another thing", edit(func(b []byte) []byte { return bytes.Replace(b, []byte("seed"), []byte("feed"), 1) }), keyring.ErrShareMalformed},
		{"an empty payload", seal(nil), keyring.ErrShareMalformed},
		{"a long payload", seal(bytes.Repeat([]byte{1}, 1<<20)[:10000]), keyring.ErrShareMalformed},
		{"a byte more", edit(func(b []byte) []byte { return append(b, 0) }), keyring.ErrShareMalformed},
		{"index 0", edit(func(b []byte) []byte { b[len(b)-33] = 0; return b }), keyring.ErrShareMalformed},
		{"a value of zeros", edit(func(b []byte) []byte { clear(b[len(b)-32:]); return b }), keyring.ErrShareMalformed},
		{"a pin of zeros", edit(func(b []byte) []byte { clear(b[len(b)-81 : len(b)-49]); return b }), keyring.ErrShareMalformed},
	} {
		got, err := keyring.OpenShare(ids, test.data)
		if !errors.Is(err, test.want) || !got.Share.IsZero() {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	for n := range good {
		if _, err := keyring.ParseShareFile(good[:n]); !errors.Is(err, keyring.ErrShareMalformed) {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
	// Every bit counts: age authenticates them all.
	body := bytes.Split(armored, []byte("\n"))
	for i := 1; i < len(body)-2; i++ {
		for _, at := range []int{0, len(body[i]) / 2, len(body[i]) - 1} {
			bad := bytes.Clone(armored)
			at += bytes.Index(armored, body[i])
			if bad[at] == 'A' {
				bad[at] = 'Q'
			} else {
				bad[at] = 'A'
			}
			if _, err := keyring.OpenShare(ids, bad); err == nil {
				t.Fatalf("line %d with another character opens", i)
			}
		}
		cut := bytes.Join(append(append([][]byte{}, body[:i]...), body[len(body)-2:]...), []byte("\n"))
		if _, err := keyring.OpenShare(ids, cut); err == nil {
			t.Fatalf("cut at line %d it opens", i)
		}
	}
}

func TestReadIdentitiesRefuses(t *testing.T) {
	pairs := keyPairs(t)
	byName := func(name string) keyPair {
		for _, k := range pairs {
			if k.name == name {
				return k
			}
		}
		t.Fatal(name)
		return keyPair{}
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ageKey := string(byName("age pq").file)
	errAsk := errors.New("nobody is there")
	wrong := func() ([]byte, error) { return []byte("wrong horse"), nil }
	for _, test := range []struct {
		name       string
		data       []byte
		passphrase func() ([]byte, error)
		want       error
	}{
		{"nothing", nil, nil, keyring.ErrIdentityFile},
		{"comments", []byte("# one\n\n# two\n"), nil, keyring.ErrIdentityFile},
		{"a public age key", []byte(byName("age").recipient + "\n"), nil, keyring.ErrIdentityFile},
		{"a public SSH key", []byte(byName("rsa").recipient + "\n"), nil, keyring.ErrIdentityFile},
		{"a damaged age key", []byte(ageKey[:len(ageKey)-3] + "AAA"), nil, keyring.ErrIdentityFile},
		{"something after a key", []byte(ageKey + "\nhello\n"), nil, keyring.ErrIdentityFile},
		{"a plugin", []byte("AGE-PLUGIN-YUBIKEY-1QQQQ"), nil, keyring.ErrIdentityFile},
		{"too large", make([]byte, keyring.MaxKeyFileBytes+1), nil, keyring.ErrIdentityFile},
		{"an ECDSA key", sshPEM(t, ec, ""), nil, keyring.ErrIdentityFile},
		{"half a PEM file", byName("ed25519").file[:100], nil, keyring.ErrIdentityFile},
		{"a share", ageFile(t, "x", true, mustRecipient(t, byName("age").recipient)), wrong, keyring.ErrIdentityFile},
		{"no passphrase for SSH", byName("ed25519 encrypted").file, nil, keyring.ErrPassphrase},
		{"no passphrase for age", byName("age encrypted").file, nil, keyring.ErrPassphrase},
		{"empty passphrase", byName("ed25519 encrypted").file, func() ([]byte, error) { return nil, nil }, keyring.ErrPassphrase},
		{"empty passphrase for age", byName("age encrypted").file, func() ([]byte, error) { return nil, nil }, keyring.ErrPassphrase},
		{"wrong passphrase for SSH", byName("rsa encrypted").file, wrong, keyring.ErrPassphrase},
		{"wrong passphrase for age", byName("age encrypted, armored").file, wrong, keyring.ErrPassphrase},
		{"asking fails", byName("ed25519 encrypted").file, func() ([]byte, error) { return nil, errAsk }, errAsk},
		{"asking fails for age", byName("age encrypted").file, func() ([]byte, error) { return nil, errAsk }, errAsk},
	} {
		ids, err := keyring.ReadIdentities(test.data, test.passphrase)
		if !errors.Is(err, test.want) || !errors.Is(err, keyring.ErrIdentityFile) || ids != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if errors.Is(err, keyring.ErrPassphrase) != (test.want != keyring.ErrIdentityFile) {
			t.Errorf("%s is about the passphrase, or is not: %v", test.name, err)
		}
		for i := 18; i+6 < len(ageKey); i++ {
			if strings.Contains(err.Error(), ageKey[i:i+6]) {
				t.Fatalf("%s: the error shows the key: %v", test.name, err)
			}
		}
	}
	secret := []byte("correct horse")
	if _, err := keyring.ReadIdentities(byName("ed25519 encrypted").file, func() ([]byte, error) { return secret, nil }); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(secret, make([]byte, len(secret))) {
		t.Error("the passphrase is not wiped")
	}
}

func mustRecipient(t testing.TB, s string) age.Recipient {
	t.Helper()
	r, err := keyring.ParseRecipient(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEphemeralRecipient(t *testing.T) {
	e, err := keyring.NewEphemeral()
	if err != nil {
		t.Fatal(err)
	}
	other, err := keyring.NewEphemeral()
	if err != nil {
		t.Fatal(err)
	}
	share := shareFile(t).Share
	a := keyring.Attempt{ID: "attempt-1", Cluster: "prod.example", Owner: "alice"}
	data, err := keyring.SendShare(e.Public(), a, share)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := e.Open(a, data); err != nil || !got.Equal(share) {
		t.Error(err)
	}
	if _, err := other.Open(a, data); !errors.Is(err, keyring.ErrNotForYou) {
		t.Error("another replica's key:", err)
	}
	for field, elsewhere := range map[string]keyring.Attempt{
		"attempt": {ID: "attempt-2", Cluster: a.Cluster, Owner: a.Owner},
		"cluster": {ID: a.ID, Cluster: "prod.example2", Owner: a.Owner},
		"owner":   {ID: a.ID, Cluster: a.Cluster, Owner: "bob"},
	} {
		got, err := e.Open(elsewhere, data)
		var attempt *keyring.AttemptError
		if !errors.As(err, &attempt) || !errors.Is(err, keyring.ErrOtherAttempt) || attempt.Field != field || !got.IsZero() {
			t.Errorf("in another %s: %v", field, err)
		}
	}
	// A share file is not a sent share, nor the reverse, also to the right key.
	file, err := keyring.SealShare(e.Public(), shareFile(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Open(a, file); !errors.Is(err, keyring.ErrShareMalformed) {
		t.Error("a share file as a sent share:", err)
	}
	k := keyPairs(t)[0]
	sent, err := keyring.SendShare(k.recipient, a, share)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.OpenShare(k.identities(t), sent); !errors.Is(err, keyring.ErrShareMalformed) {
		t.Error("a sent share as a share file:", err)
	}

	for name, send := range map[string]func() ([]byte, error){
		"no id": func() ([]byte, error) {
			return keyring.SendShare(e.Public(), keyring.Attempt{Cluster: "c", Owner: "o"}, share)
		},
		"long owner": func() ([]byte, error) {
			return keyring.SendShare(e.Public(), keyring.Attempt{"i", "c", strings.Repeat("o", 256)}, share)
		},
		"no share":   func() ([]byte, error) { return keyring.SendShare(e.Public(), a, keyring.Share{}) },
		"an SSH key": func() ([]byte, error) { return keyring.SendShare(sshLine(t, &rsaKey().PublicKey), a, share) },
	} {
		if data, err := send(); err == nil || data != nil {
			t.Error(name, "was sent")
		}
	}
	if _, err := e.Open(keyring.Attempt{}, data); err == nil {
		t.Error("opened for no attempt")
	}

	if s := fmt.Sprintf("%v %+v %#v %s %x", e, e, e, e, e); strings.Contains(s, "SECRET") || !strings.Contains(s, e.Public()) {
		t.Error(s)
	}
	if _, err := e.MarshalText(); err == nil {
		t.Error("an ephemeral key encodes as text")
	}
	e.Wipe()
	e.Wipe()
	if _, err := e.Open(a, data); !errors.Is(err, keyring.ErrNotForYou) {
		t.Error("after the wipe:", err)
	}
}

// FuzzSharePayload reads what an owner's tool or a coordinator decrypted: age
// says who could write it, and everybody who knows a public key can.
func FuzzSharePayload(f *testing.F) {
	file := shareFile(f)
	f.Add(keyring.Payload(file))
	f.Add(keyring.Payload(file)[:100])
	f.Add([]byte("fealty seed share v2\nsomething else"))
	f.Add([]byte("fealty sent share v1\n\x00\x01a\x00\x01c\x00\x01o" + strings.Repeat("\x01", 49)))
	a := keyring.Attempt{ID: "a", Cluster: "c", Owner: "o"}
	f.Fuzz(func(t *testing.T, payload []byte) {
		got, err := keyring.ParseShareFile(payload)
		switch {
		case err == nil && !bytes.Equal(keyring.Payload(got), payload):
			t.Error("one share file has two forms")
		case err != nil && !errors.Is(err, keyring.ErrShareMalformed) && !errors.Is(err, keyring.ErrShareVersion):
			t.Error(err)
		}
		share, err := keyring.ParseSent(payload, a)
		if err == nil && (share.IsZero() || len(payload) != 21+9+49) ||
			err != nil && !errors.Is(err, keyring.ErrShareMalformed) && !errors.Is(err, keyring.ErrShareVersion) && !errors.Is(err, keyring.ErrOtherAttempt) {
			t.Error(err)
		}
	})
}

// FuzzReadIdentities reads files that an owner names by mistake.
func FuzzReadIdentities(f *testing.F) {
	for _, k := range keyPairs(f) {
		f.Add(k.file)
		f.Add([]byte(k.recipient))
	}
	f.Add([]byte("-----BEGIN RSA PRIVATE KEY-----\n\n-----END RSA PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ids, err := keyring.ReadIdentities(data, nil)
		if (err == nil) != (len(ids) > 0) || err != nil && !errors.Is(err, keyring.ErrIdentityFile) {
			t.Errorf("%d keys, %v", len(ids), err)
		}
	})
}
