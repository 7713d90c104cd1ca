package workload_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/workload"
	"github.com/fealty-io/fealty/snapshot"
)

const cluster = "test.example"

var digits = strings.Repeat("0123456789abcdef", 4)

func number(n uint32) *uint32 { return &n }

func service(name string, params ...string) snapshot.Service {
	s := snapshot.Service{Name: name}
	for n := 0; n < len(params); n += 2 {
		s.Parameters = append(s.Parameters, snapshot.Parameter{Name: params[n], Value: params[n+1]})
	}
	return s
}

// A registration that cannot be read in full registers nobody.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2100)
	for _, tc := range []struct {
		name   string
		params []string
	}{
		{"no selector", []string{"spiffe:id", "a"}},
		{"only a ttl", []string{"spiffe:ttl", "1h"}},
		{"of a newer release", []string{"spiffe:uid", "7", "spiffe:pod", "x"}},
		{"the prefix alone", []string{"spiffe:", "x", "spiffe:uid", "7"}},
		{"uid blank", []string{"spiffe:uid", ""}},
		{"uid negative", []string{"spiffe:uid", "-1"}},
		{"uid with a sign", []string{"spiffe:uid", "+7"}},
		{"uid with zeros", []string{"spiffe:uid", "07"}},
		{"uid in hexadecimal", []string{"spiffe:uid", "0x7"}},
		{"uid of nobody at all", []string{"spiffe:uid", "4294967295"}},
		{"uid too large", []string{"spiffe:uid", "4294967296"}},
		{"uid by name", []string{"spiffe:uid", "root"}},
		{"gid", []string{"spiffe:gid", " 7"}},
		{"path relative", []string{"spiffe:path", "bin/x"}},
		{"path blank", []string{"spiffe:path", ""}},
		{"path with dots", []string{"spiffe:path", "/bin/../x"}},
		{"path with two slashes", []string{"spiffe:path", "/bin//x"}},
		{"path with a slash behind", []string{"spiffe:path", "/bin/"}},
		{"path with a newline", []string{"spiffe:path", "/bin/x\ny"}},
		{"path with a NUL", []string{"spiffe:path", "/bin/x\x00y"}},
		{"path too long", []string{"spiffe:path", "/" + long}},
		{"sha256 short", []string{"spiffe:sha256", digits[1:]}},
		{"sha256 in capitals", []string{"spiffe:sha256", strings.ToUpper(digits)}},
		{"sha256 of other letters", []string{"spiffe:sha256", "g" + digits[1:]}},
		{"container", []string{"spiffe:container", digits + "0"}},
		{"unit without a suffix", []string{"spiffe:unit", "billing"}},
		{"unit of a suffix alone", []string{"spiffe:unit", ".service"}},
		{"unit that is a slice", []string{"spiffe:unit", "a.slice"}},
		{"unit with a slash", []string{"spiffe:unit", "a/b.service"}},
		{"unit too long", []string{"spiffe:unit", long + ".service"}},
		{"path alone, which any user can run", []string{"spiffe:path", "/bin/x"}},
		{"sha256 alone", []string{"spiffe:sha256", digits}},
		{"ttl short", []string{"spiffe:uid", "7", "spiffe:ttl", "59s"}},
		{"ttl long", []string{"spiffe:uid", "7", "spiffe:ttl", "24h1s"}},
		{"ttl no duration", []string{"spiffe:uid", "7", "spiffe:ttl", "soon"}},
		{"ttl zero", []string{"spiffe:uid", "7", "spiffe:ttl", "0"}},
		{"id blank", []string{"spiffe:uid", "7", "spiffe:id", ""}},
		{"id with dots", []string{"spiffe:uid", "7", "spiffe:id", "a/../b"}},
		{"id with a slash behind", []string{"spiffe:uid", "7", "spiffe:id", "a/"}},
		{"id that is a whole one", []string{"spiffe:uid", "7", "spiffe:id", "spiffe://test.example/workload/a"}},
		{"id too long", []string{"spiffe:uid", "7", "spiffe:id", long}},
	} {
		got, faults := workload.Registrations(cluster, []snapshot.Service{service("billing", tc.params...),
			service("other", "spiffe:uid", "8")})
		if len(got) != 1 || got[0].Service != "other" || len(faults) != 1 || faults[0].Service != "billing" ||
			faults[0].Problem == "" || len(faults[0].Problem) > 4096 {
			t.Errorf("%s: registers %v, faults %v", tc.name, got, faults)
		}
	}
}

// A service without parameters of a workload registers none and is no fault; those that do are
// sorted, and have the name of the service and an hour if nobody says.
func TestRegistrations(t *testing.T) {
	t.Parallel()
	got, faults := workload.Registrations(cluster, []snapshot.Service{
		service("web", "spiffe:uid", "0", "port", "80"), service("plain", "port", "80", "spiffe", "x"),
		service("b", "spiffe:id", "a/b", "spiffe:unit", "b.service", "spiffe:ttl", "1d"),
		service("a", "spiffe:id", "a/b", "spiffe:path", "/", "spiffe:gid", "9"),
	})
	id := func(name string) identity.ID {
		out, err := identity.New(cluster, identity.Workload, name)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	want := []workload.Registration{
		{Service: "a", ID: id("a/b"), Selector: workload.Selector{Path: "/", GID: number(9)}, TTL: time.Hour},
		{Service: "b", ID: id("a/b"), Selector: workload.Selector{Unit: "b.service"}, TTL: 24 * time.Hour},
		{Service: "web", ID: id("web"), Selector: workload.Selector{UID: number(0)}, TTL: time.Hour},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b identity.ID) bool { return a == b })); diff != "" || len(faults) != 0 {
		t.Errorf("faults %v, (-want +got)\n%s", faults, diff)
	}
}

var whole = workload.Selector{UID: number(7), GID: number(8), Path: "/bin/x", SHA256: digits, Unit: "x.service",
	Container: digits}

// A process fits if it fits all that is set. A fact that is not known fits nothing.
func TestMismatch(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		edit func(s *workload.Selector, f *workload.Facts)
		want string // a part of why it does not; "": it does
	}{
		{"all of it", func(*workload.Selector, *workload.Facts) {}, ""},
		{"nothing is set", func(s *workload.Selector, _ *workload.Facts) { *s = workload.Selector{} }, "selects no process"},
		{"uid", func(_ *workload.Selector, f *workload.Facts) { f.UID = 0 }, "uid is 0, want 7"},
		{"gid", func(_ *workload.Selector, f *workload.Facts) { f.GID = 7 }, "gid is 7, want 8"},
		{"path", func(_ *workload.Selector, f *workload.Facts) { f.Path = "/bin/y" }, "path is /bin/y"},
		{"path not known", func(_ *workload.Selector, f *workload.Facts) {
			f.Path, f.Unread = "", map[string]string{"path": "no looking"}
		}, "path is not known (no looking)"},
		{"sha256", func(_ *workload.Selector, f *workload.Facts) { f.SHA256 = strings.Repeat("0", 64) }, "sha256 is 0000"},
		{"sha256 not known", func(_ *workload.Selector, f *workload.Facts) { f.SHA256 = "" }, "it has no sha256"},
		{"unit", func(_ *workload.Selector, f *workload.Facts) { f.Unit = "y.service" }, "unit is y.service"},
		{"no unit", func(_ *workload.Selector, f *workload.Facts) { f.Unit = "" }, "it has no unit"},
		{"container", func(_ *workload.Selector, f *workload.Facts) { f.Container = "x" }, "container is x"},
		{"no container", func(_ *workload.Selector, f *workload.Facts) { f.Container = "" }, "it has no container"},
		{"only uid 0", func(s *workload.Selector, f *workload.Facts) {
			*s, *f = workload.Selector{UID: number(0)}, workload.Facts{}
		}, ""},
		{"only a unit, and nothing known", func(s *workload.Selector, f *workload.Facts) {
			*s, *f = workload.Selector{Unit: "x.service"}, workload.Facts{}
		}, "it has no unit"},
	} {
		s := whole
		f := workload.Facts{PID: 1, UID: 7, GID: 8, Path: "/bin/x", SHA256: digits, Unit: "x.service", Container: digits}
		tc.edit(&s, &f)
		if got := s.Mismatch(f); tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
		if s.Fits(&f) != (tc.want == "") {
			t.Errorf("%s: Fits says otherwise", tc.name)
		}
	}
}

// An executable is read for those alone whom its hash could make a workload.
func TestNeedsHash(t *testing.T) {
	t.Parallel()
	f := workload.Facts{UID: 7, GID: 8, Path: "/bin/x", Unit: "x.service", Container: digits}
	for _, tc := range []struct {
		name string
		s    workload.Selector
		want bool
	}{
		{"all else fits", whole, true},
		{"nothing else is asked for", workload.Selector{SHA256: digits}, true},
		{"none is asked for", workload.Selector{UID: number(7)}, false},
		{"another user", workload.Selector{UID: number(9), SHA256: digits}, false},
		{"another path", workload.Selector{Path: "/bin/y", SHA256: digits}, false},
		{"nothing", workload.Selector{}, false},
	} {
		if got := tc.s.NeedsHash(&f); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

// A registration arrives at the node as the record has it.
func TestSettingsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		num := rapid.Ptr(rapid.Uint32Range(0, 1<<32-2), true)
		hash := rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[0-9a-f]{64}`))
		s := workload.Selector{
			UID: num.Draw(t, "uid"), GID: num.Draw(t, "gid"),
			Path:   rapid.OneOf(rapid.Just(""), rapid.StringMatching(`(/[a-z0-9 :é][a-z0-9.]{0,9}){1,5}`)).Draw(t, "path"),
			SHA256: hash.Draw(t, "sha256"), Container: hash.Draw(t, "container"),
			Unit: rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[a-z0-9:_.@\\-]{1,30}\.(service|scope)`)).Draw(t, "unit"),
		}
		if s.Fault() != "" {
			t.Skip()
		}
		id := rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[a-z0-9_-]{1,9}(/[A-Z0-9_-]{1,9}){0,3}`)).Draw(t, "id")
		ttl := time.Duration(rapid.IntRange(60, 86400).Draw(t, "ttl")) * time.Second
		if rapid.Bool().Draw(t, "default") {
			ttl = 0
		}
		params := s.Settings(id, ttl)
		got, faults := workload.Registrations(cluster, []snapshot.Service{{Name: "billing", Parameters: params}})
		if len(got) != 1 || len(faults) != 0 {
			t.Fatalf("%v became %v, %v", params, got, faults)
		}
		if id == "" {
			id = "billing"
		}
		if ttl == 0 {
			ttl = workload.DefaultTTL
		}
		if diff := cmp.Diff(s, got[0].Selector); diff != "" || got[0].ID.Name() != id || got[0].TTL != ttl {
			t.Errorf("id %s, ttl %s, %s", got[0].ID, got[0].TTL, diff)
		}
	})
}

// Of a process whose user and group are meant, the facts that tell the rest are wanted.
func TestAdds(t *testing.T) {
	t.Parallel()
	me, other := uint32(1000), uint32(1001)
	for _, tc := range []struct {
		s    workload.Selector
		want workload.Want
	}{
		{workload.Selector{UID: &me}, workload.Want{}},
		{workload.Selector{UID: &me, Path: "/bin/x"}, workload.Want{Path: true}},
		{workload.Selector{GID: &me, Unit: "x.service"}, workload.Want{Placed: true}},
		{workload.Selector{Container: strings.Repeat("a", 64)}, workload.Want{Placed: true}},
		{workload.Selector{UID: &me, SHA256: strings.Repeat("a", 64)}, workload.Want{}},
		{workload.Selector{UID: &other, Path: "/bin/x"}, workload.Want{}},
		{workload.Selector{UID: &me, GID: &other, Unit: "x.service"}, workload.Want{}},
	} {
		if got := tc.s.Adds(workload.Want{}, me, me); got != tc.want {
			t.Errorf("%+v: %+v, want %+v", tc.s, got, tc.want)
		}
		if got := tc.s.Adds(workload.Everything, me, me); got != workload.Everything {
			t.Errorf("%+v takes something away: %+v", tc.s, got)
		}
	}
}
