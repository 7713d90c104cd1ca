package manifest_test

import (
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/manifest"
)

// Every class of changes, with what it looks like. The test walks the table of
// classes: one without a case here fails.
func TestDiffClasses(t *testing.T) {
	base := newDoc(t)
	replaced := func(part *string, old, new string) {
		if !strings.Contains(*part, old) {
			t.Fatalf("%q is not in %q", old, *part)
		}
		*part = strings.Replace(*part, old, new, 1)
	}
	base.admit += `  - {name: pool, kind: data, match: ["x509:dns:*.pool.example"]}
`
	key, recipient, root := newKey(t), newRecipient(t), newRoot(t, true)
	edit := func(part func(d *doc) *string, old, new string) func(d *doc) {
		return func(d *doc) { replaced(part(d), old, new) }
	}
	admit, seed, signers, proofs, rest := func(d *doc) *string { return &d.admit }, func(d *doc) *string { return &d.seed },
		func(d *doc) *string { return &d.signers }, func(d *doc) *string { return &d.proofs }, func(d *doc) *string { return &d.rest }
	more := func(line string) func(d *doc) { return func(d *doc) { d.admit += "  - " + line + "\n" } }
	cases := map[string][]struct {
		name            string
		edit            func(d *doc)
		subject         string
		before, after   string
		wider, narrower bool
	}{
		manifest.ChangeCluster: {{"another", edit(func(d *doc) *string { return &d.cluster }, "prod.example", "test.example"), "cluster", "prod.example", "test.example", true, true}},
		manifest.ChangeCanJoin: {
			{"one", more(`{name: n, kind: witness, match: ["x509:dns:n.example"]}`), "x509:dns:n.example", "", "witness", true, false},
			{"many", more(`{name: n, kind: witness, match: ["x509:uri:spiffe://w/*"]}`), "x509:uri:spiffe://w/*", "", "witness", true, false},
			{"more than before", edit(admit, "*.pool.example", "*.example"), "x509:dns:*.example", "", "data", true, false},
			{"tokens", more(`{name: n, kind: data, match: ["token:n"]}`), "token:n", "", "data", true, false},
			{"longest names", edit(admit, "*.pool.example", "*.a.pool.example"), "x509:dns:*.a.pool.example", "", "data", true, false},
		},
		manifest.ChangeCannotJoin: {
			{"one", edit(admit, `"x509:subject:CN=node-c"`, `"x509:subject:CN=node-d"`), "x509:subject:CN=node-c", "data", "", false, true},
			{"fewer than before", edit(admit, "*.pool.example", "a-*.pool.example"), "x509:dns:*.pool.example", "data", "", false, true},
		},
		manifest.ChangeTokens: {{"entry gone", edit(admit, "  - {name: edge-pool, kind: data, match: [\"token:edge-pool\"], max_members: 1000, svid_ttl: 72h, dns_names: []}\n", ""), "token:edge-pool", "data", "", false, true}},
		manifest.ChangeKind: {
			{"one", edit(admit, "name: alice, kind: admin", "name: alice, kind: readonly"), "x509:subject:CN=alice", "admin", "readonly", true, true},
			{"many", edit(admit, "name: pool, kind: data", "name: pool, kind: witness"), "x509:dns:*.pool.example", "data", "witness", true, true},
		},
		manifest.ChangeName: {
			{"exact", edit(admit, "name: node-c", "name: node-see"), "x509:subject:CN=node-c", "node-c", "node-see", true, true},
			{"what the * captures", edit(admit, "*.pool.example", "*.example"), "x509:dns:*.example", "the * of x509:dns:*.pool.example", "the * of x509:dns:*.example", true, true},
		},
		manifest.ChangeEntry:      {{"renamed", edit(admit, "name: pool", "name: puddle"), "pool → puddle", "pool", "puddle", false, false}},
		manifest.ChangeMaxMembers: {{"fewer", edit(admit, "max_members: 1000", "max_members: 10"), "edge-pool", "1000", "10", false, true}, {"no limit", edit(admit, "max_members: 1000, ", ""), "edge-pool", "1000", "no limit", true, false}},
		manifest.ChangeRoles:      {{"another", edit(admit, "roles: [ingress]", "roles: [egress]"), "node-c", "ingress", "egress", true, true}},
		manifest.ChangeOrganizations: {{"one more", edit(admit, "organizations: [acme]", "organizations: [globex, acme]"), "node-c", "acme", "acme, globex", true, false},
			{"none", edit(admit, ", organizations: [acme]", ""), "node-c", "acme", "none", false, true}},
		manifest.ChangeSVIDTTL: {{"longer", edit(admit, "svid_ttl: 72h", "svid_ttl: 7d"), "edge-pool", "3d", "7d", true, false}},
		manifest.ChangeLabels:  {{"a label", edit(admit, "dns_names: []", "dns_names: [], labels: [rack=r2]"), "edge-pool", "none", "rack=r2", true, false}},
		manifest.ChangeCertificateNames: {{"a DNS name", edit(admit, "dns_names: []", "dns_names: [e.example]"), "edge-pool dns_names", "none", "e.example", true, false},
			{"an address", edit(admit, "dns_names: []", "ips: [192.0.2.1]"), "edge-pool ips", "none", "192.0.2.1", true, false}},
		manifest.ChangeProofs: {
			{"a root", func(d *doc) { replaced(&d.proofs, "  sevsnp:", indent(root, 6)+"  sevsnp:") }, "proofs.x509.roots", "", "", true, false},
			{"a measurement", edit(proofs, "["+measurement+"]", "["+measurement+", "+strings.Repeat("cd", 48)+"]"), "proofs.sevsnp.measurements", "", strings.Repeat("cd", 48), true, false},
			{"older platforms", edit(proofs, "snp: 8", "snp: 7"), "proofs.sevsnp.min_tcb", "bootloader 0, tee 0, snp 8, microcode 0", "bootloader 0, tee 0, snp 7, microcode 0", true, false},
		},
		manifest.ChangeSigners: {
			{"one more", edit(signers, "keys: [", "keys: [{name: bob, key: \""+key.String()+"\"}, "), "bob", "", key.String(), true, false},
			{"renamed", edit(signers, "name: alice", "name: alicia"), "alicia", "alice", "alicia", false, false},
		},
		manifest.ChangeSignersThreshold: {{"two", func(d *doc) {
			replaced(&d.signers, "keys: [", "keys: [{name: bob, key: \""+key.String()+"\"}, ")
			replaced(&d.signers, "threshold: 1", "threshold: 2")
		}, "signers.threshold", "1 of 1", "2 of 2", false, true}},
		manifest.ChangeSeedOwners: {
			{"a person", edit(seed, "    - {name: kms", "    - {name: carol, recipient: "+recipient+"}\n    - {name: kms"), "carol", "", recipient, true, false},
			{"a keeper gone", edit(seed, "    - {name: kms, keeper: \"exec:/usr/local/bin/unwrap-seed\"}\n", ""), "kms", "exec:/usr/local/bin/unwrap-seed", "", false, true},
		},
		manifest.ChangeSeedThreshold: {{"one", edit(seed, "threshold: 2", "threshold: 1"), "seed.threshold", "2 of 2", "1 of 2", true, false}},
		manifest.ChangeDegraded: {
			{"allow", edit(rest, "reconnect_peers]", "validate_peers]"), "degraded.allow", "continue_services, preserve_routes, reconnect_peers", "continue_services, preserve_routes, validate_peers", true, true},
			{"max", edit(rest, "max: 24h", "max: 12h"), "degraded.max", "24h", "12h", false, true},
			{"route_ttl", edit(rest, "route_ttl: 1h", "route_ttl: 2h"), "degraded.route_ttl", "1h", "2h", true, false},
		},
		manifest.ChangeRejoinGrace: {{"none", func(d *doc) { d.rest += "rejoin_grace: 0\n" }, "rejoin_grace", "7d", "0", false, true}},
		manifest.ChangeBaseline:    {{"data", func(d *doc) { d.rest += "baseline: {data: 1}\n" }, "baseline.data", "3", "1", false, false}},
		manifest.ChangeTokenIssuer: {{"the first", func(d *doc) { d.rest += "workloads: {token_issuer: \"https://id.example\"}\n" },
			"workloads.token_issuer", "", "https://id.example", false, false}},
		manifest.ChangeTrust:          {{"mesh", edit(rest, "trust: root", "trust: mesh"), "trust", "root", "mesh", false, false}},
		manifest.ChangeAuthorityEpoch: {{"a coordinator", more(`{name: c2, kind: coordinator, match: ["x509:subject:CN=c2"]}`), "authority_epoch", "", "moves", false, false}},
	}
	old := mustParse(t, base.String())
	for _, class := range manifest.ChangeClasses() {
		if class.What == "" || len(cases[class.Name]) == 0 {
			t.Errorf("class %q has no case, or does not say what it is", class.Name)
		}
		for _, tc := range cases[class.Name] {
			t.Run(class.Name+"/"+tc.name, func(t *testing.T) {
				d := base
				tc.edit(&d)
				changes := manifest.Diff(old, mustParse(t, d.String()))
				i := slices.IndexFunc(changes.List, func(c manifest.Change) bool { return c.Class == class.Name && c.Subject == tc.subject })
				if i < 0 {
					t.Fatalf("no such change of %q in %+v", tc.subject, changes.List)
				}
				c := changes.List[i]
				if c.Before != tc.before || c.After != tc.after && tc.after != "" || c.Wider != tc.wider || c.Narrower != tc.narrower || c.Means == "" {
					t.Errorf("%+v, want %+v", c, tc)
				}
				if changes.Wider() != slices.ContainsFunc(changes.List, func(c manifest.Change) bool { return c.Wider }) || changes.Empty() {
					t.Error("the whole does not say what its parts do")
				}
				_, beyond := changes.BeyondSeed()
				if seedOnly := strings.HasPrefix(class.Name, "seed-"); seedOnly == beyond {
					t.Errorf("BeyondSeed is %v for a change of %s", beyond, class.Name)
				}
			})
		}
	}
}

// Diff answers with Authority what AuthorityMoves does, and the change that tells
// it unless every set moves it.
func TestDiffTellsOfTheAuthorityEpoch(t *testing.T) {
	base := newDoc(t)
	base.rest = strings.Replace(base.rest, "trust: root", "trust: mesh", 1)
	m := mustParse(t, base.String())
	same := manifest.Diff(m, mustParse(t, base.String()+"# a comment\n"))
	if !same.Empty() || !slices.Equal(same.Authority, []string{manifest.AuthorityEverySet}) {
		t.Errorf("a comment changes %+v, and moves %v", same.List, same.Authority)
	}
}

// drawn is a manifest that can be written in many ways.
type drawn struct {
	base    doc
	entries []drawnEntry
}

type drawnEntry struct {
	name, kind string
	match      []string
	max        int
	roles      []string
}

// drawEntries draws entries, most of which meet others.
func drawEntries(t *rapid.T, label string) []drawnEntry {
	word := rapid.SampledFrom([]string{"", "a", "b", "ab", "ba", "-a", "a-"})
	var out []drawnEntry
	for i := range rapid.IntRange(0, 4).Draw(t, label) {
		e := drawnEntry{name: rapid.SampledFrom([]string{"e", "f", "g", "h"}).Draw(t, "name") + fmt.Sprint(i), kind: rapid.SampledFrom([]string{"data", "witness"}).Draw(t, "kind")}
		for range rapid.IntRange(1, 2).Draw(t, "patterns") {
			prefix, suffix := word.Draw(t, "prefix"), word.Draw(t, "suffix")
			if rapid.Bool().Draw(t, "glob") {
				prefix += "*"
			}
			if prefix+suffix == "" {
				prefix = "x"
			}
			e.match = append(e.match, "x509:dns:"+prefix+suffix)
		}
		if rapid.Bool().Draw(t, "token") {
			e.match = append(e.match, "token:"+e.name)
		}
		e.max = rapid.SampledFrom([]int{0, 5, 9}).Draw(t, "max")
		e.roles = rapid.SampledFrom([][]string{nil, {"ingress"}, {"ingress", "egress"}}).Draw(t, "roles")
		out = append(out, e)
	}
	return out
}

func (d drawn) write(spell func(e drawnEntry) string) string {
	doc := d.base
	for _, e := range d.entries {
		doc.admit += "  - " + spell(e) + "\n"
	}
	return doc.String()
}

func plainly(e drawnEntry) string {
	out := fmt.Sprintf("{name: %s, kind: %s, match: [%s]", e.name, e.kind, quoted(e.match))
	if e.max > 0 {
		out += fmt.Sprintf(", max_members: %d", e.max)
	}
	if e.roles != nil {
		out += ", roles: [" + strings.Join(e.roles, ", ") + "]"
	}
	return out + "}"
}

func quoted(list []string) string {
	var out []string
	for _, s := range list {
		out = append(out, fmt.Sprintf("%q", s))
	}
	return strings.Join(out, ", ")
}

// examples are selectors in and around all patterns.
func examples(entries ...[]drawnEntry) []string {
	fills := []string{"z", "a", "b", "ab", "a-", "-a", "q7", strings.Repeat("z", 126), strings.Repeat("z", 128)}
	seen := make(map[string]bool)
	var words []string
	for _, list := range entries {
		for _, e := range list {
			for _, m := range e.match {
				if word, ok := strings.CutPrefix(m, "x509:dns:"); ok && !slices.Contains(words, word) {
					words = append(words, word)
				}
				seen[m] = true
			}
		}
	}
	for _, w := range words {
		for _, fill := range fills {
			seen["x509:dns:"+strings.ReplaceAll(w, "*", fill)] = true
		}
		for _, v := range words {
			seen["x509:dns:"+strings.ReplaceAll(w, "*", strings.ReplaceAll(v, "*", "z"))] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// Diff's answer about two manifests holds for every selector: if nothing is wider,
// new admits nobody that old does not; if nothing is narrower, the reverse; and if
// there is no change, both give everybody the same kind, name and entry.
func TestDiffIsSound(t *testing.T) {
	base := newDoc(t)
	silent, empty := 0, 0
	holds := func(t *rapid.T, before, after []drawnEntry) {
		old, err1 := manifest.Parse([]byte(drawn{base, before}.write(plainly)))
		new, err2 := manifest.Parse([]byte(drawn{base, after}.write(plainly)))
		if err1 != nil || err2 != nil {
			return
		}
		changes := manifest.Diff(old, new)
		within := func(a, b *manifest.Manifest, what string) {
			for _, s := range examples(before, after) {
				for _, k := range []identity.Kind{identity.Data, identity.Witness} {
					if m, ok := a.Match(k, []string{s}); ok {
						if _, ok := b.Match(k, []string{s}); !ok {
							t.Fatalf("nobody %s, says Diff, and %s does as %s under %s (%+v)\n%+v\n%+v", what, s, k, m.Entry.Name, changes.List, before, after)
						}
					}
				}
			}
		}
		if !changes.Wider() {
			silent++
			within(new, old, "new can join")
		}
		if !changes.Narrower() {
			within(old, new, "is left out")
		}
		if !changes.Empty() {
			return
		}
		empty++
		for _, s := range examples(before, after) {
			for _, k := range []identity.Kind{identity.Data, identity.Witness} {
				a, ok1 := old.Match(k, []string{s})
				b, ok2 := new.Match(k, []string{s})
				if ok1 != ok2 || ok1 && (a.Name != b.Name || a.Entry.Name != b.Entry.Name || a.Entry.MaxMembers != b.Entry.MaxMembers) {
					t.Fatalf("nothing changes, says Diff, and %s as %s goes from %+v to %+v\n%+v\n%+v", s, k, a, b, before, after)
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		before, after := drawEntries(t, "before"), drawEntries(t, "after")
		if rapid.Bool().Draw(t, "related") {
			// Few random pairs are alike, and those that are almost alike are what people
			// write.
			after = append(slices.Clone(before), after[:min(len(after), 1)]...)
			if n := len(after); n > 1 && rapid.Bool().Draw(t, "moved") {
				after[0], after[n-1] = after[n-1], after[0]
			}
			if n := len(after); n > 0 && rapid.Bool().Draw(t, "dropped") {
				after = after[:n-1]
			}
		}
		holds(t, before, after)
	})
	// None of these may have been equal.
	rapid.Check(t, func(t *rapid.T) { same := drawEntries(t, "both"); holds(t, same, same) })
	if silent == 0 || empty == 0 {
		t.Fatalf("%d pairs were not wider, %d equal: the test proves nothing", silent, empty)
	}
}

// However a manifest is written, what it means is the same, and Diff says so.
func TestDiffOfOtherWordsIsEmpty(t *testing.T) {
	base := newDoc(t)
	key := newKey(t)
	base.admit += "  - {name: keyed, kind: shard, match: [\"key:" + key.String() + "\"]}\n"
	rapid.Check(t, func(t *rapid.T) {
		d := drawn{base, drawEntries(t, "entries")}
		one, err := manifest.Parse([]byte(d.write(plainly)))
		if err != nil {
			return
		}
		// Entries without a * may stand in any order, and lists too; defaults may be
		// written out, numbers and keys in another form, comments anywhere.
		globs := slices.ContainsFunc(d.entries, func(e drawnEntry) bool { return strings.Contains(strings.Join(e.match, ""), "*") })
		r := rand.New(rand.NewSource(rapid.Int64().Draw(t, "order")))
		if !globs {
			r.Shuffle(len(d.entries), func(i, j int) { d.entries[i], d.entries[j] = d.entries[j], d.entries[i] })
		}
		other := d.write(func(e drawnEntry) string {
			if !globs {
				r.Shuffle(len(e.match), func(i, j int) { e.match[i], e.match[j] = e.match[j], e.match[i] })
			}
			e.roles = slices.Clone(e.roles)
			slices.Reverse(e.roles)
			out := strings.TrimSuffix(plainly(e), "}") + ", svid_ttl: 25h}"
			return out + " # " + e.name
		})
		other = strings.ReplaceAll(other, "max: 24h", "max: 1d")
		other = strings.ReplaceAll(other, key.String(), "ed25519:"+fmt.Sprintf("%X", key[:]))
		other = strings.ReplaceAll(other, "[continue_services, preserve_routes", "[preserve_routes, continue_services") + "rejoin_grace: 168h\n"
		two, err := manifest.Parse([]byte(other))
		if err != nil {
			t.Fatalf("the other form does not parse: %v\n%s", err, other)
		}
		for _, c := range [...]*manifest.Changes{manifest.Diff(one, two), manifest.Diff(two, one), manifest.Diff(one, one)} {
			if !c.Empty() || len(c.Authority) > 0 {
				t.Fatalf("it changes %+v, and moves %v:\n%s", c.List, c.Authority, other)
			}
		}
	})
}

// Two manifests with as many patterns as are allowed are compared in time.
func TestDiffOfLargeManifests(t *testing.T) {
	large := func(kind, form string) *manifest.Manifest {
		d := newDoc(t)
		for i := range manifest.MaxGlobs / 50 {
			var match []string
			for j := range 50 {
				match = append(match, fmt.Sprintf("x509:dns:"+form, i*50+j))
			}
			d.admit += fmt.Sprintf("  - {name: e%d, kind: %s, match: [%s]}\n", i, kind, quoted(match))
		}
		// One of the patterns of newDoc has a * too.
		d.admit = strings.Replace(d.admit, "CN=coordinator-*", "CN=coordinator-1", 1)
		return mustParse(t, d.String())
	}
	a, b := large("data", "a%04d-*"), large("data", "*-%04db")
	if c := manifest.Diff(a, b); len(ofClass(c, manifest.ChangeCanJoin)) < manifest.MaxGlobs || len(ofClass(c, manifest.ChangeCannotJoin)) < manifest.MaxGlobs {
		t.Errorf("%d can join and %d cannot, want %d each at least", len(ofClass(c, manifest.ChangeCanJoin)), len(ofClass(c, manifest.ChangeCannotJoin)), manifest.MaxGlobs)
	}
	if c := manifest.Diff(a, a); !c.Empty() {
		t.Errorf("a manifest differs from itself: %+v", c.List)
	}
}

// The search for a selector that two patterns share is bounded: after so many examples they count
// as if they shared one. So a diff of many patterns comes in time, and tells too much rather than too little.
func TestDiffSearchIsBounded(t *testing.T) {
	patterns := func(form string, n int) (match []string) {
		for i := range n {
			match = append(match, fmt.Sprintf("x509:dns:"+form, i))
		}
		return match
	}
	of := func(entries string) *manifest.Manifest {
		d := newDoc(t)
		d.admit = strings.Replace(d.admit, "CN=coordinator-*", "CN=coordinator-1", 1) + entries
		return mustParse(t, d.String())
	}
	for _, tc := range []struct {
		n    int
		want bool // those of tails are told to come under the other entry
	}{{2, false}, {20, true}} {
		// What begins with a and ends in z is of heads, so nobody of tails comes under the entry
		// of the new manifest; that takes a search through all examples for each two patterns.
		old := of(fmt.Sprintf("  - {name: heads, kind: data, match: [\"x509:dns:a*\"], roles: [core]}\n"+
			"  - {name: tails, kind: data, match: [%s], roles: [egress]}\n", quoted(patterns("*-%03dz", tc.n))))
		c := manifest.Diff(old, of(fmt.Sprintf("  - {name: heads, kind: data, match: [%s], roles: [core]}\n",
			quoted(patterns("a%03d-*", tc.n)))))
		told := slices.ContainsFunc(c.List, func(x manifest.Change) bool {
			return x.Class == manifest.ChangeRoles && strings.Contains(x.Before, "egress")
		})
		if told != tc.want {
			t.Errorf("with %d patterns each: told %v, want %v: %+v", tc.n, told, tc.want, ofClass(c, manifest.ChangeRoles))
		}
	}
}

// The last lookup that a search may make is one that it makes.
func TestLastLookupIsMade(t *testing.T) {
	of := func(match string) *manifest.Manifest {
		d := newDoc(t)
		d.admit = strings.Replace(d.admit, "CN=coordinator-*", "CN=coordinator-1", 1) +
			"  - {name: p, kind: data, match: [\"x509:dns:" + match + "\"]}\n"
		return mustParse(t, d.String())
	}
	// They may look as if they shared one, and no selector is in both: each begins and ends in its own way.
	old, new := of("a*z"), of("b*y")
	for left, want := range map[int]bool{manifest.SearchLookups(): false, manifest.SearchLookups() - 1: true} {
		if got := manifest.SharesAfter(old, new, left); got != want {
			t.Errorf("with %d lookups left of %d: %v, want %v", left, manifest.SearchLookups(), got, want)
		}
	}
}

// FuzzDiff compares whatever two manifests parse.
func FuzzDiff(f *testing.F) {
	base := newDoc(f)
	other := base
	other.admit += "  - {name: p, kind: data, match: [\"x509:dns:*.a\", \"x509:dns:b-*.a\", \"k8s:sa:x/y-*\"]}\n"
	f.Add(base.String(), other.String())
	f.Add(other.String(), base.String())
	f.Add(base.String(), base.String())
	f.Fuzz(func(t *testing.T, a, b string) {
		old, err1 := manifest.Parse([]byte(a))
		new, err2 := manifest.Parse([]byte(b))
		if err1 != nil || err2 != nil {
			return
		}
		c := manifest.Diff(old, new)
		for _, x := range c.List {
			if x.Subject == "" || x.Means == "" || x.Before == "" && x.After == "" {
				t.Errorf("a change says too little: %+v", x)
			}
		}
		if a == b && !c.Empty() {
			t.Errorf("a manifest differs from itself: %+v", c.List)
		}
	})
}

// ofClass returns the changes of one class.
func ofClass(c *manifest.Changes, class string) (out []manifest.Change) {
	for _, x := range c.List {
		if x.Class == class {
			out = append(out, x)
		}
	}
	return out
}
