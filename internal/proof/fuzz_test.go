package proof

import (
	"context"
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/identity"
)

// A line that parses is the only spelling of what it holds.
func FuzzParseJoinToken(f *testing.F) {
	line := newJoinToken(f).Line()
	for _, seed := range []string{"", line, " " + line + "\n", line[:40], "fealty1_", newSetupToken(f).Line(), pack("fealty1_", make([]byte, 200)), pack("fealty1_", []byte(strings.Repeat("\xff", 90)))} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		fuzzLine(t, s, "fealty1_", func(s string) (interface{ Line() string }, error) { return ParseJoinToken(s) })
	})
}

func FuzzParseSetupToken(f *testing.F) {
	line := newSetupToken(f).Line()
	for _, seed := range []string{"", line, " " + line + "\n", line[:40], "fealtysetup1_", newJoinToken(f).Line(), pack("fealtysetup1_", make([]byte, 200))} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		fuzzLine(t, s, "fealtysetup1_", func(s string) (interface{ Line() string }, error) { return ParseSetupToken(s) })
	})
}

func fuzzLine(t *testing.T, s, prefix string, parse func(string) (interface{ Line() string }, error)) {
	// The input as it is, and as the fields behind a good checksum: a fuzzer does
	// not find those by itself.
	for _, line := range []string{s, pack(prefix, []byte(s))} {
		token, err := parse(line)
		if err != nil {
			if !errors.As(err, new(*TokenFormatError)) {
				t.Fatalf("error of type %T: %v", err, err)
			}
			continue
		}
		if again := token.Line(); again != strings.Trim(line, " \t\r\n") {
			t.Fatalf("%q was read, and is written as %q", line, again)
		}
	}
}

// For any message, nothing but the one right proof is accepted, and every refusal
// is of a known type.
func FuzzVerify(f *testing.F) {
	key := ed25519.NewKeyFromSeed(sequence(0, 32))
	pub := key.Public().(ed25519.PublicKey)
	id := keyID(f, pub)
	const tokenID = "aaaqeayeaudaocaj"
	registry := NewRegistry(
		NewKeyVerifier(),
		NewTokenVerifier(func(_ context.Context, id string) (ed25519.PublicKey, string, error) {
			if id == tokenID {
				return pub, "edge-pool", nil
			}
			return nil, "", ErrNotFound
		}),
		NewSVIDVerifier(func(_ context.Context, _ identity.Kind, name string) (identity.KeyID, []identity.KeyID, error) {
			if name == "node-c" {
				return id, nil, nil
			}
			return identity.KeyID{}, nil, ErrNotFound
		}),
	)
	tr := Transcript{Candidate, cluster, sequence(0, 32), sequence(32, 32), spki(f, pub)}
	d, err := tr.Digest()
	if err != nil {
		f.Fatal(err)
	}
	right := string(ed25519.Sign(key, d[:]))
	f.Add("key", KeyClaim(pub), []byte(right), []byte(nil))
	f.Add("token", tokenID, []byte(right), []byte(nil))
	f.Add("svid", "data/node-c", []byte(right), tr.PublicKey)
	f.Add("svid", "data/node-c", marshalSignature(f, 1, 1), spki(f, newP256(f).Public()))
	f.Add("tpm", "", []byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, typ, claim string, evidence, public []byte) {
		p, err := registry.Verify(t.Context(), tr, Evidence{typ, claim, evidence, public})
		if err == nil {
			if string(evidence) != right || p.KeyID() != id || len(p.Selectors()) != 1 {
				t.Fatalf("accepted %q %q %x %x as %+v", typ, claim, evidence, public, p)
			}
			return
		}
		if !p.IsZero() {
			t.Fatalf("refused with %v and proved %+v", err, p)
		}
		if !errors.Is(err, ErrRefused) && !errors.As(err, new(*FormatError)) && !errors.As(err, new(*TooLargeError)) && !errors.As(err, new(*UnknownTypeError)) {
			t.Fatalf("error of type %T: %v", err, err)
		}
	})
}
