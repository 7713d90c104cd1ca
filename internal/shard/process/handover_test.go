package process_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/process"
	"github.com/fealty-io/fealty/internal/store"
)

// cut is a real connection on which a test loses calls or their answers.
type cut struct {
	grpc.ClientConnInterface
	calls                    int
	losesCall, losesAnswerOf func(n int) bool
}

var errLost = errors.New("the call was lost")

func (c *cut) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c.calls++; c.losesCall != nil && c.losesCall(c.calls) {
		return errLost
	}
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if c.losesAnswerOf != nil && c.losesAnswerOf(c.calls) {
		return errLost
	}
	return err
}

// world is a real coordinator, and a shard of it that writes down what it decides.
type world struct {
	t    *testing.T
	f    *coordinatortest.Fleet
	id   identity.ID
	conn *cut
	disk *durabletest.Disk
	now  time.Time
	j    *execute.Journal
	h    *process.Handover
	log  strings.Builder
}

func newWorld(t *testing.T) *world {
	t.Helper()
	f := coordinatortest.NewFleet(t, nil)
	if err := f.Set(f.Manifest("  - {name: shards, kind: shard, match: [\"token:shards\"]}\n")); err != nil {
		t.Fatal(err)
	}
	n := f.Node()
	if err := n.Join(identity.Shard, proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "shards",
		Name: "eu-1"}))); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, f: f, id: n.ID, conn: &cut{ClientConnInterface: n.Conn()}, disk: durabletest.NewDisk(), now: f.Clock()}
	w.begin()
	return w
}

// begin starts the shard's process.
func (w *world) begin() {
	w.t.Helper()
	j, err := execute.OpenJournal(execute.JournalOptions{Files: w.disk.FS(), Dir: "journal", Actor: w.id.String(),
		Writer: auditlog.WriterOf(w.id.String()), Segments: 6, Now: func() time.Time { return w.now }})
	if err != nil {
		w.t.Fatal(err)
	}
	w.j = j
	w.h = process.NewHandover(process.HandoverConfig{Conn: w.conn, Source: j.Reader(), Log: slog.New(slog.NewTextHandler(&w.log, nil))})
}

// restart ends the shard's process, and starts the next one.
func (w *world) restart() {
	w.t.Helper()
	if err := w.j.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.now = w.now.Add(time.Second)
	w.begin()
}

// decides has the shard write down n decisions, of which each has some bytes.
func (w *world) decides(n, size int) {
	w.t.Helper()
	for i := range n {
		if _, err := w.j.Append([]execute.Entry{{Kind: "create", Machine: fmt.Sprint("local/m", i), Outcome: "executed",
			Error: strings.Repeat("x", size)}}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// gives gives all there is, whatever is lost on the way.
func (w *world) gives() {
	w.t.Helper()
	for range 1000 {
		more, err := w.h.Give(w.t.Context())
		if err != nil && !errors.Is(err, errLost) {
			w.t.Fatal(err)
		}
		if !more && err == nil {
			return
		}
	}
	w.t.Fatal("there is no end to what is given")
}

// kept are the entries of the shard in the audit log.
func (w *world) kept() map[string]string {
	w.t.Helper()
	l, err := w.f.Store.List(w.t.Context(), auditlog.ChainPrefix+auditlog.WriterOf(w.id.String()))
	if err != nil {
		w.t.Fatal(err)
	}
	out := make(map[string]string)
	for _, e := range l.Entries {
		out[e.Key] = string(e.Value)
	}
	return out
}

// forget has the store lose what it has of the shard.
func (w *world) forget() {
	w.t.Helper()
	tx := store.Tx{ID: store.NewTxID()}
	for key := range w.kept() {
		tx.Delete = append(tx.Delete, key)
	}
	if _, err := w.f.Store.Commit(w.t.Context(), tx); err != nil {
		w.t.Fatal(err)
	}
}

// wantAll wants the audit log to have all that the journal has, and no more.
func (w *world) wantAll() {
	w.t.Helper()
	kept, n := w.kept(), 0
	for r, err := range execute.Export(w.disk.FS(), "journal") {
		if err != nil {
			w.t.Fatal(err)
		}
		if n++; kept[r.Key] != r.Value {
			w.t.Errorf("the log has %q of %s, want %q", kept[r.Key], r.Key, r.Value)
		}
	}
	if n == 0 || n != len(kept) {
		w.t.Errorf("the log has %d entries, and the journal %d\n%s", len(kept), n, w.log.String())
	}
}

// All that a shard writes down reaches the log, each entry once: over processes and chains, whichever
// calls and answers are lost, and no matter which process asks.
func TestJournalReachesTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.conn.losesCall = func(n int) bool { return n%3 == 0 }
	w.conn.losesAnswerOf = func(n int) bool { return n%4 == 1 }
	w.decides(100, 0)
	w.gives()
	w.wantAll()
	w.decides(5, 0)
	w.now = w.now.Add(2 * auditlog.MaxChainAge) // its clock goes ahead: the next chain is not yet
	w.gives()
	w.wantAll()
	w.now = w.f.Clock()
	w.decides(70, 0)
	w.restart()
	w.decides(3, 1000)
	w.gives()
	w.wantAll()
	if calls := w.conn.calls; calls > 40 {
		t.Errorf("that took %d calls", calls)
	}
}

// Entries of a process that died before they were given are given by the next one.
func TestNextProcessGives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.decides(3, 0)
	w.gives()
	w.decides(4, 0)
	w.restart()
	w.decides(1, 0)
	w.gives()
	w.wantAll()
}

// A store that lost what it had is given it again.
func TestLostEntriesAreGivenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.decides(3, 0)
	w.gives()
	w.forget()
	w.decides(2, 0)
	w.gives()
	w.wantAll()
}

// Entries that the shard had no room to keep until they were given are left out, and said to be; what comes
// after it is given.
func TestDroppedEntriesAreLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.decides(2, 0)
	w.gives()
	first := len(w.kept())
	w.decides(1500, 1000) // above six segments
	w.gives()
	if n := len(w.kept()); n != first {
		t.Errorf("the log has %d entries of a chain of which some are gone, want %d", n, first)
	}
	if !strings.Contains(w.log.String(), "were dropped here") {
		t.Errorf("nothing says so: %s", w.log.String())
	}
	w.restart()
	w.decides(2, 0)
	w.gives()
	if n := len(w.kept()); n != first+3 {
		t.Errorf("the log has %d entries, want %d more for the next process\n%s", n-first, 3, w.log.String())
	}
}

// A coordinator that has another entry in the place of one is told of as an incident, and its
// chain gets nothing more.
func TestAnotherEntryIsAnIncident(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.decides(2, 0)
	w.conn.losesAnswerOf = func(n int) bool { return n == 2 } // of what is kept
	if _, err := w.h.Give(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.h.Give(t.Context()); !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	for key, value := range w.kept() {
		if _, number, _ := auditlog.ParseKey(key); number != 3 {
			continue
		}
		tx := store.Tx{ID: store.NewTxID(), Put: []store.Write{{Key: key,
			Value: []byte(strings.Replace(value, "local/m1", "local/m9", 1))}}}
		if _, err := w.f.Store.Commit(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
	}
	w.f.Restart()
	w.gives()
	if !strings.Contains(w.log.String(), "another entry in its place") || !strings.Contains(w.log.String(), "incident=true") {
		t.Errorf("nothing says so: %s", w.log.String())
	}
}

// A chain that began before the log's retention is not given, and that is no error; what comes after it
// is.
func TestOldChainsAreOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.now = w.now.Add(-90 * 24 * time.Hour)
	w.decides(3, 0)
	w.restart()
	w.now = w.f.Clock()
	w.restart()
	w.decides(2, 0)
	w.gives()
	if n := len(w.kept()); n != 3 || w.log.Len() > 0 {
		t.Errorf("the log has %d entries, want the 3 of now\n%s", n, w.log.String())
	}
}

// Gaps in two chains end: each of them is left out, and all after them is given.
func TestTwoGapsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.decides(800, 1000) // of which the beginning is dropped by what comes
	w.restart()
	w.decides(400, 1000)
	w.restart()
	w.decides(2, 0)
	segments := w.segments()
	middle := segments[len(segments)-3] // of three of the second process
	w.disk.Put(middle, []byte("garbage\n"))
	w.gives()
	if n := strings.Count(w.log.String(), "were dropped here"); n != 2 {
		t.Errorf("%d gaps were met, want 2\n%s", n, w.log.String())
	}
	kept := w.kept()
	for i := range 3 {
		if _, there := kept[w.lastKey(i)]; !there {
			t.Errorf("entry %d of the last process is not there", i+1)
		}
	}
}

// segments are the files of the journal, in their order.
func (w *world) segments() (out []string) {
	w.t.Helper()
	names, err := w.disk.FS().ReadDir("journal")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".jsonl") {
			out = append(out, "journal/"+name)
		}
	}
	return out
}

// lastKey is where entry i of the newest chain stands, from 0.
func (w *world) lastKey(i int) string {
	w.t.Helper()
	segments := w.segments()
	data, err := w.disk.FS().ReadFile(segments[len(segments)-1], 1<<20)
	if err != nil {
		w.t.Fatal(err)
	}
	var r execute.Record
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&r); err != nil {
		w.t.Fatal(err)
	}
	chain, _, _ := auditlog.ParseKey(r.Key)
	return auditlog.Key(chain, uint64(i)+1)
}

// A store that lost a chain is given it again, too if the shard went on to another one meanwhile.
func TestLostChainIsGivenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.decides(3, 0)
	w.gives()
	w.forget()
	w.now = w.now.Add(auditlog.MaxChainAge)
	w.decides(2, 0)
	w.now = w.f.Clock()
	w.gives()
	w.wantAll()
}
