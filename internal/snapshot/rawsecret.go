package snapshot

import (
	"encoding/base64"
	"slices"
	"strings"
	"unicode/utf8"
)

// SecretIn says what kind of raw secret text looks like, or "". name is that of the setting whose value text is; "": of
// none. It is for new input, before anybody signs it, and knows all that check 12 knows and more: a form that
// was learned later binds what is put from then on, and no node refuses for it what was stored and signed before.
//
// It reads text once, and looks at no more than a few hundred bytes around a place: a text costs its length.
func SecretIn(name, text string) string {
	if text == "" {
		return ""
	}
	if kind := CheckedIn(name, text); kind != "" {
		return kind
	}
	if kind := namedSecret(name, text); kind != "" {
		return kind
	}
	return rawSecret(text)
}

// How far rawSecret looks from a place.
const (
	maxSecretName  = 64  // bytes of a name before a separator
	maxSecretValue = 512 // bytes of a value, and of the arguments of a command
)

// namedSecret says what a parameter holds by its name and value.
func namedSecret(name, value string) string {
	if name == "" || isReference(value) {
		return ""
	}
	last, joined := lastWord(name)
	switch {
	case isSecretName(joined) || last == "pass" || last == "pw":
		if !isSwitch(value) {
			return "value of a parameter named as a " + last
		}
	case last == "key" && !isPublicName(joined) && (isRandom(value) || isPassword(value) && len(value) >= 12),
		last == "auth" && isRandom(value):
		return "value of a parameter named as a " + last
	}
	return ""
}

// secretWords end the names of what holds secrets, in lower case and without what separates words.
var secretWords = []string{
	"password", "passwd", "passphrase", "passcode", "pwd", "bindpw", "rootpw", "sshpass", "storepass", "keypass",
	"psk", "presharedkey", "sharedkey", "sharedsecret", "privatekey", "privkey", "secretkey", "apikey", "accesskey", "accountkey",
	"authkey", "encryptionkey", "signingkey", "masterkey", "clientsecret", "clientkeydata", "setupkey", "licensekey",
}

// weakWords end names that hold secrets, and as often what is none: there the value decides.
var weakWords = []string{"pass", "pw", "secret", "token", "key", "credential", "credentials", "auth"}

// isSecretName reports whether a name, in lower case and without what separates words, is one of a secret.
func isSecretName(joined string) bool {
	if joined == "" || strings.IndexByte("adekstwy", joined[len(joined)-1]) < 0 {
		return false // for speed: what secretWords end in
	}
	for _, w := range secretWords {
		if strings.HasSuffix(joined, w) {
			return true
		}
	}
	return false
}

// isPublicName reports whether a name that ends in key is of one that others may see, or of one that opens nothing.
func isPublicName(joined string) bool {
	for _, w := range []string{
		"public", "pub", "host", "known", "cache", "routing", "partition", "sort", "primary", "foreign", "object", "label",
		"group", "index", "hash", "trusted", "verify", "peer", "config", "recipient",
	} {
		if strings.Contains(joined, w) {
			return true
		}
	}
	return false
}

// lastWord returns the last word of a name, such as pass of db_pass and of dbPass, and the whole name in one.
func lastWord(name string) (last, joined string) {
	var b [maxSecretName]byte
	if len(name) > len(b) {
		name = name[len(name)-len(b):]
	}
	n, begins := 0, 0
	for i := range len(name) {
		c := name[i]
		switch {
		case c == '_' || c == '-' || c == '.' || c == '/' || c == ':' || c == ' ':
			begins = n
			continue
		case 'A' <= c && c <= 'Z':
			if i > 0 && 'a' <= name[i-1] && name[i-1] <= 'z' {
				begins = n
			}
			c += 'a' - 'A'
		}
		b[n] = c
		n++
	}
	joined = string(b[:n])
	return joined[begins:], joined
}

// isSwitch reports whether a value is a word that is no secret whatever it stands for.
func isSwitch(v string) bool {
	switch strings.ToLower(strings.TrimRight(v, ".,;")) {
	case "", "yes", "no", "true", "false", "on", "off", "none", "null", "nil", "undefined", "empty", "unset", "required",
		"optional", "enabled", "disabled", "enable", "disable", "prompt", "ask", "always", "never", "string", "bytes", "redacted",
		"hidden", "masked", "default", "auto", "|", "|-", "|+", ">", ">-", ">+", "~", "-", "0", "1", "[]", "{}":
		return true
	}
	return false
}

// referenceSchemes begin what says where a secret is, and is none.
var referenceSchemes = []string{
	"vault:", "ref:", "env:", "file:", "secret:", "secretref:", "secretsmanager:", "ssm:", "arn:", "op:", "aws:", "gcp:",
	"azure:", "k8s:", "kms:", "keyring:", "pass:", "sops:", "doppler:", "akv:", "gsm:", "exec:", "cmd:", "fd:", "systemd:",
	"projects/", "kv/", "secret/", "secrets/", "ssh-", "ecdsa-", "sk-ssh-", "sk-ecdsa-", "sha256:", "sha512:", "md5:", "enc[", "age1", "ed25519:",
}

// isReference reports whether a value says where a secret is, or stands for one: it is a path, an address, a
// variable, a place in a template or a salted hash, and not the secret.
func isReference(v string) bool {
	if v == "" {
		return true
	}
	switch v[0] {
	case '/':
		return !isKey32(v)
	case '$', '~', '<', '{', '[', '(':
		return true
	}
	if at := strings.Index(v, "://"); at > 0 && !strings.Contains(v[at:], "@") {
		return true
	}
	for _, scheme := range referenceSchemes {
		if len(v) > len(scheme) && equalFoldASCII(v[:len(scheme)], scheme) {
			return true
		}
	}
	return isStandIn(v)
}

// isKey32 reports whether v is 32 bytes in base64, such as a key of WireGuard: one in sixty begins like a path.
func isKey32(v string) bool {
	raw, err := base64.StdEncoding.DecodeString(v)
	return len(v) == 44 && err == nil && len(raw) == 32
}

// isStandIn reports whether a value stands in place of one: stars, dots, a tag of YAML, a file beside it.
func isStandIn(v string) bool {
	if strings.Trim(v, "*.#-_?•") == "" || len(v) > 2 && strings.Trim(v, "xX") == "" || isExpression(v) {
		return true
	}
	for _, begin := range []string{"!vault", "!secret", "!ref", "!env", "%(", "%{", "%prompt", "%ENV", "@/", "./", "../", "*.", "{{"} {
		if strings.HasPrefix(v, begin) {
			return true
		}
	}
	if i := strings.LastIndexByte(v, '.'); i > 0 && i < len(v)-1 {
		switch v[i:] {
		case ".pem", ".key", ".crt", ".cer", ".der", ".p12", ".pfx", ".txt", ".json", ".yaml", ".yml", ".conf", ".env", ".file", ".secret":
			return true
		}
	}
	return false
}

// isExpression reports whether v is of a program: a call, an element, or the path of a variable.
func isExpression(v string) bool {
	if at := strings.IndexAny(v, "(["); at > 0 {
		v = v[:at] + ".a"
	}
	dots := 0
	for i := range len(v) {
		switch c := v[i]; {
		case c == '.' && i > 0:
			dots++
		case c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
		default:
			return false
		}
	}
	return dots > 0 && v[len(v)-1] != '.'
}

// isRandom reports whether a value looks as if a machine had drawn it: at least 16 characters of a token, with digits
// and letters, in hex or in both cases. An id with dashes, such as a UUID, is drawn too, and no secret.
func isRandom(v string) bool {
	v = strings.TrimRight(v, "=")
	if n := tokenRun(v); n != len(v) || n < 16 {
		return false
	}
	var digits, lower, upper, other int
	hex := true
	for i := range len(v) {
		switch c := v[i]; {
		case '0' <= c && c <= '9':
			digits++
		case 'a' <= c && c <= 'z':
			lower++
			hex = hex && c <= 'f'
		case 'A' <= c && c <= 'Z':
			upper++
			hex = hex && c <= 'F'
		default:
			other++
			hex = false
		}
	}
	if hex {
		return len(v) >= 32 && digits > 0 && lower+upper > 0
	}
	return digits >= 2 && lower >= 3 && upper >= 3 && other <= len(v)/8
}

// isPassword reports whether a value is one that a person would choose: six characters or more, of two sorts at
// least, in one word.
func isPassword(v string) bool {
	if len(v) < 6 || isRandom(v) {
		return len(v) >= 6
	}
	var digit, letter, sign bool
	for i := range len(v) {
		switch c := v[i]; {
		case '0' <= c && c <= '9':
			digit = true
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c >= utf8.RuneSelf:
			letter = true
		case c == '-' || c == '_' || c == '.' || c == '/' || c == ':':
		default:
			sign = true
		}
	}
	return letter && digit && !strings.ContainsAny(v, "-_./:") || sign && (letter || digit)
}

// rawSecret looks for the forms that check 12 does not know.
func rawSecret(s string) string {
	inWord := false // the byte before belongs to a word
	for i := range len(s) {
		c := s[i]
		word := isWordByte(c)
		switch {
		case word && !inWord:
			for _, f := range learnedStarts[c] {
				if n := i + len(f.begin); n <= len(s) && (s[i:n] == f.begin || f.fold && equalFoldASCII(s[i:n], f.begin)) &&
					(f.is == nil || f.is(s[n:])) {
					return f.kind
				}
			}
			if kind := commandSecret(s, i); kind != "" {
				return kind
			}
		case c == '=' || c == ':':
			if kind := assigned(s, i); kind != "" {
				return kind
			}
		case c == '<':
			if kind := blockSecret(s[i:]); kind != "" {
				return kind
			}
		case c == '-':
			if kind := dashed(s, i); kind != "" {
				return kind
			}
		case c == '~' && i >= 5 && s[i-1] == 'Q' && isDigit(s[i-2]) && tokenEnd(s[i+1:], 31):
			return "Azure client secret"
		}
		inWord = word
	}
	return jsonWebKey(s)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isWordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || isDigit(c) || c == '_' || c >= utf8.RuneSelf
}

// tokenEnd reports whether s begins with n or more characters of a token, dots included.
func tokenEnd(s string, n int) bool {
	got := 0
	for got < len(s) && got < n && (s[got] == '.' || tokenRun(s[got:got+1]) == 1) {
		got++
	}
	return got >= n
}

// assigned looks at a separator: what stands before it names a secret, and what follows it is one.
// Forms are NAME=VALUE, NAME = VALUE, NAME: VALUE, "NAME": "VALUE" and NAME: PSK "VALUE".
func assigned(s string, at int) string {
	rest := s[at+1:]
	if s[at] == ':' {
		if kind := ipsecSecret(rest); kind != "" {
			return kind
		}
		if kind := driverSecret(rest); kind != "" {
			return kind
		}
	}
	name := nameBefore(s[:at])
	last, joined := lastWord(name)
	if !isSecretName(joined) && !slices.Contains(weakWords, last) {
		return "" // before the value, which is longer, is looked at
	}
	for _, more := range []string{"=", ">"} { // := => ==
		rest = strings.TrimPrefix(rest, more)
	}
	value, quoted := valueAt(rest, s[at])
	return judge(name, value, quoted)
}

// judge says what a value is by its name, in a text.
func judge(name, value string, quoted bool) string {
	if value == "" || isReference(value) || isSwitch(value) {
		return ""
	}
	last, joined := lastWord(name)
	if isSecretName(joined) {
		return "value named as a " + last
	}
	for _, w := range weakWords {
		if last != w {
			continue
		}
		switch {
		case w == "auth" && isBasic(value), w != "key" && isRandom(value), w == "key" && !isPublicName(joined) && isRandom(value),
			(w == "pass" || w == "pw") && isPassword(value), w == "secret" && isStrongSecret(value, quoted):
			return "value named as a " + last
		}
	}
	return ""
}

// isStrongSecret: swanctl and others write secrets as 0x… and 0s… too, and a quoted one that is no name.
func isStrongSecret(v string, quoted bool) bool {
	return len(v) > 8 && (strings.HasPrefix(v, "0s") || strings.HasPrefix(v, "0x")) ||
		quoted && len(v) >= 8 && strings.ContainsAny(v, " !#$%^&*+?") && isPassword(v)
}

// isBasic reports whether a value is the base64 of user:password (RFC 7617).
func isBasic(v string) bool {
	if len(v) < 8 || len(v) > maxSecretValue {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(v)
	if err != nil {
		return false
	}
	user, password, ok := strings.Cut(string(raw), ":")
	if !ok || user == "" || password == "" {
		return false
	}
	for _, c := range raw {
		if c < ' ' || c == 0x7f || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// nameBefore returns the name that s ends with, without quotes and spaces after it, and with the word before it: a
// public key is none that is secret.
func nameBefore(s string) string {
	end := len(s)
	for end > 0 && len(s)-end < 8 && (s[end-1] == ' ' || s[end-1] == '\t') {
		end--
	}
	for end > 0 && (s[end-1] == '"' || s[end-1] == '\'' || s[end-1] == '`' || s[end-1] == '\\' || s[end-1] == ']') {
		end--
	}
	begin := end
	for begin > 0 && end-begin < maxSecretName && (isWordByte(s[begin-1]) || s[begin-1] == '-' || s[begin-1] == '.') {
		begin--
	}
	if begin > 1 && begin < end && s[begin-1] == ' ' {
		word := begin - 1
		for word > 0 && begin-word < maxSecretName && isWordByte(s[word-1]) {
			word--
		}
		begin = word
	}
	return strings.TrimLeft(s[begin:end], " -.")
}

// valueAt returns the value that s begins with after spaces. Without quotes it is one word, and after a colon it
// is what remains of the line, or of the list that it stands in: a sentence is no value.
func valueAt(s string, separator byte) (value string, quoted bool) {
	s = s[:min(len(s), maxSecretValue)]
	s = strings.TrimLeft(s, " \t")
	s = strings.TrimLeft(s, `\`) // a quote inside a string of JSON
	if s == "" {
		return "", false
	}
	if q := s[0]; q == '"' || q == '\'' || q == '`' {
		end := strings.IndexByte(s[1:], q)
		if end < 0 {
			return s[1:], true // cut off, or longer than anybody looks
		}
		return strings.TrimRight(s[1:1+end], `\`), true
	}
	end := strings.IndexAny(s, " \t\r\n,;&\"'`<>)}]|\\")
	if end < 0 {
		return s, false
	}
	value = s[:end]
	if value == "" && s[0] != '\r' && s[0] != '\n' {
		return s[:1], false
	}
	// More words on the line make a sentence, unless they are a comment, or settings of their own.
	rest, _, _ := strings.Cut(strings.TrimLeft(s[end:], " \t"), "\n")
	rest = strings.TrimRight(rest, "\r\t ")
	if rest == "" || s[end] != ' ' && s[end] != '\t' || strings.ContainsAny(rest[:1], "#;,}])\"'") || strings.ContainsRune(rest, '=') ||
		separator == '=' && rest[0] == '-' {
		return value, false
	}
	if separator == '=' && (isRandom(value) || isPassword(value)) {
		return value, false
	}
	return "", false
}

// ipsecSecret looks at what follows the colon of a line of ipsec.secrets (5).
func ipsecSecret(rest string) string {
	rest = rest[:min(len(rest), maxSecretValue)]
	rest = strings.TrimLeft(rest, " \t")
	for _, kind := range []string{"PSK", "XAUTH", "EAP", "NTLM", "RSA", "ECDSA", "PKCS8", "PKCS12", "PIN"} {
		if len(rest) < len(kind) || !strings.EqualFold(rest[:len(kind)], kind) {
			continue
		}
		after := rest[len(kind):]
		value := strings.TrimLeft(after, " \t")
		switch {
		case value == "" || value == after && value[0] != '"' && value[0] != '{':
		case strings.HasPrefix(value, "{"), isQuotedSecret(value):
			return "secret of ipsec"
		case kind == "PIN" && !strings.Contains(value[:min(len(value), 64)], "%prompt"):
			return "secret of ipsec"
		case strings.HasPrefix(value, "0x") || strings.HasPrefix(value, "0s"):
			return "secret of ipsec"
		case kind != "PSK" && kind != "EAP":
			// FILE "passphrase"
			line, _, _ := strings.Cut(value, "\n")
			if _, phrase, ok := strings.Cut(line, " "); ok && isQuotedSecret(strings.TrimLeft(phrase, " \t")) {
				return "secret of ipsec"
			}
		}
	}
	return ""
}

// isQuotedSecret reports whether s begins with something in quotes that is no reference.
func isQuotedSecret(s string) bool {
	if s == "" || s[0] != '"' && s[0] != '\'' {
		return false
	}
	value, _ := valueAt(s, ':')
	return value != "" && !isReference(value) && !isSwitch(value)
}

// blockSecret looks at a tag of an OpenVPN profile, or an element of XML, at the beginning of s.
func blockSecret(s string) string {
	end := strings.IndexByte(s[:min(len(s), maxSecretName+2)], '>')
	if end < 2 {
		return ""
	}
	tag, body := s[1:end], s[end+1:]
	body = body[:min(len(body), maxSecretValue)]
	for i := range len(tag) {
		if !isWordByte(tag[i]) && tag[i] != '-' && tag[i] != ':' && tag[i] != '.' {
			return ""
		}
	}
	switch inside, _, _ := strings.Cut(body, "<"); tag {
	case "auth-user-pass", "http-proxy-user-pass":
		if len(strings.Fields(inside)) >= 2 && strings.HasPrefix(strings.TrimLeft(inside, " \t\r"), "\n") {
			return "user and password of OpenVPN"
		}
	case "key", "secret", "tls-auth", "tls-crypt", "tls-crypt-v2", "pkcs12":
		lines := strings.Fields(inside)
		if strings.HasPrefix(strings.TrimLeft(inside, " \t\r"), "\n") && len(lines) > 0 && tokenRun(lines[len(lines)-1]) >= 16 &&
			!strings.Contains(inside, "-----BEGIN CERTIFICATE") {
			return "key of OpenVPN"
		}
	}
	value, _, closed := strings.Cut(body, "</")
	if !closed {
		return ""
	}
	value = strings.TrimSpace(value)
	if strings.ContainsAny(value, "<\n") {
		return ""
	}
	return judge(tag, value, true)
}

// dashed looks at a dash: an option of a command line that names a secret, with its value behind a space, or the
// beginning of an armoured key.
func dashed(s string, at int) string {
	if at > 0 && (s[at-1] == '-' || isWordByte(s[at-1])) {
		return ""
	}
	rest := s[at:]
	for _, f := range armours {
		if len(rest) >= len(f) && equalFoldASCII(rest[:len(f)], f) {
			return "private key"
		}
	}
	name := strings.TrimLeft(rest[:min(len(rest), maxSecretName)], "-")
	end := 0
	for end < len(name) && (isWordByte(name[end]) || name[end] == '-') {
		end++
	}
	if end == 0 || end == len(name) || name[end] != ' ' {
		return ""
	}
	_, joined := lastWord(name[:end])
	if !isSecretName(joined) && joined != "token" && joined != "secret" {
		return ""
	}
	value, quoted := argument(rest[len(rest)-len(strings.TrimLeft(rest, "-"))+end+1:])
	switch {
	case value == "" || value[0] == '-' || isReference(value) || isSwitch(value):
		return ""
	case !strings.HasPrefix(rest, "--") && !quoted && !isPassword(value): // a flag without a value, and the next word
		return ""
	case !isSecretName(joined) && !isRandom(value):
		return ""
	}
	return "value of an option named as a " + name[:end]
}

// armours begin private keys in text that are not written "PRIVATE KEY-----".
var armours = []string{
	"-----begin openvpn static key", "-----begin openvpn tls-crypt-v2 server key", "-----begin openvpn tls-crypt-v2 client key",
	"-----begin pgp private key block", "---- begin ssh2 encrypted private key", "-----begin signify private",
}

// argument returns the argument that s begins with, without quotes.
func argument(s string) (value string, quoted bool) {
	s = strings.TrimLeft(s[:min(len(s), maxSecretValue)], " \t")
	if s == "" {
		return "", false
	}
	if q := s[0]; q == '"' || q == '\'' {
		value, _, _ = strings.Cut(s[1:], string(q))
		return value, true
	}
	if end := strings.IndexAny(s, " \t\r\n;|&`"); end >= 0 {
		s = s[:end]
	}
	return s, false
}

// A secretCommand is a program with an option whose argument is a secret.
type secretCommand struct {
	program string
	options []string // as they stand before the argument
	joined  bool     // the argument follows without a space
	pair    string   // the argument is a secret behind this; "": all of it is
}

// secretCommands are programs that take secrets on their command lines.
var secretCommands = []secretCommand{
	{program: "sshpass", options: []string{"-p"}},
	{program: "sshpass", options: []string{"-p"}, joined: true},
	{program: "xfreerdp", options: []string{"/p:", "/gp:", "/password:"}, joined: true},
	{program: "xfreerdp3", options: []string{"/p:", "/gp:", "/password:"}, joined: true},
	{program: "wlfreerdp", options: []string{"/p:", "/gp:", "/password:"}, joined: true},
	{program: "mstsc", options: []string{"/p:"}, joined: true},
	{program: "cmdkey", options: []string{"/pass:"}, joined: true},
	{program: "xfreerdp", options: []string{"-p"}},
	{program: "rdesktop", options: []string{"-p"}},
	{program: "plink", options: []string{"-pw"}},
	{program: "pscp", options: []string{"-pw"}},
	{program: "psftp", options: []string{"-pw"}},
	{program: "x11vnc", options: []string{"-passwd"}},
	{program: "vncdo", options: []string{"-p"}},
	{program: "mysql", options: []string{"-p"}, joined: true},
	{program: "mysqldump", options: []string{"-p"}, joined: true},
	{program: "mariadb", options: []string{"-p"}, joined: true},
	{program: "redis-cli", options: []string{"-a"}},
	{program: "ipmitool", options: []string{"-P"}},
	{program: "ldapsearch", options: []string{"-w"}},
	{program: "ldapmodify", options: []string{"-w"}},
	{program: "ldapadd", options: []string{"-w"}},
	{program: "curl", options: []string{"-u", "--user", "--proxy-user"}, pair: ":"},
	{program: "smbclient", options: []string{"-U", "--user"}, pair: "%"},
	{program: "rpcclient", options: []string{"-U", "--user"}, pair: "%"},
	{program: "docker", options: []string{"-p"}},
	{program: "isakmp", options: []string{"key"}}, // crypto isakmp key SECRET address …
	{program: "passin", options: []string{"pass:"}, joined: true},
	{program: "passout", options: []string{"pass:"}, joined: true},
	{program: "machine", options: []string{"password"}}, // .netrc
	{program: "login", options: []string{"password"}},
}

// commandStarts are secretCommands by the first byte of the program.
var commandStarts = func() (all [256][]*secretCommand) {
	for i := range secretCommands {
		c := &secretCommands[i]
		all[c.program[0]] = append(all[c.program[0]], c)
	}
	return all
}()

// commandSecret looks at a word at place i that may be a program.
func commandSecret(s string, i int) string {
	for _, c := range commandStarts[s[i]] {
		n := i + len(c.program)
		if n >= len(s) || s[i:n] != c.program || s[n] != ' ' && s[n] != '\t' && s[n] != '\n' {
			continue
		}
		line := s[n:min(len(s), n+maxSecretValue)]
		if end := strings.IndexAny(line, "\n|;"); end >= 0 && c.program != "machine" {
			line = line[:end]
		}
		for _, option := range c.options {
			for rest := line; ; {
				at := strings.Index(rest, option)
				if at < 0 {
					break
				}
				before, after := at == 0 || rest[at-1] == ' ' || rest[at-1] == '\t' || rest[at-1] == '\n', rest[at+len(option):]
				rest = after
				if !before || after == "" || c.joined == (after[0] == ' ') {
					continue
				}
				value, _ := argument(after)
				if !c.joined && !strings.HasPrefix(after, " ") {
					continue
				}
				if c.pair != "" {
					var ok bool
					if _, value, ok = strings.Cut(value, c.pair); !ok {
						continue
					}
				}
				if value != "" && value[0] != '-' && !isReference(value) && !isSwitch(value) &&
					(c.program != "docker" || isPassword(value)) {
					return "password in a command line of " + c.program
				}
			}
		}
	}
	return ""
}

// driverSecret looks at the colon in an address of a database that is no URL, user:password@tcp(…) of Go's MySQL
// driver and thin:user/password@host of Oracle's: rest is what follows it.
func driverSecret(rest string) string {
	rest = rest[:min(len(rest), maxSecretName)]
	login, host, ok := strings.Cut(rest, "@")
	if !ok {
		return ""
	}
	if user, password, ok := strings.Cut(login, "/"); ok && strings.HasPrefix(user, "thin:") {
		if password != "" && !isReference(password) {
			return "password in an address"
		}
	}
	if (strings.HasPrefix(host, "tcp(") || strings.HasPrefix(host, "unix(")) && !isReference(login) &&
		!strings.ContainsAny(login, " \t\n\"'") {
		return "password in an address"
	}
	return ""
}

// jsonWebKey looks for a private or a symmetric key of RFC 7517.
func jsonWebKey(s string) string {
	at := strings.Index(s, `"kty"`)
	if at < 0 {
		return ""
	}
	for _, part := range []string{`"d"`, `"k"`} {
		for rest := s; ; {
			i := strings.Index(rest, part)
			if i < 0 {
				break
			}
			rest = rest[i+len(part):]
			value := strings.TrimLeft(rest[:min(len(rest), maxSecretValue)], " \t\r\n")
			if after, ok := strings.CutPrefix(value, ":"); ok {
				if v, quoted := valueAt(strings.TrimLeft(after, "\r\n"), ':'); quoted && tokenRun(v) >= 16 {
					return "JSON web key"
				}
			}
		}
	}
	return ""
}
