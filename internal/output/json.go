package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Encode writes v to b as JSON, on one line unless there is an indent, and leaves
// characters of HTML as they are.
func Encode(b *bytes.Buffer, v any, indent string) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the end of its line
	return nil
}

// Printable escapes in a text of JSON the characters that do not print, and writes each
// escape of one in one way. It takes what is no character for U+FFFD, as the library does.
func Printable(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == '\\':
			size = 2
			escape := text[i : i+size]
			if escape == `\u` {
				size = len(`\u0000`)
				escape = text[i : i+size]
			}
			switch escape {
			case `\b`:
				escape = `\u0008`
			case `\f`:
				escape = `\u000c`
			case `\ufffd`:
				escape = "\ufffd"
			}
			b.WriteString(escape)
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

// Number writes a number in the shortest form, and as a text what JSON has no number for.
func Number(v float64) any {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return text
	}
	return json.Number(text)
}

// Moment is a time in a result: RFC 3339 in UTC, null for the zero time.
type Moment time.Time

// MarshalJSON writes m as JSON.
func (m Moment) MarshalJSON() ([]byte, error) {
	t := time.Time(m)
	if t.IsZero() {
		return []byte("null"), nil
	}
	return json.Marshal(t.UTC().Format(time.RFC3339Nano))
}

// Texts are texts in a result: a list, of nothing too.
type Texts []string

// MarshalJSON writes t as JSON.
func (t Texts) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	err := Encode(&b, append([]string{}, t...), "")
	return b.Bytes(), err
}
