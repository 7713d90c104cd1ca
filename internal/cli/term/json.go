package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// lenient takes what a peer said as it is: a name twice, and U+FFFD for what is no character.
var lenient = jsonv2.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// tokens are those of v as encoding/json encodes it.
func tokens(v any) (*jsontext.Decoder, error) {
	text, err := json.Marshal(v)
	return jsontext.NewDecoder(bytes.NewReader(text), lenient), err
}

// WriteJSON writes v as indented JSON. Strings are valid for any reader and safe for a
// terminal: each is quoted by [Quote].
func WriteJSON(w io.Writer, v any) error {
	d, err := tokens(v)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	e := jsontext.NewEncoder(&b, lenient, jsontext.WithIndent("  "), jsontext.PreserveRawStrings(true))
	for {
		t, err := d.ReadToken()
		switch {
		case err == io.EOF:
			_, err = b.WriteTo(w)
			return err
		case err != nil:
			return err
		case t.Kind() == jsontext.KindString:
			err = e.WriteValue(jsontext.Value(Quote(t.String())))
		default:
			err = e.WriteToken(t)
		}
		if err != nil {
			return err
		}
	}
}

// Quote writes s as a JSON string that is safe for a terminal: what does not print is
// escaped, and U+FFFD stands for what is no character.
func Quote(s string) string {
	b := append(make([]byte, 0, len(s)+2), '"')
	plain := 0
	for plain < len(s) && ' ' <= s[plain] && s[plain] < 0x7f && s[plain] != '"' && s[plain] != '\\' { // most text is that
		plain++
	}
	b = append(b, s[:plain]...)
	for _, r := range s[plain:] {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case unicode.IsPrint(r):
			b = utf8.AppendRune(b, r)
		default:
			for _, unit := range utf16.AppendRune(nil, r) {
				b = fmt.Appendf(b, `\u%04x`, unit)
			}
		}
	}
	return string(append(b, '"'))
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
func (t Texts) MarshalJSON() ([]byte, error) { return json.Marshal(append([]string{}, t...)) }
