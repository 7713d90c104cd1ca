package store_test

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
)

func authenticator(t testing.TB) *store.Authenticator {
	t.Helper()
	key := make([]byte, 32)
	rand.Read(key)
	a, err := store.NewAuthenticator(key)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestSealOpens(t *testing.T) {
	a := authenticator(t)
	for _, value := range [][]byte{nil, {}, {0}, []byte("value"), make([]byte, store.MaxValueBytes-store.SealBytes)} {
		sealed := a.Seal("k", value)
		if len(sealed) != len(value)+store.SealBytes {
			t.Fatalf("%d bytes sealed into %d", len(value), len(sealed))
		}
		got, err := a.Open("k", sealed)
		if err != nil || !bytes.Equal(got, value) {
			t.Fatalf("Open of %d bytes: %d bytes, %v", len(value), len(got), err)
		}
		if !bytes.Equal(a.Seal("k", value), sealed) {
			t.Fatal("sealing is not deterministic")
		}
	}
}

// TestOpenRefuses alters one thing for each row.
func TestOpenRefuses(t *testing.T) {
	key := make([]byte, 32)
	rand.Read(key)
	a, err := store.NewAuthenticator(key)
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(key)
	other[31] ^= 1
	b, err := store.NewAuthenticator(other)
	if err != nil {
		t.Fatal(err)
	}
	sealed := a.Seal("node/a", []byte("role=data"))
	with := func(change func(s []byte) []byte) []byte { return change(bytes.Clone(sealed)) }
	for _, c := range []struct {
		name   string
		by     *store.Authenticator
		key    string
		sealed []byte
	}{
		{"other key", b, "node/a", sealed},
		{"under another name", a, "node/b", sealed},
		{"under no name", a, "", sealed},
		{"under a longer name", a, "node/ar", sealed},
		{"nothing", a, "node/a", nil},
		{"shorter than a code", a, "node/a", sealed[:store.SealBytes-1]},
		{"a code alone", a, "node/a", sealed[:store.SealBytes]},
		{"last byte cut", a, "node/a", sealed[:len(sealed)-1]},
		{"a byte added", a, "node/a", append(bytes.Clone(sealed), 0)},
		{"another version", a, "node/a", with(func(s []byte) []byte { s[0]++; return s })},
		{"version zero", a, "node/a", with(func(s []byte) []byte { s[0] = 0; return s })},
		{"not sealed at all", a, "node/a", []byte("role=data, and long enough to hold a code of 32 bytes")},
		{"code of zeros", a, "node/a", with(func(s []byte) []byte { clear(s[1:store.SealBytes]); return s })},
		{"another value's code", a, "node/a", append(a.Seal("node/a", []byte("role=none"))[:store.SealBytes], "role=data"...)},
		{"sealed twice", a, "node/a", a.Seal("node/a", sealed)[:store.SealBytes]},
		// Where key ends and value begins is part of what is sealed.
		{"name moved into the value", a, "node", append(bytes.Clone(sealed[:store.SealBytes]), "/arole=data"...)},
		{"value moved into the name", a, "node/arole", append(bytes.Clone(sealed[:store.SealBytes]), "=data"...)},
	} {
		if v, err := c.by.Open(c.key, c.sealed); !errors.Is(err, store.ErrForged) || v != nil {
			t.Errorf("%s: Open = %q, %v, want ErrForged", c.name, v, err)
		}
	}
	for i := range len(sealed) * 8 {
		flipped := with(func(s []byte) []byte { s[i/8] ^= 1 << (i % 8); return s })
		if _, err := a.Open("node/a", flipped); !errors.Is(err, store.ErrForged) {
			t.Errorf("bit %d flipped: %v, want ErrForged", i, err)
		}
	}
	if _, err := a.Open("node/a", sealed); err != nil {
		t.Fatalf("and unaltered: %v", err)
	}
}

// TestSealFormat fixes the format: values sealed today are read for years. The
// code was computed apart, with Python's hmac.
func TestSealFormat(t *testing.T) {
	a, err := store.NewAuthenticator(bytes.Repeat([]byte{0x0b}, 32))
	if err != nil {
		t.Fatal(err)
	}
	const want = "01" + "8a36575216e46419eb99b778e7b930acad987a05433f241277fdc947fdf3cec1" + "76"
	if got := hex.EncodeToString(a.Seal("k", []byte("v"))); got != want {
		t.Fatalf("sealed as %s, want %s", got, want)
	}
}

func TestAuthenticatorKey(t *testing.T) {
	for n := range 32 {
		if _, err := store.NewAuthenticator(make([]byte, n)); err == nil {
			t.Errorf("a key of %d bytes is accepted", n)
		}
	}
	// The key is copied: its owner may wipe it.
	key := bytes.Repeat([]byte{7}, 32)
	a, _ := store.NewAuthenticator(key)
	sealed := a.Seal("k", nil)
	clear(key)
	if _, err := a.Open("k", sealed); err != nil {
		t.Error(err)
	}

	// It is never shown.
	key = []byte("a key that would be seen in a log")
	a, _ = store.NewAuthenticator(key)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "a", a)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "a", a)
	encoded, _ := json.Marshal([]any{a})
	shown := log.String() + string(encoded)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		shown += fmt.Sprintf(verb, a) + fmt.Sprintf(verb, []any{a})
	}
	for _, secret := range []string{string(key), hex.EncodeToString(key), fmt.Sprint(key)[1:20], fmt.Sprintf("%#v", key)[8:30]} {
		if strings.Contains(strings.ToLower(shown), strings.ToLower(secret)) {
			t.Errorf("the key is shown: %s", shown)
		}
	}
}

func FuzzOpen(f *testing.F) {
	a := authenticator(f)
	sealed := a.Seal("k", []byte("value"))
	f.Add("k", sealed)
	f.Add("k", sealed[:store.SealBytes])
	f.Add("", []byte{})
	f.Add("k", append([]byte{1}, make([]byte, 64)...))
	f.Add("other", sealed)
	f.Fuzz(func(t *testing.T, key string, data []byte) {
		before := bytes.Clone(data)
		value, err := a.Open(key, data)
		if !bytes.Equal(before, data) {
			t.Fatal("Open changed what it was given")
		}
		if err == nil {
			// Only what Seal returned opens.
			if !bytes.Equal(a.Seal(key, value), data) {
				t.Fatalf("opened %x, which Seal does not return", data)
			}
			if key != "k" || string(value) != "value" {
				t.Fatalf("forged: %q, %q", key, value)
			}
		} else if !errors.Is(err, store.ErrForged) || value != nil {
			t.Fatalf("%q, %v", value, err)
		}
	})
}
