package manifest

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
)

// A decoder turns nodes into a Manifest and collects what is wrong.
type decoder struct {
	at       map[string]place // of each field read, by its path
	problems []*Problem
}

type place struct{ line, col int }

// A part is a field of an object.
type part struct {
	name     string
	required bool
	read     func(n *node, path string)
}

// full reports that enough problems are known for an answer.
func (d *decoder) full() bool { return len(d.problems) >= 4*MaxProblems }

func (d *decoder) report(rule string, at place, path, what, do string) {
	if !d.full() {
		d.problems = append(d.problems, &Problem{Rule: rule, Line: at.line, Column: at.col, Field: path, What: what, Do: do})
	}
}

// fault reports a problem of a field that was read.
func (d *decoder) fault(rule, path, what, do string) { d.report(rule, d.at[path], path, what, do) }

// faulty reports whether a problem was found at path or within it.
func (d *decoder) faulty(path string) bool {
	return slices.ContainsFunc(d.problems, func(p *Problem) bool {
		rest, ok := strings.CutPrefix(p.Field, path)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (d *decoder) expect(n *node, path string, want nodeKind) bool {
	d.at[path] = place{n.line, n.col}
	if n.kind == want {
		return true
	}
	found := n.kind.String()
	if n.text != "" {
		found += " " + shown(n.text)
	}
	do := "write " + want.String()
	if want == stringNode && (n.kind == intNode || n.kind == boolNode || n.kind == otherNode) {
		do = "put it in quotes"
	}
	if n.kind == nullNode {
		do += ", or remove the field"
	}
	d.fault("wrong-type", path, fmt.Sprintf("this is %s, want %s", found, want), do)
	return false
}

func (d *decoder) object(n *node, path string, parts ...part) {
	if !d.expect(n, path, objectNode) {
		return
	}
	first := make(map[string]int, len(n.fields)) // line of each field seen
	for _, f := range n.fields {
		at := place{f.line, f.col}
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == f.name })
		if i < 0 {
			names := make([]string, len(parts))
			for j, p := range parts {
				names[j] = p.name
			}
			d.report("unknown-field", at, join(path, f.name), "no such field", suggest(f.name, names))
			continue
		}
		if line, twice := first[f.name]; twice {
			d.report("duplicate-field", at, join(path, f.name), fmt.Sprintf("the field stands in line %d already", line), "keep one of them")
			continue
		}
		first[f.name] = f.line
		parts[i].read(f.value, join(path, f.name))
	}
	for _, p := range parts {
		if _, ok := first[p.name]; p.required && !ok {
			d.report("missing-field", place{n.line, n.col}, join(path, p.name), "the field is missing", "add it")
		}
	}
}

func (d *decoder) list(n *node, path string, most int, read func(n *node, path string)) {
	if !d.expect(n, path, listNode) {
		return
	}
	if len(n.items) > most {
		d.fault("too-many", path, fmt.Sprintf("%d items", len(n.items)), fmt.Sprintf("at most %d are allowed", most))
		return
	}
	for i, item := range n.items {
		read(item, fmt.Sprintf("%s[%d]", path, i))
	}
}

func (d *decoder) text(n *node, path string) (string, bool) {
	if !d.expect(n, path, stringNode) {
		return "", false
	}
	return n.text, true
}

func (d *decoder) number(n *node, path string, least, most int) int {
	if !d.expect(n, path, intNode) {
		return 0
	}
	v, err := strconv.Atoi(n.text)
	if err != nil || v < least || v > most {
		d.fault("number-range", path, fmt.Sprintf("%s is out of bounds", shown(n.text)), fmt.Sprintf("write a number from %d to %d", least, most))
		return 0
	}
	return v
}

func (d *decoder) yes(n *node, path string) bool {
	return d.expect(n, path, boolNode) && n.text == "true"
}

// duration reads 36h, 7d or 1h30m. A bare 0 is the only number without a unit.
func (d *decoder) duration(n *node, path string, least, most time.Duration) time.Duration {
	if n.kind == intNode && n.text != "0" {
		d.at[path] = place{n.line, n.col}
		d.fault("duration", path, shown(n.text)+" has no unit", "write a unit after it: d, h, m or s, as in 36h")
		return 0
	}
	if n.kind != intNode && !d.expect(n, path, stringNode) {
		return 0
	}
	d.at[path] = place{n.line, n.col}
	v, ok := parseDuration(n.text)
	switch {
	case !ok:
		d.fault("duration", path, shown(n.text)+" is not a duration", "write whole days, hours, minutes and seconds, as in 7d, 36h or 1h30m")
	case v < least || v > most:
		d.fault("duration", path, shown(n.text)+" is out of bounds", fmt.Sprintf("write from %s to %s", formatDuration(least), formatDuration(most)))
	default:
		return v
	}
	return 0
}

// parseDuration reads whole units in falling order: [n d] [n h] [n m] [n s].
func parseDuration(s string) (time.Duration, bool) {
	if s == "0" {
		return 0, true
	}
	var total time.Duration
	units := [...]struct {
		name byte
		size time.Duration
	}{{'d', 24 * time.Hour}, {'h', time.Hour}, {'m', time.Minute}, {'s', time.Second}}
	next := 0
	for s != "" {
		digits := 0
		for digits < len(s) && s[digits] >= '0' && s[digits] <= '9' {
			digits++
		}
		if digits == 0 || digits > 6 || digits == len(s) {
			return 0, false
		}
		n, _ := strconv.Atoi(s[:digits])
		for next < len(units) && units[next].name != s[digits] {
			next++
		}
		if next == len(units) || time.Duration(n) > (1<<62)/units[next].size {
			return 0, false
		}
		total += time.Duration(n) * units[next].size
		if total < 0 {
			return 0, false
		}
		next++
		s = s[digits+1:]
	}
	return total, next > 0
}

// formatDuration prints v in the units that parseDuration reads.
func formatDuration(v time.Duration) string {
	if v == 0 {
		return "0"
	}
	var b strings.Builder
	for _, u := range [...]struct {
		name string
		size time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if u.name == "d" && v < 72*time.Hour {
			continue // 25h says more than 1d1h
		}
		if n := v / u.size; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			v -= n * u.size
		}
	}
	return b.String()
}

// name reads a name that becomes part of identities and of error messages.
func (d *decoder) name(n *node, path string) string {
	s, ok := d.text(n, path)
	if ok && !isName(s) {
		d.fault("name", path, shown(s)+" is not a name", fmt.Sprintf("use letters, digits, '.', '-' and '_', at most %d of them", maxNameBytes))
		return ""
	}
	return s
}

// word reads one of a closed set of words.
func word[W ~string](d *decoder, n *node, path, rule string, known []W) W {
	s, ok := d.text(n, path)
	if ok && !slices.Contains(known, W(s)) {
		names := make([]string, len(known))
		for i, k := range known {
			names[i] = string(k)
		}
		d.fault(rule, path, shown(s)+" is not known here", suggest(s, names))
		return ""
	}
	return W(s)
}

// unique reads items of a list and refuses one that stands there already.
func unique[T comparable](d *decoder, n *node, path string, most int, read func(n *node, path string) T) []T {
	out := []T{}
	d.list(n, path, most, func(n *node, path string) {
		v := read(n, path)
		if d.faulty(path) {
			return
		}
		if slices.Contains(out, v) {
			d.fault("duplicate-item", path, fmt.Sprintf("%v stands in the list already", v), "remove it")
			return
		}
		out = append(out, v)
	})
	return out
}

func (d *decoder) manifest(root *node) *Manifest {
	m := &Manifest{Trust: DefaultTrust, RejoinGrace: DefaultRejoinGrace,
		Degraded: Degraded{Allow: DefaultDegradedAllow(), Max: DefaultDegradedMax, RouteTTL: -1}}
	d.object(root, "",
		part{"cluster", true, func(n *node, path string) {
			s, ok := d.text(n, path)
			if !ok {
				return
			}
			if err := identity.CheckCluster(s); err != nil {
				d.fault("cluster-name", path, err.Error(), "write a SPIFFE trust domain, such as prod.example")
				return
			}
			m.Cluster = s
		}},
		part{"seed", true, func(n *node, path string) { d.seed(n, path, &m.Seed) }},
		part{"signers", true, func(n *node, path string) { d.signers(n, path, &m.Signers) }},
		part{"proofs", false, func(n *node, path string) { d.proofs(n, path, &m.Proofs) }},
		part{"admit", true, func(n *node, path string) {
			d.list(n, path, MaxEntries, func(n *node, path string) { m.Admit = append(m.Admit, d.entry(n, path)) })
		}},
		part{"trust", false, func(n *node, path string) {
			m.Trust = word(d, n, path, "trust", []Trust{TrustRoot, TrustMesh})
		}},
		part{"degraded", false, func(n *node, path string) { d.degraded(n, path, &m.Degraded) }},
		part{"rejoin_grace", false, func(n *node, path string) { m.RejoinGrace = d.duration(n, path, 0, MaxRejoinGrace) }},
	)
	fillDefaults(m)
	return m
}

// fillDefaults sets what the document leaves to other fields of it.
func fillDefaults(m *Manifest) {
	if m.Degraded.RouteTTL < 0 {
		m.Degraded.RouteTTL = min(DefaultRouteTTL, m.Degraded.Max)
	}
	for i := range m.Admit {
		switch e := &m.Admit[i]; {
		case e.SVIDTTL != 0:
		case isPerson(e.Kind):
			e.SVIDTTL = DefaultPersonTTL
		default:
			e.SVIDTTL = m.Degraded.Max + DefaultSVIDMargin
		}
	}
}

// isPerson reports whether k is a kind of people and tools, which log in again
// instead of living through degraded mode.
func isPerson(k identity.Kind) bool { return k == identity.Admin || k == identity.Readonly }

func (d *decoder) seed(n *node, path string, s *Seed) {
	d.object(n, path,
		part{"threshold", true, func(n *node, path string) { s.Threshold = d.number(n, path, 1, MaxOwners) }},
		part{"owners", true, func(n *node, path string) {
			d.list(n, path, MaxOwners, func(n *node, path string) { s.Owners = append(s.Owners, d.owner(n, path)) })
		}},
	)
}

func (d *decoder) owner(n *node, path string) Owner {
	var o Owner
	d.object(n, path,
		part{"name", true, func(n *node, path string) { o.Name = d.name(n, path) }},
		part{"recipient", false, func(n *node, path string) {
			s, ok := d.text(n, path)
			if !ok {
				return
			}
			if _, wrong := checkRecipient(s); wrong != "" {
				d.fault("recipient", path, wrong, "paste an age recipient (age1…, from age-keygen) or an SSH public key (ssh-ed25519 or ssh-rsa)")
			}
			o.Recipient = s
		}},
		part{"keeper", false, func(n *node, path string) {
			s, ok := d.text(n, path)
			if !ok {
				return
			}
			if wrong := checkKeeper(s); wrong != "" {
				d.fault("keeper", path, wrong, "write file:/path of a key file, or exec:/path of a program")
			}
			o.Keeper = s
		}},
	)
	if (o.Recipient == "") == (o.Keeper == "") && n.kind == objectNode && !d.faulty(path) {
		d.fault("owner-holder", path, "an owner has a recipient or a keeper, exactly one of the two", "add one, or split the owner in two")
	}
	return o
}

func (d *decoder) signers(n *node, path string, s *Signers) {
	d.object(n, path,
		part{"threshold", true, func(n *node, path string) { s.Threshold = d.number(n, path, 1, MaxSigners) }},
		part{"keys", true, func(n *node, path string) {
			d.list(n, path, MaxSigners, func(n *node, path string) { s.Keys = append(s.Keys, d.signer(n, path)) })
		}},
	)
}

func (d *decoder) signer(n *node, path string) Signer {
	var s Signer
	d.object(n, path,
		part{"name", true, func(n *node, path string) { s.Name = d.name(n, path) }},
		part{"key", true, func(n *node, path string) {
			text, ok := d.text(n, path)
			if !ok {
				return
			}
			k, err := ParseKey(text)
			if err != nil {
				d.fault("key", path, err.Error(), "write ed25519: and the public key in base64")
			}
			s.Key = k
		}},
	)
	return s
}

func (d *decoder) proofs(n *node, path string, p *Proofs) {
	d.object(n, path,
		part{"x509", false, func(n *node, path string) {
			p.X509 = &X509Proof{}
			d.object(n, path, part{"roots_pem", true, func(n *node, path string) { d.roots(n, path, p.X509) }})
		}},
		part{"sevsnp", false, func(n *node, path string) {
			p.SEVSNP = &SEVSNPProof{}
			d.object(n, path,
				part{"measurements", true, func(n *node, path string) {
					p.SEVSNP.Measurements = unique(d, n, path, MaxListItems, d.measurement)
				}},
				part{"min_tcb", false, func(n *node, path string) { d.tcb(n, path, &p.SEVSNP.MinTCB) }},
			)
		}},
	)
}

func (d *decoder) measurement(n *node, path string) string {
	s, ok := d.text(n, path)
	if !ok {
		return ""
	}
	canonical, wrong := parseHex(48)(s)
	if wrong != "" {
		d.fault("measurement", path, shown(s)+" is not a launch measurement", "write its 48 bytes as 96 hex digits")
	}
	return canonical
}

func (d *decoder) tcb(n *node, path string, t *TCB) {
	component := func(v *uint8) func(*node, string) {
		return func(n *node, path string) { *v = uint8(d.number(n, path, 0, 255)) }
	}
	d.object(n, path,
		part{"bootloader", false, component(&t.Bootloader)},
		part{"tee", false, component(&t.TEE)},
		part{"snp", false, component(&t.SNP)},
		part{"microcode", false, component(&t.Microcode)},
	)
}

// roots reads the certificates of proofs.x509. Whether one is in date is a
// question for the moment of a proof, not of parsing.
func (d *decoder) roots(n *node, path string, p *X509Proof) {
	const do = "paste CA certificates, each from BEGIN CERTIFICATE to END CERTIFICATE"
	s, ok := d.text(n, path)
	if !ok {
		return
	}
	if len(s) > maxRootsPEMBytes {
		d.fault("roots-pem", path, fmt.Sprintf("%d bytes", len(s)), fmt.Sprintf("at most %d are allowed", maxRootsPEMBytes))
		return
	}
	p.RootsPEM = s
	blocks := strings.Count(s, "-----BEGIN ")
	rest := []byte(s)
	for len(bytes.TrimSpace(rest)) > 0 {
		// pem.Decode skips what it does not understand; a root that the writer sees
		// in the file and that is not read must not go unnoticed.
		block, after := pem.Decode(rest)
		number := len(p.RootsDER) + 1
		switch {
		case block == nil || !bytes.HasPrefix(bytes.TrimSpace(rest), []byte("-----BEGIN ")):
			d.fault("roots-pem", path, fmt.Sprintf("text that is no certificate, after %d that are", number-1), do)
			return
		case strings.Contains(block.Type, "PRIVATE KEY"):
			d.fault("roots-pem", path, "a private key, and a manifest is public", "remove it, replace that key pair, and "+do)
			return
		case block.Type != "CERTIFICATE" || len(block.Headers) != 0:
			d.fault("roots-pem", path, fmt.Sprintf("block %d is of type %s", number, shown(block.Type)), do)
			return
		case number > maxRoots:
			d.fault("roots-pem", path, "too many certificates", fmt.Sprintf("at most %d are allowed", maxRoots))
			return
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			d.fault("roots-pem", path, fmt.Sprintf("certificate %d cannot be read: %v", number, err), do)
			return
		case !cert.BasicConstraintsValid || !cert.IsCA:
			d.fault("roots-pem", path, fmt.Sprintf("certificate %d, of %s, is not a CA's", number, shown(cert.Subject.String())), do)
			return
		case slices.ContainsFunc(p.RootsDER, func(der []byte) bool { return bytes.Equal(der, cert.Raw) }):
			d.fault("roots-pem", path, fmt.Sprintf("certificate %d stands there already", number), "remove it")
			return
		}
		p.RootsDER = append(p.RootsDER, cert.Raw)
		rest = after
	}
	if n := len(p.RootsDER); n == 0 || n != blocks {
		d.fault("roots-pem", path, fmt.Sprintf("%d blocks begin and %d certificates can be read", blocks, n), do)
	}
}

func (d *decoder) entry(n *node, path string) Entry {
	var e Entry
	d.object(n, path,
		part{"name", true, func(n *node, path string) { e.Name = d.name(n, path) }},
		part{"kind", true, func(n *node, path string) { e.Kind = word(d, n, path, "kind", Kinds()) }},
		part{"match", true, func(n *node, path string) {
			d.list(n, path, MaxPatterns, func(n *node, path string) { e.Match = append(e.Match, d.pattern(n, path)) })
			if e.Match == nil && !d.faulty(path) {
				d.fault("selector", path, "an entry without a selector can match nothing", "add one, such as "+selectorForms[2].example)
			}
		}},
		part{"roles", false, func(n *node, path string) {
			e.Roles = unique(d, n, path, MaxListItems, func(n *node, path string) Role { return word(d, n, path, "role", Roles()) })
		}},
		part{"organizations", false, func(n *node, path string) {
			e.Organizations = unique(d, n, path, MaxListItems, d.name)
		}},
		part{"max_members", false, func(n *node, path string) { e.MaxMembers = d.number(n, path, 1, MaxMembers) }},
		part{"svid_ttl", false, func(n *node, path string) { e.SVIDTTL = d.duration(n, path, MinSVIDTTL, MaxSVIDTTL) }},
		part{"dns_names", false, func(n *node, path string) { e.DNSNames = unique(d, n, path, MaxListItems, d.dnsName) }},
		part{"ips", false, func(n *node, path string) { e.IPs = unique(d, n, path, MaxListItems, d.ip) }},
		part{"platform_may_read_seed", false, func(n *node, path string) { e.PlatformMayReadSeed = d.yes(n, path) }},
	)
	return e
}

// pattern keeps a place in the list for a pattern that is wrong, so that the
// indices of those after it stay those of the document.
func (d *decoder) pattern(n *node, path string) Pattern {
	s, ok := d.text(n, path)
	if !ok {
		return Pattern{}
	}
	p, err := ParsePattern(s)
	if e, wrong := errors.AsType[*PatternError](err); wrong {
		d.fault("selector", path, e.What, e.Do)
	}
	return p
}

// dnsName reads a host name (RFC 1123 §2.1): a wildcard would let one member
// stand for others.
func (d *decoder) dnsName(n *node, path string) string {
	s, ok := d.text(n, path)
	if !ok {
		return ""
	}
	valid := len(s) <= 253
	for label := range strings.SplitSeq(s, ".") {
		valid = valid && label != "" && len(label) <= 63 && label[0] != '-' && label[len(label)-1] != '-' &&
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
	}
	if !valid || netip.Addr.IsValid(addrOrZero(s)) {
		d.fault("dns-name", path, shown(s)+" is not a host name", "write it in lower case, without a wildcard, such as node-c.example")
	}
	return s
}

func addrOrZero(s string) netip.Addr {
	a, _ := netip.ParseAddr(s)
	return a
}

func (d *decoder) ip(n *node, path string) netip.Addr {
	s, ok := d.text(n, path)
	if !ok {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() {
		d.fault("ip", path, shown(s)+" is not the address of a host", "write an IPv4 or IPv6 address without a zone")
	}
	return a
}

func (d *decoder) degraded(n *node, path string, g *Degraded) {
	d.object(n, path,
		part{"allow", false, func(n *node, path string) {
			g.Allow = unique(d, n, path, MaxListItems, func(n *node, path string) Permission {
				return word(d, n, path, "permission", Permissions())
			})
		}},
		part{"max", false, func(n *node, path string) { g.Max = d.duration(n, path, 0, MaxSVIDTTL-DefaultSVIDMargin) }},
		part{"route_ttl", false, func(n *node, path string) { g.RouteTTL = d.duration(n, path, 0, MaxRouteTTL) }},
	)
}
