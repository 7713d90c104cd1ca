package proof

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fealty-io/fealty/identity"
)

func newSetupToken(t testing.TB) SetupToken {
	t.Helper()
	token, err := NewSetupToken(nil, SetupToken{Addresses: []string{"coordinator-0.example:7600"}, KeyHash: identity.KeyID{2}})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// sameToken compares what two tokens hold, secrets included.
func sameToken(a, b any) bool {
	reveal := func(v any) (any, string) {
		switch v := v.(type) {
		case JoinToken:
			s := hex.EncodeToString(v.Secret.reveal())
			v.Secret = Secret{}
			return v, s
		case SetupToken:
			s := hex.EncodeToString(v.Secret.reveal())
			v.Secret = Secret{}
			return v, s
		}
		panic("no token")
	}
	va, sa := reveal(a)
	vb, sb := reveal(b)
	return reflect.DeepEqual(va, vb) && sa == sb
}

func TestJoinTokenLine(t *testing.T) {
	token := newJoinToken(t)
	line := token.Line()
	if !strings.HasPrefix(line, "fealty1_") || strings.ContainsAny(line, " \t\r\n=+/") {
		t.Errorf("line %q", line)
	}
	for _, around := range []string{"", "\n", "\r\n", " \t"} {
		got, err := ParseJoinToken(around + line + around)
		if err != nil || !sameToken(got, token) {
			t.Errorf("with %q around: %+v, %v", around, got, err)
		}
	}
	parsed, err := ParseJoinToken(line)
	if err != nil {
		t.Fatal(err)
	}
	if !parsed.PublicKey().Equal(token.PublicKey()) {
		t.Error("the parsed token has another key")
	}
	renamed := token
	renamed.ID = newJoinToken(t).ID
	if renamed.PublicKey().Equal(token.PublicKey()) {
		t.Error("two ids derive one key from one secret")
	}
}

func TestSetupTokenLine(t *testing.T) {
	token := newSetupToken(t)
	line := token.Line()
	if !strings.HasPrefix(line, "fealtysetup1_") {
		t.Errorf("line %q", line)
	}
	got, err := ParseSetupToken(" " + line + "\n")
	if err != nil || !sameToken(got, token) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Every token in circulation depends on these values, which another program
// computed from the documentation.
func TestGoldenTokens(t *testing.T) {
	join, err := NewJoinToken(bytes.NewReader(sequence(0, 64)), JoinToken{
		Cluster: "prod.example", Addresses: []string{"10.0.0.1:7600"}, Pin: identity.KeyID(sequence(100, 32)), Expires: time.Unix(1800000000, 999),
	})
	if err != nil {
		t.Fatal(err)
	}
	setup, err := NewSetupToken(bytes.NewReader(sequence(10, 32)), SetupToken{Addresses: []string{"10.0.0.1:7600"}, KeyHash: identity.KeyID(sequence(100, 32))})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ what, got, want string }{
		{"id", join.ID, "aaaqeayeaudaocaj"},
		{"join line", join.Line(), "fealty1_AAECAwQFBgcICQxwcm9kLmV4YW1wbGUBDTEwLjAuMC4xOjc2MDBkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5_gIGCgwAAAABrSdIACgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCm-L3BY"},
		{"join key", hex.EncodeToString(join.PublicKey()), "b26a97d88eb0c54ef9d1f0d4cc8f0b370bf060de6e37dba64865ce82f117be14"},
		{"setup line", setup.Line(), "fealtysetup1_AQ0xMC4wLjAuMTo3NjAwZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1-f4CBgoMKCwwNDg8QERITFBUWFxgZGhscHR4fICEiIyQlJicoKcooHIY"},
		{"setup key", hex.EncodeToString(setup.PublicKey()), "86c45ebea9bdef5c2bf1a8ff9053c4dc56711eed07273c7513addb84309af7c0"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, tt.got, tt.want)
		}
	}
}

// Every token line differs from every other in more than what a hand gets wrong.
func TestEveryTypoIsRefused(t *testing.T) {
	const typed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+/ .,\n\x00\xff"
	for _, tt := range []struct {
		line  string
		parse func(string) error
	}{
		{newJoinToken(t).Line(), func(s string) error { _, err := ParseJoinToken(s); return err }},
		{newSetupToken(t).Line(), func(s string) error { _, err := ParseSetupToken(s); return err }},
	} {
		if err := tt.parse(tt.line); err != nil {
			t.Fatal(err)
		}
		refused := func(what, line string) {
			t.Helper()
			err := tt.parse(line)
			format, ok := errors.AsType[*TokenFormatError](err)
			if !ok {
				t.Fatalf("%s: %v", what, err)
			}
			if format.Problem == ProblemContent {
				t.Fatalf("%s: got as far as the fields: %v", what, err)
			}
		}
		for i := range len(tt.line) {
			for _, c := range []byte(typed) {
				if c != tt.line[i] {
					refused(fmt.Sprintf("character %d to %q", i, c), tt.line[:i]+string([]byte{c})+tt.line[i+1:])
				}
			}
			refused(fmt.Sprintf("without character %d", i), tt.line[:i]+tt.line[i+1:])
			refused(fmt.Sprintf("character %d twice", i), tt.line[:i+1]+tt.line[i:])
			if i > 0 {
				refused(fmt.Sprintf("cut off after %d", i), tt.line[:i])
				if tt.line[i-1] != tt.line[i] {
					refused(fmt.Sprintf("characters %d and %d swapped", i-1, i), tt.line[:i-1]+tt.line[i:i+1]+tt.line[i-1:i]+tt.line[i+1:])
				}
			}
			if i > 0 && i < len(tt.line)-1 {
				refused(fmt.Sprintf("broken at %d", i), tt.line[:i]+"\n"+tt.line[i:])
			}
		}
	}
}

// pack makes a line with a good checksum of any fields.
func pack(prefix string, fields []byte) string {
	sum := crc32.ChecksumIEEE(append([]byte(prefix), fields...))
	return prefix + base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint32(slices.Clone(fields), sum))
}

func TestTokenFormatErrors(t *testing.T) {
	join, setup := newJoinToken(t).Line(), newSetupToken(t).Line()
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(join, "fealty1_"))
	if err != nil {
		t.Fatal(err)
	}
	fields := raw[:len(raw)-4]
	for _, tt := range []struct {
		name, line  string
		join, setup Problem
	}{
		{"nothing", "", ProblemEmpty, ProblemEmpty},
		{"white space", " \r\n\t", ProblemEmpty, ProblemEmpty},
		{"setup token", setup, ProblemOtherToken, ""},
		{"join token", join, "", ProblemOtherToken},
		{"prefix alone", "fealty1_", ProblemChecksum, ProblemOtherToken},
		{"later release", "fealty2_" + join[8:], ProblemPrefix, ProblemPrefix},
		{"upper prefix", "FEALTY1_" + join[8:], ProblemPrefix, ProblemPrefix},
		{"something else", "eyJhbGciOiJFUzI1NiJ9.e30.c2ln", ProblemPrefix, ProblemPrefix},
		{"inner space", join[:30] + " " + join[30:], ProblemCharacter, ProblemOtherToken},
		{"non-breaking space around", "\u00a0" + join, ProblemPrefix, ProblemPrefix},
		{"cut off", join[:len(join)-5], ProblemChecksum, ProblemOtherToken},
		{"two lines", join + "\n" + join, ProblemCharacter, ProblemOtherToken},
		{"too long", "fealty1_" + strings.Repeat("A", MaxLineBytes), ProblemTooLong, ProblemTooLong},
		{"no fields", pack("fealty1_", nil), ProblemContent, ProblemOtherToken},
		{"a field less", pack("fealty1_", fields[:len(fields)-32]), ProblemContent, ProblemOtherToken},
		{"a byte more", pack("fealty1_", append(slices.Clone(fields), 0)), ProblemContent, ProblemOtherToken},
		{"fields of the other", pack("fealtysetup1_", fields), ProblemOtherToken, ProblemContent},
		{"checksum of the other prefix", "fealtysetup1_" + join[8:], ProblemOtherToken, ProblemChecksum},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, joinErr := ParseJoinToken(tt.line)
			_, setupErr := ParseSetupToken(tt.line)
			for _, got := range []struct {
				err  error
				want Problem
			}{{joinErr, tt.join}, {setupErr, tt.setup}} {
				format, ok := errors.AsType[*TokenFormatError](got.err)
				if got.want == "" && got.err != nil || got.want != "" && (!ok || format.Problem != got.want || format.Do == "") {
					t.Errorf("%v, want problem %q", got.err, got.want)
				}
				// The prefix is known to everybody; of what follows nothing is repeated.
				if got.err != nil {
					for i := 13; i+10 < len(tt.line); i++ {
						if strings.Contains(got.err.Error(), tt.line[i:i+10]) {
							t.Errorf("the error repeats the line: %v", got.err)
							break
						}
					}
				}
			}
		})
	}
	_, err = ParseJoinToken(setup)
	if format, ok := errors.AsType[*TokenFormatError](err); !ok || !strings.Contains(format.Do, setupForm().use) {
		t.Errorf("a setup token is not told its command: %v", err)
	}
}

// Tokens with fields that no honest maker writes, behind a good checksum.
func TestTokenContentIsChecked(t *testing.T) {
	for name, change := range map[string]func(*JoinToken){
		"no cluster":          func(k *JoinToken) { k.Cluster = "" },
		"bad cluster":         func(k *JoinToken) { k.Cluster = "Prod Example" },
		"no address":          func(k *JoinToken) { k.Addresses = nil },
		"nine addresses":      func(k *JoinToken) { k.Addresses = slices.Repeat([]string{"h:1"}, 9) },
		"address, no port":    func(k *JoinToken) { k.Addresses = []string{"10.0.0.1"} },
		"address, port 0":     func(k *JoinToken) { k.Addresses = []string{"10.0.0.1:0"} },
		"address, big port":   func(k *JoinToken) { k.Addresses = []string{"10.0.0.1:65536"} },
		"address, no host":    func(k *JoinToken) { k.Addresses = []string{":7600"} },
		"address with escape": func(k *JoinToken) { k.Addresses = []string{"a\x1b[2Jb:7600"} },
		"address with space":  func(k *JoinToken) { k.Addresses = []string{"a b:7600"} },
		"no pin":              func(k *JoinToken) { k.Pin = identity.KeyID{} },
		"never expired":       func(k *JoinToken) { k.Expires = time.Unix(0, 0) },
		"before 1970":         func(k *JoinToken) { k.Expires = time.Unix(-1, 0) },
		"zero time":           func(k *JoinToken) { k.Expires = time.Time{} },
		"beyond reason":       func(k *JoinToken) { k.Expires = time.Unix(1<<40, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			token := newJoinToken(t)
			change(&token)
			// A line that is not written is not read either.
			mustPanic(t, "Line", func() { token.Line() })
			b := token.fields()
			_, err := ParseJoinToken(pack("fealty1_", b))
			if format, ok := errors.AsType[*TokenFormatError](err); !ok || format.Problem != ProblemContent {
				t.Errorf("Parse = %v", err)
			}
			token.ID, token.Secret = "", Secret{}
			if _, err := NewJoinToken(nil, token); err == nil {
				t.Error("NewJoinToken made it")
			}
		})
	}
	for name, change := range map[string]func(*JoinToken){
		"no id":        func(k *JoinToken) { k.ID = "" },
		"bad id":       func(k *JoinToken) { k.ID = "0123456789abcdef" },
		"no secret":    func(k *JoinToken) { k.Secret = Secret{} },
		"fraction":     func(k *JoinToken) { k.Expires = k.Expires.Add(1) },
		"long address": func(k *JoinToken) { k.Addresses = []string{strings.Repeat("h", 250) + ":65535"} },
	} {
		token := newJoinToken(t)
		change(&token)
		mustPanic(t, name, func() { token.Line() })
	}
	for name, change := range map[string]func(*SetupToken){
		"no address":  func(k *SetupToken) { k.Addresses = nil },
		"no key hash": func(k *SetupToken) { k.KeyHash = identity.KeyID{} },
		"no secret":   func(k *SetupToken) { k.Secret = Secret{} },
	} {
		token := newSetupToken(t)
		change(&token)
		mustPanic(t, name, func() { token.Line() })
	}
}

// A token that is made by hand would have a secret that nobody vouches for.
func TestTokensAreMadeHere(t *testing.T) {
	if _, err := NewJoinToken(nil, newJoinToken(t)); err == nil {
		t.Error("NewJoinToken took an id and a secret")
	}
	if _, err := NewSetupToken(nil, newSetupToken(t)); err == nil {
		t.Error("NewSetupToken took a secret")
	}
	mustPanic(t, "key without a secret", func() { JoinToken{}.PublicKey() })
	mustPanic(t, "key without a secret", func() { SetupToken{}.PublicKey() })
}

func TestLongestLine(t *testing.T) {
	long := slices.Repeat([]string{strings.Repeat("h", 244) + ":65535"}, MaxAddresses)
	if _, err := NewJoinToken(nil, JoinToken{Cluster: cluster, Addresses: long, Pin: identity.KeyID{1}, Expires: time.Now()}); err == nil {
		t.Error("made a join token whose line is too long")
	}
	if _, err := NewSetupToken(nil, SetupToken{Addresses: long, KeyHash: identity.KeyID{1}}); err == nil {
		t.Error("made a setup token whose line is too long")
	}
	token, err := NewJoinToken(nil, JoinToken{Cluster: cluster, Addresses: long[:5], Pin: identity.KeyID{1}, Expires: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseJoinToken(token.Line()); err != nil || !sameToken(got, token) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestTokensNeedRandomness(t *testing.T) {
	broken := iotest.ErrReader(io.ErrClosedPipe)
	for _, random := range []io.Reader{broken, io.MultiReader(bytes.NewReader(sequence(0, tokenIDBytes)), broken), bytes.NewReader(sequence(0, tokenIDBytes+31))} {
		if token, err := NewJoinToken(random, JoinToken{Cluster: cluster, Addresses: []string{"h:1"}, Pin: identity.KeyID{1}, Expires: time.Now()}); err == nil || !token.Secret.IsZero() {
			t.Errorf("NewJoinToken = %v", err)
		}
	}
	if _, err := NewSetupToken(broken, SetupToken{Addresses: []string{"h:1"}, KeyHash: identity.KeyID{1}}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("NewSetupToken = %v", err)
	}
}

func TestTokensHideTheirSecret(t *testing.T) {
	join, setup := newJoinToken(t), newSetupToken(t)
	for _, tt := range []struct {
		name   string
		token  any
		secret Secret
		nested any // in an unexported field
	}{
		{"join", join, join.Secret, struct{ t JoinToken }{join}},
		{"setup", setup, setup.Secret, struct{ t SetupToken }{setup}},
		{"secret", join.Secret, join.Secret, struct{ s Secret }{join.Secret}},
	} {
		bytes := tt.secret.reveal()
		if tt.name != "secret" {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
				if got := fmt.Sprintf(verb, tt.token); got != "feal…" {
					t.Errorf("%s with %s prints %q", tt.name, verb, got)
				}
			}
		}
		for _, v := range []any{tt.token, &tt.token, tt.nested, &tt.nested, []any{tt.token}, map[string]any{"k": tt.nested}} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%c", "%b", "%t"} {
				checkHidden(t, tt.name+" "+verb, fmt.Sprintf(verb, v), bytes)
			}
			out, err := json.Marshal(v)
			if err != nil {
				t.Errorf("%s: json: %v", tt.name, err)
			}
			checkHidden(t, tt.name+" in JSON", string(out), bytes)
			var log strings.Builder
			slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
			slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
			checkHidden(t, tt.name+" in a log", log.String(), bytes)
		}
	}
	if out, _ := json.Marshal(map[string]any{"token": join}); string(out) != `{"token":"feal…"}` {
		t.Errorf("JSON: %s", out)
	}
}
