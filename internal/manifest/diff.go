package manifest

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/document"
)

// Changes is what setting one manifest after another changes in effect.
type Changes struct {
	// List holds the changes, class by class in the order of changeClasses.
	List []Change

	// Authority are the parts of authority that move, and with them the authority
	// epoch: what [AuthorityMoves] says. Under trust: mesh it is not empty even if
	// List is.
	Authority []string
}

// A Change is one thing that another manifest changes.
type Change struct {
	Class   string // stable name, of one of changeClasses
	Subject string // what it is about: a selector, an entry, a signer, a field
	Before  string // "" if there was none
	After   string // "" if there is none any more
	Means   string // what follows from it, for people

	// Wider is set if somebody, or more, is trusted than before; Narrower if less.
	// One change can do both.
	Wider, Narrower bool
}

// A changeClass is one sort of change that [Diff] finds.
type changeClass struct {
	Name string // stable
	What string
}

// Names of change classes.
const (
	changeCluster          = "cluster"
	changeCanJoin          = "can-join"
	changeCannotJoin       = "cannot-join"
	changeTokens           = "tokens"
	changeKind             = "kind"
	changeName             = "name"
	changeEntry            = "entry"
	changeMaxMembers       = "max-members"
	changeRoles            = "roles"
	changeOrganizations    = "organizations"
	changeSVIDTTL          = "svid-ttl"
	changeCertificateNames = "certificate-names"
	changeLabels           = "labels"
	changeProofs           = "proofs"
	changeSigners          = "signers"
	changeSignersThreshold = "signers-threshold"
	changeSeedOwners       = "seed-owners"
	changeSeedThreshold    = "seed-threshold"
	changeDegraded         = "degraded"
	changeRejoinGrace      = "rejoin-grace"
	changeBaseline         = "baseline"
	changeTokenIssuer      = "token-issuer"
	changeTrust            = "trust"
	changeAuthorityEpoch   = "authority-epoch"
)

// changeClasses returns every class of changes, in the order of Changes.List.
func changeClasses() []changeClass {
	var out []changeClass
	for _, c := range changeFinders {
		out = append(out, c.changeClass)
	}
	return out
}

// Diff returns what setting new after old changes in effect. Order, comments,
// spelling and defaults that are written out are no effects.
//
// If no change is Wider then every candidate that new admits is admitted by old,
// in the same kind; if none is Narrower the reverse holds. The answer errs on the
// side of telling: a pattern that several others cover only together counts as one
// that admits more.
func Diff(old, new *Manifest) *Changes {
	d := &differ{old: old, new: new, reach: compareReach(old, new), moved: AuthorityMoves(old, new)}
	for _, c := range changeFinders {
		d.class = c.Name
		c.find(d)
	}
	return &Changes{List: d.changes, Authority: d.moved}
}

// Empty reports whether nothing changes, but for the authority epoch where
// trust: mesh moves it with every set.
func (c *Changes) Empty() bool { return len(c.List) == 0 }

// Wider reports whether somebody, or more, is trusted than before.
func (c *Changes) Wider() bool {
	return slices.ContainsFunc(c.List, func(x Change) bool { return x.Wider })
}

// Narrower reports whether somebody, or something, is trusted less than before.
func (c *Changes) Narrower() bool {
	return slices.ContainsFunc(c.List, func(x Change) bool { return x.Narrower })
}

// BeyondSeed returns the first change that concerns neither the seed's owners nor
// their threshold, and so cannot be part of a reshare.
func (c *Changes) BeyondSeed() (Change, bool) {
	for _, x := range c.List {
		switch x.Class {
		case changeSeedOwners, changeSeedThreshold:
		case changeAuthorityEpoch: // tells what follows from the others
		default:
			return x, true
		}
	}
	return Change{}, false
}

type differ struct {
	old, new *Manifest
	reach    *reach
	moved    []string

	class   string
	changes []Change
}

// change adds one of the class that is being looked for.
func (d *differ) change(c Change) {
	c.Class = d.class
	d.changes = append(d.changes, c)
}

// changeFinders is the table of classes. Its test has a case for each row.
var changeFinders = [...]struct {
	changeClass
	find func(d *differ)
}{
	{changeClass{changeCluster, "the trust domain of every identity"}, func(d *differ) {
		if d.old.Cluster != d.new.Cluster {
			d.change(Change{Subject: "cluster", Before: d.old.Cluster, After: d.new.Cluster, Wider: true,
				Narrower: true,
				Means:    "it is another cluster: no set can do this"})
		}
	}},
	{changeClass{changeCanJoin, "who can join that could not"}, findArrivals},
	{changeClass{changeCannotJoin, "who could join and cannot any more"}, findDepartures},
	{changeClass{changeTokens, "entries that tokens were made for, and that take none any more"}, findTokens},
	{changeClass{changeKind, "who joins as another kind"}, func(d *differ) {
		for _, c := range d.reach.kinds {
			d.change(Change{Subject: c.pattern.text, Before: string(c.old.Kind), After: string(c.new.Kind),
				Wider: true, Narrower: true,
				Means: "who is a member as " + string(c.old.Kind) + " is not renewed, and joins anew" +
					meansKind(c.new.Kind)})
		}
	}},
	{changeClass{changeName, "who gets another name"}, func(d *differ) {
		for _, r := range d.reach.names {
			d.change(Change{Subject: r.pattern.text, Before: r.old, After: r.new, Wider: true, Narrower: true,
				Means: "a member under the name of before is not renewed, and joins anew"})
		}
	}},
	{changeClass{changeEntry, "who is covered by an entry of another name"}, func(d *differ) {
		d.eachPair(func(subject string, old, new *Entry) {
			if old.Name != new.Name {
				d.change(Change{Subject: subject, Before: old.Name, After: new.Name,
					Means: "members count under the other entry"})
			}
		})
	}},
	{changeClass{changeMaxMembers, "how many members an entry admits"}, func(d *differ) {
		d.eachPair(func(subject string, old, new *Entry) {
			a, b := old.MaxMembers, new.MaxMembers
			if a == b {
				return
			}
			more := a != 0 && (b == 0 || b > a)
			d.change(Change{Subject: subject, Before: limit(a), After: limit(b), Wider: more, Narrower: !more,
				Means: map[bool]string{true: "more can join",
					false: "fewer can join; who is a member stays one"}[more]})
		})
	}},
	{changeClass{changeRoles, "what members may hold"}, func(d *differ) {
		d.eachPair(func(subject string, old, new *Entry) {
			sets(d, subject, old.Roles, new.Roles, "members have it from their next renewal on")
		})
	}},
	{changeClass{changeOrganizations, "whose members they are, and see"}, func(d *differ) {
		d.eachPair(func(subject string, old, new *Entry) {
			sets(d, subject, old.Organizations, new.Organizations, "members have it from their next renewal on")
		})
	}},
	{changeClass{changeSVIDTTL, "how long a certificate lives"}, func(d *differ) {
		d.eachPair(func(subject string, old, new *Entry) {
			d.durations(subject, old.SVIDTTL, new.SVIDTTL, "from the next renewal on; it is what a ban that "+
				"reaches nobody is outlived by")
		})
	}},
	{changeClass{changeCertificateNames, "DNS names and addresses in certificates"}, func(d *differ) {
		d.eachPair(func(subject string, old, new *Entry) {
			sets(d, subject+" dns_names", old.DNSNames, new.DNSNames, "in certificates from the next renewal on")
			sets(d, subject+" ips", addrs(old.IPs), addrs(new.IPs), "in certificates from the next renewal on")
		})
	}},
	{changeClass{changeLabels, "what members are found by"}, func(d *differ) {
		d.eachPair(func(subject string, old, new *Entry) {
			sets(d, subject, old.Labels, new.Labels, "members have it from their next renewal on; labels decide "+
				"nothing")
		})
	}},
	{changeClass{changeProofs, "what proofs are checked against"}, findProofs},
	{changeClass{changeSigners, "who may sign the manifest after this one"}, findSigners},
	{changeClass{changeSignersThreshold, "how many of them have to"}, func(d *differ) {
		d.threshold("signers.threshold", d.old.Signers.Threshold, d.new.Signers.Threshold, len(d.old.Signers.Keys),
			len(d.new.Signers.Keys), "to change the manifest after this one")
	}},
	{changeClass{changeSeedOwners, "who can bring the seed back"}, findOwners},
	{changeClass{changeSeedThreshold, "how many of them it takes"}, func(d *differ) {
		d.threshold("seed.threshold", d.old.Seed.Threshold, d.new.Seed.Threshold, len(d.old.Seed.People()),
			len(d.new.Seed.People()), "to bring the seed back; set it with fealty manifest reshare")
	}},
	{changeClass{changeDegraded, "what nodes may do out of reach of coordinators"}, func(d *differ) {
		a, b := d.old.Degraded, d.new.Degraded
		sets(d, "degraded.allow", a.Allow, b.Allow, "with the next snapshot")
		d.durations("degraded.max", a.Max, b.Max, "with the next snapshot")
		d.durations("degraded.route_ttl", a.RouteTTL, b.RouteTTL, "with the next snapshot")
	}},
	{changeClass{changeRejoinGrace, "how long after its end a certificate still proves its member"}, func(d *differ) {
		d.durations("rejoin_grace", d.old.RejoinGrace, d.new.RejoinGrace, "at once")
	}},
	{changeClass{changeBaseline, "how many data members the fleet is to have"}, func(d *differ) {
		if a, b := d.old.Baseline.Data, d.new.Baseline.Data; a != b {
			d.change(Change{Subject: "baseline.data", Before: strconv.Itoa(a), After: strconv.Itoa(b),
				Means: "people are told while fewer are connected"})
		}
	}},
	{changeClass{changeTokenIssuer, "who tokens of workloads say signed them"}, func(d *differ) {
		if a, b := d.old.TokenIssuer, d.new.TokenIssuer; a != b {
			d.change(Change{Subject: "workloads.token_issuer", Before: a, After: b,
				Means: "tokens have it from now on, those that processes hold within minutes; who verifies them by " +
					"OpenID Connect has to be told first"})
		}
	}},
	{changeClass{changeTrust, "what data owners pin"}, func(d *differ) {
		if d.old.Trust != d.new.Trust {
			means := "the mesh CA key changes when authority moves: data owners trust the root"
			if d.new.Trust == TrustMesh {
				means = "every set makes a new mesh CA key: data owners may trust that one alone"
			}
			d.change(Change{Subject: "trust", Before: string(d.old.Trust), After: string(d.new.Trust), Means: means})
		}
	}},
	{changeClass{changeAuthorityEpoch, "whether everybody gets a new certificate"}, func(d *differ) {
		why := slices.DeleteFunc(slices.Clone(d.moved),
			func(s string) bool { return s == AuthorityEverySet })
		if len(why) > 0 {
			d.change(Change{Subject: "authority_epoch", After: "moves",
				Means: "because of " + strings.Join(why, ", ") + ": the mesh CA key is new, and every member " +
					"renews at once"})
		}
	}},
}

func meansKind(k identity.Kind) string {
	switch k {
	case identity.Coordinator:
		return "; a coordinator holds the seed"
	case identity.Admin:
		return "; an admin administers the cluster"
	}
	return ""
}

func findArrivals(d *differ) {
	for _, a := range d.reach.arrivals {
		means := "can join under entry " + a.entry.Name
		switch {
		case a.pattern.IsToken():
			means = "tokens can be made for entry " + a.entry.Name
		case a.beyond > 0:
			means += fmt.Sprintf("; before, where its * stands for at most %d characters", a.beyond)
		case a.partly:
			means += "; a part of them could before"
		}
		d.change(Change{Subject: a.pattern.text, After: string(a.entry.Kind),
			Means: means + meansKind(a.entry.Kind), Wider: true})
	}
}

func findDepartures(d *differ) {
	for _, a := range d.reach.departures {
		if a.pattern.IsToken() {
			continue // told as tokens
		}
		means := "entry " + a.entry.Name + " admitted them; who joined by it is not renewed"
		switch {
		case a.beyond > 0:
			means += fmt.Sprintf(" where its * stands for more than %d characters", a.beyond)
		case a.partly:
			means += "; a part of them still can join"
		}
		d.change(Change{Subject: a.pattern.text, Before: string(a.entry.Kind), Means: means, Narrower: true})
	}
}

func findTokens(d *differ) {
	for _, a := range d.reach.departures {
		if a.pattern.IsToken() {
			d.change(Change{Subject: a.pattern.text, Before: string(a.entry.Kind), Narrower: true,
				Means: "tokens made for entry " + a.entry.Name + " admit nobody any more, and who joined with " +
					"one is not renewed"})
		}
	}
}

// eachPair calls f for each entry of old and the entry of new that takes what it
// took.
func (d *differ) eachPair(f func(subject string, old, new *Entry)) {
	for _, p := range d.reach.pairs {
		old, new := &d.old.Admit[p.old], &d.new.Admit[p.new]
		subject := new.Name
		if old.Name != new.Name {
			subject = old.Name + " → " + new.Name
		}
		f(subject, old, new)
	}
}

func findProofs(d *differ) {
	roots := func(m *Manifest) map[string]string {
		out := make(map[string]string)
		if m.Proofs.X509 != nil {
			for _, der := range m.Proofs.X509.RootsDER {
				out[fmt.Sprintf("%x", sha256.Sum256(der))] = subjectOf(der)
			}
		}
		return out
	}
	d.members("proofs.x509.roots", roots(d.old), roots(d.new), "certificates under it prove",
		"certificates under it prove nothing any more")
	measurements := func(m *Manifest) map[string]string {
		out := make(map[string]string)
		if m.Proofs.SEVSNP != nil {
			for _, x := range m.Proofs.SEVSNP.Measurements {
				out[x] = x
			}
		}
		return out
	}
	d.members("proofs.sevsnp.measurements", measurements(d.old), measurements(d.new),
		"guests with this measurement prove", "guests with this measurement prove nothing any more")
	if a, b := d.old.Proofs.SEVSNP, d.new.Proofs.SEVSNP; a != nil && b != nil && a.MinTCB != b.MinTCB {
		x, y := a.MinTCB, b.MinTCB
		d.change(Change{Subject: "proofs.sevsnp.min_tcb", Before: tcbText(x), After: tcbText(y),
			Means:    "platforms with an older component prove nothing",
			Wider:    y.Bootloader < x.Bootloader || y.TEE < x.TEE || y.SNP < x.SNP || y.Microcode < x.Microcode,
			Narrower: y.Bootloader > x.Bootloader || y.TEE > x.TEE || y.SNP > x.SNP || y.Microcode > x.Microcode})
	}
}

func subjectOf(der []byte) string {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return "a certificate that does not parse" // it did when the manifest was read
	}
	return c.Subject.String()
}

func tcbText(t TCB) string {
	return fmt.Sprintf("bootloader %d, tee %d, snp %d, microcode %d", t.Bootloader, t.TEE, t.SNP, t.Microcode)
}

// members tells which members of a set, by their keys, are new and which are gone.
func (d *differ) members(subject string, old, new map[string]string, added, removed string) {
	for _, key := range slices.Sorted(maps.Keys(new)) {
		if _, ok := old[key]; !ok {
			d.change(Change{Subject: subject, After: named(key, new[key]), Means: added, Wider: true})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(old)) {
		if _, ok := new[key]; !ok {
			d.change(Change{Subject: subject, Before: named(key, old[key]), Means: removed, Narrower: true})
		}
	}
}

func named(key, name string) string {
	if key == name {
		return key
	}
	return name + " (" + key[:16] + ")"
}

func findSigners(d *differ) {
	old, new := make(map[Key]string), make(map[Key]string)
	for _, s := range d.old.Signers.Keys {
		old[s.Key] = s.Name
	}
	for _, s := range d.new.Signers.Keys {
		new[s.Key] = s.Name
		switch was, ok := old[s.Key]; {
		case !ok:
			d.change(Change{Subject: s.Name, After: s.Key.String(),
				Means: "may sign what comes after this manifest, not this one", Wider: true})
		case was != s.Name:
			d.change(Change{Subject: s.Name, Before: was, After: s.Name, Means: "the same key under another name"})
		}
	}
	for _, s := range d.old.Signers.Keys {
		if _, ok := new[s.Key]; !ok {
			d.change(Change{Subject: s.Name, Before: s.Key.String(), Means: "signs this change for the last time",
				Narrower: true})
		}
	}
}

func findOwners(d *differ) {
	const reshare = "; set it with fealty manifest reshare"
	old := make(map[string]Owner)
	for _, o := range d.old.Seed.Owners {
		old[o.Name] = o
	}
	new := make(map[string]bool)
	for _, o := range d.new.Seed.Owners {
		new[o.Name] = true
		was, ok := old[o.Name]
		switch {
		case ok && was == o:
		case o.Keeper != "":
			d.change(Change{Subject: o.Name, Before: was.holder(), After: o.holder(), Wider: true, Narrower: ok,
				Means: "gets the whole seed and the mesh CA key, sealed" + reshare})
		default:
			d.change(Change{Subject: o.Name, Before: was.holder(), After: o.holder(), Wider: true, Narrower: ok,
				Means: "gets a share of the seed" + reshare})
		}
	}
	for _, o := range d.old.Seed.Owners {
		if !new[o.Name] {
			d.change(Change{Subject: o.Name, Before: o.holder(), Narrower: true,
				Means: "brings nothing back any more. Its share or copy of the seed stays true: only a reseed " +
					"takes it back" + reshare})
		}
	}
	if len(d.changes) == 0 || d.changes[len(d.changes)-1].Class != d.class {
		if !slices.Equal(d.old.Seed.Owners, d.new.Seed.Owners) {
			d.change(Change{Subject: "order", Before: ownerNames(d.old.Seed), After: ownerNames(d.new.Seed),
				Means: "shares are numbered in the order of their owners" + reshare})
		}
	}
}

func (o Owner) holder() string { return o.Recipient + o.Keeper }

func ownerNames(s Seed) string {
	var names []string
	for _, o := range s.Owners {
		names = append(names, o.Name)
	}
	return strings.Join(names, ", ")
}

// threshold tells a change of how many of how many it takes.
func (d *differ) threshold(subject string, a, b, of, ofNew int, means string) {
	if a != b {
		d.change(Change{Subject: subject, Before: fmt.Sprintf("%d of %d", a, of), After: fmt.Sprintf("%d of %d", b,
			ofNew), Means: means, Wider: b < a, Narrower: b > a})
	}
}

func (d *differ) durations(subject string, a, b time.Duration, means string) {
	if a != b {
		d.change(Change{Subject: subject, Before: document.FormatDuration(a), After: document.FormatDuration(b),
			Means: means, Wider: b > a, Narrower: b < a})
	}
}

// sets tells how one list of things without an order differs from another.
func sets[T ~string](d *differ, subject string, old, new []T, means string) {
	a, b := slices.Sorted(slices.Values(old)), slices.Sorted(slices.Values(new))
	if slices.Equal(a, b) {
		return
	}
	lost := slices.ContainsFunc(a, func(x T) bool { return !slices.Contains(b, x) })
	won := slices.ContainsFunc(b, func(x T) bool { return !slices.Contains(a, x) })
	d.change(Change{Subject: subject, Before: words(a), After: words(b), Means: means, Wider: won, Narrower: lost})
}

func words[T ~string](list []T) string {
	if len(list) == 0 {
		return "none"
	}
	var b strings.Builder
	for i, x := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(x))
	}
	return b.String()
}

func addrs(ips []netip.Addr) []string {
	var out []string
	for _, ip := range ips {
		out = append(out, ip.String())
	}
	return out
}

func limit(n int) string {
	if n == 0 {
		return "no limit"
	}
	return fmt.Sprint(n)
}
