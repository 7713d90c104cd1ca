package backup_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

// cluster is a store with a history, and the keys of it.
type cluster struct {
	transaction ed25519.PrivateKey
	owner       *age.X25519Identity
	entries     []store.Entry
	header      backup.Header
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{}
	var err error
	if c.owner, err = age.GenerateX25519Identity(); err != nil {
		t.Fatal(err)
	}
	_, c.transaction, _ = ed25519.GenerateKey(rand.Reader)
	signer, _, _ := ed25519.GenerateKey(rand.Reader)
	m, err := manifest.Parse(fmt.Appendf(nil, `cluster: test.example
seed: {threshold: 1, owners: [{name: alice, recipient: %s}]}
signers: {threshold: 1, keys: [{name: alice, key: "%v"}]}
admit: [{name: c1, kind: coordinator, match: ["key:%v"]}]
`, c.owner.Recipient(), manifest.Key(signer), manifest.Key(signer)))
	if err != nil {
		t.Fatal(err)
	}
	genesis := history.Genesis(m)
	genesis.MeshCAKey, genesis.Salt = identity.KeyID{1}, history.Salt{1}
	genesis.ShareCommitments = []history.ShareCommitment{{Owner: "alice", Hash: history.Hash{1}}}
	ctx := context.Background()
	st := storetest.NewMemory(0).Open()
	v, err := history.New(st).Append(ctx, nil, genesis, m, c.transaction)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"member/data/a", "member/data/b", "audit/1", "sealed/seed/1/x/host", "trust/state"} {
		if _, err := st.CompareAndSwap(ctx, key, 0, []byte("the value of "+key)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := st.List(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	c.entries = l.Entries
	c.header = backup.Header{
		Cluster: "test.example", CreatedAt: time.Unix(1_800_000_000, 0).UTC(), Revision: l.Revision, Head: v.Head().Encode(),
		TransactionKey: c.transaction.Public().(ed25519.PublicKey), Release: "test", Owners: []string{"alice"},
	}
	return c
}

func (c *cluster) identities() []age.Identity { return []age.Identity{c.owner} }

func (c *cluster) write(t testing.TB, h backup.Header, entries []store.Entry, key crypto.Signer) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := backup.NewWriter(&out, h, c.owner.Recipient().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := w.Add(e.Key, e.Value); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Close(key); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func (c *cluster) backup(t testing.TB) []byte { return c.write(t, c.header, c.entries, c.transaction) }

func TestRoundTrip(t *testing.T) {
	c := newCluster(t)
	file := c.backup(t)
	r, err := backup.Open(bytes.NewReader(file), c.identities())
	if err != nil {
		t.Fatal(err)
	}
	var got []store.Entry
	sum := backup.NewSum()
	for e, err := range r.Entries() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
		sum.Add(e.Key, e.Value)
	}
	if !slices.EqualFunc(got, c.entries, func(a, b store.Entry) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) }) {
		t.Fatalf("read %d entries, wrote %d", len(got), len(c.entries))
	}
	end, ok := r.Trailer()
	if !ok || end.Entries != uint64(len(got)) || end.Bound != sum.Digest() || !end.SignedBy(c.header.TransactionKey) {
		t.Fatalf("the end is %+v", end)
	}
	if again, err := backup.DecodeTrailer(end.Encode()); err != nil || again != end {
		t.Fatalf("decoded end: %+v, %v", again, err)
	}
	found, err := backup.Check(bytes.NewReader(file), c.identities())
	if err != nil {
		t.Fatal(err)
	}
	if found.Families["member"] != 2 || found.History.Current().Index != 1 || found.Trailer != end || found.Header.Revision != c.header.Revision {
		t.Fatalf("found %+v", found)
	}
	if bytes.Contains(file, []byte("the value of")) {
		t.Fatal("the file shows what it holds")
	}
}

// kinds are the names of what is wrong: one of them, and no other error, comes out.
var kinds = []error{backup.ErrNotBackup, backup.ErrVersion, backup.ErrCut, backup.ErrAltered, backup.ErrUnsigned, keyring.ErrNotForYou}

func named(err error) bool {
	return slices.ContainsFunc(kinds, func(k error) bool { return errors.Is(err, k) })
}

// TestCut: every beginning of a backup that is not all of it is refused as cut.
func TestCut(t *testing.T) {
	c := newCluster(t)
	file := c.backup(t)
	for n := range len(file) {
		if _, err := backup.Check(bytes.NewReader(file[:n]), c.identities()); !errors.Is(err, backup.ErrCut) {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(file), err)
		}
	}
}

// TestAltered: a backup in which any one byte is another one is refused by name.
func TestAltered(t *testing.T) {
	c := newCluster(t)
	file := c.backup(t)
	for i := range file {
		bad := bytes.Clone(file)
		bad[i] ^= 1 << (i % 8)
		if _, err := backup.Check(bytes.NewReader(bad), c.identities()); err == nil || !named(err) {
			t.Fatalf("byte %d of %d: %v", i, len(file), err)
		}
	}
	for _, more := range [][]byte{{0}, file, make([]byte, 1<<16)} {
		if _, err := backup.Check(bytes.NewReader(append(bytes.Clone(file), more...)), c.identities()); err == nil || !named(err) {
			t.Fatalf("%d bytes more: %v", len(more), err)
		}
	}
}

// TestForged walks what somebody writes who knows a recipient, and not the seed.
func TestForged(t *testing.T) {
	c := newCluster(t)
	_, other, _ := ed25519.GenerateKey(rand.Reader)
	with := func(change func(h *backup.Header)) backup.Header {
		h := c.header
		change(&h)
		return h
	}
	without := func(key string) []store.Entry {
		return slices.DeleteFunc(slices.Clone(c.entries), func(e store.Entry) bool { return strings.HasPrefix(e.Key, key) })
	}
	for _, row := range []struct {
		name string
		file []byte
		want error
	}{
		{"signed by another key", c.write(t, c.header, c.entries, other), backup.ErrUnsigned},
		{"names another key", c.write(t, with(func(h *backup.Header) { h.TransactionKey = other.Public().(ed25519.PublicKey) }), c.entries, other), backup.ErrUnsigned},
		{"of another cluster", c.write(t, with(func(h *backup.Header) { h.Cluster = "other.example" }), c.entries, c.transaction), backup.ErrAltered},
		{"another head", c.write(t, with(func(h *backup.Header) { h.Head = []byte("{}") }), c.entries, c.transaction), backup.ErrAltered},
		{"no head", c.write(t, c.header, without(history.HeadKey), c.transaction), backup.ErrAltered},
		{"no history", c.write(t, c.header, without("history/blob/"), c.transaction), backup.ErrUnsigned},
		{"another kind of file", []byte(strings.Repeat("age-encryption.org/v1\n", 9)), backup.ErrNotBackup},
		{"empty", nil, backup.ErrCut},
		{"a newer format", bytes.Replace(c.backup(t), []byte("backup v1"), []byte("backup v2"), 1), backup.ErrVersion},
		{"a newer schema", c.records(t, record('H', headerJSON(c, "fealty.backup/v2", ""))), backup.ErrVersion},
		{"a field of another release", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", `"more":1,`))), backup.ErrVersion},
		{"no header", c.records(t, entry("a", "b")), backup.ErrAltered},
		{"another record", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", "")), record('X', nil)), backup.ErrAltered},
		{"out of order", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", "")), entry("b", ""), entry("a", "")), backup.ErrAltered},
		{"twice", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", "")), entry("a", ""), entry("a", "")), backup.ErrAltered},
		{"a leader", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", "")), entry("leader/term", "")), backup.ErrAltered},
		{"a token", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", "")), entry("token/x", "")), backup.ErrAltered},
		{"a key that no store takes", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", "")), entry("a\x00", "")), backup.ErrAltered},
		{"a key without end", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", "")), record('E', []byte{9, 9, 'a'})), backup.ErrAltered},
		{"an endless record", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", "")), []byte{'E', 0xff, 0xff, 0xff, 0xff}), backup.ErrAltered},
		{"an endless header", c.records(t, []byte{'H', 0, 1, 0, 0}, make([]byte, 1<<16)), backup.ErrAltered},
		{"an end of another size", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", "")), record('T', make([]byte, 8))), backup.ErrAltered},
		{"the end of another backup", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", "")), record('T', make([]byte, 136))), backup.ErrAltered},
		{"no end", c.records(t, record('H', headerJSON(c, "fealty.backup/v1", "")), entry("a", "")), backup.ErrCut},
	} {
		if _, err := backup.Check(bytes.NewReader(row.file), c.identities()); !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", row.name, err, row.want)
		}
	}
	stranger, _ := age.GenerateX25519Identity()
	if _, err := backup.Check(bytes.NewReader(c.backup(t)), []age.Identity{stranger}); !errors.Is(err, keyring.ErrNotForYou) {
		t.Errorf("with another key: %v", err)
	}
}

func record(kind byte, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body))), body...)
}

func entry(key, value string) []byte {
	return record('E', append(binary.BigEndian.AppendUint16(nil, uint16(len(key))), key+value...))
}

func headerJSON(c *cluster, schema, more string) []byte {
	return fmt.Appendf(nil, `{"schema":%q,%s"cluster":"test.example","created_at":"2027-01-01T00:00:00Z","revision":"5","head":"","transaction_key":"%s","release":"","owners":[]}`,
		schema, more, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
}

// records encrypts a payload as it is.
func (c *cluster) records(t testing.TB, parts ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	out.WriteString("fealty backup v1\n")
	w, err := keyring.EncryptStream(&out, c.owner.Recipient().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestBoundEntries: what a coordinator compares is what is under the record MAC and the
// history, and not what it writes before it can.
func TestBoundEntries(t *testing.T) {
	for key, want := range map[string][2]bool{
		"member/data/a": {true, true}, "trust/state": {true, true}, "trust/ban/id/data/a": {true, true}, "config/state": {true, true},
		"publication/state": {true, true}, "count/pool": {true, true}, history.HeadKey: {true, true},
		"audit/1": {true, false}, "sealed/seed/1/x/host": {true, false}, "seed/set/x": {true, false},
		"sealed/mesh/x/host": {false, false}, "token/x": {false, false}, "tokenuse/x/y": {false, false}, "leader/term": {false, false},
		"replica/x": {false, false}, "recovery/x/alice": {false, false}, "reseed/freeze": {false, false}, "restore/intent": {false, false}, "rollout/x": {false, false},
	} {
		if got := [2]bool{backup.Kept(key), backup.Bound(key)}; got != want {
			t.Errorf("%s: kept and bound are %v, want %v", key, got, want)
		}
	}
}

func TestWriterRefuses(t *testing.T) {
	c := newCluster(t)
	for _, keys := range [][]string{{"b", "a"}, {"a", "a"}, {"token/x"}} {
		w, err := backup.NewWriter(io.Discard, c.header, c.owner.Recipient().String())
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			err = cmp.Or(err, w.Add(key, nil))
		}
		if err == nil {
			t.Errorf("%q are written", keys)
		}
		if _, err := w.Close(c.transaction); err == nil {
			t.Errorf("%q: and the backup is whole", keys)
		}
	}
	if _, err := backup.NewWriter(io.Discard, c.header); !errors.Is(err, keyring.ErrRecipient) {
		t.Errorf("without a recipient: %v", err)
	}
}

func FuzzPayload(f *testing.F) {
	c := newCluster(f)
	header := record('H', headerJSON(c, "fealty.backup/v1", ""))
	f.Add(bytes.Join([][]byte{header, entry("a", "b"), record('T', make([]byte, 136))}, nil))
	f.Add(header)
	f.Add([]byte{'E', 0, 0, 0, 3, 0, 1, 'a'})
	f.Fuzz(func(t *testing.T, payload []byte) {
		if _, err := backup.Check(bytes.NewReader(c.records(t, payload)), c.identities()); err == nil || !named(err) {
			t.Fatalf("%x: %v", payload, err)
		}
	})
}
