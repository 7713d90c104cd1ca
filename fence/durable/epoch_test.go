package durable_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	files "github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed"
)

const (
	cluster = "test.example"
	holder  = "spiffe://test.example/shard/a"
)

type authority struct {
	fence.Authority
	key ed25519.PrivateKey
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return authority{fence.Authority{Cluster: cluster, Key: func(id string) (ed25519.PublicKey, bool) {
		return public, id == fence.KeyID(public)
	}}, key}
}

// under returns options with a grant.
func (a authority) under(t testing.TB, holderOf string, number uint32) durable.EpochOptions {
	t.Helper()
	text, err := fence.Grant{Cluster: cluster, Holder: holderOf, Number: number, AuthorityEpoch: 1}.Sign(a.key)
	if err != nil {
		t.Fatal(err)
	}
	return durable.EpochOptions{Grant: text, Holder: holder, Authority: a.Authority}
}

// believing returns options that believe another authority than the one that signed.
func believing(o durable.EpochOptions, a authority) durable.EpochOptions {
	o.Authority = a.Authority
	return o
}

// enrolling is how a start begins that may be the first: an enrolment that was interrupted
// goes on as another start.
func enrolling(disk files.FS, dir string, o durable.EpochOptions) (*durable.Epoch, error) {
	e, err := durable.OpenEpochOn(disk, dir, o)
	if errors.Is(err, durable.ErrMissing) {
		return durable.EnrolEpochOn(disk, dir, o)
	}
	return e, err
}

// mending returns options whose grant is new.
func mending(o durable.EpochOptions) durable.EpochOptions {
	return durable.Mending(o)
}

// begin opens an epoch and closes it again.
func begin(t testing.TB, dir string, o durable.EpochOptions) (fence.Life, error) {
	t.Helper()
	e, err := durable.OpenEpoch(dir, o)
	if err != nil {
		return fence.Life{}, err
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	return e.Life(), nil
}

// Each start is the next life, and names those before it; a new grant begins anew.
func TestLives(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	var lineage fence.Lineage
	// The grant of the file needs no key any more: a start is not stuck when it was retired.
	without := a.under(t, holder, 1)
	without.Authority.Key = func(string) (ed25519.PublicKey, bool) { return nil, false }
	for i, step := range []struct {
		open  func(string, durable.EpochOptions) (*durable.Epoch, error)
		o     durable.EpochOptions
		epoch fence.Epoch
		fresh bool // without lineage
		want  error
	}{
		{durable.OpenEpoch, durable.EpochOptions{}, 0, false, durable.ErrMissing},
		{durable.EnrolEpoch, durable.EpochOptions{}, fence.NewEpoch(0, 1), true, nil},
		{durable.EnrolEpoch, durable.EpochOptions{}, 0, false, durable.ErrEnrolled},
		{durable.EnrolEpoch, a.under(t, holder, 5), 0, false, durable.ErrEnrolled},
		{durable.OpenEpoch, durable.EpochOptions{}, fence.NewEpoch(0, 2), false, nil},
		{durable.OpenEpoch, a.under(t, holder, 1), fence.NewEpoch(1, 1), true, nil},
		{durable.OpenEpoch, durable.EpochOptions{}, fence.NewEpoch(1, 2), false, nil},
		{durable.OpenEpoch, a.under(t, holder, 1), fence.NewEpoch(1, 3), false, nil},
		{durable.MendEpoch, a.under(t, holder, 1), fence.NewEpoch(1, 4), false, nil}, // there is nothing to mend
		{durable.OpenEpoch, without, fence.NewEpoch(1, 5), false, nil},
		{durable.OpenEpoch, a.under(t, holder, 7), fence.NewEpoch(7, 1), true, nil},
		{durable.OpenEpoch, a.under(t, holder, 1), 0, false, durable.ErrSuperseded},
		{durable.OpenEpoch, durable.EpochOptions{}, fence.NewEpoch(7, 2), false, nil},
	} {
		e, err := step.open(dir, step.o)
		if !errors.Is(err, step.want) || step.want == nil && err != nil {
			t.Fatalf("step %d: %v, want %v", i, err, step.want)
		}
		if err != nil {
			continue
		}
		life := e.Life()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if step.fresh {
			lineage = nil
		}
		if life.Epoch != step.epoch || life.Lineage.String() != lineage.String() || life.Incarnation.IsZero() {
			t.Errorf("step %d: %v of lineage %v, want %v of %v", i, life.Epoch, life.Lineage, step.epoch, lineage)
		}
		if token, err := e.Sender().Next(0, nil); err != nil || token.Epoch != step.epoch || token.Sequence != 1 {
			t.Errorf("step %d: its first token is %v, %v", i, token, err)
		}
		if grant, err := a.OpenGrant(life.Grant); life.Epoch.Grant() != 0 {
			if g, ok := grant.Get(); !ok || g.Number != life.Epoch.Grant() {
				t.Errorf("step %d: it shows the grant %v, %v", i, g, err)
			}
		} else if life.Grant != "" {
			t.Errorf("step %d: it shows the grant %q", i, life.Grant)
		}
		lineage = append(lineage, life.Incarnation)
	}
	// The same grant, signed with a newer key, is the one to show from now on.
	later := newAuthority(t)
	resigned := later.under(t, holder, 7)
	e, err := durable.OpenEpoch(dir, resigned)
	if err != nil || e.Life().Epoch != fence.NewEpoch(7, 3) || e.Life().Grant != resigned.Grant {
		t.Fatalf("%v, %v", e, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	// A holder that is enrolled under a grant.
	e, err = durable.EnrolEpoch(t.TempDir(), a.under(t, holder, 3))
	if err != nil || e.Life().Epoch != fence.NewEpoch(3, 1) {
		t.Fatalf("%v, %v", e, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// The newest lives are named, and no start fails because there were many.
func TestManyLives(t *testing.T) {
	disk := durabletest.NewDisk().FS()
	if err := disk.MkdirAll("/h"); err != nil {
		t.Fatal(err)
	}
	var all fence.Lineage
	for i := range signed.MaxLineage + 10 {
		e, err := enrolling(disk, "/h", durable.EpochOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if want := all[max(0, len(all)-signed.MaxLineage):]; e.Life().Lineage.String() != want.String() ||
			e.Life().Epoch != fence.NewEpoch(0, uint32(i+1)) {
			t.Fatalf("life %d: %v with %d before it", i+1, e.Life().Epoch, len(e.Life().Lineage))
		}
		all = append(all, e.Life().Incarnation)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// No counter begins anew by itself, and every refusal leaves the file as it is.
func TestEpochRefuses(t *testing.T) {
	a := newAuthority(t)
	good := func(t *testing.T, dir string) {
		e, err := durable.EnrolEpoch(dir, a.under(t, holder, 3))
		if err == nil {
			err = e.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	file := func(text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "epoch"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	last := file(string(durable.EncodeEpoch(fence.Life{Epoch: fence.NewEpoch(0, math.MaxUint32), Incarnation: fence.NewIncarnation()})))
	none := func(*testing.T, string) {}
	mend := mending(a.under(t, holder, 9))
	for _, test := range []struct {
		name   string
		before func(*testing.T, string)
		o      durable.EpochOptions
		want   error
		mended bool // by a new grant
	}{
		{"a file that is missing", none, durable.EpochOptions{}, durable.ErrMissing, true},
		{"a file that is missing, and a grant of before", none, a.under(t, holder, 9), durable.ErrMissing, true},
		{"an empty file", file(""), durable.EpochOptions{}, durable.ErrCorrupt, true},
		{"an empty file, and a grant of before", file(""), a.under(t, holder, 9), durable.ErrCorrupt, true},
		{"a number alone", file("12345"), durable.EpochOptions{}, durable.ErrCorrupt, true},
		{"a negative number", file("-50\n"), durable.EpochOptions{}, durable.ErrCorrupt, true},
		{"a file that is too long", file(strings.Repeat("x", 1<<20)), durable.EpochOptions{}, durable.ErrCorrupt, true},
		{"the last life of a grant", last, durable.EpochOptions{}, fence.ErrExhausted, true},
		{"an older grant", good, a.under(t, holder, 2), durable.ErrSuperseded, true},
		{"an older grant that is said to be new", good, mending(a.under(t, holder, 2)), durable.ErrSuperseded, true},
		{"a grant of somebody else", good, a.under(t, "spiffe://test.example/shard/b", 4), fence.ErrUntrusted, true},
		{"a grant of nobody's authority", good, believing(newAuthority(t).under(t, holder, 4), a), fence.ErrUntrusted, true},
		{"a new grant of nobody's authority", none, believing(mending(newAuthority(t).under(t, holder, 4)), a), fence.ErrUntrusted, true},
		{"to mend, and no grant", none, mending(durable.EpochOptions{}), durable.ErrMissing, true},
		{"what cannot be read, and a new grant", func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, "epoch"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, mend, files.ErrNotRegular, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			test.before(t, dir)
			before, _ := os.ReadFile(filepath.Join(dir, "epoch"))
			life, err := begin(t, dir, test.o)
			if !errors.Is(err, test.want) {
				t.Fatalf("%v, %v, want %v", life.Epoch, err, test.want)
			}
			if after, _ := os.ReadFile(filepath.Join(dir, "epoch")); !bytes.Equal(before, after) {
				t.Errorf("the file was changed from %q to %q", before, after)
			}
			if life, err := begin(t, dir, mend); test.mended && (err != nil || life.Epoch != fence.NewEpoch(9, 1)) {
				t.Errorf("with a new grant: %v, %v", life.Epoch, err)
			}
		})
	}
}

// unreadable is a disk whose file is there, and is not read.
type unreadable struct{ files.FS }

func (unreadable) ReadFile(string, int64) ([]byte, error) { return nil, syscall.EMFILE }

// A file that could not be read may be whole: no grant writes over it.
func TestUnreadEpochIsKept(t *testing.T) {
	a, disk := newAuthority(t), durabletest.NewDisk().FS()
	if err := disk.MkdirAll("/h"); err != nil {
		t.Fatal(err)
	}
	open := func(disk files.FS, o durable.EpochOptions) (fence.Epoch, error) {
		e, err := enrolling(disk, "/h", o)
		if err != nil {
			return 0, err
		}
		return e.Life().Epoch, e.Close()
	}
	for range 2 {
		if _, err := open(disk, a.under(t, holder, 7)); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []durable.EpochOptions{{}, a.under(t, holder, 7), a.under(t, holder, 2), mending(a.under(t, holder, 9))} {
		if epoch, err := open(unreadable{disk}, o); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("%v, %v", epoch, err)
		}
	}
	if epoch, err := open(disk, durable.EpochOptions{}); err != nil || epoch != fence.NewEpoch(7, 3) {
		t.Errorf("%v, %v", epoch, err)
	}
}

// A file of which any bit is another one, or the end is missing, is refused.
func TestEpochDamaged(t *testing.T) {
	a := newAuthority(t)
	disk := durabletest.NewDisk()
	if err := disk.FS().MkdirAll("/h"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		e, err := enrolling(disk.FS(), "/h", a.under(t, holder, 3))
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := disk.FS().ReadFile("/h/epoch", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(text []byte, how string) {
		t.Helper()
		disk.Put("/h/epoch", text)
		e, err := enrolling(disk.FS(), "/h", durable.EpochOptions{})
		if !errors.Is(err, durable.ErrCorrupt) {
			t.Fatalf("%s: %v, %v", how, e, err)
		}
	}
	for i := range whole {
		refused(whole[:i], fmt.Sprintf("cut at %d", i))
		for bit := range 8 {
			text := bytes.Clone(whole)
			text[i] ^= 1 << bit
			refused(text, fmt.Sprintf("bit %d of byte %d", bit, i))
		}
	}
	refused(append(bytes.Clone(whole), '\n'), "a line more")
}

// The power goes at each step of a start, and the disk comes back in each way that it may:
// no epoch is begun twice, and none is stuck.
func TestEpochCrash(t *testing.T) {
	for _, after := range durabletest.Afters() {
		for n := 1; ; n++ {
			disk := durabletest.NewDisk()
			if err := disk.FS().MkdirAll("/h"); err != nil {
				t.Fatal(err)
			}
			seen := make(map[fence.Epoch]bool)
			last := fence.Epoch(0)
			start := func() error {
				e, err := enrolling(disk.FS(), "/h", durable.EpochOptions{})
				if err != nil {
					return err
				}
				if epoch := e.Life().Epoch; seen[epoch] || epoch <= last {
					t.Fatalf("%v, call %d: epoch %v after %v", after, n, epoch, last)
				}
				last = e.Life().Epoch
				seen[last] = true
				return e.Close()
			}
			if err := start(); err != nil {
				t.Fatal(err)
			}
			disk.FailAt(n, durabletest.ErrPowerCut)
			_ = start()
			failed := disk.Failed()
			disk.Restart(after)
			for range 2 {
				if err := start(); err != nil {
					t.Fatalf("%v, call %d: %v", after, n, err)
				}
			}
			if !failed {
				break
			}
		}
	}
}

// A disk that fails at any step gives no epoch, and the next start does.
func TestEpochDiskErrors(t *testing.T) {
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
		for n := 1; ; n++ {
			disk := durabletest.NewDisk()
			if err := disk.FS().MkdirAll("/h"); err != nil {
				t.Fatal(err)
			}
			fs := disk.FS()
			disk.FailAt(n, fault)
			e, err := enrolling(fs, "/h", durable.EpochOptions{})
			if !disk.Failed() {
				break
			}
			if err == nil { // what failed was not needed for it
				_ = e.Close()
			} else if !errors.Is(err, fault) {
				t.Errorf("%v at call %d: %v", fault, n, err)
			}
			again, err := enrolling(fs, "/h", durable.EpochOptions{})
			if err != nil {
				t.Fatalf("after %v at call %d: %v", fault, n, err)
			}
			if e != nil && again.Life().Epoch <= e.Life().Epoch {
				t.Errorf("after %v at call %d: %v twice", fault, n, again.Life().Epoch)
			}
		}
	}
}

// Two processes never have one directory at once, and never one epoch after another.
func TestTwoProcesses(t *testing.T) {
	if dir := os.Getenv("FEALTY_TEST_EPOCHS"); dir != "" {
		beHolder(dir)
		return
	}
	dir := t.TempDir()
	const processes, starts = 4, 100
	var out [processes]bytes.Buffer
	var running [processes]*exec.Cmd
	for i := range running {
		cmd := exec.Command(os.Args[0], "-test.run=^TestTwoProcesses$")
		cmd.Env = append(os.Environ(), "FEALTY_TEST_EPOCHS="+dir, "FEALTY_TEST_STARTS="+strconv.Itoa(starts))
		cmd.Stdout, cmd.Stderr = &out[i], os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running[i] = cmd
	}
	seen := make(map[string]bool)
	for i, cmd := range running {
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v\n%s", i, err, out[i].String())
		}
		for line := range strings.Lines(out[i].String()) {
			if epoch, ok := strings.CutPrefix(line, "epoch "); ok {
				if seen[epoch] {
					t.Errorf("epoch %s was begun twice", epoch)
				}
				seen[epoch] = true
			}
		}
	}
	if len(seen) != processes*starts {
		t.Errorf("%d epochs, want %d", len(seen), processes*starts)
	}
}

// beHolder opens epochs whenever nobody else has the directory.
func beHolder(dir string) {
	starts, _ := strconv.Atoi(os.Getenv("FEALTY_TEST_STARTS"))
	for starts > 0 {
		e, err := enrolling(files.OS(), dir, durable.EpochOptions{})
		if errors.Is(err, durable.ErrLocked) {
			continue
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("epoch", e.Life().Epoch)
		starts--
		if err := e.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// While a process lives nobody else begins an epoch; and a directory that cannot be
// written gives none.
func TestEpochIsHeld(t *testing.T) {
	disk := durabletest.NewDisk()
	if err := disk.FS().MkdirAll("/h"); err != nil {
		t.Fatal(err)
	}
	e, err := enrolling(disk.FS(), "/h", durable.EpochOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if two, err := enrolling(disk.FS(), "/h", durable.EpochOptions{}); !errors.Is(err,
		durable.ErrLocked) {
		t.Errorf("beside it: %v, %v", two, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	disk.Refuse(syscall.EROFS)
	if two, err := enrolling(disk.FS(), "/h", durable.EpochOptions{}); !errors.Is(err,
		syscall.EROFS) {
		t.Errorf("on a disk that takes no writes: %v, %v", two, err)
	}
	disk.Refuse(nil)
}

// The first start makes the folder that it is given; a later one that names another folder is told so, and makes none.
func TestFoldersAreMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	if e, err := durable.OpenEpoch(dir, durable.EpochOptions{}); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "EnrolEpoch") {
		t.Errorf("open an epoch in no folder: %v, %v", e, err)
	}
	if l, err := durable.OpenLedger(dir, fence.LedgerOptions{}); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "EnrolLedger") {
		t.Errorf("open a ledger in no folder: %v, %v", l, err)
	}
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening made a folder: %v", err)
	}
	e, err := durable.EnrolEpoch(dir, durable.EpochOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", info, err)
	}
	l, err := durable.EnrolLedger(filepath.Join(dir, "ledger"), fence.LedgerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
}

// The authority is asked while the folder is held, with what the file has; what it answers is
// begun under, and nothing is handed out if it was asked in vain.
func TestEpochAsks(t *testing.T) {
	a := newAuthority(t)
	dir := t.TempDir()
	var newest []string
	var asked fence.Incarnation
	answering := func(grant string, err error) durable.EpochOptions {
		return durable.EpochOptions{Holder: holder, Authority: a.Authority,
			Ask: func(have string, incarnation fence.Incarnation) (string, error) {
				newest, asked = append(newest, have), incarnation
				if _, err := durable.OpenEpoch(dir, durable.EpochOptions{}); !errors.Is(err, durable.ErrLocked) {
					t.Errorf("while the authority is asked another process begins: %v", err)
				}
				return grant, err
			}}
	}
	three, nine := a.under(t, holder, 3).Grant, a.under(t, holder, 9).Grant
	nobody := errors.New("nobody answers")
	if _, err := durable.EnrolEpoch(dir, answering("", nobody)); !errors.Is(err, nobody) {
		t.Fatalf("enrolled in vain: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "epoch")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it left a file: %v", err)
	}
	for _, step := range []struct {
		name   string
		begin  func(string, durable.EpochOptions) (*durable.Epoch, error)
		grant  string
		newest string
		want   fence.Epoch
	}{
		{"the first start", durable.EnrolEpoch, three, "", fence.NewEpoch(3, 1)},
		{"the next grant", durable.OpenEpoch, nine, three, fence.NewEpoch(9, 1)},
		{"no grant", durable.OpenEpoch, "", nine, fence.NewEpoch(9, 2)},
		{"the same grant", durable.OpenEpoch, nine, nine, fence.NewEpoch(9, 3)},
	} {
		e, err := step.begin(dir, answering(step.grant, nil))
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if e.Life().Epoch != step.want || newest[len(newest)-1] != step.newest || e.Life().Incarnation != asked {
			t.Errorf("%s: epoch %v, want %v; it showed %q, and asked as %v while it is %v", step.name, e.Life().Epoch,
				step.want, newest[len(newest)-1], asked, e.Life().Incarnation)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	before := len(newest)
	if _, err := durable.EnrolEpoch(dir, answering(nine, nil)); !errors.Is(err, durable.ErrEnrolled) {
		t.Errorf("enrolled twice: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "epoch")); err != nil {
		t.Fatal(err)
	}
	if _, err := durable.OpenEpoch(dir, answering(nine, nil)); !errors.Is(err, durable.ErrMissing) || len(newest) != before {
		t.Errorf("a lost file: %v; a grant was used up for it: %v", err, len(newest) != before)
	}
	if _, err := durable.MendEpoch(dir, answering("", nil)); !errors.Is(err, durable.ErrMissing) {
		t.Errorf("a lost file is mended without a grant: %v", err)
	}
	e, err := durable.MendEpoch(dir, answering(a.under(t, holder, 10).Grant, nil))
	if err != nil || e.Life().Epoch != fence.NewEpoch(10, 1) {
		t.Fatalf("mended: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}
