package keepers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/platform/reload"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
	"github.com/fealty-io/fealty/test/wait"
)

// A machine without the key that opens the seed is shown by every coordinator, with the
// key that would, until the file is there. Its own key seals a copy of its own when a
// manifest is set, and takes no other one's place.
func TestStatusOfMachinesWithoutTheKey(t *testing.T) {
	t.Parallel()
	f, r := twoMachines(t)
	ids := coordinatortest.KeyIDs(t, f.C, f.Store)
	if len(ids) != 1 {
		t.Fatalf("sealed under %v", ids)
	}
	told := func(x *coordinatortest.Fleet, opens bool) {
		t.Helper()
		coordinatortest.AwaitReplica(x, func(rec peer.Record) bool {
			return len(rec.Keepers) == 1 &&
				rec.Keepers[0].Opens == opens
		})
	}
	told(f, true)
	told(r, false)
	for _, x := range []*coordinatortest.Fleet{f, r} {
		got := coordinatortest.KeeperFinding(coordinatortest.GetStatus(x).GetFindings(), errcode.KeeperElsewhere)
		if !strings.Contains(got, "coordinator-2 does not open") || !strings.Contains(got, string(ids[0])) ||
			!strings.Contains(got, "has no key") {
			t.Errorf("shown is %q", got)
		}
		if got := coordinatortest.KeeperFinding(coordinatortest.GetStatus(x).GetFindings(),
			errcode.KeeperUnopened); got != "" {
			t.Errorf("shown is %q, and coordinator-1 opens it", got)
		}
	}
	if k := coordinatortest.GetStatus(r).GetReplicas()[0].GetKeepers(); len(k) != 1 || !k[0].GetOpens() ||
		k[0].GetKeyId() != string(ids[0]) {
		t.Errorf("of coordinator-1 is shown %v", k)
	}
	// The file of another cluster is none that helps, and is told from none.
	putKeyFile(r, []byte("fealty-keeper-key-v1 "+strings.Repeat("A", 43)+"=\n"))
	if got := coordinatortest.KeeperFinding(coordinatortest.GetStatus(r).GetFindings(),
		errcode.KeeperElsewhere); !strings.Contains(got, "has key ") {
		t.Errorf("shown is %q", got)
	}
	// The copy that it seals under that key stands beside the other copy.
	coordinatortest.WantOnly(t, "set", r.Set(machineManifest(r, someEntry)), "")
	if now := coordinatortest.KeyIDs(t, f.C, f.Store); len(now) != 2 || !slices.Contains(now, ids[0]) {
		t.Errorf("sealed under %v, it was %v", now, ids)
	}
	if got := coordinatortest.KeeperFinding(coordinatortest.GetStatus(r).GetFindings(),
		errcode.KeeperElsewhere); got != "" {
		t.Errorf("it opens its own copy, and shown is %q", got)
	}
	putKeyFile(r, readKeyFile(f))
	if got := coordinatortest.KeeperFinding(coordinatortest.GetStatus(r).GetFindings(),
		errcode.KeeperElsewhere); got != "" {
		t.Errorf("with the file there, shown is %q", got)
	}
}

// A new seed is sealed by who has the key of the old one. After two of them nothing of an
// old one is in the store, of no key, and not where releases before key ids wrote it.
func TestReseedsSealWithTheKeyThatIsThere(t *testing.T) {
	t.Parallel()
	f, r := twoMachines(t)
	coordinatortest.AwaitReplica(f, func(rec peer.Record) bool {
		return len(rec.Keepers) == 1 &&
			rec.Keepers[0].Opens
	})
	id := coordinatortest.KeyIDs(t, f.C, f.Store)[0]
	for _, key := range []string{"", "fealty-keeper-key-v1 " + strings.Repeat("A", 43) + "=\n"} {
		what := "no key"
		if key != "" {
			what = "another key"
			putKeyFile(r, []byte(key))
		}
		_, err := coordinatortest.ReseedClient(r).PrepareReseed(r.Context(), &fealtyv1.PrepareReseedRequest{})
		coordinatortest.WantCode(t, err, errcode.KeeperNotHere)
		if text := errcode.Of(err).Error(); !strings.Contains(text, "coordinator-1") ||
			!strings.Contains(text, string(id)) {
			t.Errorf("a reseed with %s: %v", what, err)
		}
		if key == "" {
			if _, err := os.Stat(keyFile(r)); err == nil {
				t.Error("a reseed that was refused made a key file")
			}
		}
	}
	var olds []history.Salt
	for n := range 2 {
		// A copy of each machine, and one in the old place.
		coordinatortest.WantOnly(t,
			"set on the second machine", r.Set(machineManifest(r, fmt.Sprintf("  - {name: more-%d, kind: data, match: "+
				"[\"token:more-%d\"]}\n", n, n))), "")
		f.AwaitHead(r)
		s := f.State()
		olds = append(olds, s.Head.Salt)
		of := sealed.Seed(&s.Head.Transition)
		e, err := f.Store.Get(t.Context(), of.Key("host", id))
		coordinatortest.WantOnly(t, "read a copy", err, "")
		_, err = f.Store.CompareAndSwap(t.Context(), of.FormerKey("host"), 0, e.Value)
		coordinatortest.WantOnly(t, "write it in the old place", err, "")
		coordinatortest.ReseedIn(f)
		r.AwaitHead(f)
		if now := coordinatortest.KeyIDs(t, f.C, f.Store); !slices.Equal(now, []keyring.KeyID{id}) {
			t.Errorf("the new seed is sealed under %v, want %v", now, id)
		}
	}
	l, err := f.Store.List(t.Context(), sealed.Prefix)
	coordinatortest.WantOnly(t, "list", err, "")
	for _, e := range l.Entries {
		for _, salt := range olds {
			if strings.Contains(e.Key, fmt.Sprintf("%x", salt[:])) {
				t.Errorf("%s is left", e.Key)
			}
		}
	}
	r.Kill()
	f.Restart()
	f.Await(authority.Ready)
}

// opensAnything reports what of the store the key file of a keeper opens.
func opensAnything(d *coordinatortest.Desk, owner, file string) (opened []string) {
	d.T.Helper()
	k, err := keyring.KeeperOf(keyring.Owner{Name: owner, Keeper: "file:" + file}, d.Disk.FS())
	if err != nil {
		d.T.Fatal(err)
	}
	for _, key := range d.Store.Keys(sealed.SeedPrefix) {
		e, err := d.Store.Get(context.Background(), key)
		if err != nil {
			d.T.Fatal(err)
		}
		_, of, _ := sealed.Parse(e)
		for name := range strings.SplitSeq("host "+owner, " ") {
			if _, err := keyring.OpenSeed(context.Background(), k,
				keyring.Place{Cluster: coordinatortest.Cluster, Owner: name,
					SeedEpoch: of.SeedEpoch}, e.Value); err == nil {
				opened = append(opened, key)
			}
		}
	}
	return opened
}

// A keeper that a new seed dismisses finds no copy of it, and after the head has moved
// none of the old one, wherever the reseed was cut off.
func TestDismissedKeeperFindsNoCopy(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"", "set.after-seed", "reseed.after-freeze", "reseed.after-ledger",
		"set.before-swap", "set.after-swap", "adopt.begin", "reseed.after-batch", "reseed.after-move",
		"adopt.before-identity"} {
		t.Run("cut off at "+point, func(t *testing.T) {
			t.Parallel()
			d := coordinatortest.NewDesk(t)
			d.Seed = coordinatortest.SeedOf(1, nil, "host", "leaves")
			coordinatortest.WantOnly(t, "first set", d.Set(coordinatortest.PoolEntries), "")
			if opened := opensAnything(d, "leaves", "/leaves/key"); len(opened) != 1 {
				t.Fatalf("before, it opens %v", opened)
			}
			old := d.State().Head
			if point != "" {
				d.Faults.FailNext(point, 1, coordinatortest.ErrCrash)
			}
			d.Seed = coordinatortest.SeedOf(1, nil, "host")
			err := coordinatortest.ReseedAt(d, d.Manifest(coordinatortest.PoolEntries))
			if point == "" {
				coordinatortest.WantOnly(t, "reseed", err, "")
			} else {
				d.Faults.Disarm(point)
				d.Restart()
				d.LookAgain()
				coordinatortest.WantPhase(d, "ready", "")
			}
			moved := d.State().Head.SeedEpoch > old.SeedEpoch
			for _, key := range opensAnything(d, "leaves", "/leaves/key") {
				if strings.HasPrefix(key, sealed.SeedPrefix+"2/") {
					t.Errorf("it opens %s, which is of the new seed", key)
				}
				if moved {
					t.Errorf("it opens %s after the head has moved", key)
				}
			}
			if moved && len(d.Store.Keys(sealed.Seed(&old.Transition).Under())) > 0 {
				t.Error("the store holds copies of the old seed")
			}
			if !moved && len(opensAnything(d, "host", "/host/key")) == 0 {
				t.Error("nothing opens the seed in force")
			}
		})
	}
}

// formerLayout writes what the desk's store holds as releases before key ids wrote it.
func formerLayout(d *coordinatortest.Desk) (moved []string) {
	d.T.Helper()
	for _, key := range d.Store.Keys(sealed.Prefix) {
		e, err := d.Store.Get(context.Background(), key)
		if err != nil {
			d.T.Fatal(err)
		}
		if c, of, ok := sealed.Parse(e); ok {
			d.Store.Alter(key, func([]byte) []byte { return nil })
			d.Store.Write(of.FormerKey(c.Keeper), e.Value)
			moved = append(moved, of.FormerKey(c.Keeper))
		}
	}
	return moved
}

// A store of a release before key ids opens, gets copies by key id with the next set, and
// loses what it had to nothing but what loses the others.
func TestCopiesOfReleasesBeforeKeyIDs(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	id := coordinatortest.KeyIDs(t, d.C, d.Store)[0]
	former := formerLayout(d)
	if len(former) != 2 {
		t.Fatalf("of the former layout are %v", former)
	}
	head := d.State().Head
	d.Restart()
	coordinatortest.WantPhase(d, "ready", "")
	if d.State().Head.Hash != head.Hash {
		t.Error("the mesh CA key did not open: a transition was written")
	}
	if ids := coordinatortest.KeyIDs(t, d.C, d.Store); !slices.Equal(ids, []keyring.KeyID{id}) {
		t.Errorf("the former copy is of %v, want %v", ids, id)
	}
	coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.EntriesOf(false)), "")
	of := sealed.Seed(&d.State().Head.Transition)
	if keys := d.Store.Keys(of.Under()); !slices.Equal(keys, []string{of.FormerKey("host"), of.Key("host", id)}) {
		t.Errorf("after a set there are %v", keys)
	}
	for _, lost := range d.Store.Keys(of.Under()) { // either of the two is enough
		before := d.Store.Snapshot()
		d.Store.Alter(lost, func([]byte) []byte { return nil })
		d.Restart()
		coordinatortest.WantPhase(d, "ready", "")
		d.Store.Revert(before)
	}
	// Another key on the machine takes the place of neither.
	key, err := d.Disk.FS().ReadSecret("/keeper/key", 1<<10)
	coordinatortest.WantOnly(t, "read", err, "")
	d.Disk.Put("/keeper/key", []byte("fealty-keeper-key-v1 "+strings.Repeat("A", 43)+"=\n"))
	d.Disk.Chmod("/keeper/key", 0o600)
	coordinatortest.WantOnly(t, "set with another key", d.Set(coordinatortest.PoolEntries), "")
	if keys := d.Store.Keys(of.Under()); len(keys) != 3 {
		t.Errorf("with another key there are %v", keys)
	}
	coordinatortest.WantOnly(t, "put back", d.Disk.FS().WriteFile("/keeper/key", key), "")
	d.Restart()
	d.LookAgain() // the mesh CA key is sealed under the other key, which costs a rekey
	d.Lead(d.C)
	coordinatortest.WantPhase(d, "ready", "")
	// With the keeper they all go.
	d.Seed = coordinatortest.SeedOf(1, nil, "else")
	_, err = coordinatortest.Reshare(d, d.Seed)
	coordinatortest.WantOnly(t, "reshare", err, "")
	d.Lead(d.C)
	coordinatortest.WantOnly(t, "drop", d.C.Parts().Secrets.Shares.Drop(t.Context(), d.State()), "")
	for _, k := range d.Store.Keys(sealed.Prefix) {
		if strings.Contains(k, "/host") {
			t.Errorf("%s is left of the keeper that was dismissed", k)
		}
	}
}

// A key that is lost for good is forgotten by an admin, and the next set makes one; the
// last copy that a coordinator opens is never forgotten.
func TestForgetAKeyThatIsLost(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	id := coordinatortest.KeyIDs(t, d.C, d.Store)[0]
	forget := func(id keyring.KeyID, dry bool) (*fealtyv1.ForgetKeeperKeyResponse, error) {
		return coordinatortest.Served[fealtyv1.ManifestServiceServer](
			d.C.Parts().Moves.Manifests.RegisterServices).ForgetKeeperKey(t.Context(),
			&fealtyv1.ForgetKeeperKeyRequest{Keeper: "host", KeyId: string(id), DryRun: dry})
	}
	_, err := forget(id, false)
	coordinatortest.WantOnly(t, "forget the last copy", err, errcode.KeeperLastCopy)
	_, err = forget("0123", false)
	coordinatortest.WantOnly(t, "forget a key that sealed nothing", err, errcode.NotFound)
	_, err = coordinatortest.Served[fealtyv1.ManifestServiceServer](
		d.C.Parts().Moves.Manifests.RegisterServices).ForgetKeeperKey(t.Context(),
		&fealtyv1.ForgetKeeperKeyRequest{Keeper: "nobody", KeyId: string(id)})
	coordinatortest.WantOnly(t, "forget a keeper that is none", err, errcode.NotFound)

	coordinatortest.WantOnly(t, "remove", d.Disk.FS().Remove("/keeper/key"), "")
	coordinatortest.WantOnly(t, "set without the key", d.Set(coordinatortest.EntriesOf(false)), "")
	if _, err := d.Disk.FS().ReadFile("/keeper/key", 1<<10); err == nil {
		t.Error("a set made another key in the place of one that was backed up")
	}
	status := func() string {
		st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(),
			&fealtyv1.GetStatusRequest{})
		coordinatortest.WantOnly(t, "status", err, "")
		return coordinatortest.KeeperFinding(st.GetFindings(), errcode.KeeperUnopened)
	}
	if got := status(); !strings.Contains(got, "keeper host") || !strings.Contains(got, string(id)) ||
		!strings.Contains(got, "/keeper/key is missing") ||
		!strings.Contains(got, "fealty manifest keeper forget host") {
		t.Errorf("shown is %q", got)
	}
	_, err = forget(id, true)
	coordinatortest.WantOnly(t, "dry run", err, "")
	if ids := coordinatortest.KeyIDs(t, d.C, d.Store); len(ids) != 1 {
		t.Errorf("a dry run left %v", ids)
	}
	out, err := forget(id, false)
	coordinatortest.WantOnly(t, "forget", err, "")
	if out.GetRemoved() == 0 || len(out.GetKeyIds()) != 0 || len(coordinatortest.KeyIDs(t, d.C, d.Store)) != 0 {
		t.Errorf("%v is left, and the answer is %v", coordinatortest.KeyIDs(t, d.C, d.Store), out)
	}
	resp, err := d.C.Parts().Moves.Manifests.Set(t.Context(), d.Request(d.Manifest(coordinatortest.PoolEntries)), true)
	coordinatortest.WantOnly(t, "set", err, "")
	made := resp.GetKeysMade()
	if len(made) != 1 || made[0].GetKeeper() != "host" || made[0].GetFile() != "/keeper/key" ||
		made[0].GetCoordinator() != "coordinator-1" || made[0].GetKeyId() == string(id) {
		t.Fatalf("made was %v", made)
	}
	if ids := coordinatortest.KeyIDs(t, d.C, d.Store); !slices.Equal(ids, []keyring.KeyID{keyring.KeyID(
		made[0].GetKeyId())}) {
		t.Errorf("sealed under %v, and made was %v", ids, made)
	}
	if got := status(); got != "" {
		t.Errorf("shown is %q", got)
	}
	if entries, _ := coordinatortest.Audits(d, "keeper.forget"); len(entries) != 1 {
		t.Errorf("%d audit entries", len(entries))
	}
	d.Restart()
	coordinatortest.WantPhase(d, "ready", "")
}

// A late coordinator seals nothing any more: what the head dismissed meanwhile stays
// away.
func TestLateSealIsRefused(t *testing.T) {
	t.Parallel()
	d := coordinatortest.NewDesk(t)
	d.Seed = coordinatortest.SeedOf(1, nil, "host", "leaves")
	coordinatortest.WantOnly(t, "first set", d.Set(coordinatortest.PoolEntries), "")
	old := d.State()
	d.Seed = coordinatortest.SeedOf(1, nil, "host")
	_, err := coordinatortest.Reshare(d, d.Seed)
	coordinatortest.WantOnly(t, "reshare", err, "")
	d.Lead(d.C)
	coordinatortest.WantOnly(t, "drop", d.C.Parts().Secrets.Shares.Drop(t.Context(), d.State()), "")
	if opened := opensAnything(d, "leaves", "/leaves/key"); len(opened) != 0 {
		t.Fatalf("it opens %v", opened)
	}
	mv := &transition.Move{From: old, Manifest: old.Manifest, Link: old.Head, Secrets: old.Secrets}
	mv.Sealing = mv.Seals()
	coordinatortest.WantOnly(t, "look", d.C.Parts().Secrets.Keepers.Look(t.Context(), &mv.Sealing), "")
	coordinatortest.WantOnly(t, "seal for a head of before", d.C.Parts().Moves.Succession.WriteSecrets(t.Context(), mv),
		errcode.ManifestStale)
	if opened := opensAnything(d, "leaves", "/leaves/key"); len(opened) != 0 {
		t.Errorf("it opens %v", opened)
	}
}

// Two machines whose programs print no id and have other keys: what one sealed is not
// sealed over by the other.
func TestProgramsWithoutAnID(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, ownMachine)
	r := coordinatortest.NewReplica(t, f)
	program := t.TempDir() + "/keeper"
	// The key is in the folder of the machine, which the test exchanges: it is one program
	// on both.
	script := "#!/bin/sh\ncase $1 in seal) exec openssl enc -e -aes-256-cbc -pbkdf2 -pass file:" + program +
		".key;; open) exec openssl enc -d -aes-256-cbc -pbkdf2 -pass file:" + program + ".key;; esac; exit 2\n"
	durabletest.WriteProgram(t, program, []byte(script))
	key := func(text string) {
		if err := durable.OS().WriteFile(program+".key", []byte(text+"\n")); err != nil {
			t.Fatal(err)
		}
	}
	m := func(extra string) []byte {
		return coordinatortest.WithSeed(f.Manifest(extra),
			fmt.Sprintf("seed:\n  threshold: 1\n  owners: [{name: host, keeper: \"exec:%s\"}]\n", program))
	}
	key("of the first machine")
	coordinatortest.WantOnly(t, "first set", f.Set(m("")), "")
	r.Start()
	r.AwaitHead(f)
	of := sealed.Seed(&f.State().Head.Transition)
	sealedBy, err := f.Store.Get(t.Context(), of.Key("host", keyring.ProgramKey))
	coordinatortest.WantOnly(t, "read", err, "")
	key("of the second machine")
	coordinatortest.WantOnly(t, "set on the second machine", r.Set(m(someEntry)), "")
	now, err := f.Store.Get(t.Context(), of.Key("host", keyring.ProgramKey))
	if err != nil || now.Version != sealedBy.Version {
		t.Errorf("the copy of the first machine was written again, at %d: %v", now.Version, err)
	}
	r.Kill()
	f.Stop()
	key("of the first machine")
	f.Start()
	f.Await(authority.Ready)
}

// The program of a keeper that opened the seed is asked seldom. Whoever replaced its login has it asked at once, and the log
// and status say then what it said.
func TestProgramsAreAskedWhenTold(t *testing.T) {
	t.Parallel()
	parts := new(reload.Parts)
	f := coordinatortest.NewFleet(t, func(cfg *coordinator.Config) { ownMachine(cfg); cfg.Reload = parts })
	program := t.TempDir() + "/keeper"
	durabletest.WriteProgram(t, program, []byte("#!/bin/sh\ncmp -s "+program+".file "+program+
		".server || { echo the login is refused >&2; exit 1; }\n"+
		`LC_ALL=C exec tr '\000-\177\200-\377' '\200-\377\000-\177'`+"\n"))
	login := func(of, text string) {
		t.Helper()
		if err := durable.OS().WriteFile(program+"."+of, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	tell := func(when, logged string, opens bool) {
		t.Helper()
		var lines bytes.Buffer
		parts.Read(t.Context(), slog.New(slog.NewTextHandler(&lines, nil)))
		if !strings.Contains(lines.String(), logged) {
			t.Errorf("%s: it logs %s, want %s", when, &lines, logged)
		}
		st, err := f.Local().Status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
		coordinatortest.WantOnly(t, when, err, "")
		if opens == slices.ContainsFunc(st.GetFindings(),
			func(f *fealtyv1.Finding) bool { return f.GetCode() == string(errcode.KeeperUnopened) }) {
			t.Errorf("%s: status says %v", when, st.GetFindings())
		}
	}
	login("file", "one")
	login("server", "one")
	tell("before there is a keeper", "changed=nothing", true)
	coordinatortest.WantOnly(t, "first set", f.Set(coordinatortest.WithSeed(f.Manifest(""),
		fmt.Sprintf("seed:\n  threshold: 1\n  owners: [{name: host, keeper: \"exec:%s\"}]\n", program))), "")
	tell("with its login", "changed=nothing", true)
	login("server", "two")
	tell("with a login that is refused", "the keepers of this machine: host does not open the seed: ", false)
	login("file", "two")
	tell("with the next login", `changed="the keepers of this machine: host opens the seed now"`, true)
}

// A look that somebody asked for is made, also if whoever asks gives up while another look is under way, or if the store is
// out of reach just then.
func TestProgramsAreAskedWhoeverGivesUp(t *testing.T) {
	t.Parallel()
	var failed atomic.Int32
	f := coordinatortest.NewFleet(t, func(cfg *coordinator.Config) {
		ownMachine(cfg)
		cfg.Log = slog.New(slog.NewTextHandler(eachLine(func(line string) {
			if strings.Contains(line, "loop=keepers") {
				failed.Add(1)
			}
		}), nil))
	})
	program := t.TempDir() + "/keeper"
	durabletest.WriteProgram(t, program, []byte("#!/bin/sh\ncmp -s "+program+".file "+program+".server || exit 1\n"+
		"if [ $1 = open ] && [ -e "+program+".hold ]; then : >"+program+".held; "+
		"while [ -e "+program+".hold ]; do sleep 0.01; done; fi\n"+
		`LC_ALL=C exec tr '\000-\177\200-\377' '\200-\377\000-\177'`+"\n"))
	write := func(of, text string) {
		t.Helper()
		if err := durable.OS().WriteFile(program+"."+of, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	part := f.C.Parts().Secrets.Keepers.Part()
	giveUp := func() {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := part.Read(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("whoever gives up is told %v", err)
		}
	}
	wantRefused := func(when string) {
		t.Helper()
		wait.Until(t, when+": status says that the keeper does not open the seed", func() bool {
			return coordinatortest.KeeperFinding(coordinatortest.GetStatus(f).GetFindings(), errcode.KeeperUnopened) != ""
		})
	}
	write("file", "one")
	write("server", "one")
	coordinatortest.WantOnly(t, "first set", f.Set(coordinatortest.WithSeed(f.Manifest(""),
		fmt.Sprintf("seed:\n  threshold: 1\n  owners: [{name: host, keeper: \"exec:%s\"}]\n", program))), "")

	write("hold", "")
	first := make(chan struct{})
	go func() {
		defer close(first)
		_, _ = part.Read(t.Context()) // how it ends is up to how long it was held
	}()
	wait.Until(t, "the program is asked", func() bool { _, err := os.Stat(program + ".held"); return err == nil })
	write("server", "two")
	giveUp()
	if err := os.Remove(program + ".hold"); err != nil {
		t.Fatal(err)
	}
	<-first
	wantRefused("given up during another look")

	write("file", "two")
	if _, err := part.Read(t.Context()); err != nil {
		t.Errorf("with the next login: %v", err)
	}
	failed.Store(0)
	f.Link.Cut(coordinatortest.ErrDown)
	write("server", "three")
	giveUp()
	wait.Until(t, "the look fails", func() bool { return failed.Load() > 0 })
	f.Link.Cut(nil)
	wantRefused("the look failed")
}

// What a program said is not undone by who looks at files alone, and began before it was asked.
func TestProgramsAreAskedWhileSomebodyLooks(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, ownMachine)
	program := t.TempDir() + "/keeper"
	durabletest.WriteProgram(t, program, []byte("#!/bin/sh\n[ ! -e "+program+".refuses ] || exit 1\n"+
		`LC_ALL=C exec tr '\000-\177\200-\377' '\200-\377\000-\177'`+"\n"))
	coordinatortest.WantOnly(t, "first set", f.Set(coordinatortest.WithSeed(f.Manifest(""),
		fmt.Sprintf("seed:\n  threshold: 1\n  owners: [{name: host, keeper: \"exec:%s\"}, {name: own, keeper: \"file:%s\"}]\n",
			program, f.KeeperFile()))), "")
	keepers := f.C.Parts().Secrets.Keepers
	if changed, err := keepers.Part().Read(t.Context()); changed != "" || err != nil {
		t.Fatal(changed, err)
	}
	reads, goesOn := make(chan struct{}), make(chan struct{})
	own := sealed.Seed(&f.State().Head.Transition).Under() + "own"
	var held sync.Once
	f.Link.Lie(func(e store.Entry) store.Entry {
		if strings.HasPrefix(e.Key, own) {
			held.Do(func() {
				close(reads)
				<-goesOn
			})
		}
		return e
	})
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		if _, err := keepers.Findings(t.Context(), f.State()); err != nil {
			t.Errorf("look at files: %v", err)
		}
	}()
	<-reads
	f.Link.Lie(nil)
	if err := durable.OS().WriteFile(program+".refuses", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := keepers.Part().Read(t.Context()); err == nil {
		t.Error("a program that refuses opens the seed")
	}
	close(goesOn)
	<-looked
	if got := coordinatortest.KeeperFinding(coordinatortest.GetStatus(f).GetFindings(), errcode.KeeperUnopened); got == "" {
		t.Error("status does not say that the keeper does not open the seed")
	}
}

// eachLine is called with each line of a log.
type eachLine func(line string)

func (f eachLine) Write(line []byte) (int, error) {
	f(string(line))
	return len(line), nil
}
