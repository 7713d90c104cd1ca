package snapshot

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/snapshot"
	"pgregory.net/rapid"
)

// line is the versions of one snapshot to one node, as its publisher makes them.
type line struct {
	f       *fleet
	s       sample
	header  Header
	content []byte // of the newest version; nil: none
	record  Record
}

func (f *fleet) line(s sample) *line {
	return &line{f: f, s: s, header: f.headerOf(s), record: f.record()}
}

// publish signs content as the next version, on the base that it has.
func (l *line) publish(content Content) *Signed {
	l.header.Base = nil
	if l.content != nil {
		l.header.Base = &Base{l.header.ConfigVersion, DigestOf(l.content)}
	}
	l.header.ConfigVersion++
	l.record.Generation++
	d := must(Compose(l.header, content))
	l.content = d.ContentBytes()
	return must(d.Publish(l.record, l.f.keys[0]))
}

// asPatch is s as it is sent to who has base.
func asPatch(tb testing.TB, scope Scope, s *Signed, base []byte) *Signed {
	tb.Helper()
	patch, ok := Diff(scope, base, s.Content)
	if !ok {
		tb.Fatalf("no patch from\n%s\nto\n%s", base, s.Content)
	}
	sent := *s
	sent.Content, sent.Patch = nil, patch
	return must(Unmarshal(must(sent.Marshal())))
}

func (f *fleet) checked(tb testing.TB, s *Signed, trust Trust, marks Marks) *Checked {
	tb.Helper()
	c, err := VerifyHeader(s, trust, marks, f.now)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// One signed header serves both ways of sending: what a node makes of a patch is
// what it would have got whole.
func TestIncrement(t *testing.T) {
	f := newFleet(t)
	for _, s := range f.samples(t) {
		scope := s.content.scope()
		if !ruleOf(scope).increments {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			trust, l := f.trustOf(s), f.line(s)
			first := l.publish(s.content)
			active := f.mustVerify(t, first, trust)
			marks := mustAccept(t, Marks{}, active)

			// Every part goes, one by one, and comes back.
			rule, parts := ruleOf(scope), partsOf(t, scope, first.Content)
			for gone := range parts {
				less := rule.content()
				must(decode(string(contentOf(rule, slices.Delete(slices.Clone(parts), gone, gone+1))), less))
				if less.fault(&l.header) != "" {
					continue // what refers to it cannot be without it
				}
				for _, next := range []Content{less, s.content} {
					before := l.content
					whole := l.publish(next)
					checked := f.checked(t, whole, trust, marks)
					v, err := checked.Complete(whole.Content)
					if err != nil {
						t.Fatal(err)
					}
					if _, ok := Diff(scope, before, whole.Content); !ok { // it is shorter to send the whole
						active, marks = v, mustAccept(t, marks, v)
						continue
					}
					sent := asPatch(t, scope, whole, before)
					checked = f.checked(t, sent, trust, marks)
					patched, content, err := checked.CompletePatch(active, sent.Patch)
					if err != nil {
						t.Fatalf("%s: %v", sent.Patch, err)
					}
					if !bytes.Equal(content, whole.Content) || patched.ContentJSON() != v.ContentJSON() || patched.HeaderDigest() != v.HeaderDigest() ||
						checked.HeaderDigest() != v.HeaderDigest() || !bytesEqual(patched.content, v.content) {
						t.Fatalf("a patch gave\n%s\nthe whole is\n%s", content, whole.Content)
					}
					if kept := f.mustVerify(t, sent.With(content), trust); kept.ContentJSON() != v.ContentJSON() {
						t.Fatal("what is kept of a patch is not the whole")
					}
					active, marks = patched, mustAccept(t, marks, patched)
				}
			}

			// Detached: only the record is new, and the content is what is held.
			l.header.Base, l.record.Generation = active.Header().Base, l.record.Generation+1
			again := must(must(Compose(l.header, s.content)).Publish(l.record, f.keys[0]))
			detached := *again
			detached.Content = nil
			data := must(detached.Marshal())
			if len(data) >= len(must(again.Marshal()))-len(again.Content) {
				t.Errorf("%d bytes without the content", len(data))
			}
			checked := f.checked(t, must(Unmarshal(data)), trust, marks)
			if h := checked.Header(); h.ContentSize != len(again.Content) || h.ContentHash != DigestOf(again.Content) {
				t.Fatalf("the header says %+v", h)
			}
			if r, ok := checked.Record(); !ok || r.Generation != l.record.Generation {
				t.Fatalf("under record %+v", r)
			}
			_, err := checked.Complete([]byte(active.ContentJSON() + " "))
			wantRefused(t, err, checkHash, snapshot.ReasonHash)
			v, err := checked.Complete([]byte(active.ContentJSON()))
			if err != nil {
				t.Fatal(err)
			}
			mustAccept(t, marks, v)
			_, err = Verify(must(Unmarshal(data)), trust, marks, f.now)
			wantRefused(t, err, checkHash, snapshot.ReasonHash)
		})
	}
}

// partsOf returns the parts of a content.
func partsOf(tb testing.TB, scope Scope, content []byte) []part {
	tb.Helper()
	r := &partReader{sections: ruleOf(scope).sections, in: string(content)}
	var out []part
	for r.nextOfContent(); r.more; r.nextOfContent() {
		out = append(out, r.current)
	}
	if r.err != "" {
		tb.Fatal(r.err)
	}
	return out
}

// contentOf puts parts together, in another way than patches are applied.
func contentOf(rule *scopeRule, parts []part) []byte {
	var members []string
	for i, s := range rule.sections {
		var records []string
		for _, p := range parts {
			if p.section == i && s.records {
				records = append(records, fmt.Sprintf("%q:%s", p.record, p.value))
			} else if p.section == i {
				members = append(members, fmt.Sprintf("%q:%s", s.name, p.value))
			}
		}
		if s.records {
			members = append(members, fmt.Sprintf("%q:{%s}", s.name, strings.Join(records, ",")))
		}
	}
	return []byte("{" + strings.Join(members, ",") + "}")
}

// Each row is a fault of a patch, from a node that has version 8 of routes and is sent
// version 9, in which one route differs, one is gone and one is new.
var patchRefusals = []struct {
	name   string
	check  int
	reason Reason
	// bend changes what is sent, or what is active.
	bend func(*testing.T, *increment)
}{
	{"nothing active", checkVersion, snapshot.ReasonBase, func(_ *testing.T, x *increment) { x.active = nil }},
	{"nothing verified", checkVersion, snapshot.ReasonBase, func(_ *testing.T, x *increment) { x.active = new(Verified) }},
	{"a version in between is missing", checkVersion, snapshot.ReasonBase, func(_ *testing.T, x *increment) { x.active = x.before }},
	{"what is active has another content", checkVersion, snapshot.ReasonBase, func(t *testing.T, x *increment) {
		x.active = x.with(t, func(h *Header, r *RoutePolicy) { r.Routes[0].Priority = 99 })
	}},
	{"what is active has the content under another version", checkVersion, snapshot.ReasonBase, func(t *testing.T, x *increment) {
		x.active = x.with(t, func(h *Header, r *RoutePolicy) { h.ConfigVersion, h.Base.ConfigVersion = 7, 6 })
	}},
	{"what is active is of another epoch", checkVersion, snapshot.ReasonBase, func(t *testing.T, x *increment) {
		x.active = x.with(t, func(h *Header, r *RoutePolicy) { h.AuthorityEpoch = 2 })
	}},
	{"what is active is another group's", checkVersion, snapshot.ReasonBase, func(t *testing.T, x *increment) {
		x.active = x.with(t, func(h *Header, r *RoutePolicy) {
			h.OrganizationIDs = []string{"acme", "umbrella"}
			h.Subject = GroupSubject(h.Roles, h.OrganizationIDs)
		})
	}},
	{"what is active is of another scope", checkVersion, snapshot.ReasonBase, func(t *testing.T, x *increment) {
		v := *x.active
		v.header.ScopeType = ScopeQoSPolicy
		x.active = &v
	}},
	{"the header names no base", checkVersion, snapshot.ReasonBase, func(t *testing.T, x *increment) {
		x.header = func(h *Header) { h.Base = nil }
	}},
	{"empty", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = "{}" }},
	{"no bytes", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = "" }},
	{"no object", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = "[]" }},
	{"cut", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = x.patch[:len(x.patch)-1] }},
	{"a byte behind", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch += " " }},
	{"a space inside", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = strings.Replace(x.patch, ":", ": ", 1) }},
	{"an escaped name", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = strings.Replace(x.patch, "routes/", `\u0072outes/`, 1) }},
	{"half of it", checkHash, snapshot.ReasonHash, func(t *testing.T, x *increment) { x.patch = x.entries(t)(1, 2) }},
	{"in another order", checkHash, snapshot.ReasonHash, func(t *testing.T, x *increment) { x.patch = x.entries(t)(1, 0, 2) }},
	{"an entry twice", checkHash, snapshot.ReasonHash, func(t *testing.T, x *increment) { x.patch = x.entries(t)(0, 0, 1, 2) }},
	{"an entry that changes nothing", checkHash, snapshot.ReasonHash, func(t *testing.T, x *increment) {
		same := partsOf(t, ScopeRoutePolicy, []byte(x.active.text))[0] // the entry
		x.patch = `{"entry/` + same.record + `":` + same.value + `,` + x.patch[1:]
	}},
	{"a removal of what is not there", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = `{"entry/nothing":null,` + x.patch[1:] }},
	{"a section that is not known", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = `{"admin/me":{},` + x.patch[1:] }},
	{"a whole member", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = `{"entry":{},` + x.patch[1:] }},
	{"a record without a name", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = `{"entry/":{},` + x.patch[1:] }},
	{"a part of a record", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = `{"entry/web-in/priority":1,` + x.patch[1:] }},
	{"two members in one value", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = `{"entry/a":{}},"routes":{"b":{},` + x.patch[1:] }},
	{"deep nesting", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) {
		x.patch = `{"entry/a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`
	}},
	{"brackets without end", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = `{"entry/a":` + strings.Repeat("[", 200) }},
	{"a string without end", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) { x.patch = `{"entry/a":"\"` }},
	{"another result", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) {
		x.patch = strings.Replace(x.patch, `"priority":7`, `"priority":8`, 1)
	}},
	{"larger than the result", checkLimits, snapshot.ReasonLimits, func(_ *testing.T, x *increment) {
		x.patch = `{"entry/a":"` + strings.Repeat("x", len(x.whole.Content)) + `"}`
	}},
	// The base has most of what it may have, and the patch the rest.
	{"a bomb", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) {
		x.patch = `{"entry/a":"` + strings.Repeat("x", len(x.whole.Content)/2) + `"}`
	}},
	{"a signed size that is too small", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) {
		x.header = func(h *Header) { h.ContentSize-- }
	}},
	{"a signed size that is too large", checkHash, snapshot.ReasonHash, func(_ *testing.T, x *increment) {
		x.header = func(h *Header) { h.ContentSize++ }
	}},
}

type increment struct {
	f              *fleet
	s              sample
	before, active *Verified
	whole          *Signed // the next one
	patch          string
	header         func(*Header) // bends what is signed
}

// with is what is active with something else about it.
func (x *increment) with(t *testing.T, edit func(*Header, *RoutePolicy)) *Verified {
	t.Helper()
	h, c := x.active.Header(), new(RoutePolicy)
	must(decode(x.active.text, c))
	edit(&h, c)
	r := x.f.record()
	trust := x.f.trustOf(x.s)
	trust.Organizations = h.OrganizationIDs
	return x.f.mustVerify(t, must(must(Compose(h, c)).Publish(r, x.f.keys[0])), trust)
}

// entries gives the patch with the entries at some places.
func (x *increment) entries(t *testing.T) func(places ...int) string {
	t.Helper()
	r := &partReader{sections: ruleOf(ScopeRoutePolicy).sections, in: x.patch}
	var all []string
	for r.nextOfPatch(); r.more; r.nextOfPatch() {
		all = append(all, fmt.Sprintf("%q:%s", r.current.name(r.sections), r.current.value))
	}
	if len(all) != 3 {
		t.Fatalf("%d entries in %s", len(all), x.patch)
	}
	return func(places ...int) string {
		var out []string
		for _, i := range places {
			out = append(out, all[i])
		}
		return "{" + strings.Join(out, ",") + "}"
	}
}

func (f *fleet) increment(t *testing.T) *increment {
	t.Helper()
	at := slices.IndexFunc(f.samples(t), func(s sample) bool { return s.content.scope() == ScopeRoutePolicy })
	s := f.samples(t)[at]
	x := &increment{f: f, s: s}
	l := f.line(s)
	l.header.ConfigVersion = 6
	version := func(priority int, more ...Route) *RoutePolicy {
		c := s.content.(*RoutePolicy).clone()
		c.Routes[0].Priority = priority
		c.Routes = append(c.Routes[:len(c.Routes):len(c.Routes)], more...)
		return &c
	}
	x.before = f.mustVerify(t, l.publish(version(5)), f.trustOf(s))
	x.active = f.mustVerify(t, l.publish(version(6, Route{Name: "z-old"})), f.trustOf(s))
	base := l.content
	x.whole = l.publish(version(7, Route{Name: "z-new"}))
	x.patch = string(asPatch(t, ScopeRoutePolicy, x.whole, base).Patch)
	return x
}

func TestIncrementRefusals(t *testing.T) {
	f := newFleet(t)
	for _, r := range patchRefusals {
		t.Run(r.name, func(t *testing.T) {
			x := f.increment(t)
			active := x.active
			r.bend(t, x)
			g := &forge{record: f.record(), cluster: testCluster, keys: []crypto.Signer{f.keys[0]}}
			must(decode(string(x.whole.Header), &g.header))
			if x.header != nil {
				x.header(&g.header)
			}
			g.record.Generation = 20
			s := g.signBytes(must(encode(&g.header)), x.whole.Content)
			checked := f.checked(t, s, f.trustOf(x.s), Marks{})
			v, content, err := checked.CompletePatch(x.active, []byte(x.patch))
			wantRefused(t, err, r.check, r.reason)
			if v != nil || content != nil {
				t.Fatal("a refusal comes with content")
			}
			if r.check == checkLimits {
				s.Content, s.Patch = nil, []byte(x.patch)
				_, err := VerifyHeader(s, f.trustOf(x.s), Marks{}, f.now)
				wantRefused(t, err, checkLimits, snapshot.ReasonLimits)
			}
			// The active content is as it was, and the whole still helps.
			if string(active.ContentJSON()) != active.text || x.header == nil && must(checked.Complete(x.whole.Content)) == nil {
				t.Fatal("a refused patch did something")
			}
		})
	}
	x := f.increment(t)
	if _, _, err := f.checked(t, x.whole, f.trustOf(x.s), Marks{}).CompletePatch(x.active, []byte(x.patch)); err != nil {
		t.Fatalf("as it was: %v", err)
	}
}

// A header names a base only where there are increments, and an earlier version.
func TestBaseRefusals(t *testing.T) {
	f := newFleet(t)
	for _, s := range f.samples(t) {
		for _, base := range []Base{{}, {ConfigVersion: 6}, {ContentHash: Digest{1}}, {7, Digest{1}}, {8, Digest{1}}, {snapshot.MaxVersion + 1, Digest{1}}, {6, Digest{1}}} {
			signed := f.forgeOf(s, func(x *forge) { x.header.Base = &base })
			_, err := VerifyHeader(signed, f.trustOf(s), Marks{}, f.now)
			if base == (Base{6, Digest{1}}) && ruleOf(s.content.scope()).increments {
				if err != nil {
					t.Errorf("%s with base %v: %v", s.name, base, err)
				}
				continue
			}
			wantRefused(t, err, checkSchema, snapshot.ReasonSchema)
			h := f.headerOf(s)
			h.Base = &base
			_, err = Compose(h, s.content)
			wantRefused(t, err, checkSchema, snapshot.ReasonSchema)
		}
	}
}

// A node that applies increments has at each version, byte for byte, what a node
// has that gets the whole, whatever is changed in whatever order; a node that missed
// one is told so, and has again what the others have as soon as it got the whole.
func TestIncrementsConverge(tb *testing.T) {
	f := newFleet(tb)
	samples := slices.DeleteFunc(f.samples(tb), func(s sample) bool { return !ruleOf(s.content.scope()).increments })
	rapid.Check(tb, func(t *rapid.T) {
		s := rapid.SampledFrom(samples).Draw(t, "sample")
		scope := s.content.scope()
		rule, trust := ruleOf(scope), f.trustOf(s)
		l := f.line(s)
		pool := partsOf(tb, scope, must(encode(s.content)))
		verify := func(signed *Signed, marks Marks) *Verified {
			return must(must(VerifyHeader(signed, trust, marks, f.now)).Complete(signed.Content))
		}
		active := verify(l.publish(s.content), Marks{})
		marks := must(Accept(Marks{}, active))
		missed := false
		for range rapid.IntRange(1, 12).Draw(t, "versions") {
			base := l.content
			signed := l.publish(drawContent(t, rule, pool, l))
			full := verify(signed, marks)
			patch, ok := Diff(scope, base, signed.Content)
			if ok != (len(patch) > 0) || ok && len(patch) >= len(signed.Content) {
				t.Fatalf("a patch of %d bytes for %d, %v", len(patch), len(signed.Content), ok)
			}
			again, _ := Diff(scope, base, signed.Content)
			if !bytes.Equal(patch, again) {
				t.Fatal("two patches of one base and result")
			}
			if !missed && rapid.IntRange(0, 5).Draw(t, "lose") == 0 {
				missed = true
				continue
			}
			checked := must(VerifyHeader(signed, trust, marks, f.now))
			if missed {
				if _, _, err := checked.CompletePatch(active, patch); err == nil {
					t.Fatal("a gap went unnoticed")
				}
				ok, missed = false, false
			}
			next := full
			if ok {
				var content []byte
				var err error
				if next, content, err = checked.CompletePatch(active, patch); err != nil {
					t.Fatalf("%s\non %s: %v", patch, base, err)
				}
				if !bytes.Equal(content, signed.Content) || next.ContentJSON() != full.ContentJSON() || !bytesEqual(next.content, full.content) {
					t.Fatalf("%s\nmade\n%s\nof\n%s\nwant\n%s", patch, content, base, signed.Content)
				}
			}
			active, marks = next, must(Accept(marks, next))
		}
	})
}

// drawContent draws a content of parts of the pool, some under other names, that is
// valid in itself.
func drawContent(t *rapid.T, rule *scopeRule, pool []part, l *line) Content {
	var parts []part
	for _, p := range pool {
		switch rapid.IntRange(0, 3).Draw(t, "part") {
		case 0:
			continue
		case 1:
			if rule.sections[p.section].records {
				p.record = rapid.StringMatching(`[a-z]([a-z.]{0,3}[a-z])?`).Draw(t, "name")
			}
		case 2:
			p.value = strings.Replace(p.value, `"priority":`, `"priority":`+fmt.Sprint(rapid.IntRange(1, 9).Draw(t, "priority")), 1)
			p.value = strings.Replace(p.value, `"type":"`, `"type":"x`, 1)
		}
		parts = append(parts, p)
	}
	slices.SortStableFunc(parts, part.compare)
	parts = slices.CompactFunc(parts, func(a, b part) bool { return a.compare(b) == 0 })
	c := rule.content()
	_, err := decode(string(contentOf(rule, parts)), c)
	if err != nil || c.fault(&l.header) != "" || c.grants(&l.header) != "" {
		return l.s.content
	}
	return c
}

// A stranger's bytes cost memory in proportion to their size, whatever they say
// of themselves.
func TestMemoryIsBounded(t *testing.T) {
	f := newFleet(t)
	cost := func(do func()) int {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		return int(after.TotalAlloc - before.TotalAlloc)
	}
	const size = snapshot.DefaultContent
	for _, s := range f.samples(t) {
		rule := ruleOf(s.content.scope())
		full := string(must(encode(large(t, s, size/2))))
		for name, text := range map[string]string{
			"as it should be":   full,
			"many empty names":  full[:strings.Index(full, "[")+1] + strings.Repeat(`"",`, size/3),
			"brackets":          full[:strings.Index(full, ":")+1] + strings.Repeat("[", size),
			"objects":           full[:strings.Index(full, ":")+1] + strings.Repeat(`{"a":`, size/5),
			"one string":        full[:strings.Index(full, ":")+1] + `"` + strings.Repeat("a", size),
			"escapes":           full[:strings.Index(full, ":")+1] + `{"` + strings.Repeat(`\"`, size/2),
			"small, then large": full[:len(full)/2] + strings.Repeat(" ", size),
		} {
			if n := cost(func() { decode(text, rule.content()) }); n > 4*len(text)+1<<20 {
				t.Errorf("%s, %s: %d bytes of memory for %d", s.name, name, n, len(text))
			}
		}
		if !rule.increments {
			continue
		}
		for _, patch := range []string{"{}", `{"x/y":1}`, `{"` + rule.sections[0].name + `/zzz":` + strings.Repeat("[", 100)} {
			if n := cost(func() { rule.applied("{}", []byte(patch), snapshot.MaxContent) }); n > 1<<16 {
				t.Errorf("%s: %d bytes of memory for the patch %.40s", s.name, n, patch)
			}
		}
	}
}

// Nothing is written beyond the signed size, and a patch is never empty, not even
// where a new version has the content of the one before.
func TestAppliedIsCapped(t *testing.T) {
	f := newFleet(t)
	x := f.increment(t)
	rule := ruleOf(ScopeRoutePolicy)
	whole := len(x.whole.Content)
	for size := range whole + 1 {
		out, msg := rule.applied(x.active.text, []byte(x.patch), size)
		if (msg == "") != (size == whole) || len(out) > size {
			t.Fatalf("%d bytes where %d are signed: %q", len(out), size, msg)
		}
	}
	for _, places := range [][]int{{1, 0, 2}, {0, 0, 1, 2}, {0, 1, 1, 2}} {
		if _, msg := rule.applied(x.active.text, []byte(x.entries(t)(places...)), whole); !strings.Contains(msg, "out of order or double") {
			t.Errorf("entries %v: %q", places, msg)
		}
	}
	l := f.line(x.s)
	first := l.publish(x.s.content)
	active := f.mustVerify(t, first, f.trustOf(x.s))
	again := l.publish(x.s.content)
	if _, ok := Diff(ScopeRoutePolicy, first.Content, again.Content); ok {
		t.Error("there is a patch between equal contents")
	}
	_, _, err := f.checked(t, again, f.trustOf(x.s), Marks{}).CompletePatch(active, []byte("{}"))
	wantRefused(t, err, checkHash, snapshot.ReasonHash)
}

// A form that has a content or a patch has one that is not empty: without it, it
// would be another form, and one envelope would have two encodings.
func TestFormsAreDistinct(t *testing.T) {
	f := newFleet(t)
	s := f.signedBootstrap(t)
	s.Content = nil
	detached := must(s.Marshal())
	at := len(signedMagic)
	header := at + 1 + 4 + len(s.Header)
	for form := range byte(8) {
		bent := slices.Concat(detached[:header], []byte{0, 0, 0, 0}, detached[header:])
		bent[at] = form
		if _, err := Unmarshal(bent); err == nil {
			t.Errorf("form %d was read with nothing in the place of a content", form)
		}
		bent = bytes.Clone(detached)
		if bent[at] = form; form == formDetached {
			continue
		}
		if _, err := Unmarshal(bent); err == nil {
			t.Errorf("form %d was read without a content", form)
		}
	}
}

// Whoever can name Checked can make the zero one: it takes no content, so that a Verified comes from the checks alone.
func TestTheZeroCheckedTakesNothing(t *testing.T) {
	f := newFleet(t)
	for _, content := range []string{"", "{}", f.bundle.ContentJSON()} {
		if v, err := new(Checked).Complete([]byte(content)); err == nil || v != nil {
			t.Errorf("content %.40q was taken: %v", content, v)
		}
		if v, _, err := new(Checked).CompletePatch(f.bundle, []byte(content)); !errors.Is(err, ErrRejected) || v != nil {
			t.Errorf("patch %.40q was taken: %v, %v", content, v, err)
		}
	}
}
