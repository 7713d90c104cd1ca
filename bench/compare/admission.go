package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/url"
	"os"
	"time"

	"github.com/fealty-io/fealty/bench/compare/internal/part"
)

// admissions compare a join and a renewal with what no CA can do without: to read a request, to check its signature, and to
// sign a certificate. A coordinator also checks the proof, decides, keeps the member, the use of the token and the audit log on
// disk, and signs what the member may do. It is a process of its own on SQLite, and its connections are open.
func admissions(ctx context.Context, o options) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := &system{name: "Fealty"}
	defer func() { err = errors.Join(err, s.Stop()) }()
	if s.server, err = part.Start(ctx, "", nil, "serve-fealty"); err != nil {
		return nil, err
	}
	at, err := s.server.Tell(part.Order{Do: "start", Dir: dir})
	if err != nil {
		return nil, err
	}
	if s.agents, err = part.Start(ctx, "", nil, "agents-fealty"); err != nil {
		return nil, err
	}
	sign, err := signer()
	if err != nil {
		return nil, err
	}
	batch := max(1, o.streams/(o.rounds+1))
	limit := inProcess("crypto/x509 alone", batch, sign)
	for _, of := range []struct{ what, do string }{{"join over an open connection", "prepare"}, {"renew over an open connection", "renew"}} {
		if of.do == "renew" { // each member once, over its own connection
			if _, err := s.agents.Tell(part.Order{Do: "open", N: batch * (o.rounds + 1)}); err != nil {
				return nil, err
			}
		}
		sides := []side{s.costs(batch, func() error {
			_, err := s.agents.Tell(part.Order{Do: of.do, Target: at.Target, N: batch})
			return err
		}), limit}
		cost, err := turns(ctx, o.rounds, sides...)
		if err != nil {
			return nil, err
		}
		rows = append(rows, against(of.what, "µs CPU of the server", sides, cost)...)
	}
	return rows, nil
}

// signer returns what certifies one request again and again.
func signer() (func() error, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, err
	}
	if ca, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, new(x509.CertificateRequest), key)
	if err != nil {
		return nil, err
	}
	id, err := url.Parse("spiffe://prod.example/data/n1")
	if err != nil {
		return nil, err
	}
	return func() error {
		csr, err := x509.ParseCertificateRequest(request)
		if err != nil {
			return err
		}
		if err := csr.CheckSignature(); err != nil {
			return err
		}
		serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
		if err != nil {
			return err
		}
		_, err = x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: serial, URIs: []*url.URL{id},
			NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, ca, csr.PublicKey, caKey)
		return err
	}, nil
}
