package manifest_test

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAdvise(t *testing.T) {
	base := newDoc(t)
	twoSigners := strings.Replace(strings.Replace(base.signers, "keys: [", "keys: [{name: bob, key: \""+newKey(t).String()+"\"}, ", 1), "threshold: 1", "threshold: 2", 1)
	noKeeper := strings.Replace(base.seed, "    - {name: kms, keeper: \"exec:/usr/local/bin/unwrap-seed\"}\n", "", 1)
	for _, tc := range []struct {
		name string
		edit func(d *doc)
		want []string
	}{
		{"people and a keeper", func(*doc) {}, nil},
		{"no keeper", func(d *doc) { d.seed = strings.Replace(noKeeper, "threshold: 2", "threshold: 1", 1) }, []string{"seed.owners"}},
		{"no keeper, all people", func(d *doc) { d.seed = noKeeper }, []string{"seed.owners", "seed.threshold"}},
		{"all signers", func(d *doc) { d.signers = twoSigners }, []string{"signers.threshold"}},
	} {
		d := base
		tc.edit(&d)
		var got []string
		for _, a := range mustParse(t, d.String()).Advise(time.Now()) {
			if a.What == "" || a.Do == "" {
				t.Errorf("%s: %+v says too little", tc.name, a)
			}
			got = append(got, a.Field)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: advice on %v, want %v", tc.name, got, tc.want)
		}
	}
}

// A root that is out of date is refused where it is used, long after who wrote it went home.
func TestAdviseOnRoots(t *testing.T) {
	d := newDoc(t)
	d.proofs = "proofs:\n  x509:\n    roots_pem: |\n" + indent(newRoot(t, true)+newRoot(t, true), 6)
	m := mustParse(t, d.String())
	for _, tc := range []struct {
		at   time.Time
		want []string
	}{
		{time.Now(), nil},
		{time.Now().AddDate(40, 0, 0), []string{"certificate 1 of 2", "ended at", "none of the roots is in date"}},
		{time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), []string{"certificate 1 of 2", "begins at", "none of the roots is in date"}},
	} {
		got := m.Advise(tc.at)
		if (len(got) == 0) != (tc.want == nil) || len(got) != 0 && len(got) != 2 {
			t.Errorf("at %v: %+v", tc.at, got)
			continue
		}
		for _, want := range tc.want {
			if a := got[0]; a.Field != "proofs.x509.roots_pem" || !a.Warning || a.Do == "" || !strings.Contains(a.What, want) {
				t.Errorf("at %v: %+v, want %q", tc.at, a, want)
			}
		}
	}
}
