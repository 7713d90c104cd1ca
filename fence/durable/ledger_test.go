package durable_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	files "github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed"
)

var (
	_ fence.Marks = (*durable.Ledger)(nil)

	strict    = fence.LedgerOptions{Cluster: cluster}
	lenient   = fence.LedgerOptions{Cluster: cluster, BelieveEpochs: true}
	inDomains = fence.LedgerOptions{Cluster: cluster, RequireDomain: true}
)

// process is one life of a holder.
type process struct {
	holder  string
	epoch   fence.Epoch
	me      fence.Incarnation
	lineage fence.Lineage
	grant   fence.Verified[fence.Grant]
}

// life returns the nth life of a holder under a grant.
func life(holder string, grant, n uint32) process {
	p := process{holder: holder, epoch: fence.NewEpoch(grant, n)}
	for i := uint32(1); i <= n; i++ {
		p.lineage = append(p.lineage, fence.Incarnation{byte(grant), byte(i), 1})
	}
	p.me = p.lineage[n-1]
	p.lineage = p.lineage[:n-1]
	return p
}

func (p process) claim(resource string, sequence uint64) fence.Claim {
	return fence.Claim{Holder: p.holder, Resource: resource, Lineage: p.lineage, Grant: p.grant, Token: fence.Token{
		Epoch: p.epoch, Sequence: sequence, Incarnation: p.me, Digest: fence.DigestOf(fmt.Append(nil, p.me, sequence))}}
}

// inside returns a claim that says where its resource is, and under which ownership.
func inside(c fence.Claim, domain string, ownership uint64) fence.Claim {
	c.Domain, c.Token.Ownership = domain, ownership
	return c
}

func (a authority) granted(t testing.TB, holder string, number uint32, authorityEpoch uint64) fence.Verified[fence.Grant] {
	t.Helper()
	text, err := fence.Grant{Cluster: cluster, Holder: holder, Number: number, AuthorityEpoch: authorityEpoch}.Sign(a.key)
	if err != nil {
		t.Fatal(err)
	}
	v, err := a.OpenGrant(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (a authority) assign(t testing.TB, domain, holder string, ownership, authorityEpoch uint64) fence.Verified[fence.Assignment] {
	t.Helper()
	text, err := fence.Assignment{Cluster: cluster, Domain: domain, Holder: holder, Ownership: ownership,
		AuthorityEpoch: authorityEpoch}.Sign(a.key)
	if err != nil {
		t.Fatal(err)
	}
	v, err := a.OpenAssignment(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func reasonOf(err error) fence.Reason {
	if err == nil {
		return ""
	}
	if r, ok := errors.AsType[*fence.RefusedError](err); ok {
		return r.Reason
	}
	if r, ok := errors.AsType[*fence.PromiseError](err); ok {
		return r.Reason
	}
	return fence.Reason("other: " + err.Error())
}

// newDisk returns a disk with a folder for a receiver.
func newDisk(t testing.TB) *durabletest.Disk {
	t.Helper()
	disk := durabletest.NewDisk()
	if err := disk.FS().MkdirAll("/r"); err != nil {
		t.Fatal(err)
	}
	return disk
}

// enrolled returns a new ledger on a disk.
func enrolled(t testing.TB, disk *durabletest.Disk, o fence.LedgerOptions) *durable.Ledger {
	t.Helper()
	l, err := durable.EnrolLedgerOn(disk.FS(), "/r", o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dump is all that a ledger remembers.
func dump(l *fence.Ledger) map[string]bool {
	all := make(map[string]bool)
	for c := range l.All() {
		all[fmt.Sprint(c)] = true
	}
	return all
}

func same(a, b map[string]bool) bool {
	for k := range a {
		if !b[k] {
			return false
		}
	}
	return len(a) == len(b)
}

// A receiver that is started again refuses whom it refused before, and remembers whose
// domains are. Its directory is its own.
func TestLedgerOutlivesItsProcess(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	first, second := life("s1", 0, 1), life("s1", 0, 2)
	for i, step := range []struct {
		do   any // a claim, an assignment to promise, or the name of a resource to forget
		want fence.Reason
	}{
		{first.claim("m", 1), ""}, {first.claim("m", 1), fence.ReasonDuplicate}, {first.claim("m", 2), ""},
		{first.claim("m", 1), fence.ReasonStale}, {second.claim("m", 1), ""}, {first.claim("m", 3), fence.ReasonStale},
		{first.claim("n", 4), fence.ReasonStale},
		{a.assign(t, "d", "s1", 1, 1), ""}, {inside(second.claim("d-1", 2), "d", 1), ""}, {a.assign(t, "d", "s1", 1, 1), ""},
		{a.assign(t, "d", "s2", 2, 1), ""}, {inside(second.claim("d-1", 3), "", 1), fence.ReasonMoved},
		{a.assign(t, "d", "s1", 1, 1), fence.ReasonMoved}, {inside(life("s2", 0, 1).claim("d-1", 1), "", 2), ""},
		{inside(life("s2", 0, 1).claim("d-1", 2), "e", 2), fence.ReasonDomain},
		{second.claim("gone", 9), ""}, {"gone", ""}, {"gone", ""}, {second.claim("gone", 9), fence.ReasonLate},
		{second.claim("gone", 10), ""},
	} {
		l, err := durable.OpenLedger(dir, lenient)
		if i == 0 {
			if !errors.Is(err, durable.ErrMissing) {
				t.Fatalf("no file: %v, %v", l, err)
			}
			l, err = durable.EnrolLedger(dir, lenient)
		}
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if two, err := durable.OpenLedger(dir, lenient); !errors.Is(err, durable.ErrLocked) {
			t.Errorf("step %d: beside it: %v, %v", i, two, err)
		}
		before := dump(durable.Memory(l))
		switch do := step.do.(type) {
		case fence.Claim:
			err = l.Admit(t.Context(), do)
			if check := l.Check(do); step.want != "" && reasonOf(check) != step.want {
				t.Errorf("step %d: Check says %v", i, check)
			}
		case fence.Verified[fence.Assignment]:
			err = l.Promise(t.Context(), do)
		case string:
			err = l.Forget(t.Context(), do)
		}
		if got := reasonOf(err); got != step.want {
			t.Fatalf("step %d: %q, want %q", i, got, step.want)
		}
		if step.want != "" && !same(before, dump(durable.Memory(l))) {
			t.Errorf("step %d: a refusal changed the ledger", i)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{l.Admit(t.Context(), first.claim("late", 1)), l.Forget(t.Context(), "m"), l.Rewrite(t.Context()),
			l.Promise(t.Context(), a.assign(t, "e", "s1", 1, 1))} {
			if !errors.Is(err, fs.ErrClosed) {
				t.Errorf("step %d: after Close: %v", i, err)
			}
		}
	}
	if l, err := durable.EnrolLedger(dir, lenient); !errors.Is(err, durable.ErrEnrolled) {
		t.Errorf("enrolled again: %v, %v", l, err)
	}
	l, err := durable.OpenLedger(dir, lenient)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.DomainOf("d-1") != "d" || l.Promised("d") != (fence.Assigned{Ownership: 2, Holder: "s2"}) ||
		l.Mark(fence.Pair{Holder: "s1", Resource: "gone"}).Sequence != 10 || l.ProcessOf("s1").Epoch != second.epoch {
		t.Errorf("it remembers %v", dump(durable.Memory(l)))
	}
}

// No ledger begins anew by itself, and every refusal leaves the file as it is.
func TestLedgerRefuses(t *testing.T) {
	enrol := func(o fence.LedgerOptions) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			l, err := durable.EnrolLedger(dir, o)
			if err == nil {
				err = errors.Join(l.Admit(t.Context(), inside(life("s1", 1, 1).claim("m", 1), "", 0)), l.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	file := func(text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "ledger"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	none := func(*testing.T, string) {}
	for _, test := range []struct {
		name   string
		before func(*testing.T, string)
		open   func(string) (*durable.Ledger, error)
		want   error
	}{
		{"a file that is missing", none, nil, durable.ErrMissing},
		{"an empty file", file(""), nil, durable.ErrCorrupt},
		{"a number alone", file("-50\n"), nil, durable.ErrCorrupt},
		{"zeros", file(strings.Repeat("\x00", 4096)), nil, durable.ErrCorrupt},
		{"the beginning of a head", file("FLog"), nil, durable.ErrCorrupt},
		{"much of nothing", file(strings.Repeat("x", 4<<20)), nil, durable.ErrCorrupt},
		{"what cannot be read", func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, "ledger"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, nil, files.ErrNotRegular},
		{"a ledger of another cluster", enrol(fence.LedgerOptions{Cluster: "other.example", BelieveEpochs: true}), nil,
			durable.ErrOtherCluster},
		{"an enrolment where one is", enrol(lenient), func(dir string) (*durable.Ledger, error) {
			return durable.EnrolLedger(dir, lenient)
		}, durable.ErrEnrolled},
		{"an enrolment where one is damaged", file("x"), func(dir string) (*durable.Ledger, error) {
			return durable.EnrolLedger(dir, lenient)
		}, durable.ErrEnrolled},
		{"a mend without an authority", file(""), func(dir string) (*durable.Ledger, error) {
			return durable.MendLedger(dir, fence.LedgerOptions{RequireDomain: true}, 9)
		}, errAny},
		{"a mend that believes epochs", enrol(lenient), func(dir string) (*durable.Ledger, error) {
			return durable.MendLedger(dir, lenient, 9)
		}, errAny},
		{"a mend of an older copy, and without domains", enrol(fence.LedgerOptions{Cluster: cluster, BelieveEpochs: true}),
			func(dir string) (*durable.Ledger, error) { return durable.MendLedger(dir, strict, 9) }, errAny},
		{"a mend without the file, and without domains", none, func(dir string) (*durable.Ledger, error) {
			return durable.MendLedger(dir, strict, 9)
		}, durable.ErrMissing},
		{"a mend since no authority epoch", none, func(dir string) (*durable.Ledger, error) {
			return durable.MendLedger(dir, inDomains, 0)
		}, durable.ErrSuperseded},
		{"a mend of what cannot be read", func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, "ledger"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, func(dir string) (*durable.Ledger, error) { return durable.MendLedger(dir, inDomains, 9) }, files.ErrNotRegular},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			test.before(t, dir)
			before, _ := os.ReadFile(filepath.Join(dir, "ledger"))
			open := test.open
			if open == nil {
				open = func(dir string) (*durable.Ledger, error) { return durable.OpenLedger(dir, lenient) }
			}
			l, err := open(dir)
			if err == nil || test.want != errAny && !errors.Is(err, test.want) {
				t.Fatalf("%v, %v, want %v", l, err, test.want)
			}
			if after, _ := os.ReadFile(filepath.Join(dir, "ledger")); !bytes.Equal(before, after) {
				t.Errorf("the file was changed to %q", after)
			}
		})
	}
	// A file of a later release is whole, and nothing writes over it.
	dir := t.TempDir()
	later := durable.WithFrame(nil, []byte("l\x00\x10fealty-ledger v2, and more"))
	if err := os.WriteFile(filepath.Join(dir, "ledger"), later, 0o600); err != nil {
		t.Fatal(err)
	}
	_, opened := durable.OpenLedger(dir, inDomains)
	_, mended := durable.MendLedger(dir, inDomains, 9)
	for _, err := range []error{opened, mended} {
		if err == nil || errors.Is(err, durable.ErrCorrupt) || !strings.Contains(err.Error(), `"fealty-ledger v2"`) {
			t.Errorf("of a later release: %v", err)
		}
	}
	if after, _ := os.ReadFile(filepath.Join(dir, "ledger")); !bytes.Equal(later, after) {
		t.Error("it was written over")
	}
	if l, err := durable.OpenLedger(filepath.Join(t.TempDir(), "none"), lenient); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v, %v", l, err)
	}
	disk := newDisk(t)
	if err := enrolled(t, disk, lenient).Close(); err != nil {
		t.Fatal(err)
	}
	disk.Refuse(syscall.EROFS)
	if l, err := durable.OpenLedgerOn(disk.FS(), "/r", lenient); !errors.Is(err, syscall.EROFS) {
		t.Errorf("not writable: %v, %v", l, err)
	}
}

var errAny = errors.New("any")

// image returns a file of several frames, the last of them with names of these lengths, and
// where each begins.
func image(t *testing.T, disk *durabletest.Disk, long ...int) (file []byte, frames []int) {
	t.Helper()
	a := newAuthority(t)
	read := func() []byte {
		data, err := disk.FS().ReadFile("/r/ledger", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	l := enrolled(t, disk, lenient)
	frames = []int{0, bytes.LastIndex(read(), []byte("FLog"))}
	steps := []func() error{
		func() error { return l.Promise(t.Context(), a.assign(t, "d", "s1", 1, 1)) },
		func() error { return l.Admit(t.Context(), inside(life("s1", 0, 1).claim("m", 1), "d", 1)) },
		func() error { return l.Forget(t.Context(), "m") },
	}
	for i, n := range long {
		steps = append(steps, func() error {
			return l.Admit(t.Context(), life(strings.Repeat("s", n), 0, 1).claim(strings.Repeat("n", n), uint64(i+1)))
		})
	}
	for _, do := range steps {
		frames = append(frames, len(read()))
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	file = read()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return file, frames
}

// A file of which any bit is another one is refused, the last frame included: it may have
// been acknowledged. So is one of which a frame is missing, is there twice, or has moved.
func TestLedgerDamaged(t *testing.T) {
	disk := newDisk(t)
	whole, frames := image(t, disk, 8, signed.MaxName, 9)
	refused := func(text []byte, how string) {
		t.Helper()
		disk.Put("/r/ledger", text)
		if l, err := durable.OpenLedgerOn(disk.FS(), "/r", lenient); !errors.Is(err, durable.ErrCorrupt) ||
			!strings.Contains(err.Error(), "MendLedger") {
			t.Fatalf("%s: %v, %v", how, l, err)
		}
	}
	for i := range whole {
		for bit := range 8 {
			if i >= frames[len(frames)-2] && i < frames[len(frames)-1] && bit != i%8 {
				continue // of the long frame one of each byte is enough
			}
			text := bytes.Clone(whole)
			text[i] ^= 1 << bit
			refused(text, fmt.Sprintf("bit %d of byte %d", bit, i))
		}
	}
	for i := range frames[2] {
		refused(whole[:i], fmt.Sprintf("what the file was made with, cut at %d", i))
	}
	frame := func(i int) []byte {
		if i+1 < len(frames) {
			return whole[frames[i]:frames[i+1]]
		}
		return whole[frames[i]:]
	}
	for i := range len(frames) - 1 {
		refused(slices.Concat(whole[:frames[i]], whole[frames[i+1]:]), fmt.Sprintf("without frame %d", i))
		refused(slices.Concat(whole[:frames[i]], frame(i), frame(i), whole[frames[i+1]:]), fmt.Sprintf("frame %d twice", i))
		refused(slices.Concat(whole[:frames[i]], frame(i+1), frame(i), whole[frames[i]+len(frame(i))+len(frame(i+1)):]),
			fmt.Sprintf("frame %d after the next", i))
		// A place that reads as zeros, with frames behind it, was written once.
		text := bytes.Clone(whole)
		clear(text[frames[i]:frames[i+1]])
		refused(text, fmt.Sprintf("frame %d as zeros", i))
	}
	const sector = 512
	for i := 0; i+sector < frames[len(frames)-1]; i += sector {
		text := bytes.Clone(whole)
		clear(text[i : i+sector])
		refused(text, fmt.Sprintf("sector %d as zeros", i/sector))
	}
	refused(append(bytes.Clone(whole), frame(len(frames)-1)...), "the last frame twice")
	refused(append(bytes.Clone(whole), 'x'), "a byte more")
	refused(append(bytes.Clone(whole), make([]byte, 4<<20)...), "more zeros than a frame has")
	other, at := image(t, newDisk(t), 8)
	refused(append(bytes.Clone(whole), other[at[len(at)-1]:]...), "a frame of another file")
	// The file itself is whole.
	disk.Put("/r/ledger", whole)
	if _, err := durable.OpenLedgerOn(disk.FS(), "/r", lenient); err != nil {
		t.Fatal(err)
	}
}

// A frame whose checksums are right holds nothing that a ledger does not write.
func TestLedgerRecords(t *testing.T) {
	disk := newDisk(t)
	whole, _ := image(t, disk, 8)
	text := func(s string) string { return string([]byte{byte(len(s) >> 8), byte(len(s))}) + s }
	number := func(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }
	digest, one := strings.Repeat("x", 16), number(1)
	for _, test := range []struct {
		name, body string
		refused    bool
	}{
		{"a promise", "d" + text("e") + one + text("s1"), false},
		{"a promise to nobody", "d" + text("e") + one + text(""), false},
		{"the highest ownership", "d" + text("e") + number(math.MaxUint64) + text("s1"), false},
		{"an ownership of 0", "d" + text("e") + number(0) + text("s1"), true},
		{"a promise of no domain", "d" + text("") + one + text("s1"), true},
		{"a holder", "h" + text("s3") + one + digest + number(0), false},
		{"a holder of life 0", "h" + text("s3") + number(1<<32) + digest + number(0), true},
		{"a holder without incarnation", "h" + text("s3") + one + strings.Repeat("\x00", 16) + number(0), true},
		{"no holder", "h" + text("") + one + digest + number(0), true},
		{"a mark", "p" + text("s3") + text("m") + text("") + one + one + digest, false},
		{"a mark of life 0", "p" + text("s3") + text("m") + text("") + number(0) + one + digest, true},
		{"a mark of sequence 0", "p" + text("s3") + text("m") + text("") + one + number(0) + digest, true},
		{"the longest name", "f" + text(strings.Repeat("n", signed.MaxName)), false},
		{"a longer name", "f" + text(strings.Repeat("n", signed.MaxName+1)), true},
		{"a name that is not printable", "f" + text("m\n"), true},
		{"a record of another kind", "x", true},
		{"a record that is cut", "f\x00\x09m", true},
		{"a number that is cut", "d" + text("e") + one[:5], true},
		{"a good record, and another", "f" + text("m") + "x", true},
	} {
		disk.Put("/r/ledger", durable.WithFrame(whole, []byte(test.body)))
		l, err := durable.OpenLedgerOn(disk.FS(), "/r", lenient)
		if errors.Is(err, durable.ErrCorrupt) != test.refused || !test.refused && err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if err == nil {
			_ = l.Close()
		}
	}
}

// tears returns each way in which a frame at byte at of a file can be torn: cut at any
// byte, or with zeros in place of all from there on, or in place of any of its sectors.
func tears(at int, frame []byte) map[string][]byte {
	const sector = 512
	all := make(map[string][]byte)
	for i := range frame {
		all[fmt.Sprintf("cut at %d", i)] = frame[:i]
		all[fmt.Sprintf("zeros from %d", i)] = append(bytes.Clone(frame[:i]), make([]byte, len(frame)-i)...)
		all[fmt.Sprintf("a byte at %d, then cut", i)] = append(make([]byte, i), frame[i])
	}
	delete(all, "a byte at 0, then cut")
	sectors := (at+len(frame)-1)/sector - at/sector + 1
	for lost := 1; lost < 1<<sectors; lost++ {
		text := bytes.Clone(frame)
		for i := range text {
			if lost>>((at+i)/sector-at/sector)&1 != 0 {
				text[i] = 0
			}
		}
		all[fmt.Sprintf("sectors %b lost", lost)] = text
	}
	return all
}

// The power goes while the last frame is written, and any part of it made it to the disk:
// what was acknowledged is there, and the ledger opens.
func TestLedgerTorn(t *testing.T) {
	// Short, and over three sectors.
	for _, long := range []int{8, signed.MaxName} {
		disk := newDisk(t)
		whole, frames := image(t, disk, long)
		last := frames[len(frames)-1]
		disk.Put("/r/ledger", whole[:last])
		l, err := durable.OpenLedgerOn(disk.FS(), "/r", lenient)
		if err != nil {
			t.Fatal(err)
		}
		want := dump(durable.Memory(l))
		if sectors := (len(whole)-1)/512 - last/512 + 1; long > 8 && sectors < 3 {
			t.Fatalf("it is over %d sectors", sectors)
		}
		for how, tail := range tears(last, whole[last:]) {
			disk.Restart(durabletest.Killed)
			disk.Put("/r/ledger", slices.Concat(whole[:last], tail))
			l, err := durable.OpenLedgerOn(disk.FS(), "/r", lenient)
			if strings.HasPrefix(how, "a byte at") {
				// No disk leaves that within one sector, so that it may be refused; never believed.
				if err == nil && !same(want, dump(durable.Memory(l))) {
					t.Fatalf("%s: %v", how, dump(durable.Memory(l)))
				}
				continue
			}
			if err != nil || !same(want, dump(durable.Memory(l))) {
				t.Fatalf("%d, %s: %v", long, how, err)
			}
			if err := l.Admit(t.Context(), life("s3", 0, 1).claim("next", 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Every call to the disk fails, or is the last, in a course of all that a ledger does: what
// was acknowledged is there afterwards, what was refused is not, and what failed is there
// whole or not at all.
func TestLedgerCrash(t *testing.T) {
	a := newAuthority(t)
	course := []func(l *durable.Ledger) error{
		func(l *durable.Ledger) error { return l.Promise(t.Context(), a.assign(t, "d", "s1", 1, 1)) },
		func(l *durable.Ledger) error {
			return l.Admit(t.Context(), inside(life("s1", 0, 1).claim("m", 1), "d", 1))
		},
		func(l *durable.Ledger) error {
			return l.Admit(t.Context(), inside(life("s1", 0, 1).claim("m", 2), "d", 1))
		},
		func(l *durable.Ledger) error { return l.Rewrite(t.Context()) },
		func(l *durable.Ledger) error {
			return l.Admit(t.Context(), inside(life("s1", 0, 2).claim("n", 1), "d", 1))
		},
		func(l *durable.Ledger) error { return l.Forget(t.Context(), "m") },
		func(l *durable.Ledger) error { return l.Promise(t.Context(), a.assign(t, "d", "s2", 2, 1)) },
	}
	// The ledger's states after each of them.
	disk := newDisk(t)
	l := enrolled(t, disk, lenient)
	states := []map[string]bool{dump(durable.Memory(l))}
	for _, do := range course {
		if err := do(l); err != nil {
			t.Fatal(err)
		}
		states = append(states, dump(durable.Memory(l)))
	}
	seen := make(map[string]bool)
	for _, fault := range []error{durabletest.ErrPowerCut, syscall.EIO, syscall.ENOSPC} {
		for _, after := range durabletest.Afters() {
			for n := 1; ; n++ {
				name := fmt.Sprintf("%v, %v at call %d", after, fault, n)
				disk := newDisk(t)
				l := enrolled(t, disk, lenient)
				disk.FailAt(n, fault)
				done, failed := 0, error(nil)
				for i, do := range course {
					if failed = do(l); failed != nil && (i != 3 || l.Status().Broken != nil) {
						break
					}
					failed = nil // written anew it was not, and it goes on
					done++
				}
				if !disk.Failed() {
					break
				}
				if failed == nil && fault == durabletest.ErrPowerCut {
					t.Fatalf("%s: nobody was told", name)
				}
				if failed == nil {
					seen["went on"] = true
				}
				// In memory there is what was acknowledged, and not more.
				if !same(dump(durable.Memory(l)), states[done]) {
					t.Fatalf("%s: after %d it shows %v", name, done, dump(durable.Memory(l)))
				}
				if broken := l.Status().Broken; broken != nil {
					seen["broken"] = true
					for range 2 {
						err := l.Admit(t.Context(), life("s9", 0, 1).claim("x", 1))
						if !errors.Is(err, durable.ErrBroken) || !errors.Is(err, fault) || !strings.Contains(err.Error(), "Rewrite") {
							t.Fatalf("%s: once broken: %v", name, err)
						}
					}
				} else if failed != nil {
					t.Fatalf("%s: %v, and it is not broken", name, failed)
				}
				disk.Restart(after)
				again, err := durable.OpenLedgerOn(disk.FS(), "/r", lenient)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				is := dump(durable.Memory(again))
				more := min(done+1, len(course))
				if !same(is, states[done]) && (failed == nil || !same(is, states[more])) {
					t.Fatalf("%s: after %d, and %v, it holds %v", name, done, failed, is)
				}
				if failed != nil && same(is, states[more]) && !same(states[done], states[more]) {
					seen["came all the same"] = true
				}
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("of three things only %v happened", seen)
	}
}

// A ledger that writes its file anew by itself, whatever fails just then, goes on where it
// can, and loses nothing that it acknowledged.
func TestLedgerWritesItselfAnew(t *testing.T) {
	seen := make(map[string]bool)
	pair := fence.Pair{Holder: "s1", Resource: "m"}
	for _, fault := range []error{durabletest.ErrPowerCut, syscall.EIO} {
		for _, after := range []durabletest.After{durabletest.Killed, durabletest.Synced} {
			for n := 1; ; n++ {
				disk := newDisk(t)
				l := enrolled(t, disk, lenient)
				durable.SetSlack(l, 100)
				disk.FailAt(n, fault)
				acknowledged := uint64(0)
				for sequence := range uint64(15) {
					if l.Admit(t.Context(), life("s1", 0, 1).claim("m", sequence+1)) != nil {
						break
					}
					acknowledged = sequence + 1
				}
				if !disk.Failed() {
					break
				}
				if acknowledged == 15 {
					seen["went on"] = true
				}
				disk.Restart(after)
				again, err := durable.OpenLedgerOn(disk.FS(), "/r", lenient)
				if err != nil {
					t.Fatalf("%v, %v at call %d: %v", after, fault, n, err)
				}
				if is := again.Mark(pair).Sequence; is < acknowledged || is > acknowledged+1 {
					t.Fatalf("%v, %v at call %d: sequence %d after %d", after, fault, n, is, acknowledged)
				}
			}
		}
	}
	if !seen["went on"] {
		t.Error("it never went on")
	}
}

// The power goes at each step of an enrolment, a start and a mend: the ledger opens
// afterwards, or was never there.
func TestLedgerOpensAfterACrash(t *testing.T) {
	a := newAuthority(t)
	enrol := func(disk *durabletest.Disk) (*durable.Ledger, error) {
		return durable.EnrolLedgerOn(disk.FS(), "/r", strict)
	}
	open := func(disk *durabletest.Disk) (*durable.Ledger, error) {
		return durable.OpenLedgerOn(disk.FS(), "/r", inDomains)
	}
	mend := func(disk *durabletest.Disk) (*durable.Ledger, error) {
		return durable.MendLedgerOn(disk.FS(), "/r", inDomains, 5)
	}
	p := life("s1", 1, 1)
	p.grant = a.granted(t, "s1", 1, 1)
	for what, do := range map[string]func(*durabletest.Disk) (*durable.Ledger, error){"enrol": enrol, "open": open, "mend": mend} {
		for _, fault := range []error{durabletest.ErrPowerCut, syscall.EIO} {
			for _, after := range durabletest.Afters() {
				for n := 1; ; n++ {
					name := fmt.Sprintf("%s, %v, %v at call %d", what, after, fault, n)
					disk := newDisk(t)
					var before, mended map[string]bool
					if what != "enrol" {
						l := enrolled(t, disk, strict)
						if err := errors.Join(l.Admit(t.Context(), p.claim("m", 1)), l.Close()); err != nil {
							t.Fatal(err)
						}
						before = dump(durable.Memory(l))
						mended = map[string]bool{}
						for k := range before {
							mended[k] = true
						}
					}
					disk.FailAt(n, fault)
					l, err := do(disk)
					if !disk.Failed() {
						break
					}
					if err == nil {
						before = dump(durable.Memory(l))
					}
					disk.Restart(after)
					again, opened := open(disk)
					if what == "enrol" && errors.Is(opened, durable.ErrMissing) {
						again, opened = enrol(disk)
					}
					if opened != nil {
						t.Fatalf("%s: %v after %v", name, opened, err)
					}
					is := dump(durable.Memory(again))
					switch {
					case what == "enrol" && len(is) != 0, what == "open" && !same(is, before):
						t.Fatalf("%s: %v", name, is)
					case what == "mend":
						if since := again.Status().Since; err == nil && since != 5 || since != 0 && since != 5 ||
							since == 0 && !same(is, before) {
							t.Fatalf("%s: since %d: %v", name, since, is)
						}
					}
				}
			}
		}
	}
}

// A disk that was full has room again: the ledger goes on where it was, without what
// failed meanwhile.
func TestLedgerRewrite(t *testing.T) {
	disk := newDisk(t)
	l := enrolled(t, disk, lenient)
	p := life("s1", 0, 1)
	if err := l.Admit(t.Context(), p.claim("m", 1)); err != nil {
		t.Fatal(err)
	}
	disk.Refuse(syscall.ENOSPC)
	if err := l.Admit(t.Context(), p.claim("m", 2)); !errors.Is(err, durable.ErrBroken) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("on a full disk: %v", err)
	}
	if err := l.Rewrite(t.Context()); !errors.Is(err, durable.ErrBroken) || l.Status().Broken == nil {
		t.Errorf("still full: %v", err)
	}
	disk.Refuse(nil)
	if err := l.Admit(t.Context(), p.claim("m", 3)); !errors.Is(err, durable.ErrBroken) {
		t.Errorf("with room, and before it was written anew: %v", err)
	}
	if err := errors.Join(l.Rewrite(t.Context()), l.Admit(t.Context(), p.claim("m", 2)), l.Status().Broken); err != nil {
		t.Fatal(err)
	}
	disk.Restart(durabletest.Synced)
	again, err := durable.OpenLedgerOn(disk.FS(), "/r", lenient)
	if err != nil || again.Mark(fence.Pair{Holder: "s1", Resource: "m"}).Sequence != 2 {
		t.Errorf("%v, %v", again, err)
	}
	// One that is not broken goes on when it cannot be written anew.
	disk.FailAt(1, syscall.ENOSPC)
	if err := again.Rewrite(t.Context()); !errors.Is(err, syscall.ENOSPC) || errors.Is(err, durable.ErrBroken) ||
		again.Status().Rewriting == nil {
		t.Errorf("%v, %v", err, again.Status())
	}
	if err := again.Admit(t.Context(), p.claim("m", 4)); err != nil {
		t.Error(err)
	}
}

// After a mend nothing that was signed before counts, whatever is replayed, and what is
// signed since does.
func TestLedgerMend(t *testing.T) {
	a := newAuthority(t)
	under := func(p process, authorityEpoch uint64) process {
		p.grant = a.granted(t, p.holder, p.epoch.Grant(), authorityEpoch)
		return p
	}
	first, second, third := under(life("s1", 1, 1), 1), under(life("s1", 2, 1), 1), under(life("s1", 3, 1), 5)
	type step struct {
		do   any
		want fence.Reason
	}
	before := []step{ // the older copy was made after these
		{a.assign(t, "d", "s1", 1, 1), ""}, {inside(first.claim("d-1", 1), "d", 1), ""}, {first.claim("alone", 2), ""}}
	lost := []step{ // and knows nothing of these
		{inside(first.claim("d-1", 3), "d", 1), ""}, {a.assign(t, "d", "s1", 2, 1), ""}, {inside(second.claim("d-1", 1), "d", 2), ""},
		{a.assign(t, "d", "s2", 3, 1), ""}}
	for _, test := range []struct {
		name    string
		file    string // "old", "damaged" or "missing"
		options fence.LedgerOptions
		steps   []step
	}{
		{"an older copy", "old", inDomains, []step{
			// Attempts that the receiver had admitted, and some that it could have.
			{inside(first.claim("d-1", 3), "d", 1), fence.ReasonUngranted}, {inside(first.claim("d-1", 4), "d", 1), fence.ReasonUngranted},
			{inside(second.claim("d-1", 1), "d", 2), fence.ReasonUngranted}, {first.claim("alone", 2), fence.ReasonUngranted},
			{a.assign(t, "d", "s1", 1, 1), fence.ReasonMoved}, {a.assign(t, "d", "s2", 3, 4), fence.ReasonMoved},
			// Statements that the authority signs since.
			{inside(third.claim("d-1", 1), "d", 4), fence.ReasonUnpromised}, {a.assign(t, "d", "s1", 4, 5), ""},
			{inside(second.claim("d-1", 2), "d", 4), fence.ReasonUngranted}, {inside(third.claim("d-1", 1), "d", 4), ""},
			{inside(third.claim("d-1", 1), "d", 4), fence.ReasonDuplicate}, {inside(second.claim("d-1", 3), "d", 4), fence.ReasonStale},
			{a.assign(t, "d", "s2", 3, 1), fence.ReasonMoved}, {third.claim("alone", 2), ""},
			// The domain of a resource is known still, and of one that came later it has to be said.
			{under(life("s2", 9, 1), 5).claim("d-2", 1), fence.ReasonDomain},
			{inside(under(life("s2", 9, 1), 5).claim("d-1", 1), "", 0), fence.ReasonMoved},
			{a.assign(t, "e", "s2", 1, 5), ""}, {inside(under(life("s2", 9, 1), 5).claim("d-1", 1), "e", 1), fence.ReasonDomain}}},
		{"a damaged file", "damaged", inDomains, []step{
			{inside(first.claim("d-1", 4), "d", 1), fence.ReasonUngranted}, {a.assign(t, "d", "s1", 1, 1), fence.ReasonMoved},
			{under(life("s2", 9, 1), 5).claim("d-1", 1), fence.ReasonDomain}, {a.assign(t, "d", "s1", 4, 5), ""},
			{inside(third.claim("d-1", 1), "d", 4), ""}, {inside(first.claim("d-1", 9), "d", 4), fence.ReasonStale}}},
		{"no file", "missing", inDomains, []step{
			{inside(first.claim("d-1", 4), "d", 1), fence.ReasonUngranted}, {a.assign(t, "d", "s1", 4, 6), ""},
			{inside(third.claim("d-1", 1), "d", 4), ""}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			do := func(l *durable.Ledger, i int, s step) {
				t.Helper()
				var err error
				switch do := s.do.(type) {
				case fence.Claim:
					if err = l.Admit(t.Context(), do); err != nil && reasonOf(l.Check(do)) != reasonOf(err) {
						t.Errorf("step %d: %v, and Check says %v", i, err, l.Check(do))
					}
				case fence.Verified[fence.Assignment]:
					err = l.Promise(t.Context(), do)
				}
				if got := reasonOf(err); got != s.want {
					t.Fatalf("step %d: %q (%v), want %q", i, got, err, s.want)
				}
			}
			disk := newDisk(t)
			l := enrolled(t, disk, strict)
			for i, s := range before {
				do(l, i, s)
			}
			old, err := disk.FS().ReadFile("/r/ledger", 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range lost {
				do(l, i, s)
			}
			disk.Restart(durabletest.Synced)
			switch test.file {
			case "old":
				disk.Put("/r/ledger", old)
			case "damaged":
				old[len(old)-40] ^= 1
				disk.Put("/r/ledger", old)
			case "missing":
				if err := disk.FS().Remove("/r/ledger"); err != nil {
					t.Fatal(err)
				}
			}
			for i, s := range test.steps {
				open := durable.OpenLedgerOn
				if i == 0 {
					open = func(disk files.FS, dir string, o fence.LedgerOptions) (*durable.Ledger, error) {
						return durable.MendLedgerOn(disk, dir, o, 5)
					}
				} else if i == 1 { // the same again changes nothing
					open = func(disk files.FS, dir string, o fence.LedgerOptions) (*durable.Ledger, error) {
						return durable.MendLedgerOn(disk, dir, o, 5)
					}
				}
				l, err := open(disk.FS(), "/r", test.options)
				if err != nil {
					t.Fatal(err)
				}
				do(l, i, s)
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			// A ledger that was mended stays strict.
			for what, o := range map[string]fence.LedgerOptions{"lenient": {Cluster: cluster, BelieveEpochs: true, RequireDomain: true},
				"without domains": strict} {
				l, err := durable.OpenLedgerOn(disk.FS(), "/r", o)
				if err == nil {
					t.Errorf("%s: %v", what, l.Close())
				}
			}
			if l, err := durable.MendLedgerOn(disk.FS(), "/r", test.options, 4); !errors.Is(err, durable.ErrSuperseded) {
				t.Errorf("mended since an older one: %v, %v", l, err)
			}
		})
	}
}

// The file stays below twice what it has to hold and 1 MiB, and nothing of a resource that
// is gone is in it.
func TestLedgerStaysSmall(t *testing.T) {
	dir := t.TempDir()
	l, err := durable.EnrolLedger(dir, lenient)
	if err != nil {
		t.Fatal(err)
	}
	p, n, rewritten := life("s1", 0, 1), uint64(0), 0
	long := strings.Repeat("x", 250)
	size := int64(0)
	for round := range 6 {
		var wait sync.WaitGroup
		for worker := range 400 {
			claims := make([]fence.Claim, 0, 8)
			for i := range 8 {
				n++
				claims = append(claims, p.claim(fmt.Sprintf("%s-%d-%d", long, worker, i), n))
			}
			wait.Go(func() {
				for _, c := range claims {
					if err := l.Admit(t.Context(), c); err != nil {
						t.Error(err)
					}
					if round%3 == 2 {
						if err := l.Forget(t.Context(), c.Resource); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wait.Wait()
		s := l.Status()
		info, err := os.Stat(filepath.Join(dir, "ledger"))
		if err != nil || info.Size() != s.Size {
			t.Fatalf("%v, %v, status %+v", info, err, s)
		}
		if s.Size > 2*s.Live+1<<20+1<<17 || s.Rewriting != nil {
			t.Errorf("round %d: %+v", round, s)
		}
		if s.Size < size {
			rewritten++
		}
		size = s.Size
	}
	if rewritten == 0 {
		t.Error("it was never written anew")
	}
	live := l.Status().Live
	if err := l.Rewrite(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := l.Status(); s.Live != live || s.Size > s.Live+512 {
		t.Errorf("written anew it has %+v, and %d bytes were live", s, live)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "ledger")); err != nil || bytes.Contains(data, []byte(long)) {
		t.Errorf("what is gone is in the file of %d bytes, %v", len(data), err)
	}
}

// slowDisk holds each sync of a log until it is let go on.
type slowDisk struct {
	files.FS
	syncing, goOn chan struct{}
}

type slowFile struct {
	files.File
	disk *slowDisk
}

func (d *slowDisk) WriteLog(name string, fill func(io.Writer) error) (files.File, error) {
	f, err := d.FS.WriteLog(name, fill)
	return &slowFile{f, d}, err
}

func (f *slowFile) Sync() error {
	f.disk.syncing <- struct{}{}
	<-f.disk.goOn
	return f.File.Sync()
}

func slowLedger(t *testing.T, o fence.LedgerOptions) (*durable.Ledger, *slowDisk) {
	t.Helper()
	d := &slowDisk{newDisk(t).FS(), make(chan struct{}), make(chan struct{})}
	l, err := durable.EnrolLedgerOn(d, "/r", o)
	if err != nil {
		t.Fatal(err)
	}
	return l, d
}

// Those who wait at the same time share one sync, and nothing of them shows before it.
func TestLedgerSyncsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, disk := slowLedger(t, lenient)
		p := life("s1", 0, 1)
		results := make(chan error, 100)
		admit := func(c fence.Claim) { results <- l.Admit(t.Context(), c) }
		go admit(p.claim("first", 1))
		<-disk.syncing
		for i := range 50 {
			go admit(p.claim(fmt.Sprint("m-", i), uint64(10+i)))
		}
		synctest.Wait()
		// A zombie is refused by what is on disk, and nobody else shows yet.
		if l.Mark(fence.Pair{Holder: "s1", Resource: "first"}).Sequence != 0 || len(results) != 0 {
			t.Error("it shows before it is saved")
		}
		disk.goOn <- struct{}{}
		<-disk.syncing
		synctest.Wait()
		if len(results) != 1 || l.Mark(fence.Pair{Holder: "s1", Resource: "first"}).Sequence != 1 {
			t.Errorf("after the first sync %d are answered", len(results))
		}
		if l.Mark(fence.Pair{Holder: "s1", Resource: "m-1"}).Sequence != 0 {
			t.Error("the second shows before it is saved")
		}
		disk.goOn <- struct{}{}
		synctest.Wait()
		if len(results) != 51 {
			t.Fatalf("after two syncs %d are answered", len(results))
		}
		for range 51 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}

// A call that changes what another one is decided by goes to the disk before that one is
// looked at: each is decided by what is on disk.
func TestLedgerDecidesOneAfterTheOther(t *testing.T) {
	a := newAuthority(t)
	synctest.Test(t, func(t *testing.T) {
		l, disk := slowLedger(t, lenient)
		results := make(map[string]error)
		var mu sync.Mutex
		do := func(name string, f func() error) {
			go func() {
				err := f()
				mu.Lock()
				defer mu.Unlock()
				results[name] = err
			}()
			synctest.Wait() // in this order
		}
		admit := func(c fence.Claim) func() error { return func() error { return l.Admit(t.Context(), c) } }
		promise := func(v fence.Verified[fence.Assignment]) func() error {
			return func() error { return l.Promise(t.Context(), v) }
		}
		go func() {
			for range disk.syncing {
				disk.goOn <- struct{}{}
			}
		}()
		if err := errors.Join(promise(a.assign(t, "d", "s1", 1, 1))(), admit(inside(life("s1", 0, 1).claim("d-1", 1), "d", 1))(),
			admit(life("s1", 0, 1).claim("m", 9))(), admit(life("s4", 0, 1).claim("m-4", 9))()); err != nil {
			t.Fatal(err)
		}
		close(disk.syncing)
		disk.syncing = make(chan struct{})
		do("holds the disk", admit(life("s9", 0, 1).claim("x", 1)))
		<-disk.syncing
		do("twice", admit(life("s2", 0, 1).claim("two", 1)))
		do("twice again", admit(life("s2", 0, 1).claim("two", 1)))
		do("the successor", admit(life("s1", 0, 2).claim("s", 1)))
		do("the zombie", admit(life("s1", 0, 1).claim("z", 10)))
		do("the promise", promise(a.assign(t, "d", "s2", 2, 1)))
		do("the former owner", admit(inside(life("s3", 0, 1).claim("d-2", 1), "d", 1)))
		do("the promise to another", promise(a.assign(t, "d", "s3", 2, 1)))
		do("the removal", func() error { return l.Forget(t.Context(), "m") })
		do("another removal", func() error { return l.Forget(t.Context(), "m-4") })
		do("what may be a late copy", admit(life("s4", 0, 1).claim("n-4", 5)))
		do("what is removed", admit(life("s1", 0, 2).claim("m", 2)))
		go func() {
			for range disk.syncing {
				disk.goOn <- struct{}{}
			}
		}()
		disk.goOn <- struct{}{}
		synctest.Wait()
		for name, want := range map[string]fence.Reason{"holds the disk": "", "twice": "", "twice again": fence.ReasonDuplicate,
			"the successor": "", "the zombie": fence.ReasonStale, "the promise": "", "the former owner": fence.ReasonMoved,
			"the promise to another": fence.ReasonOwner, "the removal": "", "what is removed": "",
			"another removal": "", "what may be a late copy": fence.ReasonLate} {
			if err, answered := results[name]; !answered || reasonOf(err) != want {
				t.Errorf("%s: %v, %v, want %q", name, answered, err, want)
			}
		}
		close(disk.syncing)
	})
}

// Those who wait while a sync fails are told, and nothing of them is there.
func TestLedgerTellsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newDisk(t)
		disk := &slowDisk{mem.FS(), make(chan struct{}), make(chan struct{})}
		l, err := durable.EnrolLedgerOn(disk, "/r", lenient)
		if err != nil {
			t.Fatal(err)
		}
		results := make(chan error, 9)
		for i := range 9 {
			go func() { results <- l.Admit(t.Context(), life(fmt.Sprint("s", i), 0, 1).claim("m", 1)) }()
		}
		<-disk.syncing
		synctest.Wait()
		mem.FailAt(1, syscall.EIO)
		disk.goOn <- struct{}{}
		for range 9 {
			if err := <-results; !errors.Is(err, durable.ErrBroken) || !errors.Is(err, syscall.EIO) {
				t.Error(err)
			}
		}
		if is := dump(durable.Memory(l)); len(is) != 0 {
			t.Errorf("it shows %v", is)
		}
	})
}

// panickingDisk is slowDisk whose syncs panic.
type panickingDisk struct{ *slowDisk }

type panickingFile struct{ files.File }

func (d panickingDisk) WriteLog(name string, fill func(io.Writer) error) (files.File, error) {
	f, err := d.slowDisk.WriteLog(name, fill)
	return panickingFile{f}, err
}

func (f panickingFile) Sync() error {
	_ = f.File.Sync()
	panic("sync")
}

// A panic in the middle of a batch leaves nobody waiting.
func TestLedgerPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{newDisk(t).FS(), make(chan struct{}), make(chan struct{})}
		l, err := durable.EnrolLedgerOn(panickingDisk{disk}, "/r", lenient)
		if err != nil {
			t.Fatal(err)
		}
		results := make(chan any, 9)
		p := life("s", 0, 1)
		for i := range 9 { // of one resource, so that the others wait for the next batch
			go func() {
				defer func() {
					if r := recover(); r != nil {
						results <- r
					}
				}()
				results <- l.Admit(t.Context(), p.claim("m", uint64(1+i)))
			}()
		}
		<-disk.syncing
		synctest.Wait()
		disk.goOn <- struct{}{}
		panicked := 0
		for range 9 {
			switch r := (<-results).(type) {
			case error:
				if !errors.Is(r, durable.ErrBroken) {
					t.Error(r)
				}
			default:
				panicked++
			}
		}
		if panicked != 1 {
			t.Errorf("%d panicked", panicked)
		}
	})
}

// A call that is given up is over, whether it was looked at or not, and only so many wait.
func TestLedgerGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, disk := slowLedger(t, lenient)
		durable.SetQueue(l, 2)
		p := life("s1", 0, 1)
		done := make(chan error, 3)
		go func() { done <- l.Admit(t.Context(), p.claim("m", 1)) }()
		<-disk.syncing
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- l.Admit(ctx, p.claim("n", 2)) }()
		synctest.Wait()
		go func() { done <- l.Admit(t.Context(), p.claim("o", 3)) }()
		synctest.Wait()
		if err := l.Admit(t.Context(), p.claim("q", 4)); !errors.Is(err, fence.ErrBusy) {
			t.Errorf("one more: %v", err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		disk.goOn <- struct{}{}
		<-disk.syncing
		disk.goOn <- struct{}{}
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
		if l.Mark(fence.Pair{Holder: "s1", Resource: "n"}).Sequence != 0 || l.Mark(fence.Pair{Holder: "s1", Resource: "o"}).Sequence != 3 {
			t.Error("what was given up was admitted, or what was not is missing")
		}
		// The one that is being saved is over for its caller, and comes all the same.
		ctx, cancel = context.WithCancel(t.Context())
		go func() { done <- l.Admit(t.Context(), p.claim("r", 5)) }()
		<-disk.syncing
		go func() { done <- l.Admit(ctx, p.claim("s", 6)) }()
		synctest.Wait()
		disk.goOn <- struct{}{}
		if err := <-done; err != nil {
			t.Error(err)
		}
		<-disk.syncing // of the caller itself
		cancel()
		disk.goOn <- struct{}{}
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if l.Mark(fence.Pair{Holder: "s1", Resource: "s"}).Sequence != 6 {
			t.Error("it did not come")
		}
		if err := l.Admit(ctx, p.claim("t", 7)); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that is over: %v", err)
		}
		// A call that waits when the ledger is closed is told.
		go func() { done <- l.Admit(t.Context(), p.claim("u", 8)) }()
		<-disk.syncing
		closed := make(chan error)
		go func() { closed <- l.Close() }()
		synctest.Wait()
		go func() { done <- l.Admit(t.Context(), p.claim("v", 9)) }()
		synctest.Wait()
		disk.goOn <- struct{}{}
		synctest.Wait()
		select {
		case <-disk.syncing: // the one that waited was first
			disk.goOn <- struct{}{}
		default:
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, fs.ErrClosed) {
				t.Error(err)
			}
		}
	})
}

// Behind a gate a zombie is refused after the receiver was started again, and a promise
// waits for nobody of before.
func TestGateOverALedger(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	l, err := durable.EnrolLedger(dir, lenient)
	if err != nil {
		t.Fatal(err)
	}
	acted := 0
	act := func(context.Context) error { acted++; return nil }
	g := fence.NewGate(l, 0)
	old, successor := life("s1", 0, 1), life("s1", 0, 2)
	if err := errors.Join(g.Promise(t.Context(), a.assign(t, "d", "s1", 1, 1)), g.Do(t.Context(), inside(old.claim("d-1", 1), "d", 1), act),
		g.Do(t.Context(), inside(successor.claim("d-1", 1), "d", 1), act), g.Remove(t.Context(), inside(successor.claim("d-1", 2), "d", 1), act),
		l.Close()); err != nil {
		t.Fatal(err)
	}
	if l, err = durable.OpenLedger(dir, lenient); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	g = fence.NewGate(l, 0)
	before := acted
	for i, step := range []struct {
		claim fence.Claim
		want  fence.Reason
	}{{inside(old.claim("d-1", 9), "d", 1), fence.ReasonStale}, {inside(successor.claim("d-1", 2), "d", 1), fence.ReasonLate},
		{inside(successor.claim("d-1", math.MaxUint64), "d", 2), fence.ReasonUnpromised}} {
		if err := g.Do(t.Context(), step.claim, act); reasonOf(err) != step.want {
			t.Errorf("step %d: %v", i, err)
		}
	}
	if acted != before {
		t.Errorf("%d acted", acted-before)
	}
	if err := g.Do(t.Context(), inside(successor.claim("d-1", 3), "d", 1), act); err != nil || acted != before+1 {
		t.Error(err)
	}
}
