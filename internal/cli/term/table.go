package term

import (
	"bytes"
	"io"
	"iter"
	"strings"
)

// A Cell is one text of a table.
type Cell struct {
	Text  string
	Paint Paint
}

func Txt(s string) Cell              { return Cell{Text: s} }
func Painted(p Paint, s string) Cell { return Cell{s, p} }

// A Column of a table.
type Column struct {
	Title string
	Wide  bool // shown with -o wide only
	Right bool // numbers
	Least int  // columns that it may shrink to; 0: it is never cut
}

// A Table is rows of cells under columns.
type Table struct {
	Columns []Column
	rows    [][]Cell
}

func (t *Table) Add(cells ...Cell) { t.rows = append(t.rows, cells) }

// gap is what stands between two columns.
const gap = "  "

// Write writes the table. Width 0 is no limit; otherwise columns that may shrink
// do, the widest first, until the lines fit.
func (t *Table) Write(w io.Writer, wide, colour bool, width int) error {
	var shown []int
	for i, c := range t.Columns {
		if wide || !c.Wide {
			shown = append(shown, i)
		}
	}
	widths := make([]int, len(t.Columns))
	for _, i := range shown {
		widths[i] = Columns(t.Columns[i].Title)
		for _, row := range t.rows {
			row[i].Text = Sanitize(row[i].Text)
			widths[i] = max(widths[i], Columns(row[i].Text))
		}
	}
	if width > 0 {
		t.shrink(shown, widths, width)
	}
	var b []byte
	line := func(cells func(i int) Cell) {
		start := len(b)
		for n, i := range shown {
			c := cells(i)
			text := Cut(c.Text, widths[i])
			pad := widths[i] - Columns(text)
			if n > 0 {
				b = append(b, gap...)
			}
			if t.Columns[i].Right {
				b, pad = spaces(b, pad), 0
			}
			b = spaces(append(b, c.Paint.On(text, colour)...), pad)
		}
		b = append(b[:start+len(bytes.TrimRight(b[start:], " "))], '\n')
	}
	line(func(i int) Cell { return Painted(Dim, t.Columns[i].Title) })
	for _, row := range t.rows {
		line(func(i int) Cell { return row[i] })
	}
	_, err := w.Write(b)
	return err
}

// spaces appends n spaces to b.
func spaces(b []byte, n int) []byte {
	for range n {
		b = append(b, ' ')
	}
	return b
}

func (t *Table) shrink(shown, widths []int, width int) {
	total := len(gap) * (len(shown) - 1)
	for _, i := range shown {
		total += widths[i]
	}
	for total > width {
		widest := -1
		for _, i := range shown {
			if c := t.Columns[i]; c.Least > 0 && widths[i] > max(c.Least,
				Columns(c.Title)) && (widest < 0 || widths[i] > widths[widest]) {
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

// Facts are names with values, one a line.
type Facts []fact

type fact struct {
	name  string
	value Cell
}

func (f *Facts) Add(name, value string) { f.Paint(name, Plain, value) }

// Paint adds a fact unless its value is blank.
func (f *Facts) Paint(name string, p Paint, value string) {
	if value != "" {
		*f = append(*f, fact{name, Cell{value, p}})
	}
}

// All returns the facts in their order, each with its name.
func (f Facts) All() iter.Seq2[string, Cell] {
	return func(yield func(string, Cell) bool) {
		for _, x := range f {
			if !yield(x.name, x.value) {
				return
			}
		}
	}
}

// Write writes the facts; values are wrapped to width, under each other.
func (f Facts) Write(w io.Writer, colour bool, width int) error {
	names := 0
	for _, x := range f {
		names = max(names, Columns(x.name))
	}
	var b strings.Builder
	for _, x := range f {
		room := 0
		if width > 0 {
			room = max(width-names-len(gap), 20)
		}
		for n, line := range Wrap(Sanitize(x.value.Text), room) {
			name := x.name
			if n > 0 {
				name = ""
			}
			b.WriteString(Dim.On(name, colour) + strings.Repeat(" ",
				names-Columns(name)) + gap + x.value.Paint.On(line, colour) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
