package proof

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"testing"
)

// pair is two coordinators and what both fill in of one exchange.
type pair struct {
	asker, giver ed25519.PrivateKey
	t            PeerTranscript
}

func newPair(t testing.TB) pair {
	t.Helper()
	p := pair{asker: newEd25519(t), giver: newEd25519(t)}
	p.t = PeerTranscript{
		Purpose: Recover, Cluster: cluster, Head: random32(t), AskerNonce: random32(t), GiverNonce: random32(t), Binding: random32(t),
		Recipient: "age1test", AskerKey: p.asker.Public().(ed25519.PublicKey), GiverKey: p.giver.Public().(ed25519.PublicKey),
	}
	return p
}

func (p pair) key(role PeerRole) ed25519.PrivateKey {
	if role == Asker {
		return p.asker
	}
	return p.giver
}

// The values were computed by another program from the documentation.
func TestGoldenPeerDigest(t *testing.T) {
	tr := PeerTranscript{Recover, "prod.example", sequence(0, 32), sequence(32, 32), sequence(64, 32), sequence(96, 32), "age1recipient", sequence(160, 32), sequence(192, 32)}
	for role, want := range map[PeerRole]string{
		Asker: "c24e4b82a6f0dff4f8e7526cd1bdb315d9304004be15ba72430ac028a1b5f9b6ccc6b1141da2cca35acc8202364f546d8174457e371169f2e8a4fac0c8541814",
		Giver: "bba195bc567407f0c21206f8ab90c9a19c7ca5980ab219334584ed9be82e49e98b1ebdb727f0549b6e8c32ba0ab8006aec0af5d61b58edd540e5bd1ba1d8a9f9",
	} {
		if d, err := tr.Digest(role); err != nil || hex.EncodeToString(d[:]) != want {
			t.Errorf("%s: %x, %v; want %s", role, d, err, want)
		}
	}
}

func TestPeerDigestRefusesAnIncompleteTranscript(t *testing.T) {
	for name, change := range map[string]func(*PeerTranscript){
		"no purpose":         func(p *PeerTranscript) { p.Purpose = "" },
		"unknown purpose":    func(p *PeerTranscript) { p.Purpose = "RECOVER" },
		"no cluster":         func(p *PeerTranscript) { p.Cluster = "" },
		"long cluster":       func(p *PeerTranscript) { p.Cluster = string(make([]byte, 256)) },
		"no head":            func(p *PeerTranscript) { p.Head = nil },
		"short head":         func(p *PeerTranscript) { p.Head = p.Head[1:] },
		"no asker's nonce":   func(p *PeerTranscript) { p.AskerNonce = nil },
		"short giver's":      func(p *PeerTranscript) { p.GiverNonce = p.GiverNonce[1:] },
		"one nonce":          func(p *PeerTranscript) { p.GiverNonce = p.AskerNonce },
		"no binding":         func(p *PeerTranscript) { p.Binding = nil },
		"long binding":       func(p *PeerTranscript) { p.Binding = append(p.Binding, 0) },
		"no recipient":       func(p *PeerTranscript) { p.Recipient = "" },
		"long recipient":     func(p *PeerTranscript) { p.Recipient = string(make([]byte, MaxRecipientBytes+1)) },
		"no asker":           func(p *PeerTranscript) { p.AskerKey = nil },
		"half a giver":       func(p *PeerTranscript) { p.GiverKey = p.GiverKey[:16] },
		"one on both sides":  func(p *PeerTranscript) { p.GiverKey = p.AskerKey },
		"nothing but labels": func(p *PeerTranscript) { *p = PeerTranscript{Purpose: Recover, Cluster: cluster} },
	} {
		p := newPair(t)
		change(&p.t)
		for _, role := range []PeerRole{Asker, Giver} {
			if d, err := p.t.Digest(role); !errors.As(err, new(*TranscriptError)) || d != [64]byte{} {
				t.Errorf("%s: Digest = %x, %v", name, d, err)
			}
			if _, err := ProvePeer(p.key(role), role, p.t); !errors.As(err, new(*TranscriptError)) {
				t.Errorf("%s: it is signed: %v", name, err)
			}
			if _, err := VerifyPeer(role, p.t, make([]byte, 64)); !errors.As(err, new(*TranscriptError)) {
				t.Errorf("%s: it is verified: %v", name, err)
			}
		}
	}
	p := newPair(t)
	for _, role := range []PeerRole{"", "seed", "ASKER"} {
		if _, err := p.t.Digest(role); !errors.As(err, new(*TranscriptError)) {
			t.Errorf("role %q: %v", role, err)
		}
	}
	if _, err := ProvePeer(p.asker, Giver, p.t); !errors.As(err, new(*TranscriptError)) {
		t.Errorf("one side signs for the other: %v", err)
	}
}

// A proof over one exchange is none over any other, in the other role, or by another
// key.
func TestPeerProof(t *testing.T) {
	for _, role := range []PeerRole{Asker, Giver} {
		p := newPair(t)
		evidence, err := ProvePeer(p.key(role), role, p.t)
		if err != nil {
			t.Fatal(err)
		}
		selector, err := VerifyPeer(role, p.t, evidence)
		if want := "key:" + KeyClaim(p.key(role).Public().(ed25519.PublicKey)); err != nil || selector != want {
			t.Fatalf("%s: proved %q, %v; want %q", role, selector, err, want)
		}
		changes(t, &p.t, func(field, change string) {
			if _, err := VerifyPeer(role, p.t, evidence); err == nil {
				t.Errorf("%s: accepted over another %s (%s)", role, field, change)
			}
		})
		for _, bad := range [][]byte{nil, evidence[:63], append([]byte{0}, evidence...), make([]byte, 64)} {
			if _, err := VerifyPeer(role, p.t, bad); !errors.Is(err, ErrRefused) {
				t.Errorf("%s: evidence of %d bytes: %v", role, len(bad), err)
			}
		}
	}
}

// Somebody in between makes one of two coordinators sign: the result, and its worth
// elsewhere.
func TestPeerAttacks(t *testing.T) {
	type attack struct {
		name string
		// role is whose proof the victim wants; do returns what the attacker shows for
		// it, out of what he got honest sides to sign.
		role PeerRole
		do   func(t *testing.T, p pair) []byte
	}
	sign := func(t *testing.T, key ed25519.PrivateKey, role PeerRole, tr PeerTranscript) []byte {
		t.Helper()
		e, err := ProvePeer(key, role, tr)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	with := func(p pair, change func(*PeerTranscript)) PeerTranscript {
		tr := p.t
		change(&tr)
		return tr
	}
	attacks := []attack{
		{"relay: the asker's proof of the other leg", Asker, func(t *testing.T, p pair) []byte {
			return sign(t, p.asker, Asker, with(p, func(tr *PeerTranscript) { tr.Binding = random32(t) }))
		}},
		{"relay: the giver's proof of the other leg", Giver, func(t *testing.T, p pair) []byte {
			return sign(t, p.giver, Giver, with(p, func(tr *PeerTranscript) { tr.Binding = random32(t) }))
		}},
		{"reflection: the asker's own proof sent back", Giver, func(t *testing.T, p pair) []byte { return sign(t, p.asker, Asker, p.t) }},
		{"reflection: the giver's own proof sent back", Asker, func(t *testing.T, p pair) []byte { return sign(t, p.giver, Giver, p.t) }},
		{"other role: the giver asked somebody for the same", Giver, func(t *testing.T, p pair) []byte {
			tr := with(p, func(tr *PeerTranscript) { tr.AskerKey, tr.GiverKey = tr.GiverKey, tr.AskerKey })
			return sign(t, p.giver, Asker, tr)
		}},
		{"other purpose: who prepares is shown as who recovers", Asker, func(t *testing.T, p pair) []byte {
			return sign(t, p.asker, Asker, with(p, func(tr *PeerTranscript) { tr.Purpose = Prepare }))
		}},
		{"other cluster: the key serves two of them", Asker, func(t *testing.T, p pair) []byte {
			return sign(t, p.asker, Asker, with(p, func(tr *PeerTranscript) { tr.Cluster = "test.example" }))
		}},
		{"other head: a proof of before a dismissal", Asker, func(t *testing.T, p pair) []byte {
			return sign(t, p.asker, Asker, with(p, func(tr *PeerTranscript) { tr.Head = random32(t) }))
		}},
		{"old nonce: an earlier exchange on this connection, of the asker", Asker, func(t *testing.T, p pair) []byte {
			return sign(t, p.asker, Asker, with(p, func(tr *PeerTranscript) { tr.GiverNonce = random32(t) }))
		}},
		{"old nonce: an earlier exchange on this connection, of the giver", Giver, func(t *testing.T, p pair) []byte {
			return sign(t, p.giver, Giver, with(p, func(tr *PeerTranscript) { tr.AskerNonce = random32(t) }))
		}},
		{"other recipient: the secrets sealed to who carries them", Asker, func(t *testing.T, p pair) []byte {
			return sign(t, p.asker, Asker, with(p, func(tr *PeerTranscript) { tr.Recipient = "age1attacker" }))
		}},
		{"other key: a proof for a giver that is somebody else", Asker, func(t *testing.T, p pair) []byte {
			return sign(t, p.asker, Asker, with(p, func(tr *PeerTranscript) { tr.GiverKey = newEd25519(t).Public().(ed25519.PublicKey) }))
		}},
		{"other key: a stranger signs for the asker", Asker, func(t *testing.T, p pair) []byte {
			d, err := p.t.Digest(Asker)
			if err != nil {
				t.Fatal(err)
			}
			return ed25519.Sign(newEd25519(t), d[:])
		}},
		{"other kind: a proof of admission", Asker, func(t *testing.T, p pair) []byte {
			tr := Transcript{Candidate, p.t.Cluster, p.t.GiverNonce, p.t.Binding, spki(t, p.asker.Public())}
			e, err := NewKeyProver(p.asker).Prove(context.Background(), tr)
			if err != nil {
				t.Fatal(err)
			}
			return e.Evidence
		}},
		{"other kind: a proof for owners", Giver, func(t *testing.T, p pair) []byte {
			_, e, err := ProveRecovery(p.giver, RecoveryTranscript{p.t.Cluster, p.t.AskerNonce[:AttemptBytes], p.t.Binding, p.t.Recipient, p.t.Head})
			if err != nil {
				t.Fatal(err)
			}
			return e
		}},
		{"other kind: a replica record", Giver, func(t *testing.T, p pair) []byte {
			d, err := p.t.Digest(Giver)
			if err != nil {
				t.Fatal(err)
			}
			return SignReplica(p.giver, d[:])
		}},
	}
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			p := newPair(t)
			if _, err := VerifyPeer(a.role, p.t, a.do(t, p)); !errors.Is(err, ErrRefused) {
				t.Errorf("accepted as the proof of the %s: %v", a.role, err)
			}
			if _, err := VerifyPeer(a.role, p.t, sign(t, p.key(a.role), a.role, p.t)); err != nil {
				t.Errorf("the honest proof is refused: %v", err)
			}
		})
	}
}

// A relay sits in the middle of two real connections and passes all messages on.
func TestPeerProofDoesNotTravel(t *testing.T) {
	toRelay, relayOfAsker := connect(t, tls.VersionTLS13)
	relayOfGiver, fromRelay := connect(t, tls.VersionTLS13)
	if bytes.Equal(toRelay.binding(t), fromRelay.binding(t)) || !bytes.Equal(toRelay.binding(t), relayOfAsker.binding(t)) || !bytes.Equal(fromRelay.binding(t), relayOfGiver.binding(t)) {
		t.Fatal("the test has no two connections")
	}
	p := newPair(t)
	asked, given := p.t, p.t
	asked.Binding, given.Binding = toRelay.binding(t), fromRelay.binding(t)
	byAsker, err := ProvePeer(p.asker, Asker, asked)
	if err != nil {
		t.Fatal(err)
	}
	byGiver, err := ProvePeer(p.giver, Giver, given)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyPeer(Asker, given, byAsker); !errors.Is(err, ErrRefused) {
		t.Errorf("the giver accepts the asker through a relay: %v", err)
	}
	if _, err := VerifyPeer(Giver, asked, byGiver); !errors.Is(err, ErrRefused) {
		t.Errorf("the asker accepts the giver through a relay: %v", err)
	}
}

func TestPeerKeyOfLowOrder(t *testing.T) {
	p := newPair(t)
	p.t.AskerKey = make([]byte, 32)
	if _, err := VerifyPeer(Asker, p.t, make([]byte, 64)); !errors.Is(err, ErrRefused) {
		t.Errorf("a key for which anybody can sign: %v", err)
	}
}

// For any message of a peer, nothing but the one right proof is accepted.
func FuzzVerifyPeer(f *testing.F) {
	asker, giver := ed25519.NewKeyFromSeed(sequence(0, 32)), ed25519.NewKeyFromSeed(sequence(32, 32))
	tr := PeerTranscript{Recover, cluster, sequence(0, 32), sequence(32, 32), sequence(64, 32), sequence(96, 32), "age1test",
		asker.Public().(ed25519.PublicKey), giver.Public().(ed25519.PublicKey)}
	right, err := ProvePeer(asker, Asker, tr)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(KeyClaim(tr.AskerKey), tr.AskerNonce, "age1test", right)
	f.Add(KeyClaim(tr.GiverKey), tr.AskerNonce, "age1test", right)
	f.Add("ed25519:", []byte{}, "", []byte{})
	f.Fuzz(func(t *testing.T, claim string, nonce []byte, recipient string, evidence []byte) {
		got := tr
		key, err := ParseKeyClaim(claim)
		if err != nil {
			if !errors.As(err, new(*FormatError)) {
				t.Fatalf("error of type %T: %v", err, err)
			}
			return
		}
		got.AskerKey, got.AskerNonce, got.Recipient = key, nonce, recipient
		selector, err := VerifyPeer(Asker, got, evidence)
		switch {
		case err == nil:
			if selector != "key:"+claim || !bytes.Equal(evidence, right) || !bytes.Equal(nonce, tr.AskerNonce) || recipient != tr.Recipient || !tr.AskerKey.Equal(key) {
				t.Fatalf("accepted %q %x %q %x", claim, nonce, recipient, evidence)
			}
		case !errors.Is(err, ErrRefused) && !errors.As(err, new(*TranscriptError)):
			t.Fatalf("error of type %T: %v", err, err)
		}
	})
}
