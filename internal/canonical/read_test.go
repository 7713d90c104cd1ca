package canonical_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/canonical"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/go-json-experiment/json/jsontext"
)

// read reads in, all of it.
func read(in string, walk func(*canonical.Codec)) (*canonical.Codec, error) {
	c := canonical.NewReader(in)
	walk(c)
	return c, c.Finish()
}

// A string is read if and only if it is the one spelling that jsontext gives its value; as that value; and what it
// holds that is secret is what a search of the whole value finds.
func FuzzText(f *testing.F) {
	for _, in := range []string{
		`""`, `"a"`, `"Dépêche-toi \"now\""`, `"\u00e9"`, `"\n"`, `"\u000a"`, `"a`, `"\"`, "\"\x7f\"", "\"\x1f\"", "\"\xff\"", `"\ud800"`, `"a"b`,
		`"postgres://app:hunter@db.example/app"`, `"x \"password=y\""`, `"\"age-secret-key-1qq"`, `"\\"`, `"/"`, `"\/"`,
	} {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		var got string
		c, err := read(in, func(c *canonical.Codec) { c.Text(&got, 1<<20) })
		value, wrong := jsontext.AppendUnquote(nil, in)
		plain := string(value)
		again, unwritable := jsontext.AppendQuote(nil, plain)
		taken := wrong == nil && unwritable == nil && string(again) == in
		if taken != (err == nil) || taken && got != plain {
			t.Fatalf("%q: %q, %v; it is %q, taken: %v", in, got, err, plain, taken)
		}
		if !taken {
			return
		}
		odd := len(in) != len(plain)+2 || strings.ContainsFunc(plain, func(r rune) bool { return r > 0x7f || 'A' <= r && r <= 'Z' || strings.ContainsRune("_=@ ", r) })
		if want := snapshot.FindSecret(plain, odd); c.Secret() != want {
			t.Fatalf("%q holds %q, want %q", in, c.Secret(), want)
		}
		if all, err := read("["+in+","+in+"]", func(c *canonical.Codec) {
			var names []string
			c.Names(&names, 2, 1<<20)
			if c.Err() == nil && !slices.Equal(names, []string{plain, plain}) {
				t.Fatalf("%q", names)
			}
		}); err != nil || all.Secret() != c.Secret() {
			t.Fatalf("in a list: %v, %q", err, all.Secret())
		}
	})
}

// Times are those of time.Parse, in the length of their form.
func FuzzInstant(f *testing.F) {
	for _, in := range []string{
		"2026-11-30T07:00:00Z", "2024-02-29T23:59:59Z", "2023-02-29T00:00:00Z", "2026-04-31T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-00T00:00:00Z",
		"2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z", "2026-01-01T00:00:60Z", "0001-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "2026-01-01 00:00:00Z",
		"2026-01-01T0:00:00.0", "2026-1-01T00:00:00ZZ", "9999-12-31T23:59:59Z", "2026-01-01T00:00:00z", "-026-01-01T00:00:00Z", "2026-01-01T00:00:00", "2100-02-29T00:00:00Z",
	} {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		literal, err := jsontext.AppendQuote(nil, in)
		if err != nil {
			return
		}
		var got time.Time
		_, err = read(string(literal), func(c *canonical.Codec) { c.Instant(&got) })
		want, wrong := time.Parse(canonical.TimeLayout, in)
		if taken := wrong == nil && len(in) == len(canonical.TimeLayout) && !want.IsZero(); taken != (err == nil) || taken && got != want {
			t.Fatalf("%q: %v, %v; want %v, %v", in, got, err, want, wrong)
		}
	})
}

// Each day that there is, and those beside it.
func TestInstants(t *testing.T) {
	t.Parallel()
	for year := 1896; year < 2110; year++ {
		for month := range 14 {
			for day := range 33 {
				in := fmt.Sprintf("%04d-%02d-%02dT12:34:56Z", year, month, day)
				var got time.Time
				_, err := read(`"`+in+`"`, func(c *canonical.Codec) { c.Instant(&got) })
				if want, wrong := time.Parse(canonical.TimeLayout, in); (err == nil) != (wrong == nil) || err == nil && got != want {
					t.Fatalf("%s: %v, %v; want %v, %v", in, got, err, want, wrong)
				}
			}
		}
	}
}

func FuzzParseHex(f *testing.F) {
	f.Add("00ff")
	f.Add("00fF")
	f.Add("0g")
	f.Add("\x80\xff")
	f.Fuzz(func(t *testing.T, s string) {
		got := make([]byte, len(s)/2)
		want, err := hex.DecodeString(s)
		if taken := err == nil && s == strings.ToLower(s); taken != canonical.ParseHex(got, s) || taken && string(got) != string(want) {
			t.Fatalf("%q: %x, want %x, %v", s, got, want, err)
		}
	})
}

// word is a string with a type of its own.
type word string

// A list of strings is read as any list is: the same ones, or none of them for the same reason.
func FuzzNames(f *testing.F) {
	for _, in := range []string{`[]`, `["a"]`, `["a","b"]`, `["a","b","c"]`, `["a",]`, `["a" ,"b"]`, `["aaaa"]`, `[`, `["a"`, `null`, `[1]`, `["a"]]`} {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		var names, plain []string
		var words []word
		_, err := read(in, func(c *canonical.Codec) { c.Names(&names, 2, 3) })
		_, alike := read(in, func(c *canonical.Codec) { canonical.Words(c, &words, 2, 3) })
		_, want := read(in, func(c *canonical.Codec) {
			canonical.List(c, &plain, 2, func(c *canonical.Codec, s *string) { c.Text(s, 3) })
		})
		if fmt.Sprint(err) != fmt.Sprint(want) || fmt.Sprint(alike) != fmt.Sprint(want) {
			t.Fatalf("%q: %v and %v, want %v", in, err, alike, want)
		}
		if err != nil {
			return
		}
		if !slices.Equal(names, plain) || !slices.EqualFunc(words, plain, func(w word, s string) bool { return string(w) == s }) {
			t.Fatalf("%q: %q and %q, want %q", in, names, words, plain)
		}
		var loose []string
		if json.Unmarshal([]byte(in), &loose) != nil || !slices.Equal(loose, names) {
			t.Fatalf("%q: %q, to others %q", in, names, loose)
		}
	})
}

// A list that was read is nobody else's room, however many are read after it.
func TestNamesShareNoRoom(t *testing.T) {
	t.Parallel()
	const lists = 1000
	all := make([][]string, lists)
	in := "[" + strings.TrimSuffix(strings.Repeat(`["a","b","c"],`, lists), ",") + "]"
	if _, err := read(in, func(c *canonical.Codec) {
		canonical.List(c, &all, lists, func(c *canonical.Codec, v *[]string) { c.Names(v, 3, 1) })
	}); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		_ = append(all[i], "d")
		clear(all[i])
		if i > 0 && all[i-1][0] != "" || i+1 < lists && !slices.Equal(all[i+1], []string{"a", "b", "c"}) {
			t.Fatalf("list %d is written over: %q", i, all[i-1:])
		}
	}
}
