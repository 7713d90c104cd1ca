package chaos_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
	"github.com/fealty-io/fealty/test/chaos"
	"github.com/fealty-io/fealty/test/testlane"
)

// A dump of the database is put back: while all coordinators are down, and while all run
// and people write. The coordinators say so, bans stay in force, and the remedy that they
// print brings everybody back. A short run does the first alone.
func TestStorePutBack(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	ways := map[string]bool{"stopped": false}
	if testlane.Rounds(false, true) {
		ways["running"] = true
	}
	for name, running := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(testlane.Seed(t), 4))
			f := newFleet(t, onPostgres(t, 3), 3, 3)
			f.goneBack(r, running)
		})
	}
}

func (f *fleet) goneBack(r *rand.Rand, running bool) {
	f.t.Helper()
	f.settled()
	stop := f.people(r)
	defer stop()
	f.told(time.Now(), chaos.Acknowledged, "token", "ban", "config", "set")
	// A manifest that is newer than the copy is another matter: the head went back then, and
	// the store is refused until it shows that head again (FE-H107).
	f.setting.Lock()
	// The coordinator that sets the last manifest makes its mesh CA key, and no other has that
	// key after a restart. In some run each of them is that one.
	last := f.coords[r.IntN(len(f.coords))]
	f.await("a set through "+last.m.name, func() error {
		if !(&writer{f: f, name: "w0", r: r}).setNow(f.t.Context(), last) {
			return errors.New("it was not acknowledged")
		}
		return nil
	})
	copied := time.Now()
	restore, err := f.store.dump()
	if err != nil {
		f.t.Fatal(err)
	}
	f.told(copied, chaos.Acknowledged, "token", "ban", "config") // and more, which the copy does not hold
	up := f.down("store")
	start := func() error { return nil }
	if !running {
		f.keptWhatItSaw()
		start = f.killed(f.coords...)
	}
	if err := restore(); err != nil {
		f.t.Fatal(err)
	}
	back := time.Now()
	f.mu.Lock()
	f.back = back
	f.mu.Unlock()
	if err := start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Logf("%s: a copy of %s is in place", clock(), copied.Format("15:04:05.000"))
	var remedy string
	for _, p := range f.coords {
		f.await(p.m.name+" to say that the store went back", func() error {
			st, err := f.status(p)
			if err != nil {
				return err
			}
			for _, finding := range st.GetFindings() {
				if finding.GetCode() == string(errcode.StoreWentBack) {
					remedy = inPlace.FindString(finding.GetRemedy())
					return nil
				}
			}
			if st.GetPhase() == "recovery" && strings.Contains(st.GetPhaseReason(), string(errcode.StoreWentBack)) {
				return nil // it has no key that opens the seed, and its peers said so
			}
			return fmt.Errorf("it is in phase %q: %s", st.GetPhase(), st.GetPhaseReason())
		})
	}
	f.t.Logf("%s: all say so", clock())
	if remedy == "" {
		f.t.Fatal("no remedy names a command")
	}
	// Nobody joins now, so that there would be nobody left to ban, had they not kept one.
	f.banLast.Store(true)
	alarmed := time.Now()
	f.told(alarmed, chaos.Refused, "token", "ban", "config")
	stopped := f.killed(f.coords...)
	// As it is printed; the address of the database has no password there.
	args := strings.Fields(strings.TrimPrefix(remedy, "fealty "))
	for i, arg := range args[:len(args)-1] {
		switch arg {
		case "--store":
			args[i+1] = f.store.direct
		case "--sign-with":
			args[i+1] = filepath.Join(f.dir, "alice.key")
		}
	}
	f.must(args...)
	restored := time.Now()
	if err := stopped(); err != nil {
		f.t.Fatal(err)
	}
	f.ready()
	up()
	f.settled()
	f.setting.Unlock()
	f.t.Logf("%s: all are back", clock())
	f.told(time.Now(), chaos.Acknowledged, "token", "ban", "config", "set")
	stop()
	f.ready()
	f.settled()
	f.unwatch()
	var writes []chaos.Write
	for _, w := range chaos.GoneBack(f.written(), copied, back, func(w chaos.Write) bool { return strings.HasPrefix(w.Key, "ban/") && w.Value != "" }) {
		if w.Outcome == chaos.Acknowledged && w.Call.After(alarmed) && w.Return.Before(restored) {
			f.t.Errorf("of a store that went back this was acknowledged: %v", w)
		}
		// A restore voids the tokens of before.
		if strings.HasPrefix(w.Key, "token/") && w.Outcome == chaos.Acknowledged && w.Call.Before(restored) {
			w.Outcome = chaos.Unknown
		}
		writes = append(writes, w)
	}
	f.kept(writes)
	f.judge()
}

// inPlace is the command that status prints for a store that went back.
var inPlace = regexp.MustCompile(`fealty backup restore --in-place --store \S+ --sign-with \S+`)

// keptWhatItSaw waits until every coordinator has written down what there is in the store
// now, which is at most a second old when it is killed.
func (f *fleet) keptWhatItSaw() {
	f.t.Helper()
	reader, err := age.GenerateX25519Identity()
	if err != nil {
		f.t.Fatal(err)
	}
	out := f.must("backup", "create", "x.backup", "--dry-run", "--recipient", reader.Recipient().String(), "-o", "json", "--socket", f.socket(f.coords[0]))
	var now struct {
		Revision store.Revision `json:"revision,string"`
	}
	if err := json.Unmarshal([]byte(out), &now); err != nil || now.Revision == 0 {
		f.t.Fatalf("the revision of the store: %d, %v", now.Revision, err)
	}
	for _, p := range f.coords {
		f.await(p.m.name+" to write down what it saw", func() error {
			raw, err := os.ReadFile(p.m.path("data", "store-seen.json"))
			if err != nil {
				return err
			}
			seen, err := health.Decode(raw)
			if err == nil && seen.Seen.Revision < uint64(now.Revision) {
				err = fmt.Errorf("it is revision %d, not %d", seen.Seen.Revision, now.Revision)
			}
			return err
		})
	}
}

// told waits until people were told an outcome of something of each kind that is wanted,
// of what they asked after a time.
func (f *fleet) told(since time.Time, o chaos.Outcome, wanted ...string) {
	f.t.Helper()
	f.await("writes that are "+o.String(), func() error {
		kinds := make(map[string]bool)
		for _, w := range f.written() {
			if kind, _, _ := strings.Cut(w.Key, "/"); w.Outcome == o && w.Call.After(since) {
				kinds[kind] = true
			}
		}
		for _, kind := range wanted {
			if !kinds[kind] {
				return errors.New("none of a " + kind)
			}
		}
		return nil
	})
}
