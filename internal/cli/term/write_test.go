package term_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/cli/term"
)

func drawValue(t *rapid.T, depth int) any {
	kinds := 6
	if depth == 0 {
		kinds = 4
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.OneOf(rapid.String(),
			rapid.SampledFrom([]string{"yes", "No", "null", "~", "1", "1.5", "0x1", "2026-11-20T12:00:00Z", "", " ",
				"a: b", "# a", "- a", "on", "\x1b[2J", "a\u009bb", "a\nb", "ed25519:AbC=", "data/a", "*a", "&a", "!a",
				"{", "a\xffb", "\U000e0001", "1e3", "0o7", "12:30", ".inf", "=", "<<"})).Draw(t, "text")
	case 1:
		return rapid.Uint64Range(0, 1<<53).Draw(t, "number")
	case 2:
		return rapid.Bool().Draw(t, "bool")
	case 3:
		return nil
	case 4:
		o := term.Object{}
		for i := range rapid.IntRange(0, 3).Draw(t, "members") {
			o = append(o, term.Member{Name: string(rune('a'+i)) + "_name", Value: drawValue(t, depth-1)})
		}
		return o
	default:
		l := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			v := drawValue(t, depth-1)
			if inner, ok := v.([]any); ok && len(inner) > 0 {
				v = "no lists of lists"
			}
			l = append(l, v)
		}
		return l
	}
}

// JSON and YAML say the same, any parser agrees, and neither moves a cursor.
func TestJSONAndYAMLAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := term.Object{{Name: "schema", Value: term.Schema}, {Name: "value", Value: drawValue(t, 3)}}
		var j, y strings.Builder
		if err := term.WriteJSON(&j, o); err != nil {
			t.Fatal(err)
		}
		if err := term.WriteYAML(&y, o); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{j.String(), y.String()} {
			for _, r := range text {
				if r != '\n' && !unicode.IsPrint(r) {
					t.Fatalf("%U is printed as it is:\n%s", r, text)
				}
			}
		}
		var fromJSON, fromYAML any
		if err := json.Unmarshal([]byte(j.String()), &fromJSON); err != nil {
			t.Fatalf("%v\n%s", err, j.String())
		}
		if err := yaml.Unmarshal([]byte(y.String()), &fromYAML); err != nil {
			t.Fatalf("%v\n%s", err, y.String())
		}
		// Numbers and string keys have other types in the two libraries.
		again, err := json.Marshal(fromYAML)
		if err != nil {
			t.Fatal(err)
		}
		var normal any
		if err := json.Unmarshal(again, &normal); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fromJSON, normal); diff != "" {
			t.Fatalf("YAML says something else (-JSON +YAML):\n%s\n%s\n%s", diff, j.String(), y.String())
		}
	})
}

func TestJSONGolden(t *testing.T) {
	o := term.Object{
		{Name: "schema", Value: term.Schema}, {Name: "n", Value: 3}, {Name: "empty", Value: []any{}},
		{Name: "none", Value: term.Object{}},
		{Name: "items", Value: []any{term.Object{{Name: "a", Value: "b\x1b"}}, "c"}},
		{Name: "deep", Value: term.Object{{Name: "x", Value: nil}, {Name: "y", Value: true}}},
	}
	var j, y strings.Builder
	if err := term.WriteJSON(&j, o); err != nil {
		t.Fatal(err)
	}
	if want := `{
  "schema": "fealty.cli/v1",
  "n": 3,
  "empty": [],
  "none": {},
  "items": [
    {
      "a": "b\u001b"
    },
    "c"
  ],
  "deep": {
    "x": null,
    "y": true
  }
}
`; j.String() != want {
		t.Errorf("\n%s\nwant\n%s", j.String(), want)
	}
	if err := term.WriteYAML(&y, o); err != nil {
		t.Fatal(err)
	}
	if want := `schema: fealty.cli/v1
n: 3
empty: []
none: {}
items:
  - a: "b\u001b"
  - c
deep:
  x: null
  y: true
`; y.String() != want {
		t.Errorf("\n%s\nwant\n%s", y.String(), want)
	}
}

// A result begins with the schema, and keeps the text of a number and each name, however
// often and in whatever bytes a peer sent it.
func TestWrite(t *testing.T) {
	for _, tt := range []struct {
		name string
		data any
		want string // "" is an error
	}{
		{"nothing", struct{}{}, "{\n  \"schema\": \"fealty.cli/v1\"\n}\n"},
		{"names", term.Object{{Name: "a", Value: 1}, {Name: "schema", Value: "x"}, {Name: "a", Value: 2},
			{Name: "\x1b<\xff", Value: 3}},
			"{\n  \"schema\": \"fealty.cli/v1\",\n  \"a\": 1,\n  \"schema\": \"x\",\n  \"a\": 2,\n" +
				"  \"\\u001b<\ufffd\": 3\n}\n"},
		{"numbers", map[string]json.RawMessage{"n": json.RawMessage("[1e+06, -0, 1.50, 12345678901234567890123]")},
			"{\n  \"schema\": \"fealty.cli/v1\",\n  \"n\": [\n" +
				"    1e+06,\n    -0,\n    1.50,\n    12345678901234567890123\n  ]\n}\n"},
		{"bytes", map[string]json.RawMessage{"b": json.RawMessage("\"a\xff\x7f\"")},
			"{\n  \"schema\": \"fealty.cli/v1\",\n  \"b\": \"a\ufffd\\u007f\"\n}\n"},
		{"a list", []int{}, ""},
		{"no value", nil, ""},
		{"what JSON has no form for", map[string]any{"f": func() {}}, ""},
	} {
		var b strings.Builder
		err := term.Write(&b, term.JSON, tt.data)
		if (err != nil) != (tt.want == "") || b.String() != tt.want {
			t.Errorf("%s is %s (%v), want %s", tt.name, b.String(), err, tt.want)
		}
	}
}

// A name that a peer chose moves no cursor and ends no line of YAML; any other name stands
// as it is.
func TestYAMLNames(t *testing.T) {
	o := term.Object{}
	for _, name := range []string{"y", "authority_epoch", "scope.id/a-b", "\x1b[2J", "a: b", "- a", "a\nb: c", "",
		"#", "7", "\U000e0001"} {
		o = append(o, term.Member{Name: name, Value: term.Object{{Name: name, Value: 1}}})
	}
	var b strings.Builder
	if err := term.WriteYAML(&b, term.Object{{Name: "fields", Value: o[3:]}}); err != nil {
		t.Fatal(err)
	}
	for _, r := range b.String() {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Fatalf("%U is printed as it is:\n%s", r, b.String())
		}
	}
	var back struct{ Fields map[string]map[string]int }
	if err := yaml.Unmarshal([]byte(b.String()), &back); err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	for _, m := range o[3:] {
		if back.Fields[m.Name][m.Name] != 1 {
			t.Errorf("%q is not there:\n%s", m.Name, b.String())
		}
	}
	b.Reset()
	if err := term.WriteYAML(&b, o[:3]); err != nil {
		t.Fatal(err)
	}
	if want := "y:\n  y: 1\nauthority_epoch:\n  authority_epoch: 1\n" +
		"scope.id/a-b:\n  scope.id/a-b: 1\n"; b.String() != want {
		t.Errorf("\n%s\nwant\n%s", b.String(), want)
	}
}

// Readers of YAML 1.1 and 1.2 take a text for a text, whatever word or number it looks like.
func TestYAMLTexts(t *testing.T) {
	for in, want := range map[string]string{
		"null": `"null"`, "Yes": `"Yes"`, "off": `"off"`, "y": `"y"`, "TRUE": `"TRUE"`, "~": `"~"`, "1e3": `"1e3"`,
		"2026-11-20": `"2026-11-20"`, "0x1": `"0x1"`, "": `""`, "a: b": `"a: b"`, "a b": `"a b"`, "-": `"-"`,
		"data/a": "data/a", "fealty.cli/v1": "fealty.cli/v1", "http://a:1": "http://a:1",
		"ed25519:a-b_c": "ed25519:a-b_c",
		"nullable":      "nullable", "/run/a.sock": "/run/a.sock",
	} {
		var b strings.Builder
		if err := term.WriteYAML(&b, map[string]string{"text": in}); err != nil {
			t.Fatal(err)
		}
		if b.String() != "text: "+want+"\n" {
			t.Errorf("%q is %q, want %s", in, b.String(), want)
		}
	}
}
