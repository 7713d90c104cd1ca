package sim_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

// schedule is one run of a fleet.
type schedule struct {
	*fleet
	m    *model
	dump storetest.Dump // of some time ago
	back bool           // the store went back

	names, priority int // that were given out
}

// extras are entries that a set may add to the manifest.
var extras = []string{
	"", "  - {name: more, kind: data, match: [\"token:more\"]}\n", "  - {name: watch, kind: witness, match: [\"token:watch\"]}\n",
	// An entry of a coordinator begins an authority epoch.
	"  - {name: guest, kind: coordinator, match: [\"key:ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE=\"]}\n",
}

// rounds is how many a schedule has.
const rounds = 8

// run runs one schedule and returns what was violated first, and what it came by.
func run(t *testing.T, seed uint64) (f *fleet) {
	synctest.Test(t, func(t *testing.T) {
		s := &schedule{fleet: newFleet(seed, 2+int(seed%2)), m: newModel()}
		f = s.fleet
		stop := make(chan struct{})
		var watch sync.WaitGroup
		watch.Go(func() { s.terms(stop) })
		defer func() {
			if p := recover(); p != nil {
				f.violated("%v", p)
			}
			close(stop)
			watch.Wait()
			f.stop()
			synctest.Wait()
		}()
		s.settle()
		for range 2 {
			s.m.makeToken(s.coord[0], "pool", 2+s.rng.IntN(3))
			s.m.join(s.any(), s.tokenID())
		}
		s.m.checkKeys(f)
		s.dump = s.mem.Dump()
		for n := range rounds {
			if f.broken() != "" {
				return
			}
			s.round(n)
		}
		s.heal()
	})
	return f
}

// any returns a coordinator that runs.
func (s *schedule) any() *coord {
	for {
		if x := s.coord[s.rng.IntN(len(s.coord))]; x.c != nil {
			return x
		}
	}
}

func (s *schedule) tokenID() string {
	ids := slices.Sorted(maps.Keys(s.m.tokens))
	if len(ids) == 0 {
		return ""
	}
	return ids[s.rng.IntN(len(ids))]
}

// ops returns operations to be done at once: n of them, and none that another of them
// makes ambiguous. Sets add one of extras to the manifest; there are none without.
func (s *schedule) ops(n int, extras []string) (out []func()) {
	head := s.head().Hash
	used := make(map[string]bool)
	for range n {
		x := s.any()
		switch k := s.rng.IntN(12); {
		case k < 4 && len(extras) > 0:
			extra := extras[s.rng.IntN(len(extras))]
			out = append(out, func() { s.m.set(x, extra, head) })
		case k < 6:
			name := fmt.Sprintf("q%d", s.rng.IntN(4))
			if s.priority++; used[name] {
				continue
			}
			used[name] = true
			p := s.priority
			out = append(out, func() { s.m.put(x, name, p) })
		case k < 7:
			uses := 1 + s.rng.IntN(3)
			out = append(out, func() { s.m.makeToken(x, "pool", uses) })
		case k < 9:
			if id := s.tokenID(); id != "" {
				for range 1 + s.rng.IntN(3) { // at several coordinators at once
					y := s.any()
					out = append(out, func() { s.m.join(y, id) })
				}
			}
		default:
			names := slices.Sorted(maps.Keys(s.m.members))
			if len(names) == 0 {
				continue
			}
			name := names[s.rng.IntN(len(names))]
			if used[name] {
				continue
			}
			used[name] = true
			lift := s.m.members[name].banned != no && s.rng.IntN(3) == 0
			out = append(out, func() { s.m.ban(x, name, lift) })
		}
	}
	return out
}

// together does operations at the same time, each at a moment of its own.
func (s *schedule) together(ops []func()) {
	var all sync.WaitGroup
	for _, op := range ops {
		after := time.Duration(s.rng.IntN(300)) * time.Millisecond
		all.Go(func() { time.Sleep(after); op() })
	}
	all.Wait()
}

// points are where a coordinator may fail on its way.
var points = []string{
	"set.after-seed", "set.before-swap", "set.after-swap", "rekey.before-swap", "adopt.begin", "adopt.before-identity", "join.before-commit", "join.after-commit",
	"reseed.after-freeze", "reseed.after-ledger", "reseed.after-batch", "reseed.after-move", "peer.before-head", "peer.before-reread", "publish.before-commit", "publish.after-commit",
}

var errInjected = errors.New("the test made it fail")

// round does some operations while something is wrong, or nothing.
func (s *schedule) round(n int) {
	for _, x := range s.coord { // who is down may come back, and one has to
		if x.c == nil && (s.rng.IntN(2) == 0 || s.running() == 0) {
			s.say("%d starts", x.n)
			x.start()
		}
	}
	kind := s.rng.IntN(11)
	s.say("round %d is of kind %d", n, kind)
	switch kind {
	case 0, 1, 2: // nothing is wrong, but that the store is slow
		s.calm()
	case 3, 4: // writes fail, and answers are lost
		for _, x := range s.coord {
			if x.c != nil && s.rng.IntN(2) == 0 {
				x.link.set(rates{fails: 60, lost: 60, dropped: 60, later: 60, delay: time.Duration(s.rng.IntN(200)) * time.Millisecond})
			}
		}
		s.together(s.ops(5, extras))
	case 5: // one is off the store, and one of the others may die
		x := s.any()
		x.link.setCut(true)
		s.saw.add("coordinators off the store")
		s.together(s.ops(4, extras))
		time.Sleep(time.Duration(s.rng.IntN(20)) * time.Second)
	case 6: // one stands still
		x := s.any()
		ops := s.ops(4, extras)
		s.saw.add("coordinators that stood still")
		var frozen sync.WaitGroup
		wait, length := time.Duration(s.rng.IntN(400))*time.Millisecond, time.Duration(1+s.rng.IntN(20))*time.Second
		frozen.Go(func() { time.Sleep(wait); x.freeze(); time.Sleep(length); x.thaw() })
		s.together(ops)
		frozen.Wait()
	case 7: // one fails on its way, and may die there
		x := s.any()
		point := points[s.rng.IntN(len(points))]
		x.faults.FailNext(point, 1+s.rng.IntN(2), errInjected)
		s.say("%d is to fail at %s", x.n, point)
		if s.rng.IntN(3) == 0 {
			s.m.reseed(x)
		} else {
			head, extra := s.head().Hash, extras[s.rng.IntN(len(extras))]
			s.together(append(s.ops(2, nil), func() { s.m.set(x, extra, head) }))
		}
		if s.rng.IntN(2) == 0 {
			s.kill(x)
		}
		x.faults.Disarm(point)
	case 8:
		s.m.reseed(s.any())
	case 9: // one dies
		x := s.any()
		var dying sync.WaitGroup
		ops := s.ops(4, extras)
		wait := time.Duration(s.rng.IntN(400)) * time.Millisecond
		if s.rng.IntN(2) == 0 {
			s.together(ops)
			s.kill(x)
			break
		}
		dying.Go(func() { time.Sleep(wait); x.link.setCut(true) })
		s.together(ops)
		dying.Wait()
		s.kill(x)
	case 10: // something becomes of a key file
		s.keyEvent(s.coord[s.rng.IntN(len(s.coord))])
		s.together(s.ops(3, extras))
	}
	for _, x := range s.coord {
		if x.c != nil {
			x.link.set(rates{})
			x.link.setCut(false)
		}
	}
	time.Sleep(time.Duration(1+s.rng.IntN(6)) * time.Second) // what is late comes
	s.m.checkKeys(s.fleet)
	if s.rng.IntN(3) == 0 {
		s.dump = s.mem.Dump()
	}
}

func (s *schedule) running() (n int) {
	for _, x := range s.coord {
		if x.c != nil {
			n++
		}
	}
	return n
}

func (s *schedule) kill(x *coord) {
	if x.c != nil {
		s.say("%d dies", x.n)
		s.saw.add("deaths")
		x.stop(true)
	}
}

// calm has all coordinators that are ready at one head do what they are asked, with
// nothing but delays: none of them leaves what it serves, unless authority moves. Who is
// behind when that happens has to ask for the new mesh CA key.
func (s *schedule) calm() {
	if !s.settled() {
		s.saw.add("rounds without a fault that found somebody on his way")
		s.together(s.ops(4, extras))
		return
	}
	s.saw.add("rounds without a fault")
	before, extras := s.head(), extras
	if s.rng.IntN(3) > 0 {
		extras = extras[:3] // whoever set the last manifest may have named a guest
	}
	fell := make(map[*coord]int)
	for _, x := range s.coord {
		if x.c != nil {
			fell[x], _ = x.fallen()
			x.link.set(rates{delay: time.Duration(s.rng.IntN(60)) * time.Millisecond})
		}
	}
	for range 2 {
		head := s.head().Hash
		ops := s.ops(3, extras)
		for _, x := range s.coord {
			if x.c != nil {
				extra := extras[s.rng.IntN(len(extras))]
				ops = append(ops, func() { s.m.set(x, extra, head) })
			}
		}
		s.together(ops)
	}
	if s.head().AuthorityEpoch != before.AuthorityEpoch {
		return
	}
	s.saw.add("rounds without a fault under one authority")
	for x, before := range fell {
		if now, why := x.fallen(); now != before {
			s.violated("coordinator %d was ready and went into recovery, because others set manifests too: %s", x.n, why)
		}
	}
}

// keyEvent is what happens to the key file of a keeper.
func (s *schedule) keyEvent(x *coord) {
	switch s.rng.IntN(3) {
	case 0:
		if err := x.disk.FS().Remove(keeperFile); err == nil {
			s.saw.add("key files that were lost")
		}
	case 1: // from a backup
		s.restoreKey(x)
	default: // of another machine
		y := s.coord[s.rng.IntN(len(s.coord))]
		if raw, err := y.disk.FS().ReadSecret(keeperFile, keyring.MaxKeyFileBytes); err == nil && x != y {
			s.saw.add("key files that were copied")
			s.putKey(x, raw)
		}
	}
}

func (s *schedule) restoreKey(x *coord) {
	for _, id := range slices.Sorted(maps.Keys(s.m.opens)) {
		if s.m.opens[id] {
			s.saw.add("key files that came back")
			s.putKey(x, s.m.keys[id])
			return
		}
	}
}

func (s *schedule) putKey(x *coord, raw []byte) {
	files := x.disk.FS()
	need(0, files.MkdirAll("/keeper"))
	need(0, files.WriteFile(keeperFile, raw))
}

// settled reports whether all that run are ready at the head of the store.
func (s *schedule) settled() bool {
	head := s.head()
	for _, x := range s.coord {
		if x.c == nil {
			continue
		}
		if phase, _ := x.c.Phase(); phase != "ready" {
			return false
		}
		var at []byte
		err := x.asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) error {
			got, err := fealtyv1.NewStatusServiceClient(conn).GetStatus(ctx, &fealtyv1.GetStatusRequest{})
			at = got.GetHead()
			return err
		})
		if err != nil || string(at) != string(head.Hash[:]) {
			return false
		}
	}
	return true
}

func (s *schedule) settle() bool {
	for range 120 {
		if s.settled() {
			return true
		}
		time.Sleep(time.Second)
	}
	return false
}

// heal ends all faults and compares what is there with what was acknowledged.
func (s *schedule) heal() {
	s.say("all is well from here on")
	for _, x := range s.coord {
		if x.c == nil {
			if _, err := x.disk.FS().ReadSecret(keeperFile, keyring.MaxKeyFileBytes); err != nil {
				s.restoreKey(x)
			}
			x.start()
		}
	}
	if !s.settle() {
		for _, x := range s.coord {
			phase, why := x.c.Phase()
			s.violated("coordinator %d is %s after two minutes without a fault: %s", x.n, phase, why)
		}
		return
	}
	s.m.checkKeys(s.fleet)
	if missing := s.m.checkHistory(s.fleet); len(missing) > 0 {
		s.violated("%s", strings.Join(missing, "; "))
	}
	time.Sleep(10 * time.Second)
	for _, x := range s.coord {
		if missing := s.m.missing(x); len(missing) > 0 {
			s.violated("coordinator %d: %s", x.n, strings.Join(missing, "; "))
		}
		if in := s.m.letIn(x); len(in) > 0 {
			s.violated("coordinator %d certifies %v, who are banned", x.n, in)
		}
	}
	if s.broken() == "" && s.rng.IntN(2) == 0 {
		s.goBack()
	}
}

// goBack puts an older state of the store back. What was acknowledged since is there, or
// every coordinator says what happened; and who is banned stays out.
func (s *schedule) goBack() {
	s.saw.add("stores that went back")
	s.say("the store goes back")
	stopped := s.rng.IntN(2) == 0
	if stopped {
		for _, x := range s.coord {
			x.stop(s.rng.IntN(2) == 0)
		}
	}
	s.mem.GoBack(s.dump)
	if stopped {
		for _, x := range s.coord {
			x.start()
		}
	}
	if s.rng.IntN(2) == 0 { // somebody goes on as if nothing was
		s.together(s.ops(4, nil))
	}
	time.Sleep(time.Minute)
	gone := s.m.checkHistory(s.fleet)
	for _, x := range s.coord {
		alarm := x.alarm()
		missing := append(s.m.missing(x), gone...)
		s.say("%d says %q; gone is %q", x.n, alarm, missing)
		if len(missing) > 0 {
			s.saw.add("coordinators that lost something")
			if alarm == "" {
				s.violated("coordinator %d says nothing, and the store went back: %s", x.n, strings.Join(missing, "; "))
			}
		}
		if in := s.m.letIn(x); len(in) > 0 {
			s.violated("the store went back, and coordinator %d certifies %v, who are banned", x.n, in)
		}
	}
}

// alarm is what the coordinator says of a store that went back; "" for nothing.
func (x *coord) alarm() (out string) {
	phase, why := x.c.Phase()
	if phase != "ready" {
		return phase + ": " + why
	}
	err := x.asAdmin(func(ctx context.Context, conn grpc.ClientConnInterface) error {
		got, err := fealtyv1.NewStatusServiceClient(conn).GetStatus(ctx, &fealtyv1.GetStatusRequest{})
		for _, f := range got.GetFindings() {
			switch explain.Code(f.GetCode()) {
			case explain.StoreWentBack, explain.HistoryInvalid:
				out += f.GetSummary()
			}
		}
		return err
	})
	if err != nil {
		return short(err)
	}
	return out
}

func number(t *testing.T, name string, def int) (n int, set bool) {
	text, set := os.LookupEnv(name)
	if !set {
		return def, false
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%q: %v", name, text, err)
	}
	return n, true
}

func TestFleetSchedules(t *testing.T) {
	from, n := 0, 0
	if one, ok := number(t, "FEALTY_TEST_FLEET_SCHEDULE", 0); ok {
		from, n = one, 1
	} else {
		n, _ = number(t, "FEALTY_TEST_FLEET_SCHEDULES", 20)
	}
	saw := make(map[string]int)
	for seed := from; seed < from+n; seed++ {
		f := run(t, uint64(seed))
		for what, n := range f.saw.of {
			saw[what] += n
		}
		if f.broken() != "" || n == 1 {
			t.Logf("schedule %d:\n%s", seed, f.log.String())
		}
		if f.broken() != "" {
			t.Fatalf("schedule %d: %s\nFEALTY_TEST_FLEET_SCHEDULE=%d runs it again", seed, f.broken(), seed)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(saw)) {
		t.Logf("%6d %s", saw[what], what)
	}
}
