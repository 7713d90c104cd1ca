package term_test

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/cli/term"
)

func sample() *term.Table {
	t := &term.Table{Columns: []term.Column{{Title: "STATE"}, {Title: "MEMBER"}, {Title: "USED", Right: true},
		{Title: "REASON", Least: 8}, {Title: "KEY", Wide: true}}}
	t.Add(term.Painted(term.Green, "● ok"), term.Txt("data/a"), term.Txt("7"), term.Txt("none at all"), term.Txt("k1"))
	t.Add(term.Painted(term.Red, "✖ banned"), term.Txt("witness/long-name"), term.Txt("12345"),
		term.Txt("evil\x1b[31m text that is rather long"), term.Txt("k2"))
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
		if err := sample().Write(&b, tt.wide, tt.colour, tt.width); err != nil {
			t.Fatal(err)
		}
		if want := strings.TrimPrefix(tt.want, "\n"); b.String() != want {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.name, b.String(), want)
		}
	}
}

// With any text in the cells, a table has one line for each row, and lines that fit
// if every column may shrink to nothing much.
func TestTableFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "columns")
		tab := &term.Table{}
		for range n {
			tab.Columns = append(tab.Columns, term.Column{Title: "T", Least: 3, Right: rapid.Bool().Draw(t, "right")})
		}
		rows := rapid.IntRange(0, 4).Draw(t, "rows")
		for range rows {
			var cells []term.Cell
			for range n {
				cells = append(cells, term.Txt(rapid.String().Draw(t, "cell")))
			}
			tab.Add(cells...)
		}
		width := rapid.IntRange(20, 60).Draw(t, "width")
		var b strings.Builder
		if err := tab.Write(&b, false, false, width); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) != rows+1 {
			t.Fatalf("%d lines for %d rows:\n%s", len(lines), rows, b.String())
		}
		for _, line := range lines {
			if term.Columns(line) > width {
				t.Fatalf("a line of %d columns, want at most %d: %q", term.Columns(line), width, line)
			}
		}
	})
}

// tall is a table of so many rows.
func tall(rows int) *term.Table {
	t := &term.Table{Columns: sample().Columns}
	for i := range rows {
		t.Add(term.Painted(term.Green, "● ok"), term.Txt(fmt.Sprint("data/node-", i)), term.Txt(fmt.Sprint(i)), term.Txt("none"), term.Txt("k"))
	}
	return t
}

// A row of a long table costs what one of a short table costs: the lines before it are not copied again.
func TestTableIsLinear(t *testing.T) {
	perRow := func(rows int) uint64 {
		tab := tall(rows)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := tab.Write(io.Discard, false, false, 0); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / uint64(rows)
	}
	if few, many := perRow(500), perRow(5000); many > 3*few {
		t.Errorf("a row of 5,000 allocates %d bytes, and a row of 500 %d", many, few)
	}
}

func BenchmarkTable(b *testing.B) {
	for _, rows := range []int{1000, 10_000, 50_000} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			tab := tall(rows)
			for b.Loop() {
				if err := tab.Write(io.Discard, false, true, 120); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(rows), "ns/row")
		})
	}
}

func TestFacts(t *testing.T) {
	var f term.Facts
	f.Add("short", "one")
	f.Add("blank", "")
	f.Add("a longer name", "many words that have to be broken somewhere")
	var b strings.Builder
	if err := f.Write(&b, false, 40); err != nil {
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
