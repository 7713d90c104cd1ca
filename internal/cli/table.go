package cli

import (
	"io"
	"strings"
)

// A cell is one text of a table.
type cell struct {
	text  string
	paint paint
}

func txt(s string) cell              { return cell{text: s} }
func painted(p paint, s string) cell { return cell{s, p} }

// A column of a table.
type column struct {
	title string
	wide  bool // shown with -o wide only
	right bool // numbers
	least int  // columns that it may shrink to; 0: it is never cut
}

// A table is rows of cells under columns.
type table struct {
	columns []column
	rows    [][]cell
}

func (t *table) add(cells ...cell) { t.rows = append(t.rows, cells) }

// gap is what stands between two columns.
const gap = "  "

// write writes the table. Width 0 is no limit; otherwise columns that may shrink
// do, the widest first, until the lines fit.
func (t *table) write(w io.Writer, wide, colour bool, width int) error {
	var shown []int
	for i, c := range t.columns {
		if wide || !c.wide {
			shown = append(shown, i)
		}
	}
	widths := make([]int, len(t.columns))
	for _, i := range shown {
		widths[i] = columns(t.columns[i].title)
		for _, row := range t.rows {
			widths[i] = max(widths[i], columns(sanitize(row[i].text)))
		}
	}
	if width > 0 {
		t.shrink(shown, widths, width)
	}
	var b strings.Builder
	line := func(cells func(i int) cell) {
		start := b.Len()
		for n, i := range shown {
			c := cells(i)
			text := cut(sanitize(c.text), widths[i])
			pad := strings.Repeat(" ", widths[i]-columns(text))
			if n > 0 {
				b.WriteString(gap)
			}
			if t.columns[i].right {
				b.WriteString(pad)
				pad = ""
			}
			b.WriteString(c.paint.on(text, colour))
			b.WriteString(pad)
		}
		out := strings.TrimRight(b.String()[start:], " ")
		rest := b.String()[:start]
		b.Reset()
		b.WriteString(rest + out + "\n")
	}
	line(func(i int) cell { return painted(dim, t.columns[i].title) })
	for _, row := range t.rows {
		line(func(i int) cell { return row[i] })
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *table) shrink(shown, widths []int, width int) {
	total := len(gap) * (len(shown) - 1)
	for _, i := range shown {
		total += widths[i]
	}
	for total > width {
		widest := -1
		for _, i := range shown {
			if c := t.columns[i]; c.least > 0 && widths[i] > max(c.least, columns(c.title)) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return // a line that is too long is better than one without its name
		}
		widths[widest]--
		total--
	}
}

// facts are names with values, one a line.
type facts []fact

type fact struct {
	name  string
	value cell
}

func (f *facts) add(name, value string) { f.paint(name, plain, value) }

// paint adds a fact unless its value is blank.
func (f *facts) paint(name string, p paint, value string) {
	if value != "" {
		*f = append(*f, fact{name, cell{value, p}})
	}
}

// write writes the facts; values are wrapped to width, under each other.
func (f facts) write(w io.Writer, colour bool, width int) error {
	names := 0
	for _, x := range f {
		names = max(names, columns(x.name))
	}
	var b strings.Builder
	for _, x := range f {
		room := 0
		if width > 0 {
			room = max(width-names-len(gap), 20)
		}
		for n, line := range wrap(sanitize(x.value.text), room) {
			name := x.name
			if n > 0 {
				name = ""
			}
			b.WriteString(dim.on(name, colour) + strings.Repeat(" ", names-columns(name)) + gap + x.value.paint.on(line, colour) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
