package proof

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
)

// Limits of a token's line.
const (
	MaxLineBytes    = 2 << 10
	MaxAddresses    = 8
	maxAddressBytes = 255
)

const checksumBytes = 4

// lineForm is the form of one kind of token: a prefix that names it, and a body
// of fields in base64url without padding (RFC 4648 §5), ending in a checksum.
//
// The checksum is CRC-32 over prefix and fields: a mistyped character changes a
// run of at most six bits, two swapped neighbours one of twelve, and a CRC-32
// finds every run of up to 32. It is no protection against an attacker, who needs
// none: a forged token proves nothing.
type lineForm struct {
	name   string // "join token"
	prefix string
	use    string // the command that takes it
	get    string // how to get another
}

// lineForms are the kinds of token, for answering one that came to the wrong
// place.
func lineForms() []lineForm { return []lineForm{joinForm(), setupForm()} }

// Problem says what is wrong with the line of a token.
type Problem string

// The problems, in the order in which they are looked for.
const (
	ProblemEmpty      Problem = "empty"      // nothing but white space
	ProblemTooLong    Problem = "too-long"   // more than MaxLineBytes
	ProblemOtherToken Problem = "other-kind" // a token of another kind
	ProblemPrefix     Problem = "prefix"     // no token, or one of another release
	ProblemCharacter  Problem = "character"  // a character that no token has
	ProblemChecksum   Problem = "checksum"   // mistyped, or cut off
	ProblemContent    Problem = "content"    // whole, but a field is not acceptable
)

// TokenFormatError says what is wrong with the line of a token. It never holds a
// part of the line behind its prefix.
type TokenFormatError struct {
	Token   string // what was wanted: "join token" or "setup token"
	Problem Problem
	Detail  string
	Do      string // what to do about it
}

func (e *TokenFormatError) Error() string {
	return fmt.Sprintf("not a usable %s: %s; %s", e.Token, e.Detail, e.Do)
}

func (f lineForm) problem(p Problem, do, format string, args ...any) error {
	return &TokenFormatError{Token: f.name, Problem: p, Detail: fmt.Sprintf(format, args...), Do: do}
}

// encode returns the line that holds fields.
func (f lineForm) encode(fields []byte) string {
	sum := crc32.ChecksumIEEE(append([]byte(f.prefix), fields...))
	return f.prefix + base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint32(fields, sum))
}

// checkFits refuses fields whose line would be too long.
func (f lineForm) checkFits(fields []byte) error {
	if n := len(f.encode(fields)); n > MaxLineBytes {
		return fmt.Errorf("addresses: the line would have %d characters, at most %d are possible: give fewer or shorter ones", n, MaxLineBytes)
	}
	return nil
}

// decode is the reverse of encode, and tolerates white space around the line.
func (f lineForm) decode(line string) ([]byte, error) {
	again := "paste the whole line once more, or get a new one: " + f.get
	line = strings.Trim(line, " \t\r\n")
	switch {
	case line == "":
		return nil, f.problem(ProblemEmpty, "paste the line that this prints: "+f.get, "it is empty")
	case len(line) > MaxLineBytes:
		return nil, f.problem(ProblemTooLong, again, "it has %d characters, at most %d are possible", len(line), MaxLineBytes)
	}
	body, ok := strings.CutPrefix(line, f.prefix)
	if !ok {
		for _, other := range lineForms() {
			if strings.HasPrefix(line, other.prefix) {
				return nil, f.problem(ProblemOtherToken, "use it with: "+other.use, "this is a %s", other.name)
			}
		}
		return nil, f.problem(ProblemPrefix, again, "it does not begin with %s", f.prefix)
	}
	for i := range len(body) {
		if c := body[i]; !(c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return nil, f.problem(ProblemCharacter, again, "character %d cannot be part of it", len(f.prefix)+i+1)
		}
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(raw) < checksumBytes {
		return nil, f.problem(ProblemChecksum, again, "it is mistyped or cut off")
	}
	fields, sum := raw[:len(raw)-checksumBytes], binary.BigEndian.Uint32(raw[len(raw)-checksumBytes:])
	if crc32.ChecksumIEEE(append([]byte(f.prefix), fields...)) != sum {
		return nil, f.problem(ProblemChecksum, again, "its checksum does not match: it is mistyped or cut off")
	}
	return fields, nil
}

// appendText appends s, which has at most 255 bytes, after its length.
func appendText(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

// appendTexts appends a list after its length, at most 255.
func appendTexts(b []byte, list []string) []byte {
	b = append(b, byte(len(list)))
	for _, s := range list {
		b = appendText(b, s)
	}
	return b
}

// cursor reads what the append functions wrote. After a read beyond the end it
// is short, and stays so.
type cursor struct {
	rest  []byte
	short bool
}

func (c *cursor) take(n int) []byte {
	if c.short || len(c.rest) < n {
		c.short = true
		return make([]byte, n)
	}
	b := c.rest[:n:n]
	c.rest = c.rest[n:]
	return b
}

func (c *cursor) text() string { return string(c.take(int(c.take(1)[0]))) }

func (c *cursor) texts() []string {
	list := make([]string, c.take(1)[0])
	for i := range list {
		list[i] = c.text()
	}
	return list
}

// done reports whether all was read and nothing was missing.
func (c *cursor) done() bool { return !c.short && len(c.rest) == 0 }

// checkAddresses refuses what nobody can dial. The error begins with the field.
func checkAddresses(list []string) error {
	if len(list) == 0 || len(list) > MaxAddresses {
		return fmt.Errorf("addresses: %d of them, want 1 to %d", len(list), MaxAddresses)
	}
	for _, a := range list {
		if len(a) > maxAddressBytes {
			return fmt.Errorf("addresses: one has %d bytes, at most %d are possible", len(a), maxAddressBytes)
		}
		host, port, err := net.SplitHostPort(a)
		if err != nil || host == "" || strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("addresses: %q is not host:port", a)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("addresses: %q has no port between 1 and 65535", a)
		}
	}
	return nil
}

// secretBytes is the length of a token's secret.
const secretBytes = 32

// Secret is what a token proves. It never prints; a token's line alone carries
// it. The zero value is no secret.
type Secret struct {
	// A function, because fmt prints what the unexported fields of somebody's
	// struct hold without asking them, through pointers too, and of a function
	// only the address.
	reveal func() []byte
}

// secretOf returns the secret with the value b, which it copies.
func secretOf(b [secretBytes]byte) Secret {
	return Secret{func() []byte { return b[:] }}
}

func newSecret(random io.Reader) (Secret, error) {
	var b [secretBytes]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return Secret{}, fmt.Errorf("make a token's secret: %w", err)
	}
	return secretOf(b), nil
}

// IsZero reports whether s is no secret.
func (s Secret) IsZero() bool { return s.reveal == nil }

// hidden is what is shown of a secret.
const hidden = "[secret]"

func (Secret) String() string               { return hidden }
func (Secret) Format(f fmt.State, _ rune)   { io.WriteString(f, hidden) }
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }
func (Secret) LogValue() slog.Value         { return slog.StringValue(hidden) }

// redact returns what may be shown of a line: its first four characters.
func redact(prefix string) string { return prefix[:4] + "…" }
