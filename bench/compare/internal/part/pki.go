package part

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Peers have certificates as members of a cluster have them: P-256, and one CA between the root and them. These are their
// files.
const (
	RootFile      = "root.pem"
	issuerFile    = "issuer.pem" // the CA in between, and its key
	ServerFile    = "server.pem" // the chain
	ServerKeyFile = "server.key"
)

// WritePKI makes a root, an issuer and a server, and writes their files.
func WritePKI(dir string) error {
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(48 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, rootKey.Public(), rootKey)
	if err != nil {
		return err
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.SerialNumber, template.Subject.CommonName = big.NewInt(2), "issuer"
	issuer, err := x509.CreateCertificate(rand.Reader, template, root, key.Public(), rootKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, RootFile), certPEM(root.Raw), 0o600),
		os.WriteFile(filepath.Join(dir, issuerFile), append(certPEM(issuer), keyPEM(keyDER)...), 0o600)); err != nil {
		return err
	}
	i, err := LoadIssuer(dir)
	if err != nil {
		return err
	}
	server, err := i.Issue("server")
	if err != nil {
		return err
	}
	if keyDER, err = x509.MarshalPKCS8PrivateKey(server.PrivateKey); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, ServerFile), append(certPEM(server.Certificate[0]), certPEM(server.Certificate[1])...), 0o600),
		os.WriteFile(filepath.Join(dir, ServerKeyFile), keyPEM(keyDER), 0o600))
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func keyPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Issuer signs certificates of servers and clients alike.
type Issuer struct {
	tls.Certificate
	cert  *x509.Certificate
	roots *x509.CertPool
}

// LoadIssuer reads the issuer that WritePKI wrote.
func LoadIssuer(dir string) (*Issuer, error) {
	root, err := os.ReadFile(filepath.Join(dir, RootFile))
	if err != nil {
		return nil, err
	}
	i := &Issuer{roots: x509.NewCertPool()}
	if !i.roots.AppendCertsFromPEM(root) {
		return nil, fmt.Errorf("%s holds no certificate", RootFile)
	}
	if i.Certificate, err = tls.LoadX509KeyPair(filepath.Join(dir, issuerFile), filepath.Join(dir, issuerFile)); err != nil {
		return nil, err
	}
	i.cert, err = x509.ParseCertificate(i.Certificate.Certificate[0])
	return i, err
}

// Issue certifies a new key.
func (i *Issuer) Issue(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, i.cert, key.Public(), i.PrivateKey)
	return tls.Certificate{Certificate: [][]byte{der, i.Certificate.Certificate[0]}, PrivateKey: key}, err
}

// ServerTLS demands a certificate of each client, and hands out no tickets: a session that is resumed asks nobody whether
// its client is still believed.
func (i *Issuer) ServerTLS(dir string) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, ServerFile), filepath.Join(dir, ServerKeyFile))
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: i.roots,
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true}, err
}

// ClientTLS is for a client with a certificate.
func (i *Issuer) ClientTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: i.roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}
}
