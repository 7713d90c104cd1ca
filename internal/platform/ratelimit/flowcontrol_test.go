package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// A key that is forgotten, as others came, may do its burst again; no more keys are remembered than
// the limiter is made for.
func TestPerKeyIsBounded(t *testing.T) {
	l := ratelimit.NewPerKey(1, 1, 2)
	for _, tc := range []struct {
		key  string
		want bool
	}{{"a", true}, {"a", false}, {"b", true}, {"a", false}, {"c", true}, {"a", false}, {"b", true}} {
		if got := l.Allow(tc.key, time.Time{}.Add(time.Hour)); got != tc.want {
			t.Errorf("allow(%s) = %v", tc.key, got)
		}
		if l.Len() > 2 {
			t.Fatalf("%d keys are remembered", l.Len())
		}
	}
}

// A caller that waits for a lock stops with its context.
func TestLocks(t *testing.T) {
	s := ratelimit.NewLocks()
	release, err := s.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Lock(ctx, "a"); err == nil {
		t.Fatal("locked twice")
	}
	release()
	if release, err = s.Lock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	release()
}

// A text that is longer, or no UTF-8, is shown so far as it is text.
func TestClip(t *testing.T) {
	for in, want := range map[string]string{"": "", "short": "short", "12345678": "12345678", "123456789": "12345678", "1234567\u00e9": "1234567?", "\xff": "?"} {
		if got := ratelimit.Clip(in, 8); got != want {
			t.Errorf("Clip(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestSource(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1:80":              "192.0.2.1",
		"192.0.2.1":                 "192.0.2.1",
		"[::ffff:192.0.2.1]:80":     "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:80":         "fe80::/64",
		"[2001:db8:1:2:ffff::9]:99": "2001:db8:1:2::/64", // the same customer
		"@":                         "@",
		"a pipe":                    "a pipe",
		"":                          "",
	} {
		if got := ratelimit.Source(addr); got != want {
			t.Errorf("Source(%q) = %q, want %q", addr, got, want)
		}
	}
}
