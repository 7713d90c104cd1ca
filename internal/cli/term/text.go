package term

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Sanitize makes text from elsewhere safe to show on one line of a terminal: what
// does not print (line ends, escape sequences, marks of direction) is written as
// an escape.
func Sanitize(s string) string {
	if clean(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r == '\n' || r == '\t' || r == '\r':
			b.WriteByte(' ')
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

func clean(s string) bool {
	ascii := 0
	for ascii < len(s) && s[ascii] >= ' ' && s[ascii] < 0x7f { // most text is ASCII
		ascii++
	}
	for _, r := range s[ascii:] {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// Columns returns how many columns of a terminal s takes; s is sanitized.
func Columns(s string) int {
	n := 0
	for n < len(s) && s[n] < utf8.RuneSelf { // most text is ASCII
		n++
	}
	for _, r := range s[n:] {
		n += runeColumns(r)
	}
	return n
}

// runeColumns follows East Asian Width (Unicode UAX #11) for the blocks that are
// wide throughout; combining marks take none.
func runeColumns(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0x303e, r >= 0x3041 && r <= 0xa4cf,
		r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff, r >= 0xfe30 && r <= 0xfe6f,
		r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1f64f,
		r >= 0x1f900 && r <= 0x1f9ff, r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}

// Cut returns s in at most width columns, with an ellipsis if that took something.
func Cut(s string, width int) string {
	if Columns(s) <= width {
		return s
	}
	if width < 1 {
		return ""
	}
	n := 0
	for i, r := range s {
		if n += runeColumns(r); n > width-1 {
			return s[:i] + "…"
		}
	}
	return s
}

// Wrap breaks s at spaces into lines of at most width columns; 0 is no limit. A
// longer word has a line of its own: what is to be pasted stays whole.
func Wrap(s string, width int) []string {
	if width <= 0 || Columns(s) <= width {
		return []string{s}
	}
	return fill(strings.Fields(s), width)
}

// WrapCommands is Wrap for text with commands of the program in it, which are to be pasted:
// a command, from the program's name to the mark that ends it, stays on one line, however
// long it is.
func WrapCommands(s, program string, width int) []string {
	if width <= 0 || Columns(s) <= width {
		return []string{s}
	}
	return fill(Units(s, program), width)
}

// Units takes a text apart into its words. A command of the program, from its name to the mark that ends it, is one unit.
func Units(s, program string) (units []string) {
	inside := false
	for _, word := range strings.Fields(s) {
		if inside {
			units[len(units)-1] += " " + word
		} else {
			units = append(units, word)
		}
		inside = (inside || strings.TrimLeft(word, "`(") == program) && !strings.ContainsAny(word[len(word)-1:], ";,.:)`")
	}
	return units
}

// fill puts units into lines of at most width columns; a longer one has a line of its own.
func fill(units []string, width int) []string {
	var lines []string
	line := ""
	for _, unit := range units {
		switch {
		case line == "":
			line = unit
		case Columns(line)+1+Columns(unit) <= width:
			line += " " + unit
		default:
			lines = append(lines, line)
			line = unit
		}
	}
	return append(lines, line)
}

// Paint is the look of a text on a terminal that takes colour. It only repeats
// what word and shape say.
type Paint string

const (
	Plain Paint = ""
	Green Paint = "32"
	Amber Paint = "33"
	Red   Paint = "31"
	Dim   Paint = "2"
	Bold  Paint = "1"
)

// On returns s in p if colour is set.
func (p Paint) On(s string, colour bool) string {
	if !colour || p == Plain || s == "" {
		return s
	}
	return "\x1b[" + string(p) + "m" + s + "\x1b[0m"
}

// Padded returns s with blanks after it, to a width in columns.
func Padded(s string, width int) string {
	return s + strings.Repeat(" ", max(width-Columns(s), 0))
}
