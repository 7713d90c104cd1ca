package quarantine_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/quarantine"
)

func TestDrops(t *testing.T) {
	for _, tt := range []struct {
		had, kept int
		want      bool
	}{
		{0, 0, false},
		{9, 0, false}, // too little stands to tell
		{10, 0, true},
		{10, 1, false}, // exactly a tenth
		{19, 1, true},  // 1.9 are a tenth
		{20, 2, false},
		{99, 9, true},
		{100, 10, false},
		{101, 10, true},
		{1000, 99, true},
		{1000, 100, false},
		{1000, 2000, false},
		{math.MaxInt, math.MaxInt / 11, true},
		{math.MaxInt, math.MaxInt, false},
	} {
		if got := quarantine.Drops(tt.had, tt.kept); got != tt.want {
			t.Errorf("Drops(%d, %d) = %v", tt.had, tt.kept, got)
		}
	}
}

// The rule without a remainder is the rule in whole numbers.
func TestDropsIsBelowATenth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		had, kept := rapid.IntRange(0, 1_000_000).Draw(t, "had"), rapid.IntRange(0, 200_000).Draw(t, "kept")
		if want := had >= 10 && kept*10 < had; quarantine.Drops(had, kept) != want {
			t.Fatalf("Drops(%d, %d) = %v", had, kept, !want)
		}
	})
}

func TestThreeInARow(t *testing.T) {
	for _, tt := range []struct {
		name  string
		drops string // x: keeps too little; .: does not
		want  string // b: believed; h: held
	}{
		{"what keeps enough", "...", "bbb"},
		{"the third is believed", "xxx", "hhb"},
		{"one that keeps enough begins anew", "xx.xx.xxx", "hhbhhbhhb"},
		{"after it was believed it begins anew", "xxxx", "hhbh"},
	} {
		var g quarantine.Guard
		got := ""
		for _, c := range tt.drops {
			if g.Judge(c == 'x') {
				got += "b"
			} else {
				got += "h"
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s gives %s, want %s", tt.name, tt.drops, got, tt.want)
		}
	}
}
