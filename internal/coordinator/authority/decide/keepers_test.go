package decide_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
)

// Every situation of a keeper: a key is made only where no copy counts, and nothing is
// sealed over a copy that another key may open.
func TestKeeperActs(t *testing.T) {
	t.Parallel()
	const missing, broken, usable = decide.KeyMissing, decide.KeyBroken, decide.KeyUsable
	for _, tc := range []struct {
		name string
		k    decide.Keeper
		want decide.KeeperAct
	}{
		{"first set", decide.Keeper{NewSeed: true}, decide.MakeKey},
		{"first set with a key that is there", decide.Keeper{NewSeed: true, Key: usable}, decide.SealOwn},
		{"first set with a key that cannot be used", decide.Keeper{NewSeed: true, Key: broken}, decide.RefuseMove},
		{"named for the first time", decide.Keeper{}, decide.MakeKey},
		{"named for the first time, and broken", decide.Keeper{Key: broken}, decide.RefuseMove},
		{"all is well", decide.Keeper{Copies: true, Key: usable, Opens: true, Own: true}, decide.KeepCopies},
		{"a machine without the file", decide.Keeper{Copies: true}, decide.KeepForeign},
		{"a machine whose file is damaged", decide.Keeper{Copies: true, Key: broken}, decide.KeepForeign},
		{"a machine with a file of its own", decide.Keeper{Copies: true, Key: usable, Proven: true}, decide.SealOwn},
		{"its copy was damaged", decide.Keeper{Copies: true, Key: usable, Own: true, Proven: true}, decide.SealOwn},
		{"another machine's copy under one fixed id", decide.Keeper{Copies: true, Key: usable, Own: true}, decide.KeepForeign},
		{"an id that is new", decide.Keeper{Copies: true, Key: usable, Opens: true}, decide.SealOwn},
		{"all copies were lost", decide.Keeper{Key: usable, Proven: true}, decide.SealOwn},
		{"a new seed", decide.Keeper{NewSeed: true, Copies: true, Key: usable, Opens: true, Own: true}, decide.SealOwn},
		{"a new seed without the file", decide.Keeper{NewSeed: true, Copies: true}, decide.RefuseMove},
		{"a new seed with a file of its own", decide.Keeper{NewSeed: true, Copies: true, Key: usable, Proven: true}, decide.RefuseMove},
		{"a new seed with a damaged file", decide.Keeper{NewSeed: true, Copies: true, Key: broken}, decide.RefuseMove},
	} {
		if got := tc.k.Act(); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	for _, k := range everyKeeper() {
		switch act := k.Act(); {
		case act == decide.MakeKey && (k.Copies || k.Key != decide.KeyMissing):
			t.Errorf("%+v: a key is made beside another one", k)
		case act == decide.SealOwn && k.Key != decide.KeyUsable:
			t.Errorf("%+v: sealed without a key", k)
		case act == decide.SealOwn && k.Own && !k.Opens && !k.Proven && !k.NewSeed:
			t.Errorf("%+v: a copy that another key may open is sealed over", k)
		case k.NewSeed && (act == decide.KeepCopies || act == decide.KeepForeign):
			t.Errorf("%+v: a new seed comes into force without a copy", k)
		case k.Copies && !k.NewSeed && act == decide.RefuseMove:
			t.Errorf("%+v: a key that is elsewhere stops a set", k)
		}
	}
}

// everyKeeper returns all situations that can be.
func everyKeeper() (all []decide.Keeper) {
	for n := range 1 << 7 {
		bit := func(i int) bool { return n>>i&1 == 1 }
		k := decide.Keeper{NewSeed: bit(0), Copies: bit(1), Opens: bit(2), Own: bit(3), Proven: bit(4), Key: decide.KeyHere(n >> 5)}
		if k.Key > decide.KeyUsable || k.Key != decide.KeyUsable && (k.Opens || k.Own || k.Proven) || !k.Copies && (k.Opens || k.Own) {
			continue
		}
		all = append(all, k)
	}
	return all
}
