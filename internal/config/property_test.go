package config_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/snapshot"
)

// small returns names of a small world, so that records meet.
func small(t *rapid.T, label string, prefix string) string {
	return fmt.Sprintf("%s%d", prefix, rapid.IntRange(0, 2).Draw(t, label))
}

func some(t *rapid.T, label, prefix string) []string {
	var out []string
	for i := range 3 {
		if rapid.IntRange(0, 3).Draw(t, label) == 0 {
			out = append(out, fmt.Sprintf("%s%d", prefix, i))
		}
	}
	return out
}

// drawRecord returns a record that is right by itself, and may refer to what is not
// there.
func drawRecord(t *rapid.T) config.Record {
	common := config.Common{Name: small(t, "name", "n")}
	if rapid.IntRange(0, 3).Draw(t, "owned") == 0 {
		common.Organization = small(t, "organization", "o")
	}
	if rapid.IntRange(0, 3).Draw(t, "narrow") == 0 {
		common.Roles = [][]string{{"core"}, {"core", "egress"}, {"egress"}}[rapid.IntRange(0, 2).Draw(t, "roles")]
	}
	optional := func(label, prefix string) string {
		if rapid.Bool().Draw(t, label+" set") {
			return small(t, label, prefix)
		}
		return ""
	}
	switch rapid.SampledFrom(config.Kinds()).Draw(t, "kind") {
	case config.KindDegraded:
		r := &config.Degraded{Common: common}
		if rapid.Bool().Draw(t, "allow set") {
			r.Allow = []string{}
		}
		if rapid.Bool().Draw(t, "max set") {
			d := time.Duration(rapid.IntRange(0, 1e6).Draw(t, "max")) * time.Second
			r.Max = &d
		}
		return r
	case config.KindOrganization:
		return &config.Organization{Common: config.Common{Name: small(t, "name", "o")}, Description: rapid.StringMatching(`[a-z \\"'äß€😀:#-]{0,20}`).Draw(t, "description")}
	case config.KindPeer:
		return &config.Peer{Common: common, Member: "data/x", Addresses: []string{"x.example:1"}, Class: config.PeerWarm}
	case config.KindQoS:
		return &config.QoS{Common: common, Priority: rapid.IntRange(0, config.MaxPriority).Draw(t, "priority"), MaxKbps: uint64(rapid.IntRange(0, config.MaxKbps).Draw(t, "max"))}
	case config.KindResource:
		return &config.Resource{Common: common, Type: "t", Address: "a", Secrets: some(t, "secrets", "n")}
	case config.KindRole:
		return &config.Role{Common: config.Common{Name: "core"}, MaxSessions: rapid.IntRange(0, 9).Draw(t, "sessions")}
	case config.KindRoute:
		r := &config.Route{Common: common, Service: optional("service", "n"), TTL: time.Duration(rapid.IntRange(0, 1e6).Draw(t, "ttl")) * time.Second, Deny: rapid.Bool().Draw(t, "deny")}
		if !r.Deny {
			r.To = some(t, "to", "n")
			slices.Reverse(r.To)
		}
		return r
	case config.KindSecret:
		return &config.Secret{Common: common, Resolver: "vault", Path: rapid.StringMatching(`[!-~]{1,20}`).Filter(func(s string) bool { return !strings.Contains(s, "=") && !strings.Contains(s, ":") }).Draw(t, "path")}
	case config.KindService:
		r := &config.Service{Common: common, Type: "t", QoS: optional("qos", "n"), Resources: some(t, "resources", "n"), Secrets: some(t, "secrets", "n")}
		if rapid.Bool().Draw(t, "parameters set") {
			r.Parameters = []config.Parameter{{"a", rapid.StringMatching(`(?s:[a-z\n\t "\\]{0,20})`).Draw(t, "value")}, {"b", ""}}
		}
		return r
	default:
		r := &config.Storage{Common: common, URL: "https://s.example", Families: []snapshot.Scope{snapshot.ScopeTrustBundle}}
		if replicas := some(t, "replicas", "n"); len(replicas) > 0 {
			r.Shard = &config.Shard{Replicas: replicas, Factor: 1}
		}
		return r
	}
}

// names are what a record refers to, written down a second time.
func names(r config.Record) []config.Key {
	var out []config.Key
	add := func(kind config.Kind, names ...string) {
		for _, n := range names {
			if n != "" {
				out = append(out, config.Key{Kind: kind, Name: n})
			}
		}
	}
	add(config.KindOrganization, r.Base().Organization)
	switch r := r.(type) {
	case *config.Resource:
		add(config.KindSecret, r.Secrets...)
	case *config.Route:
		add(config.KindService, r.Service)
		add(config.KindPeer, r.To...)
		add(config.KindPeer, r.Via...)
	case *config.Service:
		add(config.KindQoS, r.QoS)
		add(config.KindResource, r.Resources...)
		add(config.KindSecret, r.Secrets...)
	case *config.Storage:
		if r.Shard != nil {
			add(config.KindPeer, r.Shard.Replicas...)
		}
	}
	return out
}

// holds is the rule of a set, said a second time: everything that is named is there,
// and is its own organization's or the cluster's, and what goes with it into one
// snapshot is for at least the same roles.
func holds(all map[config.Key]config.Record) bool {
	for _, r := range all {
		for _, k := range names(r) {
			to, ok := all[k]
			if !ok {
				return false
			}
			if org := to.Base().Organization; org != "" && org != r.Base().Organization {
				return false
			}
			if k.Kind != config.KindSecret && k.Kind != config.KindResource || len(to.Base().Roles) == 0 {
				continue
			}
			if len(r.Base().Roles) == 0 {
				return false
			}
			for _, role := range r.Base().Roles {
				if !slices.Contains(to.Base().Roles, role) {
					return false
				}
			}
		}
	}
	return true
}

// A set is a map whose rule holds: With takes exactly the changes after which it
// does, and what it holds is what was put.
func TestSetIsAMapThatHolds(t *testing.T) {
	taken, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		set, model := new(config.Set), map[config.Key]config.Record{}
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				next := maps.Clone(model)
				var put []config.Record
				var gone []config.Key
				touched := map[config.Key]bool{}
				for range rapid.IntRange(0, 4).Draw(t, "puts") {
					r := drawRecord(t)
					if k := config.KeyOf(r); !touched[k] {
						touched[k] = true
						put = append(put, r)
						next[k] = r
					}
				}
				for _, k := range set.Keys() {
					if !touched[k] && rapid.IntRange(0, 4).Draw(t, "delete") == 0 {
						gone = append(gone, k)
						delete(next, k)
					}
				}
				before := set.Digest()
				got, err := set.With(put, gone)
				if set.Digest() != before {
					t.Fatal("the set changed")
				}
				if want := holds(next); (err == nil) != want {
					t.Fatalf("With: %v, and the rule holds: %v", err, want)
				}
				if err != nil {
					refused++
					if !errors.Is(err, config.ErrInvalid) {
						t.Fatalf("%v is no refusal", err)
					}
					return
				}
				taken++
				set, model = got, next
			},
			"": func(t *rapid.T) {
				if set.Len() != len(model) || !slices.IsSortedFunc(set.Keys(), config.Key.Compare) {
					t.Fatalf("%d records, want %d", set.Len(), len(model))
				}
				var all []config.Record
				for k, r := range set.All() {
					if diff := cmp.Diff(model[k], r); diff != "" {
						t.Fatalf("%s:\n%s", k, diff)
					}
					all = append(all, r)
				}
				slices.Reverse(all)
				again, err := config.NewSet(all...)
				if err != nil || again.Digest() != set.Digest() {
					t.Fatalf("the same records in another order: %v", err)
				}
			},
		})
	})
	if taken < 100 || refused < 100 {
		t.Errorf("%d changes were taken and %d refused: this test looks at little", taken, refused)
	}
}

// A record has one canonical form, and nothing else is read as one.
func TestCanonicalForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecord(t)
		raw := config.Encode(r)
		again, err := config.DecodeCanonical(raw)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Fatalf("%s:\n%s", raw, diff)
		}
		i := rapid.IntRange(0, len(raw)-1).Draw(t, "at")
		flipped := bytes.Clone(raw)
		flipped[i] ^= byte(1 << rapid.IntRange(0, 6).Draw(t, "bit"))
		if other, err := config.DecodeCanonical(flipped); err == nil && !bytes.Equal(config.Encode(other), flipped) {
			t.Fatalf("%s is read, and written as %s", flipped, config.Encode(other))
		}
		for _, alter := range []string{string(raw) + " ", " " + string(raw), strings.Replace(string(raw), ":", ": ", 1), string(raw) + string(raw), strings.Replace(string(raw), "{", "{\"priority\":0,", 1)} {
			if _, err := config.DecodeCanonical([]byte(alter)); err == nil {
				t.Fatalf("%s is read", alter)
			}
		}
	})
}

// Everything decoded is canonical from then on, and none of it panics or holds what
// looks like a secret.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(config.Example))
	for _, text := range []string{"", "kind: qos", "[{kind: qos, name: q}]", "kind: qos\nname: q\n---\n...\n---\n{}", "{\"kind\":\"route\",\"name\":\"r\",\"to\":[null]}", secretRecord, serviceBegin + "parameters: {a: |\n  x\n}"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, err := config.Decode(data)
		if err != nil {
			if !errors.Is(err, config.ErrInvalid) {
				t.Fatalf("%v is no refusal", err)
			}
			return
		}
		for _, d := range docs {
			raw := config.Encode(d.Record)
			again, err := config.DecodeCanonical(raw)
			if err != nil {
				t.Fatalf("%s: %v", raw, err)
			}
			if diff := cmp.Diff(d.Record, again); diff != "" {
				t.Fatal(diff)
			}
			if d.Place.Line < 1 {
				t.Fatalf("%s is nowhere", config.KeyOf(d.Record))
			}
		}
	})
}

// A stored record is read by itself too.
func FuzzDecodeCanonical(f *testing.F) {
	docs, err := config.Decode([]byte(config.Example))
	if err != nil {
		f.Fatal(err)
	}
	for _, d := range docs {
		f.Add(config.Encode(d.Record))
	}
	f.Add([]byte(`{"kind":"qos","name":"q","priority":1e3}`))
	f.Add([]byte(strings.Repeat("[", 100)))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := config.DecodeCanonical(data)
		if err == nil && !bytes.Equal(config.Encode(r), data) {
			t.Fatalf("%s is written as %s", data, config.Encode(r))
		}
		if err != nil && !errors.Is(err, config.ErrInvalid) {
			t.Fatalf("%v is no refusal", err)
		}
	})
}

// A set that is read after another one is the set of its records, whatever was there before.
func TestReading(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) (records []config.Record, set *config.Set, err error) {
			seen := make(map[config.Key]bool)
			for range rapid.IntRange(0, 6).Draw(t, label) {
				if r := drawRecord(t); !seen[config.KeyOf(r)] {
					seen[config.KeyOf(r)] = true
					records = append(records, r)
				}
			}
			set, err = config.NewSet(records...)
			return records, set, err
		}
		_, before, _ := draw("before") // nil where they are not valid together
		records, want, invalid := draw("after")
		reading := before.Reading()
		for _, r := range records {
			if err := reading.Add(config.Encode(r)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := reading.Set()
		if (err == nil) != (invalid == nil) || err != nil && err.Error() != invalid.Error() {
			t.Fatalf("%v, want %v", err, invalid)
		}
		if err != nil {
			return
		}
		if got.Digest() != want.Digest() || got.Len() != want.Len() {
			t.Fatalf("%d records with hash %v, want %d with %v", got.Len(), got.Digest(), want.Len(), want.Digest())
		}
		if diff := cmp.Diff(maps.Collect(want.All()), maps.Collect(got.All())); diff != "" {
			t.Fatal(diff)
		}
		// Read once more, nothing is decoded, and it is the same.
		again := got.Reading()
		for _, r := range records {
			if err := again.Add(config.Encode(r)); err != nil {
				t.Fatal(err)
			}
		}
		if same, err := again.Set(); err != nil || same.Digest() != want.Digest() {
			t.Fatalf("%v", err)
		}
	})
}

// A record that is not as it was written, or is there twice, is not read.
func TestReadingRefuses(t *testing.T) {
	r, err := config.DecodeCanonical([]byte(`{"kind":"qos","name":"q"}`))
	if err != nil {
		t.Fatal(err)
	}
	before, err := config.NewSet(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []*config.Set{nil, before} {
		reading := set.Reading()
		for _, bad := range []string{"", "{}", `{"name":"q","kind":"qos"}`, `{"kind":"qos", "name":"q"}`} {
			if err := reading.Add([]byte(bad)); !errors.Is(err, config.ErrInvalid) {
				t.Errorf("%q: %v", bad, err)
			}
		}
		if err := reading.Add(config.Encode(r)); err != nil {
			t.Fatal(err)
		}
		if err := reading.Add(config.Encode(r)); err != nil {
			t.Fatal(err)
		}
		if _, err := reading.Set(); !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), "there twice") {
			t.Errorf("twice: %v", err)
		}
	}
}
