package config

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki/pemfile"
	"github.com/fealty-io/fealty/snapshot"
)

type (
	node    = document.Node
	decoder = document.Decoder
)

// A field is one field of a record or of an object in it: how it is read, written,
// explained and followed. Everything that is done with records goes through the
// list of their fields, so that a new one is known everywhere at once.
type field struct {
	name     string
	about    string // one sentence for people
	required bool
	unset    string // what it means to leave it out; empty with required
	value
}

// A value reads and writes what a field holds.
type value struct {
	takes  string // its form, for people
	read   func(d *decoder, n *node, path string)
	write  func() *node // nil: it is not set
	fields []field      // of an object, or of each object of a list; what they hold is nobody's

	refers Kind            // of the records that it names; "": none
	names  func() []string // the names
	within func() []field  // of an object that can name records
}

func (v value) reference(kind Kind, names func() []string) value {
	v.refers, v.names = kind, names
	return v
}

func text(s string) *node { return &node{Kind: document.String, Text: s} }
func listOf[T any](items []T, write func(T) *node) *node {
	out := &node{Kind: document.List}
	for _, item := range items {
		out.Items = append(out.Items, write(item))
	}
	return out
}

// A form decides on a string: what is wrong with it, and what to write instead.
type form struct {
	rule  string
	takes string
	fault func(s string) (what, do string)
	// quiet: the string is not shown, because what stands in its place by mistake
	// can be a secret.
	quiet bool
}

func (f form) read(d *decoder, n *node, path string) string {
	if f.quiet && n.Kind != document.String {
		hidden := *n
		hidden.Text = ""
		n = &hidden
	}
	s, ok := d.Text(n, path)
	if !ok {
		return ""
	}
	if what, do := f.fault(s); what != "" {
		if f.quiet {
			what = "this " + what
		} else {
			what = document.Shown(s) + " " + what
		}
		d.Fault(f.rule, path, what, do)
		return ""
	}
	return s
}

func within(s, letters string) bool { return strings.Trim(s, letters) == "" }

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

// isName reports whether s is of the form that names of records have.
func isName(s string) bool {
	return s != "" && len(s) <= MaxName && within(s, lower+digits+"-_.") && within(s[:1]+s[len(s)-1:], lower+digits)
}

// nameFault says what is wrong with the name of a record of a kind.
func nameFault(kind Kind, name string) (what, do string) {
	switch kind {
	case KindOrganization:
		if !manifest.IsName(name) {
			return "is no name of an organization", fmt.Sprintf("write it as in the manifest: letters, digits, '.', '-' and '_', at most %d of them", MaxLongName)
		}
	case KindRole:
		if !slices.Contains(roleNames(), name) {
			return "is no role", document.Suggest(name, roleNames())
		}
	default:
		if !isName(name) {
			return "is no name", fmt.Sprintf("use lower-case letters, digits, '-', '_' and '.', at most %d, beginning and ending with a letter or digit", MaxName)
		}
	}
	return "", ""
}

func nameForm(kind Kind) form {
	takes := "name: 1 to 63 of `a-z 0-9 - _ .`, beginning and ending with a letter or digit"
	switch kind {
	case KindOrganization:
		takes = "name of an organization, as in the manifest"
	case KindRole:
		takes = "one of " + strings.Join(roleNames(), ", ")
	}
	return form{rule: "name", takes: takes, fault: func(s string) (string, string) { return nameFault(kind, s) }}
}

func refForm(kind Kind) form {
	f := nameForm(kind)
	f.takes, f.quiet = "name of a record of kind "+string(kind), kind == KindSecret
	return f
}

// wordForm is what types, protocols, connectors and versions have in common. Those who
// act on them decide what they mean.
func wordForm() form {
	return form{rule: "word", takes: "word of letters, digits and `. _ - : /`", fault: func(s string) (string, string) {
		if s == "" || len(s) > MaxLongName || !within(s, lower+upper+digits+"._-:/") {
			return "is no word", fmt.Sprintf("use letters, digits, '.', '_', '-', ':' and '/', at most %d of them", MaxLongName)
		}
		return "", ""
	}}
}

// lineForm is printable ASCII without spaces: what a connector or resolver gets.
func lineForm(most int) form {
	return form{rule: "line", takes: fmt.Sprintf("text without spaces, at most %d bytes", most), fault: func(s string) (string, string) {
		if s == "" || len(s) > most || strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
			return "is empty, too long, or has a space or a character beyond ASCII", fmt.Sprintf("write 1 to %d printable ASCII characters without spaces", most)
		}
		return "", ""
	}}
}

func textForm(most int) form {
	return form{rule: "text", takes: fmt.Sprintf("text of at most %d bytes", most), fault: func(s string) (string, string) {
		if len(s) > most {
			return fmt.Sprintf("has %d bytes", len(s)), fmt.Sprintf("at most %d are allowed", most)
		}
		return "", ""
	}}
}

func quiet(f form) form {
	f.quiet = true
	return f
}

func addressForm() form {
	return form{rule: "address", takes: "host:port", fault: func(s string) (string, string) {
		host, port, err := net.SplitHostPort(s)
		n, perr := strconv.ParseUint(port, 10, 16)
		if err != nil || perr != nil || n == 0 || strconv.FormatUint(n, 10) != port || len(s) > MaxAddress || !isHost(host) {
			return "is no host:port", "write a host name or an IP address and a port, as in db-1.example:7443 or [2001:db8::1]:7443"
		}
		return "", ""
	}}
}

// isHost reports whether s is an IP address or a name that a resolver takes.
func isHost(s string) bool {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Zone() == ""
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' || !within(label, lower+upper+digits+"-_") {
			return false
		}
	}
	return len(s) <= 253
}

// urlForm takes an https URL that is a place alone: a query or a user in it would
// be a credential.
func urlForm() form {
	return form{rule: "url", takes: "https:// URL without user, query or fragment", fault: func(s string) (string, string) {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "https" || u.Host == "" || !isHost(u.Hostname()) || u.User != nil || u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#") ||
			len(s) > MaxAddress || strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
			return "is no https:// URL of a place alone", "write it without user, query and fragment, as in https://snapshots.example/prod"
		}
		return "", ""
	}}
}

func memberForm() form {
	return form{rule: "member", takes: "kind/name of a member", fault: func(s string) (string, string) {
		kind, name, ok := strings.Cut(s, "/")
		if !ok || !manifest.IsName(name) || !slices.Contains(memberKinds(), kind) {
			return "is no member", "write its kind and name, as in data/db-1; kinds: " + strings.Join(memberKinds(), ", ")
		}
		return "", ""
	}}
}

// memberKinds are the kinds that have a node.
func memberKinds() []string {
	var out []string
	for _, k := range manifest.Kinds() {
		if k != identity.Admin && k != identity.Readonly {
			out = append(out, string(k))
		}
	}
	return out
}

func roleNames() []string {
	var out []string
	for _, r := range manifest.Roles() {
		out = append(out, string(r))
	}
	return out
}

func permissionNames() []string {
	var out []string
	for _, p := range manifest.Permissions() {
		out = append(out, string(p))
	}
	return out
}

// faultForm is the form that a fault of another package decides on.
func faultForm(rule, takes string, fault func(string) string, do string) form {
	return form{rule: rule, takes: takes, fault: func(s string) (string, string) {
		if what := fault(s); what != "" {
			return what, do
		}
		return "", ""
	}}
}

// workloadForm is the name of a workload. How long an id may be is for a cluster of the longest
// name.
func workloadForm() form {
	return form{rule: "workload-id", takes: "path of letters, digits, `. - _`, and slashes between its segments",
		fault: func(s string) (string, string) {
			if _, err := identity.New(strings.Repeat("a", 63), identity.Workload, s); err != nil || len(s) > MaxAddress {
				return "is no name of a workload", fmt.Sprintf("write at most %d letters, digits, '.', '-', '_', "+
					"with '/' between segments, as in billing/api", MaxAddress)
			}
			return "", ""
		}}
}

// one is a string of a form.
func one(v *string, f form) value {
	return value{
		takes: f.takes,
		read:  func(d *decoder, n *node, path string) { *v = f.read(d, n, path) },
		write: func() *node {
			if *v == "" {
				return nil
			}
			return text(*v)
		},
	}
}

// ref names one record.
func ref(v *string, kind Kind) value {
	return one(v, refForm(kind)).reference(kind, func() []string {
		if *v == "" {
			return nil
		}
		return []string{*v}
	})
}

// sequence is a list of strings whose order means something.
func sequence(v *[]string, f form) value {
	return value{
		takes: fmt.Sprintf("list of at most %d in an order, each a %s", MaxItems, f.takes),
		read:  func(d *decoder, n *node, path string) { *v = readStrings(d, n, path, f) },
		write: func() *node {
			if len(*v) == 0 {
				return nil
			}
			return listOf(*v, text)
		},
	}
}

func readStrings(d *decoder, n *node, path string, f form) []string {
	var out []string
	if f.quiet && n.Kind != document.List {
		hidden := *n
		hidden.Text = ""
		n = &hidden
	}
	d.List(n, path, MaxItems, func(n *node, path string) {
		s := f.read(d, n, path)
		if d.Faulty(path) {
			return
		}
		if slices.Contains(out, s) {
			d.Fault("duplicate-item", path, "this stands in the list already", "remove it")
			return
		}
		out = append(out, s)
	})
	return out
}

// set is a list of strings in no order: it is kept sorted.
func set[S ~string](v *[]S, f form) value {
	return value{
		takes: fmt.Sprintf("list of at most %d, each a %s", MaxItems, f.takes),
		read: func(d *decoder, n *node, path string) {
			found := readStrings(d, n, path, f)
			slices.Sort(found)
			*v = nil
			for _, s := range found {
				*v = append(*v, S(s))
			}
		},
		write: func() *node {
			if len(*v) == 0 {
				return nil
			}
			return listOf(*v, func(s S) *node { return text(string(s)) })
		},
	}
}

// optionalSet is a set for which empty and not set are two things.
func optionalSet(v *[]string, f form) value {
	out := set(v, f)
	read := out.read
	out.read = func(d *decoder, n *node, path string) {
		read(d, n, path)
		if *v == nil {
			*v = []string{}
		}
	}
	out.write = func() *node {
		if *v == nil {
			return nil
		}
		return listOf(*v, text)
	}
	return out
}

func refs(v *[]string, kind Kind) value {
	return set(v, refForm(kind)).reference(kind, func() []string { return *v })
}

func refSequence(v *[]string, kind Kind) value {
	return sequence(v, refForm(kind)).reference(kind, func() []string { return *v })
}

// known is the form of one of a closed set of words.
func known(rule string, words []string) form {
	return form{rule: rule, takes: "one of " + strings.Join(words, ", "), fault: func(s string) (string, string) {
		if !slices.Contains(words, s) {
			return "is not known here", document.Suggest(s, words)
		}
		return "", ""
	}}
}

func scopeNames() []string {
	var out []string
	for _, s := range snapshot.Scopes() {
		out = append(out, string(s))
	}
	return out
}

func number[N int | uint64](v *N, least, most N) value {
	return value{
		takes: fmt.Sprintf("number from %d to %d", least, most),
		read:  func(d *decoder, n *node, path string) { *v = N(d.Number(n, path, int(least), int(most))) },
		write: func() *node {
			if *v == 0 {
				return nil
			}
			return &node{Kind: document.Int, Text: fmt.Sprint(*v)}
		},
	}
}

// account is the number of a user or a group, for which 0 and not set are two things. The
// highest one is nobody's: system calls take it for "leave as it is".
func account(v **uint32) value {
	const most = math.MaxUint32 - 1
	return value{
		takes: fmt.Sprintf("number from 0 to %d", most),
		read: func(d *decoder, n *node, path string) {
			id := uint32(d.Number(n, path, 0, most))
			*v = &id
		},
		write: func() *node {
			if *v == nil {
				return nil
			}
			return &node{Kind: document.Int, Text: fmt.Sprint(**v)}
		},
	}
}

func yes(v *bool) value {
	return value{
		takes: "true or false",
		read:  func(d *decoder, n *node, path string) { *v = d.Yes(n, path) },
		write: func() *node {
			if !*v {
				return nil
			}
			return &node{Kind: document.Bool, Text: "true"}
		},
	}
}

func duration(v *time.Duration, least, most time.Duration) value {
	return value{
		takes: fmt.Sprintf("duration from %s to %s", document.FormatDuration(least), document.FormatDuration(most)),
		read:  func(d *decoder, n *node, path string) { *v = d.Duration(n, path, least, most) },
		write: func() *node {
			if *v == 0 {
				return nil
			}
			return text(document.FormatDuration(*v))
		},
	}
}

// optionalDuration is a duration for which 0 and not set are two things.
func optionalDuration(v **time.Duration, most time.Duration) value {
	out := duration(new(time.Duration), 0, most)
	out.read = func(d *decoder, n *node, path string) {
		t := d.Duration(n, path, 0, most)
		*v = &t
	}
	out.write = func() *node {
		if *v == nil {
			return nil
		}
		return text(document.FormatDuration(**v))
	}
	return out
}

// parts turns fields into what a decoder reads an object by.
func parts(d *decoder, fields []field) []document.Part {
	out := make([]document.Part, len(fields))
	for i, f := range fields {
		out[i] = document.Part{Name: f.name, Required: f.required, Read: func(n *node, path string) { f.read(d, n, path) }}
	}
	return out
}

// object writes the fields that are set, sorted by name.
func object(fields []field) *node {
	out := &node{Kind: document.Object}
	for _, f := range fields {
		if v := f.write(); v != nil {
			out.Fields = append(out.Fields, document.Field{Name: f.name, Value: v})
		}
	}
	slices.SortStableFunc(out.Fields, func(a, b document.Field) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// nested is an object that may be left out.
func nested[T any](v **T, fields func(*T) []field, faults func(v *T, d *decoder, path string)) value {
	return value{
		takes:  "object",
		fields: fields(new(T)),
		read: func(d *decoder, n *node, path string) {
			*v = new(T)
			d.Object(n, path, parts(d, fields(*v))...)
			if faults != nil && !d.Faulty(path) {
				faults(*v, d, path)
			}
		},
		write: func() *node {
			if *v == nil {
				return nil
			}
			return object(fields(*v))
		},
		within: func() []field {
			if *v == nil {
				return nil
			}
			return fields(*v)
		},
	}
}

// parameters is an object whose field names are anyone's.
func parameters(v *[]Parameter) value {
	f := textForm(MaxValue)
	return value{
		takes: fmt.Sprintf("object of at most %d texts, named by words", MaxItems),
		read: func(d *decoder, n *node, path string) {
			*v = nil
			if !d.Expect(n, path, document.Object) {
				return
			}
			if len(n.Fields) > MaxItems {
				d.Fault("too-many", path, fmt.Sprintf("%d parameters", len(n.Fields)), fmt.Sprintf("at most %d are allowed", MaxItems))
				return
			}
			for _, field := range n.Fields {
				at, name := document.Place{Line: field.Line, Column: field.Column}, document.Join(path, field.Name)
				switch what, do := wordForm().fault(field.Name); {
				case what != "":
					d.Report("word", at, path, document.Shown(field.Name)+" "+what, do)
					continue
				case slices.ContainsFunc(*v, func(p Parameter) bool { return p.Name == field.Name }):
					d.Report("duplicate-field", at, name, "the field stands there already", "keep one of them")
					continue
				}
				*v = append(*v, Parameter{field.Name, f.read(d, field.Value, name)})
			}
			slices.SortStableFunc(*v, func(a, b Parameter) int { return cmp.Compare(a.Name, b.Name) })
		},
		write: func() *node {
			if len(*v) == 0 {
				return nil
			}
			out := &node{Kind: document.Object}
			for _, p := range *v {
				out.Fields = append(out.Fields, document.Field{Name: p.Name, Value: text(p.Value)})
			}
			return out
		},
	}
}

// trials is an object of durations, named by scopes.
func trials(v *[]Trial) value {
	return value{
		takes: "object of durations of at most " + document.FormatDuration(MaxTrial) + ", named by scopes: " + strings.Join(scopeNames(), ", "),
		read: func(d *decoder, n *node, path string) {
			*v = nil
			var scopes []document.Part
			for _, scope := range snapshot.Scopes() {
				scopes = append(scopes, document.Part{Name: string(scope), Read: func(n *node, path string) {
					*v = append(*v, Trial{scope, d.Duration(n, path, time.Second, MaxTrial)})
				}})
			}
			d.Object(n, path, scopes...)
			slices.SortStableFunc(*v, func(a, b Trial) int { return cmp.Compare(a.Scope, b.Scope) })
		},
		write: func() *node {
			if len(*v) == 0 {
				return nil
			}
			out := &node{Kind: document.Object}
			for _, t := range *v {
				out.Fields = append(out.Fields, document.Field{Name: string(t.Scope), Value: text(document.FormatDuration(t.Duration))})
			}
			return out
		},
	}
}

// issuers is a list of objects, kept sorted by name.
func issuers(v *[]Issuer) value {
	fields := func(i *Issuer) []field {
		return []field{
			{name: "name", about: "The name of the issuer, unique in the list.", required: true, value: one(&i.Name, nameForm(""))},
			{name: "url", about: "The issuer that its tokens name.", required: true, value: one(&i.URL, urlForm())},
			{name: "audiences", about: "The audiences that a token may be for.", required: true, value: set(&i.Audiences, lineForm(MaxAddress))},
			{name: "keys", about: "The public keys that verify its tokens, as PEM: Ed25519, ECDSA, or RSA of 2048 bits or more.", required: true, value: publicKeys(&i.Keys)},
		}
	}
	return value{
		takes:  fmt.Sprintf("list of at most %d objects", MaxItems),
		fields: fields(new(Issuer)),
		read: func(d *decoder, n *node, path string) {
			*v = nil
			d.List(n, path, MaxItems, func(n *node, path string) {
				var i Issuer
				d.Object(n, path, parts(d, fields(&i))...)
				if d.Faulty(path) {
					return
				}
				if slices.ContainsFunc(*v, func(o Issuer) bool { return o.Name == i.Name }) {
					d.Fault("duplicate-item", document.Join(path, "name"), document.Shown(i.Name)+" stands in the list already", "choose another name")
					return
				}
				for name, empty := range map[string]bool{"audiences": len(i.Audiences) == 0, "keys": len(i.Keys) == 0} {
					if empty {
						d.Fault("missing-item", document.Join(path, name), "the list is empty", "add an item")
					}
				}
				*v = append(*v, i)
			})
			slices.SortStableFunc(*v, func(a, b Issuer) int { return cmp.Compare(a.Name, b.Name) })
		},
		write: func() *node {
			if len(*v) == 0 {
				return nil
			}
			return listOf(*v, func(i Issuer) *node { return object(fields(&i)) })
		},
	}
}

// publicKeys is a list of public keys in PEM, kept sorted by their bytes.
func publicKeys(v *[][]byte) value {
	return value{
		takes: fmt.Sprintf("list of at most %d public keys, each one PEM block `PUBLIC KEY`", MaxItems),
		read: func(d *decoder, n *node, path string) {
			*v = nil
			d.List(n, path, MaxItems, func(n *node, path string) {
				s, ok := d.Text(n, path)
				if !ok {
					return
				}
				der, what := publicKey(s)
				switch {
				case what != "":
					d.Fault("public-key", path, what, "write a public key in PEM, from BEGIN PUBLIC KEY to END PUBLIC KEY (openssl pkey -pubout)")
				case slices.ContainsFunc(*v, func(o []byte) bool { return bytes.Equal(o, der) }):
					d.Fault("duplicate-item", path, "this stands in the list already", "remove it")
				default:
					*v = append(*v, der)
				}
			})
			slices.SortFunc(*v, bytes.Compare)
		},
		write: func() *node {
			if len(*v) == 0 {
				return nil
			}
			return listOf(*v, func(der []byte) *node {
				return text(string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
			})
		},
	}
}

// maxPublicKeyText bounds the text that a key is read from, with what people wrote around it.
const maxPublicKeyText = 4 * MaxPublicKey

// publicKey reads one key. An error never shows the text: it can be the other half
// of a key pair.
func publicKey(s string) (der []byte, what string) {
	keys, err := pemfile.PublicKeys([]byte(s), pemfile.Limits{Bytes: maxPublicKeyText, Blocks: 1})
	switch {
	case errors.Is(err, pemfile.ErrPrivateKey):
		return nil, "a private key where a public one is wanted: replace that key pair"
	case err != nil:
		return nil, "this is not one PEM block of a public key: " + err.Error()
	}
	key, der := keys[0].Key, keys[0].DER
	if len(der) > MaxPublicKey {
		return nil, fmt.Sprintf("the key has %d bytes, and at most %d are allowed", len(der), MaxPublicKey)
	}
	switch k := key.(type) {
	case ed25519.PublicKey, *ecdsa.PublicKey:
	case *rsa.PublicKey:
		if k.N.BitLen() < 2048 {
			return nil, fmt.Sprintf("an RSA key of %d bits, want 2048 or more", k.N.BitLen())
		}
	default:
		return nil, "the key is neither Ed25519 nor ECDSA nor RSA"
	}
	return der, ""
}
