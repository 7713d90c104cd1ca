package replica_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/replica"
)

// Every situation of a keeper: a key is made only where no copy counts, and nothing is
// sealed over a copy that another key may open.
func TestKeeperActs(t *testing.T) {
	t.Parallel()
	const missing, broken, usable = replica.KeyMissing, replica.KeyBroken, replica.KeyUsable
	for _, tc := range []struct {
		name string
		k    replica.Keeper
		want replica.KeeperAct
	}{
		{"first set", replica.Keeper{NewSeed: true}, replica.MakeKey},
		{"first set with a key that is there", replica.Keeper{NewSeed: true, Key: usable}, replica.SealOwn},
		{"first set with a key that cannot be used", replica.Keeper{NewSeed: true, Key: broken}, replica.RefuseMove},
		{"named for the first time", replica.Keeper{}, replica.MakeKey},
		{"named for the first time, and broken", replica.Keeper{Key: broken}, replica.RefuseMove},
		{"all is well", replica.Keeper{Copies: true, Key: usable, Opens: true, Own: true}, replica.KeepCopies},
		{"a machine without the file", replica.Keeper{Copies: true}, replica.KeepForeign},
		{"a machine whose file is damaged", replica.Keeper{Copies: true, Key: broken}, replica.KeepForeign},
		{"a machine with a file of its own", replica.Keeper{Copies: true, Key: usable, Proven: true}, replica.SealOwn},
		{"its copy was damaged", replica.Keeper{Copies: true, Key: usable, Own: true, Proven: true}, replica.SealOwn},
		{"another machine's copy under one fixed id", replica.Keeper{Copies: true, Key: usable, Own: true}, replica.KeepForeign},
		{"an id that is new", replica.Keeper{Copies: true, Key: usable, Opens: true}, replica.SealOwn},
		{"all copies were lost", replica.Keeper{Key: usable, Proven: true}, replica.SealOwn},
		{"a new seed", replica.Keeper{NewSeed: true, Copies: true, Key: usable, Opens: true, Own: true}, replica.SealOwn},
		{"a new seed without the file", replica.Keeper{NewSeed: true, Copies: true}, replica.RefuseMove},
		{"a new seed with a file of its own", replica.Keeper{NewSeed: true, Copies: true, Key: usable, Proven: true}, replica.RefuseMove},
		{"a new seed with a damaged file", replica.Keeper{NewSeed: true, Copies: true, Key: broken}, replica.RefuseMove},
	} {
		if got := tc.k.Act(); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	for _, k := range everyKeeper() {
		switch act := k.Act(); {
		case act == replica.MakeKey && (k.Copies || k.Key != replica.KeyMissing):
			t.Errorf("%+v: a key is made beside another one", k)
		case act == replica.SealOwn && k.Key != replica.KeyUsable:
			t.Errorf("%+v: sealed without a key", k)
		case act == replica.SealOwn && k.Own && !k.Opens && !k.Proven && !k.NewSeed:
			t.Errorf("%+v: a copy that another key may open is sealed over", k)
		case k.NewSeed && (act == replica.KeepCopies || act == replica.KeepForeign):
			t.Errorf("%+v: a new seed comes into force without a copy", k)
		case k.Copies && !k.NewSeed && act == replica.RefuseMove:
			t.Errorf("%+v: a key that is elsewhere stops a set", k)
		}
	}
}

// everyKeeper returns all situations that can be.
func everyKeeper() (all []replica.Keeper) {
	for n := range 1 << 7 {
		bit := func(i int) bool { return n>>i&1 == 1 }
		k := replica.Keeper{NewSeed: bit(0), Copies: bit(1), Opens: bit(2), Own: bit(3), Proven: bit(4), Key: replica.KeyHere(n >> 5)}
		if k.Key > replica.KeyUsable || k.Key != replica.KeyUsable && (k.Opens || k.Own || k.Proven) || !k.Copies && (k.Opens || k.Own) {
			continue
		}
		all = append(all, k)
	}
	return all
}
