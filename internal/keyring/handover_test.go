package keyring

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func newHanded(t testing.TB) Handed {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return Handed{Seed: NewSeed(), Mesh: key}
}

func testHandover() Handover {
	return Handover{Purpose: "recover", Cluster: strings.Repeat("c", 255), From: strings.Repeat("f", 64), To: strings.Repeat("t", 64), Head: [32]byte{7}}
}

func TestHandover(t *testing.T) {
	to, err := NewEphemeral()
	if err != nil {
		t.Fatal(err)
	}
	h, secrets := testHandover(), newHanded(t)
	for _, want := range []Handed{secrets, {Mesh: secrets.Mesh}} {
		sent, err := HandOver(to.Public(), h, want)
		if err != nil {
			t.Fatal(err)
		}
		if len(sent) > MaxHandoverBytes {
			t.Errorf("%d bytes, more than the bound", len(sent))
		}
		got, err := to.TakeOver(h, sent)
		if err != nil || !got.Mesh.Equal(want.Mesh) || got.Seed.IsZero() != want.Seed.IsZero() || !want.Seed.IsZero() && !got.Seed.Equal(want.Seed) {
			t.Fatalf("it is not what was handed over: %v", err)
		}
		for name, other := range map[string]Handover{
			"purpose": {"prepare", h.Cluster, h.From, h.To, h.Head}, "cluster": {h.Purpose, "other", h.From, h.To, h.Head},
			"giver": {h.Purpose, h.Cluster, "x", h.To, h.Head}, "taker": {h.Purpose, h.Cluster, h.From, "x", h.Head}, "head": {h.Purpose, h.Cluster, h.From, h.To, [32]byte{8}},
		} {
			if _, err := to.TakeOver(other, sent); !errors.Is(err, ErrHandover) {
				t.Errorf("taken for another %s: %v", name, err)
			}
		}
		for name, bad := range map[string][]byte{
			"nothing": nil, "half": sent[:len(sent)/2], "more": append(bytes.Clone(sent), "x"...), "too much": append(bytes.Clone(sent), make([]byte, MaxHandoverBytes)...),
		} {
			if _, err := to.TakeOver(h, bad); !errors.Is(err, ErrHandover) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	sent, err := HandOver(to.Public(), h, secrets)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := NewEphemeral()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.TakeOver(h, sent); !errors.Is(err, ErrHandover) {
		t.Errorf("opened by another: %v", err)
	}
	to.Wipe()
	if _, err := to.TakeOver(h, sent); !errors.Is(err, ErrHandover) {
		t.Errorf("opened after the key was wiped: %v", err)
	}
	if _, err := HandOver("age1x", h, secrets); !errors.Is(err, ErrRecipient) {
		t.Errorf("to nobody: %v", err)
	}
	if _, err := HandOver(stranger.Public(), h, Handed{Seed: secrets.Seed}); !errors.Is(err, ErrHandover) {
		t.Errorf("without a mesh CA key: %v", err)
	}
	if _, err := HandOver(stranger.Public(), Handover{Purpose: "recover"}, secrets); err == nil {
		t.Error("handed over for nothing")
	}
	for _, text := range []string{fmt.Sprintf("%v %+v %s %d", secrets, secrets, secrets, secrets), fmt.Sprint(&secrets), secrets.LogValue().String()} {
		if !strings.Contains(text, "hidden") || strings.Contains(text, fmt.Sprint(secrets.Mesh.X)) {
			t.Errorf("it prints as %s", text)
		}
	}
	if _, err := json.Marshal(secrets); err == nil {
		t.Error("it encodes")
	}
}

// Everything a peer seals to us is refused or is the one thing that it was to be.
func FuzzParseHandover(f *testing.F) {
	h := Handover{Purpose: "recover", Cluster: "c", From: "f", To: "t", Head: [32]byte{7}}
	right := []byte(handoverName + handoverVersion)
	for _, s := range []string{"recover", "c", "f", "t"} {
		right = appendString(right, s)
	}
	right = append(right, h.Head[:]...)
	key := append([]byte{32}, bytes.Repeat([]byte{1}, 32)...)
	f.Add(append(append(bytes.Clone(right), key...), key...))
	f.Add(append(append(bytes.Clone(right), 0), key...))
	f.Add(append(append(bytes.Clone(right), 1, 5), key...))
	f.Add(right)
	f.Add([]byte(handoverName))
	f.Fuzz(func(t *testing.T, payload []byte) {
		got, err := parseHandover(payload, h)
		switch {
		case err != nil && !errors.Is(err, ErrHandover):
			t.Fatalf("error of type %T: %v", err, err)
		case err == nil && (got.Mesh == nil || !bytes.HasPrefix(payload, right)):
			t.Fatalf("accepted %x", payload)
		}
	})
}
