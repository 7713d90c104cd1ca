package devcluster

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
	"strings"
	"testing"
)

// scanWindow is how many bytes in a row of a secret betray it: also who prints a part of
// one is found.
const scanWindow = 12

// scanner finds secrets in what others can see, in whatever form. It looks at
// each byte several times, and at copies that no other goroutine knows: the race detector
// leaves its loops out.
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
	}{{"", data}, {"unfolded ", unfolded(data)}, {"escaped ", unescaped(data)}} {
		if view.data == nil {
			continue
		}
		s.raw(view.form+"bytes", view.data, found)
		runs(view.data, isHex, 2*scanWindow, func(run []byte) {
			for shift := range 2 {
				if text := run[shift : shift+(len(run)-shift)/2*2]; len(text) > 0 {
					b := make([]byte, len(text)/2)
					hex.Decode(b, text)
					s.raw(view.form+"hex", b, found)
				}
			}
		})
		runs(view.data, isBase64, scanWindow*4/3, func(run []byte) {
			std := bytes.Map(func(r rune) rune {
				switch r {
				case '-':
					return '+'
				case '_':
					return '/'
				}
				return r
			}, run)
			for shift := range 4 {
				text := std[shift:]
				if len(text)%4 == 1 {
					text = text[:len(text)-1]
				}
				b := make([]byte, base64.RawStdEncoding.DecodedLen(len(text)))
				n, _ := base64.RawStdEncoding.Decode(b, text) // what ends it is beside the secret
				s.raw(view.form+"Base64", b[:n], found)
			}
		})
		numbers(view.data, func(b []byte) { s.raw(view.form+"numbers", b, found) })
	}
	return found
}

//go:norace
func (s *scanner) raw(form string, data []byte, found map[string]string) {
	var k uint32
	for i, b := range data {
		k = (k<<8 | uint32(b)) & 0xffffff
		if s.likely[k/64]&(1<<(k%64)) == 0 || i < 2 || i-2+scanWindow > len(data) {
			continue
		}
		for _, what := range s.whose[[scanWindow]byte(data[i-2:])] {
			if _, ok := found[what]; !ok {
				found[what] = form
			}
		}
	}
}

//go:norace
func isHex(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b && b <= 'f' || 'A' <= b && b <= 'F'
}

//go:norace
func isBase64(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || b == '+' || b == '/' || b == '-' || b == '_'
}

// runs calls f with each longest run of at least so many bytes that are of a kind.
//
//go:norace
func runs(data []byte, of func(byte) bool, least int, f func([]byte)) {
	for i := 0; i < len(data); i++ {
		start := i
		for i < len(data) && of(data[i]) {
			i++
		}
		if i-start >= least {
			f(data[start:i])
		}
	}
}

// numbers calls f with the bytes of each list of numbers below 256, decimal or in hex
// with or without 0x: [1,2,3], [1 2 3], 01:02:03, []byte{0x1, 0x2}.
//
//go:norace
func numbers(data []byte, f func([]byte)) {
	var decimal, inHex []byte
	end := func(list *[]byte) {
		if len(*list) >= scanWindow {
			f(*list)
		}
		*list = (*list)[:0]
	}
	flush := func() { end(&decimal); end(&inHex) }
	for i := 0; i < len(data); {
		if !isHex(data[i]) { // as most bytes are
			if len(decimal)+len(inHex) > 0 {
				flush()
			}
			i++
			continue
		}
		start := i
		if data[i] == '0' && i+1 < len(data) && data[i+1] == 'x' {
			i += 2
		}
		digits := i
		n, h, dec := 0, 0, i == start
		for ; i < len(data) && i-digits < 4 && isHex(data[i]); i++ {
			d := 0
			switch b := data[i]; {
			case b <= '9':
				d = int(b - '0')
			default:
				d, dec = int(b|0x20-'a')+10, false
			}
			n, h = n*10+d, h*16+d
		}
		size := i - digits
		if size == 0 || size > 3 {
			flush()
			i = max(i, start+1)
			continue
		}
		if dec && n < 256 {
			decimal = append(decimal, byte(n))
		} else {
			end(&decimal)
		}
		if h < 256 {
			inHex = append(inHex, byte(h))
		} else {
			end(&inHex)
		}
		// What stands between two of them: at most three bytes.
		gap := i
		for i < len(data) && i-gap < 3 && strings.IndexByte(", :\n\t;", data[i]) >= 0 {
			i++
		}
		if i == gap {
			flush()
		}
	}
	flush()
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

// unescaped returns data with \x12, \u0012, \012 and the short escapes undone; nil if
// there are none.
//
//go:norace
func unescaped(data []byte) []byte {
	if bytes.IndexByte(data, '\\') < 0 {
		return nil
	}
	digits := func(b []byte, n int, base int) (v int, ok bool) {
		if len(b) < n {
			return 0, false
		}
		for _, c := range b[:n] {
			if !isHex(c) || base == 8 && c > '7' {
				return 0, false
			}
			d := int(c - '0')
			if c > '9' {
				d = int(c|0x20-'a') + 10
			}
			v = v*base + d
		}
		return v, true
	}
	short := map[byte]byte{'n': '\n', 'r': '\r', 't': '\t', 'b': '\b', 'f': '\f', 'a': '\a', 'v': '\v', '\\': '\\', '"': '"', '\'': '\'', '/': '/'}
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' || i+1 == len(data) {
			out = append(out, data[i])
			continue
		}
		rest := data[i+1:]
		if v, ok := digits(rest[1:], 2, 16); rest[0] == 'x' && ok {
			out, i = append(out, byte(v)), i+3
		} else if v, ok := digits(rest[1:], 4, 16); rest[0] == 'u' && ok && v < 256 {
			out, i = append(out, byte(v)), i+5
		} else if v, ok := digits(rest, 3, 8); ok && v < 256 {
			out, i = append(out, byte(v)), i+3
		} else if c, ok := short[rest[0]]; ok {
			out, i = append(out, c), i+1
		} else {
			out = append(out, data[i])
		}
	}
	return out
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
	s := newScanner(map[string][]byte{"it": secret})
	for name, text := range forms {
		for _, data := range []string{text, "before " + text + " after", `{"k":"` + text + `"}`, "token=x" + text} {
			if name == "raw" || name == "a part" || name == "DER" || !strings.HasPrefix(data, "token") { // what is glued to text is of its form
				if s.find([]byte(data))["it"] == "" {
					t.Errorf("%s is not seen in %q", name, data)
				}
			}
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
