package execute

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// Limits of a journal.
const (
	// segmentBytes is at which size a segment is followed by the next one. It is written whole
	// with each batch.
	segmentBytes = 256 << 10
	// defaultSegments is how many segments are kept: 128 MiB.
	defaultSegments = 512
	// maxSegmentBytes bounds what is read of one.
	maxSegmentBytes = 32 << 20
	// maxTextBytes bounds each text of an entry; what is longer is cut.
	maxTextBytes = 1 << 10
	// maxNamed is how many machines are named one by one that were kept back for one tenant
	// and one reason; one entry counts the others.
	maxNamed = 64
)

const (
	lockFile      = "journal.lock"
	segmentDigits = 10
	segmentSuffix = ".jsonl"
	maxSegment    = 9_999_999_999
)

// Outcomes of entries, beside those of package execute.
const (
	Begun      = "begun" // it is about to be executed
	Capped     = "capped"
	Suppressed = "suppressed"
	Noticed    = "noticed"
)

// actionOpened is the action of an entry that begins a chain.
const actionOpened = "journal.opened"

// Entry is one decision and what became of it.
type Entry struct {
	Kind      string // of the decision
	Machine   string // its provider, a slash, and its id
	Tenant    string
	For       string // the tenant that a machine is taken for
	Profile   string
	Domain    string
	Priority  int32
	Operation string
	Outcome   string
	Reason    string // of Capped and Suppressed: the rail
	Error     string // of what failed
	Count     int    // of how many more machines it tells, none of which it names
}

// keptBack reports whether the action was not executed: the next cycle decides it again.
func (e *Entry) keptBack() bool {
	return e.Outcome == Capped || e.Outcome == Suppressed || e.Outcome == Noticed
}

// JournalOptions say where a journal is, and whose.
type JournalOptions struct {
	Files durable.FS
	// Dir is its folder, which is made if it is missing.
	Dir string
	// Actor is the holder's name in its entries.
	Actor string
	// Writer names its chains: that of [auditlog.WriterOf] for the holder.
	Writer string
	// Segments is how many segments are kept, at least 2. Zero means 512.
	Segments int
	// Now is its clock. Nil: time.Now.
	Now func() time.Time
}

// Journal is open. It belongs to one goroutine, and its folder to it.
type Journal struct {
	JournalOptions
	lock io.Closer

	chain    string
	began    time.Time
	number   uint64
	previous auditlog.Hash
	last     string // key of the last entry, of this process or the one before

	segments []uint64           // that are there, the oldest first; the last one is written to
	open     []byte             // what the last one holds
	said     map[Entry]struct{} // of the cycle before, what was not executed
	problem  string             // with what a process before left

	kept *atomic.Pointer[place] // up to where all is on disk; for readers
}

// OpenJournal opens a journal, and locks its folder until [Journal.Close].
//
// A journal that cannot be read does not keep a shard from its work: what is there is left
// as it is, [Journal.Problem] says what is wrong, and so does the first entry after it.
func OpenJournal(o JournalOptions) (*Journal, error) {
	if o.Segments == 0 {
		o.Segments = defaultSegments
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	j := &Journal{JournalOptions: o, kept: new(atomic.Pointer[place])}
	switch {
	case !auditlog.ValidChain(j.chainAt(o.Now(), "00000000")):
		return nil, fmt.Errorf("execute: JournalOptions.Writer is %.80q, want 16 lower case hex digits", o.Writer)
	case o.Segments < 2:
		return nil, fmt.Errorf("execute: JournalOptions.Segments is %d, want at least 2", o.Segments)
	}
	files, dir := o.Files, o.Dir
	if err := files.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("execute: the journal: %w", err)
	}
	lock, err := files.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("execute: the journal: %w", err)
	}
	j.lock = lock
	if j.segments, err = segments(files, dir); err != nil {
		_ = lock.Close() // nothing was written
		return nil, fmt.Errorf("execute: the journal: %w", err)
	}
	for i := len(j.segments) - 1; i >= 0 && j.last == "" && j.problem == ""; i-- {
		records, err := readSegment(files, dir, j.segments[i])
		if err != nil {
			j.problem = err.Error()
		} else if n := len(records); n > 0 {
			j.last, j.previous = records[n-1].Key, auditlog.HashOf(records[n-1].Key, []byte(records[n-1].Value))
		}
	}
	// The segments of a process before are never written again.
	if err := j.follow(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	j.kept.Store(&place{segment: j.segments[len(j.segments)-1]})
	return j, nil
}

// Problem says what is wrong with what a process before left; "" if nothing was found.
func (j *Journal) Problem() string { return j.problem }

// Close gives the folder back.
func (j *Journal) Close() error { return j.lock.Close() }

// Cycle takes the entries of a whole cycle, and returns what [Journal.Append] is to write of
// them. An action that is kept back is said when that begins, and not again in each cycle;
// of one tenant and reason maxNamed machines are named.
func (j *Journal) Cycle(entries []Entry) []Entry {
	type group struct{ kind, tenant, outcome, reason string }
	counts := make(map[group]int)
	said := make(map[Entry]struct{})
	var out []Entry
	say := func(e Entry) {
		said[e] = struct{}{}
		if _, before := j.said[e]; !before {
			out = append(out, e)
		}
	}
	var groups []group // in the order of the entries
	for _, e := range entries {
		if !e.keptBack() {
			out = append(out, e)
			continue
		}
		g := group{e.Kind, e.Tenant, e.Outcome, e.Reason}
		if counts[g]++; counts[g] <= maxNamed {
			say(e)
		} else if counts[g] == maxNamed+1 {
			groups = append(groups, g)
		}
	}
	for _, g := range groups {
		say(Entry{Kind: g.kind, Tenant: g.tenant, Outcome: g.outcome, Reason: g.reason, Count: counts[g] - maxNamed})
	}
	j.said = said
	return out
}

// Append writes entries in their order, and returns how many are on disk: all, unless there
// is an error. The others are not there, or are taken out again by the next call that
// succeeds; only a process that ends before that may leave some.
func (j *Journal) Append(entries []Entry) (written int, err error) {
	for written < len(entries) {
		n := min(len(entries)-written, batch)
		if err := j.write(entries[written : written+n]); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// batch is how many entries are written at once, so that no segment is above
// maxSegmentBytes: an entry has less than 12 texts.
const batch = 256

// write writes a batch.
func (j *Journal) write(entries []Entry) error {
	if len(j.open) >= segmentBytes {
		if err := j.follow(); err != nil {
			return err
		}
	}
	was := *j
	at := j.Now().UTC()
	data := slices.Clip(j.open)
	add := func(e auditlog.Entry) error {
		e.At, e.Actor, e.Previous = at, j.Actor, j.previous
		value, err := json.Marshal(e)
		if err != nil {
			return err
		}
		j.number++
		key := auditlog.Key(j.chain, j.number)
		line, err := json.Marshal(Record{key, string(value)})
		if err != nil {
			return err
		}
		data = append(append(data, line...), '\n')
		j.previous, j.last = auditlog.HashOf(key, value), key
		return nil
	}
	var err error
	if j.chain == "" || at.Sub(j.began) >= auditlog.MaxChainAge || at.Before(j.began) {
		err = add(j.begin(at))
	}
	for i := 0; err == nil && i < len(entries); i++ {
		err = add(entries[i].audit())
	}
	if err == nil {
		err = j.Files.WriteFile(j.path(j.segments[len(j.segments)-1]), data)
	}
	if err == nil {
		j.open = data
		j.kept.Store(&place{segment: j.segments[len(j.segments)-1], bytes: len(data)})
		return nil
	}
	// Be it there or not, the next batch writes the segment without it, and the next
	// cycle says again what is kept back.
	*j = was
	j.said = nil
	return fmt.Errorf("execute: the journal: %d entries: %w", len(entries), err)
}

// begin begins a chain, and returns its first entry.
func (j *Journal) begin(at time.Time) auditlog.Entry {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	fields := map[string]string{}
	if j.last != "" {
		fields["follows"], fields["hash"] = j.last, j.previous.String()
	}
	if j.problem != "" && j.chain == "" {
		fields["problem"] = cut(j.problem)
	}
	j.chain, j.began, j.number, j.previous = j.chainAt(at, hex.EncodeToString(random[:])), at, 0, auditlog.Hash{}
	return auditlog.Entry{Action: actionOpened, Target: j.chain, Fields: fields}
}

// chainAt is the name of a chain, as [auditlog.ValidChain] has it.
func (j *Journal) chainAt(at time.Time, random string) string {
	return fmt.Sprintf("%s/%020d-%s", j.Writer, max(at.UnixNano(), 0), random)
}

// follow begins the next segment, and drops the oldest if they are too many.
func (j *Journal) follow() error {
	next := uint64(1)
	if n := len(j.segments); n > 0 {
		next = j.segments[n-1] + 1
	}
	if next > maxSegment {
		return fmt.Errorf("execute: the journal: %s has no number left for a segment: move the folder away", j.Dir)
	}
	for len(j.segments) >= j.Segments {
		if err := j.Files.Remove(j.path(j.segments[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("execute: the journal: the oldest segment: %w", err)
		}
		j.segments = slices.Clone(j.segments[1:])
	}
	// It is there when its first batch is.
	j.segments, j.open = append(slices.Clip(j.segments), next), nil
	return nil
}

func (j *Journal) path(segment uint64) string { return segmentPath(j.Dir, segment) }

func segmentPath(dir string, segment uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%0*d%s", segmentDigits, segment, segmentSuffix))
}

// segments returns the numbers of the segments in a folder, sorted.
func segments(files durable.FS, dir string) ([]uint64, error) {
	names, err := files.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []uint64
	for _, name := range names {
		digits, ok := strings.CutSuffix(name, segmentSuffix)
		n, err := strconv.ParseUint(digits, 10, 64)
		if ok && err == nil && n > 0 && len(digits) == segmentDigits {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

// audit is the entry in the form of the audit log.
func (e *Entry) audit() auditlog.Entry {
	fields := map[string]string{"outcome": e.Outcome, "profile": e.Profile, "operation": e.Operation,
		"priority": strconv.FormatInt(int64(e.Priority), 10), "tenant": e.Tenant, "for": e.For, "domain": e.Domain,
		"error": e.Error}
	if e.Count > 0 {
		fields["count"] = strconv.Itoa(e.Count)
	}
	maps.DeleteFunc(fields, func(_, value string) bool { return value == "" })
	for name, value := range fields {
		fields[name] = cut(value)
	}
	return auditlog.Entry{Action: "machine." + cut(e.Kind), Target: cut(e.Machine), Reason: cut(e.Reason),
		Fields: fields}
}

// entryOf reads what audit made.
func entryOf(a *auditlog.Entry) (Entry, bool) {
	kind, ok := strings.CutPrefix(a.Action, "machine.")
	if !ok {
		return Entry{}, false
	}
	priority, err := strconv.ParseInt(a.Fields["priority"], 10, 32)
	count, _ := strconv.Atoi(a.Fields["count"]) // 0 if it has none
	return Entry{Kind: kind, Machine: a.Target, Tenant: a.Fields["tenant"], For: a.Fields["for"],
		Profile: a.Fields["profile"], Domain: a.Fields["domain"], Priority: int32(priority),
		Operation: a.Fields["operation"],
		Outcome:   a.Fields["outcome"], Reason: a.Reason, Error: a.Fields["error"], Count: count}, err == nil
}

// cut bounds a text, and makes it valid UTF-8: JSON would replace what is not, and the
// entry that is read would be another than the one that was written.
func cut(text string) string {
	if len(text) > maxTextBytes {
		text = text[:maxTextBytes]
	}
	return strings.ToValidUTF8(text, "?")
}

// Record is a line of a segment, as an exported audit log has them too.
type Record struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Said is an entry as it was read.
type Said struct {
	At    time.Time
	Actor string
	Entry
}

// ErrBroken is matched where a journal is not what was written.
var ErrBroken = errors.New("journal is broken")

func brokenAt(segment uint64, format string, args ...any) error {
	return fmt.Errorf("execute: the journal: segment %d: %s: %w", segment, fmt.Sprintf(format, args...), ErrBroken)
}

// readSegment reads the records of a segment.
func readSegment(files durable.FS, dir string, segment uint64) ([]Record, error) {
	data, err := files.ReadFile(segmentPath(dir, segment), maxSegmentBytes)
	if err != nil {
		return nil, err
	}
	var out []Record
	for line := range bytes.Lines(data) {
		r, err := parse(segment, len(out)+1, line)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// parse reads one line of a segment, which counts from 1.
func parse(segment uint64, number int, line []byte) (Record, error) {
	var r Record
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, brokenAt(segment, "line %d is no record: %v", number, err)
	}
	if _, _, ok := auditlog.ParseKey(r.Key); !ok {
		return r, brokenAt(segment, "line %d has no key of an entry", number)
	}
	return r, nil
}

// Export yields the records of the journal in a folder, the oldest first, and checks that
// each follows the one before it. The first may follow one that was dropped. It may run
// beside a journal that is open there: it ends with what was there when it began.
//
// The error is yielded last, with an empty record: it matches [ErrBroken] or is of the
// disk. Records that were yielded before it are as they were written, as far as its own hashes tell.
func Export(files durable.FS, dir string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		numbers, err := segments(files, dir)
		if err != nil {
			yield(Record{}, fmt.Errorf("execute: the journal: %w", err))
			return
		}
		var c check
		for i, n := range numbers {
			records, err := readSegment(files, dir, n)
			if i == 0 && errors.Is(err, fs.ErrNotExist) {
				continue // it was dropped meanwhile
			}
			if err != nil {
				yield(Record{}, err)
				return
			}
			for _, r := range records {
				if err := c.add(n, r); err != nil {
					yield(Record{}, err)
					return
				}
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// check holds records against the ones before them.
type check struct {
	chain  string
	number uint64
	key    string
	hash   auditlog.Hash
}

func (c *check) add(segment uint64, r Record) error {
	e, err := auditlog.Decode(r.Key, []byte(r.Value))
	if err != nil {
		return brokenAt(segment, "%s: %v", r.Key, err)
	}
	switch {
	case c.key == "": // the first that is kept
	case e.Chain == c.chain && (e.Number != c.number+1 || e.Previous != c.hash):
		return brokenAt(segment, "%s does not follow %s as it was", r.Key, c.key)
	case e.Chain != c.chain && (e.Number != 1 || e.Action != actionOpened):
		return brokenAt(segment, "%s begins no chain, and does not follow %s", r.Key, c.key)
	case e.Chain != c.chain && e.Fields["problem"] == "" && (e.Fields["follows"] != c.key ||
		e.Fields["hash"] != c.hash.String()):
		return brokenAt(segment, "the chain that %s begins does not follow %s as it was", r.Key, c.key)
	}
	c.chain, c.number, c.key, c.hash = e.Chain, e.Number, r.Key, auditlog.HashOf(r.Key, []byte(r.Value))
	return nil
}

// Replay yields what was decided, the oldest first, from records as [Export] yields them.
func Replay(records iter.Seq2[Record, error]) iter.Seq2[Said, error] {
	return func(yield func(Said, error) bool) {
		for r, err := range records {
			if err != nil {
				yield(Said{}, err)
				return
			}
			a, err := auditlog.Decode(r.Key, []byte(r.Value))
			if err != nil {
				yield(Said{}, fmt.Errorf("execute: the journal: %s: %w", r.Key, err))
				return
			}
			if e, ok := entryOf(a); ok && !yield(Said{a.At, a.Actor, e}, nil) {
				return
			}
		}
	}
}
