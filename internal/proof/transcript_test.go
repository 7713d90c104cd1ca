package proof

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// sequence returns n bytes that count up from first.
func sequence(first, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(first + i)
	}
	return b
}

// The values were computed by another program from the documentation. If one of
// them changes, nodes of two releases no longer understand each other.
func TestGoldenDigests(t *testing.T) {
	d, err := Transcript{Candidate, "prod.example", sequence(0, 32), sequence(32, 32), sequence(64, 44)}.Digest()
	if want := "a15fa331606bebb353eaa2b5b97433db7a9e8f8daf69035dad61d5eaa60d6a6dd6bd0aa9545a7bf70aa28636dd5aa65840ef8e3488be45d91418b76700ee7520"; err != nil || hex.EncodeToString(d[:]) != want {
		t.Errorf("Transcript: %x, %v; want %s", d, err, want)
	}
	d, err = SetupTranscript{sequence(0, 32), sequence(32, 32), []byte("cluster: prod.example\n"), nil}.Digest()
	if want := "4f1f3c2464b66695fe1eb2dff35d1b6bee03055737fed6914d3e68b476b2a879d9fcce83a885971dddf7a86ea185ff4b0d8c13d89f6d31371755e56e3b79acb6"; err != nil || hex.EncodeToString(d[:]) != want {
		t.Errorf("SetupTranscript: %x, %v; want %s", d, err, want)
	}
}

func TestDigestTakesEveryField(t *testing.T) {
	tr := newTranscript(t)
	original, err := tr.Digest()
	if err != nil {
		t.Fatal(err)
	}
	changes(t, &tr, func(field, change string) {
		if d, err := tr.Digest(); err == nil && d == original {
			t.Errorf("the digest does not tell another %s (%s)", field, change)
		}
	})
	s := newSetupTranscript(t)
	original, err = s.Digest()
	if err != nil {
		t.Fatal(err)
	}
	changes(t, &s, func(field, change string) {
		if d, err := s.Digest(); err == nil && d == original {
			t.Errorf("the setup digest does not tell another %s (%s)", field, change)
		}
	})
}

func TestDigestRefusesAnIncompleteTranscript(t *testing.T) {
	for name, change := range map[string]func(*Transcript){
		"no role":       func(tr *Transcript) { tr.Role = "" },
		"unknown role":  func(tr *Transcript) { tr.Role = "CANDIDATE" },
		"no cluster":    func(tr *Transcript) { tr.Cluster = "" },
		"long cluster":  func(tr *Transcript) { tr.Cluster = string(make([]byte, 256)) },
		"no nonce":      func(tr *Transcript) { tr.Nonce = nil },
		"short nonce":   func(tr *Transcript) { tr.Nonce = tr.Nonce[1:] },
		"long nonce":    func(tr *Transcript) { tr.Nonce = append(tr.Nonce, 0) },
		"no binding":    func(tr *Transcript) { tr.Binding = nil },
		"short binding": func(tr *Transcript) { tr.Binding = tr.Binding[1:] },
		"long binding":  func(tr *Transcript) { tr.Binding = append(tr.Binding, 0) },
		"no key":        func(tr *Transcript) { tr.PublicKey = nil },
		"short key":     func(tr *Transcript) { tr.PublicKey = tr.PublicKey[:43] },
		"long key":      func(tr *Transcript) { tr.PublicKey = make([]byte, MaxPublicKeyBytes+1) },
	} {
		tr := newTranscript(t)
		change(&tr)
		if d, err := tr.Digest(); !errors.As(err, new(*TranscriptError)) || d != [64]byte{} {
			t.Errorf("%s: Digest = %x, %v", name, d, err)
		}
	}
}

// link is one side of a TLS connection after its handshake, with the role of who
// opened it or not.
type link struct{ conn *tls.Conn }

func (l link) binding(t *testing.T) []byte {
	t.Helper()
	b, err := Binding(l.conn.ConnectionState())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// connect makes a TLS connection over loopback, client first.
func connect(t *testing.T, maxVersion uint16) (client, server link) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var g errgroup.Group
	var accepted net.Conn
	g.Go(func() (err error) { accepted, err = listener.Accept(); return err })
	dialed, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	cert := selfSigned(t)
	pool := x509.NewCertPool()
	pool.AddCert(cert.Leaf)
	client.conn = tls.Client(dialed, &tls.Config{RootCAs: pool, ServerName: "seed", MaxVersion: maxVersion, SessionTicketsDisabled: true})
	server.conn = tls.Server(accepted, &tls.Config{Certificates: []tls.Certificate{cert}, MaxVersion: maxVersion, SessionTicketsDisabled: true})
	t.Cleanup(func() { client.conn.Close(); server.conn.Close() })
	deadline := time.Now().Add(time.Minute) // a hanging peer fails the test, not the run
	client.conn.SetDeadline(deadline)
	server.conn.SetDeadline(deadline)
	g.Go(func() error { return server.conn.HandshakeContext(t.Context()) })
	if err := client.conn.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key := newP256(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"seed"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// send and receive carry one message behind its length.
func send(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

func receive(r io.Reader, v any) error {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return err
	}
	data := make([]byte, min(binary.BigEndian.Uint32(n[:]), 64<<10))
	if _, err := io.ReadFull(r, data); err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// answer is what a candidate sends: its proof and its key (in a CSR, really).
type answer struct {
	Evidence  Evidence
	PublicKey []byte
}

// candidate answers the challenge on c.
func candidate(ctx context.Context, c *tls.Conn, p Prover, key []byte) error {
	var nonce []byte
	if err := receive(c, &nonce); err != nil {
		return err
	}
	binding, err := Binding(c.ConnectionState())
	if err != nil {
		return err
	}
	e, err := p.Prove(ctx, Transcript{Candidate, cluster, nonce, binding, key})
	if err != nil {
		return err
	}
	return send(c, answer{e, key})
}

// seed challenges whoever is on c, and verifies the answer.
func seed(ctx context.Context, c *tls.Conn, v Verifier, nonce []byte) (Proven, error) {
	if err := send(c, nonce); err != nil {
		return Proven{}, err
	}
	var a answer
	if err := receive(c, &a); err != nil {
		return Proven{}, err
	}
	binding, err := Binding(c.ConnectionState())
	if err != nil {
		return Proven{}, err
	}
	return NewRegistry(v).Verify(ctx, Transcript{Candidate, cluster, nonce, binding, a.PublicKey}, a.Evidence)
}

func TestDirectProofOverTLS(t *testing.T) {
	for _, s := range schemes(t) {
		t.Run(s.name, func(t *testing.T) {
			client, server := connect(t, tls.VersionTLS13)
			key := spki(t, newP256(t).Public())
			var g errgroup.Group
			g.Go(func() error { return candidate(t.Context(), client.conn, s.prover, key) })
			p, err := seed(t.Context(), server.conn, s.verifier, random32(t))
			if err := g.Wait(); err != nil {
				t.Fatalf("candidate: %v", err)
			}
			if err != nil || !reflect.DeepEqual(p.Selectors(), s.want.selectors) || !bytes.Equal(p.PublicKey(), key) {
				t.Fatalf("seed: %+v, %v", p, err)
			}
		})
	}
}

// A man in the middle whom the candidate believes (a stolen or mistaken trust
// bundle) passes on nonce and proof between its two connections.
func TestManInTheMiddle(t *testing.T) {
	for _, s := range schemes(t) {
		for _, own := range []bool{false, true} {
			name := s.name + "/forwards everything"
			if own {
				name = s.name + "/puts in its own key"
			}
			t.Run(name, func(t *testing.T) {
				client, middleIn := connect(t, tls.VersionTLS13)
				middleOut, server := connect(t, tls.VersionTLS13)
				if bytes.Equal(client.binding(t), server.binding(t)) {
					t.Fatal("two connections share a binding")
				}
				var g errgroup.Group
				g.Go(func() error {
					return candidate(t.Context(), client.conn, s.prover, spki(t, newP256(t).Public()))
				})
				g.Go(func() error {
					var nonce []byte
					if err := receive(middleOut.conn, &nonce); err != nil {
						return err
					}
					if err := send(middleIn.conn, nonce); err != nil {
						return err
					}
					var a answer
					if err := receive(middleIn.conn, &a); err != nil {
						return err
					}
					if own {
						a.PublicKey = spki(t, newP256(t).Public())
					}
					return send(middleOut.conn, a)
				})
				p, err := seed(t.Context(), server.conn, s.verifier, random32(t))
				if gerr := g.Wait(); gerr != nil {
					t.Fatalf("the proof did not get through: %v", gerr)
				}
				if !errors.Is(err, ErrRefused) || !p.IsZero() {
					t.Fatalf("seed: %+v, %v; want a refusal", p, err)
				}
			})
		}
	}
}

func TestBinding(t *testing.T) {
	client, server := connect(t, tls.VersionTLS13)
	b := client.binding(t)
	if !bytes.Equal(b, server.binding(t)) {
		t.Error("the two ends of a connection have different bindings")
	}
	if len(b) != BindingBytes || bytes.Equal(b, make([]byte, BindingBytes)) {
		t.Errorf("binding %x", b)
	}
	other, _ := connect(t, tls.VersionTLS13)
	if bytes.Equal(b, other.binding(t)) {
		t.Error("two connections share a binding")
	}

	old, _ := connect(t, tls.VersionTLS12)
	_, server12 := connect(t, tls.VersionTLS12)
	unfinished := client.conn.ConnectionState()
	unfinished.HandshakeComplete = false
	for name, cs := range map[string]tls.ConnectionState{
		"none":               {},
		"TLS 1.2":            old.conn.ConnectionState(),
		"TLS 1.2, server":    server12.conn.ConnectionState(),
		"handshake not done": unfinished,
	} {
		b, err := Binding(cs)
		if missing, ok := errors.AsType[*NoBindingError](err); !ok || b != nil || missing.Version != cs.Version {
			t.Errorf("%s: Binding = %x, %v", name, b, err)
		}
	}
}

func newSetupTranscript(t testing.TB) SetupTranscript {
	t.Helper()
	return SetupTranscript{random32(t), random32(t), []byte("cluster: prod.example\n"), nil}
}

func TestSetupProof(t *testing.T) {
	token := newSetupToken(t)
	key := token.PublicKey()
	tr := newSetupTranscript(t)
	evidence, err := token.Prove(tr)
	if err != nil {
		t.Fatal(err)
	}
	if err := VerifySetup(key, tr, evidence); err != nil {
		t.Fatal(err)
	}
	changed := tr
	changes(t, &changed, func(field, change string) {
		if err := VerifySetup(key, changed, evidence); err == nil {
			t.Errorf("accepted for another %s (%s)", field, change)
		}
	})

	moved := token
	moved.KeyHash[0]++
	movedEvidence, err := moved.Prove(tr)
	if err != nil {
		t.Fatal(err)
	}
	// The same key over the other kind of transcript, with all parts it shares.
	join, err := NewKeyProver(token.privateKey()).Prove(t.Context(), Transcript{Candidate, cluster, tr.Nonce, tr.Binding, spki(t, key)})
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"another token's key":     VerifySetup(newSetupToken(t).PublicKey(), tr, evidence),
		"no token any more":       VerifySetup(nil, tr, evidence),
		"another coordinator":     VerifySetup(key, tr, movedEvidence),
		"a join proof":            VerifySetup(key, tr, join.Evidence),
		"no evidence":             VerifySetup(key, tr, nil),
		"malleated":               VerifySetup(key, tr, malleate(t, nil, evidence)),
		"longer":                  VerifySetup(key, tr, append(evidence, 0)),
		"the key as its evidence": VerifySetup(key, tr, key),
	} {
		if err != errSetupRefused || !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want the one refusal", name, err)
		}
	}
	hash := sha256.Sum256(tr.Manifest)
	byHash := SetupTranscript{Nonce: tr.Nonce, Binding: tr.Binding, Hash: hash[:]}
	if err := VerifySetup(key, byHash, evidence); err != nil {
		t.Errorf("the hash does not stand for the manifest: %v", err)
	}
	for _, bad := range []SetupTranscript{{tr.Nonce, tr.Binding, tr.Manifest, hash[:]}, {tr.Nonce, tr.Binding, nil, hash[:31]}} {
		if err := VerifySetup(key, bad, evidence); !errors.As(err, new(*TranscriptError)) {
			t.Errorf("verified a manifest of %d bytes with a hash of %d: %v", len(bad.Manifest), len(bad.Hash), err)
		}
	}
	for i := range reflect.TypeFor[SetupTranscript]().NumField() {
		if i == 3 {
			continue // the hash, which the manifest stands for
		}
		bad := tr
		reflect.ValueOf(&bad).Elem().Field(i).SetZero()
		if _, err := token.Prove(bad); !errors.As(err, new(*TranscriptError)) {
			t.Errorf("proved without field %d: %v", i, err)
		}
		if err := VerifySetup(key, bad, evidence); !errors.As(err, new(*TranscriptError)) {
			t.Errorf("verified without field %d: %v", i, err)
		}
	}
}
