package proof

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/identity"
)

func TestProofAccepted(t *testing.T) {
	for _, s := range schemes(t) {
		t.Run(s.name, func(t *testing.T) {
			tr := newTranscript(t)
			p, err := s.verify(t, tr, s.prove(t, tr))
			if err != nil {
				t.Fatal(err)
			}
			want := s.want
			want.cluster, want.publicKey = tr.Cluster, string(tr.PublicKey)
			if !reflect.DeepEqual(p, want) {
				t.Errorf("proved %+v, want %+v", p, want)
			}
			if kind, name := p.Member(); kind != want.kind || name != want.name || p.Type() != want.typ ||
				!slices.Equal(p.Selectors(), want.selectors) || p.TokenID() != want.tokenID || p.KeyID() != want.keyID ||
				p.Cluster() != cluster || !bytes.Equal(p.PublicKey(), tr.PublicKey) || p.IsZero() {
				t.Errorf("accessors of %+v disagree with it", p)
			}
			p.Selectors()[0], p.PublicKey()[0] = "changed", 0
			if !reflect.DeepEqual(p, want) {
				t.Error("what an accessor returned changed the proof")
			}
		})
	}
}

// Each part of the transcript carries weight: a proof over any other is void.
func TestEveryFieldOfTheTranscriptCounts(t *testing.T) {
	for _, s := range schemes(t) {
		t.Run(s.name, func(t *testing.T) {
			tr := newTranscript(t)
			e := s.prove(t, tr)
			changed := tr
			changes(t, &changed, func(field, change string) {
				if _, err := s.verify(t, changed, e); err == nil {
					t.Errorf("accepted for another %s (%s)", field, change)
				}
			})
			if _, err := s.verify(t, tr, e); err != nil {
				t.Errorf("the unchanged one: %v", err)
			}
		})
	}
}

func TestEveryFieldOfTheEvidenceCounts(t *testing.T) {
	for _, s := range schemes(t) {
		t.Run(s.name, func(t *testing.T) {
			tr := newTranscript(t)
			e := s.prove(t, tr)
			changes(t, &e, func(field, change string) {
				if _, err := s.verify(t, tr, e); err == nil {
					t.Errorf("accepted with another %s (%s)", field, change)
				}
			})
		})
	}
}

func TestProofRefused(t *testing.T) {
	type situation struct {
		name string
		// attack returns what the verifier gets, given what it expects.
		attack func(t *testing.T, s scheme, tr Transcript) (Transcript, Evidence)
		want   error // matched by errors.Is; nil: only has to be refused
	}
	prove := func(change func(*Transcript)) func(*testing.T, scheme, Transcript) (Transcript, Evidence) {
		return func(t *testing.T, s scheme, tr Transcript) (Transcript, Evidence) {
			theirs := tr
			change(&theirs)
			return tr, s.prove(t, theirs)
		}
	}
	tests := []situation{
		{"relayed: made on another connection", prove(func(tr *Transcript) { tr.Binding = random32(t) }), ErrRefused},
		{"replayed: made for an earlier nonce", prove(func(tr *Transcript) { tr.Nonce = random32(t) }), ErrRefused},
		{"nonce and binding exchanged", prove(func(tr *Transcript) { tr.Nonce, tr.Binding = tr.Binding, tr.Nonce }), ErrRefused},
		{"carried along: made for another key", prove(func(tr *Transcript) { tr.PublicKey = spki(t, newP256(t).Public()) }), ErrRefused},
		{"reflected: what a candidate made, as the seed's", func(t *testing.T, s scheme, tr Transcript) (Transcript, Evidence) {
			e := s.prove(t, tr)
			tr.Role = Seed
			return tr, e
		}, ErrRefused},
		{"made for another cluster", func(t *testing.T, s scheme, tr Transcript) (Transcript, Evidence) {
			e := s.prove(t, tr)
			tr.Cluster = "dev.example"
			return tr, e
		}, ErrRefused},
		{"wrong signer", func(t *testing.T, s scheme, tr Transcript) (Transcript, Evidence) {
			e, err := s.stranger.Prove(t.Context(), tr)
			if err != nil {
				t.Fatal(err)
			}
			return tr, e
		}, ErrRefused},
		{"a right signature under another type", func(t *testing.T, s scheme, tr Transcript) (Transcript, Evidence) {
			e := s.prove(t, tr)
			e.Type = map[string]string{"token": "key", "key": "svid", "svid": "x509", "x509": "token"}[e.Type]
			return tr, e
		}, nil},
		{"malleated signature", func(t *testing.T, s scheme, tr Transcript) (Transcript, Evidence) {
			e := s.prove(t, tr)
			e.Evidence = s.malleate(t, e.Evidence)
			return tr, e
		}, ErrRefused},
		{"no signature", func(t *testing.T, s scheme, tr Transcript) (Transcript, Evidence) {
			e := s.prove(t, tr)
			e.Evidence = nil
			return tr, e
		}, nil},
	}
	for _, s := range schemes(t) {
		for _, tt := range tests {
			t.Run(s.name+"/"+tt.name, func(t *testing.T) {
				tr, e := tt.attack(t, s, newTranscript(t))
				_, err := s.verify(t, tr, e)
				if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
					t.Fatalf("Verify = %v, want %v", err, tt.want)
				}
			})
		}
	}
}

// malleate returns another spelling of a signature that satisfies the same
// equation: s plus the order of the group for Ed25519, its negation for ECDSA.
func malleate(t *testing.T, curve elliptic.Curve, sig []byte) []byte {
	t.Helper()
	if curve != nil {
		var v ecdsaSignature
		if _, err := asn1.Unmarshal(sig, &v); err != nil {
			t.Fatal(err)
		}
		v.S.Sub(curve.Params().N, v.S)
		out, err := asn1.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	order, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10) // RFC 8032 §5.1
	little := slices.Clone(sig[32:])
	slices.Reverse(little)
	s := new(big.Int).SetBytes(little)
	out := make([]byte, 32)
	s.Add(s, order).FillBytes(out)
	slices.Reverse(out)
	return append(slices.Clone(sig[:32]), out...)
}

// A second spelling that is refused would otherwise verify: without that, the case
// above shows nothing.
func TestMalleatedSignatureWouldVerify(t *testing.T) {
	key := newP256(t)
	d, _ := newTranscript(t).Digest()
	sig, err := signDigest(key, d, memberKeys)
	if err != nil {
		t.Fatal(err)
	}
	if again := malleate(t, elliptic.P256(), malleate(t, elliptic.P256(), sig)); !bytes.Equal(again, sig) {
		t.Fatal("negating twice is not the identity")
	}
	if lower, err := lowerS(elliptic.P256(), malleate(t, elliptic.P256(), sig)); err != nil || !bytes.Equal(lower, sig) {
		t.Fatalf("lowerS of the malleated signature = %x, %v; want the signature", lower, err)
	}
	if verifyDigest(key.Public(), d, malleate(t, elliptic.P256(), sig)) {
		t.Fatal("the second spelling is accepted")
	}
}

func TestZeroProvenAdmitsNothing(t *testing.T) {
	var p Proven
	kind, name := p.Member()
	if !p.IsZero() || p.Type() != "" || len(p.Selectors()) != 0 || p.TokenID() != "" || kind != "" || name != "" ||
		!p.KeyID().IsZero() || p.Cluster() != "" || len(p.PublicKey()) != 0 {
		t.Errorf("the zero Proven holds something: %+v", p)
	}
	for i := range reflect.TypeFor[Proven]().NumField() {
		if f := reflect.TypeFor[Proven]().Field(i); f.IsExported() {
			t.Errorf("field %s can be set from outside", f.Name)
		}
	}
}

func TestOversizedEvidence(t *testing.T) {
	registry := NewRegistry(NewKeyVerifier())
	tr := newTranscript(t)
	for _, tt := range []struct {
		part string
		max  int
		set  func(e *Evidence, n int)
	}{
		{"type", MaxTypeBytes, func(e *Evidence, n int) { e.Type = strings.Repeat("x", n) }},
		{"claim", MaxClaimBytes, func(e *Evidence, n int) { e.Claim = strings.Repeat("x", n) }},
		{"evidence", MaxEvidenceBytes, func(e *Evidence, n int) { e.Evidence = make([]byte, n) }},
		{"public key", MaxPublicKeyBytes, func(e *Evidence, n int) { e.PublicKey = make([]byte, n) }},
	} {
		t.Run(tt.part, func(t *testing.T) {
			e := keyScheme(t).prove(t, tr)
			tt.set(&e, tt.max+1)
			_, err := registry.Verify(t.Context(), tr, e)
			if large, ok := errors.AsType[*TooLargeError](err); !ok || *large != (TooLargeError{tt.part, tt.max + 1, tt.max}) {
				t.Errorf("one byte above the limit: %v", err)
			}
			tt.set(&e, tt.max)
			if _, err := registry.Verify(t.Context(), tr, e); err == nil {
				t.Error("accepted at the limit")
			} else if _, ok := errors.AsType[*TooLargeError](err); ok {
				t.Errorf("refused for its size at the limit: %v", err)
			}
			// A verifier that is asked without a registry has the same limits.
			tt.set(&e, tt.max+1)
			for _, s := range schemes(t) {
				_, err := s.verifier.Verify(t.Context(), tr, e)
				if _, ok := errors.AsType[*TooLargeError](err); !ok {
					t.Errorf("verifier of %s: %v", s.name, err)
				}
			}
		})
	}
}

func TestUnknownTypeIsRefusedByName(t *testing.T) {
	s := tokenScheme(t)
	registry := NewRegistry(s.verifier, NewKeyVerifier())
	tr := newTranscript(t)
	e := s.prove(t, tr)
	e.Type = "tpm"
	_, err := registry.Verify(t.Context(), tr, e)
	unknown, ok := errors.AsType[*UnknownTypeError](err)
	if !ok || unknown.Type != "tpm" || !slices.Equal(unknown.Known, []string{"key", "token"}) {
		t.Fatalf("Verify = %v", err)
	}
	for _, s := range schemes(t) {
		if _, err := s.verifier.Verify(t.Context(), tr, e); !errors.As(err, &unknown) {
			t.Errorf("verifier of %s: %v", s.name, err)
		}
	}
}

// hollow is a verifier that accepts and proves nothing, or something else.
type hollow struct{ p Proven }

func (hollow) Type() string { return "hollow" }
func (h hollow) Verify(context.Context, Transcript, Evidence) (Proven, error) {
	return h.p, nil
}

func TestRegistryRefusesAProofOfNothing(t *testing.T) {
	tr := newTranscript(t)
	other := newTranscript(t)
	foreign := tr
	foreign.Cluster = "dev.example"
	for name, p := range map[string]Proven{
		"zero":          {},
		"another type":  newProven(tr, "token", identity.KeyID{1}, "token:edge-pool"),
		"another key":   newProven(other, "hollow", identity.KeyID{1}, "hollow:x"),
		"other cluster": newProven(foreign, "hollow", identity.KeyID{1}, "hollow:x"),
	} {
		if got, err := NewRegistry(hollow{p}).Verify(t.Context(), tr, Evidence{Type: "hollow"}); err == nil || !got.IsZero() {
			t.Errorf("%s: Verify = %+v, %v", name, got, err)
		}
	}
}

func TestRegistryPanicsOnDuplicate(t *testing.T) {
	for name, vs := range map[string][]Verifier{
		"twice":    {NewKeyVerifier(), NewKeyVerifier()},
		"nameless": {nameless{}},
	} {
		mustPanic(t, name, func() { NewRegistry(vs...) })
	}
}

type nameless struct{ keyVerifier }

func (nameless) Type() string { return "" }

// A stranger who cannot prove a secret must not learn which tokens exist.
func TestUnknownTokenLooksLikeAWrongSignature(t *testing.T) {
	s := tokenScheme(t)
	tr := newTranscript(t)
	wrong, err := s.stranger.Prove(t.Context(), tr)
	if err != nil {
		t.Fatal(err)
	}
	unknown := tokenScheme(t).prove(t, tr)
	_, errWrong := s.verify(t, tr, wrong)
	_, errUnknown := s.verify(t, tr, unknown)
	if errWrong == nil || errWrong != errUnknown {
		t.Errorf("wrong signature: %v\nunknown token: %v\nwant one and the same error", errWrong, errUnknown)
	}
}

// The stand-in key must not open a door of its own.
func TestDummyKeyAdmitsNobody(t *testing.T) {
	key := newEd25519(t)
	v := &tokenVerifier{
		lookup: func(context.Context, string) (ed25519.PublicKey, string, error) {
			return nil, "edge-pool", ErrNotFound
		},
		dummy: key.Public().(ed25519.PublicKey),
	}
	tr := newTranscript(t)
	d, err := tr.Digest()
	if err != nil {
		t.Fatal(err)
	}
	e := Evidence{Type: TypeToken, Claim: newJoinToken(t).ID, Evidence: ed25519.Sign(key, d[:])}
	if p, err := v.Verify(t.Context(), tr, e); err != errTokenRefused || !p.IsZero() {
		t.Errorf("Verify = %+v, %v", p, err)
	}
}

func TestTokenVerifier(t *testing.T) {
	down := errors.New("store is down")
	token := newJoinToken(t)
	pub := token.PublicKey()
	asked := 0
	lookup := func(key ed25519.PublicKey, entry string, err error) TokenLookup {
		return func(context.Context, string) (ed25519.PublicKey, string, error) {
			asked++
			return key, entry, err
		}
	}
	tr := newTranscript(t)
	good, err := NewTokenProver(token).Prove(t.Context(), tr)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("lookup fails", func(t *testing.T) {
		_, err := NewTokenVerifier(lookup(nil, "", down)).Verify(t.Context(), tr, good)
		if failed, ok := errors.AsType[*LookupError](err); !ok || !errors.Is(err, down) || failed.Type != TypeToken || errors.Is(err, ErrRefused) {
			t.Errorf("Verify = %v, want a LookupError that is no refusal", err)
		}
	})
	t.Run("damaged record", func(t *testing.T) {
		for _, l := range []TokenLookup{lookup(pub[:31], "edge-pool", nil), lookup(nil, "edge-pool", nil), lookup(pub, "", nil)} {
			if _, err := NewTokenVerifier(l).Verify(t.Context(), tr, good); !errors.As(err, new(*LookupError)) {
				t.Errorf("Verify = %v, want a LookupError", err)
			}
		}
	})
	t.Run("malformed id does not reach the lookup", func(t *testing.T) {
		asked = 0
		for _, id := range []string{"", token.ID[1:], token.ID + "a", strings.ToUpper(token.ID), "../../etc/passwd", token.ID[:15] + "1", strings.Repeat("a", 15) + "\n"} {
			e := good
			e.Claim = id
			_, err := NewTokenVerifier(lookup(pub, "edge-pool", nil)).Verify(t.Context(), tr, e)
			if format, ok := errors.AsType[*FormatError](err); !ok || format.Part != "claim" {
				t.Errorf("id %q: %v", id, err)
			}
		}
		if asked != 0 {
			t.Errorf("asked %d times", asked)
		}
	})
	t.Run("a token never speaks for a seed", func(t *testing.T) {
		seed := tr
		seed.Role = Seed
		if _, err := NewTokenProver(token).Prove(t.Context(), seed); !errors.As(err, new(*TranscriptError)) {
			t.Errorf("Prove = %v", err)
		}
		d, _ := seed.Digest()
		e := Evidence{Type: TypeToken, Claim: token.ID, Evidence: ed25519.Sign(token.privateKey(), d[:])}
		if _, err := NewTokenVerifier(lookup(pub, "edge-pool", nil)).Verify(t.Context(), seed, e); err != errTokenRefused {
			t.Errorf("Verify = %v", err)
		}
	})
	t.Run("a token is for its own cluster", func(t *testing.T) {
		foreign := tr
		foreign.Cluster = "dev.example"
		if _, err := NewTokenProver(token).Prove(t.Context(), foreign); !errors.As(err, new(*TranscriptError)) {
			t.Errorf("Prove = %v", err)
		}
	})
}

func TestKeyClaim(t *testing.T) {
	key := newEd25519(t).Public().(ed25519.PublicKey)
	claim := KeyClaim(key)
	if got, err := ParseKeyClaim(claim); err != nil || !key.Equal(got) {
		t.Fatalf("ParseKeyClaim(%q) = %x, %v", claim, got, err)
	}
	raw := slices.Clone(key)
	raw[31] = 0xff
	// 32 bytes leave two bits of the last digit unused: setting them spells the
	// same key once more.
	loose := []byte(claim)
	digits := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	at := len(loose) - 2
	loose[at] = digits[strings.IndexByte(digits, loose[at])|1]
	for name, bad := range map[string]string{
		"empty":           "",
		"no prefix":       claim[len("ed25519:"):],
		"other algorithm": "rsa:" + claim[len("ed25519:"):],
		"upper prefix":    "ED25519:" + claim[len("ed25519:"):],
		"no padding":      strings.TrimRight(claim, "="),
		"url alphabet":    "ed25519:" + base64.URLEncoding.EncodeToString(bytes.Repeat([]byte{0xfb, 0xff}, 16)),
		"loose last bits": string(loose),
		"line break":      claim[:20] + "\n" + claim[20:],
		"space":           " " + claim,
		"31 bytes":        "ed25519:" + base64.StdEncoding.EncodeToString(key[:31]),
		"33 bytes":        "ed25519:" + base64.StdEncoding.EncodeToString(append(slices.Clone(raw), 0)),
		"hex":             "ed25519:" + hex.EncodeToString(key),
	} {
		if got, err := ParseKeyClaim(bad); !errors.As(err, new(*FormatError)) {
			t.Errorf("%s: ParseKeyClaim(%q) = %x, %v", name, bad, got, err)
		}
	}
}

// For a key of low order a signature is found by trying, without a private key:
// the reason why such keys are refused, shown for each of them.
func TestLowOrderKeysAreRefused(t *testing.T) {
	points := []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	}
	for _, p := range points {
		for _, sign := range []byte{0, 0x80} {
			key, err := hex.DecodeString(p)
			if err != nil {
				t.Fatal(err)
			}
			key[31] |= sign
			forgery := make([]byte, ed25519.SignatureSize)
			forgery[0] = 1 // R is the neutral element, s is 0
			forged := false
			for range 200 {
				forged = forged || ed25519.Verify(key, random32(t), forgery)
			}
			if !forged {
				t.Errorf("%x: no forgery in 200 messages: is it of low order?", key)
			}
			if _, err := ParseKeyClaim(KeyClaim(key)); !errors.As(err, new(*FormatError)) {
				t.Errorf("%x: accepted as a claim: %v", key, err)
			}
			if _, err := parseSigningKey(spki(t, ed25519.PublicKey(key))); !errors.As(err, new(*FormatError)) {
				t.Errorf("%x: accepted as a member's key: %v", key, err)
			}
		}
	}
	for range 100 {
		if pub := newEd25519(t).Public().(ed25519.PublicKey); lowOrder(pub) {
			t.Errorf("an honest key is refused: %x", pub)
		}
	}
}

func TestSVIDVerifier(t *testing.T) {
	current, older, foreign := newP256(t), newP256(t), newEd25519(t)
	down := errors.New("store is down")
	asked := 0
	verifier := NewSVIDVerifier(func(_ context.Context, kind identity.Kind, name string) (identity.KeyID, []identity.KeyID, error) {
		asked++
		switch {
		case name == "unlucky":
			return identity.KeyID{}, nil, down
		case kind == identity.Data && name == "node-c":
			return keyID(t, current.Public()), []identity.KeyID{{9}, keyID(t, older.Public())}, nil
		}
		return identity.KeyID{}, nil, fmt.Errorf("%s/%s: %w", kind, name, ErrNotFound)
	})
	tr := newTranscript(t)
	node := func(p Prover) Evidence {
		e, err := p.Prove(t.Context(), tr)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}

	t.Run("an older key is a clone", func(t *testing.T) {
		_, err := verifier.Verify(t.Context(), tr, node(NewSVIDProver(identity.Data, "node-c", older)))
		clone, ok := errors.AsType[*CloneError](err)
		want := CloneError{identity.Data, "node-c", keyID(t, older.Public()), keyID(t, current.Public())}
		if !ok || *clone != want || !errors.Is(err, ErrRefused) {
			t.Errorf("Verify = %v, want %v", err, &want)
		}
	})
	t.Run("only who holds an older key is called a clone", func(t *testing.T) {
		e := node(NewSVIDProver(identity.Data, "node-c", newP256(t)))
		e.PublicKey = spki(t, older.Public())
		if _, err := verifier.Verify(t.Context(), tr, e); err != errSVIDRefused {
			t.Errorf("Verify = %v", err)
		}
	})
	t.Run("strangers learn nothing", func(t *testing.T) {
		forged := node(NewSVIDProver(identity.Data, "node-c", current))
		forged.Evidence = node(NewSVIDProver(identity.Data, "node-c", newP256(t))).Evidence
		for name, e := range map[string]Evidence{
			"foreign key of a member":  node(NewSVIDProver(identity.Data, "node-c", foreign)),
			"member of another kind":   node(NewSVIDProver(identity.Shard, "node-c", current)),
			"no such member":           node(NewSVIDProver(identity.Data, "node-x", current)),
			"wrong signature":          forged,
			"wrong signature, unknown": func() Evidence { e := forged; e.Claim = "data/node-x"; return e }(),
		} {
			if _, err := verifier.Verify(t.Context(), tr, e); err != errSVIDRefused {
				t.Errorf("%s: %v, want the one answer", name, err)
			}
		}
	})
	t.Run("lookup fails", func(t *testing.T) {
		_, err := verifier.Verify(t.Context(), tr, node(NewSVIDProver(identity.Data, "unlucky", current)))
		if !errors.Is(err, down) || !errors.As(err, new(*LookupError)) || errors.Is(err, ErrRefused) {
			t.Errorf("Verify = %v, want a LookupError that is no refusal", err)
		}
	})
	t.Run("malformed", func(t *testing.T) {
		asked = 0
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		good := node(NewSVIDProver(identity.Data, "node-c", current))
		for name, change := range map[string]func(*Evidence){
			"no kind":            func(e *Evidence) { e.Claim = "node-c" },
			"unknown kind":       func(e *Evidence) { e.Claim = "root/node-c" },
			"empty name":         func(e *Evidence) { e.Claim = "data/" },
			"two segments":       func(e *Evidence) { e.Claim = "data/node/c" },
			"parent segment":     func(e *Evidence) { e.Claim = "workload/../data/node-c" },
			"no key":             func(e *Evidence) { e.PublicKey = nil },
			"garbage key":        func(e *Evidence) { e.PublicKey = []byte("garbage") },
			"bytes behind key":   func(e *Evidence) { e.PublicKey = append(slices.Clone(e.PublicKey), 0) },
			"RSA":                func(e *Evidence) { e.PublicKey = spki(t, key.Public()) },
			"not canonical":      func(e *Evidence) { e.PublicKey = withNullParameters(t, foreign.Public().(ed25519.PublicKey)) },
			"unused bits":        func(e *Evidence) { e.PublicKey = withUnusedBits(t) },
			"compressed point":   func(e *Evidence) { e.PublicKey = compressed(t, &current.PublicKey) },
			"name too long":      func(e *Evidence) { e.Claim = "data/" + strings.Repeat("n", MaxClaimBytes) },
			"unprintable in id":  func(e *Evidence) { e.Claim = "data/node\nc" },
			"percent in id":      func(e *Evidence) { e.Claim = "data/node%2Fc" },
			"whitespace in kind": func(e *Evidence) { e.Claim = " data/node-c" },
		} {
			e := good
			change(&e)
			_, err := verifier.Verify(t.Context(), tr, e)
			if !errors.As(err, new(*FormatError)) && !errors.As(err, new(*TooLargeError)) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if asked != 0 {
			t.Errorf("asked %d times for what cannot be", asked)
		}
	})
	t.Run("signatures that are none", func(t *testing.T) {
		good := node(NewSVIDProver(identity.Data, "node-c", current))
		for name, sig := range map[string][]byte{
			"empty":    {},
			"zeros":    marshalSignature(t, 0, 0),
			"ones":     marshalSignature(t, 1, 1),
			"negative": marshalSignature(t, -1, -1),
			"trailing": append(slices.Clone(good.Evidence), 0),
			"huge":     make([]byte, MaxEvidenceBytes),
			"BER":      append([]byte{0x30, 0x81}, good.Evidence[1:]...),
		} {
			e := good
			e.Evidence = sig
			if _, err := verifier.Verify(t.Context(), tr, e); err != errSVIDRefused {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("keys that cannot prove", func(t *testing.T) {
		if _, err := NewSVIDProver(identity.Data, "node-c", p384(t)).Prove(t.Context(), tr); err == nil {
			t.Error("a P-384 key made a proof")
		}
		e := node(NewSVIDProver(identity.Data, "node-c", current))
		e.PublicKey = spki(t, p384(t).Public())
		if _, err := verifier.Verify(t.Context(), tr, e); !errors.As(err, new(*FormatError)) {
			t.Errorf("a P-384 key was looked at: %v", err)
		}
	})
}

func TestVerifiersNeedALookup(t *testing.T) {
	for name, f := range map[string]func(){
		"token":       func() { NewTokenVerifier(nil) },
		"svid":        func() { NewSVIDVerifier(nil) },
		"x509":        func() { NewX509Verifier(nil, nil) },
		"x509 prover": func() { NewX509Prover(nil) },
	} {
		mustPanic(t, name, f)
	}
}

// A verifier must not accept, nor a prover sign, what says less than everything.
func TestIncompleteTranscript(t *testing.T) {
	for _, s := range schemes(t) {
		good := newTranscript(t)
		e := s.prove(t, good)
		for i := range reflect.TypeFor[Transcript]().NumField() {
			tr := good
			reflect.ValueOf(&tr).Elem().Field(i).SetZero()
			field := reflect.TypeFor[Transcript]().Field(i).Name
			if _, err := s.prover.Prove(t.Context(), tr); !errors.As(err, new(*TranscriptError)) {
				t.Errorf("%s: proved without %s: %v", s.name, field, err)
			}
			if _, err := s.verify(t, tr, e); !errors.As(err, new(*TranscriptError)) {
				t.Errorf("%s: verified without %s: %v", s.name, field, err)
			}
		}
	}
}

func TestProversHideTheirKeys(t *testing.T) {
	key, token := newEd25519(t), newJoinToken(t)
	p256 := newP256(t)
	scalar, err := p256.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		prover Prover
		secret []byte
	}{
		"key":          {NewKeyProver(key), key.Seed()},
		"svid-ed25519": {NewSVIDProver(identity.Data, "node-c", key), key.Seed()},
		"svid-p256":    {NewSVIDProver(identity.Data, "node-c", p256), scalar},
		"token":        {NewTokenProver(token), token.Secret.reveal()},
		"x509":         {NewX509Prover(fixedX509(X509Credential{Key: key})), key.Seed()},
	} {
		type holder struct{ p Prover }
		for _, v := range []any{tt.prover, &tt.prover, holder{tt.prover}, &holder{tt.prover}, []Prover{tt.prover}} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%c", "%b", "%t", "%p"} {
				checkHidden(t, name+" "+verb, fmt.Sprintf(verb, v), tt.secret)
			}
		}
	}
}

// checkHidden fails if out holds secret in any way in which fmt writes bytes.
func checkHidden(t *testing.T, what, out string, secret []byte) {
	t.Helper()
	for _, form := range []string{
		string(secret), fmt.Sprint(secret), fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), fmt.Sprintf("%#v", secret), fmt.Sprintf("%q", secret),
		base64.RawURLEncoding.EncodeToString(secret), base64.StdEncoding.EncodeToString(secret), new(big.Int).SetBytes(secret).String(),
	} {
		form = strings.Trim(form, `[]{}"`)
		if strings.Contains(out, form[:len(form)/2]) {
			t.Errorf("%s shows the secret: %s", what, out)
		}
	}
}
