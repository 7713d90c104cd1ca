// Package pemfile reads certificates and keys from the PEM text that people and their tools write: files of
// certificates, chains and keys, and fields of a manifest and of config records. Every place that takes such text
// reads it here, so that what one place takes, each takes.
//
//   - What stands around the blocks is for people and is passed over (RFC 7468 §2 and §5.2): comments, the attributes
//     of openssl pkcs12, the output of openssl x509 -text. A byte order mark of UTF-8 is passed over too.
//   - A block that begins and cannot be read is an error, wherever it stands: crypto/x509 and encoding/pem pass over it,
//     and somebody would be believed less, or more, than the file shows to who looks at it. The same goes for a line
//     that only looks like the beginning or the end of a block.
//   - A certificate that stands there twice counts once.
//   - A private key in a place for certificates is an error, and is never printed. No error quotes what is in a block.
//   - Size and number are bounded before anything is decoded.
//
// What Fealty itself writes and signs, or keeps in its own folders, has one spelling, and is read where it is written:
// package node/dir, package node/client, and a coordinator's enrolment key.
package pemfile

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// ErrPrivateKey is matched by the error for a private key in a place for certificates or public keys: whoever could
// read the text has the key, so that the key pair has to be replaced.
var ErrPrivateKey = errors.New("a private key where none belongs")

// ErrEncrypted is matched by the error for a private key under a passphrase, which nobody is asked for here.
var ErrEncrypted = errors.New("an encrypted private key")

// Error says what is wrong with a text, and where.
type Error struct {
	Line    int    // from 1; 0: of no single line
	Problem string // a clause such as "the block that begins here is cut short"; quotes nothing of a block
	Err     error  // ErrPrivateKey, ErrEncrypted or a parser's error for a certificate; may be nil
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Problem
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Problem)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Limits bound a text before it is read.
type Limits struct {
	Bytes  int // of the text
	Blocks int // that begin in it
}

const (
	begin = "-----BEGIN "

	certificate   = "CERTIFICATE"
	publicKey     = "PUBLIC KEY"
	privateSuffix = "PRIVATE KEY"
)

// block is a block, and the line on which it begins.
type block struct {
	*pem.Block
	line int
}

// lookalike is what an editor, a mail program or a cut leaves of a line that begins or ends a block.
var lookalike = regexp.MustCompile(`(?i)^[-\x{2010}-\x{2015}]+\s*(BEGIN|END)\s+([A-Z0-9.]+\s+)*(CERTIFICATE|KEY)\b`)

// blocks returns the blocks of text: all that begin in it, or an error.
func blocks(text []byte, most Limits) ([]block, error) {
	if len(text) > most.Bytes {
		return nil, &Error{Problem: fmt.Sprintf("it has %d bytes, and at most %d are read", len(text), most.Bytes)}
	}
	if n := bytes.Count(text, []byte(begin)); n > most.Blocks {
		return nil, &Error{Problem: fmt.Sprintf("%d blocks begin in it, and at most %d are read", n, most.Blocks)}
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	switch {
	case bytes.HasPrefix(text, []byte("\xff\xfe")), bytes.HasPrefix(text, []byte("\xfe\xff")):
		return nil, &Error{Problem: "it is UTF-16: save it as plain text, ASCII or UTF-8"}
	case len(text) > 1 && text[0] == 0x30 && text[1] >= 0x80: // a SEQUENCE with a long length (X.690 §8.1.3.5)
		return nil, &Error{Problem: "it is DER and not PEM: openssl x509 -inform der -in FILE makes PEM of it"}
	}
	var out []block
	for at, next := 0, 0; ; at = next {
		first := beginning(text, at)
		if err := around(text, at, first); err != nil {
			return nil, err
		}
		if first == len(text) {
			return out, nil
		}
		whole := text[first:beginning(text, first+len(begin))]
		b, after := pem.Decode(whole)
		used := len(whole) - len(after)
		if b == nil || bytes.Count(whole[:used], []byte(begin)) != 1 { // it passes over what it does not understand
			return nil, &Error{Line: lineOf(text, first), Problem: cutShort}
		}
		out = append(out, block{b, lineOf(text, first)})
		next = first + used
	}
}

const cutShort = "the block that begins here is cut short or damaged, or no line feed ends its last line"

// beginning returns where in text, from at, the next line is that begins a block; else the length of text.
func beginning(text []byte, at int) int {
	for at < len(text) {
		i := bytes.Index(text[at:], []byte(begin))
		if i < 0 {
			break
		}
		if at += i; at == 0 || text[at-1] == '\n' {
			return at
		}
		at += len(begin)
	}
	return len(text)
}

func lineOf(text []byte, at int) int { return 1 + bytes.Count(text[:at], []byte("\n")) }

// around refuses text from..to, which is no block, if a block was meant to begin or to end there. What stands behind
// other words on its line is a comment, such as a block that somebody took out of use.
func around(text []byte, from, to int) error {
	for at := from; at < to; {
		line, _, found := bytes.Cut(text[at:to], []byte("\n"))
		bare := bytes.TrimSpace(line)
		switch {
		case !found && len(bare) > 0 && bytes.HasPrefix([]byte(begin), bare): // as it is being written
			return &Error{Line: lineOf(text, at), Problem: cutShort}
		case lookalike.Match(bare):
			return &Error{Line: lineOf(text, at), Problem: "the line looks as if a block began or ended there, and none does: " +
				"five dashes stand on both sides of the words, and nothing else on the line"}
		}
		at += len(line) + 1
	}
	return nil
}

// Beside says what may stand beside the certificates of a text: it is passed over.
type Beside int

const (
	Nothing Beside = iota // certificates alone; a private key is an error that matches [ErrPrivateKey]
	Keys                  // private keys too: a chain and its key may share a file
	Blocks                // blocks of any type
)

// Certificates returns the certificates of text in their order, each once; at least one. private is how many blocks with
// a private key were passed over.
func Certificates(text []byte, most Limits, beside Beside) (certs []*x509.Certificate, private int, err error) {
	found, err := blocks(text, most)
	if err != nil {
		return nil, 0, err
	}
	for _, b := range found {
		isKey := strings.HasSuffix(b.Type, privateSuffix)
		switch {
		case b.Type == certificate:
		case beside != Nothing && isKey:
			private++
			continue
		case beside == Blocks, beside == Keys && b.Type == "EC PARAMETERS":
			continue
		case isKey:
			return nil, 0, &Error{Line: b.line, Problem: "a private key, which does not belong there: remove it, and replace that key pair, since whoever reads this has it", Err: ErrPrivateKey}
		case b.Type == "TRUSTED CERTIFICATE", b.Type == "X509 CERTIFICATE":
			return nil, 0, &Error{Line: b.line, Problem: "a certificate in a form of openssl alone: openssl x509 -in FILE makes the usual one of it"}
		case b.Type == "PKCS7", b.Type == "CMS":
			return nil, 0, &Error{Line: b.line, Problem: "certificates in a PKCS #7 block: openssl pkcs7 -print_certs -in FILE takes them out"}
		default:
			return nil, 0, &Error{Line: b.line, Problem: fmt.Sprintf("a block of type %.64q, and certificates are wanted", b.Type)}
		}
		if len(b.Headers) > 0 { // RFC 7468 §2: none are allowed
			return nil, 0, &Error{Line: b.line, Problem: "the block of a certificate has headers in it"}
		}
		c, err := x509.ParseCertificate(b.Bytes) // which refuses bytes behind it, too
		if err != nil {
			return nil, 0, &Error{Line: b.line, Problem: fmt.Sprintf("the certificate that begins here cannot be read: %v", err), Err: err}
		}
		if !slices.ContainsFunc(certs, c.Equal) {
			certs = append(certs, c)
		}
	}
	if len(certs) == 0 {
		return nil, 0, &Error{Problem: "it holds no certificate in PEM, from BEGIN CERTIFICATE to END CERTIFICATE"}
	}
	return certs, private, nil
}

// PrivateKey returns the one private key of text: PKCS #8, or what openssl writes for RSA and EC. Certificates beside it
// are passed over. The blocks that it decoded are overwritten; text is the caller's to clear.
//
// Errors: those that match [ErrEncrypted] for a key under a passphrase; none says more of a key than where it stands.
func PrivateKey(text []byte, most Limits) (crypto.Signer, error) {
	found, err := blocks(text, most)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, b := range found {
			clear(b.Bytes)
		}
	}()
	var key any
	for _, b := range found {
		var parsed any
		var err error
		switch b.Type {
		case certificate, "EC PARAMETERS":
			continue
		case "PRIVATE KEY":
			parsed, err = x509.ParsePKCS8PrivateKey(b.Bytes)
		case "EC PRIVATE KEY":
			parsed, err = x509.ParseECPrivateKey(b.Bytes)
		case "RSA PRIVATE KEY":
			parsed, err = x509.ParsePKCS1PrivateKey(b.Bytes)
		case "ENCRYPTED PRIVATE KEY":
			return nil, encrypted(b.line)
		case "OPENSSH PRIVATE KEY":
			return nil, &Error{Line: b.line, Problem: "a key in the form of OpenSSH, and PKCS #8 is wanted: openssl genpkey makes one"}
		case publicKey:
			return nil, &Error{Line: b.line, Problem: "a public key, and the private one is wanted"}
		default:
			return nil, &Error{Line: b.line, Problem: "a block that is no private key"}
		}
		switch {
		case b.Headers["DEK-Info"] != "":
			return nil, encrypted(b.line)
		case err != nil: // not wrapped: the parser may quote what it read
			return nil, &Error{Line: b.line, Problem: "the private key that begins here cannot be read"}
		case key != nil:
			return nil, &Error{Line: b.line, Problem: "a second private key, and one is wanted"}
		}
		key = parsed
	}
	signer, ok := key.(crypto.Signer)
	switch {
	case key == nil:
		return nil, &Error{Problem: "it holds no private key in PEM"}
	case !ok:
		return nil, &Error{Problem: "its private key is of a kind that does not sign"}
	}
	return signer, nil
}

func encrypted(line int) error {
	return &Error{Line: line, Problem: "its key is encrypted, and nobody is asked for a passphrase here: decrypt it, and let the file's mode protect it", Err: ErrEncrypted}
}

// ErrOtherKey is matched by the error for a private key that is not that of the certificate.
var ErrOtherKey = errors.New("the private key is not that of the first certificate: replace both together")

// KeyPair returns a chain and its key, as crypto/tls takes them: the leaf is the first certificate. What is wrong is of
// cert unless ofKey is set. Errors: [ErrOtherKey], and those of [Certificates] and [PrivateKey].
func KeyPair(cert, key []byte, most Limits) (pair tls.Certificate, ofKey bool, err error) {
	chain, _, err := Certificates(cert, most, Keys)
	if err != nil {
		return tls.Certificate{}, false, err
	}
	signer, err := PrivateKey(key, most)
	if err != nil {
		return tls.Certificate{}, true, err
	}
	if public, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(chain[0].PublicKey) {
		return tls.Certificate{}, true, ErrOtherKey
	}
	pair = tls.Certificate{PrivateKey: signer, Leaf: chain[0]}
	for _, c := range chain {
		pair.Certificate = append(pair.Certificate, c.Raw)
	}
	return pair, false, nil
}

// PublicKey is a public key, and the SubjectPublicKeyInfo that it was read from.
type PublicKey struct {
	Key crypto.PublicKey // ed25519.PublicKey, *ecdsa.PublicKey or *rsa.PublicKey
	DER []byte
}

// PublicKeys returns the public keys of text (RFC 7468 §13) in their order, each once; at least one: Ed25519, ECDSA or
// RSA. A private key is an error that matches [ErrPrivateKey].
func PublicKeys(text []byte, most Limits) ([]PublicKey, error) {
	found, err := blocks(text, most)
	if err != nil {
		return nil, err
	}
	var keys []PublicKey
	for _, b := range found {
		switch {
		case b.Type == publicKey && len(b.Headers) == 0:
		case strings.HasSuffix(b.Type, privateSuffix):
			return nil, &Error{Line: b.line, Problem: "a private key where a public one is wanted: remove it, and replace that key pair, since whoever reads this has it", Err: ErrPrivateKey}
		default:
			return nil, &Error{Line: b.line, Problem: fmt.Sprintf("a block of type %.64q, and a PUBLIC KEY is wanted", b.Type)}
		}
		key, err := x509.ParsePKIXPublicKey(b.Bytes) // which refuses bytes behind it, too
		if err != nil {
			return nil, &Error{Line: b.line, Problem: "the public key that begins here cannot be read"}
		}
		switch key.(type) {
		case ed25519.PublicKey, *ecdsa.PublicKey, *rsa.PublicKey:
		default:
			return nil, &Error{Line: b.line, Problem: "the key is neither Ed25519 nor ECDSA nor RSA"}
		}
		if !slices.ContainsFunc(keys, func(k PublicKey) bool { return bytes.Equal(k.DER, b.Bytes) }) {
			keys = append(keys, PublicKey{key, b.Bytes})
		}
	}
	if len(keys) == 0 {
		return nil, &Error{Problem: "it has no PEM block of type PUBLIC KEY"}
	}
	return keys, nil
}

// Plain reports whether text is blocks of certificates and nothing else, each once: what every release reads.
func Plain(text []byte) bool {
	var seen [][]byte
	for rest := bytes.TrimSpace(text); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		if !bytes.HasPrefix(rest, []byte(begin)) {
			return false
		}
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil || slices.ContainsFunc(seen, func(der []byte) bool { return bytes.Equal(der, b.Bytes) }) {
			return false
		}
		seen = append(seen, b.Bytes)
	}
	return true
}
