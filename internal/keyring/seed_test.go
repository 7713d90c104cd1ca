package keyring_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"strconv"
	"strings"
	"testing"

	jsonx "github.com/go-json-experiment/json"

	"github.com/fealty-io/fealty/internal/keyring"
)

// fixedSeed is 1, 2, 3, … 32: for vectors and nothing else.
func fixedSeed(t testing.TB) keyring.Seed {
	t.Helper()
	b := make([]byte, keyring.SeedBytes)
	for i := range b {
		b[i] = byte(i + 1)
	}
	seed, err := keyring.SeedFrom(b)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

func fixedSalt() []byte { return bytes.Repeat([]byte{0xa5}, keyring.SaltBytes) }

func derive(t testing.TB, seed keyring.Seed, salt []byte) keyring.Keys {
	t.Helper()
	keys, err := seed.Derive(salt)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// purposes lists every derived key, what it shows of itself (never a secret: a
// public key, or the hash of a symmetric key) and the label it derives under.
var purposes = []struct {
	name, label string
	show        func(keyring.Keys) []byte
	fromSecret  func(secret []byte) []byte // show, computed from the HKDF output
	golden      string
}{
	{"root CA", "fealty/v1/root-ca", func(k keyring.Keys) []byte { return spki(k.RootCA()) }, rootFromSecret,
		"4dd55f454e7913ae43c79089feb2943634f3888e1070ef3463189bca06848a05"},
	{"transaction", "fealty/v1/transaction", func(k keyring.Keys) []byte { return spki(k.Transaction()) }, edFromSecret,
		"9f7e28ce5167025dd0436afef04cc9ebdbf525b1175fa76524b8e4c7d70afe96"},
	{"config root", "fealty/v1/config-root", func(k keyring.Keys) []byte { return spki(k.ConfigRoot()) }, edFromSecret,
		"869636ad29039834a3b815926268693ea9da84053207c26ce2fdd4d376b6b7a2"},
	{"config signing 1", "fealty/v1/config-signing/1", func(k keyring.Keys) []byte { return spki(k.ConfigSigning(1)) }, edFromSecret,
		"ecbcef01648a57f02c2ce1f2230647f9313467b6b4f446ef5923b5895b03caf4"},
	{"config signing 12", "fealty/v1/config-signing/12", func(k keyring.Keys) []byte { return spki(k.ConfigSigning(12)) }, edFromSecret,
		"f206ed3ca42219ebde52e10c01aa8cb686cec9037334255b2c0381a45b6981a9"},
	{"token signing 1", "fealty/v1/token-signing/1", func(k keyring.Keys) []byte { return spki(k.TokenSigning(1)) }, rootFromSecret,
		"08ac76b62bd8d745c1e358c2e48ab816d7e4f2ebbf9a6c7edc7728f260b3638d"},
	{"token signing 12", "fealty/v1/token-signing/12", func(k keyring.Keys) []byte { return spki(k.TokenSigning(12)) }, rootFromSecret,
		"ade97f49c874da4a7befa50addf8c8d1d4f6681523757ac73c6a459ebbd30efc"},
	{"record MAC", "fealty/v1/record-mac", func(k keyring.Keys) []byte { return sum(k.RecordMAC()) }, sum,
		"f110edb53d545f2283935ee90840e0b86f5f07228f90d257c32bf1d8cdaaf1d0"},
	{"store seal", "fealty/v1/store-seal", func(k keyring.Keys) []byte { return sum(k.StoreSeal()) }, sum,
		"91fe96fc91c5cbfefe2ca1517a64053a2668feec7976ea6318baabd0af4bfcf1"},
	{"workload secret", "fealty/v1/workload-secret/acme/db", func(k keyring.Keys) []byte {
		secret, err := k.WorkloadSecret("acme/db")
		if err != nil {
			panic(err)
		}
		return sum(secret)
	}, sum,
		"ce11aca7e51f6f84a29637d535a37802562738476068c7457c5138b12811b06b"},
}

func sum(b []byte) []byte { h := sha256.Sum256(b); return h[:] }

func spki(s crypto.Signer) []byte {
	der, err := x509.MarshalPKIXPublicKey(s.Public())
	if err != nil {
		panic(err)
	}
	return sum(der)
}

func edFromSecret(secret []byte) []byte { return spki(ed25519.NewKeyFromSeed(secret)) }

// rootFromSecret is c2sp.org/det-keygen for P-256 written again from its text:
// HMAC_DRBG (SP 800-90A §10.1.2) over SHA-256, first candidate below the order.
func rootFromSecret(secret []byte) []byte {
	mac := func(key []byte, parts ...[]byte) []byte {
		h := hmac.New(sha256.New, key)
		for _, p := range parts {
			h.Write(p)
		}
		return h.Sum(nil)
	}
	key, value := make([]byte, 32), bytes.Repeat([]byte{1}, 32)
	material := append(append([]byte(nil), secret...), "det ECDSA key gen P-256"...)
	for _, b := range []byte{0, 1} {
		key = mac(key, value, []byte{b}, material)
		value = mac(key, value)
	}
	for {
		value = mac(key, value)
		d := new(big.Int).SetBytes(value)
		if d.Sign() > 0 && d.Cmp(elliptic.P256().Params().N) < 0 {
			private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), value)
			if err != nil {
				panic(err)
			}
			return spki(private)
		}
		key = mac(key, value, []byte{0})
		value = mac(key, value)
	}
}

// TestDerivationGolden pins the derivation. If it fails, the code is wrong, not
// the vector: every running cluster derives its root from it.
func TestDerivationGolden(t *testing.T) {
	keys := derive(t, fixedSeed(t), fixedSalt())
	for _, p := range purposes {
		if got := hex.EncodeToString(p.show(keys)); got != p.golden {
			t.Errorf("%s: got %s, want %s", p.name, got, p.golden)
		}
	}
}

// TestDerivationIndependent computes the keys again from RFC 5869 by hand.
func TestDerivationIndependent(t *testing.T) {
	mac := func(key, data []byte) []byte {
		h := hmac.New(sha256.New, key)
		h.Write(data)
		return h.Sum(nil)
	}
	seed, salt := fixedSeed(t), fixedSalt()
	prk := mac(salt, seed.Reveal())
	keys := derive(t, seed, salt)
	for _, p := range purposes {
		secret := mac(prk, append([]byte(p.label), 1))
		if got, want := p.show(keys), p.fromSecret(secret); !bytes.Equal(got, want) {
			t.Errorf("%s: got %x, by hand %x", p.name, got, want)
		}
	}
}

func TestDerivationSeparates(t *testing.T) {
	seed, other := fixedSeed(t), keyring.NewSeed()
	seen := map[string]string{}
	for source, keys := range map[string]keyring.Keys{
		"seed":       derive(t, seed, fixedSalt()),
		"other salt": derive(t, seed, keyring.NewSalt()),
		"other seed": derive(t, other, fixedSalt()),
	} {
		for _, p := range purposes {
			name, value := source+": "+p.name, string(p.show(keys))
			if was, ok := seen[value]; ok {
				t.Errorf("%s and %s are the same key", name, was)
			}
			seen[value] = name
		}
	}
}

func TestDeriveRefuses(t *testing.T) {
	wiped := keyring.NewSeed()
	wiped.Wipe()
	for _, test := range []struct {
		name string
		seed keyring.Seed
		salt []byte
		want error
	}{
		{"zero seed", keyring.Seed{}, fixedSalt(), keyring.ErrNoSeed},
		{"wiped seed", wiped, fixedSalt(), keyring.ErrNoSeed},
		{"no salt", keyring.NewSeed(), nil, nil},
		{"short salt", keyring.NewSeed(), make([]byte, 31), nil},
		{"long salt", keyring.NewSeed(), make([]byte, 33), nil},
	} {
		keys, err := test.seed.Derive(test.salt)
		if err == nil || test.want != nil && !errors.Is(err, test.want) || !keys.IsZero() {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	keys := derive(t, fixedSeed(t), fixedSalt())
	for _, id := range []string{"", strings.Repeat("x", keyring.MaxWorkloadSecretIDBytes+1)} {
		if _, err := keys.WorkloadSecret(id); err == nil {
			t.Errorf("workload secret of %d bytes of id", len(id))
		}
	}
}

func TestSeedFrom(t *testing.T) {
	for _, n := range []int{0, 31, 33} {
		if _, err := keyring.SeedFrom(bytes.Repeat([]byte{1}, n)); err == nil {
			t.Errorf("a seed of %d bytes", n)
		}
	}
	if _, err := keyring.SeedFrom(make([]byte, 32)); err == nil {
		t.Error("a seed of zeros")
	}
	buf := bytes.Repeat([]byte{7}, 32)
	seed, err := keyring.SeedFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	clear(buf)
	if got := seed.Reveal(); got[0] != 7 {
		t.Error("the seed aliases its source")
	} else {
		clear(got)
	}
	if got := seed.Reveal(); got[0] != 7 {
		t.Error("Reveal gives away the seed's own bytes")
	}
	if a, b := keyring.NewSeed(), keyring.NewSeed(); a.Equal(b) || !a.Equal(a) || a.IsZero() {
		t.Error("new seeds are equal, or zero")
	}
	if (keyring.Seed{}).Equal(keyring.Seed{}) {
		t.Error("no seed equals no seed")
	}
}

func TestWipe(t *testing.T) {
	seed := fixedSeed(t)
	twin := seed
	seed.Wipe()
	if !twin.IsZero() {
		t.Error("a copy of a wiped seed still holds it")
	}
	keyring.Seed{}.Wipe()

	keys := derive(t, fixedSeed(t), fixedSalt())
	copied := keys
	root := keys.RootCA()
	keys.Wipe()
	keys.Wipe()
	keyring.Keys{}.Wipe()
	if !copied.IsZero() {
		t.Error("a copy of wiped keys still holds them")
	}
	if _, err := root.Sign(rand.Reader, make([]byte, 32), crypto.SHA256); err == nil {
		t.Error("a wiped root key still signs")
	}
	for name, use := range map[string]func(){
		"RootCA":        func() { copied.RootCA() },
		"Transaction":   func() { copied.Transaction() },
		"ConfigRoot":    func() { copied.ConfigRoot() },
		"ConfigSigning": func() { copied.ConfigSigning(1) },
		"TokenSigning":  func() { copied.TokenSigning(1) },
		"RecordMAC":     func() { copied.RecordMAC() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of wiped keys", name)
				}
			}()
			use()
		}()
	}

	_, ed, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	keyring.WipeKey(ed)
	if !bytes.Equal(ed, make([]byte, len(ed))) {
		t.Error("an Ed25519 key is not wiped")
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	words := ec.D.Bits() //nolint:staticcheck // deprecated; to see that they are gone
	keyring.WipeKey(ec)
	for _, w := range words {
		if w != 0 {
			t.Error("a P-256 key is not wiped")
		}
	}
	keyring.WipeKey(nil)
	keyring.WipeKey((*ecdsa.PrivateKey)(nil))
	keyring.WipeKey(keyring.Signer{})
}

func TestSigners(t *testing.T) {
	keys := derive(t, fixedSeed(t), fixedSalt())
	message := []byte("message")
	for name, s := range map[string]keyring.Signer{"transaction": keys.Transaction(), "config root": keys.ConfigRoot(), "config signing": keys.ConfigSigning(3)} {
		sig, err := s.Sign(nil, message, crypto.Hash(0))
		if err != nil || !ed25519.Verify(s.Public().(ed25519.PublicKey), message, sig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	digest := sum(message)
	var sigs [2][]byte
	for i := range sigs {
		var err error
		if sigs[i], err = keys.RootCA().Sign(nil, digest, crypto.SHA256); err != nil || !ecdsa.VerifyASN1(keys.RootCA().Public().(*ecdsa.PublicKey), digest, sigs[i]) {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(sigs[0], sigs[1]) {
		t.Error("the root key does not sign deterministically without a reader")
	}
	defer func() {
		if recover() == nil {
			t.Error("config signing key 0 exists")
		}
	}()
	keys.ConfigSigning(0)
}

// TestSecretsDoNotShow prints everything secret in every way, on its own and
// inside others, and looks for any 4 bytes of it, however they are written. Four bytes may spell a piece of a word, of an
// address or of a time that is printed anyway: what shows is there with other secrets too.
func TestSecretsDoNotShow(t *testing.T) {
	shows := showing(t)
	for range 2 {
		again := showing(t)
		maps.DeleteFunc(shows, func(what, _ string) bool { return again[what] == "" })
	}
	for what, text := range shows {
		t.Fatalf("%s shows: %s", what, text)
	}
}

// showing prints new secrets, and returns what of them is in the text, with the text.
func showing(t *testing.T) map[string]string {
	t.Helper()
	seed := keyring.NewSeed()
	salt := fixedSalt()
	keys := derive(t, seed, salt)
	mac := hmac.New(sha256.New, salt)
	mac.Write(seed.Reveal())
	prk := mac.Sum(nil)
	expand := func(label string) []byte {
		h := hmac.New(sha256.New, prk)
		h.Write(append([]byte(label), 1))
		return h.Sum(nil)
	}
	shares, err := keyring.Split(seed, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	share := shares[0]
	file := keyring.ShareFile{Cluster: "prod.example", Owner: "alice", SeedEpoch: 1, Threshold: 2, Share: share}
	secrets := [][]byte{seed.Reveal(), share.Reveal(), prk, expand("fealty/v1/transaction"), expand("fealty/v1/record-mac")}

	type inner struct {
		seed   keyring.Seed
		keys   keyring.Keys
		signer keyring.Signer
		share  keyring.Share
	}
	type Outer struct {
		Seed   keyring.Seed
		Keys   keyring.Keys
		Signer keyring.Signer
		Share  keyring.Share
		Ptr    *keyring.Seed
		Map    map[string]keyring.Seed
		inner  inner
	}
	outer := Outer{seed, keys, keys.Transaction(), share, &seed, map[string]keyring.Seed{"a": seed}, inner{seed, keys, keys.Transaction(), share}}
	_ = outer.inner
	values := []any{seed, &seed, keys, &keys, keys.Transaction(), keys.RootCA(), outer, &outer, outer.inner, []keyring.Seed{seed}, []any{seed, keys}, share, &share, shares, file, &file}

	var shown bytes.Buffer
	for _, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%X", "%q", "%d", "%T", "%c", "%b", "%o", "%U", "%08b", "% x", "%z"} {
			fmt.Fprintf(&shown, verb+"\n", v)
		}
		fmt.Fprintln(&shown, v)
		if data, err := json.Marshal(v); err == nil && strings.Contains(fmt.Sprintf("%T", v), "keyring.") && len(data) > 2 {
			t.Errorf("%T encodes to JSON: %s", v, data)
		} else {
			shown.Write(data)
			fmt.Fprintln(&shown, err)
		}
		data, err := jsonx.Marshal(v)
		shown.Write(data)
		fmt.Fprintln(&shown, err)
		for _, h := range []slog.Handler{slog.NewTextHandler(&shown, nil), slog.NewJSONHandler(&shown, nil)} {
			log := slog.New(h)
			log.Info("m", "value", v, slog.Group("g", "v", v))
			log.With("v", v).Error(fmt.Sprint(v))
		}
		fmt.Fprintln(&shown, fmt.Errorf("failed with %v", v))
	}
	text := strings.ToLower(shown.String())
	shows := make(map[string]string)
	for n, secret := range secrets {
		for i := 0; i+4 <= len(secret); i++ {
			part := secret[i : i+4]
			for form, s := range map[string]string{
				"hex":        hex.EncodeToString(part),
				"spaced hex": fmt.Sprintf("% x", part),
				"decimal":    strings.Trim(fmt.Sprint(part), "[]"),
				"list":       strings.Join(strings.Fields(strings.Trim(fmt.Sprint(part), "[]")), ","),
				"go":         strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", part), "[]byte{"), "}"),
				"raw":        strings.ToLower(string(part)),
				"quoted":     strings.ToLower(strings.Trim(strconv.Quote(string(part)), `"`)),
				"base64":     strings.ToLower(base64.StdEncoding.EncodeToString(secret[i:min(i+6, len(secret))])),
			} {
				if strings.Contains(text, s) {
					shows[fmt.Sprintf("secret %d from byte %d on, as %s,", n, i, form)] = text
				}
			}
		}
	}
	if !strings.Contains(text, "keyring.seed(hidden)") || !strings.Contains(text, "keyring.share(hidden)") {
		t.Error("nothing says that a seed or a share is hidden")
	}
	return shows
}
