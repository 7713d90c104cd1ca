package manifest_test

import (
	"slices"
	"strings"
	"testing"
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
		for _, a := range mustParse(t, d.String()).Advise() {
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
