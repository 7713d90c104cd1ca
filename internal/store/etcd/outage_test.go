package etcd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/test/wait"
)

// TestOutages: why the servers do not do what is asked is told apart, with their own words, and is over by itself.
// That they have no space is in TestFull.
func TestOutages(t *testing.T) {
	c := etcdtest.New(t, etcdtest.Options{})
	file := filepath.Join(t.TempDir(), "password")
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const secret = "hunter2-and-more"
	change := users(t, c, "/mine/", secret)
	do(nil, os.WriteFile(file, []byte(secret), 0o600))
	opts := impatient // servers make passwords slow to guess
	opts.Timeout = 3 * time.Second
	s := openAt(t, fmt.Sprintf("etcd://fealty@%s/mine/a?tls=off&password-file=%s", c.Addrs(), file), opts)
	want := func(what string, err error, outage store.Outage, says string) {
		t.Helper()
		out, ok := errors.AsType[*store.OutageError](err)
		if !ok || out.Outage != outage || !strings.Contains(out.Said, says) || strings.Contains(out.Said, secret) || out.Said == "" ||
			len(out.Said) > store.MaxSaidBytes || errors.Is(err, store.ErrUnknownOutcome) {
			t.Errorf("%s: %v: outage %v, says %q", what, err, store.OutageOf(err), out)
		}
	}
	calls := func(outage store.Outage, says string) {
		t.Helper()
		_, err := s.Get(t.Context(), "k")
		want("Get", err, outage, says)
		_, err = s.Commit(t.Context(), put("k", "v"))
		want("Commit", err, outage, says)
	}
	mustCommit(t, s, put("k", "v"))

	change("another one")
	calls(store.LoginRefused, "authentication failed")
	do(nil, os.WriteFile(file, []byte("another one"), 0o600))
	wait.Until(t, "another login", func() bool { _, err := s.Commit(t.Context(), put("k", "2")); return err == nil })

	do(nil, c.Stop())
	calls(store.Unreachable, "")
	do(nil, c.Start())
	wait.Until(t, "the servers", func() bool { _, err := s.Commit(t.Context(), put("k", "3")); return err == nil })
}
