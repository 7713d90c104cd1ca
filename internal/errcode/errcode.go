// Package errcode turns failures into three lines that a person can act on.
//
// Every failure that a user can meet has a stable [Code], such as FE-J106 (codes.go), and one section
// of codes.md: what happened, why, what to do, the exit status of a command, the status of an RPC, and
// a page. Messages, JSON, gRPC details, `fealty explain` and the reference in the
// docs all come from that section, so that they cannot say different things.
//
// An [Error] is a code with the values of one case, which [Fill] puts into the templates of its
// entry. Matching is by code:
//
//	errors.Is(err, TokenSpent)
//
// Values are text for people and cross the wire to whoever made the call. The caller decides which
// ones that peer may see; secrets go through [Redact], and the wrapped cause of an error never
// leaves the process.
package errcode

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Code names one kind of failure: "FE-", the letter of an area, three digits.
// It is an error itself, so that it can be the target of errors.Is. A code is
// never given a new meaning, and the code of a failure that can no longer happen
// is not used again.
type Code string

// Error returns the code.
func (c Code) Error() string { return string(c) }

// String returns the code.
func (c Code) String() string { return string(c) }

// Bounds on what an error carries, here and over the wire: a peer chooses much
// of it. Together they stay well below the 8 KiB that common proxies allow for
// the trailers of a gRPC answer.
const (
	maxFields     = 16
	maxKeyBytes   = 64
	maxValueBytes = 512
	maxAllBytes   = 3 << 10 // keys and values together
)

// Error is one failure with its values filled in. Make it with [New] or [Wrap].
type Error struct {
	Code Code `json:"code"`
	// It has What happened, Why with actual values, and what to Do: one line each.
	What string `json:"what"`
	Why  string `json:"why"`
	Do   string `json:"do"`
	// Fields are the values in the three lines, by name.
	Fields map[string]string `json:"fields,omitempty"`

	cause error
	told  bool // by a peer
}

// New returns the error of code with the values given as pairs of name and
// value: New(TokenSpent, "token", id, "uses", 1).
//
// Names are those in the texts of the registry; others are kept as fields and
// not shown. A text, number, duration, time, error or Stringer is written out;
// of anything else only the type is, because a struct could hold a key.
func New(code Code, pairs ...any) *Error { return Wrap(nil, code, pairs...) }

// StartWhenStoreAnswers is what to do where a program cannot start because its store does not
// answer: the remedy of [StoreUnreachable] there.
const StartWhenStoreAnswers = "check it and the way to it with fealty check store --store URL, and start this again when it answers; coordinators that run go on by themselves"

// Wrap is New with a cause, which errors.Is and errors.As reach. Texts that name
// {cause} show it. It is not a field: it stays in this process.
func Wrap(cause error, code Code, pairs ...any) *Error {
	e := &Error{Code: code, cause: cause}
	for i := 0; i < len(pairs); i += 2 {
		key, ok := pairs[i].(string)
		if !ok || i+1 == len(pairs) {
			// As in log/slog: a slip in a call must not lose the failure that
			// was about to be told.
			key = "!BADKEY"
			e.set(key, text(pairs[i]))
			continue
		}
		e.set(key, text(pairs[i+1]))
	}
	e.render()
	return e
}

// set keeps a field if it is within the bounds.
func (e *Error) set(key, value string) {
	key = clean(key, maxKeyBytes)
	if _, again := e.Fields[key]; !again && len(e.Fields) >= maxFields {
		return
	}
	if e.Fields == nil {
		e.Fields = make(map[string]string)
	}
	e.Fields[key] = clean(value, maxValueBytes)
}

// render fills the three lines from the registry.
func (e *Error) render() {
	entry, ok := Lookup(e.Code)
	if !ok {
		entry = unknown(e.Code)
	}
	fields := e.Fields
	if _, given := fields["cause"]; !given && e.cause != nil {
		fields = make(map[string]string, len(e.Fields)+1)
		maps.Copy(fields, e.Fields)
		fields["cause"] = clean(e.cause.Error(), maxValueBytes)
	}
	e.What, e.Why = Fill(entry.What, fields), Fill(entry.Why, fields)
	e.Do = Fill(entry.Do, fields)
}

// Error returns code, what, why and what to do in one line.
func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (%s): %s", e.Code, e.What, e.Why, e.Do)
}

// Lines returns the three lines to show to a person.
func (e *Error) Lines() [3]string {
	return [3]string{
		fmt.Sprintf("error %s: %s", e.Code, e.What),
		"  why: " + e.Why,
		"  do:  " + e.Do,
	}
}

// Is reports whether target is e's code or the wider one that it is a case of ([Entry.Of]), or an Error
// with the same code.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Code:
		return e.Code == t || t != "" && e.Code.of() == t
	case *Error:
		return t != nil && e.Code == t.Code
	}
	return false
}

// of returns the wider code that c is a case of; empty if there is none.
func (c Code) of() Code {
	entry, _ := Lookup(c)
	return entry.Of
}

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// CodeOf returns the code of the first Error in err's chain as text, for logs and
// labels, or "". To match a code use errors.Is.
func CodeOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return string(e.Code)
	}
	return ""
}

// Redact returns what may be shown of a secret: its first four characters, and
// nothing of one so short that four characters would be half of it.
func Redact(secret string) string {
	const shown = 4
	if utf8.RuneCountInString(secret) <= 2*shown {
		return "…"
	}
	runes := []rune(secret)
	return clean(string(runes[:shown]), maxKeyBytes) + "…"
}

// text writes a value out.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case string:
		return v
	case []string:
		return strings.Join(v, ", ")
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case error:
		return v.Error()
	case fmt.Stringer:
		return v.String()
	case encoding.TextMarshaler:
		if b, err := v.MarshalText(); err == nil {
			return string(b)
		}
	case bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64:
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("(%T)", v)
}

// clean makes text from elsewhere safe to show on one line of a terminal: what
// does not print (line ends, escape sequences, direction marks) is written as an
// escape, and the length is bounded.
func clean(s string, maxBytes int) string {
	var b strings.Builder
	for i, r := range s {
		piece := string(r)
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			_, size := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && size == 1:
				piece = fmt.Sprintf(`\x%02x`, s[i])
			case r == '\n' || r == '\t' || r == '\r':
				piece = " "
			default:
				piece = fmt.Sprintf(`\u%04x`, r)
			}
		}
		if b.Len()+len(piece)+len("…") > maxBytes {
			b.WriteString("…")
			break
		}
		b.WriteString(piece)
	}
	return b.String()
}

// fieldNames returns the names in the entry's texts, sorted.
func (e Entry) fieldNames() []string {
	var names []string
	for _, t := range []string{e.What, e.Why, e.Do} {
		for _, p := range Parse(t) {
			if p.Name != "" {
				names = append(names, p.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
