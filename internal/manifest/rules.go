package manifest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/document"
)

// A parseRule is one way in which [Parse] refuses a document.
type parseRule struct {
	Name    string // stable: see Problem.Rule
	Why     string // what goes wrong without it
	Section string // where it is written
}

// The pages on which rules are explained.
const (
	inFields     = "docs/reference/manifest.md#fields"
	inLimits     = "docs/reference/limits.md#the-manifest"
	inOwners     = "docs/how-to/seed-owners.md"
	inTokens     = "docs/how-to/join-a-node.md#with-a-token"
	inScopes     = "docs/explanation/snapshots.md#who-gets-a-record"
	inDegraded   = "docs/explanation/offline.md#one-guard-decides"
	inIdentities = "docs/explanation/trust.md#1-from-the-seed-to-a-certificate"
	inProofs     = "docs/explanation/trust.md#2-a-join-over-a-channel-binding"
	inHistory    = "docs/explanation/trust.md#3-the-set-and-the-history"
	inRenewal    = "docs/explanation/trust.md#5-renewal-and-rejoin"
)

// parseRules returns every rule, form first and then meaning.
func parseRules() []parseRule {
	rules := []parseRule{
		{"size", "a store that nobody vouches for must not exhaust a coordinator", inFields},
		{"characters", "a signer must see what is signed", "YAML 1.2.2 §5.1; Unicode TR36 §2"},
		{"syntax", "what cannot be read says nothing", "YAML 1.2.2; RFC 8259"},
		{"one-document", "a second document would be signed and not obeyed", "YAML 1.2.2 §9.2"},
		{"plain-yaml", "aliases multiply, tags and merge keys mean what they do not show", "YAML 1.2.2 §3.2.1"},
		{"depth", "a parser recurses for each level", inFields},
		{"unknown-field", "a mistyped limit would limit nothing", inFields},
		{"duplicate-field", "readers differ in which of the two counts", inFields},
		{"missing-field", "trust has no default", inFields},
		{"wrong-type", "a guess at what was meant is a guess at who is trusted", inFields},
		{"too-many", "every list is bounded", inLimits},
		{"number-range", "every number is bounded", inLimits},
		{"duration", "every lifetime is bounded, and no unit is guessed", inRenewal},
		{"cluster-name", "it is the trust domain of every identity", "SPIFFE-ID §2.1"},
		{"name", "names become path segments of identities", "SPIFFE-ID §2.2"},
		{"duplicate-item", "a list says a thing once", inFields},
		{"recipient", "a mistyped recipient is found when the seed is lost", inOwners},
		{"keeper", "likewise a keeper that is not there", inOwners},
		{"owner-holder", "a share goes to one holder", inOwners},
		{"key", "a key that nobody holds signs nothing", "RFC 8032 §5.1.2"},
		{"measurement", "a value of another form matches no report", "SEV-SNP ABI, ATTESTATION_REPORT"},
		{"roots-pem", "a root that is written and not read surprises both ways", "RFC 7468 §5"},
		{"kind", "only kinds that join can be admitted", inIdentities},
		{"role", "an unknown role would hold nothing", inScopes},
		{"selector", "an entry that can match nothing admits nobody, and misleads", inProofs},
		{"dns-name", "a wildcard lets one member stand for others", "RFC 1123 §2.1"},
		{"label", "people and tools look for KEY=VALUE", inFields},
		{"ip", "only hosts have certificates", "RFC 5280 §4.2.1.6"},
		{"trust", "only two modes exist", inHistory},
		{"permission", "an unknown permission would permit nothing", inDegraded},
		{"token-issuer", "verifiers find keys by it, and compare it byte by byte",
			"OpenID Connect Discovery 1.0 §3; RFC 8414 §2"},
	}
	for _, c := range checks {
		rules = append(rules, c.parseRule)
	}
	for _, c := range newerChecks {
		rules = append(rules, c.parseRule)
	}
	return rules
}

// A check is a rule over fields that were read well: it is left out where one
// of the parts it looks at has a problem already, which it would only echo.
type check struct {
	parseRule
	parts []string
	find  func(d *decoder, m *Manifest)
}

var checks = [...]check{
	{parseRule{"duplicate-name", "a name must mean one thing", inFields}, nil, checkNames},
	{parseRule{"duplicate-key", "one key under two names would count twice towards a threshold", inHistory},
		nil, checkSignerKeys},
	{parseRule{"duplicate-recipient", "one person with two shares makes the threshold a lie", inOwners},
		nil, checkHolders},
	{parseRule{"seed-threshold", "a seed that its owners cannot bring back is lost", inFields},
		[]string{"seed"}, checkSeedThreshold},
	{parseRule{"signers-threshold", "a manifest that its signers cannot change is final", inFields},
		[]string{"signers"}, checkSignersThreshold},
	{parseRule{"no-coordinator", "no replica could ever recover the seed from a peer", inFields},
		[]string{"admit"}, checkCoordinatorEntry},
	{parseRule{"coordinator-selector", "whoever holds a join token, or runs the platform, would hold the seed",
		inProofs},
		nil, checkCoordinatorSelectors},
	{parseRule{"platform-flag", "the flag means something for coordinators under k8s selectors only", inProofs},
		[]string{"admit"}, checkPlatformFlag},
	{parseRule{"token-entry", "a token names its entry", inTokens}, nil, checkTokenSelectors},
	{parseRule{"selector-without-proof", "without reference values the selector can match nothing", inFields},
		[]string{"proofs"}, checkProofPresent},
	{parseRule{"two-kinds", "one proof must not give one candidate two kinds", inFields}, nil, checkOverlap},
	// Found by two-kinds.
	{parseRule{"shadowed-selector", "an earlier entry takes all that this one could match", inFields}, nil, nil},
	{parseRule{"too-many-globs", "overlaps are found by comparing each pattern that has a * with all others",
		inLimits}, nil, nil},
	{parseRule{"degraded-max", "nothing outlives its identity: all edges of a node die with its SVID", inRenewal},
		[]string{"degraded.max"}, checkDegradedMax},
	{parseRule{"route-ttl", "a route cannot outlive the mode that preserves it", inDegraded},
		[]string{"degraded"}, checkRouteTTL},
}

// newerChecks are rules that came after releases which accepted what they refuse: they
// bind [Parse], and are findings of [ParseAccepted].
var newerChecks = [...]check{
	{parseRule{"selector-unproven", "an entry that nothing can prove admits nobody, and misleads", inProofs},
		[]string{"admit"}, checkProvable},
}

func (d *decoder) check(m *Manifest, checks []check) {
	for _, c := range checks {
		if c.find == nil {
			continue
		}
		faulty := false
		for _, p := range c.parts {
			faulty = faulty || d.Faulty(p)
		}
		if !faulty {
			c.find(d, m)
		}
	}
}

func checkNames(d *decoder, m *Manifest) {
	list := func(path string, n int, name func(i int) string) {
		first := make(map[string]int)
		for i := range n {
			s := name(i)
			if s == "" {
				continue
			}
			if j, twice := first[s]; twice {
				at := fmt.Sprintf("%s[%d].name", path, i)
				d.Fault("duplicate-name", at, fmt.Sprintf("%s is the name of %s[%d] already, in line %d",
					document.Shown(s), path, j, d.At(fmt.Sprintf("%s[%d].name", path, j)).Line), "choose another name")
				continue
			}
			first[s] = i
		}
	}
	list("seed.owners", len(m.Seed.Owners), func(i int) string { return m.Seed.Owners[i].Name })
	list("signers.keys", len(m.Signers.Keys), func(i int) string { return m.Signers.Keys[i].Name })
	list("admit", len(m.Admit), func(i int) string { return m.Admit[i].Name })
}

func checkSignerKeys(d *decoder, m *Manifest) {
	first := make(map[Key]int)
	for i, s := range m.Signers.Keys {
		if s.Key.IsZero() {
			continue
		}
		if j, twice := first[s.Key]; twice {
			d.Fault("duplicate-key", fmt.Sprintf("signers.keys[%d].key", i),
				fmt.Sprintf("this is the key of signers.keys[%d] already", j),
				"remove one of the two: a key counts once")
			continue
		}
		first[s.Key] = i
	}
}

func checkHolders(d *decoder, m *Manifest) {
	first := make(map[string]int)
	for i, o := range m.Seed.Owners {
		id, at := o.Keeper, "keeper"
		if o.Recipient != "" {
			at = "recipient"
			id, _ = checkRecipient(o.Recipient)
		}
		if id == "" {
			continue
		}
		if j, twice := first[id]; twice {
			d.Fault("duplicate-recipient", fmt.Sprintf("seed.owners[%d].%s", i, at),
				fmt.Sprintf("this holder has a share as seed.owners[%d] already", j),
				"give the share to someone else, or lower the threshold")
			continue
		}
		first[id] = i
	}
}

// checkSeedThreshold: it takes so many people. A keeper brings the whole seed back
// alone, whatever the threshold, and so cannot stand for one of them.
func checkSeedThreshold(d *decoder, m *Manifest) {
	people := len(m.Seed.People())
	switch k := m.Seed.Threshold; {
	case len(m.Seed.Owners) == 0:
		d.Fault("seed-threshold", "seed.owners", "nobody could bring the seed back", "add an owner")
	case people == 0 && k > 1:
		d.Fault("seed-threshold", "seed.threshold", fmt.Sprintf("the threshold is %d, and all owners are "+
			"keepers, each of which holds the whole seed", k), "write 1, or add people: owners with a recipient")
	case people > 0 && k > people:
		d.Fault("seed-threshold", "seed.threshold", fmt.Sprintf("the threshold is %d, and %d of the owners are "+
			"people with a share", k, people), fmt.Sprintf("write at most %d, or add people: owners with a "+
			"recipient", people))
	}
}

func checkSignersThreshold(d *decoder, m *Manifest) {
	if n := len(m.Signers.Keys); n == 0 {
		d.Fault("signers-threshold", "signers.keys", "nobody could set the next manifest", "add a signer")
	} else if m.Signers.Threshold > n {
		d.Fault("signers-threshold", "signers.threshold", fmt.Sprintf("the threshold is %d, and there are %d keys",
			m.Signers.Threshold, n), fmt.Sprintf("write at most %d, or add keys", n))
	}
}

func checkCoordinatorEntry(d *decoder, m *Manifest) {
	for _, e := range m.Admit {
		if e.Kind == identity.Coordinator {
			return
		}
	}
	d.Fault("no-coordinator", "admit", "no entry is of kind coordinator",
		"add one, such as {name: coordinators, kind: coordinator, match: [\"x509:subject:CN=coordinator-*\"]}")
}

// eachPattern calls f for each pattern that was read, with its path.
func eachPattern(m *Manifest, f func(e *Entry, entry int, p Pattern, path string)) {
	for i := range m.Admit {
		for j, p := range m.Admit[i].Match {
			if p.text != "" {
				f(&m.Admit[i], i, p, fmt.Sprintf("admit[%d].match[%d]", i, j))
			}
		}
	}
}

func checkCoordinatorSelectors(d *decoder, m *Manifest) {
	eachPattern(m, func(e *Entry, _ int, p Pattern, path string) {
		if e.Kind != identity.Coordinator {
			return
		}
		switch p.Family() {
		case FamilyKey, FamilyX509, FamilyTPM, FamilySEVSNP:
		case FamilyKubernetes:
			if !e.PlatformMayReadSeed {
				d.Fault("coordinator-selector", path, "whoever controls the Kubernetes API server could read "+
					"the seed through this", "use key, x509, tpm or sevsnp, or accept it with "+
					"platform_may_read_seed: true")
			}
		default:
			d.Fault("coordinator-selector", path, fmt.Sprintf("a coordinator cannot be admitted by %s", p.Family()),
				"use key, x509, tpm or sevsnp")
		}
	})
}

// provable are the selector families that this release has a proof for. The others are
// read, so that a manifest which names one is refused by its name.
var provable = [...]string{FamilyToken, FamilyKey, FamilyX509}

func checkProvable(d *decoder, m *Manifest) {
	eachPattern(m, func(_ *Entry, _ int, p Pattern, path string) {
		if !slices.Contains(provable[:], p.Family()) {
			d.Fault("selector-unproven", path, fmt.Sprintf("this release has no proof of %s selectors, so that "+
				"%s admits nobody", p.Family(), document.Shown(p.text)),
				"use "+strings.Join(provable[:], ", ")+" until a release proves it")
		}
	})
}

func checkPlatformFlag(d *decoder, m *Manifest) {
	for i := range m.Admit {
		e := &m.Admit[i]
		kubernetes := false
		for _, p := range e.Match {
			kubernetes = kubernetes || p.Family() == FamilyKubernetes
		}
		if e.PlatformMayReadSeed && (e.Kind != identity.Coordinator || !kubernetes) {
			d.Fault("platform-flag", fmt.Sprintf("admit[%d].platform_may_read_seed", i),
				"this entry admits no coordinator by a k8s selector", "remove the flag")
		}
	}
}

func checkTokenSelectors(d *decoder, m *Manifest) {
	eachPattern(m, func(e *Entry, _ int, p Pattern, path string) {
		if want := FamilyToken + ":" + e.Name; p.IsToken() && p.text != want && e.Name != "" {
			d.Fault("token-entry", path, fmt.Sprintf("%s names another entry than %s", document.Shown(p.text),
				document.Shown(e.Name)), "write "+want)
		}
	})
}

func checkProofPresent(d *decoder, m *Manifest) {
	eachPattern(m, func(_ *Entry, _ int, p Pattern, path string) {
		switch p.Family() {
		case FamilyX509:
			if m.Proofs.X509 == nil {
				d.Fault("selector-without-proof", path, "no certificate can show this without roots",
					"add proofs.x509.roots_pem")
			}
		case FamilySEVSNP:
			listed := false
			if m.Proofs.SEVSNP != nil {
				for _, measurement := range m.Proofs.SEVSNP.Measurements {
					listed = listed || p.text == "sevsnp:measurement:"+measurement
				}
			}
			if !listed {
				d.Fault("selector-without-proof", path, "no report with this measurement is accepted",
					"add it to proofs.sevsnp.measurements")
			}
		}
	})
}

// checkOverlap finds patterns that a single selector could match together. With
// kinds that differ it is ambiguous what that candidate is. Within one kind the
// rule of Match decides, and a pattern that it can never choose is refused.
func checkOverlap(d *decoder, m *Manifest) {
	type placed struct {
		patternRef
		path string
	}
	var all, globs []placed
	exact := make(map[string]placed)
	clash := func(earlier, later placed) {
		a, b := &m.Admit[earlier.entry], &m.Admit[later.entry]
		switch {
		case a.Kind == "" || b.Kind == "":
		case a.Kind != b.Kind:
			d.Fault("two-kinds", later.path, fmt.Sprintf("%s overlaps with %s of entry %s: one candidate could "+
				"be %s and %s", document.Shown(later.pattern.text), document.Shown(earlier.pattern.text),
				document.Shown(a.Name), a.Kind, b.Kind),
				"make one of the two patterns narrower, or the kinds equal")
		case earlier.pattern.covers(later.pattern):
			d.Fault("shadowed-selector", later.path, fmt.Sprintf("%s can match nothing: %s of entry %s takes it "+
				"all", document.Shown(later.pattern.text), document.Shown(earlier.pattern.text),
				document.Shown(a.Name)),
				"remove it, or move the narrower pattern before the wider one")
		}
	}
	eachPattern(m, func(_ *Entry, entry int, p Pattern, path string) {
		now := placed{patternRef{p, entry}, path}
		if p.IsGlob() {
			globs = append(globs, now)
		} else if first, twice := exact[p.text]; twice {
			clash(first, now)
		} else {
			exact[p.text] = now
		}
		all = append(all, now)
	})
	if len(globs) > MaxGlobs {
		d.Fault("too-many-globs", globs[MaxGlobs].path, fmt.Sprintf("%d patterns have a *",
			len(globs)), fmt.Sprintf("at most %d are allowed", MaxGlobs))
		return
	}
	order := make(map[string]int, len(all))
	for i, p := range all {
		order[p.path] = i
	}
	for _, g := range globs {
		if d.Full() {
			return
		}
		at := order[g.path]
		for i, other := range all {
			// Two globs are compared once, with the later as the one at fault.
			if i == at || other.pattern.IsGlob() && i > at || !g.pattern.overlaps(other.pattern) {
				continue
			}
			if i < at {
				clash(other, g)
			} else {
				clash(g, other)
			}
		}
	}
}

func checkDegradedMax(d *decoder, m *Manifest) {
	for i := range m.Admit {
		e := &m.Admit[i]
		path := fmt.Sprintf("admit[%d].svid_ttl", i)
		if e.Kind == "" || isPerson(e.Kind) || d.Faulty(path) {
			continue
		}
		if m.Degraded.Max >= e.SVIDTTL {
			d.Fault("degraded-max", path, fmt.Sprintf("an SVID of %s ends before degraded mode does, after %s",
				document.FormatDuration(e.SVIDTTL), document.FormatDuration(m.Degraded.Max)),
				"write more than degraded.max, or lower degraded.max")
		}
	}
}

func checkRouteTTL(d *decoder, m *Manifest) {
	if m.Degraded.RouteTTL > m.Degraded.Max {
		d.Fault("route-ttl", "degraded.route_ttl", fmt.Sprintf("%s is more than degraded.max, %s",
			document.FormatDuration(m.Degraded.RouteTTL), document.FormatDuration(m.Degraded.Max)),
			"write at most degraded.max")
	}
}
