package chaos_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/internal/store/storetest/proxytest"
)

// storage is the store of a fleet, and what can be done to it.
type storage struct {
	name string
	url  func(m *machine, coordinator int) string
	ways []*proxytest.Proxy // from each coordinator

	// readers has all processes of the fleet write their logs to a pipe, and write much; and nothing of the
	// fleet needs attention by itself.
	readers bool
	// more puts files on the machine of a coordinator, and returns flags that name them; nil: there are none.
	more func(m *machine, listen string) (flags []string)
	// keeper puts the program of a keeper on a machine; nil: the keeper is a key file.
	keeper func(m *machine) (path string)

	// These are done to the store itself; none with SQLite, which is a file of the
	// coordinator's machine.
	kill, start, pause, resume func() error

	// readOnly has it take no writes, or take them again.
	readOnly func(bool) error
	// dump copies it, and returns what puts the copy back; direct is its address then.
	dump   func() (back func() error, err error)
	direct string
}

// level is how much the processes of a fleet log.
func (s *storage) level(usual string) string {
	if s.readers {
		return "debug"
	}
	return usual
}

func onSQLite(*testing.T, int) *storage {
	return &storage{name: "sqlite", url: func(m *machine, _ int) string { return "sqlite:" + filepath.Join(m.dir, "data", "store", "fealty.db") }}
}

func onPostgres(t *testing.T, coordinators int) *storage {
	t.Helper()
	server := pgtest.New(t)
	database := server.Database(t)
	s := &storage{
		name: "postgres", kill: server.Kill, start: server.Start, pause: server.Pause, resume: server.Resume, direct: server.URL(database),
	}
	s.url = func(_ *machine, i int) string { return server.URLVia(s.ways[i].Addr(), database) }
	psql := func(text []byte, args ...string) error {
		cmd := server.Command("psql", append(args, "--quiet", "--set=ON_ERROR_STOP=1", server.SocketURL(database))...)
		cmd.Stdin = bytes.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("psql: %w\n%s", err, out)
		}
		return nil
	}
	s.readOnly = func(on bool) error {
		return psql(fmt.Appendf(nil, "alter system set default_transaction_read_only = %t; select pg_reload_conf();", on))
	}
	s.dump = func() (func() error, error) {
		text, err := server.Command("pg_dump", "--clean", "--if-exists", server.SocketURL(database)).Output()
		return func() error { return psql(text, "--single-transaction") }, err
	}
	for range coordinators {
		s.ways = append(s.ways, proxytest.New(t, server.Addr()))
	}
	return s
}

func onEtcd(t *testing.T, coordinators int) *storage {
	t.Helper()
	server := etcdtest.New(t, etcdtest.Options{})
	s := &storage{name: "etcd", kill: server.Kill, start: server.Start, pause: server.Members[0].Pause, resume: server.Members[0].Resume}
	s.url = func(_ *machine, i int) string { return server.URLVia(s.ways[i].Addr(), "/chaos") }
	for range coordinators {
		s.ways = append(s.ways, proxytest.New(t, server.Members[0].Addr()))
	}
	return s
}

// all does several things, whatever becomes of each.
func all(do ...func() error) error {
	var errs []error
	for _, f := range do {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}
