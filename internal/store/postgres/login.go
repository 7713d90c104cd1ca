package postgres

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fealty-io/fealty/internal/platform/reload"
	"github.com/fealty-io/fealty/internal/store"
)

// login is how a process logs in. The files that the URL and the environment lead to (passfile,
// sslcert, sslkey, sslrootcert, servicefile) are read again for each connection, so that what
// somebody replaces is used without a restart. What cannot be read whole is not used: the files
// of before are, until it can.
//
// A password cannot be replaced in the server and in a file at the same moment. In between the
// server refuses one of the two; so who is refused with what the files hold tries what the
// server let in last, and the other way round. That is for the client's own credential alone:
// a root that is gone from its file is not believed any more.
type login struct {
	url  string // may hold a password
	name string // of the database, for the log
	log  *slog.Logger

	mu      sync.Mutex
	read    *pgx.ConnConfig // what was read last, whole; guarded by mu
	unread  error           // why what is there now cannot be read; guarded by mu
	worked  *credential     // what a server let in last; guarded by mu
	at      time.Time       // when it did; guarded by mu
	refused time.Time       // when a server refused what the files hold, if worked is to be tried; guarded by mu
}

// replacing is how long what a server let in or refused counts as news: it refused what the files
// hold, and lets in what they held before; or the other way round.
const replacing = 5 * time.Second

// credential is by what a server knows who we are.
type credential struct {
	user, password string
	certificates   []tls.Certificate
}

func credentialOf(c *pgconn.Config) *credential {
	out := &credential{user: c.User, password: c.Password}
	for _, t := range configsOf(c) {
		if t != nil && len(t.Certificates) > 0 {
			out.certificates = t.Certificates // one file for all hosts
			break
		}
	}
	return out
}

// configsOf returns the TLS settings of each way to try; nil is one without TLS.
func configsOf(c *pgconn.Config) []*tls.Config {
	out := []*tls.Config{c.TLSConfig}
	for _, f := range c.Fallbacks {
		out = append(out, f.TLSConfig)
	}
	return out
}

// sameRoots reports whether the server's certificate is verified by the same roots.
func sameRoots(a, b *pgconn.Config) bool {
	return slices.EqualFunc(configsOf(a), configsOf(b), func(a, b *tls.Config) bool {
		return a == nil && b == nil || a != nil && b != nil && a.RootCAs.Equal(b.RootCAs)
	})
}

func (c *credential) equal(o *credential) bool {
	return c.user == o.user && subtle.ConstantTimeCompare([]byte(c.password), []byte(o.password)) == 1 &&
		c.sameCertificates(o)
}

func (c *credential) sameCertificates(o *credential) bool {
	return slices.EqualFunc(c.certificates, o.certificates, func(a, b tls.Certificate) bool {
		return slices.EqualFunc(a.Certificate, b.Certificate, slices.Equal)
	})
}

// put makes config log in as c.
func (c *credential) put(config *pgconn.Config) {
	config.User, config.Password = c.user, c.password
	for _, t := range configsOf(config) {
		if t != nil {
			t.Certificates = c.certificates
		}
	}
}

// newLogin reads what url leads to. Its errors are those of parse.
func newLogin(url string, log *slog.Logger) (*login, error) {
	config, name, err := parse(url)
	if err != nil {
		return nil, err
	}
	return &login{url: url, name: name, log: log, read: config}, nil
}

// database returns which database of the server it logs in to. It stays the same.
func (l *login) database() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read.Database
}

// readAgain reads all files, and returns why what they hold now cannot be used: then what they held before is.
func (l *login) readAgain() error {
	now, _, err := parse(l.url)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil && now.Database != l.read.Database:
		err = errors.New("a file of services names another database: start the program again to open that one")
	case err == nil && now.Password == "" && l.read.Password != "":
		// The driver takes a passfile that is gone, is being written or has no line for this
		// server for one that says that no password is needed.
		err = errors.New("the passfile is gone, or has no password for this server and user any more")
		now.Password = l.read.Password
		l.read = now
	}
	if told := err != nil && l.unread == nil; told {
		l.log.Warn("what the store's URL names cannot be used as it is now: what it named before is used",
			"store", l.name, "err", err)
	}
	l.unread = err
	if err == nil {
		before := credentialOf(&l.read.Config)
		l.read = now
		if !before.equal(credentialOf(&now.Config)) {
			l.refused = time.Time{}
			l.log.Info("the login of the store was replaced, and is used for each new connection", "store", l.name)
		}
	}
	return err
}

// part has the files read when somebody says so, and tells what is new since it was asked last.
func (l *login) part() reload.Part {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.read
	return reload.Part{Name: "the login of " + l.name, Read: func(context.Context) (string, error) {
		if err := l.readAgain(); err != nil {
			return "", err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		same := credentialOf(&known.Config).equal(credentialOf(&l.read.Config)) && sameRoots(&known.Config, &l.read.Config)
		known = l.read
		if same {
			return "", nil
		}
		return "another one is used for each new connection", nil
	}}
}

// config returns how to make the next connection, after it read all files again.
func (l *login) config(ctx context.Context) *pgx.ConnConfig {
	_ = l.readAgain() // it is told
	l.mu.Lock()
	defer l.mu.Unlock()
	config := l.read.Copy()
	if chosen, ok := ctx.Value(choosing{}).(*credential); ok {
		chosen.put(&config.Config)
	} else if l.worked != nil && time.Since(l.refused) < replacing {
		l.worked.put(&config.Config)
	}
	return config
}

// letIn notes that a server let config in.
func (l *login) letIn(config *pgconn.Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.worked, l.at = credentialOf(config), time.Now()
}

// trying is how often a connection is tried while servers refuse the credentials: with either, and once
// more with the first, as the server may have replaced one for the other in between.
const trying = 3

// instead returns the credential to try next, if err says that a server may have refused the one that
// was tried; nil if there is no other.
func (l *login) instead(err error) *credential {
	connect, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok || !refusesLogin(err) && !store.HungUp(err) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	used, files := credentialOf(connect.Config), credentialOf(&l.read.Config)
	switch {
	case l.worked == nil:
		return nil
	case used.equal(l.worked) && l.worked.equal(files):
		if time.Since(l.at) < replacing { // it may have been replaced in the server while this one was on its way
			return files
		}
		return nil
	case store.HungUp(err) && l.worked.sameCertificates(files):
		return nil
	case used.equal(files):
		l.refused = time.Now()
		return l.worked
	}
	l.refused = time.Time{}
	return files
}

// choosing marks the context of a connection that is to be made with a [*credential].
type choosing struct{}

// with returns ctx for a connection that logs in as c.
func (c *credential) with(ctx context.Context) context.Context {
	return context.WithValue(ctx, choosing{}, c)
}

// secrets returns what nobody may be told.
func (l *login) secrets() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []string{l.url, l.read.Password}
	if l.worked != nil {
		out = append(out, l.worked.password)
	}
	return out
}

// problem returns why the files cannot be used as they are now; nil if they can.
func (l *login) problem() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unread
}

// refusesLogin reports whether err says that a server does not let in who asks: by a SQLSTATE, or by an
// alert of TLS about the client's certificate.
func refusesLogin(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(pg.Code, invalidAuthorization)
	}
	return store.RefusesCertificate(err)
}
