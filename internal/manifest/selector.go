package manifest

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/document"
)

// A Pattern is a selector of an entry: a fact that a proof can show about a candidate
// (docs/explanation/trust.md#2-a-join-over-a-channel-binding). It is written
// family:attribute:value, except that a token has no attribute:
//
//	token:edge-pool                    a join token of the entry edge-pool
//	key:ed25519:<base64>               a signature by this key
//	x509:subject:CN=node-c             a certificate under the roots of proofs.x509
//	x509:dns:node-c.example
//	x509:uri:spiffe://corp.example/x
//	tpm:ek:<64 hex>                    SHA-256 of the endorsement key
//	sevsnp:measurement:<96 hex>        launch measurement of an SEV-SNP guest
//	k8s:sa:<namespace>/<name>          a pod's service account
//
// Its value may hold one *, which stands
// for one name (see [Manifest.Match]) and captures it. Patterns are comparable.
type Pattern struct {
	text string // canonical, the * included
	star int    // where the * is in text; 0: there is none
}

// String returns the pattern in its canonical form.
func (p Pattern) String() string { return p.text }

// Family returns the selector family, such as x509.
func (p Pattern) Family() string {
	family, _, _ := strings.Cut(p.text, ":")
	return family
}

// IsGlob reports whether the pattern has a *.
func (p Pattern) IsGlob() bool { return p.star > 0 }

func (p Pattern) prefix() string { return p.text[:p.star] }
func (p Pattern) suffix() string { return p.text[p.star+1:] }

// IsToken reports whether the pattern says that its entry admits join tokens.
func (p Pattern) IsToken() bool { return p.Family() == FamilyToken }

// Capture reports whether selector matches, and what the * stands for: "" for a
// pattern without one. It does not look at whether that is a valid name.
func (p Pattern) Capture(selector string) (string, bool) {
	if !p.IsGlob() {
		return "", selector == p.text
	}
	rest, ok := strings.CutPrefix(selector, p.prefix())
	if !ok {
		return "", false
	}
	captured, ok := strings.CutSuffix(rest, p.suffix())
	return captured, ok && captured != ""
}

// overlaps reports whether some selector may match both p and q. It may say yes
// where the characters of a name rule it out, and never no where one exists.
func (p Pattern) overlaps(q Pattern) bool {
	switch {
	case !p.IsGlob() && !q.IsGlob():
		return p.text == q.text
	case !p.IsGlob():
		return q.matchesName(p.text)
	case !q.IsGlob():
		return p.matchesName(q.text)
	}
	return (strings.HasPrefix(p.prefix(), q.prefix()) || strings.HasPrefix(q.prefix(), p.prefix())) &&
		(strings.HasSuffix(p.suffix(), q.suffix()) || strings.HasSuffix(q.suffix(), p.suffix()))
}

// covers reports whether every selector that q matches is matched by p, two
// patterns of the same sort.
func (p Pattern) covers(q Pattern) bool {
	if !p.IsGlob() || !q.IsGlob() {
		return p == q
	}
	return strings.HasPrefix(q.prefix(), p.prefix()) && strings.HasSuffix(q.suffix(), p.suffix())
}

func (p Pattern) matchesName(selector string) bool {
	captured, ok := p.Capture(selector)
	return ok && IsName(captured)
}

// canonicalSelector returns the form of a selector that patterns are compared
// with: keys in base64, hex in lower case.
func canonicalSelector(selector string) string {
	if p, err := ParsePattern(selector); err == nil && !p.IsGlob() {
		return p.text
	}
	return selector
}

// A selectorForm is one kind of selector that an entry may name.
type selectorForm struct {
	prefix  string // family:attribute:
	example string
	glob    bool // a * may stand in the value

	// parse returns the canonical value, or why it is wrong.
	parse func(value string) (canonical, wrong string)
}

// selectorForms is the closed set of selectors; internal proofs show no others,
// so that an entry with another could match nothing.
var selectorForms = [...]selectorForm{
	{"token:", "token:edge-pool", false, parseTokenEntry},
	{"key:", "key:ed25519:<base64>", false, parseKeyValue},
	{"x509:subject:", "x509:subject:CN=node-*", true, parseSubject},
	{"x509:dns:", "x509:dns:*.nodes.example", true, parseDNS},
	{"x509:uri:", "x509:uri:spiffe://corp.example/node/*", true, parseURI},
	{"tpm:ek:", "tpm:ek:<64 hex digits>", false, parseHex(32)},
	{"sevsnp:measurement:", "sevsnp:measurement:<96 hex digits>", false, parseHex(48)},
	{"k8s:sa:", "k8s:sa:prod/agent-*", true, parseServiceAccount},
}

// A patternError says what is wrong with a selector pattern, and what to write.
type patternError struct{ What, Do string }

func (e *patternError) Error() string { return "manifest: " + e.What + ": " + e.Do }

// ParsePattern reads a selector pattern. The error is a [*patternError].
func ParsePattern(s string) (Pattern, error) {
	refuse := func(do, what string, args ...any) (Pattern, error) {
		return Pattern{}, &patternError{What: "selector " + document.Shown(s) + " " + fmt.Sprintf(what, args...),
			Do: do}
	}
	if len(s) > maxSelectorBytes {
		return refuse(fmt.Sprintf("at most %d are allowed", maxSelectorBytes), "has %d bytes", len(s))
	}
	for _, form := range selectorForms {
		value, ok := strings.CutPrefix(s, form.prefix)
		if !ok {
			continue
		}
		stars := strings.Count(value, "*")
		if stars > 1 {
			return refuse("write one, which stands for one name", "has %d *", stars)
		}
		if stars == 1 && !form.glob {
			return refuse("list the values", "has a *, which %s selectors cannot have",
				strings.TrimSuffix(form.prefix, ":"))
		}
		canonical, wrong := form.parse(value)
		if wrong != "" {
			return refuse("write it as "+form.example, "is wrong: %s", wrong)
		}
		p := Pattern{text: form.prefix + canonical}
		if stars == 1 {
			p.star = strings.Index(p.text, "*")
		}
		return p, nil
	}
	what, do := unknownSelector(s)
	return refuse(do, "%s", what)
}

func unknownSelector(s string) (what, do string) {
	family, rest, colon := strings.Cut(s, ":")
	var families, attributes []string
	for _, form := range selectorForms {
		f, attribute, _ := strings.Cut(form.prefix, ":")
		if !slices.Contains(families, f) {
			families = append(families, f)
		}
		if f == family {
			attributes = append(attributes, strings.TrimSuffix(attribute, ":"))
		}
	}
	if attributes == nil || !colon {
		return "is of no known family", document.Suggest(family, families)
	}
	attribute, _, _ := strings.Cut(rest, ":")
	return fmt.Sprintf("asks for %s, which %s does not have", document.Shown(attribute), family),
		document.Suggest(attribute, attributes)
}

func parseTokenEntry(value string) (string, string) {
	if !IsName(value) {
		return "", fmt.Sprintf("%s is not the name of an entry", document.Shown(value))
	}
	return value, ""
}

func parseKeyValue(value string) (string, string) {
	k, err := ParseKey(value)
	if err != nil {
		return "", err.Error()
	}
	return k.String(), ""
}

func parseSubject(value string) (string, string) {
	name, ok := strings.CutPrefix(value, "CN=")
	if !ok {
		return "", "it does not begin with CN="
	}
	if _, wrong := parseText(name); wrong != "" {
		return "", wrong
	}
	return value, ""
}

func parseText(value string) (string, string) {
	if value == "" {
		return "", "the value is empty"
	}
	if strings.TrimSpace(value) != value || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' }) {
		return "", "the value has a space at its end, or a control character"
	}
	return value, ""
}

func parseDNS(value string) (string, string) {
	if strings.ContainsAny(value, " :/") {
		return "", "it is not a DNS name"
	}
	return parseText(strings.ToLower(value))
}

func parseURI(value string) (string, string) {
	scheme, rest, ok := strings.Cut(value, "://")
	if !ok || scheme == "" || rest == "" || strings.Contains(scheme, "*") {
		return "", "it is not a URI"
	}
	return parseText(value)
}

func parseHex(size int) func(string) (string, string) {
	return func(value string) (string, string) {
		raw, err := hex.DecodeString(value)
		if err != nil || len(raw) != size {
			return "", fmt.Sprintf("the value is not %d hex digits", 2*size)
		}
		return hex.EncodeToString(raw), ""
	}
}

func parseServiceAccount(value string) (string, string) {
	namespace, name, ok := strings.Cut(value, "/")
	if !ok || namespace == "" || name == "" || strings.ContainsAny(name, "/ ") || strings.ContainsAny(namespace, "* ") {
		return "", "it is not namespace/name, with a * in the name only"
	}
	return value, ""
}
