package etcd

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// These are the keys of a store below its prefix. Names are fixed in length, so that etcd's
// order of bytes is the order of revisions.
//
//	head             one record: the newest revision, and a large commit that was
//	                 decided and is not in its place yet
//	e/KEY            the entry of KEY
//	b/REVISION/PUT/CHUNK
//	                 a long value of the entry or the change of that put
//	l/REVISION/PART  what the commit changed
//	t/ID             the outcome of the transaction ID
//	s/STAGE/CHUNK    a large commit before it is decided, on a lease
//
// A record is a line of JSON and, after it, the bytes of values.
const (
	headKey     = "head"
	entryPrefix = "e/"
	blobPrefix  = "b/"
	logPrefix   = "l/"
	idPrefix    = "t/"
	stagePrefix = "s/"
)

// schema is what this program writes, and the newest that it reads.
const schema = 1

// Sizes. etcd's defaults, which nobody has to change, are 128 operations in a
// transaction and 1.5 MiB in a request.
const (
	maxOps       = 128
	usableOps    = maxOps - 8 // beside the head and what a turn adds on its own
	maxRequest   = 1 << 20    // bytes of keys and values in a request
	requestSlack = 64 << 10   // what a request adds to them at most
	maxInline    = 4 << 10    // bytes of a value that stands in its record
	chunkBytes   = 512 << 10  // of a longer one, in each record
	partWrites   = 50         // of a large commit in one record of the log
	partBytes    = 256 << 10  // likewise, before the last
	stageTTL     = 600        // seconds that a large commit may take to be decided
)

// maxStage is how many chunks the largest commit takes: its values, and at most
// 1,200 bytes about each of its writes.
const maxStage = (store.MaxTxBytes+1200*store.MaxTxOps)/chunkBytes + 1

// head orders commits: each transaction that commits replaces it, on the
// condition that nobody else did.
type head struct {
	Schema    int            `json:"schema"`
	Store     string         `json:"store"` // random, chosen when the store was made
	Revision  store.Revision `json:"revision"`
	Compacted store.Revision `json:"compacted,omitempty"` // changes up to here are not told any more
	Logged    int64          `json:"logged,omitempty"`    // bytes of changes ever written
	By        string         `json:"by"`                  // random, chosen for this very write
	Pending   *pending       `json:"pending,omitempty"`
}

// pending is a large commit, of the head's revision: it happened. Its entries and
// changes are on their way to their places; until then readers look at the stage.
type pending struct {
	Stage  string `json:"stage"`
	Chunks int    `json:"chunks"`
	Absent string `json:"absent,omitempty"` // bits, in hex, of deletes that met no entry
}

func encodeHead(h head) []byte { return line(h) }

// decodeHead reads the record of the store named name.
func decodeHead(name string, data []byte) (head, error) {
	var version struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(data, &version); err != nil || version.Schema < 1 {
		return head{}, damaged("head", err)
	}
	if version.Schema > schema {
		return head{}, &engine.SchemaError{Store: name, Found: strconv.Itoa(version.Schema), Known: strconv.Itoa(schema), Anew: anew}
	}
	var h head
	if err := json.Unmarshal(data, &h); err != nil {
		return head{}, damaged("head", err)
	}
	if h.Store == "" || h.By == "" || h.Revision > store.MaxRevision || h.Compacted > h.Revision || h.Logged < 0 {
		return head{}, damaged("head", nil)
	}
	if p := h.Pending; p != nil && (h.Revision < 1 || p.Chunks < 1 || p.Chunks > maxStage || !plainName(p.Stage)) {
		return head{}, damaged("head", nil)
	}
	return h, nil
}

func damaged(what string, err error) error {
	problem := fmt.Sprintf("holds a record (%s) that this store did not write", what)
	if err != nil {
		problem += ": " + err.Error()
	}
	return &engine.ServerError{Problem: problem, Do: "restore the prefix from a snapshot of etcd, or restore a backup under a new prefix"}
}

// plainName reports whether s is one of our random names.
func plainName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	return strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// line returns v as a line of JSON.
func line(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("etcd: " + err.Error()) // of a type of this package
	}
	return b.Bytes()
}

// cutLine reads the first line of data into v and returns what follows it.
func cutLine(data []byte, v any) ([]byte, error) {
	text, rest, ok := bytes.Cut(data, []byte("\n"))
	if !ok {
		return nil, errors.New("it has no first line")
	}
	return rest, json.Unmarshal(text, v)
}

// meta is the first line of an entry.
type meta struct {
	Version store.Revision `json:"version"`
	Bytes   int            `json:"bytes"`
	Chunks  int            `json:"chunks,omitempty"` // of the value, if it stands apart
	Put     int            `json:"put,omitempty"`    // its number among the puts of its commit, then
}

func chunksOf(bytes int) int {
	if bytes <= maxInline {
		return 0
	}
	return (bytes + chunkBytes - 1) / chunkBytes
}

// encodeEntry returns the record of the put with this number.
func encodeEntry(version store.Revision, number int, value []byte) []byte {
	m := meta{Version: version, Bytes: len(value), Chunks: chunksOf(len(value))}
	if m.Chunks > 0 {
		m.Put = number
		return line(m)
	}
	return append(line(m), value...)
}

// decodeEntry returns the first line of an entry, and its value if it is there.
func decodeEntry(key string, data []byte) (meta, []byte, error) {
	var m meta
	value, err := cutLine(data, &m)
	if err != nil || m.Version == 0 || m.Version > store.MaxRevision || !m.sound() ||
		m.Chunks == 0 && len(value) != m.Bytes {
		return meta{}, nil, damaged(entryPrefix+key, err)
	}
	return m, value, nil
}

func (m meta) sound() bool {
	return m.Bytes >= 0 && m.Bytes <= store.MaxValueBytes && m.Chunks == chunksOf(m.Bytes) &&
		m.Put >= 0 && m.Put < store.MaxTxOps
}

// blobKey returns the key of a chunk of the value of a put.
func blobKey(r store.Revision, put, chunk int) string {
	return fmt.Sprintf("%s%016x/%04x/%04x", blobPrefix, uint64(r), put, chunk)
}

// blobRange returns the prefix of all chunks of the value of a put.
func blobRange(r store.Revision, put int) string {
	return fmt.Sprintf("%s%016x/%04x/", blobPrefix, uint64(r), put)
}

// logKey returns the key of a part of the changes of a commit.
func logKey(r store.Revision, part int) string {
	return fmt.Sprintf("%s%016x/%04x", logPrefix, uint64(r), part)
}

// part is the first line of what a commit changed, or of a part of that.
type part struct {
	Revision store.Revision `json:"revision"`
	By       string         `json:"by"` // the write of the head that decided it
	ID       string         `json:"id,omitempty"`
	Logged   int64          `json:"logged"` // as in the head, after it
	Last     bool           `json:"last,omitempty"`
	Put      []putLine      `json:"put,omitempty"`
	Delete   []string       `json:"delete,omitempty"`
}

type putLine struct {
	Key   string `json:"key"`
	Bytes int    `json:"bytes"`
	// The put's number, if the value stands apart. It counts from 0, so that it is
	// told by Bytes whether it matters.
	Put int `json:"put,omitempty"`
}

func (p putLine) chunks() int { return chunksOf(p.Bytes) }

// change is what one commit does. Its writes are in the order of the Tx.
type change struct {
	revision store.Revision
	by       string
	id       string
	digest   []byte // nil: nothing was applied, the ID was voided
	puts     []store.Write
	deletes  []string // of entries that existed
	logged   int64
}

// under returns what c did to the keys that begin with prefix, or nil.
func (c *change) under(prefix string) *store.Change {
	if c == nil {
		return nil
	}
	out := &store.Change{Revision: c.revision}
	for _, w := range c.puts {
		if strings.HasPrefix(w.Key, prefix) {
			out.Put = append(out.Put, store.Entry{Key: w.Key, Value: append([]byte{}, w.Value...), Version: c.revision})
		}
	}
	for _, k := range c.deletes {
		if strings.HasPrefix(k, prefix) {
			out.Delete = append(out.Delete, k)
		}
	}
	if len(out.Put)+len(out.Delete) == 0 {
		return nil
	}
	return out
}

// parts returns the records of c in the log: one, if limited is not set.
func (c *change) parts(limited bool) [][]byte {
	var all [][]byte
	now := part{Revision: c.revision, By: c.by, ID: c.id, Logged: c.logged}
	var values []byte
	names := 0
	flush := func(last bool) {
		now.Last = last
		all = append(all, append(line(now), values...))
		now.Put, now.Delete, now.ID, values, names = nil, nil, "", nil, 0
	}
	room := func() {
		if limited && (len(now.Put)+len(now.Delete) >= partWrites || len(values)+names >= partBytes) {
			flush(false)
		}
	}
	for i, w := range c.puts {
		room()
		p := putLine{Key: w.Key, Bytes: len(w.Value)}
		if p.chunks() > 0 {
			p.Put = i
		} else {
			values = append(values, w.Value...)
		}
		names += len(w.Key)
		now.Put = append(now.Put, p)
	}
	for _, k := range c.deletes {
		room()
		names += len(k)
		now.Delete = append(now.Delete, k)
	}
	flush(true)
	return all
}

// decodePart reads a record of the log. The values that stand apart are nil.
func decodePart(key string, data []byte) (part, [][]byte, error) {
	var p part
	rest, err := cutLine(data, &p)
	if err != nil || p.Revision == 0 || p.Revision > store.MaxRevision || len(p.Put)+len(p.Delete) > store.MaxTxOps {
		return part{}, nil, damaged(key, err)
	}
	if !strings.HasPrefix(key, strings.TrimSuffix(logKey(p.Revision, 0), "0000")) {
		return part{}, nil, damaged(key, errors.New("it is of another revision"))
	}
	values := make([][]byte, len(p.Put))
	for i, w := range p.Put {
		switch {
		case w.Bytes < 0 || w.Bytes > store.MaxValueBytes || w.Put < 0 || w.Put >= store.MaxTxOps:
			return part{}, nil, damaged(key, nil)
		case w.chunks() > 0:
		case len(rest) < w.Bytes:
			return part{}, nil, damaged(key, nil)
		default:
			values[i], rest = rest[:w.Bytes:w.Bytes], rest[w.Bytes:]
		}
	}
	if len(rest) > 0 {
		return part{}, nil, damaged(key, nil)
	}
	return p, values, nil
}

// outcomeRecord is what is known of a transaction ID.
type outcomeRecord struct {
	Revision store.Revision `json:"revision"`
	Digest   string         `json:"digest,omitempty"` // in hex; none if it was voided
}

func encodeOutcome(r store.Revision, digest []byte) []byte {
	return line(outcomeRecord{r, hex.EncodeToString(digest)})
}

func decodeOutcome(id string, data []byte) (engine.Outcome, error) {
	var o outcomeRecord
	if _, err := cutLine(data, &o); err != nil {
		return engine.Outcome{}, damaged(idPrefix+id, err)
	}
	digest, err := hex.DecodeString(o.Digest)
	if err != nil || o.Revision == 0 {
		return engine.Outcome{}, damaged(idPrefix+id, err)
	}
	if len(digest) == 0 {
		digest = nil
	}
	return engine.Outcome{Revision: o.Revision, Digest: digest}, nil
}

// stageLine is the first line of a large commit before it is decided.
type stageLine struct {
	By     string      `json:"by"`
	ID     string      `json:"id,omitempty"`
	Digest string      `json:"digest,omitempty"` // in hex
	Put    []stagedPut `json:"put,omitempty"`
	Delete []string    `json:"delete,omitempty"`
}

type stagedPut struct {
	Key   string `json:"key"`
	Bytes int    `json:"bytes"`
}

// encodeStage returns tx in chunks.
func encodeStage(by string, tx store.Tx, digest []byte) [][]byte {
	head := stageLine{By: by, ID: tx.ID, Digest: hex.EncodeToString(digest), Delete: tx.Delete}
	for _, w := range tx.Put {
		head.Put = append(head.Put, stagedPut{w.Key, len(w.Value)})
	}
	all := line(head)
	for _, w := range tx.Put {
		all = append(all, w.Value...)
	}
	var chunks [][]byte
	for len(all) > 0 {
		n := min(len(all), chunkBytes)
		chunks = append(chunks, all[:n:n])
		all = all[n:]
	}
	return chunks
}

// decodeStage returns the change that h has pending. It aliases data.
func decodeStage(h head, data []byte) (*change, error) {
	var s stageLine
	rest, err := cutLine(data, &s)
	if err != nil || len(s.Put)+len(s.Delete) > store.MaxTxOps {
		return nil, damaged(stagePrefix+h.Pending.Stage, err)
	}
	c := &change{revision: h.Revision, by: s.By, id: s.ID, logged: h.Logged}
	if s.ID != "" {
		if c.digest, err = hex.DecodeString(s.Digest); err != nil || len(c.digest) == 0 {
			return nil, damaged(stagePrefix+h.Pending.Stage, err)
		}
	}
	for _, p := range s.Put {
		if p.Bytes < 0 || p.Bytes > len(rest) {
			return nil, damaged(stagePrefix+h.Pending.Stage, nil)
		}
		c.puts = append(c.puts, store.Write{Key: p.Key, Value: rest[:p.Bytes:p.Bytes]})
		rest = rest[p.Bytes:]
	}
	absent, err := hex.DecodeString(h.Pending.Absent)
	if err != nil || len(rest) > 0 || len(absent) > (len(s.Delete)+7)/8 {
		return nil, damaged(stagePrefix+h.Pending.Stage, err)
	}
	for i, k := range s.Delete {
		if i/8 < len(absent) && absent[i/8]&(1<<(i%8)) != 0 {
			continue
		}
		c.deletes = append(c.deletes, k)
	}
	return c, nil
}

// absentBits returns the bits of the deletes that are not among those that met
// an entry.
func absentBits(all, met []string) string {
	bits := make([]byte, (len(all)+7)/8)
	next := 0
	any := false
	for i, k := range all {
		if next < len(met) && met[next] == k {
			next++
			continue
		}
		bits[i/8] |= 1 << (i % 8)
		any = true
	}
	if !any {
		return ""
	}
	return hex.EncodeToString(bits)
}

// randomName returns a name that nobody else chooses.
func randomName() string { return store.NewTxID() }
