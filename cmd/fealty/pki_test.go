package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/proof"
)

// operators are the PKIs of the scripts, by the script's folder and their names.
type operators struct {
	t    *testing.T
	mu   sync.Mutex
	made map[string]*pkitest.PKI // guarded by mu
}

func newOperators(t *testing.T) *operators {
	return &operators{t: t, made: make(map[string]*pkitest.PKI)}
}

// pki returns the PKI name of the script; the one called aged has a root that ended.
func (o *operators) pki(ts *testscript.TestScript, name string) *pkitest.PKI {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := ts.Getenv("WORK") + "/" + name
	p := o.made[key]
	if p == nil {
		p = pkitest.NewPKI(o.t, name, nil)
		if name == "aged" {
			p.Root = p.CA(o.t, name+" root", nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
			p.Intermediate = p.CA(o.t, name+" intermediate", &p.Root, nil)
		}
		o.made[key] = p
	}
	return p
}

// issue is pki PKI NAME DIR [expired|early|server|many-names|alone|p521|SPIFFE-ID]: it writes a certificate
// for the common name NAME to DIR as operators' tools do, tls.crt, tls.key and ca.crt,
// and the certificates of the CAs beside them.
func (o *operators) issue(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 || len(args) > 4 {
		ts.Fatalf("usage: pki PKI NAME DIR [expired|early|server|many-names|alone|p521|SPIFFE-ID]")
	}
	p, key, how := o.pki(ts, args[0]), pkitest.NewKey(o.t), strings.Join(args[3:], "")
	if how == "p521" {
		var err error
		key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
		ts.Check(err)
	}
	chain := p.Issue(o.t, key, func(c *x509.Certificate) {
		c.Subject.CommonName = args[1]
		switch how {
		case "", "alone", "p521":
		case "expired":
			c.NotAfter = time.Now().Add(-time.Second)
		case "early":
			c.NotBefore = time.Now().Add(time.Hour)
		case "server":
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		case "many-names":
			for i := range proof.MaxX509Selectors + 1 {
				c.DNSNames = append(c.DNSNames, fmt.Sprintf("n%d.example", i))
			}
		default:
			id, err := identity.Parse(args[3])
			if err != nil {
				ts.Fatalf("no such certificate: %s", args[3])
			}
			c.URIs = []*url.URL{id.URL()}
		}
	})
	if how == "alone" {
		chain = chain[:1]
	}
	dir := ts.MkAbs(args[2])
	ts.Check(os.MkdirAll(dir, 0o700))
	for name, data := range map[string][]byte{
		"tls.crt": pkitest.PEM(chain...), "tls.key": pkitest.KeyPEM(o.t, key), "ca.crt": pkitest.PEM(p.Root.Cert),
		"root.crt": pkitest.PEM(p.Root.Cert), "intermediate.crt": pkitest.PEM(p.Intermediate.Cert),
	} {
		ts.Check(os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
}
