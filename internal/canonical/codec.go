// Package canonical writes and reads the exact bytes of signed config: canonical JSON, in which each value has one
// spelling, and binary fields that follow each other.
package canonical

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/go-json-experiment/json/jsontext"
)

// Codec writes and reads one value in canonical JSON (RFC 8785). Each type has
// one walk function that names its members in canonical order; the codec either
// writes them or reads them. Reading accepts exactly what writing produces:
// there is no place where white space, another order, another spelling of a
// string or number, a duplicate, missing, null or unknown member could be taken.
// Equal values therefore have equal bytes, and a hash over bytes is an identity.
//
// Writing changes nothing in the value, so that it may be shared.
//
// The zero Codec writes. It exists beside the json package for that reason and for
// speed: a node decodes 64 KiB in a tenth of the time of decoding by reflection and
// encoding again to compare.
type Codec struct {
	reading bool
	in      string // what is read
	pos     int    // offset of the next byte of in
	out     []byte // what was written
	first   bool   // the next member is its object's first
	err     error  // the first failure; nothing happens after it
	secret  string // the first kind of raw secret in a string; see snapshot.FindSecret
	quiet   bool   // no secret is looked for; see plain

	scratch []string // of names, while they are read
	free    []string // room for the names of the next lists; see Names

	unquoted, quoted []byte // a literal with escapes, while it is read
}

// NewReader returns a codec that reads in. Strings that are read share its memory.
func NewReader(in string) *Codec { return &Codec{reading: true, in: in} }

// buffers are that are written to before their content has memory of its own: one that grew to it
// step by step would have taken five times as much, which a process that waits has given back by the next.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxRoom bounds a buffer that is kept, in bytes.
const maxRoom = 4 << 20

// Write returns what walk writes, and the codec, for its error and for secrets that it noticed.
func Write(walk func(*Codec)) (out []byte, c *Codec) {
	buffer := buffers.Get().(*[]byte)
	c = &Codec{out: (*buffer)[:0]}
	walk(c)
	out = bytes.Clone(c.out)
	if cap(c.out) <= maxRoom {
		*buffer = c.out
	}
	buffers.Put(buffer)
	c.out = out
	return out, c
}

// Finish fails unless all was read.
func (c *Codec) Finish() error {
	if c.err == nil && c.pos != len(c.in) {
		c.Fail("%d bytes after the end", len(c.in)-c.pos)
	}
	return c.err
}

// Reading reports whether values are read, and not written.
func (c *Codec) Reading() bool { return c.reading }

// Err returns the first failure; nothing happens after it.
func (c *Codec) Err() error { return c.err }

// Out returns what was written.
func (c *Codec) Out() []byte { return c.out }

// Secret returns the first kind of raw secret that was noticed in a string; see [snapshot.FindSecret].
func (c *Codec) Secret() string { return c.secret }

// Notice notes a kind of raw secret that the caller found, unless there was one before, or kind is "".
func (c *Codec) Notice(kind string) {
	if c.err == nil && c.secret == "" {
		c.secret = kind
	}
}

// A formError says why bytes are not the canonical form of a value.
type formError struct {
	Offset int // of the byte where reading stopped; the size written so far when writing
	What   string
}

func (e *formError) Error() string { return fmt.Sprintf("at byte %d: %s", e.Offset, e.What) }

// Fail notes a failure, unless there was one before.
func (c *Codec) Fail(format string, args ...any) {
	if c.err != nil {
		return
	}
	at := len(c.out)
	if c.reading {
		at = c.pos
	}
	c.err = &formError{at, fmt.Sprintf(format, args...)}
}

// skip moves over t if it comes next.
func (c *Codec) skip(t string) bool {
	if c.err == nil && strings.HasPrefix(c.in[c.pos:], t) {
		c.pos += len(t)
		return true
	}
	return false
}

// skipByte moves over b if it comes next.
func (c *Codec) skipByte(b byte) bool {
	if c.err == nil && c.pos < len(c.in) && c.in[c.pos] == b {
		c.pos++
		return true
	}
	return false
}

// token writes or requires b.
func (c *Codec) token(b byte) {
	if !c.reading || !c.skipByte(b) {
		c.otherToken(b)
	}
}

// otherToken is token of what does not come next.
func (c *Codec) otherToken(b byte) {
	switch {
	case c.err != nil:
	case !c.reading:
		c.out = append(c.out, b)
	default:
		c.Fail("want %c, found %.32q", b, c.in[c.pos:min(len(c.in), c.pos+32)])
	}
}

// Begin writes or requires the beginning of an object.
func (c *Codec) Begin() {
	c.token('{')
	c.first = true
}

// End writes or requires its end.
func (c *Codec) End() {
	c.token('}')
	c.first = false
}

// Member writes or requires the name of the next member.
func (c *Codec) Member(name string) {
	if !c.first {
		c.token(',')
	}
	c.first = false
	if c.err != nil {
		return
	}
	if !c.reading {
		c.out = append(append(append(c.out, '"'), name...), '"', ':')
		return
	}
	rest := c.in[c.pos:]
	if beginsMember(rest, name) {
		c.pos += len(name) + 3
		return
	}
	c.Fail("want member %q, found %.32q", name, rest[:min(len(rest), 32)])
}

// beginsMember reports whether in begins with the member name.
func beginsMember(in, name string) bool {
	n := len(name)
	return len(in) >= n+3 && in[0] == '"' && in[1+n] == '"' && in[2+n] == ':' && in[1:1+n] == name
}

// Has reports whether the next member is name. While writing, it is if want.
func (c *Codec) Has(name string, want bool) bool {
	if !c.reading {
		return want
	}
	rest := strings.TrimPrefix(c.in[c.pos:], ",")
	return c.err == nil && beginsMember(rest, name)
}

// Text is a string of at most limit bytes, valid UTF-8.
func (c *Codec) Text(v *string, limit int) {
	if c.err != nil {
		return
	}
	if !c.reading {
		if len(*v) > limit {
			c.Fail("a string of %d bytes, limit %d", len(*v), limit)
			return
		}
		c.notice(*v, snapshot.LettersOf(*v).Escaped())
		out, err := jsontext.AppendQuote(c.out, *v)
		if err != nil {
			c.Fail("%q is not valid UTF-8", *v)
			return
		}
		c.out = out
		return
	}
	*v = c.text(*v, limit)
}

// text reads a string of at most limit bytes; after a failure it is old.
func (c *Codec) text(old string, limit int) string {
	s, letters := c.scan()
	if c.err != nil {
		return old
	}
	if len(s) > limit {
		c.Fail("a string of %d bytes, limit %d", len(s), limit)
		return old
	}
	c.notice(s, letters)
	return s
}

// notice looks for raw secrets in a string, which has these letters.
func (c *Codec) notice(s string, letters snapshot.Letters) {
	if c.secret == "" && !c.quiet {
		c.secret = snapshot.FindSecretAmong(s, letters)
	}
}

// scan reads a string literal.
func (c *Codec) scan() (s string, letters snapshot.Letters) {
	if !c.skipByte('"') {
		c.Fail("want a string, found %.32q", c.in[c.pos:min(len(c.in), c.pos+32)])
		return "", 0
	}
	start := c.pos
	end, letters := snapshot.ScanLiteral(c.in, start)
	switch {
	case end == len(c.in):
		c.Fail("a string without end")
		return "", 0
	case c.in[end] == '"':
		c.pos = end + 1
		return c.in[start:end], letters
	}
	s = c.scanSlow(start, end)
	return s, snapshot.LettersOf(s).Escaped()
}

// scanSlow reads the literal that began before start and is plain up to i. Only
// the spelling that RFC 8785, section 3.2.2.2 gives a string is taken.
func (c *Codec) scanSlow(start, i int) string {
	for ; i < len(c.in) && c.in[i] != '"'; i++ {
		if c.in[i] == '\\' {
			i++
		}
	}
	if i >= len(c.in) {
		c.Fail("a string without end")
		return ""
	}
	literal := c.in[start-1 : i+1]
	value, err := jsontext.AppendUnquote(c.unquoted[:0], literal)
	if err != nil {
		c.Fail("a string that is not valid: %v", err)
		return ""
	}
	again, err := jsontext.AppendQuote(c.quoted[:0], value)
	if err != nil || string(again) != literal {
		c.Fail("a string not in canonical form")
		return ""
	}
	c.unquoted, c.quoted = value, again
	c.pos = i + 1
	return string(value)
}

// Number64 is a 64-bit number, in a string: canonicalizers round JSON numbers
// above 2^53, and two versions would become one.
func (c *Codec) Number64(v *uint64) {
	var s string
	if !c.reading {
		s = strconv.FormatUint(*v, 10)
	}
	c.plain(&s, 20)
	if c.err != nil || !c.reading {
		return
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || len(s) > 1 && s[0] == '0' || s[0] == '+' {
		c.Fail("%q is no 64-bit decimal", s)
		return
	}
	*v = n
}

// Number is a JSON integer from 0 to limit, which stays below 2^53.
func (c *Codec) Number(v *int, limit int) {
	if c.err != nil {
		return
	}
	if !c.reading {
		if *v < 0 || *v > limit {
			c.Fail("%d is not within 0 and %d", *v, limit)
			return
		}
		c.out = strconv.AppendInt(c.out, int64(*v), 10)
		return
	}
	end := c.pos
	for end < len(c.in) && end-c.pos < 17 && '0' <= c.in[end] && c.in[end] <= '9' {
		end++
	}
	digits := c.in[c.pos:end]
	n, err := strconv.Atoi(digits)
	if err != nil || len(digits) > 1 && digits[0] == '0' || n > limit {
		c.Fail("want an integer within 0 and %d, found %.20q", limit, c.in[c.pos:min(len(c.in), c.pos+20)])
		return
	}
	c.pos, *v = end, n
}

// Seconds is a duration, as a count of whole seconds.
func (c *Codec) Seconds(v *time.Duration) {
	n := int(*v / time.Second)
	if !c.reading && *v%time.Second != 0 {
		c.Fail("%v is no whole number of seconds", *v)
		return
	}
	c.Number(&n, MaxSeconds)
	if c.reading {
		*v = time.Duration(n) * time.Second
	}
}

// MaxSeconds bounds a duration to some 68 years, far from overflow.
const MaxSeconds = 1<<31 - 1

// Boolean is true or false.
func (c *Codec) Boolean(v *bool) {
	switch {
	case !c.reading:
		if c.err == nil {
			c.out = strconv.AppendBool(c.out, *v)
		}
	case c.skip("true"):
		*v = true
	case c.skip("false"):
		*v = false
	default:
		c.Fail("want true or false")
	}
}

// TimeLayout is the form of a time.
const TimeLayout = "2006-01-02T15:04:05Z"

// Instant is a time in UTC, in whole seconds: RFC 3339 with a Z.
func (c *Codec) Instant(v *time.Time) {
	var s string
	if !c.reading {
		if v.IsZero() || v.Nanosecond() != 0 || v.UTC().Year() > 9999 || v.UTC().Year() < 1 {
			c.Fail("time %v: want a set time of whole seconds", *v)
			return
		}
		s = v.UTC().Format(TimeLayout)
	}
	c.plain(&s, len(TimeLayout))
	if c.err != nil || !c.reading {
		return
	}
	t, ok := parseInstant(s)
	if !ok {
		c.Fail("%q is no time: want the form %s", s, TimeLayout)
		return
	}
	*v = t
}

// parseInstant reads what time.Parse reads of the length of TimeLayout, but the zero time, and at a fifth of the cost: a header has
// five times and its record two.
func parseInstant(s string) (time.Time, bool) {
	const zeros = "0000-00-00T00:00:00Z"
	if len(s) != len(TimeLayout) {
		return time.Time{}, false // so that there is no room for a fraction, which Parse would take
	}
	for i := range len(zeros) {
		if d := s[i] - '0'; zeros[i] == '0' && d > 9 || zeros[i] != '0' && s[i] != zeros[i] {
			return time.Time{}, false
		}
	}
	two := func(i int) int { return int(s[i]-'0')*10 + int(s[i+1]-'0') }
	year, month, day := two(0)*100+two(2), time.Month(two(5)), two(8)
	hour, minute, second := two(11), two(14), two(17)
	if month < 1 || month > 12 || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, false
	}
	t := time.Date(year, month, day, hour, minute, second, 0, time.UTC)
	// Date takes the 31st of a month of 30 days for the 1st of the next.
	return t, t.Day() == day && !t.IsZero()
}

// Fixed is a byte string of known length, in lower case hex.
func (c *Codec) Fixed(v []byte) {
	var s string
	if !c.reading {
		s = fmt.Sprintf("%x", v)
	}
	c.plain(&s, 2*len(v))
	if c.err == nil && c.reading && !ParseHex(v, s) {
		c.Fail("want %d lower case hex digits", 2*len(v))
	}
}

// plain is a string which by its form can hold no secret that a detector knows: a
// number, a time, hex of a hash, base64 of a certificate. Looking for one would
// only cost time and cause false alarms.
func (c *Codec) plain(v *string, limit int) {
	c.quiet = true
	c.Text(v, limit)
	c.quiet = false
}

// Blob is a byte string of at most limit bytes, in padded standard base64.
func (c *Codec) Blob(v *[]byte, limit int) {
	var s string
	if !c.reading {
		s = base64.StdEncoding.EncodeToString(*v)
	}
	c.plain(&s, base64.StdEncoding.EncodedLen(limit))
	if c.err != nil || !c.reading {
		return
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	// The decoder passes over line breaks; the length shows them.
	if err != nil || len(s) != base64.StdEncoding.EncodedLen(len(b)) || len(b) > limit {
		c.Fail("want at most %d bytes in base64", limit)
		return
	}
	*v = b
}

// List is an array of at most limit elements.
func List[T any](c *Codec, v *[]T, limit int, elem func(*Codec, *T)) {
	c.token('[')
	if !c.reading {
		if len(*v) > limit {
			c.Fail("a list of %d, limit %d", len(*v), limit)
		}
		for i := range *v {
			if i > 0 {
				c.token(',')
			}
			elem(c, &(*v)[i])
		}
		c.token(']')
		return
	}
	*v = (*v)[:0]
	if c.skipByte(']') {
		return
	}
	start := c.pos
	for c.err == nil {
		if len(*v) == limit {
			c.Fail("a list of more than %d", limit)
			return
		}
		*v = grown(c, *v, limit, start)
		elem(c, &(*v)[len(*v)-1])
		if !c.skipByte(',') {
			c.token(']')
			return
		}
	}
}

// Names is an array of strings. A content has many of a few each: what is read is
// cut from memory for several.
func (c *Codec) Names(v *[]string, limit, each int) {
	if !c.reading {
		List(c, v, limit, func(c *Codec, s *string) { c.Text(s, each) })
		return
	}
	names := c.names(limit, each)
	*v = nil
	if n := len(names); n > 0 {
		if len(c.free) < n {
			// A name takes three bytes at least, and sixteen as a rule.
			c.free = make([]string, max(n, min((len(c.in)-c.pos)/16, 256)))
		}
		*v, c.free = c.free[:n:n], c.free[n:]
		copy(*v, names)
	}
}

// Words is Names for strings with a type of their own.
func Words[T ~string](c *Codec, v *[]T, limit, each int) {
	if !c.reading {
		List(c, v, limit, func(c *Codec, s *T) { word := string(*s); c.Text(&word, each) })
		return
	}
	names := c.names(limit, each)
	*v = nil
	if len(names) > 0 {
		*v = make([]T, len(names))
		for i, name := range names {
			(*v)[i] = T(name)
		}
	}
}

// names reads an array of at most limit strings of at most each bytes, which stay good until the next one. After a
// failure there are none.
func (c *Codec) names(limit, each int) []string {
	c.token('[')
	if c.skipByte(']') {
		return nil
	}
	names := c.scratch[:0]
	for c.err == nil {
		if len(names) == limit {
			c.Fail("a list of more than %d", limit)
			break
		}
		names = append(names, c.text("", each))
		if !c.skipByte(',') {
			c.token(']')
			break
		}
	}
	c.scratch = names
	if c.err != nil {
		return nil
	}
	return names
}

// Dict is an object of at most limit records by name, in the order of the names:
// no two have one name. key is where a record has its name, and walk walks the rest of it.
func Dict[T any](c *Codec, v *[]T, limit int, valid func(string) bool, key func(*T) *string, walk func(*T, *Codec)) {
	c.Begin()
	if !c.reading {
		if len(*v) > limit {
			c.Fail("%d members, limit %d", len(*v), limit)
		}
		for i := range *v {
			name := *key(&(*v)[i])
			switch {
			case !valid(name):
				c.Fail("%.80q is no name of a record", name)
			case i > 0 && *key(&(*v)[i-1]) >= name:
				c.Fail("%.80q is out of order or double", name)
			}
			c.notice(name, snapshot.LettersOf(name))
			c.Member(name)
			walk(&(*v)[i], c)
		}
		c.End()
		return
	}
	*v = nil
	start, last := c.pos, ""
	for c.err == nil && (c.pos == len(c.in) || c.in[c.pos] != '}') {
		n := len(*v)
		if n > 0 {
			c.token(',')
		}
		name := c.name(valid)
		switch {
		case c.err != nil:
			return
		case n == limit:
			c.Fail("more than %d members", limit)
			return
		case n > 0 && last >= name:
			c.Fail("%.80q is out of order or double", name)
			return
		}
		*v = grown(c, *v, limit, start)
		*key(&(*v)[n]), last = name, name
		walk(&(*v)[n], c)
	}
	c.End()
}

// name reads the name of a member that the content chose.
func (c *Codec) name(valid func(string) bool) string {
	s, letters := c.scan()
	if c.err == nil && !valid(s) {
		c.Fail("%.80q is no name of a record", s)
	}
	c.token(':')
	if c.err != nil {
		return ""
	}
	c.notice(s, letters)
	return s
}

// grown appends a zero element to v, which was read from start on. Memory is taken
// for what the rest of the input has room for, at the size that elements had so far,
// and not for what a peer says it has.
func grown[T any](c *Codec, v []T, limit, start int) []T {
	switch n := len(v); {
	case n < cap(v):
	case n >= 8:
		v = slices.Grow(v, 1+min(limit-n, (len(c.in)-c.pos)*n/(c.pos-start)))
	case n >= 2:
		v = slices.Grow(v, 8-n)
	}
	var zero T
	return append(v, zero)
}

// ID is an identity. No character that one may hold is spelled in two ways in
// JSON, so that what stands between the quotes is parsed as it is: contents are
// mostly ids.
func ID(c *Codec, id *identity.ID) {
	if !c.reading {
		s := id.String()
		c.Text(&s, internalidentity.MaxIDBytes)
		return
	}
	if !c.skipByte('"') {
		c.Fail("want an identity, found %.32q", c.in[c.pos:min(len(c.in), c.pos+32)])
		return
	}
	rest := c.in[c.pos:min(len(c.in), c.pos+internalidentity.MaxIDBytes+1)]
	end := strings.IndexByte(rest, '"')
	if end < 0 {
		c.Fail("an identity without end, limit %d bytes", internalidentity.MaxIDBytes)
		return
	}
	parsed, err := identity.Parse(rest[:end])
	if err != nil || parsed.String() != rest[:end] {
		c.Fail("%.80q is no identity", rest[:end])
		return
	}
	c.pos += end + 1
	// The cluster is the verifier's own and the kind one of a few.
	name := parsed.Name()
	c.notice(name, snapshot.LettersOf(name))
	*id = parsed
}

// Ascending reports whether s is sorted without duplicates.
func Ascending[T any](s []T, compare func(a, b T) int) bool {
	for i := 1; i < len(s); i++ {
		if compare(s[i-1], s[i]) >= 0 {
			return false
		}
	}
	return true
}

// hexDigits are the values of lower case hex digits; 16 is none.
var hexDigits = func() (t [256]byte) {
	for i := range t {
		t[i] = 16
		if n := strings.IndexByte("0123456789abcdef", byte(i)); n >= 0 {
			t[i] = byte(n)
		}
	}
	return t
}()

// ParseHex fills dst from exactly 2*len(dst) lower case hex digits. Package
// encoding/hex would take upper case too, and one hash would have two spellings.
func ParseHex(dst []byte, s string) bool {
	if len(s) != 2*len(dst) {
		return false
	}
	for i := range dst {
		high, low := hexDigits[s[2*i]], hexDigits[s[2*i+1]]
		if high|low > 15 {
			return false
		}
		dst[i] = high<<4 | low
	}
	return true
}
