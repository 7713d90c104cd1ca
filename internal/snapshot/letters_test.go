package snapshot_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/snapshot"
)

// isOdd is what FindSecret calls odd, said without the table.
func isOdd(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' || r > 0x7f || strings.ContainsRune(`ABCDEFGHIJKLMNOPQRSTUVWXYZ_=@ \`, r)
	})
}

// among fails unless a search by letters finds in s what a search of all of s finds, and returns it.
func among(t testing.TB, s string) string {
	t.Helper()
	letters := snapshot.LettersOf(s)
	want := snapshot.FindSecret(s, isOdd(s))
	if got := snapshot.FindSecretAmong(s, letters); got != want {
		t.Fatalf("%q, by its letters: %q, want %q", s, got, want)
	}
	whole := snapshot.FindSecret(s, true)
	if got := snapshot.FindSecretAmong(s, letters.Escaped()); got != whole {
		t.Fatalf("%q, of a literal with escapes: %q, want %q", s, got, whole)
	}
	return want
}

// What is passed over because a string has not the letters for it is what no form would have found.
func TestSecretsAmongLetters(t *testing.T) {
	t.Parallel()
	begins := []string{
		"private key-----", "PRIVATE KEY-----", "age-secret-key-", "AGE-SECRET-KEY-", "PuTTY-User-Key-File-", "fealty1_", "eyJ", "bearer ",
		"Bearer ", "basic ", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xoxb-", "AIza", "sk_live_",
		"rk_live_", "npm_", "hvs.", "SG.", "://", "://app:word@db", "password=", "PassWD=", "secret=", "accountkey=", "api_key=",
	}
	more := []string{"", " ", "a", "Z", "-", "_", ".", ":", "/", "=", "@", "\n", "\\", "\"", "é", "\x7f", "spiffe", "host", "0123456789abcdefghij0123456789"}
	r := rand.New(rand.NewPCG(1, 2))
	found := map[string]bool{}
	for range 200_000 {
		var b strings.Builder
		for range r.IntN(4) {
			b.WriteString(more[r.IntN(len(more))])
		}
		begin := begins[r.IntN(len(begins))]
		b.WriteString(begin[:len(begin)-r.IntN(2)*r.IntN(len(begin))])
		for range r.IntN(4) {
			b.WriteString(more[r.IntN(len(more))])
		}
		found[among(t, b.String())] = true
	}
	for _, kind := range []string{
		"private key", "age secret key", "Fealty token", "bearer token", "basic credentials", "AWS access key", "GitHub token", "GitLab token",
		"Slack token", "Google API key", "Stripe key", "npm token", "Vault token", "SendGrid key", "password in an address", "password", "secret", "account key", "API key",
	} {
		if !found[kind] {
			t.Errorf("no %s was ever there to be found", kind)
		}
	}
}

func FuzzSecretsAmongLetters(f *testing.F) {
	for _, s := range []string{"", "edge-pool-1", "postgres://app:hunter@db.example/app", "n-glpat-0123456789abcdef0", "Password=x-y-z", "x\"y\\z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_ = among(t, s)
		end, letters := snapshot.ScanLiteral(s, 0)
		if at := strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > 0x7f || r == '"' || r == '\\' }); at < 0 && end != len(s) || at >= 0 && end != at {
			t.Fatalf("%q is as it is up to %d, want %d", s, end, at)
		}
		if letters != snapshot.LettersOf(s[:end]) {
			t.Fatalf("letters of %q", s[:end])
		}
	})
}

// The names of settings that hold secrets are found by their ends, in any case, and nothing else is.
func TestSecretNames(t *testing.T) {
	t.Parallel()
	for _, end := range []string{
		"password", "passwd", "passphrase", "pwd", "secret", "token", "api_key", "api-key", "apikey", "private_key", "private-key",
		"access_key", "access-key", "account_key", "accountkey", "credential", "credentials",
	} {
		for _, name := range []string{end, "db." + end, strings.ToUpper(end), "X" + strings.ToUpper(end[:1]) + end[1:]} {
			if snapshot.SecretName(name) == "" {
				t.Errorf("%q names no secret", name)
			}
		}
		if got := snapshot.SecretName(end + "-file"); got != "" {
			t.Errorf("%q: %s", end+"-file", got)
		}
	}
	for _, name := range []string{"", "d", "log.level", "tokens", "MaxConnections", "key"} {
		if got := snapshot.SecretName(name); got != "" {
			t.Errorf("%q: %s", name, got)
		}
	}
}
