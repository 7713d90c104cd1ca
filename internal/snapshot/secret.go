package snapshot

import "strings"

// secretForm is a form that raw credentials have.
type secretForm struct {
	kind string // what it is, for the reason of a refusal; the string itself is never shown
	// begin is where it begins, in lower case if fold.
	begin string
	fold  bool
	// plain: the form may consist of lower case letters, digits, '-' and '.' alone, so
	// that it is looked for in every string; see codec.notice.
	plain bool
	// is decides on what follows begin.
	is func(rest string) bool
}

// secretForms is the table of check 12, and settled: a form that comes in would have nodes refuse what was stored and
// signed before it, and one that goes out would have older nodes refuse what a coordinator takes. New ones come
// in learned.go. It finds what was put in by mistake,
// not what somebody hides: a compiler that means harm can write a key in another
// way, which is why contents have typed references where a secret is needed.
var secretForms = []secretForm{
	{kind: "private key", begin: "private key-----", fold: true},
	{kind: "age secret key", begin: "age-secret-key-", fold: true},
	{kind: "private key", begin: "putty-user-key-file-", fold: true},
	{kind: "Fealty token", begin: "fealty1_"},
	{kind: "JSON web token", begin: "eyJ", is: func(rest string) bool {
		n := tokenRun(rest)
		return n >= 8 && strings.HasPrefix(rest[n:], ".") && tokenRun(rest[n+1:]) >= 4
	}},
	{kind: "bearer token", begin: "bearer ", fold: true, is: atLeast(16)},
	{kind: "basic credentials", begin: "basic ", fold: true, is: atLeast(12)},
	{kind: "AWS access key", begin: "AKIA", is: atLeast(16)},
	{kind: "AWS access key", begin: "ASIA", is: atLeast(16)},
	{kind: "GitHub token", begin: "ghp_", is: atLeast(20)},
	{kind: "GitHub token", begin: "gho_", is: atLeast(20)},
	{kind: "GitHub token", begin: "ghu_", is: atLeast(20)},
	{kind: "GitHub token", begin: "ghs_", is: atLeast(20)},
	{kind: "GitHub token", begin: "ghr_", is: atLeast(20)},
	{kind: "GitHub token", begin: "github_pat_", is: atLeast(20)},
	{kind: "GitLab token", begin: "glpat-", plain: true, is: atLeast(16)},
	{kind: "Slack token", begin: "xox", plain: true, is: func(rest string) bool {
		return len(rest) > 1 && strings.IndexByte("abeprs", rest[0]) >= 0 && rest[1] == '-' && tokenRun(rest[2:]) >= 10
	}},
	{kind: "Google API key", begin: "AIza", is: atLeast(30)},
	{kind: "Stripe key", begin: "sk_live_", is: atLeast(10)},
	{kind: "Stripe key", begin: "rk_live_", is: atLeast(10)},
	{kind: "npm token", begin: "npm_", is: atLeast(30)},
	{kind: "Vault token", begin: "hvs.", plain: true, is: atLeast(20)},
	{kind: "SendGrid key", begin: "SG.", is: atLeast(20)},
	{kind: "password in an address", begin: "://", is: func(rest string) bool {
		authority, _, _ := strings.Cut(rest, "/")
		at := strings.LastIndexByte(authority, '@')
		colon := strings.IndexByte(authority, ':')
		return colon >= 0 && at > colon+1
	}},
	{kind: "password", begin: "password=", fold: true, is: atLeast(1)},
	{kind: "password", begin: "passwd=", fold: true, is: atLeast(1)},
	{kind: "secret", begin: "secret=", fold: true, is: atLeast(1)},
	{kind: "account key", begin: "accountkey=", fold: true, is: atLeast(1)},
	{kind: "API key", begin: "api_key=", fold: true, is: atLeast(1)},
}

// shortestSecret is the length below which no form fits.
const shortestSecret = 9

// FindSecret returns the kind of raw secret that s holds, or "". odd says that s
// has an upper case letter, '_', '=', '@', a space, an escape or a character
// above ASCII: the ids and addresses of a snapshot have none of these, and are
// looked through for the few forms that could do without, too. [FindSecretAmong] says the same of a string whose
// letters were noted while it was read.
func FindSecret(s string, odd bool) string {
	if len(s) < shortestSecret {
		return ""
	}
	if !odd {
		return findIn(s, &plainStarts)
	}
	return findIn(s, &formStarts)
}

// CheckedIn says what kind of raw secret check 12 finds in text, the value of a setting called name, or "". It is for what
// was stored or certified before: nodes of all releases refuse this, and no more.
func CheckedIn(name, text string) string {
	if text == "" {
		return ""
	}
	if kind := SecretName(name); kind != "" {
		return kind
	}
	return FindSecret(text, true)
}

// formStarts are the forms of secretForms by their first byte, in either case for
// those that fold; plainStarts are those of the plain ones.
var formStarts, plainStarts = func() (all, plain [256][]*secretForm) {
	for i := range secretForms {
		f := &secretForms[i]
		first := f.begin[0]
		all[first] = append(all[first], f)
		if upper := upperASCII(first); f.fold && upper != first {
			all[upper] = append(all[upper], f)
		}
		if f.plain {
			plain[f.begin[0]] = append(plain[f.begin[0]], f)
		}
	}
	return all, plain
}()

func upperASCII(b byte) byte {
	if 'a' <= b && b <= 'z' {
		return b - 'a' + 'A'
	}
	return b
}

// findIn looks for the forms in one pass: a snapshot has many strings, and almost
// all are names.
func findIn(s string, starts *[256][]*secretForm) string {
	for i := range len(s) {
		for _, f := range starts[s[i]] {
			if n := i + len(f.begin); n <= len(s) && (s[i:n] == f.begin || f.fold && equalFoldASCII(s[i:n], f.begin)) &&
				(f.is == nil || f.is(s[n:])) {
				return f.kind
			}
		}
	}
	return ""
}

// equalFoldASCII reports whether s, in lower case, is lower. The letters that
// Unicode folds to ASCII ones are not those that programs look for.
func equalFoldASCII(s, lower string) bool {
	for i := range len(s) {
		if b := s[i]; b != lower[i] && (b < 'A' || b > 'Z' || b-'A'+'a' != lower[i]) {
			return false
		}
	}
	return true
}

func atLeast(n int) func(string) bool {
	return func(rest string) bool { return tokenRun(rest) >= n }
}

// tokenRun returns how many characters of a token (RFC 7235, token68) s begins
// with, without the dot, which separates the parts of a web token.
func tokenRun(s string) int {
	for i := range len(s) {
		switch b := s[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9',
			b == '-', b == '_', b == '+', b == '/', b == '=', b == '~':
		default:
			return i
		}
	}
	return len(s)
}

// secretNames end the names of parameters that hold secrets.
var secretNames = []string{
	"password", "passwd", "passphrase", "pwd", "secret", "token", "api_key", "api-key", "apikey",
	"private_key", "private-key",
	"access_key", "access-key", "account_key", "accountkey", "credential", "credentials",
}

// SecretName returns what a parameter holds by its name, whatever its value looks
// like, or "".
func SecretName(name string) string {
	if name == "" || strings.IndexByte("delnstyDELNSTY", name[len(name)-1]) < 0 {
		return "" // for speed: what secretNames end in
	}
	for _, end := range secretNames {
		if n := len(name) - len(end); n >= 0 && strings.EqualFold(name[n:], end) {
			return "value of a parameter named as a " + end
		}
	}
	return ""
}
