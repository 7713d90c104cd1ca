package tokens_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/jwtsvid"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/platform/watch"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/workload/tokens"
	"github.com/fealty-io/fealty/snapshot"
)

const cluster = "test.example"

// signer is a config signing key with the key of tokens beside it.
type signer struct {
	listed    snapshot.ConfigKey
	token     *ecdsa.PrivateKey
	statement jwtsvid.Statement
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{listed: snapshot.ConfigKey{Algorithm: internalsnapshot.AlgorithmTree, Key: public,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}}
	if s.token, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err == nil {
		s.statement, err = jwtsvid.SignKey(cluster, s.token.Public(), private)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// site is a node with a coordinator.
type site struct {
	t       *testing.T
	disk    *durabletest.Disk
	changed watch.Signal

	mu         sync.Mutex
	offset     time.Duration                         // guarded by mu
	down       error                                 // guarded by mu
	trusted    []snapshot.ConfigKey                  // guarded by mu
	statements []jwtsvid.Statement                   // guarded by mu
	banned     map[identity.ID]bool                  // guarded by mu
	signed     int                                   // guarded by mu
	asked      int                                   // for statements; guarded by mu
	answer     func([]tokens.Answer) []tokens.Answer // guarded by mu
}

func (s *site) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// questions returns how often statements were asked for.
func (s *site) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *site) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.offset)
}

func (s *site) tokens() *tokens.Tokens {
	s.t.Helper()
	out, err := tokens.New(tokens.Config{
		Sign: func(_ context.Context, asks []tokens.Ask) ([]tokens.Answer, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.down != nil {
				return nil, s.down
			}
			var out []tokens.Answer
			for range asks {
				s.signed++
				out = append(out, tokens.Answer{Token: fmt.Sprint("token ", s.signed), Expires: time.Now().Add(5 * time.Minute)})
			}
			if s.answer != nil {
				out = s.answer(out)
			}
			return out, nil
		},
		Statements: func(context.Context) ([]jwtsvid.Statement, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked++
			return slices.Clone(s.statements), s.down
		},
		Trusted: func() []snapshot.ConfigKey {
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Clone(s.trusted)
		},
		Changed: s.changed.Wait,
		Banned: func(id identity.ID, _ identity.KeyID) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.banned[id]
		},
		Cluster: cluster, FS: s.disk.FS(), Dir: "w", Now: s.now, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *site) run(k *tokens.Tokens) {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			s.t.Error(err)
		}
	})
	synctest.Wait()
}

func inside(t *testing.T, f func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, &site{t: t, disk: durabletest.NewDisk(), banned: make(map[identity.ID]bool)})
	})
}

func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

func idOf(t *testing.T, kind identity.Kind, name string) identity.ID {
	t.Helper()
	id, err := identity.New(cluster, kind, name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// get returns the token of a for audience, or why there is none.
func get(t *testing.T, k *tokens.Tokens, audience ...string) string {
	t.Helper()
	got, err := k.Get(t.Context(), []tokens.Ask{{ID: idOf(t, identity.Workload, "a"), Audience: audience}})
	switch {
	case err != nil:
		return "error " + err.Error()
	case len(got) != 1:
		t.Fatalf("%d answers", len(got))
	case got[0].Refusal != "":
		return "refused " + got[0].Refusal
	}
	return got[0].Token
}

// A token is kept for half of its life, for its audience alone, and in an outage until it is about to end.
func TestKept(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		k := s.tokens()
		first := get(t, k, "x")
		if first != "token 1" {
			t.Fatal(first)
		}
		pass(149 * time.Second)
		if got := get(t, k, "x"); got != first {
			t.Errorf("within half of its life: %s", got)
		}
		for _, other := range [][]string{{"y"}, {"x", "y"}, {"y", "x"}, {"x\x00y"}, {`x" "y`}} {
			if got := get(t, k, other...); got == first || !strings.HasPrefix(got, "token ") {
				t.Errorf("for %q: %s", other, got)
			}
		}
		if a, b := get(t, k, "x", "y"), get(t, k, "x\x00y"); a == b {
			t.Error("two audiences with a NUL between them are taken for one")
		}
		pass(2 * time.Second)
		second := get(t, k, "x")
		if second == first {
			t.Error("given after half of its life though a coordinator answers")
		}
		s.set(func() { s.down = errors.New("away") })
		pass(5*time.Minute - 6*time.Second)
		if got := get(t, k, "x"); got != second {
			t.Errorf("in an outage: %s", got)
		}
		pass(2 * time.Second)
		if got := get(t, k, "x"); !strings.HasPrefix(got, "error ") || !strings.Contains(got, "away") {
			t.Errorf("about to end: %s", got)
		}
	})
}

// Neither a clock that is set back nor what a coordinator says makes a token count for longer.
func TestClocks(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		k := s.tokens()
		first := get(t, k, "x")
		s.set(func() { s.offset = -time.Hour })
		if got := get(t, k, "x"); got == first {
			t.Error("given on by a clock that was set back")
		}
		s.set(func() {
			s.offset = 0
			s.answer = func(a []tokens.Answer) []tokens.Answer { a[0].Expires = time.Now().Add(1000 * time.Hour); return a }
		})
		long := get(t, k, "long")
		pass(151 * time.Second)
		if got := get(t, k, "long"); got == long {
			t.Error("given for longer than a token lives")
		}
		s.set(func() { s.down = errors.New("away") })
		pass(time.Hour)
		if got := get(t, k, "long"); !strings.HasPrefix(got, "error ") {
			t.Errorf("an hour into an outage: %s", got)
		}
	})
}

// An answer of a coordinator that is no token is given to nobody.
func TestBadAnswers(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		k := s.tokens()
		for name, answer := range map[string]func([]tokens.Answer) []tokens.Answer{
			"none":    func([]tokens.Answer) []tokens.Answer { return nil },
			"more":    func(a []tokens.Answer) []tokens.Answer { return append(a, a...) },
			"blank":   func([]tokens.Answer) []tokens.Answer { return make([]tokens.Answer, 1) },
			"huge":    func(a []tokens.Answer) []tokens.Answer { a[0].Token = strings.Repeat("x", 1<<20); return a },
			"refused": func(a []tokens.Answer) []tokens.Answer { a[0].Refusal = "no"; return a },
		} {
			s.set(func() { s.answer = answer })
			if got := get(t, k, name); strings.HasPrefix(got, "token ") || len(got) > 1000 || got == "" {
				t.Errorf("%s: %.100s", name, got)
			}
			s.set(func() { s.answer = nil })
			if got := get(t, k, name); !strings.HasPrefix(got, "token ") {
				t.Errorf("after %s: %s", name, got)
			}
		}
		if got, err := k.Get(t.Context(), nil); err != nil || len(got) != 0 {
			t.Errorf("nothing: %v, %v", got, err)
		}
		for n := range tokens.MaxKept + 10 {
			if got := get(t, k, fmt.Sprint("a", n)); !strings.HasPrefix(got, "token ") {
				t.Fatal(got)
			}
		}
	})
}

// Keys count while the trust bundle lists their signer, whatever a coordinator or the disk says.
func TestKeys(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		one, two := newSigner(t), newSigner(t)
		has := func(k *tokens.Tokens, which *signer) bool {
			keys := k.Keys()
			return keys != nil && keys.Bundle.HasJWTAuthority(jwtsvid.IDOf(which.statement.Key)) &&
				strings.Contains(string(keys.JWKS), jwtsvid.IDOf(which.statement.Key))
		}
		s.trusted, s.statements = []snapshot.ConfigKey{one.listed}, []jwtsvid.Statement{one.statement, two.statement}
		k := s.tokens()
		if k.Keys() != nil {
			t.Error("keys before anybody told")
		}
		changed := k.Changed()
		s.run(k)
		if !has(k, one) || has(k, two) {
			t.Error("not the key whose signer is listed")
		}
		select {
		case <-changed:
		default:
			t.Error("nobody was told")
		}
		// A signer that comes is known at once, and the hour passes without a question.
		s.set(func() { s.trusted = append(s.trusted, two.listed) })
		s.changed.Notify()
		synctest.Wait()
		if !has(k, one) || !has(k, two) {
			t.Error("a signer that came")
		}
		three := newSigner(t)
		s.set(func() {
			s.trusted, s.statements = append(s.trusted, three.listed), append(s.statements, three.statement)
		})
		s.changed.Notify()
		synctest.Wait()
		if !has(k, three) {
			t.Error("a signer that came, of whose key nobody had told")
		}
		before := s.questions()
		pass(50 * time.Minute)
		if s.questions() != before {
			t.Errorf("asked %d times in 50 minutes", s.questions()-before)
		}
		// From disk, in an outage; a revoked one is gone at once.
		s.set(func() { s.down = errors.New("away") })
		again := s.tokens()
		if !has(again, one) || !has(again, two) {
			t.Error("not from disk")
		}
		s.set(func() { s.trusted[1].Revoked = true })
		s.changed.Notify()
		synctest.Wait()
		if !has(k, one) || has(k, two) {
			t.Error("a revoked signer's key counts")
		}
		pass(24 * time.Hour)
		if has(k, one) {
			t.Error("the key of a signer that ended counts")
		}
		s.disk.Put("w/token-keys.json", []byte(`[{"key":"AAAA"`))
		if s.tokens().Keys() != nil {
			t.Error("keys of a damaged file")
		}
	})
}

// A token is verified by our own keys, clock and bans.
func TestValidate(t *testing.T) {
	inside(t, func(t *testing.T, s *site) {
		good, stranger := newSigner(t), newSigner(t)
		s.trusted, s.statements = []snapshot.ConfigKey{good.listed}, []jwtsvid.Statement{good.statement}
		k := s.tokens()
		if _, _, err := k.Validate("e30.e30.e30", "ledger"); !errors.Is(err, tokens.ErrNoKey) {
			t.Errorf("verified without keys: %v", err)
		}
		if _, _, err := k.Validate("x", "ledger"); err == nil || errors.Is(err, tokens.ErrNoKey) {
			t.Errorf("what is no token, without keys: %v", err)
		}
		s.run(k)
		member, workload := idOf(t, identity.Data, "node-a"), idOf(t, identity.Workload, "a")
		key := identity.KeyID{1}
		minted := func(by *signer, edit func(*jwtsvid.Claims)) string {
			c := jwtsvid.Claims{Claims: jwt.Claims{Subject: workload.String(), Audience: jwt.Audience{"ledger"},
				IssuedAt: jwt.NewNumericDate(time.Now()), Expiry: jwt.NewNumericDate(time.Now().Add(5 * time.Minute))},
				Member: member.String(), MemberKey: key.String()}
			if edit != nil {
				edit(&c)
			}
			sig, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: by.token,
				KeyID: jwtsvid.IDOf(by.statement.Key)}}, new(jose.SignerOptions).WithType("JWT"))
			if err != nil {
				t.Fatal(err)
			}
			text, err := jwt.Signed(sig).Claims(c).Serialize()
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		text := minted(good, nil)
		if id, claims, err := k.Validate(text, "ledger"); err != nil || id != workload || claims["vouched_by"] != member.String() {
			t.Errorf("a good one: %v, %v, %v", id, claims, err)
		}
		for name, tc := range map[string]struct{ token, audience string }{
			"another audience":        {text, "shop"},
			"blank":                   {"", "ledger"},
			"an unknown key":          {minted(stranger, nil), "ledger"},
			"huge":                    {text + strings.Repeat("A", tokens.MaxTokenBytes), "ledger"},
			"no member":               {minted(good, func(c *jwtsvid.Claims) { c.Member = "" }), "ledger"},
			"no key of a member":      {minted(good, func(c *jwtsvid.Claims) { c.MemberKey = "x" }), "ledger"},
			"of a member":             {minted(good, func(c *jwtsvid.Claims) { c.Subject = member.String() }), "ledger"},
			"of another trust domain": {minted(good, func(c *jwtsvid.Claims) { c.Subject = "spiffe://other.example/workload/a" }), "ledger"},
			"without an end":          {minted(good, func(c *jwtsvid.Claims) { c.Expiry = nil }), "ledger"},
			"just ended": {minted(good, func(c *jwtsvid.Claims) {
				c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Second))
			}), "ledger"},
		} {
			if id, _, err := k.Validate(tc.token, tc.audience); err == nil {
				t.Errorf("%s is taken for %s", name, id)
			}
		}
		for name, other := range spellings(text) {
			if id, _, err := k.Validate(other, "ledger"); err == nil {
				t.Errorf("%s: another spelling of a token is taken for %s", name, id)
			}
		}
		for _, id := range []identity.ID{member, workload} {
			s.set(func() { s.banned[id] = true })
			if _, _, err := k.Validate(text, "ledger"); err == nil || !strings.Contains(err.Error(), "banned") {
				t.Errorf("%s is banned: %v", id, err)
			}
			s.set(func() { s.banned[id] = false })
		}
		// A key that is not known has a coordinator asked, and not for each token.
		s.set(func() {
			s.trusted, s.statements = append(s.trusted, stranger.listed), append(s.statements, stranger.statement)
		})
		before := s.questions()
		pass(20 * time.Second)
		for range 100 {
			_, _, _ = k.Validate(minted(stranger, nil), "ledger")
		}
		synctest.Wait()
		if _, _, err := k.Validate(minted(stranger, nil), "ledger"); err != nil || s.questions() > before+2 {
			t.Errorf("a new key: %v, asked %d times", err, s.questions()-before)
		}
		before = s.questions()
		nobody := newSigner(t)
		for range 60 {
			_, _, _ = k.Validate(minted(nobody, nil), "ledger")
			pass(time.Second)
		}
		if n := s.asked - before; n > 7 {
			t.Errorf("asked %d times in a minute because of a key that nobody has", n)
		}
	})
}

// spellings are texts that are read as token by whoever is not strict: none is its compact form (RFC 7515,
// section 7.1).
func spellings(token string) map[string]string {
	out := map[string]string{
		"a line feed after it": token + "\n", "a line break after it": token + "\r\n", "a line feed before it": "\n" + token,
		"a space after it": token + " ", "a space before it": " " + token, "a tab after it": token + "\t",
		"padding": token + "==", "a dot after it": token + ".", "a fourth part": token + ".AAAA",
		"with a scheme": "Bearer " + token, "the JSON form": `{"token":"` + token + `"}`,
	}
	parts := strings.Split(token, ".")
	for i, part := range parts {
		edit := func(name, other string) {
			all := slices.Clone(parts)
			all[i] = other
			out[fmt.Sprintf("%s in part %d", name, i+1)] = strings.Join(all, ".")
		}
		edit("a line feed", part[:3]+"\n"+part[3:])
		edit("a line feed at the end", part+"\n")
		edit("padding", part+strings.Repeat("=", (4-len(part)%4)%4+4))
		edit("the standard alphabet", part+"+/")
		// The last character of a part whose length is no multiple of four has two or four bits too many.
		const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
		if len(part)%4 != 0 {
			last := strings.IndexByte(alphabet, part[len(part)-1])
			edit("loose bits", part[:len(part)-1]+alphabet[last|1:last|1+1])
		}
	}
	return out
}
