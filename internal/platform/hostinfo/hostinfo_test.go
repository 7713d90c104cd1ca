package hostinfo_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fealty-io/fealty/internal/platform/hostinfo"
)

func TestClean(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		said, want hostinfo.Facts
	}{
		{"nothing", hostinfo.Facts{}, hostinfo.Facts{}},
		{"good", hostinfo.Facts{Host: "web-7.rack_2.example", OS: "linux/amd64", Addresses: []string{"10.0.0.7", "2001:DB8::7", "::ffff:10.0.0.7"}},
			hostinfo.Facts{Host: "web-7.rack_2.example", OS: "linux/amd64", Addresses: []string{"10.0.0.7", "2001:db8::7"}}},
		{"moves the cursor", hostinfo.Facts{Host: "a\x1b[2J", OS: "linux\n", Addresses: []string{"fe80::1%eth0", "x", "10.0.0.1\r"}}, hostinfo.Facts{}},
		{"other letters", hostinfo.Facts{Host: "wéb", OS: "linux\u202e"}, hostinfo.Facts{}},
		{"too long", hostinfo.Facts{Host: strings.Repeat("a", 254), OS: strings.Repeat("a", 65)}, hostinfo.Facts{}},
		{"too many", hostinfo.Facts{Addresses: strings.Fields(strings.Repeat("x ", 8) + "10.0.0.1")}, hostinfo.Facts{}},
	} {
		if got := hostinfo.Clean(c.said); cmp.Diff(c.want, got) != "" {
			t.Errorf("%s: %s", c.name, cmp.Diff(c.want, got))
		}
	}
	if here := hostinfo.Here(); cmp.Diff(hostinfo.Clean(here), here) != "" || here.OS == "" {
		t.Errorf("of this machine: %+v", here)
	}
	for addr, want := range map[string]string{"10.0.0.7:41": "10.0.0.7", "[2001:db8::7]:1": "2001:db8::7", "[::ffff:10.0.0.7]:1": "10.0.0.7", "@": "", "": ""} {
		if got := hostinfo.Source(addr); got != want {
			t.Errorf("source of %q: %q, want %q", addr, got, want)
		}
	}
}
