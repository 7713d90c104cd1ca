package sim_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/grants"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
	"github.com/fealty-io/fealty/internal/store/storetest"
	"github.com/fealty-io/fealty/test/testlane"
)

// schedule is one run of a fleet.
type schedule struct {
	*fleet
	m    *model
	dump storetest.Dump // of some time ago

	priority int  // that was given out last
	back     bool // the store went back
}

// extras are entries that a set may add to the manifest.
var extras = []string{
	"", "  - {name: more, kind: data, match: [\"token:more\"]}\n", "  - {name: watch, kind: witness, match: [\"token:watch\"]}\n",
	// An entry of a coordinator begins an authority epoch.
	"  - {name: guest, kind: coordinator, match: [\"key:ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE=\"]}\n",
}

// rounds is how many a schedule has.
const rounds = 8

// run runs one schedule, with a bug if there is one.
func run(t *testing.T, seed uint64, bug func(*store.Tx, store.Listing) bool) (f *fleet) {
	synctest.Test(t, func(t *testing.T) {
		s := &schedule{fleet: newFleet(t, seed, 2+int(seed%2), bug), m: newModel()}
		f = s.fleet
		stop := make(chan struct{})
		var watch sync.WaitGroup
		watch.Go(func() { s.terms(stop) })
		defer func() {
			if p := recover(); p != nil {
				f.violated("%v", p)
				f.say("%s", debug.Stack())
			}
			close(stop)
			watch.Wait()
			f.stop()
			synctest.Wait()
		}()
		s.settle()
		for range 2 {
			s.m.makeToken(s.coord[0], "pool", 2+s.rng.IntN(3))
			if id := s.tokenID(); id != "" {
				s.m.join(s.any(), id)
			}
		}
		for range 3 {
			s.together(nil) // processes of members begin, and others in their place
		}
		s.m.checkKeys(f)
		if s.rng.IntN(2) == 0 {
			s.otherKey(s.coord[1])
		}
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

// together does operations at the same time, each at a moment of its own, while processes of
// members call.
func (s *schedule) together(ops []func()) {
	if !s.back { // a store that went back knows of no grant since
		ops = append(slices.Clip(ops), s.processOps()...)
	}
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
	kind := s.rng.IntN(12)
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
		frozen.Go(func() { time.Sleep(wait); x.Process.Freeze(); time.Sleep(length); x.Process.Thaw() })
		s.together(ops)
		frozen.Wait()
	case 7: // one fails on its way, and may die there
		x := s.any()
		point := points[s.rng.IntN(len(points))]
		x.Faults.FailNext(point, 1+s.rng.IntN(2), errInjected)
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
		x.Faults.Disarm(point)
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
	case 11: // all die, and no key file is left
		s.ownersCome()
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

// ownersCome has everybody die whose memory holds the seed, with the key files of all
// keepers, and somebody who owns a share bring it back.
func (s *schedule) ownersCome() {
	s.saw.add("recoveries by owners")
	for _, x := range s.coord {
		s.kill(x)
		_ = x.Disk.FS().Remove(keeperFile) // there may be none
	}
	for _, x := range s.coord {
		x.start()
	}
	for range 10 {
		time.Sleep(6 * time.Second)
		for _, x := range s.coord {
			if phase, _ := x.c.Phase(); phase == "ready" {
				return
			}
		}
		x := s.any()
		s.say("the owner comes to %d: %v", x.n, short(x.bring()))
	}
	s.violated("the owner of a share came ten times, and nobody is ready")
}

// calm has all coordinators that are ready at one head do what they are asked, with
// nothing but delays: none of them leaves what it serves, unless authority moves. One that is
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
	// Each manifest is set through another coordinator right after the one before it,
	// which others may not have adopted yet.
	ops := s.ops(3, nil)
	var chain []func()
	for range 3 + s.rng.IntN(4) {
		x, extra := s.any(), extras[s.rng.IntN(len(extras))]
		chain = append(chain, func() { s.m.set(x, extra, s.head().Hash) })
	}
	s.together(append(ops, func() {
		for _, set := range chain {
			set()
		}
	}))
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
	switch s.rng.IntN(4) {
	case 0:
		if err := x.Disk.FS().Remove(keeperFile); err == nil {
			s.saw.add("key files that were lost")
		}
	case 1: // from a backup
		s.restoreKey(x)
	case 2: // one that the machine had before, or that belongs to something else
		s.otherKey(x)
	default: // of another machine
		y := s.coord[s.rng.IntN(len(s.coord))]
		if raw, err := y.Disk.FS().ReadSecret(keeperFile, keyring.MaxKeyFileBytes); err == nil && x != y {
			s.saw.add("key files that were copied")
			s.putKey(x, raw)
		}
	}
}

// otherKey gives a machine a key under which nothing is sealed.
func (s *schedule) otherKey(x *coord) {
	key := make([]byte, 32)
	rand.Read(key)
	s.saw.add("key files that were others")
	s.putKey(x, fmt.Appendf(nil, "fealty-keeper-key-v1 %s\n", base64.StdEncoding.EncodeToString(key)))
}

// ready reports whether the coordinator is in phase ready.
func (x *coord) ready() bool {
	phase, _ := x.c.Phase()
	return phase == "ready"
}

// hasKey reports whether there is a key file on the machine.
func (s *schedule) hasKey(x *coord) bool {
	_, err := x.Disk.FS().ReadSecret(keeperFile, keyring.MaxKeyFileBytes)
	return err == nil
}

// keyOpens reports whether the key file on the machine opens the seed.
func (s *schedule) keyOpens(x *coord) bool {
	raw, err := x.Disk.FS().ReadSecret(keeperFile, keyring.MaxKeyFileBytes)
	for id, opens := range s.m.opens {
		if err == nil && opens && bytes.Equal(raw, s.m.keys[id]) {
			return true
		}
	}
	return false
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
	files := x.Disk.FS()
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
			if !s.hasKey(x) {
				s.restoreKey(x)
			}
			x.start()
		}
	}
	if !s.settle() && !slices.ContainsFunc(s.coord, func(x *coord) bool { return x.ready() || s.keyOpens(x) }) {
		// Nobody has the seed, and no machine a key that opens it: people put one back.
		s.saw.add("keys that people put back at the end")
		s.restoreKey(s.coord[0])
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

// goBack puts an older state of the store back. Writes acknowledged since are there, or
// every coordinator says what happened; and banned members stay out.
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
	s.back = true
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
			switch errcode.Code(f.GetCode()) {
			case errcode.StoreWentBack, errcode.HistoryInvalid:
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

// Whole coordinators, two or three of them with folders of their own, on a store with
// faults: sets, reseeds, config, bans, tokens and joins at several of them at once, while
//
//	the store is slow, fails a write, or loses a request or an answer; or a write comes late
//	one is off the store, stands still as after SIGSTOP, fails at one of its failure points
//	one dies, or all do with every key file, and an owner of the seed comes
//	key files of keepers are lost, put back, or copied to another machine
//	the store goes back to what it held some time ago
//
// After each round every key that opened the seed opens it still, or one of them opens the
// seed that came after. At the end all are ready at one head without a human; every set,
// config record, ban, token and member that was acknowledged is shown by each of them, the
// uses of tokens are exact, and none certifies who is banned. All the while no two lead
// under one term, and no coordinator serves a process of a member after another one heard that it
// was granted its place, however that one goes on calling. Nobody who is ready goes into recovery because another one set a
// manifest, unless authority moved. After the store went back each of them shows what was
// acknowledged, or says what happened.
//
// The number of a schedule does not decide the order of things that happen at the same moment: it
// may take several tries to see one again.
func TestFleetSchedules(t *testing.T) {
	first := testlane.Seed(t)
	saw := new(counts)
	t.Run("of", func(t *testing.T) {
		for seed := first; seed < first+testlane.Rounds[uint64](2, 1000); seed++ {
			t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
				t.Parallel()
				f := run(t, seed, nil)
				saw.addAll(f.saw)
				if wrong := f.broken(); wrong != "" {
					t.Errorf("%s\nin schedule %d, which is the first with SEED=%[2]d:\n%s", wrong, seed, f.log.String())
				}
			})
		}
	})
	for _, what := range slices.Sorted(maps.Keys(saw.of)) {
		t.Logf("%6d %s", saw.of[what], what)
	}
}

// bugs of a store, or of what writes to it: the schedules notice each.
var bugs = []struct {
	name string
	want []string // what is violated, one of these
	bug  func(tx *store.Tx, all store.Listing) (written bool)
}{
	{"config that is acknowledged is not written", []string{"config q", string(errcode.StoreForged)}, func(tx *store.Tx, _ store.Listing) bool {
		tx.Put = slices.DeleteFunc(tx.Put, func(w store.Write) bool { return strings.HasPrefix(w.Key, desired.RecordPrefix) })
		return len(tx.Put) > 0
	}},
	{"a grant that is acknowledged is not written", []string{"I7", "the newest of it, is fenced"}, func(tx *store.Tx, _ store.Listing) bool {
		tx.Put = slices.DeleteFunc(tx.Put, func(w store.Write) bool { return strings.HasPrefix(w.Key, grants.Prefix) })
		return len(tx.Put) > 0
	}},
	{"a token is used on what was read, whatever it is now", []string{"token"}, func(tx *store.Tx, _ store.Listing) bool {
		tx.If = slices.DeleteFunc(tx.If, func(c store.Condition) bool {
			return strings.HasPrefix(c.Key, admission.TokenPrefix) || strings.HasPrefix(c.Key, admission.TokenUsePrefix)
		})
		return true
	}},
	{"a copy of the seed takes the place of those under other keys", []string{"opened the seed in force"}, func(tx *store.Tx, all store.Listing) bool {
		for _, w := range tx.Put {
			if !strings.HasPrefix(w.Key, sealed.SeedPrefix) {
				continue
			}
			for _, e := range all.Entries {
				if path.Dir(e.Key) == path.Dir(w.Key) && e.Key != w.Key {
					tx.Delete = append(tx.Delete, e.Key)
				}
			}
		}
		return true
	}},
}

func TestFleetSchedulesNoticeBugs(t *testing.T) {
	testlane.Nightly(t)
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(300) { // the first that notices ends it; some bugs show in 1 of 5 only
				f := run(t, seed, b.bug)
				if wrong := f.broken(); wrong != "" {
					if t.Logf("schedule %d: %s", seed, wrong); !slices.ContainsFunc(b.want, func(w string) bool { return strings.Contains(wrong, w) }) {
						t.Errorf("want %q:\n%s", b.want, f.log.String())
					}
					return
				}
			}
			t.Error("no schedule noticed")
		})
	}
}
