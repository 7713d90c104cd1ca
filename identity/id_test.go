package identity_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/identity"
)

func TestNew(t *testing.T) {
	label := strings.Repeat("a", 63)
	long := label + "." + label + "." + label + "." + label // 255 bytes
	for _, tc := range []struct {
		name    string
		cluster string
		kind    identity.Kind
		id      string
		part    string // which part is refused; "" if none
	}{
		{"one segment", "prod.example", identity.Shard, "eu-1", ""},
		{"capitals in a name", "prod.example", identity.Data, "DB_1.a", ""},
		{"workload of several segments", "prod.example", identity.Workload, "eu/db/1", ""},
		{"cluster of one label", "prod", identity.Admin, "alice", ""},
		{"cluster of 255 bytes", long, identity.Admin, "alice", ""},

		{"blank cluster", "", identity.Shard, "eu-1", "cluster"},
		{"cluster of 256 bytes", long[:254] + ".a", identity.Shard, "eu-1", "cluster"},
		{"label of 64 bytes", label + "a", identity.Shard, "eu-1", "cluster"},
		{"capitals in a cluster", "Prod.example", identity.Shard, "eu-1", "cluster"},
		{"blank in a cluster", "prod example", identity.Shard, "eu-1", "cluster"},
		{"cluster with a dot behind", "prod.example.", identity.Shard, "eu-1", "cluster"},
		{"cluster with a dot before", ".example", identity.Shard, "eu-1", "cluster"},
		{"cluster with an empty label", "prod..example", identity.Shard, "eu-1", "cluster"},
		{"cluster with a slash", "prod.example/x", identity.Shard, "eu-1", "cluster"},
		{"cluster with a port", "prod.example:1", identity.Shard, "eu-1", "cluster"},
		{"cluster that is an id", "spiffe://prod.example/shard/a", identity.Shard, "eu-1", "cluster"},
		{"cluster that is an id of one slash", "spiffe:/prod.example", identity.Shard, "eu-1", "cluster"},
		{"cluster beyond ASCII", "pröd.example", identity.Shard, "eu-1", "cluster"},
		{"blank kind", "prod.example", "", "eu-1", "kind"},
		{"unknown kind", "prod.example", "king", "eu-1", "kind"},
		{"kind in capitals", "prod.example", "Shard", "eu-1", "kind"},
		{"kind with a slash", "prod.example", "workload/a", "eu-1", "kind"},
		{"blank name", "prod.example", identity.Shard, "", "name"},
		{"blank name of a workload", "prod.example", identity.Workload, "", "name"},
		{"a space for a name", "prod.example", identity.Shard, " ", "name"},
		{"dot", "prod.example", identity.Shard, ".", "name"},
		{"two dots", "prod.example", identity.Workload, "a/../b", "name"},
		{"two segments", "prod.example", identity.Shard, "eu/1", "name"},
		{"empty segment", "prod.example", identity.Workload, "a//b", "name"},
		{"slash before", "prod.example", identity.Workload, "/a", "name"},
		{"slash behind", "prod.example", identity.Workload, "a/", "name"},
		{"percent sign", "prod.example", identity.Shard, "a%62", "name"},
		{"query", "prod.example", identity.Shard, "a?b", "name"},
		{"fragment", "prod.example", identity.Shard, "a#", "name"},
		{"line break", "prod.example", identity.Shard, "a\n", "name"},
		{"NUL", "prod.example", identity.Shard, "a\x00", "name"},
		{"beyond ASCII", "prod.example", identity.Shard, "ö", "name"},
		{"2049 bytes", "prod.example", identity.Shard, strings.Repeat("a", 2049-len("spiffe://prod.example/shard/")), "id"},
		{"2048 bytes", "prod.example", identity.Shard, strings.Repeat("a", 2048-len("spiffe://prod.example/shard/")), ""},
	} {
		id, err := identity.New(tc.cluster, tc.kind, tc.id)
		if tc.part != "" {
			refusal, ok := errors.AsType[*identity.IDError](err)
			if !ok || refusal.Part != tc.part || !errors.Is(err, identity.ErrInvalidID) || !id.IsZero() {
				t.Errorf("%s: New = %v, %v, want the %s refused", tc.name, id, err, tc.part)
			}
			if len(err.Error()) > 500 {
				t.Errorf("%s: an error of %d bytes", tc.name, len(err.Error()))
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if id.Cluster() != tc.cluster || id.Kind() != tc.kind || id.Name() != tc.id || id.IsZero() {
			t.Errorf("%s: parts are %q, %q, %q", tc.name, id.Cluster(), id.Kind(), id.Name())
		}
		if want := "spiffe://" + tc.cluster + "/" + string(tc.kind) + "/" + tc.id; id.String() != want || id.URL().String() != want {
			t.Errorf("%s: prints as %q and %q, want %q", tc.name, id, id.URL(), want)
		}
		if parsed, err := identity.Parse(id.String()); err != nil || parsed != id {
			t.Errorf("%s: Parse = %v, %v", tc.name, parsed, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, uri := range []string{
		"", " ", "prod.example/shard/a", "spiffe://", "spiffe:///shard/a", "spiffe://prod.example", "spiffe://prod.example/",
		"spiffe://prod.example/shard", "spiffe://prod.example/shard/", "spiffe://prod.example//a", "spiffe://prod.example/shard/a/b",
		"spiffe://prod.example/king/a", "SPIFFE://prod.example/shard/a", "https://prod.example/shard/a", "spiffe:/prod.example/shard/a",
		"spiffe://Prod.example/shard/a", "spiffe://prod.example/shard/a ", " spiffe://prod.example/shard/a", "spiffe://prod.example/shard/a?x=1",
		"spiffe://prod.example/shard/a#b", "spiffe://u@prod.example/shard/a", "spiffe://prod.example:1/shard/a", "spiffe://prod..example/shard/a",
		"spiffe://prod.example./shard/a", "spiffe://prod.example/workload/a//b", "spiffe://prod.example/workload/./b",
		"spiffe://prod.example/workload/" + strings.Repeat("a/", 2000) + "a",
	} {
		if id, err := identity.Parse(uri); !errors.Is(err, identity.ErrInvalidID) || !id.IsZero() {
			t.Errorf("Parse(%q) = %v, %v, want ErrInvalidID", uri, id, err)
		}
	}
}

func TestZeroID(t *testing.T) {
	var id identity.ID
	if !id.IsZero() || id.String() != "" || id.Cluster() != "" || id.Kind() != "" || id.Name() != "" || id.URL() != nil {
		t.Errorf("the zero ID says something: %q", id)
	}
	if id.Kind().Valid() {
		t.Error("the zero ID has a kind")
	}
}

func TestIDText(t *testing.T) {
	id, err := identity.New("prod.example", identity.Shard, "eu-1")
	if err != nil {
		t.Fatal(err)
	}
	type doc struct {
		ID  identity.ID            `json:"id,omitzero"`
		Map map[identity.ID]string `json:"map,omitempty"`
	}
	text, err := json.Marshal(doc{id, map[identity.ID]string{id: "x"}})
	if want := `{"id":"spiffe://prod.example/shard/eu-1","map":{"spiffe://prod.example/shard/eu-1":"x"}}`; err != nil || string(text) != want {
		t.Fatalf("Marshal = %s, %v, want %s", text, err, want)
	}
	var back doc
	if err := json.Unmarshal(text, &back); err != nil || back.ID != id || back.Map[id] != "x" {
		t.Fatalf("Unmarshal = %+v, %v", back, err)
	}
	if text, err := json.Marshal(doc{}); err != nil || string(text) != "{}" {
		t.Fatalf("Marshal of the zero ID = %s, %v", text, err)
	}
	keep := back
	for _, bad := range []string{`{"id":""}`, `{"id":"spiffe://prod.example"}`} {
		if err := json.Unmarshal([]byte(bad), &keep); !errors.Is(err, identity.ErrInvalidID) || keep.ID != id {
			t.Errorf("Unmarshal(%s) = %v, %v, want ErrInvalidID and the value kept", bad, keep.ID, err)
		}
	}
}

func TestKinds(t *testing.T) {
	seen := map[identity.Kind]bool{}
	for _, k := range identity.Kinds() {
		if !k.Valid() || seen[k] {
			t.Errorf("kind %q is invalid or listed twice", k)
		}
		seen[k] = true
	}
	if len(seen) != 9 {
		t.Errorf("%d kinds, want 9", len(seen))
	}
}

// Every id that can be made has one spelling, which reads back as itself, and two ids
// are equal exactly when their parts are.
func TestIDsAreTheirText(t *testing.T) {
	segment := rapid.StringMatching(`[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,12}`)
	draw := rapid.Custom(func(t *rapid.T) identity.ID {
		kind := rapid.SampledFrom(identity.Kinds()).Draw(t, "kind")
		name := segment.Draw(t, "name")
		for kind == identity.Workload && rapid.Bool().Draw(t, "more") {
			name += "/" + segment.Draw(t, "segment")
			if len(name) > 100 {
				break
			}
		}
		cluster := rapid.StringMatching(`[a-z0-9_-]{1,5}(\.[a-z0-9_-]{1,5}){0,3}`).Draw(t, "cluster")
		id, err := identity.New(cluster, kind, name)
		if err != nil {
			t.Fatal(err)
		}
		return id
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		if back, err := identity.Parse(a.String()); err != nil || back != a {
			t.Fatalf("Parse(%q) = %v, %v", a, back, err)
		}
		same := a.Cluster() == b.Cluster() && a.Kind() == b.Kind() && a.Name() == b.Name()
		if (a == b) != same || (a.String() == b.String()) != same || (a.Compare(b) == 0) != same {
			t.Fatalf("%v and %v: equal %v, same text %v, same parts %v", a, b, a == b, a.String() == b.String(), same)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"spiffe://prod.example/shard/eu-1", "spiffe://prod.example/workload/a/b", "spiffe://a/admin/b", "spiffe://a/admin/b#",
		"spiffe://a..b/admin/c", "spiffe://a/admin/%41", "spiffe://a/admin/..", "SPIFFE://a/admin/b", "spiffe://a:1/admin/b", "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		id, err := identity.Parse(uri)
		if err != nil {
			if !errors.Is(err, identity.ErrInvalidID) || !id.IsZero() || len(err.Error()) > 1000 {
				t.Fatalf("Parse(%q) = %v, %v", uri, id, err)
			}
			return
		}
		if id.String() != uri || id.URL().String() != uri {
			t.Fatalf("Parse(%q) prints as %q and %q", uri, id, id.URL())
		}
		again, err := identity.New(id.Cluster(), id.Kind(), id.Name())
		if err != nil || again != id {
			t.Fatalf("New of the parts of %q = %v, %v", uri, again, err)
		}
	})
}
