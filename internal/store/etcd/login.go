package etcd

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/platform/reload"
	"github.com/fealty-io/fealty/internal/store"
)

// login is how a process logs in. The files that the URL leads to (password-file, cert and key, ca) are read again for
// each connection, so that what somebody replaces is used without a restart. One that cannot be read whole is not
// used: what it held before is, until it can.
//
// A password cannot be replaced in the servers and in a file at the same moment, and members learn of another CA
// one after the other. So who is refused with what the files hold tries what a server let in last. That is for
// the client's own credential alone: a root that is gone from its file is not believed any more.
type login struct {
	address address
	log     *slog.Logger

	mu     sync.Mutex
	read   material    // what was read last, each file whole; guarded by mu
	unread error       // which of them cannot be used as they are now; guarded by mu
	worked *credential // what a server let in last; guarded by mu
}

// material is what a connection is made with.
type material struct {
	roots *x509.CertPool // nil: those of the system
	credential
}

// credential is by what a server knows who we are.
type credential struct {
	password     string
	certificates []tls.Certificate
}

func (c *credential) equal(o *credential) bool {
	return subtle.ConstantTimeCompare([]byte(c.password), []byte(o.password)) == 1 && c.sameCertificates(o)
}

func (c *credential) sameCertificates(o *credential) bool {
	return slices.EqualFunc(c.certificates, o.certificates, func(a, b tls.Certificate) bool {
		return slices.EqualFunc(a.Certificate, b.Certificate, slices.Equal)
	})
}

// newLogin reads what a leads to. Its errors are *[AddressError].
func newLogin(a address, log *slog.Logger) (*login, error) {
	l := &login{address: a, log: log}
	if err := l.readAgain(); err != nil {
		return nil, err
	}
	return l, nil
}

// readAgain reads all files, and keeps of each what it can. The caller has mu, or l to itself.
func (l *login) readAgain() error {
	roots, noRoots := l.address.roots()
	if noRoots == nil {
		l.read.roots = roots
	}
	certificates, noPair := l.address.certificates()
	if noPair == nil {
		l.read.certificates = certificates
	}
	password, noPassword := l.address.password()
	if noPassword == nil {
		l.read.password = password
	}
	for _, err := range []error{noRoots, noPair, noPassword} {
		if err != nil {
			return err
		}
	}
	return nil
}

// now returns what to make the next connection with, after it read all files again.
func (l *login) now() material {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.read.credential
	err := l.readAgain()
	if err != nil && (l.unread == nil || l.unread.Error() != err.Error()) {
		l.log.Warn("what the store's URL names cannot be used as it is now: what it named before is used",
			"store", l.address.name(), "err", err)
	}
	l.unread = err
	if !before.equal(&l.read.credential) {
		l.log.Info("the login of the store was replaced, and is used for each new connection", "store", l.address.name())
	}
	return l.read
}

// part has the files read when somebody says so, and tells what is new since it was asked last.
func (l *login) part() reload.Part {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.read
	return reload.Part{Name: "the login of " + l.address.name(), Read: func(context.Context) (string, error) {
		now := l.now()
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.unread != nil {
			return "", l.unread
		}
		if known.equal(&now.credential) && known.roots.Equal(now.roots) {
			return "", nil
		}
		known = now
		return "another one is used for each new connection", nil
	}}
}

// letIn notes that a server let in who showed c.
func (l *login) letIn(c credential) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.worked = &c
}

// trying is how often a connection to one member is tried while it refuses the credentials: with what the files hold,
// the certificate of before, the password of before, and once more, as the server may have replaced one meanwhile.
const trying = 4

// instead returns what to try next, if err says that a server may have refused what was tried; false if
// there is nothing else. What was refused alone is another one then.
func (l *login) instead(tried material, err error) (material, bool) {
	refused, certificate := errors.AsType[*certificateError](err)
	if !certificate && !isAnswer(err, errAuthFailed) {
		return material{}, false
	}
	next := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case certificate && !next.sameCertificates(&tried.credential):
	case certificate && l.worked != nil:
		next.certificates = l.worked.certificates
	case !certificate && next.password == tried.password && l.worked != nil:
		next.password = l.worked.password
		fallthrough
	case !certificate:
		next.certificates = tried.certificates // which were taken
	}
	if certificate && !refused.told && next.sameCertificates(&tried.credential) {
		return material{}, false // then something else ended it
	}
	return next, !next.equal(&tried.credential)
}

// secrets returns what nobody may be told.
func (l *login) secrets() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, s := range []*credential{&l.read.credential, l.worked} {
		if s != nil && s.password != "" {
			out = append(out, s.password)
		}
	}
	return out
}

// problem returns why the files cannot be used as they are now; nil if they can.
func (l *login) problem() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unread
}

// tlsConfig is how to make a connection to endpoint with m; nil means no TLS.
func (l *login) tlsConfig(endpoint string, m material) (*tls.Config, error) {
	if l.address.plain {
		return nil, nil
	}
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return nil, err
	}
	if l.address.serverName != "" {
		host = l.address.serverName
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: host, NextProtos: []string{"h2"}, RootCAs: m.roots, Certificates: m.certificates,
	}, nil
}

// certificateError says that a member ended a connection that was being made, because of the client's certificate:
// it was told so, or may have been.
type certificateError struct {
	err  error
	told bool
}

func (e *certificateError) Error() string { return e.err.Error() }
func (e *certificateError) Unwrap() error { return e.err }

// GRPCStatus has it taken for an answer: another member may do better.
func (e *certificateError) GRPCStatus() *status.Status {
	if e.told {
		return status.New(codes.Unauthenticated, e.err.Error())
	}
	return status.New(codes.Unavailable, e.err.Error())
}

// notMade returns why a connection was not made, as an answer of its member. secured says that it was to
// speak TLS.
func notMade(err error, secured bool) error {
	told := store.RefusesCertificate(err)
	if secured && (told || store.HungUp(err)) {
		return &certificateError{err, told}
	}
	return status.Error(codes.Unavailable, err.Error())
}
