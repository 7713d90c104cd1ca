// Package backup writes and reads the file that a cluster can be restored from: all that is to
// survive of its store at one revision, encrypted to the owners of the seed.
//
// The promises:
//
//   - A file is read whole or refused by name. The private key of one of its
//     recipients reads it; nobody alters or cuts it unnoticed; and somebody who
//     knows the cluster's transaction key tells that a coordinator of it wrote it.
//   - It holds nothing that counts for the time of the backup alone: no leader, no
//     replica, no recovery, no join token, no sealed mesh CA key. See [Kept].
//   - Its history verifies from genesis to head. [Check] replays it.
//
// # The file
//
// One line that names the format, then an age file (age-encryption.org/v1, not
// armored) whose payload is a sequence of records: one byte that says what it is, its
// length in four bytes, and so many bytes. Integers are in big endian.
//
//	H  the header: JSON, see Header
//	E  an entry: the length of the key in two bytes, the key, the value; sorted by key
//	T  the end: the number of entries in eight bytes, the SHA-256 of all payload before
//	   this record, the SHA-256 of the E records of [Bound] entries alone, the SHA-256
//	   of the header, and an Ed25519 signature by the transaction key over
//	   "fealty backup v1" 0x00 | entries (8) | SHA-256 (32) | SHA-256 (32) | SHA-256 (32)
//
// Nothing follows the end.
package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"filippo.io/age"
	"github.com/go-json-experiment/json"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/store"
)

// Bounds of a backup.
const (
	MaxEntries = 16 << 20
	MaxBytes   = 64 << 30 // of the payload

	maxHeaderBytes = 4 << 10
	maxFamilies    = 256
	maxEntryBytes  = 2 + store.MaxKeyBytes + store.MaxValueBytes
)

const (
	schema = "fealty.backup/v1"
	family = "fealty backup " // begins the first line of a backup of any version
	magic  = family + "v1\n"

	signedName = "fealty backup v1\x00"
)

// Kinds of records.
const (
	recordHeader = 'H'
	recordEntry  = 'E'
	recordEnd    = 'T'
)

const trailerBytes = 8 + 3*sha256.Size + ed25519.SignatureSize

// Faults of a file: an error of this package matches one of them.
var (
	// ErrNotBackup: the file is of another kind.
	ErrNotBackup = errors.New("it is no backup")
	// ErrVersion: it is of another version of the format.
	ErrVersion = errors.New("it is a backup in another format")
	// ErrCut: it ends before its end, or its last part is not what was written.
	ErrCut = errors.New("it was cut, or its end was altered")
	// ErrAltered: bytes of it are not those that were written.
	ErrAltered = errors.New("it was altered")
	// ErrUnsigned: the cluster's transaction key did not sign it, or its history.
	ErrUnsigned = errors.New("no coordinator of the cluster wrote it")
)

// left are the families of the store that a backup leaves out, and why.
var left = []struct{ prefix, why string }{
	{"leader/", "who led then leads no more"},
	{"replica/", "where coordinators were then"},
	{"recovery/", "shares that gathered for one process"},
	{"reseed/", "a reseed that is under way; no backup is made of one"},
	{"restore/", "what an earlier restore left"},
	{"rollout/", "who confirmed which key to whom"},
	{"token/", "a restore voids all join tokens"},
	{"tokenuse/", "a restore voids all join tokens"},
	{"sealed/mesh/", "a restore makes another mesh CA key"},
}

// Kept reports whether the entry at key is part of a backup.
func Kept(key string) bool {
	for _, l := range left {
		if strings.HasPrefix(key, l.prefix) {
			return false
		}
	}
	return true
}

// Bound reports whether the entry at key is one of those that stay as they are from
// the restore until a coordinator is back: it compares them with the backup. The
// others are what it writes itself on its way, and what authenticates itself.
func Bound(key string) bool {
	return Kept(key) && !strings.HasPrefix(key, "audit/") && !strings.HasPrefix(key, "audithead/") && !strings.HasPrefix(key, "checkpoint/") && !strings.HasPrefix(key, "sealed/") && !strings.HasPrefix(key, "seed/")
}

// A Sum is the digest of the bound entries of a store.
type Sum struct{ h hash.Hash }

// NewSum returns the sum of nothing.
func NewSum() *Sum { return &Sum{sha256.New()} }

// Add adds an entry, if it is bound. They come in the order of their keys.
func (s *Sum) Add(key string, value []byte) {
	if Bound(key) {
		n := len(key) + len(value) + 2
		s.h.Write(append(entryHead(n), keyHead(key)...))
		s.h.Write([]byte(key))
		s.h.Write(value)
	}
}

// Digest returns what a [Trailer] has as Bound.
func (s *Sum) Digest() [sha256.Size]byte { return [sha256.Size]byte(s.h.Sum(nil)) }

func entryHead(n int) []byte    { return recordHead(recordEntry, n) }
func keyHead(key string) []byte { return binary.BigEndian.AppendUint16(nil, uint16(len(key))) }
func recordHead(kind byte, n int) []byte {
	return binary.BigEndian.AppendUint32([]byte{kind}, uint32(n))
}

// Header says what a backup is of. It is the first thing in it.
type Header struct {
	Cluster   string
	CreatedAt time.Time
	// Revision is that of the store at which everything was read.
	Revision store.Revision
	// Head is the head record of the history, as the store had it.
	Head []byte
	// TransactionKey signed the head, and signs the end of the backup.
	TransactionKey ed25519.PublicKey
	// Release is that of the coordinator that wrote it.
	Release string
	// Owners are the names of the seed share owners whom it is encrypted to.
	Owners []string
}

type wireHeader struct {
	Schema         string         `json:"schema"`
	Cluster        string         `json:"cluster"`
	CreatedAt      time.Time      `json:"created_at"`
	Revision       store.Revision `json:"revision,string"`
	Head           []byte         `json:"head"`
	TransactionKey []byte         `json:"transaction_key"`
	Release        string         `json:"release"`
	Owners         []string       `json:"owners"`
}

func (h Header) encode() ([]byte, error) {
	if msg := h.fault(); msg != "" {
		return nil, fmt.Errorf("backup: the header: %s", msg)
	}
	owners := h.Owners
	if owners == nil {
		owners = []string{}
	}
	raw, err := json.Marshal(wireHeader{schema, h.Cluster, h.CreatedAt.UTC().Truncate(time.Second), h.Revision, h.Head, h.TransactionKey, h.Release, owners})
	if err == nil && len(raw) > maxHeaderBytes {
		err = fmt.Errorf("backup: the header has %d bytes, at most %d fit", len(raw), maxHeaderBytes)
	}
	return raw, err
}

func decodeHeader(raw []byte) (Header, error) {
	var w wireHeader
	if err := json.Unmarshal(raw, &w, json.RejectUnknownMembers(true)); err != nil {
		return Header{}, fmt.Errorf("the header: %w: %w", err, ErrVersion)
	}
	if w.Schema != schema {
		return Header{}, fmt.Errorf("schema %.64q, and this release reads %q: %w", w.Schema, schema, ErrVersion)
	}
	h := Header{w.Cluster, w.CreatedAt, w.Revision, w.Head, w.TransactionKey, w.Release, w.Owners}
	if msg := h.fault(); msg != "" {
		return Header{}, fmt.Errorf("the header: %s: %w", msg, ErrAltered)
	}
	return h, nil
}

func (h Header) fault() string {
	switch {
	case h.Cluster == "" || len(h.Cluster) > identity.MaxClusterBytes:
		return fmt.Sprintf("cluster %.80q", h.Cluster)
	case len(h.TransactionKey) != ed25519.PublicKeySize:
		return fmt.Sprintf("a transaction key of %d bytes", len(h.TransactionKey))
	case h.Revision == 0 || h.Revision > store.MaxRevision:
		return fmt.Sprintf("revision %d", h.Revision)
	case h.CreatedAt.Unix() <= 0:
		return "no time"
	case !utf8.ValidString(h.Release) || len(h.Release) > 64:
		return "a release that is no text"
	}
	return ""
}

// A Writer makes a backup. Close makes it whole.
type Writer struct {
	out     io.WriteCloser // to the recipients
	header  [sha256.Size]byte
	sum     hash.Hash // of the payload
	bound   *Sum
	last    string // key
	entries uint64
	bytes   uint64
	err     error // sticks
}

// NewWriter begins a backup on w, encrypted to the recipients.
func NewWriter(w io.Writer, h Header, recipients ...string) (*Writer, error) {
	raw, err := h.encode()
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(w, magic); err != nil {
		return nil, err
	}
	out, err := keyring.EncryptStream(w, recipients...)
	if err != nil {
		return nil, err
	}
	b := &Writer{out: out, header: sha256.Sum256(raw), sum: sha256.New(), bound: NewSum()}
	b.record(recordHeader, raw)
	return b, b.err
}

func (b *Writer) record(kind byte, parts ...[]byte) {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	for _, p := range append([][]byte{recordHead(kind, n)}, parts...) {
		if b.err != nil {
			return
		}
		b.sum.Write(p)
		b.bytes += uint64(len(p))
		_, b.err = b.out.Write(p)
	}
}

// Add writes one entry. Keys come in their order, each once, and are such as [Kept].
func (b *Writer) Add(key string, value []byte) error {
	switch {
	case b.err != nil:
	case !Kept(key) || b.entries > 0 && key <= b.last:
		b.err = fmt.Errorf("backup: %q after %q is not to be written", key, b.last)
	case b.entries >= MaxEntries || b.bytes+uint64(len(key)+len(value)) > MaxBytes:
		b.err = fmt.Errorf("backup: more than %d entries or %d bytes", MaxEntries, uint64(MaxBytes))
	default:
		b.entries, b.last = b.entries+1, key
		b.bound.Add(key, value)
		b.record(recordEntry, keyHead(key), []byte(key), value)
	}
	return b.err
}

// Close signs what was written with the transaction key, and ends the backup.
func (b *Writer) Close(key crypto.Signer) (Trailer, error) {
	if b.err != nil {
		return Trailer{}, b.err
	}
	t := Trailer{Entries: b.entries, Digest: [sha256.Size]byte(b.sum.Sum(nil)), Bound: b.bound.Digest(), Header: b.header}
	signature, err := key.Sign(rand.Reader, t.signed(), crypto.Hash(0))
	if err != nil {
		return Trailer{}, fmt.Errorf("backup: signing: %w", err)
	}
	copy(t.Signature[:], signature)
	b.record(recordEnd, t.Encode())
	if b.err == nil {
		b.err = b.out.Close()
	}
	return t, b.err
}

// Trailer ends a backup. Its digest names the backup.
type Trailer struct {
	Entries   uint64
	Digest    [sha256.Size]byte // of all before it
	Bound     [sha256.Size]byte // of the entries that a restored store must have; see [Bound]
	Header    [sha256.Size]byte // of the header, for who has that and not the rest
	Signature [ed25519.SignatureSize]byte
}

func (t Trailer) body() []byte {
	b := binary.BigEndian.AppendUint64(nil, t.Entries)
	return append(append(append(b, t.Digest[:]...), t.Bound[:]...), t.Header[:]...)
}

func (t Trailer) signed() []byte { return append([]byte(signedName), t.body()...) }

// Encode returns the bytes of t, as they stand at the end of the payload.
func (t Trailer) Encode() []byte { return append(t.body(), t.Signature[:]...) }

// DecodeTrailer reads what Encode returns. Errors match [ErrAltered].
func DecodeTrailer(raw []byte) (Trailer, error) {
	if len(raw) != trailerBytes {
		return Trailer{}, fmt.Errorf("backup: an end of %d bytes, want %d: %w", len(raw), trailerBytes, ErrAltered)
	}
	t := Trailer{Entries: binary.BigEndian.Uint64(raw)}
	rest := raw[8:]
	copy(t.Digest[:], rest)
	copy(t.Bound[:], rest[sha256.Size:])
	copy(t.Header[:], rest[2*sha256.Size:])
	copy(t.Signature[:], rest[3*sha256.Size:])
	return t, nil
}

// of reports whether t ends a backup that begins with h.
func (t Trailer) of(h Header) bool {
	raw, err := h.encode()
	return err == nil && t.Header == sha256.Sum256(raw)
}

// SignedBy reports whether the transaction key signed the backup that t ends.
func (t Trailer) SignedBy(key ed25519.PublicKey) bool {
	return len(key) == ed25519.PublicKeySize && ed25519.Verify(key, t.signed(), t.Signature[:])
}

// A Reader reads a backup once, from its beginning to its end.
type Reader struct {
	// Header is what the backup says of itself. Before the end was read it is what the
	// file says, and no more.
	Header Header

	raw     *endings
	payload *bufio.Reader
	sum     hash.Hash
	bound   *Sum
	last    string
	entries uint64
	bytes   uint64
	ended   bool
	trailer Trailer
}

// endings remembers whether the file came to its end.
type endings struct {
	r   io.Reader
	eof bool
}

func (e *endings) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.eof = e.eof || err == io.EOF
	return n, err
}

// Open begins to read the backup in r with the private key of one who it is
// encrypted to. Errors match [ErrNotBackup], [ErrVersion], [keyring.ErrNotForYou],
// [ErrCut], [ErrAltered], or are those of r.
func Open(r io.Reader, identities []age.Identity) (*Reader, error) {
	raw := &endings{r: r}
	line := make([]byte, len(magic))
	n, err := io.ReadFull(raw, line)
	switch {
	case err != nil && !raw.eof:
		return nil, fmt.Errorf("backup: reading: %w", err)
	case n < len(magic) && strings.HasPrefix(magic, string(line[:n])):
		return nil, fmt.Errorf("backup: %w", ErrCut)
	case !strings.HasPrefix(string(line), family):
		return nil, fmt.Errorf("backup: %w", ErrNotBackup)
	case string(line) != magic:
		return nil, fmt.Errorf("backup: it begins with %.32q, and this release reads %q: %w", line, strings.TrimSpace(magic), ErrVersion)
	}
	out, err := keyring.DecryptStream(raw, identities)
	if errors.Is(err, keyring.ErrNotForYou) {
		return nil, fmt.Errorf("backup: %w", err)
	}
	b := &Reader{raw: raw, sum: sha256.New(), bound: NewSum()}
	if err != nil {
		return nil, b.broken(err)
	}
	b.payload = bufio.NewReaderSize(out, 64<<10)
	kind, body, err := b.record()
	if err != nil {
		return nil, err
	}
	if kind != recordHeader {
		return nil, fmt.Errorf("backup: it begins with a record of kind %q: %w", kind, ErrAltered)
	}
	if b.Header, err = decodeHeader(body); err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	return b, nil
}

// broken words why the bytes do not go on.
func (b *Reader) broken(err error) error {
	if b.raw.eof {
		return fmt.Errorf("backup: %w", ErrCut)
	}
	return fmt.Errorf("backup: %v: %w", err, ErrAltered)
}

// record reads the next record. Of the last one the sum does not know.
func (b *Reader) record() (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(b.payload, head[:]); err != nil {
		return 0, nil, b.broken(err)
	}
	n, most := int(binary.BigEndian.Uint32(head[1:])), maxEntryBytes
	switch head[0] {
	case recordHeader:
		most = maxHeaderBytes
	case recordEnd:
		most = trailerBytes
	}
	if n > most || b.bytes+uint64(n) > MaxBytes+maxEntryBytes {
		return 0, nil, fmt.Errorf("backup: a record of %d bytes, at most %d are allowed: %w", n, most, ErrAltered)
	}
	body = make([]byte, n)
	if _, err := io.ReadFull(b.payload, body); err != nil {
		return 0, nil, b.broken(err)
	}
	if head[0] != recordEnd {
		b.sum.Write(head[:])
		b.sum.Write(body)
		b.bytes += uint64(len(head) + n)
	}
	return head[0], body, nil
}

// Entries yields the entries, in the order of their keys; the values are the
// caller's. They count once the last pair was read without an error: an error is the
// last pair.
func (b *Reader) Entries() iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for {
			e, err := b.next()
			if err != nil {
				yield(store.Entry{}, err)
				return
			}
			if b.ended || !yield(e, nil) {
				return
			}
		}
	}
}

func (b *Reader) next() (store.Entry, error) {
	kind, body, err := b.record()
	if err != nil {
		return store.Entry{}, err
	}
	switch kind {
	case recordEntry:
		return b.entry(body)
	case recordEnd:
		return store.Entry{}, b.end(body)
	}
	return store.Entry{}, fmt.Errorf("backup: a record of kind %q: %w", kind, ErrAltered)
}

func (b *Reader) entry(body []byte) (store.Entry, error) {
	bad := func(problem string) (store.Entry, error) {
		return store.Entry{}, fmt.Errorf("backup: entry %d %s: %w", b.entries+1, problem, ErrAltered)
	}
	if len(body) < 2 || len(body)-2 < int(binary.BigEndian.Uint16(body)) {
		return bad("ends in its key")
	}
	n := 2 + int(binary.BigEndian.Uint16(body))
	key, value := string(body[2:n]), body[n:]
	switch {
	case store.CheckKey(key) != nil || len(value) > store.MaxValueBytes:
		return bad("is none that a store takes")
	case b.entries > 0 && key <= b.last:
		return bad("is out of order")
	case !Kept(key):
		return bad(fmt.Sprintf("is %.80q, which no backup holds", key))
	case b.entries >= MaxEntries:
		return bad("is one too many")
	}
	b.entries, b.last = b.entries+1, key
	b.bound.Add(key, value)
	return store.Entry{Key: key, Value: value}, nil
}

func (b *Reader) end(body []byte) error {
	t, err := DecodeTrailer(body)
	if err != nil {
		return err
	}
	if t.Entries != b.entries || !bytes.Equal(t.Digest[:], b.sum.Sum(nil)) || t.Bound != b.bound.Digest() || !t.of(b.Header) {
		return fmt.Errorf("backup: its end is that of another one: %w", ErrAltered)
	}
	// age says here whether the file is whole.
	switch n, err := b.payload.Read(make([]byte, 1)); {
	case n > 0:
		return fmt.Errorf("backup: something follows its end: %w", ErrAltered)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("backup: %w", ErrCut)
	case err != io.EOF:
		return fmt.Errorf("backup: %v: %w", err, ErrAltered)
	}
	if !t.SignedBy(b.Header.TransactionKey) {
		return fmt.Errorf("backup: its end is not signed by the key that it names: %w", ErrUnsigned)
	}
	b.ended, b.trailer = true, t
	return nil
}

// Trailer returns the end; ok is false until it was read.
func (b *Reader) Trailer() (t Trailer, ok bool) { return b.trailer, b.ended }

// Contents is what [Check] found in a whole backup.
type Contents struct {
	Header  Header
	Trailer Trailer
	// History is that of the cluster up to the backup, verified. All of it hangs on the
	// transaction key, and the reader has to know whose that is.
	History *history.Verified
	// Families are the numbers of entries by the first
	// part of their key.
	Families map[string]int
	Bytes    uint64
}

// Check reads a backup to its end, keeps nothing but its history, and verifies that.
// Errors are those of [Open]; ErrUnsigned.
func Check(r io.Reader, identities []age.Identity) (*Contents, error) {
	b, err := Open(r, identities)
	if err != nil {
		return nil, err
	}
	c := &Contents{Header: b.Header, Families: make(map[string]int)}
	blobs := make(blobs)
	size := 0
	for e, err := range b.Entries() {
		if err != nil {
			return nil, err
		}
		first, _, _ := strings.Cut(e.Key, "/")
		if c.Families[first]++; len(c.Families) > maxFamilies {
			return nil, fmt.Errorf("backup: entries of more than %d families: %w", maxFamilies, ErrAltered)
		}
		if first != "history" {
			continue
		}
		if size += len(e.Key) + len(e.Value); size > history.MaxHistoryBytes {
			return nil, fmt.Errorf("backup: a history of more than %d bytes: %w", history.MaxHistoryBytes, ErrAltered)
		}
		blobs[e.Key] = e.Value
	}
	c.Trailer, c.Bytes = b.trailer, b.bytes
	if !bytes.Equal(blobs[history.HeadKey], b.Header.Head) {
		return nil, fmt.Errorf("backup: the head that it names is not the one that it holds: %w", ErrAltered)
	}
	h, err := history.New(blobs).Load(context.Background())
	if err == nil {
		c.History, err = history.Verify(h, b.Header.TransactionKey)
	}
	if err != nil {
		return nil, fmt.Errorf("backup: %w: %w", err, ErrUnsigned)
	}
	if got := c.History.Manifest().Cluster; got != b.Header.Cluster {
		return nil, fmt.Errorf("backup: it says that it is of %.80q, and its history is of %s: %w", b.Header.Cluster, got, ErrAltered)
	}
	// Of several seeds the newest one speaks.
	if !c.Trailer.SignedBy(c.History.TransactionKey()) {
		return nil, fmt.Errorf("backup: the seed in force did not sign it: %w", ErrUnsigned)
	}
	return c, nil
}

// blobs is the part of a backup that holds the history. It is read alone.
type blobs map[string][]byte

func (b blobs) Get(_ context.Context, key string) (store.Entry, error) {
	value, ok := b[key]
	if !ok {
		return store.Entry{}, store.ErrNotFound
	}
	return store.Entry{Key: key, Value: value, Version: 1}, nil
}

func (blobs) CompareAndSwap(context.Context, string, store.Revision, []byte) (store.Revision, error) {
	return 0, store.ErrClosed
}

func (blobs) Watch(ctx context.Context, _ string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) { yield(store.Entry{}, store.ErrClosed) }
}
