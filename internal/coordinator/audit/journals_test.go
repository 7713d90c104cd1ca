package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/audit"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
)

// line is an entry as a shard wrote it.
type line struct{ key, value string }

// shard is a member that writes down what it decides, and gives it to the coordinator at a desk.
type shard struct {
	*coordinatortest.Machine
	d        *coordinatortest.Desk
	chain    string
	number   uint64
	previous auditlog.Hash
	padding  int // bytes of each decision
}

func newShard(d *coordinatortest.Desk, name string) *shard {
	m := d.Joined(name)
	return &shard{Machine: m, d: d, chain: fmt.Sprintf("%s/%020d-00000001", auditlog.WriterOf(m.ID.String()),
		d.Clock().UnixNano())}
}

// writes returns the entries of n decisions, and that of the chain's beginning if it begins.
func (s *shard) writes(n int) (lines []line) {
	s.d.T.Helper()
	add := func(e auditlog.Entry) {
		s.number++
		e.At, e.Actor, e.Previous = s.d.Clock().UTC(), s.ID.String(), s.previous
		value, err := json.Marshal(e)
		if err != nil {
			s.d.T.Fatal(err)
		}
		key := auditlog.Key(s.chain, s.number)
		s.previous = auditlog.HashOf(key, value)
		lines = append(lines, line{key, string(value)})
	}
	if s.number == 0 {
		add(auditlog.Entry{Action: "journal.opened", Target: s.chain})
	}
	for i := range n {
		add(auditlog.Entry{Action: "machine.create", Target: fmt.Sprint("local/m", i),
			Fields: map[string]string{"outcome": "executed", "error": strings.Repeat("e", s.padding)}})
	}
	return lines
}

// request asks that records be kept.
func request(records ...line) *fealtyv1.KeepJournalRequest {
	req := &fealtyv1.KeepJournalRequest{}
	for i, r := range records {
		if i == 0 {
			req.Chain, req.First, _ = auditlog.ParseKey(r.key)
		}
		req.Entries = append(req.Entries, []byte(r.value))
	}
	return req
}

func (s *shard) asks(req *fealtyv1.KeepJournalRequest) (*fealtyv1.KeepJournalResponse, error) {
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: s.ID, Leaf: s.Leaf, Key: identity.KeyOf(s.Leaf)})
	return coordinatortest.Served[fealtyv1.JournalServiceServer](s.d.C.Parts().Fencing.Journals.RegisterServices).
		KeepJournal(ctx, req)
}

// gives wants records to be kept, so that the chain goes up to a number.
func (s *shard) gives(up uint64, records ...line) {
	s.d.T.Helper()
	got, err := s.asks(request(records...))
	if err != nil || got.GetNumber() != up {
		s.d.T.Fatalf("the chain goes up to %d, %v, want %d", got.GetNumber(), err, up)
	}
	if last := records[len(records)-1]; up > 0 {
		if _, n, _ := auditlog.ParseKey(last.key); n == up {
			if hash := auditlog.HashOf(last.key, []byte(last.value)); !bytes.Equal(hash[:], got.GetHash()) {
				s.d.T.Fatalf("entry %d has another hash", up)
			}
		}
	}
}

// wantKept wants the log to have records as they are, and a whole log, in which checkpoints
// vouch for all.
func wantKept(d *coordinatortest.Desk, records ...line) {
	d.T.Helper()
	have := d.Store.Snapshot()
	for _, r := range records {
		if string(have[r.key].Value) != r.value {
			d.T.Errorf("%s is %q, want %q", r.key, have[r.key].Value, r.value)
		}
	}
	coordinatortest.WantWholeLog(d.T, d.Store, coordinatortest.Checkpointed(d))
	if broken := coordinatortest.BrokenLog(d); len(broken) > 0 {
		d.T.Errorf("the log is broken: %v", broken)
	}
}

// The decisions that a shard wrote down are in the audit log as they are, once, and are vouched for; also by
// a coordinator that begins meanwhile, and if a call is made again.
func TestJournalIsKept(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	s := newShard(d, "a")
	first := s.writes(3)
	if got, err := s.asks(&fealtyv1.KeepJournalRequest{Chain: request(first...).GetChain()}); err != nil ||
		got.GetNumber() != 0 || len(got.GetHash()) != 0 {
		t.Fatalf("of a chain of which nothing is there: %v, %v", got, err)
	}
	s.gives(4, first...)
	s.gives(4, first...)
	wantKept(d, first...)
	more := s.writes(2)
	s.gives(4, more[1:]...) // they do not follow: none of them is kept
	if _, there := d.Store.Snapshot()[more[1].key]; there {
		t.Error("an entry is there without the one before it")
	}
	d.Restart()
	s.gives(6, more...)
	wantKept(d, append(first, more...)...)
	entries, text := coordinatortest.Audits(d, "machine.create")
	if len(entries) != 5 || entries[0].Actor != s.ID.String() || !strings.Contains(text, "local/m1") {
		t.Errorf("the audit log has %d decisions: %s", len(entries), text)
	}
}

// A shard that had no coordinator for long gives what it wrote down meanwhile, and the rest of a
// chain of which nothing is remembered any more.
func TestJournalComesLate(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprint("restarted ", restarted), func(t *testing.T) {
			t.Parallel()
			d := coordinatortest.PoolDesk(t)
			s := newShard(d, "a")
			first := s.writes(3)
			s.gives(4, first...)
			wantKept(d, first...)
			rest := s.writes(4)
			late := newShard(d, "b")
			never := late.writes(2) // of which nothing was given
			for range 5 {
				d.Advance(8 * time.Hour)
				d.Joined(fmt.Sprint("n", d.Clock().Unix())) // so that there are checkpoints
				coordinatortest.Checkpointed(d)
			}
			chain := request(first...).GetChain()
			if err := d.C.Parts().Audit.Drop(t.Context(), d.State(), d.Clock().Add(-90*24*time.Hour)); err != nil {
				t.Fatal(err)
			}
			if keys := d.Store.Keys(auditlog.HeadPrefix + chain); len(keys) > 0 {
				t.Fatalf("the chain is still noted: %v", keys)
			}
			if restarted {
				d.Restart()
				d.Lead(d.C)
			}
			s.gives(8, rest...)
			late.gives(3, never...)
			wantKept(d, slices.Concat(first, rest, never)...)
		})
	}
}

func TestJournalIsRefused(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	s, other := newShard(d, "a"), newShard(d, "b")
	good := s.writes(2)
	edited := func(edit func(e *auditlog.Entry)) *fealtyv1.KeepJournalRequest {
		e, err := auditlog.Decode(good[0].key, []byte(good[0].value))
		if err != nil {
			t.Fatal(err)
		}
		e.Chain, e.Number = "", 0
		edit(e)
		value, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return request(line{good[0].key, string(value)})
	}
	with := func(edit func(r *fealtyv1.KeepJournalRequest)) *fealtyv1.KeepJournalRequest {
		r := request(good...)
		edit(r)
		return r
	}
	writer := auditlog.WriterOf(s.ID.String())
	before := len(d.Store.Keys(""))
	for _, tc := range []struct {
		name string
		req  *fealtyv1.KeepJournalRequest
		want string
	}{
		{"no chain", with(func(r *fealtyv1.KeepJournalRequest) { r.Chain = "x" }), "no name of a chain"},
		{"another shard's chain", request(other.writes(1)...), "not named after"},
		{"a chain of a coordinator", with(func(r *fealtyv1.KeepJournalRequest) {
			r.Chain = strings.TrimPrefix(d.Store.Keys(auditlog.HeadPrefix)[0], auditlog.HeadPrefix)
		}), "not named after"},
		{"a chain that is not yet", with(func(r *fealtyv1.KeepJournalRequest) {
			r.Chain = fmt.Sprintf("%s/%020d-00000000", writer, d.Clock().Add(audit.MaxAhead+time.Minute).UnixNano())
		}), "is the clock of a right"},
		{"no number", with(func(r *fealtyv1.KeepJournalRequest) { r.First = 0 }), "first"},
		{"a number above all", with(func(r *fealtyv1.KeepJournalRequest) { r.First = 1 << 40 }), "first"},
		{"too many", with(func(r *fealtyv1.KeepJournalRequest) {
			r.Entries = slices.Repeat(r.GetEntries()[:1], audit.MaxEntries+1)
		}), "limit 64"},
		{"too large", with(func(r *fealtyv1.KeepJournalRequest) {
			r.Entries = [][]byte{make([]byte, audit.MaxBytes+1)}
		}), "limit 262144"},
		{"no entry", with(func(r *fealtyv1.KeepJournalRequest) { r.Entries = [][]byte{[]byte("{")} }), "no entry"},
		{"the second without the first", with(func(r *fealtyv1.KeepJournalRequest) {
			r.Entries = r.GetEntries()[1:]
		}), "follows none"},
		{"one that does not follow", with(func(r *fealtyv1.KeepJournalRequest) {
			r.Entries = [][]byte{r.GetEntries()[0], r.GetEntries()[1], r.GetEntries()[1]}
		}), "does not follow"},
		{"another actor", edited(func(e *auditlog.Entry) { e.Actor = other.ID.String() }), "what it did with machines"},
		{"another action", edited(func(e *auditlog.Entry) { e.Action = "member.ban" }), "what it did with machines"},
		{"names twice", with(func(r *fealtyv1.KeepJournalRequest) {
			r.Entries = [][]byte{bytes.Replace(r.GetEntries()[0], []byte("{"), []byte(`{"actor":"admin/eve",`), 1)}
		}), "not written as"},
		{"more than an entry has", with(func(r *fealtyv1.KeepJournalRequest) {
			r.Entries = [][]byte{bytes.Replace(r.GetEntries()[0], []byte("{"), []byte(`{"x":1,`), 1)}
		}), "not written as"},
	} {
		_, err := s.asks(tc.req)
		coordinatortest.WantOnly(t, tc.name, err, errcode.RequestField)
		if err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	if now := len(d.Store.Keys("")); now != before {
		t.Errorf("%d keys, want the %d of before: something of a refused call was kept", now, before)
	}
	s.gives(3, good...)
	// An entry that is there stays, whatever comes in its place.
	s.gives(3, records(edited(func(e *auditlog.Entry) { e.Target = "other" }))...)
	wantKept(d, good...)
	// A chain that was altered is not written on: a checkpoint would not get past it.
	next := s.writes(3)
	s.gives(6, next...)
	d.Store.Remove(next[1].key)
	d.Restart()
	_, err := s.asks(request(s.writes(1)...))
	coordinatortest.WantOnly(t, "after an entry was removed", err, errcode.RequestField)
	if err != nil && !strings.Contains(err.Error(), "was altered") {
		t.Error(err)
	}
}

// records are the records of a request.
func records(req *fealtyv1.KeepJournalRequest) (out []line) {
	for i, e := range req.GetEntries() {
		out = append(out, line{auditlog.Key(req.GetChain(), req.GetFirst()+uint64(i)), string(e)})
	}
	return out
}

// Nobody who is banned, or is no member any more, has the log keep anything.
func TestJournalOfNoMember(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	banned, gone := newShard(d, "a"), newShard(d, "b")
	coordinatortest.BanAt(d, t, identity.Data, "a")
	coordinatortest.RemoveAt(d, t, identity.Data, "b")
	for _, s := range []*shard{banned, gone} {
		records := s.writes(1)
		if got, err := s.asks(request(records...)); err == nil {
			t.Errorf("%s: %v, want a refusal", s.ID, got)
		}
		if _, there := d.Store.Snapshot()[records[0].key]; there {
			t.Errorf("%s: the log has its entry", s.ID)
		}
	}
}

// A shard fills no store: bytes and chains come at a rate, and what is put off is taken later.
func TestJournalsAreBounded(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	s := newShard(d, "a")
	s.padding = 3000
	refused := 0
	for range 200 {
		d.Advance(time.Second)
		if _, err := s.asks(request(s.writes(40)...)); err != nil {
			coordinatortest.WantOnly(t, "too much", err, errcode.RateLimited)
			refused++
			break
		}
	}
	if refused == 0 {
		t.Error("nothing was put off")
	}
	size, have := 0, d.Store.Snapshot()
	for _, k := range d.Store.Keys(auditlog.ChainPrefix + auditlog.WriterOf(s.ID.String())) {
		size += len(have[k].Value)
	}
	if size > 9<<20 {
		t.Errorf("%d bytes were kept at once", size)
	}
}

// A shard that asks about long chains of which nothing is remembered has them read at a rate, too.
func TestAsksAreBounded(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	s := newShard(d, "a")
	s.padding = 4000
	var chains []string
	for i := range 2 {
		s.chain, s.number, s.previous = s.chain[:len(s.chain)-1]+fmt.Sprint(i), 0, auditlog.Hash{}
		chains = append(chains, s.chain)
		for range 19 {
			d.Advance(time.Second)
			if _, err := s.asks(request(s.writes(50)...)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, key := range d.Store.Keys(auditlog.HeadPrefix + auditlog.WriterOf(s.ID.String())) {
		d.Store.Remove(key)
	}
	asked, was := 0, s.d.Clock()
	for ; asked < 2000; asked++ {
		d.Advance(250 * time.Millisecond)
		if _, err := s.asks(&fealtyv1.KeepJournalRequest{Chain: chains[asked%2]}); err != nil {
			coordinatortest.WantOnly(t, "too much", err, errcode.RateLimited)
			break
		}
	}
	if asked == 2000 {
		t.Errorf("in %v %d chains were read", d.Clock().Sub(was), asked)
	}
	d.Advance(2 * time.Hour)
	if got, err := s.asks(&fealtyv1.KeepJournalRequest{Chain: chains[0]}); err != nil || got.GetNumber() != 951 {
		t.Errorf("later: %v, %v", got, err)
	}
}

// Chains come at a rate, and so do those of which the note is gone: each is looked at with each checkpoint.
func TestChainsAreBounded(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	s := newShard(d, "a")
	stem := s.chain[:len(s.chain)-8]
	begin := func(i int) {
		s.chain, s.number, s.previous = fmt.Sprintf("%s%08d", stem, i), 0, auditlog.Hash{}
	}
	for i := range audit.ChainsAtOnce {
		d.Advance(250 * time.Millisecond)
		begin(i)
		s.gives(1, s.writes(0)...)
	}
	last := *s
	d.Store.Remove(auditlog.HeadPrefix + last.chain)
	for { // what the time above gave it
		d.Advance(250 * time.Millisecond)
		begin(int(d.Clock().UnixNano() % 1e8))
		if _, err := s.asks(request(s.writes(0)...)); err != nil {
			coordinatortest.WantOnly(t, "one chain more", err, errcode.RateLimited)
			break
		}
	}
	next := last.writes(1)
	_, err := last.asks(request(next...))
	coordinatortest.WantOnly(t, "a chain that was forgotten", err, errcode.RateLimited)
	d.Advance(time.Hour)
	last.gives(2, next...)
}

// A chain that is older than what the log keeps is over: entries that were removed do not come back, and
// nobody is told that they were altered.
func TestJournalIsOver(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	s := newShard(d, "a")
	first := s.writes(3)
	s.gives(4, first...)
	d.Advance(90 * 24 * time.Hour)
	got, err := s.asks(request(s.writes(1)...))
	if err != nil || !got.GetOver() || got.GetNumber() != 0 {
		t.Errorf("%v, %v, want it to be over", got, err)
	}
	if keys := d.Store.Keys(auditlog.ChainPrefix + s.chain); len(keys) != len(first) {
		t.Errorf("something was kept: %v", keys)
	}
}

// The note of a chain stays while the chain has an entry that is behind no checkpoint, however long it
// had none: the next checkpoint would not find it.
func TestNoteStaysForWhatIsNew(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	s := newShard(d, "a")
	first := s.writes(3)
	s.gives(4, first...)
	wantKept(d, first...)
	for range 4 {
		d.Advance(7 * time.Hour)
		d.Joined(fmt.Sprint("n", d.Clock().Unix()))
		coordinatortest.Checkpointed(d)
	}
	next := s.writes(1)
	s.gives(5, next...)
	if err := d.C.Parts().Audit.Drop(t.Context(), d.State(), d.Clock().Add(-90*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if keys := d.Store.Keys(auditlog.HeadPrefix + s.chain); len(keys) != 1 {
		t.Errorf("the note is gone: %v", keys)
	}
	more := s.writes(1)
	s.gives(6, more...)
	wantKept(d, slices.Concat(first, next, more)...)
}

// A process that is overtaken while its entries are on their way to the store gives none of them:
// the process in charge gives them, once.
func TestJournalOfOneOvertakenMeanwhile(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	s := newShard(d, "a")
	all := s.writes(3)
	asks := func(life fence.Life) error {
		_, err := coordinatortest.Served[fealtyv1.JournalServiceServer](d.C.Parts().Fencing.Journals.RegisterServices).
			KeepJournal(coordinatortest.Calls(s.Machine, life), request(all...))
		return err
	}
	old, next := d.Process(s.Machine), fence.Life{}
	d.Store.Intercept(func(tx store.Tx) {
		if next.Grant == "" && slices.ContainsFunc(tx.Put, func(w store.Write) bool { return w.Key == all[0].key }) {
			next = d.Process(s.Machine)
		}
	})
	coordinatortest.WantOnly(t, "one that is overtaken meanwhile", asks(old), errcode.ProcessOvertaken)
	d.Store.Intercept(nil)
	if have := d.Store.Snapshot(); next.Grant == "" || len(have[all[0].key].Value) != 0 {
		t.Errorf("an entry of it was kept: %s", have[all[0].key].Value)
	}
	if err := asks(next); err != nil {
		t.Fatal(err)
	}
	wantKept(d, all...)
}
