package identity_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

func TestIdentified(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	id := a.ID(t, identity.Shard, "s")
	chain, _ := a.Issue(t, id)
	for _, tc := range []struct {
		name string
		peer identity.Peer
		want string // in a log
	}{
		{"nothing", identity.Peer{}, "insecure"},
		{"an address alone", identity.Peer{Addr: "192.0.2.1:1"}, "insecure"},
		{"a unix socket", identity.Peer{Local: &identity.Local{UID: 0}}, "insecure"},
		{"an id", identity.Peer{ID: id, Leaf: chain[0]}, "identified"},
		{"an error", identity.Peer{Err: identity.ErrNoIdentity, Leaf: chain[0]}, "unidentified"},
		{"an error beside an id", identity.Peer{ID: id, Err: identity.ErrNoIdentity, Leaf: chain[0]}, "unidentified"},
		{"an error without a leaf", identity.Peer{Err: identity.ErrNoIdentity}, "unidentified"},
		{"a leaf without an id", identity.Peer{Leaf: chain[0]}, "unidentified"},
	} {
		if got := tc.peer.LogValue().Group()[0].Value.String(); got != tc.want || tc.peer.Identified() != (tc.want == "identified") {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
		if got := identity.FromContext(identity.NewContext(context.Background(), tc.peer)); got != tc.peer {
			t.Errorf("%s: the context carries %+v", tc.name, got)
		}
	}
	if got := identity.FromContext(context.Background()); got != (identity.Peer{}) {
		t.Errorf("a context without a peer: %v", got)
	}
}

// A peer in a log line is short, and shows who it is and nothing of its certificate.
func TestPeerInLog(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	chain, _ := a.Issue(t, a.ID(t, identity.Shard, "s"))
	v, err := a.Bundle().Verify(chain, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p := v.Peer("192.0.2.1:1")
	p.Local = &identity.Local{UID: 7, GID: 8, PID: 9}
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("call", "peer", p)
	for _, want := range []string{"peer.standing=identified", "peer.id=spiffe://prod.example/shard/s", "peer.addr=192.0.2.1:1", "peer.key=" + p.Key.String(), "peer.uid=7"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
	if out.Len() > 400 {
		t.Errorf("%d bytes: %s", out.Len(), out.String())
	}
}

// A peer's certificate cannot fill a log or forge a line in it.
func TestErrorsAreClipped(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	w := newWorld(t)
	uri := "https://evil.example/" + strings.Repeat("a", 6000)
	chain, _ := a.IssueRaw(t, func(c *x509.Certificate) { c.ExtraExtensions = append(c.ExtraExtensions, pkitest.AltNames(uri)) })
	v, err := a.Bundle().Verify(chain, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	f := w.apart(t, mesh)
	f.Issuer = commonName(t, "x\nlevel=ERROR "+strings.Repeat("b", 6000))
	c, err := x509.ParseCertificate(f.sign(t))
	if err != nil {
		t.Fatal(err)
	}
	_, refusal := w.bundle.Verify([]*x509.Certificate{w.leaf, c}, time.Now())
	for _, err := range []error{v.IDErr, refusal} {
		if err == nil || len(err.Error()) > 600 || strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of %d bytes: %v", len(err.Error()), err)
		}
	}
}
