package chaos_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/internal/store/storetest/proxytest"
	"github.com/fealty-io/fealty/test/chaos"
	"github.com/fealty-io/fealty/test/testlane"
)

// What stands around a fleet changes all the time: each credential by which coordinators log in at
// their store is replaced, old ones are refused, whoever reads the logs stops at random, and
// processes are told to read their files again. Nothing of the fleet ends or runs out, and while
// something is broken each coordinator says so.
func TestSurroundings(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	r := rand.New(rand.NewPCG(testlane.Seed(t), 4))
	logins := &logins{t: t, server: pgtest.New(t)}
	f := newFleet(t, logins.storage(3), 3, 3)
	f.green()
	pids := f.pids()
	stop := f.configure(r)
	defer stop()
	for end := time.Now().Add(chaosTime(t)); ; {
		// Meanwhile nobody reads the log of one agent, which reports that.
		resume := f.nodes[r.IntN(len(f.nodes))].reader.stop()
		f.broken(f.coords, "FE-U120")
		for _, one := range f.surroundings(r, logins) {
			began := time.Now()
			one.do()
			f.t.Logf("%s: %s, for %v", began.Format("15:04:05.000"), one.name, time.Since(began).Round(time.Millisecond))
		}
		resume()
		f.green()
		f.unread(f.coords[r.IntN(len(f.coords))])
		f.green()
		if !time.Now().Before(end) {
			break
		}
	}
	stop()
	f.ready()
	f.settled()
	f.green()
	f.unwatch()
	f.kept(f.written())
	f.judge()
	if now := f.pids(); !slices.Equal(pids, now) {
		t.Errorf("processes began anew: %v were there, and now %v", pids, now)
	}
	// A machine that is busy may take long to say that the store is away, and nobody renews until then.
	for _, away := range f.downs["store"] {
		if away.Length() > svidTTL/4 {
			t.Logf("the store was away for %v, so that identities may have run out", away.Length().Round(time.Second))
			return
		}
	}
	for _, p := range f.nodes {
		if n, longest := chaos.RanOut(f.looks[p.m.name]); n > 0 {
			t.Errorf("certificates of %s ran out %d times, for %v at most", p.m.name, n, longest)
		}
	}
}

// surrounding is something around a fleet that changes, and is well again when do returns.
type surrounding struct {
	name string
	do   func()
}

// surroundings returns each of them once, in an order of chance.
func (f *fleet) surroundings(r *rand.Rand, l *logins) []surrounding {
	out := []surrounding{
		{"the password, in the files first", func() { l.password(f.coords, func(files, server func()) { files(); server() }) }},
		{"the password, at the server first", func() {
			l.password(f.coords, func(files, server func()) {
				defer f.down("store")()
				server()
				l.end()
				f.broken(f.coords, "FE-S108", "FE-S103") // nobody can log in
				files()
			})
		}},
		{"the login of the keeper's program, in the files first", func() {
			l.keeper(f.coords, func(files, server func()) { files(); server() })
			f.tell(f.coords)
		}},
		{"the login of the keeper's program, at its server first", func() {
			l.keeper(f.coords, func(files, server func()) {
				server()
				f.tell(f.coords)                         // a program that opened the seed is asked seldom
				f.broken(f.coords, "FE-K101", "FE-K107") // the first if it should seal meanwhile
				files()
				f.tell(f.coords)
			})
		}},
		{"the certificates of the web", func() { l.webs(f, f.coords) }},
		{"the certificates of coordinators", func() { l.clients(f.coords) }},
		{"the certificate of the server", func() { l.serve(f.coords) }},
		{"everybody reads files again", func() { f.tell(append(slices.Clone(f.coords), f.nodes...)) }},
	}
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	for i, one := range out {
		out[i].do = func() { one.do(); f.ready(); f.settled(); f.green("FE-U120") }
	}
	return out
}

// tell has processes read their files again.
func (f *fleet) tell(all []*process) {
	f.t.Helper()
	for _, p := range all {
		if err := p.signal(syscall.SIGHUP); err != nil {
			f.t.Fatal(err)
		}
	}
}

// configure has people change config and the manifest until they are told to stop. A machine that joins and is
// never heard would need attention.
func (f *fleet) configure(r *rand.Rand) (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	w := &writer{f: f, name: "w1", r: rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))}
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			at := f.coords[w.r.IntN(len(f.coords))]
			// A command under way runs to its end: one that is cut off is one of unknown outcome.
			if w.r.IntN(4) == 0 {
				w.set(context.WithoutCancel(ctx), at)
			} else {
				w.config(context.WithoutCancel(ctx), at)
			}
			select {
			case <-time.After(time.Duration(100+w.r.IntN(500)) * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	return sync.OnceFunc(func() { cancel(); done.Wait() })
}

// pids returns the processes of a fleet, which start no other.
func (f *fleet) pids() (pids []int) {
	for _, p := range append(slices.Clone(f.coords), f.nodes...) {
		pids = append(pids, p.cmd.Process.Pid)
	}
	return pids
}

// health asks a coordinator by the command how the fleet is, and returns the codes of what needs attention.
// What it shows is not green while a code is among them.
func (f *fleet) health(p *process) (codes []string, err error) {
	out, status, said := f.ask(f.t.Context(), "status", "--socket", f.socket(p), "--timeout", "6s", "-o", "json")
	var shown struct {
		Phase    string `json:"phase"`
		Findings []struct {
			Code string `json:"code"`
		} `json:"findings"`
	}
	if err := json.Unmarshal([]byte(out), &shown); err != nil || shown.Phase == "" {
		return nil, fmt.Errorf("status of %s: %w, %d %s\n%s", p.m.name, err, status, said, out)
	}
	for _, finding := range shown.Findings {
		codes = append(codes, finding.Code)
	}
	if status != 0 && len(codes) == 0 {
		return nil, fmt.Errorf("status of %s is %d, and nothing needs attention: %s", p.m.name, status, said)
	}
	return codes, nil
}

// green waits until each coordinator says that nothing needs attention but what is expected.
func (f *fleet) green(but ...string) {
	f.t.Helper()
	for _, p := range f.coords {
		f.await(p.m.name+" to be green", func() error {
			codes, err := f.health(p)
			codes = slices.DeleteFunc(codes, func(c string) bool { return slices.Contains(but, c) })
			if err == nil && len(codes) > 0 {
				err = fmt.Errorf("it says %v", codes)
			}
			return err
		})
	}
}

// broken waits until each of some coordinators says one of some codes.
func (f *fleet) broken(coords []*process, any ...string) {
	f.t.Helper()
	for _, p := range coords {
		f.await(fmt.Sprintf("%s to say one of %v", p.m.name, any), func() error {
			codes, err := f.health(p)
			if err == nil && !slices.ContainsFunc(codes, func(c string) bool { return slices.Contains(any, c) }) {
				err = fmt.Errorf("it says %v", codes)
			}
			return err
		})
	}
}

// unread has the reader of a coordinator's log read no more until the coordinator says that something is broken.
func (f *fleet) unread(p *process) {
	f.t.Helper()
	resume := p.reader.stop()
	defer resume()
	f.broken([]*process{p}, "FE-U120")
}

// logins are the credentials by which coordinators log in at a PostgreSQL server: a password in a file, and a
// certificate. The server refuses who has only one of them, and the server's own has a root in a file. And they are what
// the program of the keeper logs in with, and what coordinators show to the web.
type logins struct {
	t        *testing.T
	server   *pgtest.Server
	database string
	root     []byte // of the server, in PEM
	n        int    // counts passwords, also those of the keeper's program
}

const loginRole = "fealty"

func (l *logins) storage(coordinators int) *storage {
	l.t.Helper()
	hba := "local all all trust\nhostssl all " + loginRole + " 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\nhost all postgres 127.0.0.1/32 scram-sha-256\n"
	name := filepath.Join(l.server.Data(), "pg_hba.conf")
	if err := os.WriteFile(name, []byte(hba), 0o600); err != nil { // it is there, and stays the server's
		l.t.Fatal(err)
	}
	l.root = l.server.ServeTLS(l.t)
	l.database = l.server.Database(l.t)
	l.exec("create role "+loginRole+" login", "create schema authorization "+loginRole)
	s := &storage{name: "postgres", readers: true}
	for range coordinators {
		s.ways = append(s.ways, proxytest.New(l.t, l.server.Addr()))
	}
	l.n++
	cert, key := pgtest.Certificate(l.t)
	l.trust(cert)
	l.exec("alter role " + loginRole + " password '" + l.secret() + "'")
	s.url = func(m *machine, i int) string {
		l.write(m, "passfile", l.passfile())
		l.write(m, "client.pem", string(cert))
		l.write(m, "client.key", string(key))
		l.write(m, "server-root.pem", string(l.root))
		in := func(name string) string { return filepath.Join(m.dir, name) }
		return "postgres://" + loginRole + "@" + s.ways[i].Addr() + "/" + l.database + "?sslmode=verify-full&passfile=" + in("passfile") +
			"&sslcert=" + in("client.pem") + "&sslkey=" + in("client.key") + "&sslrootcert=" + in("server-root.pem")
	}
	s.more = func(m *machine, listen string) []string {
		cert, key := pgtest.Certificate(l.t)
		l.pair(m, cert, key)
		in := func(name string) string { return filepath.Join(m.dir, name) }
		return []string{"--https-web", listen, "--https-web-cert", in("web.pem"), "--https-web-key", in("web.key")}
	}
	s.keeper = func(m *machine) string {
		path := filepath.Join(m.dir, "keeper")
		durabletest.WriteProgram(l.t, m.path("keeper"), fmt.Appendf(nil, keeperProgram, path))
		l.write(m, "keeper.login", l.secret())
		l.write(m, "keeper.server", l.secret())
		return path
	}
	return s
}

// keeperProgram logs in where it should, and encrypts badly: it swaps the case of bits, which is its own inverse.
const keeperProgram = `#!/bin/sh
cmp -s %[1]s.login %[1]s.server || { echo "the login is refused" >&2; exit 1; }
LC_ALL=C exec tr '\000-\177\200-\377' '\200-\377\000-\177'
`

func (l *logins) secret() string   { return fmt.Sprintf("secret-%d", l.n) }
func (l *logins) passfile() string { return "*:*:*:" + loginRole + ":" + l.secret() + "\n" }

func (l *logins) exec(statements ...string) { l.server.Exec(l.t, l.database, statements...) }

// end ends all connections of coordinators, so that each logs in anew.
func (l *logins) end() {
	l.exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = '" + loginRole + "'")
}

// write replaces a file of a machine.
func (l *logins) write(m *machine, name, text string) {
	l.t.Helper()
	path := m.path(name)
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		l.t.Fatal(err)
	}
}

// trust has the server believe clients' certificates by roots.
func (l *logins) trust(roots ...[]byte) {
	name := l.server.WriteFile(l.t, "clients.pem", slices.Concat(roots...))
	l.exec("alter system set ssl_ca_file = '"+name+"'", "select pg_reload_conf()")
}

// password replaces it in the files of coordinators and at the server.
func (l *logins) password(coords []*process, order func(files, server func())) {
	l.n++
	order(func() {
		for _, p := range coords {
			l.write(p.m, "passfile", l.passfile())
		}
	}, func() { l.exec("alter role " + loginRole + " password '" + l.secret() + "'") })
	l.end()
}

// keeper replaces what the keeper's program logs in with, in the files of coordinators and where it logs in.
func (l *logins) keeper(coords []*process, order func(files, server func())) {
	l.n++
	put := func(name string) func() {
		return func() {
			for _, p := range coords {
				l.write(p.m, name, l.secret())
			}
		}
	}
	order(put("keeper.login"), put("keeper.server"))
}

// pair replaces the certificate of the web. They are two files: what a coordinator reads in between does not fit.
func (l *logins) pair(m *machine, cert, key []byte) {
	l.write(m, "web.pem", string(cert))
	l.write(m, "web.key", string(key))
}

// webs replaces the certificates of the web, and waits until a reader that believes the new one alone is served.
func (l *logins) webs(f *fleet, coords []*process) {
	for _, p := range coords {
		cert, key := pgtest.Certificate(l.t)
		l.pair(p.m, cert, key)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(cert)
		f.await(p.m.name+" to serve the web by another certificate", func() error {
			conn, err := tls.Dial("tcp", p.web, &tls.Config{RootCAs: roots})
			if err == nil {
				err = conn.Close()
			}
			return err
		})
	}
}

// clients replaces the certificates of coordinators, and refuses those of before.
func (l *logins) clients(coords []*process) {
	cert, key := pgtest.Certificate(l.t)
	for _, p := range coords {
		l.write(p.m, "client.pem", string(cert))
		l.write(p.m, "client.key", string(key))
	}
	l.trust(cert)
	l.end()
}

// serve gives the server another certificate, by another root.
func (l *logins) serve(coords []*process) {
	cert, key := pgtest.Certificate(l.t)
	roots := func(text []byte) {
		for _, p := range coords {
			l.write(p.m, "server-root.pem", string(text))
		}
	}
	roots(slices.Concat(l.root, cert))
	l.server.WriteFile(l.t, "server.pem", cert)
	l.server.WriteFile(l.t, "server.key", key)
	l.exec("select pg_reload_conf()")
	l.root = cert
	roots(cert)
	l.end()
}
