package pkitest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
)

// Subject is a source, and the hands that change what it reads.
type Subject struct {
	Source credential.Source

	// Rotate puts other good material of the same identity in place, and returns its leaf. Nil:
	// the source cannot change.
	Rotate func(t testing.TB) *x509.Certificate

	// Restate puts what is in use in place once more. Nil: that cannot be done.
	Restate func(t testing.TB)

	// Bad is what may come in place of good material.
	Bad []Bad

	// Failure says why what is in place is not in use. Nil where there is no Bad.
	Failure func() error

	// Stop ends what follows on behalf of the source. Nil: nothing does.
	Stop func()

	// Asks says that Current itself looks, so that it finds what is new after Stop too.
	Asks bool

	// Log returns what the source has logged. Nil: it logs nothing.
	Log func() string
}

// Bad is something that no source puts in use.
type Bad struct {
	Name   string
	Reason credential.Reason
	Put    func(t testing.TB)
}

// patience is how long a source may take to see what is in place, on a machine that is busy.
const patience = 2 * time.Minute

// rotations is how often material changes under those who use it.
const rotations = 5

// Run runs all cases, each with a source of its own, which has good material.
func Run(t *testing.T, open func(t *testing.T) *Subject) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, *Subject)
	}{
		{"steady", steady}, {"follows", follows}, {"keeps the last good", keeps}, {"concurrent use", concurrent},
		{"a context that ended", cancelled}, {"nothing after its end", stopped}, {"no key is printed", secret},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func (s *Subject) current(t testing.TB) *credential.Material {
	t.Helper()
	m, err := s.Source.Current(t.Context())
	if err != nil || m == nil {
		t.Fatalf("Current = %v, %v", m, err)
	}
	return m
}

// await asks the source until ok, as its users do.
func (s *Subject) await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	end := time.NewTimer(patience)
	defer end.Stop()
	for {
		s.current(t)
		if ok() {
			return
		}
		select {
		case <-end.C:
			if s.Failure != nil {
				t.Logf("Failure = %v", s.Failure())
			}
			t.Fatalf("%s: not within %s", what, patience)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// rotate puts new material in place and waits until it is in use.
func (s *Subject) rotate(t testing.TB) {
	t.Helper()
	leaf := s.Rotate(t)
	s.await(t, "new material is in use", func() bool { return s.current(t).Chain()[0].Equal(leaf) })
}

// spoil puts bad material in place and waits until it was refused.
func (s *Subject) spoil(t testing.TB, b Bad) {
	t.Helper()
	b.Put(t)
	s.await(t, b.Name+" is refused as "+string(b.Reason), func() bool {
		e, ok := errors.AsType[*credential.MaterialError](s.Failure())
		return ok && e.Reason == b.Reason
	})
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// steady: while nothing changes, the answer does not, and nobody is woken.
func steady(t *testing.T, s *Subject) {
	before, changed := s.current(t), s.Source.Changed()
	if (changed == nil) != (s.Rotate == nil) {
		t.Fatalf("Changed = %v, of a source that can change: %v", changed, s.Rotate != nil)
	}
	if s.Restate != nil {
		s.Restate(t)
	}
	if len(s.Bad) > 0 {
		s.spoil(t, s.Bad[0]) // so that what came before it was seen
	}
	for range 3 {
		if m := s.current(t); m.Fingerprint() != before.Fingerprint() || m.ID() != before.ID() {
			t.Fatalf("%v became %v", before, m)
		}
	}
	if closed(changed) {
		t.Error("Changed, and nothing did")
	}
}

// follows: each change is seen, and those who wait are woken.
func follows(t *testing.T, s *Subject) {
	if s.Rotate == nil {
		return
	}
	seen := map[[32]byte]bool{s.current(t).Fingerprint(): true}
	for range 3 {
		changed, before := s.Source.Changed(), s.current(t)
		s.rotate(t)
		if !closed(changed) {
			t.Error("other material, and not Changed")
		}
		m := s.current(t)
		if m.ID() != before.ID() {
			t.Errorf("%v became %v", before.ID(), m.ID())
		}
		if seen[m.Fingerprint()] {
			t.Error("other material has a fingerprint of before")
		}
		seen[m.Fingerprint()] = true
		if closed(s.Source.Changed()) {
			t.Error("Changed again, and nothing did")
		}
	}
}

// keeps: whatever comes in place of good material, that stays in use, the reason is told, and
// what is good later is put in use without help.
func keeps(t *testing.T, s *Subject) {
	for _, b := range s.Bad {
		before, changed := s.current(t), s.Source.Changed()
		s.spoil(t, b)
		if m := s.current(t); m.Fingerprint() != before.Fingerprint() {
			t.Errorf("%s: %v became %v", b.Name, before, m)
		}
		if closed(changed) {
			t.Errorf("%s: Changed, and nothing did", b.Name)
		}
		s.rotate(t)
		if !closed(changed) || s.Failure() != nil {
			t.Errorf("after %s: Changed %v, Failure = %v", b.Name, closed(changed), s.Failure())
		}
	}
}

// concurrent: whoever asks while material changes gets parts that belong together.
func concurrent(t *testing.T, s *Subject) {
	stop := make(chan struct{})
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			for !closed(stop) {
				changed := s.Source.Changed()
				m, err := s.Source.Current(context.Background())
				if err != nil {
					t.Errorf("Current = %v", err)
					return
				}
				if !m.Key().Public().(*ecdsa.PublicKey).Equal(m.Chain()[0].PublicKey) {
					t.Error("key and certificate of different materials")
				}
				if v, err := m.Bundle().Verify(m.Chain(), time.Now()); err != nil || v.ID != m.ID() {
					t.Errorf("the bundle says %v, %v of the chain beside it", v.ID, err)
				}
				_ = fmt.Sprint(m)
				select {
				case <-changed:
				case <-stop:
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	for range rotations {
		if s.Rotate != nil {
			s.rotate(t)
		}
	}
	close(stop)
	users.Wait()
}

// cancelled: a context that ended makes nobody wait, and changes nothing.
func cancelled(t *testing.T, s *Subject) {
	before := s.current(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		switch m, err := s.Source.Current(ctx); {
		case err == nil && m != nil && m.Fingerprint() == before.Fingerprint():
		case errors.Is(err, context.Canceled):
		default:
			t.Errorf("Current = %v, %v", m, err)
		}
	}()
	select {
	case <-answered:
	case <-time.After(patience):
		t.Fatal("Current waits, and its context ended")
	}
	s.current(t)
}

// stopped: what has ended tells nobody anything, and what was in use is no surprise.
func stopped(t *testing.T, s *Subject) {
	if s.Stop == nil {
		return
	}
	before := s.current(t)
	s.Stop()
	changed := s.Source.Changed()
	s.Rotate(t)
	if closed(changed) {
		t.Error("Changed after the end")
	}
	m, err := s.Source.Current(t.Context())
	if err == nil && !s.Asks && m.Fingerprint() != before.Fingerprint() {
		t.Errorf("after the end %v became %v", before, m)
	}
	if err == nil && m == nil {
		t.Error("neither material nor an error")
	}
	s.Stop() // may be called again
}

// secret: no private key shows, however the source, its material, errors and log are printed.
func secret(t *testing.T, s *Subject) {
	var said strings.Builder
	show := func(values ...any) {
		for _, v := range values {
			fmt.Fprintf(&said, "%v %+v %#v %s %q %x %d\n", v, v, v, v, v, v, v)
			if j, err := json.Marshal(v); err == nil {
				said.Write(j)
			}
		}
	}
	var keys []*ecdsa.PrivateKey
	look := func() {
		m := s.current(t)
		keys = append(keys, m.Key().(*ecdsa.PrivateKey))
		show(m, []any{m}, struct{ M any }{m})
		if s.Failure != nil {
			show(s.Failure())
		}
	}
	look()
	for _, b := range s.Bad {
		s.spoil(t, b)
		look()
		s.rotate(t)
		look()
	}
	if s.Log != nil {
		said.WriteString(s.Log())
	}
	if s.Stop != nil {
		s.Stop() // a printer takes no lock
	}
	show(s.Source, []any{s.Source})
	text := strings.ToLower(said.String())
	for _, k := range keys {
		d, err := k.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		part := d[8:24]
		for name, form := range map[string]string{
			"hex": hex.EncodeToString(part), "bytes": strings.Trim(fmt.Sprint(part), "[]"),
			"go":     strings.Trim(fmt.Sprintf("%#v", part)[len("[]byte{"):], "}"),
			"number": new(big.Int).SetBytes(d).String(),
			"base64": base64.StdEncoding.EncodeToString(d)[:24], "raw": string(part),
			"file": base64.StdEncoding.EncodeToString(pkcs8)[48:80],
		} {
			if strings.Contains(text, strings.ToLower(form)) {
				t.Errorf("a private key shows as %s", name)
			}
		}
	}
	if bytes.Contains([]byte(text), []byte("private key-----")) {
		t.Error("a private key shows in PEM")
	}
}
