package identity_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/identity"
)

// sameAsSlow compares the three readers of ids: Parse, which is fast, the one that says
// what an id is, and go-spiffe, which the second rests on.
func sameAsSlow(t interface{ Fatalf(string, ...any) }, uri string) (accepted bool) {
	got, err := identity.Parse(uri)
	want, wantErr := identity.ParseSlowly(uri)
	switch {
	case got != want, (err == nil) != (wantErr == nil), err != nil && err.Error() != wantErr.Error():
		t.Fatalf("Parse(%q) = %v, %v, want %v, %v", uri, got, err, want, wantErr)
	}
	// A name that the fast path leaves to the slow one costs time, and is no error. It leaves
	// nothing.
	if fast, ok := identity.Scan(uri); ok != (wantErr == nil) || fast != want {
		t.Fatalf("scan(%q) = %v, %v, want %v, %v", uri, fast, ok, want, wantErr)
	}
	if err != nil {
		return false
	}
	id, err := spiffeid.FromString(uri)
	if err != nil || id.String() != got.String() || id.TrustDomain().Name() != got.Cluster() || id.Path() != "/"+string(got.Kind())+"/"+got.Name() {
		t.Fatalf("Parse(%q) = %q, %q, %q, and go-spiffe has %v, %v", uri, got.Cluster(), got.Kind(), got.Name(), id, err)
	}
	return true
}

// parseSeeds hold every length at a limit, each way.
func parseSeeds() []string {
	a := func(n int) string { return strings.Repeat("a", n) }
	label := a(63) + "."
	cluster := label + label + label
	seeds := []string{
		"", "spiffe://", "spiffe:///", "spiffe://prod.example/shard/eu-1", "spiffe://prod.example/workload/a/b", "spiffe://a/admin/b",
		"spiffe://a/admin/b#", "spiffe://a..b/admin/c", "spiffe://.a/admin/c", "spiffe://a./admin/c", "spiffe://A/admin/c", "spiffe://a/admin/%41",
		"spiffe://a/admin/.", "spiffe://a/admin/..", "spiffe://a/admin/...", "spiffe://a/admin/.a", "spiffe://a/workload/./b", "spiffe://a/workload/b/..",
		"spiffe://a/workload/b//c", "spiffe://a/workload/b/", "spiffe://a/workload//b", "spiffe://a/workload/", "spiffe://a/workload", "spiffe://a/",
		"spiffe://a", "SPIFFE://a/admin/b", "spiffe://a:1/admin/b", "spiffe://a~/admin/b", "spiffe://a/admin/b~", "spiffe://a/Admin/b", "spiffe://a/readonly/b/c",
		"spiffe://" + cluster + a(62) + "/admin/b", "spiffe://" + cluster + a(63) + "/admin/b", "spiffe://" + cluster + a(64) + "/admin/b",
		"spiffe://" + cluster + a(61) + ".b/admin/b", "spiffe://" + cluster + a(60) + ".bb/admin/b", "spiffe://" + cluster + a(61) + ".bb/admin/b",
		"spiffe://" + a(64) + ".b/admin/c", "spiffe://b." + a(64) + "/admin/c", "spiffe://" + a(255) + "/admin/c",
	}
	for _, n := range []int{2047, 2048, 2049, 65536 + 40} {
		const head = "spiffe://a/workload/"
		seeds = append(seeds, head+a(n-len(head)), head+"b/"+a(n-len(head)-2))
	}
	return seeds
}

// Every byte at every place of an id is taken or refused as go-spiffe does.
func TestParseAgreesOnEveryByte(t *testing.T) {
	for _, uri := range parseSeeds() {
		sameAsSlow(t, uri)
	}
	for _, uri := range []string{"spiffe://a.b/admin/c.d", "spiffe://a/workload/b/c", "spiffe://prod.example/shard/eu-1"} {
		for i := range len(uri) + 1 {
			sameAsSlow(t, uri[:i])
			for c := range 256 {
				sameAsSlow(t, uri[:i]+string([]byte{byte(c)})+uri[i:])
				if i < len(uri) {
					sameAsSlow(t, uri[:i]+string([]byte{byte(c)})+uri[i+1:])
				}
			}
		}
	}
}

// generatedURIs is how many near misses TestParseAgreesOnGenerated makes.
const generatedURIs = 100_000

// Ids made of parts that are right or nearly right, so that both verdicts are common.
func TestParseAgreesOnGenerated(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(parts ...string) string { return parts[random.IntN(len(parts))] }
	accepted := 0
	var uri strings.Builder
	for range generatedURIs {
		uri.Reset()
		uri.WriteString("spiffe://")
		for range 1 + random.IntN(4) {
			uri.WriteString(pick("a", "prod", "x-1_", "9", ".", "a.b", "."+strings.Repeat("b", 62+random.IntN(3)), strings.Repeat("c", random.IntN(70))))
			if random.IntN(200) == 0 {
				uri.WriteString(pick("A", "~", ":", "%", "é", "\x00", "\xff", "@"))
			}
		}
		uri.WriteString("/" + string(identity.Kinds()[random.IntN(9)]))
		for range 1 + random.IntN(3) {
			uri.WriteString("/" + pick("a", "Z-_.9", "eu-1", "a", "b", ".", "..", "...", "", strings.Repeat("d", random.IntN(1200))))
		}
		if random.IntN(100) == 0 {
			uri.WriteString(pick("/", "#", "?", " ", "\n", "%2f"))
		}
		if sameAsSlow(t, uri.String()) {
			accepted++
		}
	}
	if accepted < generatedURIs/10 || accepted > generatedURIs*9/10 {
		t.Errorf("%d of %d accepted: the generator is too narrow", accepted, generatedURIs)
	}
}

func TestParseAgreesOnAnyText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sameAsSlow(t, rapid.OneOf(
			rapid.String(),
			rapid.StringMatching(`spiffe://[a-z0-9._-]{1,8}/(shard|workload|admin|king)/[a-zA-Z0-9._/-]{0,12}`),
			rapid.StringMatching(`(spiffe|SPIFFE|https):/{1,3}[a-zA-Z.:@]{0,4}/(workload|data)?/?.{0,4}`),
		).Draw(t, "uri"))
	})
}

func FuzzParseAgrees(f *testing.F) {
	for _, seed := range parseSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, uri string) { sameAsSlow(t, uri) })
}

// A trust bundle may hold [identity.MaxBans] of ids.
func TestParseDoesNotAllocate(t *testing.T) {
	uri := "spiffe://prod.example/workload/eu/db-1"
	if n := testing.AllocsPerRun(100, func() {
		if _, err := identity.Parse(uri); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
