package quota_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	internaldocument "github.com/fealty-io/fealty/internal/document"
	internalquota "github.com/fealty-io/fealty/internal/quota"
)

var (
	longest = strings.Repeat("x", internaldocument.MaxNameBytes)
	tooLong = longest + "x"
)

func price(p float64) *float64 { return &p }

// same reports whether two plans say the same, in the same order.
func same(a, b internalquota.Plan) bool {
	return slices.Equal(a.Quotas, b.Quotas) && slices.EqualFunc(a.Providers, b.Providers, internalquota.Provider.Same)
}

// isRefused checks that an error names the field of a part, and matches what callers ask for.
func isRefused(t *testing.T, what, of, field string, err error) {
	t.Helper()
	e, ok := errors.AsType[*internalquota.FieldError](err)
	switch {
	case !ok || !errors.Is(err, internalquota.ErrInvalid):
		t.Errorf("%s: %v, which is no refusal of a field", what, err)
	case e.Field != field || e.Problem == "":
		t.Errorf("%s: its %q %q, want a problem of its %q", what, e.Field, e.Problem, field)
	case !strings.HasPrefix(e.Of, of) || !strings.Contains(err.Error(), "its "+field+" "+e.Problem):
		t.Errorf("%s: the words are %q, of %q", what, err, e.Of)
	}
}

// isRefusedWithin checks that no plan has such a part: none is sent, and none is taken.
func isRefusedWithin(t *testing.T, what string, p internalquota.Plan) {
	t.Helper()
	if err := p.Check(); !errors.Is(err, internalquota.ErrInvalid) {
		t.Errorf("%s in a plan: %v", what, err)
	}
	if text, err := p.Encode(); !errors.Is(err, internalquota.ErrInvalid) {
		t.Errorf("%s is encoded as %s: %v", what, text, err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		return // JSON has no way to say it
	}
	if got, err := internalquota.DecodePlan(text); !errors.Is(err, internalquota.ErrInvalid) || !same(got, internalquota.Plan{}) {
		t.Errorf("%s is read as %v: %v", what, got, err)
	}
}

// isTakenWithin checks that a part is in a plan which travels.
func isTakenWithin(t *testing.T, what string, p internalquota.Plan) {
	t.Helper()
	text, err := p.Encode()
	if err != nil {
		t.Errorf("%s is not encoded: %v", what, err)
		return
	}
	if got, err := internalquota.DecodePlan(text); err != nil || !same(got, p) {
		t.Errorf("%s is read as %v: %v", what, got, err)
	}
}

// A quota that cannot be is refused by its field, alone and within a plan.
func TestQuotas(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, field string // no field: it can be
		quota       internalquota.Quota
	}{
		{"none at all", "", internalquota.Quota{Tenant: "acme", Profile: "web"}},
		{"as many as there can be", "", internalquota.Quota{Tenant: "acme", Profile: "web",
			Machines: internalquota.MaxMachines}},
		{"the longest names", "", internalquota.Quota{Tenant: longest, Profile: longest, Machines: 1}},
		{"a profile with a slash", "", internalquota.Quota{Tenant: "acme", Profile: "web/large/", Machines: 1}},
		{"names that JSON escapes", "", internalquota.Quota{Tenant: `"<>&\'`, Profile: `\u0041`, Machines: 1}},

		{"nothing", "tenant", internalquota.Quota{}},
		{"no tenant", "tenant", internalquota.Quota{Profile: "web"}},
		{"a long tenant", "tenant", internalquota.Quota{Tenant: tooLong, Profile: "web"}},
		{"a tenant with a blank", "tenant", internalquota.Quota{Tenant: "ac me", Profile: "web"}},
		{"a tenant with a line end", "tenant", internalquota.Quota{Tenant: "acme\n", Profile: "web"}},
		{"a tenant that is no ASCII", "tenant", internalquota.Quota{Tenant: "acm\u00e9", Profile: "web"}},
		{"a tenant with a slash", "tenant", internalquota.Quota{Tenant: "acme/eu", Profile: "web"}},
		{"a tenant that is a slash", "tenant", internalquota.Quota{Tenant: "/", Profile: "web"}},
		{"no profile", "profile", internalquota.Quota{Tenant: "acme"}},
		{"a long profile", "profile", internalquota.Quota{Tenant: "acme", Profile: tooLong}},
		{"a profile with a tab", "profile", internalquota.Quota{Tenant: "acme", Profile: "web\t"}},
		{"a profile that is no ASCII", "profile", internalquota.Quota{Tenant: "acme", Profile: "w\u00e9b"}},
		{"fewer than none", "machines", internalquota.Quota{Tenant: "acme", Profile: "web", Machines: -1}},
		{"far fewer than none", "machines", internalquota.Quota{Tenant: "acme", Profile: "web", Machines: math.MinInt}},
		{"one too many", "machines", internalquota.Quota{Tenant: "acme", Profile: "web",
			Machines: internalquota.MaxMachines + 1}},
		{"far too many", "machines", internalquota.Quota{Tenant: "acme", Profile: "web", Machines: math.MaxInt}},
	} {
		err := tc.quota.Check()
		if tc.field == "" {
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			isTakenWithin(t, tc.name, internalquota.Plan{Quotas: []internalquota.Quota{tc.quota}})
			continue
		}
		isRefused(t, tc.name, "quota ", tc.field, err)
		// It stands after one that can be, so that all are looked at.
		isRefusedWithin(t, tc.name, internalquota.Plan{Quotas: []internalquota.Quota{{Tenant: "!", Profile: "!"}, tc.quota}})
	}
	if got := (internalquota.Quota{Tenant: "acme", Profile: "web/large"}).Name(); got != "acme/web/large" {
		t.Errorf("its name is %q", got)
	}
}

// A provider that cannot be is refused by its field, alone and within a plan.
func TestProviders(t *testing.T) {
	t.Parallel()
	const address = "laptop.example:7443"
	at := func(address string) internalquota.Provider {
		return internalquota.Provider{Name: "laptop", Address: address}
	}
	named := func(name string) internalquota.Provider { return internalquota.Provider{Name: name, Address: address} }
	costs := func(p float64) internalquota.Provider {
		return internalquota.Provider{Name: "laptop", Address: address, Price: &p}
	}
	host := strings.Repeat("h", internalquota.MaxAddress-len(":65535"))
	for _, tc := range []struct {
		name, field string // no field: it can be
		provider    internalquota.Provider
	}{
		{"a name and an address", "", at(address)},
		{"the longest name", "", named(longest)},
		{"all that a name may have", "", named("AZaz09._-")},
		{"no name", "name", named("")},
		{"a long name", "name", named(tooLong)},
		{"a name with a slash", "name", named("eu/laptop")},
		{"a name that is a folder", "name", named("..")},
		{"a name that is this folder", "name", named(".")},
		{"a name with a blank", "name", named("lap top")},
		{"a name with what is in no identity", "name", named("laptop@eu")},
		{"a name with an escape", "name", named("lap%74op")},
		{"a name that is no ASCII", "name", named("l\u00e4ptop")},

		{"the lowest port", "", at("host:1")},
		{"the highest port", "", at("host:65535")},
		{"an address of four bytes", "", at("127.0.0.1:80")},
		{"an address in brackets", "", at("[::1]:80")},
		{"an address of an interface", "address", at("[fe80::1%eth0]:80")},
		{"a host with a question", "address", at("a?b:1")},
		{"a host in brackets that is none", "address", at("[a:b]:1")},
		{"the longest address", "", at(host + ":65535")},
		{"no address", "address", at("")},
		{"no port", "address", at("host")},
		{"an empty port", "address", at("host:")},
		{"port 0", "address", at("host:0")},
		{"port 0 in two digits", "address", at("host:00")},
		{"port 65536", "address", at("host:65536")},
		{"port 080", "address", at("host:080")},
		{"a user in the host", "address", at("me@host:80")},
		{"a port below 0", "address", at("host:-1")},
		{"a port with a sign", "address", at("host:+80")},
		{"a port that has a name", "address", at("host:https")},
		{"a port in another base", "address", at("host:0x50")},
		{"no host", "address", at(":80")},
		{"a host of brackets alone", "address", at("[]:80")},
		{"a colon alone", "address", at(":")},
		{"an address without brackets", "address", at("::1:80")},
		{"a bracket that is not closed", "address", at("[::1:80")},
		{"brackets without a port", "address", at("[::1]")},
		{"a blank before it", "address", at(" host:80")},
		{"a blank in the host", "address", at("ho st:80")},
		{"a blank before the colon", "address", at("host :80")},
		{"a blank before the port", "address", at("host: 80")},
		{"a blank after it", "address", at("host:80 ")},
		{"a line end in the host", "address", at("ho\nst:80")},
		{"a line end after it", "address", at("host:80\n")},
		{"a DEL in the host", "address", at("host\x7f:80")},
		{"a host that is no ASCII", "address", at("h\u00f6st:80")},
		{"a slash in the host", "address", at("host/path:80")},
		{"a slash after it", "address", at("host:80/")},
		{"a URL", "address", at("https://host:80")},
		{"a URL of a file", "address", at("unix:///run/provider")},
		{"an address of one byte too many", "address", at(host + "h:65535")},

		{"a price of nothing", "", costs(0)},
		{"a price of less than nothing, by its sign alone", "", costs(math.Copysign(0, -1))},
		{"the lowest price", "", costs(math.SmallestNonzeroFloat64)},
		{"the highest price", "", costs(math.MaxFloat64)},
		{"a price that is no number", "price", costs(math.NaN())},
		{"a price without end", "price", costs(math.Inf(1))},
		{"a price without end below 0", "price", costs(math.Inf(-1))},
		{"a price below 0", "price", costs(-1)},
		{"a price just below 0", "price", costs(-math.SmallestNonzeroFloat64)},
	} {
		err := tc.provider.Check()
		if byName := internalquota.CheckProvider(tc.provider.Name); (byName != nil) != (tc.field == "name") {
			t.Errorf("%s: of the name alone: %v", tc.name, byName)
		} else if byName != nil {
			isRefused(t, tc.name, "provider ", "name", byName)
		}
		if tc.field == "" {
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			isTakenWithin(t, tc.name, internalquota.Plan{Providers: []internalquota.Provider{tc.provider}})
			continue
		}
		isRefused(t, tc.name, "provider ", tc.field, err)
		isRefusedWithin(t, tc.name, internalquota.Plan{Providers: []internalquota.Provider{{Name: "-", Address: address},
			tc.provider}})
	}
}

// full is a plan at its bounds, with the longest names and addresses of one character.
func full(quotas, providers int, character string) (p internalquota.Plan) {
	name := func(n, bytes int, of string) string {
		number := fmt.Sprintf("%06d", n)
		return number + strings.Repeat(of, bytes-len(number))
	}
	for n := range quotas {
		p.Quotas = append(p.Quotas, internalquota.Quota{Tenant: name(n, internaldocument.MaxNameBytes, character),
			Profile: name(n, internaldocument.MaxNameBytes, character), Machines: internalquota.MaxMachines})
	}
	for n := range providers {
		p.Providers = append(p.Providers, internalquota.Provider{Name: name(n, internaldocument.MaxNameBytes, "x"),
			Address: name(n, internalquota.MaxAddress-len(":65535"), "x") + ":65535",
			Price:   price(math.Nextafter(math.MaxFloat64, 0))})
	}
	return p
}

// A plan at its bounds travels, whatever its names are of; and one above them is no plan.
func TestBounds(t *testing.T) {
	t.Parallel()
	// JSON writes some of these in two bytes or in six.
	for _, character := range []string{"x", `"`, `\`, "<", "&"} {
		p := full(internalquota.MaxQuotas, internalquota.MaxProviders, character)
		text, err := p.Encode()
		if err != nil {
			t.Errorf("of %q: %v", character, err)
			continue
		}
		if len(text) > internalquota.MaxBytes {
			t.Errorf("of %q: it has %d bytes, above %d: no shard takes it", character, len(text), internalquota.MaxBytes)
			continue
		}
		if got, err := internalquota.DecodePlan(text); err != nil || !same(got, p) {
			t.Errorf("of %q: it is not read again: %v", character, err)
		}
	}
	for field, p := range map[string]internalquota.Plan{"quotas": full(internalquota.MaxQuotas+1, 0, "x"),
		"providers": full(0, internalquota.MaxProviders+1, "x")} {
		isRefused(t, "too many "+field, "", field, p.Check())
		isRefusedWithin(t, "too many "+field, p)
	}
}

// The parts of a plan are sorted, and none is there twice: whoever encodes need not care for the
// order, and whoever reads takes no other.
func TestOrder(t *testing.T) {
	t.Parallel()
	quota := func(tenant, profile string, machines int) internalquota.Quota {
		return internalquota.Quota{Tenant: tenant, Profile: profile, Machines: machines}
	}
	provider := func(name, address string) internalquota.Provider {
		return internalquota.Provider{Name: name, Address: address}
	}
	// The order is that of whole names: "a-b/x" is before "a/x", although tenant "a" is before "a-b".
	sorted := internalquota.Plan{Quotas: []internalquota.Quota{quota("a-b", "x", 1), quota("a", "x", 2), quota("a", "y", 3),
		quota("b", "a", 4)}, Providers: []internalquota.Provider{provider("B", "h:1"), provider("a", "h:1"),
		provider("a-b", "h:1"), provider("a.b", "h:1")}}
	want, err := sorted.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := sorted.Check(); err != nil {
		t.Errorf("in order: %v", err)
	}
	for i := range sorted.Quotas {
		for j := range i {
			shuffled := internalquota.Plan{Quotas: slices.Clone(sorted.Quotas), Providers: slices.Clone(sorted.Providers)}
			shuffled.Quotas[i], shuffled.Quotas[j] = shuffled.Quotas[j], shuffled.Quotas[i]
			shuffled.Providers[i], shuffled.Providers[j] = shuffled.Providers[j], shuffled.Providers[i]
			before := internalquota.Plan{Quotas: slices.Clone(shuffled.Quotas), Providers: slices.Clone(shuffled.Providers)}
			text, err := shuffled.Encode()
			if err != nil || !bytes.Equal(text, want) {
				t.Errorf("with %d and %d changed: %s, %v", i, j, text, err)
			}
			if !same(shuffled, before) {
				t.Errorf("with %d and %d changed: the caller's plan is another one", i, j)
			}
		}
	}
	a, b := quota("a", "x", 1), quota("b", "x", 1)
	p, q := provider("p", "h:1"), provider("q", "h:1")
	for name, plan := range map[string]internalquota.Plan{
		"quotas in another order":       {Quotas: []internalquota.Quota{b, a}},
		"the last quotas in another":    {Quotas: []internalquota.Quota{a, quota("c", "x", 1), b}},
		"a quota twice":                 {Quotas: []internalquota.Quota{a, a}},
		"a quota twice that differs":    {Quotas: []internalquota.Quota{a, quota("a", "x", 2)}},
		"providers in another order":    {Providers: []internalquota.Provider{q, p}},
		"the last providers in another": {Providers: []internalquota.Provider{p, provider("r", "h:1"), q}},
		"a provider twice":              {Providers: []internalquota.Provider{p, p}},
		"a provider at two addresses":   {Providers: []internalquota.Provider{p, provider("p", "h:2")}},
	} {
		twice := strings.Contains(name, " twice") || strings.Contains(name, " two ")
		if err := plan.Check(); !errors.Is(err, internalquota.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if text, err := plan.Encode(); (err != nil) != twice || twice && !errors.Is(err, internalquota.ErrInvalid) {
			t.Errorf("%s is encoded as %s: %v", name, text, err)
		}
		text, err := json.Marshal(plan)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := internalquota.DecodePlan(text); !errors.Is(err, internalquota.ErrInvalid) || !same(got, internalquota.Plan{}) {
			t.Errorf("%s is read as %v: %v", name, got, err)
		}
	}
}

// The text of a plan is the same in all releases, as its digest is signed; and nothing else is a
// plan, as what a shard does not know could be a bound.
func TestText(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]internalquota.Plan{
		`{}`: {},
		`{"quotas":[{"tenant":"acme","profile":"web","machines":0}],` +
			`"providers":[{"name":"cloud","address":"10.0.0.1:7443"},` +
			`{"name":"laptop","address":"[::1]:7443","price":0},{"name":"rack","address":"rack:1","price":0.25}]}`: {
			Quotas: []internalquota.Quota{{Tenant: "acme", Profile: "web"}},
			Providers: []internalquota.Provider{{Name: "cloud", Address: "10.0.0.1:7443"},
				{Name: "laptop", Address: "[::1]:7443", Price: price(0)},
				{Name: "rack", Address: "rack:1", Price: price(0.25)}}},
	} {
		text, err := p.Encode()
		if err != nil || string(text) != want {
			t.Errorf("it is encoded as %s, want %s: %v", text, want, err)
		}
		if got, err := internalquota.DecodePlan([]byte(want)); err != nil || !same(got, p) {
			t.Errorf("%s is read as %v: %v", want, got, err)
		}
		if got := internalquota.DigestOf(text); got != sha256.Sum256([]byte(want)) {
			t.Errorf("its digest is %x", got)
		}
	}
	padded := func(bytes int) string { return "{}" + strings.Repeat(" ", bytes-2) }
	const quota = `"tenant":"acme","profile":"web","machines":3`
	const provider = `"name":"laptop","address":"laptop:7443"`
	for _, tc := range []struct{ name, text string }{
		{"nothing", ""},
		{"a blank", " "},
		{"half of one", `{"quotas":[{` + quota + `}`},
		{"a list", `[]`},
		{"a text", `"{}"`},
		{"a number", `1`},
		{"no JSON", `quotas`},
		{"a plan, and a brace", `{}}`},
		{"two plans", `{}{}`},
		{"a plan, and nothing", `{} null`},
		{"a plan, and what is no JSON", `{} x`},
		{"a byte too many", padded(internalquota.MaxBytes + 1)},
		{"a blank after it", padded(3)},
		{"nothing, in a word", `null`},
		{"quotas twice", `{"quotas":[{` + quota + `}],"quotas":[]}`},
		{"a quota's number twice", `{"quotas":[{` + quota + `,"machines":9}]}`},
		{"a quota without a number", `{"quotas":[{"tenant":"acme","profile":"web"}]}`},
		{"quotas in capitals", `{"QUOTAS":[{` + quota + `}]}`},
		{"an empty list in words", `{"quotas":[]}`},
		{"a number in another form", `{"providers":[{` + provider + `,"price":2.50}]}`},
		{"a part that is not known", `{"quotas":[{` + quota + `}],"windows":[]}`},
		{"a part of a quota that is not known", `{"quotas":[{` + quota + `,"cores":8}]}`},
		{"a part of a provider that is not known", `{"providers":[{` + provider + `,"region":"eu"}]}`},
		{"a quota that is none", `{"quotas":[null]}`},
		{"a provider that is none", `{"providers":[null]}`},
		{"quotas by their names", `{"quotas":{"acme/web":3}}`},
		{"half a machine", `{"quotas":[{"tenant":"acme","profile":"web","machines":0.5}]}`},
		{"more machines than there are numbers", `{"quotas":[{"tenant":"acme","profile":"web","machines":1e30}]}`},
		{"machines in words", `{"quotas":[{"tenant":"acme","profile":"web","machines":"3"}]}`},
		{"a price in words", `{"providers":[{` + provider + `,"price":"1"}]}`},
		{"a price above all numbers", `{"providers":[{` + provider + `,"price":1e999}]}`},
		{"a price below 0", `{"providers":[{` + provider + `,"price":-1}]}`},
	} {
		got, err := internalquota.DecodePlan([]byte(tc.text))
		if !errors.Is(err, internalquota.ErrInvalid) || !same(got, internalquota.Plan{}) {
			t.Errorf("%s is read as %v: %v", tc.name, got, err)
		}
	}
}

// Two providers are the same if all of what is registered is.
func TestSame(t *testing.T) {
	t.Parallel()
	of := func(name, address string, price *float64) internalquota.Provider {
		return internalquota.Provider{Name: name, Address: address, Price: price}
	}
	for _, tc := range []struct {
		name string
		a, b internalquota.Provider
		want bool
	}{
		{"nothing", of("", "", nil), of("", "", nil), true},
		{"no price", of("p", "h:1", nil), of("p", "h:1", nil), true},
		{"one price, at two places", of("p", "h:1", price(1)), of("p", "h:1", price(1)), true},
		{"another name", of("p", "h:1", nil), of("q", "h:1", nil), false},
		{"another address", of("p", "h:1", nil), of("p", "h:2", nil), false},
		{"another price", of("p", "h:1", price(1)), of("p", "h:1", price(2)), false},
		{"a price, and none", of("p", "h:1", price(1)), of("p", "h:1", nil), false},
		{"a price of nothing, and none", of("p", "h:1", price(0)), of("p", "h:1", nil), false},
		{"one price, and another name", of("p", "h:1", price(1)), of("q", "h:1", price(1)), false},
	} {
		if tc.a.Same(tc.b) != tc.want || tc.b.Same(tc.a) != tc.want {
			t.Errorf("%s: %v and %v", tc.name, tc.a.Same(tc.b), tc.b.Same(tc.a))
		}
	}
}

// A plan says the same to its readers, in whatever order it was made: it is sorted, and has one text
// alone.
func TestTravels(t *testing.T) {
	t.Parallel()
	name := rapid.StringOfN(rapid.RuneFrom([]rune("ab-/<\"\\~!")), 1, 4, -1)
	plain := rapid.OneOf(name, rapid.StringMatching(`[!-~]{1,128}`))
	quota := rapid.Custom(func(t *rapid.T) internalquota.Quota {
		return internalquota.Quota{Tenant: strings.ReplaceAll(plain.Draw(t, "tenant"), "/", "-"),
			Profile: plain.Draw(t, "profile"), Machines: rapid.IntRange(0, internalquota.MaxMachines).Draw(t, "machines")}
	})
	provider := rapid.Custom(func(t *rapid.T) internalquota.Provider {
		p := internalquota.Provider{Name: rapid.StringMatching(`[a-c][-._a-c]{0,3}`).Draw(t, "name"),
			Address: fmt.Sprintf("h:%d", rapid.IntRange(1, 65535).Draw(t, "port"))}
		if rapid.Bool().Draw(t, "priced") {
			p.Price = price(rapid.Float64Range(0, math.MaxFloat64).Draw(t, "price"))
		}
		return p
	})
	rapid.Check(t, func(t *rapid.T) {
		p := internalquota.Plan{Quotas: rapid.SliceOfNDistinct(quota, 0, 20, internalquota.Quota.Name).Draw(t, "quotas"),
			Providers: rapid.SliceOfNDistinct(provider, 0, 20, func(p internalquota.Provider) string { return p.Name }).
				Draw(t, "providers")}
		text, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := internalquota.DecodePlan(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		byName := func(a, b internalquota.Quota) int { return strings.Compare(a.Name(), b.Name()) }
		if !slices.IsSortedFunc(got.Quotas, byName) {
			t.Errorf("%s is not sorted", text)
		}
		if len(got.Quotas) != len(p.Quotas) || len(got.Providers) != len(p.Providers) {
			t.Fatalf("%v is read as %v", p, got)
		}
		for _, q := range p.Quotas {
			if !slices.Contains(got.Quotas, q) {
				t.Errorf("%v is lost in %s", q, text)
			}
		}
		for _, v := range p.Providers {
			if !slices.ContainsFunc(got.Providers, v.Same) {
				t.Errorf("%v is lost in %s", v, text)
			}
		}
		if again, err := got.Encode(); err != nil || !bytes.Equal(again, text) {
			t.Errorf("%s is encoded again as %s: %v", text, again, err)
		}
	})
}

// Each text that is taken for a plan is one: it is encoded, and what is read then says the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"quotas":[{"tenant":"a","profile":"b","machines":3},{"tenant":"b","profile":"c","machines":0}]}`))
	f.Add([]byte(`{"providers":[{"name":"laptop","address":"[::1]:7443","price":-0},{"name":"p","address":"h:1"}]}`))
	f.Add([]byte(`{"quotas":[],"providers":null}`))
	f.Add([]byte(`{"quotas":[{"tenant":"\u003c","profile":"<","machines":1}],"more":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := internalquota.DecodePlan(text)
		if err != nil {
			if !errors.Is(err, internalquota.ErrInvalid) || !same(p, internalquota.Plan{}) {
				t.Errorf("%q: %v, %v", text, p, err)
			}
			return
		}
		if err := p.Check(); err != nil {
			t.Fatalf("%q is taken, and is none: %v", text, err)
		}
		again, err := p.Encode()
		if err != nil {
			t.Fatalf("%q is not encoded: %v", text, err)
		}
		if got, err := internalquota.DecodePlan(again); err != nil || !same(got, p) {
			t.Errorf("%q is %v, and then %v: %v", text, p, got, err)
		}
	})
}
