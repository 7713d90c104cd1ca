package recovery

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
)

// coordinators returns a manifest that admits n coordinators by their keys, and one
// data member by a key.
func coordinators(t testing.TB, n int) (*manifest.Manifest, []ed25519.PrivateKey, ed25519.PrivateKey) {
	t.Helper()
	newKey := func() (ed25519.PrivateKey, string) {
		public, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key, proof.KeyClaim(public)
	}
	var b strings.Builder
	_, signer := newKey()
	fmt.Fprintf(&b, "cluster: %s\nseed: {threshold: 1, owners: [{name: host, keeper: \"file:/k\"}]}\nsigners: {threshold: 1, keys: [{name: alice, key: %q}]}\nadmit:\n", testCluster, signer)
	var keys []ed25519.PrivateKey
	for i := range n {
		key, claim := newKey()
		keys = append(keys, key)
		fmt.Fprintf(&b, "  - {name: c%d, kind: coordinator, match: [\"key:%s\"]}\n", i, claim)
	}
	data, claim := newKey()
	fmt.Fprintf(&b, "  - {name: node, kind: data, match: [\"key:%s\"]}\n", claim)
	m, err := manifest.Parse([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return m, keys, data
}

func claimOf(key ed25519.PrivateKey) string { return proof.KeyClaim(key.Public().(ed25519.PublicKey)) }

// Each rule has a case that it alone refuses.
func TestReadOpen(t *testing.T) {
	m, keys, data := coordinators(t, 2)
	want := Claimed{Head: &Head{Hash: history.Hash{1}, Cluster: testCluster}, Manifest: m}
	now := time.Unix(1_800_000_000, 0)
	good := Open{Attempt: ID{1}, Cluster: testCluster, Head: want.Head.Hash, Recipient: "age1test", Ends: now.Add(Life), Key: claimOf(keys[0])}
	signed := func(change func(*Open), by ed25519.PrivateKey) []byte {
		o := good
		if change != nil {
			change(&o)
		}
		raw, err := o.Sign(by, nil)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	got, err := ReadOpen(signed(nil, keys[0]), want, good.Key, now)
	if err != nil || *got != good {
		t.Fatalf("the genuine one: %+v, %v", got, err)
	}
	replaced := func(old, new string) []byte {
		return []byte(strings.Replace(string(signed(nil, keys[0])), old, new, 1))
	}
	met := make(map[string]bool)
	for _, tc := range []struct {
		rule, name string
		raw        []byte
		key        string
	}{
		{"encoding", "nothing", nil, good.Key},
		{"encoding", "no JSON", []byte("garbage"), good.Key},
		{"encoding", "too large", append(signed(nil, keys[0]), make([]byte, MaxOpenBytes)...), good.Key},
		{"encoding", "a field more", replaced(`{"attempt"`, `{"x":1,"attempt"`), good.Key},
		{"encoding", "more after it", append(signed(nil, keys[0]), '{'), good.Key},
		{"encoding", "a short attempt", replaced(good.Attempt.String(), good.Attempt.String()[2:]), good.Key},
		{"encoding", "a head that is no hash", replaced(good.Head.String(), "x"+good.Head.String()[1:]), good.Key},
		{"place", "of another coordinator", signed(nil, keys[1]), good.Key},
		{"cluster", "of another cluster", signed(func(o *Open) { o.Cluster = "other.example" }, keys[0]), good.Key},
		{"head", "for another head", signed(func(o *Open) { o.Head[0]++ }, keys[0]), good.Key},
		{"ends", "over", signed(func(o *Open) { o.Ends = now }, keys[0]), good.Key},
		{"ends", "for too long", signed(func(o *Open) { o.Ends = now.Add(maxAhead + time.Second) }, keys[0]), good.Key},
		{"signature", "another attempt", replaced(good.Attempt.String(), ID{2}.String()), good.Key},
		{"signature", "another recipient", replaced("age1test", "age1evil"), good.Key},
		{"signature", "a longer life", replaced(fmt.Sprint(good.Ends.Unix()), fmt.Sprint(good.Ends.Unix()+1)), good.Key},
		{"signature", "no recipient", replaced("age1test", ""), good.Key},
		{"signature", "by another key", replaced(good.Key, claimOf(keys[1])), claimOf(keys[1])},
		{"signature", "no key", replaced(good.Key, ""), ""},
		{"admitted", "of a data member", signed(nil, data), claimOf(data)},
	} {
		got, err := ReadOpen(tc.raw, want, tc.key, now)
		var refused *OpenError
		if !errors.As(err, &refused) || !errors.Is(err, ErrNotOpen) || refused.Rule != tc.rule || got != nil {
			t.Errorf("%s: %+v, %v; want rule %s", tc.name, got, err, tc.rule)
		}
		met[tc.rule] = true
	}
	for _, rule := range openRules {
		if !met[rule.Name] || rule.Why == "" {
			t.Errorf("no case is refused by rule %s, or it says nothing of why", rule.Name)
		}
	}
}

// The manifest says whose attempts are looked at, and nothing else.
func TestCoordinators(t *testing.T) {
	m, keys, _ := coordinators(t, 3)
	var want []string
	for _, k := range keys {
		want = append(want, claimOf(k))
	}
	if got := Coordinators(m); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// For anything that a store shows, nothing is believed that the coordinator did not
// sign.
func FuzzReadOpen(f *testing.F) {
	m, keys, _ := coordinators(f, 1)
	now := time.Unix(1_800_000_000, 0)
	want := Claimed{Head: &Head{Hash: history.Hash{1}, Cluster: testCluster}, Manifest: m}
	good := Open{Attempt: ID{1}, Cluster: testCluster, Head: want.Head.Hash, Recipient: "age1test", Ends: now.Add(Life), Key: claimOf(keys[0])}
	raw, err := good.Sign(keys[0], nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := ReadOpen(raw, want, good.Key, now)
		switch {
		case err != nil && !errors.Is(err, ErrNotOpen):
			t.Fatalf("error of type %T", err)
		case err == nil && *got != good:
			t.Fatalf("believed %+v", got)
		}
	})
}
