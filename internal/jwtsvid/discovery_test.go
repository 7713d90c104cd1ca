package jwtsvid_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/fealty-io/fealty/internal/jwtsvid"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

const issuer = "https://id.example/prod"

func key(t *testing.T, id string) jwtsvid.Key {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jwtsvid.Key{ID: id, Public: &k.PublicKey}
}

// fields returns an object of JSON with the names of its fields.
func fields(t *testing.T, data []byte) (map[string]any, []string) {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	var names []string
	for n := range out {
		names = append(names, n)
	}
	slices.Sort(names)
	return out, names
}

// The documents have what the standards require, and nothing of a private key.
func TestDocuments(t *testing.T) {
	first, second := key(t, "one"), key(t, "two")
	docs, err := jwtsvid.NewDocuments(issuer, []jwtsvid.Key{first, second})
	if err != nil {
		t.Fatal(err)
	}
	config, _ := fields(t, docs.Configuration)
	want := map[string]any{
		"issuer": issuer, "jwks_uri": issuer + "/.well-known/jwks.json",
		"response_types_supported":              []any{"id_token"},
		"subject_types_supported":               []any{"public"},
		"id_token_signing_alg_values_supported": []any{"ES256"},
		"claims_supported":                      []any{"iss", "sub", "aud", "iat", "exp"},
	}
	if !reflect.DeepEqual(config, want) {
		t.Errorf("configuration %v, want %v", config, want)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(docs.Keys, &set); err != nil || len(set.Keys) != 2 {
		t.Fatalf("%s, %v", docs.Keys, err)
	}
	for i, of := range []jwtsvid.Key{first, second} {
		f, names := fields(t, set.Keys[i])
		if !slices.Equal(names, []string{"alg", "crv", "kid", "kty", "use", "x", "y"}) {
			t.Errorf("a key has %q", names)
		}
		if f["kty"] != "EC" || f["crv"] != "P-256" || f["alg"] != "ES256" || f["use"] != "sig" || f["kid"] != of.ID {
			t.Errorf("key %v", f)
		}
		var parsed jose.JSONWebKey
		if err := parsed.UnmarshalJSON(set.Keys[i]); err != nil || !of.Public.Equal(parsed.Key) {
			t.Errorf("it is another key, %v", err)
		}
	}
}

// No key is an empty list, which is a JWK set still.
func TestNoKeys(t *testing.T) {
	docs, err := jwtsvid.NewDocuments(issuer, nil)
	if err != nil || strings.Join(strings.Fields(string(docs.Keys)), "") != `{"keys":[]}` {
		t.Errorf("%s, %v", docs.Keys, err)
	}
}

// faulty is a file system that fails to write one name.
type faulty struct {
	durable.FS
	name string
	said []string
}

var errDisk = errors.New("disk")

func (f *faulty) WriteFile(name string, data []byte) error {
	f.said = append(f.said, filepath.Base(name))
	if filepath.Base(name) == f.name {
		return errDisk
	}
	return f.FS.WriteFile(name, data)
}

// Files take the place of those of before, everybody may read them, and the document that leads to
// the keys is not written before these are there.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		docs, err := jwtsvid.NewDocuments(issuer, []jwtsvid.Key{key(t, "one")})
		if err != nil {
			t.Fatal(err)
		}
		names, err := docs.Write(durable.Public(), dir)
		if err != nil || len(names) != 2 {
			t.Fatal(names, err)
		}
		for path, want := range map[string][]byte{jwtsvid.ConfigurationPath: docs.Configuration,
			jwtsvid.KeysPath: docs.Keys} {
			name := filepath.Join(dir, path)
			got, err := os.ReadFile(name)
			if err != nil || string(got) != string(want) || !slices.Contains(names, name) {
				t.Errorf("%s has %q, %v", name, got, err)
			}
			old := syscall.Umask(0)
			syscall.Umask(old)
			info, err := os.Stat(name)
			if err != nil || info.Mode().Perm() != 0o644&^fs.FileMode(old) {
				t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
			}
		}
		// Nothing else is left there.
		if all, err := os.ReadDir(filepath.Join(dir, ".well-known")); err != nil || len(all) != 2 {
			t.Errorf("%v, %v", all, err)
		}
		if !strings.Contains(string(docs.Configuration), issuer) {
			t.Errorf("%s", docs.Configuration)
		}
	}
	disk := &faulty{FS: durable.Public(), name: "jwks.json"}
	if _, err := (jwtsvid.Documents{}).Write(disk, t.TempDir()); !errors.Is(err, errDisk) ||
		!slices.Equal(disk.said, []string{"jwks.json"}) {
		t.Errorf("%v after %q", err, disk.said)
	}
}
