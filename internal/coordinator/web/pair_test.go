package web_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/coordinator/web"
	"github.com/fealty-io/fealty/internal/errcode"
)

// pair is a certificate of 127.0.0.1 that signed itself, with its key, in PEM.
type pair struct{ cert, key []byte }

func newPair(t testing.TB, from, until time.Time) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "web"}, NotBefore: from,
		NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pair{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})}
}

func (p pair) write(t testing.TB, dir string) {
	t.Helper()
	for name, data := range map[string][]byte{"tls.crt": p.cert, "tls.key": p.key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// A good pair in the files is adopted; any other leaves the last good one in use, and is told once.
func TestPairFollowsItsFiles(t *testing.T) {
	dir, now := t.TempDir(), start
	var refused []credential.Reason
	hour := func() pair { return newPair(t, start.Add(-time.Hour), start.Add(time.Hour)) }
	first, second, short := hour(), hour(), newPair(t, start.Add(-2*time.Hour), start.Add(-time.Hour))
	later := newPair(t, start.Add(time.Minute), start.Add(3*time.Hour))
	first.write(t, dir)
	cfg := web.PairConfig{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler),
		OnFailure: func(r credential.Reason) { refused = append(refused, r) }}
	p, err := web.OpenPair(cfg)
	if err != nil {
		t.Fatal(err)
	}
	serves := func(name string, want pair, reasons ...credential.Reason) {
		t.Helper()
		refused = nil
		for range 3 {
			p.Look(context.Background())
		}
		got, err := p.Certificate(nil)
		block, _ := pem.Decode(want.cert)
		if err != nil || !bytes.Equal(got.Certificate[0], block.Bytes) {
			t.Errorf("%s: another certificate is in use, %v", name, err)
		}
		if !slices.Equal(refused, reasons) {
			t.Errorf("%s: told %v, want %v", name, refused, reasons)
		}
	}
	serves("nothing changed", first)
	pair{second.cert, first.key}.write(t, dir)
	serves("half of a change", first, credential.KeyMismatch)
	second.write(t, dir)
	serves("both halves", second)
	pair{first.cert[:len(first.cert)/2], first.key}.write(t, dir)
	serves("a certificate that is cut short", second, credential.Malformed)
	pair{slices.Concat(first.cert, first.cert[:len(first.cert)/2]), first.key}.write(t, dir)
	serves("an issuer that is cut short", second, credential.Malformed)
	pair{first.cert, first.key[:len(first.key)/2]}.write(t, dir)
	serves("a key that is cut short", second, credential.Malformed)
	pair{first.cert, nil}.write(t, dir)
	serves("no key", second, credential.Malformed)
	pair{bytes.Repeat([]byte("x"), 1<<20), first.key}.write(t, dir)
	serves("a huge file", second, credential.Unreadable)
	if err := os.Remove(cfg.Cert); err != nil {
		t.Fatal(err)
	}
	serves("no file", second, credential.Unreadable)
	short.write(t, dir)
	serves("one that has ended", second, credential.Expired)
	later.write(t, dir)
	serves("one that has not begun", second, credential.Expired)
	now = now.Add(2 * time.Minute)
	serves("the same when it has begun", later)
	now = now.Add(24 * time.Hour)
	first.write(t, dir)
	serves("an old one for an old one", first)
}

// A coordinator does not start with files that are of no use, and does with a certificate that has
// ended: it is needed for more than the web.
func TestOpenPair(t *testing.T) {
	good, other := newPair(t, start, start.Add(time.Hour)), newPair(t, start, start.Add(time.Hour))
	for name, tc := range map[string]struct {
		pair pair
		now  time.Time
		want errcode.Code
	}{
		"good":        {good, start, ""},
		"ended":       {good, start.Add(2 * time.Hour), ""},
		"other's key": {pair{good.cert, other.key}, start, errcode.CredentialMismatch},
		"garbage":     {pair{[]byte("x"), good.key}, start, errcode.CredentialUnusable},
		"no key":      {pair{good.cert, []byte("x")}, start, errcode.CredentialUnusable},
	} {
		dir := t.TempDir()
		tc.pair.write(t, dir)
		_, err := web.OpenPair(web.PairConfig{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
			Now: func() time.Time { return tc.now }, Log: slog.New(slog.DiscardHandler)})
		if errcode.CodeOf(err) != string(tc.want) || tc.want == "" && err != nil {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	_, err := web.OpenPair(web.PairConfig{Cert: "/nowhere/tls.crt", Key: "/nowhere/tls.key", Now: time.Now,
		Log: slog.New(slog.DiscardHandler)})
	if errcode.CodeOf(err) != string(errcode.CredentialUnusable) {
		t.Errorf("no files: %v", err)
	}
}

// The certificate is replaced again and again while clients come all the time. None of them is turned away, each
// handshake is of one whole pair, and once a replacement is adopted the one before is served to nobody.
func TestPairRotatesUnderLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hour := func() pair { return newPair(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)) }
	believing := func(pairs ...pair) *x509.CertPool {
		pool := x509.NewCertPool()
		for _, one := range pairs {
			pool.AppendCertsFromPEM(one.cert)
		}
		return pool
	}
	served := hour()
	served.write(t, dir)
	p, err := web.OpenPair(web.PairConfig{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		Now: time.Now, Log: slog.New(slog.DiscardHandler), OnFailure: func(r credential.Reason) { t.Errorf("refused: %s", r) }})
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: p.Certificate})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer l.Close()
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	dial := func(pool *x509.CertPool) error {
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: pool})
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err = io.ReadFull(conn, make([]byte, 1))
		return err
	}
	// What clients believe changes between their calls, as it does in a client; what is served changes under them.
	var calling sync.RWMutex
	believed := believing(served)
	believe := func(pairs ...pair) {
		calling.Lock()
		defer calling.Unlock()
		believed = believing(pairs...)
	}
	call := func() error {
		calling.RLock()
		defer calling.RUnlock()
		return dial(believed)
	}
	var over atomic.Bool
	var calls atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for !over.Load() {
				if err := call(); err != nil {
					t.Errorf("a client is turned away: %v", err)
					return
				}
				calls.Add(1)
			}
		})
	}
	for range 8 {
		next := hour()
		believe(served, next) // first those who believe it
		next.write(t, dir)
		if err := p.Look(t.Context()); err != nil {
			t.Error(err)
		}
		believe(next)
		if dial(believing(served)) == nil {
			t.Error("the certificate of before is served still")
		}
		for began := calls.Load(); calls.Load() < began+4 && !t.Failed(); { // who come meanwhile
			if err := dial(believing(next)); err != nil {
				t.Error(err)
			}
		}
		served = next
	}
	over.Store(true)
	clients.Wait()
}
