package config_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fealty-io/fealty/internal/config"
)

// records decodes text, which has to be good.
func records(t *testing.T, text string) []config.Record {
	t.Helper()
	docs, err := config.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var out []config.Record
	for _, d := range docs {
		out = append(out, d.Record)
	}
	return out
}

// The example has every kind and fits together, and what is written of it is read
// as what it was.
func TestExample(t *testing.T) {
	all := records(t, config.Example)
	var kinds []config.Kind
	for _, r := range all {
		kinds = append(kinds, r.Kind())
		canonical := config.Encode(r)
		again, err := config.DecodeCanonical(canonical)
		if err != nil {
			t.Errorf("%s: %v", config.KeyOf(r), err)
			continue
		}
		if diff := cmp.Diff(r, again, cmp.AllowUnexported()); diff != "" {
			t.Errorf("%s changed on its way:\n%s", config.KeyOf(r), diff)
		}
		if !bytes.Equal(canonical, config.Encode(again)) {
			t.Errorf("%s has two canonical forms", config.KeyOf(r))
		}
	}
	slices.Sort(kinds)
	if diff := cmp.Diff(config.Kinds(), kinds); diff != "" {
		t.Errorf("kinds of the example:\n%s", diff)
	}
	set, err := config.NewSet(all...)
	if err != nil {
		t.Fatal(err)
	}
	if set.Len() != len(all) {
		t.Errorf("%d records of %d", set.Len(), len(all))
	}
}

// A reference to a record keeps it from being deleted.
func TestDeleteInUse(t *testing.T) {
	set, err := config.NewSet(records(t, config.Example)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range set.Keys() {
		if _, err := set.With(nil, []config.Key{k}); (err != nil) != slices.Contains([]string{"organization/acme", "secret/db-password", "resource/orders-db", "qos/gold", "peer/db-1", "service/web"}, k.String()) {
			t.Errorf("delete of %s: %v", k, err)
		}
	}
	if empty, err := set.With(nil, set.Keys()); err != nil || empty.Len() != 0 || empty.Digest() != new(config.Set).Digest() {
		t.Errorf("delete of all: %v", err)
	}
}
