package authority_test

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

const cluster = "test.example"

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func made(t testing.TB) (*authority.Secrets, history.Salt, *pki.MeshCA) {
	t.Helper()
	s, salt, err := authority.Make()
	if err != nil {
		t.Fatal(err)
	}
	root, err := pki.Root(s.RootCA(), cluster, now)
	if err != nil {
		t.Fatal(err)
	}
	mesh, err := pki.NewMeshCA(root, s.RootCA(), pki.MeshConfig{Cluster: cluster, Epoch: 1, Validity: time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	return s, salt, mesh
}

// wantSame checks that got is the seed of s, with the same keys.
func wantSame(t *testing.T, what string, got, s *authority.Secrets) {
	t.Helper()
	if !got.Same(s) || !s.Same(got) {
		t.Errorf("%s: another seed", what)
	}
	if !got.TransactionKey().Equal(s.TransactionKey()) || !got.ConfigRootKey().Equal(s.ConfigRootKey()) ||
		!got.ConfigSigning(7).Public().(ed25519.PublicKey).Equal(s.ConfigSigning(7).Public()) {
		t.Errorf("%s: other keys", what)
	}
	sealing, err := s.Records()
	if err != nil {
		t.Fatal(err)
	}
	opening, err := got.Records()
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := opening.Open("k", sealing.Seal("k", []byte("v"))); err != nil || string(plain) != "v" {
		t.Errorf("%s: another record MAC: %v", what, err)
	}
}

// Whichever way a seed comes back, it is the same, with the same keys.
func TestWaysBack(t *testing.T) {
	s, salt, mesh := made(t)
	t.Run("a keeper", func(t *testing.T) {
		place := keyring.Place{Cluster: cluster, Purpose: keyring.PurposeSeed, Owner: "host", SeedEpoch: 1}
		k, err := keyring.KeeperOf(keyring.Owner{Name: "host",
			Keeper: "file:" + filepath.Join(t.TempDir(), "keeper.key")}, durable.OS())
		if err == nil {
			_, err = k.MakeKey(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		sealed, err := s.Seal(t.Context(), k, place)
		if err != nil {
			t.Fatal(err)
		}
		got, err := authority.Open(t.Context(), k, place, sealed, salt)
		if err != nil {
			t.Fatal(err)
		}
		wantSame(t, "opened", got, s)
		if same, err := s.Opens(t.Context(), k, place, sealed); err != nil || !same {
			t.Errorf("its own seal: %v, %v", same, err)
		}
		other, _, _ := made(t)
		if same, err := other.Opens(t.Context(), k, place, sealed); err != nil || same {
			t.Errorf("the seal of another seed: %v, %v", same, err)
		}
		place.Owner = "other"
		if _, err := authority.Open(t.Context(), k, place, sealed, salt); err == nil {
			t.Error("opened for another place")
		}
		if _, err := s.Opens(t.Context(), k, place, sealed); err == nil {
			t.Error("compared for another place")
		}
	})
	t.Run("owners", func(t *testing.T) {
		shares, err := s.Split(2, 3)
		if err != nil {
			t.Fatal(err)
		}
		got, err := authority.Combine(2, shares[1:])
		if err == nil {
			err = got.Derive(salt)
		}
		if err != nil {
			t.Fatal(err)
		}
		wantSame(t, "combined", got, s)
		if _, err := authority.Combine(2, shares[:1]); err == nil {
			t.Error("one share of two is enough")
		}
	})
	t.Run("another coordinator", func(t *testing.T) {
		to, err := keyring.NewEphemeral()
		if err != nil {
			t.Fatal(err)
		}
		h := keyring.Handover{Purpose: "recover", Cluster: cluster, From: "a", To: "b", Head: [32]byte{1}}
		sealed, err := s.HandOver(to.Public(), h, mesh)
		if err != nil {
			t.Fatal(err)
		}
		got, key, err := authority.TakeOver(to, h, sealed)
		if err == nil {
			err = got.Derive(salt)
		}
		if err != nil {
			t.Fatal(err)
		}
		wantSame(t, "taken over", got, s)
		root, err := pki.Root(s.RootCA(), cluster, now)
		if err != nil {
			t.Fatal(err)
		}
		again, err := key.Load(root, mesh.Certificate().Raw, cluster, 1)
		if err != nil || again.KeyID() != mesh.KeyID() {
			t.Errorf("the mesh CA key: %v", err)
		}
		other := h
		other.Head = [32]byte{2}
		if _, _, err := authority.TakeOver(to, other, sealed); !errors.Is(err, keyring.ErrHandover) {
			t.Errorf("taken over for another head: %v", err)
		}
		// A mesh CA key alone is no answer to who needs the seed; it is all that a preparation brings.
		alone, err := authority.HandOverMesh(to.Public(), h, mesh)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := authority.TakeOver(to, h, alone); err == nil {
			t.Error("taken over without a seed")
		}
		for what, sealed := range map[string][]byte{"alone": alone, "with a seed": sealed} {
			key, err := authority.TakeMesh(to, h, sealed)
			if err != nil {
				t.Errorf("a mesh CA key %s: %v", what, err)
				continue
			}
			if again, err := key.Load(root, mesh.Certificate().Raw, cluster, 1); err != nil ||
				again.KeyID() != mesh.KeyID() {
				t.Errorf("a mesh CA key %s: %v", what, err)
			}
		}
	})
}

// Wiped secrets are gone, and those that came from them stay.
func TestWipe(t *testing.T) {
	s, salt, _ := made(t)
	shares, err := s.Split(2, 2)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := authority.Combine(2, shares)
	if err != nil || copied.Derive(salt) != nil {
		t.Fatal(err)
	}
	s.Wipe()
	if !s.Gone() || copied.Gone() {
		t.Errorf("gone: %v, and its copy: %v", s.Gone(), copied.Gone())
	}
}

// However they are printed, nothing shows.
func TestSecretsDoNotShow(t *testing.T) {
	s, _, mesh := made(t)
	to, err := keyring.NewEphemeral()
	if err != nil {
		t.Fatal(err)
	}
	h := keyring.Handover{Purpose: "recover", Cluster: cluster, From: "a", To: "b"}
	sealed, err := authority.HandOverMesh(to.Public(), h, mesh)
	if err != nil {
		t.Fatal(err)
	}
	key, err := authority.TakeMesh(to, h, sealed)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{s, *s, key, *key} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
			if got := fmt.Sprintf(verb, v); got != "[secret]" {
				t.Errorf("%s of %T is %q", verb, v, got)
			}
		}
	}
	text, err := s.MarshalText()
	if err != nil || string(text) != "[secret]" || !strings.Contains(s.LogValue().String(), "[secret]") {
		t.Errorf("as text %q, %v; in the log %q", text, err, s.LogValue())
	}
}
