package health_test

import (
	"fmt"
	"maps"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/store/health"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func digest(n byte) health.Digest { return health.Digest{n} }

// A store lost what was seen of it and is not there, and nothing else.
func TestLost(t *testing.T) {
	trust := func(edit func(*health.Trust)) *health.Trust {
		out := &health.Trust{Counter: 7, Version: 139, Digest: digest(7), UnbansFrom: 100,
			Bans: map[string]uint64{"data/a": 5}, Keys: map[string]time.Time{"k": noon.Add(10 * time.Hour)}}
		if edit != nil {
			edit(out)
		}
		return out
	}
	next := func(edit func(*health.Trust)) health.Seen {
		return health.Seen{Revision: 150, Trust: trust(func(x *health.Trust) {
			x.Counter, x.Version, x.Digest = 8, 145, digest(8)
			edit(x)
		})}
	}
	was := health.Seen{Revision: 140, Trust: trust(nil)}
	for name, c := range map[string]struct {
		was, now health.Seen
		want     health.Kind
	}{
		"nothing was seen":                   {health.Seen{}, was, ""},
		"the same":                           {was, was, ""},
		"more":                               {was, next(func(*health.Trust) {}), ""},
		"commits":                            {was, health.Seen{Revision: 139, Trust: trust(nil)}, health.Revision},
		"all commits":                        {was, health.Seen{}, health.Revision},
		"a trust state":                      {was, health.Seen{Revision: 150, Trust: trust(func(x *health.Trust) { x.Counter, x.Version = 6, 149 })}, health.Counter},
		"a trust state for another one":      {was, health.Seen{Revision: 150, Trust: trust(func(x *health.Trust) { x.Digest, x.Version = digest(9), 149 })}, health.Counter},
		"written anew, as a reseed does":     {was, health.Seen{Revision: 150, Trust: trust(func(x *health.Trust) { x.Version = 149 })}, ""},
		"overtaken on what was before":       {was, next(func(x *health.Trust) { x.Version = 139 }), health.Counter},
		"a ban":                              {was, next(func(x *health.Trust) { x.Bans = nil }), health.Ban},
		"a ban that was lifted":              {was, next(func(x *health.Trust) { x.Bans, x.Unbans = nil, map[string]uint64{"data/a": 5} }), ""},
		"a ban, and an older one was lifted": {was, next(func(x *health.Trust) { x.Bans, x.Unbans = nil, map[string]uint64{"data/a": 4} }), health.Ban},
		"a ban, by a release without unbans": {was, next(func(x *health.Trust) { x.Bans, x.UnbansFrom = nil, 0 }), ""},
		"a ban of before unbans were kept":   {was, next(func(x *health.Trust) { x.Bans, x.UnbansFrom = nil, 140 }), ""},
		"a banned key":                       {was, next(func(x *health.Trust) { x.Keys = nil }), health.Ban},
		"a key whose time is over":           {health.Seen{Trust: trust(func(x *health.Trust) { x.Keys["k"] = noon })}, next(func(x *health.Trust) { x.Keys = nil }), ""},
		"no trust state to compare with":     {health.Seen{Revision: 1}, was, ""},
	} {
		loss := c.was.Lost(c.now, noon)
		if got := kindOf(loss); got != c.want {
			t.Errorf("%s: %q (%v), want %q", name, got, loss, c.want)
		}
	}
}

func kindOf(l *health.Loss) health.Kind {
	if l == nil {
		return ""
	}
	return l.Kind
}

// A statement that the cluster signed is evidence against the store, whoever shows it.
func TestProof(t *testing.T) {
	now := &health.Trust{Counter: 6, Version: 131, UnbansFrom: 100, Bans: map[string]uint64{"data/a": 1}, Unbans: map[string]uint64{"data/b": 2}}
	old := &health.Trust{Counter: 6, Version: 131}
	for name, c := range map[string]struct {
		proof health.Proof
		now   *health.Trust
		want  health.Kind
	}{
		"of before":                        {health.Proof{Version: 130, Bans: []string{"data/a", "data/b"}}, now, ""},
		"the same":                         {health.Proof{Version: 131, Bans: []string{"data/a"}}, now, ""},
		"newer":                            {health.Proof{Version: 132}, now, health.Signed},
		"a ban that nobody lifted":         {health.Proof{Version: 130, Bans: []string{"data/c"}}, now, health.Ban},
		"a ban of before unbans were kept": {health.Proof{Version: 99, Bans: []string{"data/c"}}, now, ""},
		"a ban, in a store of earlier":     {health.Proof{Version: 130, Bans: []string{"data/c"}}, old, ""},
	} {
		if got := kindOf(c.proof.Lost(c.now, noon)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A claim is told when it cannot be, and is no loss: there is no way from a claim to
// one.
func TestClaim(t *testing.T) {
	for _, c := range []struct {
		epoch, value uint64
		want         bool
	}{{3, 100, false}, {3, 101, true}, {2, 1<<53 - 1, false}, {4, 1, true}, {3, 1<<53 - 1, true}} {
		if got := (health.Claim{Epoch: c.epoch, Value: c.value}).Above(3, 100); got != c.want {
			t.Errorf("version %d of epoch %d: %v, want %v", c.value, c.epoch, got, c.want)
		}
	}
}

// world is a store as the coordinators of one release write it.
type world struct {
	revision uint64
	trust    health.Trust
}

func (w *world) seen() health.Seen {
	trust := w.trust
	trust.Bans, trust.Unbans, trust.Keys = maps.Clone(trust.Bans), maps.Clone(trust.Unbans), maps.Clone(trust.Keys)
	return health.Seen{Revision: w.revision, Trust: &trust}
}

func (w *world) step(t *rapid.T, now time.Time) {
	w.revision++
	who := fmt.Sprintf("data/%d", rapid.IntRange(0, 3).Draw(t, "who"))
	commit := func() {
		w.trust.Counter, w.trust.Version = w.trust.Counter+1, w.revision
		w.trust.Digest = health.Digest([]byte(fmt.Sprintf("%032d", w.revision)))
	}
	switch rapid.SampledFrom([]string{"other", "ban", "unban", "key", "prune"}).Draw(t, "what") {
	case "ban":
		commit()
		w.trust.Bans[who] = w.trust.Counter
	case "unban":
		if counter, ok := w.trust.Bans[who]; ok {
			commit()
			delete(w.trust.Bans, who)
			w.trust.Unbans[who] = counter
		}
	case "key":
		commit()
		// A key that is banned again is kept for no shorter than before.
		if until := now.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "hours")) * time.Hour); until.After(w.trust.Keys[who]) {
			w.trust.Keys[who] = until
		}
	case "prune":
		commit()
		for key, until := range w.trust.Keys {
			if now.After(until) {
				delete(w.trust.Keys, key)
			}
		}
	}
}

func newWorld() *world {
	return &world{revision: 1, trust: health.Trust{Counter: 1, Version: 1, UnbansFrom: 1, Bans: map[string]uint64{}, Unbans: map[string]uint64{}, Keys: map[string]time.Time{}}}
}

// A store that only goes on is never taken for one that went back, whoever looks how
// seldom; and one that goes back to before what was acknowledged always is: at once, or,
// if somebody who did not know wrote on, as soon as a trust state or a ban is missing.
func TestGoesOnOrBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, now := newWorld(), noon
		var kept health.Seen
		look := func() *health.Loss {
			is := w.seen()
			loss := kept.Lost(is, now)
			kept = kept.After(is)
			return loss
		}
		for range rapid.IntRange(0, 30).Draw(t, "before") {
			w.step(t, now)
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "minutes")) * time.Minute)
			if rapid.Bool().Draw(t, "look") {
				if loss := look(); loss != nil {
					t.Fatalf("a store that went on: it %v", loss)
				}
			}
		}
		copied := w.seen()
		for range rapid.IntRange(1, 10).Draw(t, "after") {
			w.step(t, now)
		}
		if loss := look(); loss != nil {
			t.Fatalf("a store that went on: it %v", loss)
		}
		acked := w.seen()
		w = &world{copied.Revision, *copied.Trust}
		for range rapid.IntRange(0, 10).Draw(t, "unaware") {
			w.step(t, now)
			// By somebody else: not the bytes that were there.
			w.trust.Digest[0] ^= 0x80
		}
		is := w.seen()
		missing := is.Revision < acked.Revision || is.Trust.Counter < acked.Trust.Counter
		for who, counter := range acked.Trust.Bans {
			_, banned := is.Trust.Bans[who]
			missing = missing || !banned && is.Trust.Counter > acked.Trust.Counter && is.Trust.Unbans[who] < counter
		}
		if loss := kept.Lost(is, now); missing && loss == nil {
			t.Fatalf("%+v was acknowledged and %+v is there, and nothing is missed", acked.Trust, is.Trust)
		}
	})
}

// Of two reads at once the later one may be told first: that is no loss.
func TestReadsCross(t *testing.T) {
	var k health.Keeper
	w := newWorld()
	early, begun := w.seen(), k.Begin()
	w.revision, w.trust.Counter, w.trust.Version, w.trust.Digest = 2, 2, 2, digest(2)
	if loss := k.Read(k.Begin(), w.seen(), noon); loss != nil {
		t.Fatal(loss)
	}
	k.AtRevision(0, 2, noon)
	if loss := k.Read(begun, early, noon); loss != nil || k.AtRevision(0, 1, noon) != nil {
		t.Errorf("a read of before: %v", loss)
	}
	if loss := k.Read(k.Begin(), early, noon); kindOf(loss) != health.Revision {
		t.Errorf("a read of after: %v", loss)
	}
}

// A trust state is read before a coordinator is ready, when it notes no other revisions. A
// store that goes back after that is noticed, although its trust state is the same.
func TestReadNotesItsRevision(t *testing.T) {
	var k health.Keeper
	w := newWorld()
	w.revision, w.trust.Counter = 9, 1
	if loss := k.Read(k.Begin(), w.seen(), noon); loss != nil || k.Revision() != 9 {
		t.Fatalf("revision %d was noted, and %v", k.Revision(), loss)
	}
	w.revision = 8
	if loss := k.Read(k.Begin(), w.seen(), noon); kindOf(loss) != health.Revision || k.Revision() != 9 {
		t.Errorf("it went back, and %v: revision %d is noted", loss, k.Revision())
	}
	// Without a trust state nothing says whose store it is.
	var other health.Keeper
	if other.Read(other.Begin(), health.Seen{Revision: 9}, noon); other.Revision() != 0 {
		t.Errorf("revision %d of a store that nobody knows was noted", other.Revision())
	}
}

// A loss stays one over restarts, whatever the store shows then, until a restore; and a
// note in two files is read as one, or as the newer half.
func TestKept(t *testing.T) {
	var k health.Keeper
	w := newWorld()
	w.revision = 9
	w.trust.Bans["data/a"] = 1
	k.Read(k.Begin(), w.seen(), noon)
	k.AtRevision(0, 9, noon)
	k.SawBundle([]byte("bundle"))
	changed := k.Changed()
	k.Lose(k.AtRevision(9, 8, noon))
	k.Lose(&health.Loss{Kind: health.Ban})
	if k.Lost() == nil || k.Lost().Kind != health.Revision {
		t.Fatal("a revision that is gone is not missed")
	}
	select {
	case <-changed:
	default:
		t.Error("nobody is told")
	}
	small, trust := k.Record().Split()
	again := reread(t, small, trust)
	var after health.Keeper
	after.Resume(again)
	after.AtRevision(0, 50, noon)
	if l := after.Lost(); l == nil || *l != *k.Lost() || string(after.Bundle()) != "bundle" || !reflect.DeepEqual(after.Begin().Trust.Bans, w.trust.Bans) {
		t.Errorf("after a restart %v, %q, %+v", l, after.Bundle(), after.Begin().Trust)
	}
	if after.Restored(0) || !after.Restored(1_800_000_000) || after.Restored(1_800_000_000) || after.Lost() != nil {
		t.Error("a restore ends it, once")
	}
	if after.AtRevision(0, 3, noon) != nil || after.Read(after.Begin(), health.Seen{Restored: 1_800_000_000, Revision: 3}, noon) != nil {
		t.Error("what is there after a restore is compared with what was before")
	}
	// The process ended between the two files.
	fresh, _ := after.Record().Split()
	if r := reread(t, fresh, trust); r.Lost != nil || r.Seen.Trust != nil || r.Bundle != nil || r.Seen.Restored != 1_800_000_000 {
		t.Errorf("half of it of before the restore: %+v", r)
	}
}

func reread(t *testing.T, parts ...health.Record) health.Record {
	t.Helper()
	for i, p := range parts {
		raw, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if parts[i], err = health.Decode(raw); err != nil {
			t.Fatal(err)
		}
		if _, err := health.Decode(append(raw, 'x')); err == nil {
			t.Error("what follows a record is read over")
		}
	}
	return health.Join(parts[0], parts[1])
}

// A read of before the store went back that is told after one of what it shows since then
// puts nothing in the place of what that one showed.
func TestLateReadOfBefore(t *testing.T) {
	var k health.Keeper
	state := func(version uint64, ban string) health.Seen {
		return health.Seen{Revision: version, Trust: &health.Trust{Counter: 2, Version: version, Digest: digest(ban[0]), UnbansFrom: 1, Bans: map[string]uint64{ban: 2}}}
	}
	began, later := k.Begin(), k.Begin()
	if loss := k.Read(later, state(17, "c"), noon); loss != nil {
		t.Fatal(loss)
	}
	if loss := k.Read(began, state(20, "d"), noon); kindOf(loss) != health.Counter {
		t.Errorf("two states under one counter: %v", loss)
	}
	fewer := state(20, "d")
	fewer.Trust.Counter = 1
	if loss := k.Read(began, fewer, noon); kindOf(loss) != health.Counter {
		t.Errorf("an earlier state that was written later: %v", loss)
	}
	if got := k.Record().Seen.Trust; got.Version != 17 {
		t.Errorf("it keeps what was read of version %d", got.Version)
	}
	// One that began before and is only older shows nothing.
	older := state(15, "c")
	older.Trust.Counter, older.Trust.Bans = 1, nil
	if loss := k.Read(began, older, noon); loss != nil {
		t.Error(loss)
	}
}
