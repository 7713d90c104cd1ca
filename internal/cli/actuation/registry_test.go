package actuation_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fealty-io/fealty/internal/cli/actuation"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
)

// shell runs commands against a real registry, and keeps what they say.
type shell struct {
	command.Shell
	conn      grpc.ClientConnInterface
	names     []string
	out       strings.Builder
	said      []string
	planned   []string
	confirmed int
	refuse    error // of Confirm
}

func (s *shell) Ask(do func(grpc.ClientConnInterface) error) error { return do(s.conn) }

func (s *shell) Print(r command.Result) error { return r.Show(&term.Page{W: &s.out, Width: 200}) }

func (s *shell) PrintList(names []string, r command.Result) error {
	s.names = names
	return s.Print(r)
}

func (s *shell) Say(text string, args ...any) { s.said = append(s.said, fmt.Sprintf(text, args...)) }
func (s *shell) Planned(what string)          { s.planned = append(s.planned, what) }
func (s *shell) Ago(time.Time) string         { return "just now" }

func (s *shell) Confirm(_ context.Context, _, _ string, yes bool) error {
	s.confirmed++
	if yes {
		return nil
	}
	return s.refuse
}

// run runs a command anew, as each invocation does.
func (s *shell) run(t *testing.T, noun, line string) error {
	t.Helper()
	all := map[string]func() []command.Command{"quota": actuation.Quotas, "provider": actuation.Providers}[noun]()
	words := strings.Fields(line)
	i := slices.IndexFunc(all, func(c command.Command) bool { return strings.HasPrefix(c.Use, words[0]) })
	flags := pflag.NewFlagSet(words[0], pflag.ContinueOnError)
	if all[i].Flags != nil {
		all[i].Flags(flags)
	}
	if err := flags.Parse(words[1:]); err != nil {
		t.Fatal(err)
	}
	s.out.Reset()
	s.names, s.said, s.planned = nil, nil, nil
	return all[i].Run(t.Context(), s, flags.Args())
}

func newShell(t *testing.T) *shell {
	t.Helper()
	d := coordinatortest.PoolDesk(t)
	l := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	d.C.Parts().Fencing.Registry.RegisterServices(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///registry",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			t.Error(err)
		}
	})
	return &shell{conn: conn, refuse: errors.New("nobody agreed")}
}

// A quota is kept and shown as a person typed it; a command that is tried keeps nothing.
func TestQuotas(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	const ask = "Which profiles have machines, their providers say: the log of a shard warns of a quota that none has"
	const first, newProfile = "no quota is of profile web yet: there is none at all. " + ask, "no quota is of profile db/1 yet: those there are, are of web. " + ask
	for _, tc := range []struct{ line, out, said, planned string }{
		{"list", "QUOTA", "", ""},
		{"put acme/web --machines 3 --dry-run", "acme/web", first, "acme may have 3 machines of profile web"},
		{"put acme/web --machines 3 --reason pilot", "pilot", first + "\nacme may have 3 machines of profile web", ""},
		{"put acme/web --machines 3", "pilot", "acme may have 3 machines of profile web, as before", ""},
		{"put acme/db/1 --machines 0 --yes", "acme/db/1", newProfile + "\nacme may have 0 machines of profile db/1", ""},
		{"list", "acme/web          3  just now", "", ""},
		{"delete acme/web --dry-run", "acme/web", "", "nothing bounds how many machines of profile web acme has"},
		{"delete acme/web", "acme/web", "nothing bounds how many machines of profile web acme has", ""},
	} {
		if err := s.run(t, "quota", tc.line); err != nil {
			t.Errorf("%s: %v", tc.line, err)
		}
		if said, planned := strings.Join(s.said, "\n"), strings.Join(s.planned, "\n"); said != tc.said || planned != tc.planned ||
			!strings.Contains(s.out.String(), tc.out) {
			t.Errorf("%s: said %q, planned %q, printed\n%s", tc.line, said, planned, s.out.String())
		}
	}
	// A number that cannot be is told, and is not taken for none.
	for line, want := range map[string]string{
		"put acme/web":                       "--machines cannot be missing",
		"put acme/web --machines -1":         "--machines cannot be -1",
		"put acme/web --machines -5":         "from 0 to 2147483647",
		"put acme/web --machines 4294967296": "--machines cannot be 4294967296",
	} {
		if err := s.run(t, "quota", line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
	// A bound that is lowered is one that somebody agreed to.
	for line, asks := range map[string]bool{"put acme/low --machines 9": false, "put acme/low --machines 10": false,
		"put acme/low --machines 4 --dry-run": false, "put acme/low --machines 8": true, "put acme/none --machines 0": true} {
		if err := s.run(t, "quota", "put acme/low --machines 9 --yes"); err != nil {
			t.Fatal(err)
		}
		if err := s.run(t, "quota", line); errors.Is(err, s.refuse) != asks {
			t.Errorf("%s: %v, and it asks: %v", line, err, asks)
		}
	}
	if err := s.run(t, "quota", "delete acme/low"); err != nil {
		t.Fatal(err)
	}
	if err := s.run(t, "quota", "list"); err != nil || !slices.Equal(s.names, []string{"acme/db/1"}) {
		t.Errorf("%v, %v", s.names, err)
	}
	if got := actuation.Quotas()[2].Complete(t.Context(), s); !slices.Equal(got, []string{"acme/db/1"}) {
		t.Errorf("TAB shows %v", got)
	}
	for line, want := range map[string]errcode.Code{
		"put acme --machines 1": errcode.BadValue, "put /web --machines 1": errcode.BadValue,
		"put acme/ --machines 1": errcode.BadValue, "put acme/web": errcode.BadValue,
		"put acme/web --machines 3000000000": errcode.BadValue, "delete acme": errcode.BadValue,
		"put acme/web --machines 2000000000": errcode.RequestField, "delete acme/none": errcode.NotFound,
	} {
		if err := s.run(t, "quota", line); code(err) != want {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}

func code(err error) errcode.Code {
	if e, ok := errcode.FromStatus(err); ok {
		return e.Code
	}
	e, _ := errors.AsType[*errcode.Error](err)
	if e == nil {
		return ""
	}
	return e.Code
}

func TestProviders(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for _, tc := range []struct{ line, out, said, planned string }{
		{"list", "PROVIDER", "", ""},
		{"put rack-1 --address 10.0.0.1:7460 --dry-run", "as it says", "", "shards act at provider rack-1, at 10.0.0.1:7460"},
		{"put rack-1 --address 10.0.0.1:7460", "provider/rack-1", "shards act at provider rack-1, at 10.0.0.1:7460", ""},
		{"put rack-1 --address 10.0.0.1:7460", "provider/rack-1", "shards act at provider rack-1, at 10.0.0.1:7460, as before", ""},
		{"put cloud --address [::1]:1 --price 0.25", "0.25 an hour", "shards act at provider cloud, at [::1]:1", ""},
		{"put cloud --address [::1]:1 --price 0", "0 an hour", "shards act at provider cloud, at [::1]:1", ""},
		{"list", "rack-1    10.0.0.1:7460  as it says", "", ""},
		{"delete rack-1 --dry-run", "rack-1", "", "shards act at provider rack-1 no more"},
		{"delete rack-1 --yes --reason moved", "rack-1", "shards act at provider rack-1 no more", ""},
	} {
		if err := s.run(t, "provider", tc.line); err != nil {
			t.Errorf("%s: %v", tc.line, err)
		}
		if said, planned := strings.Join(s.said, "\n"), strings.Join(s.planned, "\n"); said != tc.said || planned != tc.planned ||
			!strings.Contains(s.out.String(), tc.out) {
			t.Errorf("%s: said %q, planned %q, printed\n%s", tc.line, said, planned, s.out.String())
		}
	}
	// Nothing is taken away that nobody agreed to, and what is tried asks nobody.
	if s.confirmed != 1 {
		t.Errorf("somebody was asked %d times", s.confirmed)
	}
	if err := s.run(t, "provider", "delete cloud"); !errors.Is(err, s.refuse) {
		t.Errorf("without an agreement: %v", err)
	}
	if err := s.run(t, "provider", "list"); err != nil || !slices.Equal(s.names, []string{"cloud"}) {
		t.Errorf("%v, %v", s.names, err)
	}
	if got := actuation.Providers()[2].Complete(t.Context(), s); !slices.Equal(got, []string{"cloud"}) {
		t.Errorf("TAB shows %v", got)
	}
	for line, want := range map[string]errcode.Code{
		"put rack-1": errcode.BadValue, "put rack-1 --address nowhere": errcode.RequestField,
		"put a/b --address a:1": errcode.RequestField, "put p --address a:1 --price -1": errcode.RequestField,
		"delete none --yes": errcode.NotFound,
	} {
		if err := s.run(t, "provider", line); code(err) != want {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}
