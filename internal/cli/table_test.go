package cli

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func sample() *table {
	t := &table{columns: []column{{title: "STATE"}, {title: "MEMBER"}, {title: "USED", right: true}, {title: "REASON", least: 8}, {title: "KEY", wide: true}}}
	t.add(painted(green, "● ok"), txt("data/a"), txt("7"), txt("none at all"), txt("k1"))
	t.add(painted(red, "✖ banned"), txt("witness/long-name"), txt("12345"), txt("evil\x1b[31m text that is rather long"), txt("k2"))
	return t
}

func TestTableGolden(t *testing.T) {
	for _, tt := range []struct {
		name   string
		wide   bool
		colour bool
		width  int
		want   string
	}{
		{"no limit", false, false, 0, `
STATE     MEMBER              USED  REASON
● ok      data/a                 7  none at all
✖ banned  witness/long-name  12345  evil\u001b[31m text that is rather long
`},
		{"wide", true, false, 0, `
STATE     MEMBER              USED  REASON                                   KEY
● ok      data/a                 7  none at all                              k1
✖ banned  witness/long-name  12345  evil\u001b[31m text that is rather long  k2
`},
		{"narrow terminal", false, false, 50, `
STATE     MEMBER              USED  REASON
● ok      data/a                 7  none at all
✖ banned  witness/long-name  12345  evil\u001b[31…
`},
		{"too narrow for what is never cut", false, false, 10, `
STATE     MEMBER              USED  REASON
● ok      data/a                 7  none at…
✖ banned  witness/long-name  12345  evil\u0…
`},
		{"colour", false, true, 0, "\n" +
			"\x1b[2mSTATE\x1b[0m     \x1b[2mMEMBER\x1b[0m              \x1b[2mUSED\x1b[0m  \x1b[2mREASON\x1b[0m\n" +
			"\x1b[32m● ok\x1b[0m      data/a                 7  none at all\n" +
			"\x1b[31m✖ banned\x1b[0m  witness/long-name  12345  evil\\u001b[31m text that is rather long\n"},
	} {
		var b strings.Builder
		if err := sample().write(&b, tt.wide, tt.colour, tt.width); err != nil {
			t.Fatal(err)
		}
		if want := strings.TrimPrefix(tt.want, "\n"); b.String() != want {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.name, b.String(), want)
		}
	}
}

// Whatever is in the cells, a table has one line for each row, and lines that fit
// if every column may shrink to nothing much.
func TestTableFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "columns")
		tab := &table{}
		for range n {
			tab.columns = append(tab.columns, column{title: "T", least: 3, right: rapid.Bool().Draw(t, "right")})
		}
		rows := rapid.IntRange(0, 4).Draw(t, "rows")
		for range rows {
			var cells []cell
			for range n {
				cells = append(cells, txt(rapid.String().Draw(t, "cell")))
			}
			tab.add(cells...)
		}
		width := rapid.IntRange(20, 60).Draw(t, "width")
		var b strings.Builder
		if err := tab.write(&b, false, false, width); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) != rows+1 {
			t.Fatalf("%d lines for %d rows:\n%s", len(lines), rows, b.String())
		}
		for _, line := range lines {
			if columns(line) > width {
				t.Fatalf("a line of %d columns, want at most %d: %q", columns(line), width, line)
			}
		}
	})
}

func TestFacts(t *testing.T) {
	var f facts
	f.add("short", "one")
	f.add("blank", "")
	f.add("a longer name", "many words that have to be broken somewhere")
	var b strings.Builder
	if err := f.write(&b, false, 40); err != nil {
		t.Fatal(err)
	}
	want := `short          one
a longer name  many words that have to
               be broken somewhere
`
	if b.String() != want {
		t.Errorf("\n%s\nwant\n%s", b.String(), want)
	}
}
