package story

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// scanWindow is how many bytes in a row of a secret betray it: also who prints a part of
// one is found.
const scanWindow = 12

// scanner finds secrets in what others can see, in whatever form. It looks at
// each byte several times, and at copies that no other goroutine knows: the race detector
// leaves its loops out. So they call nothing that the detector watches, closures
// included.
type scanner struct {
	likely [1 << 18]uint64 // by the first three bytes of a window, one bit each: most data ends here
	whose  map[[scanWindow]byte][]string
}

func newScanner(secrets map[string][]byte) *scanner {
	s := &scanner{whose: make(map[[scanWindow]byte][]string)}
	for what, secret := range secrets {
		for i := range len(secret) - scanWindow + 1 {
			w := [scanWindow]byte(secret[i:])
			s.whose[w] = append(s.whose[w], what)
			k := uint32(w[0])<<16 | uint32(w[1])<<8 | uint32(w[2])
			s.likely[k/64] |= 1 << (k % 64)
		}
	}
	return s
}

// find returns which secrets are in data, and the form of each. It looks at the bytes as
// they are, at all that is written in hex, in Base64 of either alphabet and any
// alignment, or as a list of numbers; and at the same with line ends and indents taken
// out, as of PEM, and with escapes undone, as JSON, Go and PostgreSQL write them.
func (s *scanner) find(data []byte) map[string]string {
	found := make(map[string]string)
	for _, view := range []struct {
		form string
		data []byte
	}{{"", data}, {"unfolded ", unfolded(data)}, {"escaped ", unescaped(data, false)}, {"UTF-8 escaped ", unescaped(data, true)}} {
		if view.data == nil {
			continue
		}
		s.raw(view.form+"bytes", view.data, found)
		s.digits(view.form+"hex", view.data, inHex, found)
		s.digits(view.form+"Base64", view.data, inBase64, found)
		s.numbers(view.form+"numbers", view.data, found)
	}
	return found
}

// note notes whose window w is.
func (s *scanner) note(form string, w [scanWindow]byte, found map[string]string) {
	for _, what := range s.whose[w] {
		if _, ok := found[what]; !ok {
			found[what] = form
		}
	}
}

// isLikely reports whether a window may begin with the three bytes that k is.
//
//go:norace
func (s *scanner) isLikely(k uint32) bool { return s.likely[k/64]&(1<<(k%64)) != 0 }

//go:norace
func (s *scanner) raw(form string, data []byte, found map[string]string) {
	var k uint32
	for i, b := range data {
		k = (k<<8 | uint32(b)) & 0xffffff
		if s.isLikely(k) && i >= 2 && i-2+scanWindow <= len(data) {
			s.note(form, [scanWindow]byte(data[i-2:]), found)
		}
	}
}

// digits looks at all that is written in digits, the most significant first. A window may
// begin at any digit, and at any bit of it at which a byte can.
//
//go:norace
func (s *scanner) digits(form string, data []byte, in *notation, found map[string]string) {
	for i := 0; i < len(data); i++ {
		start := i
		for i < len(data) && in.value[data[i]] >= 0 {
			i++
		}
		run := data[start:i]
		if len(run)*in.size < 8*scanWindow {
			continue
		}
		var bits uint32
		for j, b := range run {
			bits = bits<<in.size | uint32(in.value[b])
			for after := 0; after < in.size; after += in.step {
				// Three bytes end that many bits before the end of this digit.
				if !s.isLikely(bits >> after & 0xffffff) {
					continue
				}
				if w, ok := in.window(run, (j+1)*in.size-after-24); ok {
					s.note(form, w, found)
				}
			}
		}
	}
}

// notation is a way to write bytes in digits.
type notation struct {
	value [256]int8 // of each character as a digit, -1 where it is none
	size  int       // bits of a digit
	step  int       // bytes begin at each so many bits of a digit: what divides its bits and a byte's
}

var (
	inHex    = newNotation(4, 4, "0123456789abcdef", "0123456789ABCDEF")
	inBase64 = newNotation(6, 2, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
)

func newNotation(size, step int, alphabets ...string) *notation {
	in := &notation{size: size, step: step}
	for i := range in.value {
		in.value[i] = -1
	}
	for _, a := range alphabets {
		for i, c := range []byte(a) {
			in.value[c] = int8(i)
		}
	}
	return in
}

// window returns the window that begins at a bit of digits, if they have all of it.
//
//go:norace
func (in *notation) window(digits []byte, begin int) (w [scanWindow]byte, ok bool) {
	if begin < 0 || begin+8*scanWindow > len(digits)*in.size {
		return w, false
	}
	bits, have, n := uint32(0), -(begin % in.size), 0
	for i := begin / in.size; n < scanWindow; i++ {
		bits, have = bits<<in.size|uint32(in.value[digits[i]]), have+in.size
		if have >= 8 {
			have -= 8
			w[n], n = byte(bits>>have), n+1
		}
	}
	return w, true
}

// numberList is a list of numbers as far as it was read.
type numberList struct {
	last [scanWindow]byte // the newest is at the end
	n    int              // how many there were
}

// numbers looks at the bytes of each list of numbers below 256, decimal or in hex
// with or without 0x: [1,2,3], [1 2 3], 01:02:03, []byte{0x1, 0x2}.
//
//go:norace
func (s *scanner) numbers(form string, data []byte, found map[string]string) {
	var decimal, hexadecimal numberList
	for i := 0; i < len(data); {
		if inHex.value[data[i]] < 0 { // as most bytes are
			decimal.n, hexadecimal.n = 0, 0
			i++
			continue
		}
		start := i
		if data[i] == '0' && i+1 < len(data) && data[i+1] == 'x' {
			i += 2
		}
		digits := i
		n, h, dec := 0, 0, i == start
		for ; i < len(data) && i-digits < 4 && inHex.value[data[i]] >= 0; i++ {
			d := int(inHex.value[data[i]])
			dec = dec && d < 10
			n, h = n*10+d, h*16+d
		}
		size := i - digits
		if size == 0 || size > 3 {
			decimal.n, hexadecimal.n = 0, 0
			i = max(i, start+1)
			continue
		}
		s.number(form, &decimal, n, dec && n < 256, found)
		s.number(form, &hexadecimal, h, h < 256, found)
		// The text between two of them: at most three bytes.
		gap := i
		for i < len(data) && i-gap < 3 && strings.IndexByte(", :\n\t;", data[i]) >= 0 {
			i++
		}
		if i == gap {
			decimal.n, hexadecimal.n = 0, 0
		}
	}
}

// number adds a number to a list, or ends the list where it is none of a byte, and looks
// at the window that ends with it.
//
//go:norace
func (s *scanner) number(form string, l *numberList, n int, isByte bool, found map[string]string) {
	if !isByte {
		l.n = 0
		return
	}
	for i := range scanWindow - 1 {
		l.last[i] = l.last[i+1]
	}
	l.last[scanWindow-1] = byte(n)
	if l.n++; l.n >= scanWindow && s.isLikely(uint32(l.last[0])<<16|uint32(l.last[1])<<8|uint32(l.last[2])) {
		s.note(form, l.last, found)
	}
}

// unfolded returns data without line ends, as they are and as logs and JSON write them,
// and without the indents that follow; nil if there are none.
//
//go:norace
func unfolded(data []byte) []byte {
	if bytes.IndexByte(data, '\n') < 0 && !bytes.Contains(data, []byte(`\n`)) {
		return nil
	}
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); i++ {
		switch b := data[i]; {
		case b == '\n' || b == '\r':
		case b == '\\' && i+1 < len(data) && (data[i+1] == 'n' || data[i+1] == 'r'):
			i++
		default:
			out = append(out, b)
			continue
		}
		for i+1 < len(data) && (data[i+1] == ' ' || data[i+1] == '\t') {
			i++
		}
	}
	return out
}

// unescaped returns data with \x12, \u0012, \U00000012, \012 and the short escapes undone;
// nil if there are none. A character of \u or \U is its UTF-8 if runes is set: Go quotes
// two bytes that happen to be a character which nobody can see as that character. Without
// it, \u00ab is the byte 0xab.
//
//go:norace
func unescaped(data []byte, runes bool) []byte {
	if bytes.IndexByte(data, '\\') < 0 {
		return nil
	}
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' || i+1 == len(data) {
			out = append(out, data[i])
			continue
		}
		rest := data[i+1:]
		if v, ok := escape(rest[1:], 2, 16); rest[0] == 'x' && ok {
			out, i = append(out, byte(v)), i+3
		} else if v, ok := escape(rest[1:], 4, 16); rest[0] == 'u' && ok && runes {
			out, i = utf8.AppendRune(out, rune(v)), i+5
		} else if v, ok := escape(rest[1:], 8, 16); rest[0] == 'U' && ok && runes {
			out, i = utf8.AppendRune(out, rune(v)), i+9
		} else if v, ok := escape(rest[1:], 4, 16); rest[0] == 'u' && ok && v < 256 {
			out, i = append(out, byte(v)), i+5
		} else if v, ok := escape(rest, 3, 8); ok && v < 256 {
			out, i = append(out, byte(v)), i+3
		} else if at := strings.IndexByte(shortEscapes, rest[0]); at >= 0 {
			out, i = append(out, shortMeanings[at]), i+1
		} else {
			out = append(out, data[i])
		}
	}
	return out
}

// Escapes of one character, and what each means, at the same index.
const (
	shortEscapes  = `nrtbfav\"'/`
	shortMeanings = "\n\r\t\b\f\a\v\\\"'/"
)

// escape returns the number in the first n digits of b, of base 8 or 16.
//
//go:norace
func escape(b []byte, n int, base int) (v int, ok bool) {
	if len(b) < n {
		return 0, false
	}
	for _, c := range b[:n] {
		d := int(inHex.value[c])
		if d < 0 || d >= base {
			return 0, false
		}
		v = v*base + d
	}
	return v, true
}

// The scan finds a secret in every form that it says it looks for, whole or in part,
// and takes nothing else for one.
func TestScan(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	secret := key.Seed()
	block := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: append(der, make([]byte, 64)...)})
	list := func(format, between string) string {
		var parts []string
		for _, b := range secret {
			parts = append(parts, fmt.Sprintf(format, b))
		}
		return strings.Join(parts, between)
	}
	inJSON, err := json.Marshal(map[string]any{"v": secret})
	if err != nil {
		t.Fatal(err)
	}
	var octal strings.Builder
	for _, b := range secret {
		fmt.Fprintf(&octal, `\%03o`, b)
	}
	forms := map[string]string{
		"raw": string(secret), "a part": string(secret[9:21]), "hex": hex.EncodeToString(secret), "upper hex": strings.ToUpper(hex.EncodeToString(secret)),
		"a part in hex": hex.EncodeToString(secret[20:]), "hex from the middle of a byte": hex.EncodeToString(secret)[1:27], "bytea": `\x` + hex.EncodeToString(secret),
		"Base64": base64.StdEncoding.EncodeToString(secret), "unpadded": base64.RawStdEncoding.EncodeToString(secret), "URL": base64.URLEncoding.EncodeToString(secret),
		"URL unpadded": base64.RawURLEncoding.EncodeToString(secret), "a part in Base64": base64.StdEncoding.EncodeToString(secret)[5:24],
		"PEM": string(block), "PEM in a log": fmt.Sprintf("%q", block), "PEM in YAML": strings.ReplaceAll(string(block), "\n", "\n      "), "DER": string(der),
		"%x": fmt.Sprintf("%x", secret), "% x": fmt.Sprintf("% x", secret), "%#v": fmt.Sprintf("%#v", secret), "%v": fmt.Sprint(secret), "%q": fmt.Sprintf("%q", secret), "%+q": fmt.Sprintf("%+q", latin1(secret)),
		"numbers in JSON": "[" + list("%d", ",") + "]", "numbers over lines": list("%d", ",\n"), "openssl": list("%02x", ":"), "octal": octal.String(), "JSON": string(inJSON),
	}
	for _, align := range []int{1, 2, 3, 4, 5} {
		b := append(bytes.Repeat([]byte{7}, align), append(secret, 9, 9, 9, 9)...)
		forms[fmt.Sprintf("in Base64 after %d bytes", align)] = base64.StdEncoding.EncodeToString(b)
		forms[fmt.Sprintf("in URL Base64 after %d bytes", align)] = base64.RawURLEncoding.EncodeToString(b)
	}
	// One window alone, so that each place in a digit is tried.
	for align := range 3 {
		b := append(bytes.Repeat([]byte{7}, align), append(bytes.Clone(secret[4:4+scanWindow]), 9, 9)...)
		forms[fmt.Sprintf("a window in Base64 after %d bytes", align)] = base64.StdEncoding.EncodeToString(b)
	}
	// The signs that the alphabets differ in.
	signs := bytes.Repeat([]byte{0xfb, 0xef, 0xbe, 0xff, 0xff, 0xff}, 3)
	s := newScanner(map[string][]byte{"it": secret, "signs": signs})
	for _, text := range []string{base64.StdEncoding.EncodeToString(signs), base64.URLEncoding.EncodeToString(signs)} {
		if s.find([]byte(text))["signs"] == "" {
			t.Errorf("the signs are not seen in %q", text)
		}
	}
	for name, text := range forms {
		for _, data := range []string{text, "before " + text + " after", `{"k":"` + text + `"}`, "token=x" + text} {
			if name == "raw" || name == "a part" || name == "DER" || !strings.HasPrefix(data, "token") { // what is glued to text is of its form
				if s.find([]byte(data))["it"] == "" {
					t.Errorf("%s is not seen in %q", name, data)
				}
			}
		}
	}
	// Random bytes may be characters that Go quotes by their number.
	for _, r := range []rune{0x85, 0xad, 0x378, 0x200b, 0xfeff, 0xe0001} {
		hidden := fmt.Appendf([]byte("five!"), "%c and 5", r)
		if quoted := fmt.Appendf(nil, "%q", hidden); newScanner(map[string][]byte{"it": hidden}).find(quoted)["it"] == "" {
			t.Errorf("U+%04X hides what is around it in %s", r, quoted)
		}
	}
	for name, text := range map[string]string{
		"the public key": string(key.Public().(ed25519.PublicKey)), "11 bytes of it": string(secret[:11]), "its hash": fmt.Sprintf("%x", sha256.Sum256(secret)), "nothing": "",
	} {
		if got := s.find([]byte(text)); len(got) != 0 {
			t.Errorf("%s is taken for it: %v", name, got)
		}
	}
}

func latin1(b []byte) string {
	out := make([]rune, len(b))
	for i, c := range b {
		out[i] = rune(c)
	}
	return string(out)
}

// A file that was written again is seen again, however short after, and one that is put in
// its place as well, with the same size and times: of what is left out nothing has changed.
func TestChangedFilesAreSeen(t *testing.T) {
	s := newSecrecy(t)
	s.dir, s.published, s.program = t.TempDir(), t.TempDir(), os.Args[0]
	file, other := filepath.Join(s.dir, "file"), filepath.Join(t.TempDir(), "other")
	long, now := time.Now().Add(-time.Hour), time.Now().Add(time.Minute) // a minute, so that this may take one
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	sees := func(text string) {
		t.Helper()
		s.folder()
		if want := fmt.Sprintf("file file #%x", sha256.Sum256([]byte(text)))[:len("file file")+10]; string(s.seen[want]) != text {
			t.Errorf("%q is not seen", text)
		}
	}
	for i := range 5 {
		text := fmt.Sprintf("written %d", i)
		must(os.WriteFile(file, []byte(text), 0o600))
		must(os.Chtimes(file, now, now)) // as a clock of few ticks leaves it
		sees(text)
	}
	must(os.Chtimes(file, long, long))
	sees("written 4")
	s.seen = make(map[string][]byte)
	if s.folder(); len(s.seen) > 0 {
		t.Errorf("what has not changed is read again: %q", s.seen)
	}
	must(os.WriteFile(other, []byte("renamed 1"), 0o600))
	must(os.Chtimes(other, long, long))
	must(os.Rename(other, file))
	sees("renamed 1")
	must(os.WriteFile(file, []byte("written 5"), 0o600))
	sees("written 5")
}
