package term

import (
	"fmt"
	"io"
)

// A Page is where a result is shown to a person.
type Page struct {
	W      io.Writer
	Wide   bool // with -o wide
	Colour bool
	Width  int // in columns; 0: no limit

	// Called puts the name of the program into the commands of a text, and Program is that
	// name.
	Called  func(string) string
	Program string
}

// Line writes a line of which parts are what somebody else wrote.
func (p *Page) Line(format string, args ...any) {
	fmt.Fprintln(p.W, Sanitize(fmt.Sprintf(format, args...)))
}

// Advise writes a line of our own words, in which commands are to be pasted. Values
// that somebody else wrote go through Line, which changes nothing in them.
func (p *Page) Advise(format string, args ...any) {
	text := Sanitize(p.Called(fmt.Sprintf(format, args...)))
	for _, line := range WrapCommands(text, p.Program, p.Width) {
		fmt.Fprintln(p.W, line)
	}
}

// Table writes a table, and Facts writes facts, as wide as the page.
func (p *Page) Table(t *Table) error { return t.Write(p.W, p.Wide, p.Colour, p.Width) }
func (p *Page) Facts(f Facts) error  { return f.Write(p.W, p.Colour, p.Width) }

// Heading begins a part of the page.
func (p *Page) Heading(text string) {
	fmt.Fprintln(p.W, "\n"+Bold.On(Sanitize(text), p.Colour))
}
