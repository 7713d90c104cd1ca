package auditlog_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/auditlog"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

const cluster = "test.example"

var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// signer returns a config signing key and how a trust bundle lists it.
func signer(seed byte) (ed25519.PrivateKey, snapshot.ConfigKey) {
	k := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	return k, snapshot.ConfigKey{
		Algorithm: internalsnapshot.AlgorithmTree, Key: k.Public().(ed25519.PublicKey),
		NotBefore: start.Add(-time.Hour), NotAfter: start.Add(24 * time.Hour),
	}
}

// A record is one key of a log, and its value.
type record struct {
	key   string
	value []byte
}

// A scribe writes a log.
type scribe struct {
	t       testing.TB
	key     ed25519.PrivateKey
	writers []*auditlog.Writer
	records []record // in the order in which a verifier reads them
	waiting []record // entries behind no checkpoint
	last    *auditlog.Claim
	ends    map[string]auditlog.Line
	breaks  []auditlog.Break
	cluster string
}

func newScribe(t testing.TB) *scribe {
	key, _ := signer(1)
	s := &scribe{t: t, key: key, ends: make(map[string]auditlog.Line), cluster: cluster}
	for _, who := range []string{"00000000000000aa", "00000000000000bb"} {
		w, err := auditlog.NewWriter(who, func() time.Time { return start })
		if err != nil {
			t.Fatal(err)
		}
		s.writers = append(s.writers, w)
	}
	return s
}

// write has writer i write n entries in one transaction.
func (s *scribe) write(i, n int) []record {
	s.t.Helper()
	entries := make([]auditlog.Entry, n)
	for j := range entries {
		entries[j] = auditlog.Entry{At: start, Actor: "alice", Action: "test.done", Target: fmt.Sprint(len(s.waiting) + j)}
	}
	st, err := s.writers[i].Stamp(context.Background(), entries)
	if err != nil {
		s.t.Fatal(err)
	}
	st.Applied()
	var out []record
	for _, w := range st.Writes {
		if strings.HasPrefix(w.Key, auditlog.Prefix) {
			out = append(out, record{w.Key, w.Value})
		}
	}
	s.waiting = append(s.waiting, out...)
	return out
}

// checkpoint vouches for what waits.
func (s *scribe) checkpoint() {
	s.t.Helper()
	c := auditlog.Checkpoint{Cluster: s.cluster, Number: 1, At: start, First: 1, Breaks: s.breaks}
	if s.last != nil {
		c.Number, c.Previous = s.last.Number+1, s.last.Hash
	}
	lines := map[string]auditlog.Line{}
	for _, r := range s.waiting {
		chain, number, _ := auditlog.ParseKey(r.key)
		l, ok := lines[chain]
		if !ok {
			l = auditlog.Line{Chain: chain, From: s.ends[chain].To}
		}
		l.To, l.Hash = number, auditlog.HashOf(r.key, r.value)
		lines[chain], s.ends[chain] = l, l
	}
	for _, l := range lines {
		c.Lines = append(c.Lines, l)
	}
	slices.SortFunc(c.Lines, func(a, b auditlog.Line) int { return strings.Compare(a.Chain, b.Chain) })
	value, hash, err := c.Sign(s.key)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.last, err = auditlog.DecodeCheckpoint(value); err != nil || s.last.Hash != hash {
		s.t.Fatalf("what was signed has hash %v, not %v: %v", s.last, hash, err)
	}
	s.records = append(append(s.records, record{auditlog.CheckpointKey(c.Number), value}), s.waiting...)
	s.waiting, s.breaks = nil, nil
}

// log is all that was written.
func (s *scribe) log() []record { return slices.Concat(s.records, s.waiting) }

func keysOf(k ...snapshot.ConfigKey) auditlog.Keys { return k }

func verify(log []record, keys auditlog.Keys, known ...auditlog.Known) *auditlog.Report {
	v := auditlog.NewVerifier(cluster, keys, known...)
	for _, r := range log {
		v.Add(r.key, r.value)
	}
	return v.Close()
}

// three writes a log of three checkpoints, and two entries after the last.
func three(t testing.TB) *scribe {
	s := newScribe(t)
	for range 3 {
		s.write(0, 2)
		s.write(1, 1)
		s.write(0, 1)
		s.checkpoint()
	}
	s.write(0, 1)
	s.write(1, 1)
	return s
}

// TestVerify has a log altered in each way that a check is for, and wants that check to find it.
func TestVerify(t *testing.T) {
	t.Parallel()
	_, listed := signer(1)
	whole := three(t)
	if r := verify(append(whole.log(), record{"audit/00001772600767000000000-abcdefab", []byte(`{"action":"old"}`)}), keysOf(listed)); r.Wrong != 0 ||
		r.Covered != 12 || r.Uncovered != 2 || r.Unchained != 1 || r.First != 1 || r.Last.Number != 3 {
		t.Fatalf("a whole log: %+v", r)
	}
	known := auditlog.Known{Number: 2, Hash: func() auditlog.Hash {
		c, err := auditlog.DecodeCheckpoint(whole.records[5].value)
		if err != nil || c.Number != 2 {
			t.Fatal(c, err)
		}
		return c.Hash
	}()}
	// The log is: checkpoint 1 at 0, its entries 1 to 4 (writer 0: 1, 2 and 4), checkpoint 2 at
	// 5, its entries 6 to 9, checkpoint 3 at 10, its entries 11 to 14, then 15 and 16.
	alter := func(r record, old, new string) record {
		if !bytes.Contains(r.value, []byte(old)) {
			t.Fatalf("%s has no %q: %s", r.key, old, r.value)
		}
		return record{r.key, bytes.Replace(r.value, []byte(old), []byte(new), 1)}
	}
	without := func(from, to int) func([]record) []record {
		return func(log []record) []record { return slices.Delete(log, from, to) }
	}
	other, otherListed := signer(2)
	forge := func(c auditlog.Claim, key ed25519.PrivateKey, edit func(*auditlog.Checkpoint)) record {
		edit(&c.Checkpoint)
		value, _, err := c.Checkpoint.Sign(key)
		if err != nil {
			t.Fatal(err)
		}
		return record{auditlog.CheckpointKey(c.Number), value}
	}
	decoded := func(r record) auditlog.Claim {
		c, err := auditlog.DecodeCheckpoint(r.value)
		if err != nil {
			t.Fatal(err)
		}
		return *c
	}
	for _, tc := range []struct {
		name string
		rule auditlog.Rule
		keys auditlog.Keys
		edit func(log []record) []record
	}{
		{"an entry is altered", auditlog.RuleAltered, nil, func(log []record) []record { log[2] = alter(log[2], "alice", "malice"); return log }},
		{"the last entry of a checkpoint is altered", auditlog.RuleAltered, nil, func(log []record) []record { log[14] = alter(log[14], "alice", "malice"); return log }},
		{"an entry is gone", auditlog.RuleMissing, nil, without(7, 8)},
		{"the first entry of a chain is gone", auditlog.RuleMissing, nil, without(1, 2)},
		{"two entries are exchanged", auditlog.RuleEntry, nil, func(log []record) []record {
			log[1].value, log[2].value = log[2].value, log[1].value
			return log
		}},
		{"two entries that both follow another one are exchanged", auditlog.RuleAltered, nil, func(log []record) []record {
			log[2].value, log[4].value = log[4].value, log[2].value
			return log
		}},
		{"the tail behind a checkpoint is cut", auditlog.RuleMissing, nil, without(13, 17)},
		{"an entry after the last checkpoint is altered below another", auditlog.RuleAltered, nil, func([]record) []record {
			whole := three(t)
			whole.write(0, 1)
			log := whole.log()
			log[15] = alter(log[15], "alice", "malice")
			return log
		}},
		{"an entry after the last checkpoint is gone below another", auditlog.RuleMissing, nil, func([]record) []record {
			whole := three(t)
			whole.write(0, 1)
			return slices.Delete(whole.log(), 15, 16)
		}},
		{"a chain goes on from another entry than it ended with", auditlog.RuleAltered, nil, func(log []record) []record {
			// Its entries are made anew from the first one on, and the checkpoint that covers them tells of these.
			key, _ := signer(1)
			c := decoded(log[10])
			hash := auditlog.Hash{1}
			for i := 11; i <= 14; i++ {
				chain, _, _ := auditlog.ParseKey(log[i].key)
				if chain != c.Lines[0].Chain {
					continue
				}
				e, err := auditlog.Decode(log[i].key, log[i].value)
				if err != nil {
					t.Fatal(err)
				}
				log[i] = alter(log[i], e.Previous.String(), hash.String())
				hash = auditlog.HashOf(log[i].key, log[i].value)
			}
			log[10] = forge(c, key, func(c *auditlog.Checkpoint) { c.Lines[0].Hash = hash })
			return log[:15]
		}},
		{"an entry is there twice", auditlog.RuleDuplicate, nil, func(log []record) []record { return slices.Insert(log, 3, log[2]) }},
		{"an entry is there again later", auditlog.RuleDuplicate, nil, func(log []record) []record { return append(log, log[2]) }},
		{"an entry stands behind another checkpoint", auditlog.RuleStray, nil, func(log []record) []record {
			late := log[15]
			return slices.Insert(slices.Delete(log, 15, 16), 7, late)
		}},
		{"an entry says that it stands elsewhere", auditlog.RuleEntry, nil, func(log []record) []record {
			log[2] = alter(log[2], "{", `{"number":3,"chain":"00000000000000aa/01772600767000000000-abcdefab",`)
			return log
		}},
		{"an entry does not decode", auditlog.RuleEntry, nil, func(log []record) []record { log[3].value = []byte("{"); return log }},
		{"a checkpoint is altered", auditlog.RuleSignature, nil, func(log []record) []record {
			log[10] = forge(decoded(log[10]), other, func(c *auditlog.Checkpoint) { c.At = c.At.Add(time.Second) })
			var s auditlog.Signed
			if err := json.Unmarshal(log[10].value, &s); err != nil {
				t.Fatal(err)
			}
			s.Signatures[0].Key = listed.ID()
			log[10].value, _ = json.Marshal(s)
			return log
		}},
		{"a checkpoint in the middle is altered", auditlog.RuleSignature, nil, func(log []record) []record {
			var s auditlog.Signed
			if err := json.Unmarshal(log[5].value, &s); err != nil {
				t.Fatal(err)
			}
			s.Signatures[0].Bytes[3] ^= 1
			log[5].value, _ = json.Marshal(s)
			return log
		}},
		{"the newest checkpoint is under a key that the bundle does not have", auditlog.RuleKey, keysOf(otherListed), nil},
		{"the newest checkpoint is under a stranger's key", auditlog.RuleKey, nil, func(log []record) []record {
			log[10] = forge(decoded(log[10]), other, func(*auditlog.Checkpoint) {})
			return log
		}},
		{"the key is revoked", auditlog.RuleKey, keysOf(func() snapshot.ConfigKey { k := listed; k.Revoked = true; return k }()), nil},
		{"the key was not to sign yet", auditlog.RuleKey, keysOf(func() snapshot.ConfigKey { k := listed; k.NotBefore = start.Add(time.Hour); return k }()), nil},
		{"the key was not to sign then", auditlog.RuleKey, keysOf(func() snapshot.ConfigKey { k := listed; k.NotAfter = start.Add(-time.Hour); return k }()), nil},
		{"a checkpoint is another one", auditlog.RuleLink, nil, func(log []record) []record {
			key, _ := signer(1)
			log[5] = forge(decoded(log[5]), key, func(c *auditlog.Checkpoint) { c.At = c.At.Add(time.Second) })
			return log
		}},
		{"a checkpoint is gone", auditlog.RuleOrder, nil, without(5, 6)},
		{"a checkpoint and what it covers is gone", auditlog.RuleOrder, nil, without(5, 10)},
		{"a checkpoint is there twice", auditlog.RuleOrder, nil, func(log []record) []record { return slices.Insert(log, 5, log[0]) }},
		{"the first checkpoint is gone, with what it covers", auditlog.RuleFirst, nil, without(0, 5)},
		{"a checkpoint keeps what the one before it did not", auditlog.RuleFirst, nil, func(log []record) []record {
			key, _ := signer(1)
			log[5] = forge(decoded(log[5]), key, func(c *auditlog.Checkpoint) { c.First = 2 })
			log[10] = forge(decoded(log[10]), key, func(c *auditlog.Checkpoint) { c.Previous, c.First = decoded(log[5]).Hash, 1 })
			return log
		}},
		{"the known checkpoint is gone, with all after it", auditlog.RuleKnown, nil, func(log []record) []record { return log[:5] }},
		{"the known checkpoint is another one, and what follows names it", auditlog.RuleKnown, nil, func(log []record) []record {
			key, _ := signer(1)
			log[5] = forge(decoded(log[5]), key, func(c *auditlog.Checkpoint) { c.At = c.At.Add(time.Second) })
			log[10] = forge(decoded(log[10]), key, func(c *auditlog.Checkpoint) { c.Previous = decoded(log[5]).Hash })
			return log
		}},
		{"all is gone", auditlog.RuleKnown, nil, func([]record) []record { return nil }},
		{"a checkpoint does not decode", auditlog.RuleCheckpoint, nil, func(log []record) []record { log[5].value = []byte("{}"); return log }},
		{"a checkpoint stands elsewhere", auditlog.RuleCheckpoint, nil, func(log []record) []record { log[5].key = auditlog.CheckpointKey(7); return log }},
		{"the log of another cluster", auditlog.RuleCluster, nil, func([]record) []record {
			s := newScribe(t)
			s.cluster = "other.example"
			s.write(0, 1)
			s.checkpoint()
			return s.log()
		}},
		{"no checkpoint at all", auditlog.RuleNoCheckpoint, nil, func(log []record) []record { return log[1:3] }},
		{"a chain goes on elsewhere", auditlog.RuleLine, nil, func(log []record) []record {
			key, _ := signer(1)
			log[10] = forge(decoded(log[10]), key, func(c *auditlog.Checkpoint) { c.Lines[0].From-- })
			return log
		}},
		{"a chain begins in the middle", auditlog.RuleLine, nil, func([]record) []record {
			s := newScribe(t)
			s.write(0, 1)
			s.waiting = nil
			s.write(0, 1)
			key, _ := signer(1)
			s.checkpoint()
			log := s.log()
			log[0] = forge(decoded(log[0]), key, func(c *auditlog.Checkpoint) { c.Lines[0].From = 1 })
			return log
		}},
		{"whoever made a checkpoint found a break", auditlog.RuleBreak, nil, func([]record) []record {
			s := newScribe(t)
			s.write(0, 1)
			s.breaks = []auditlog.Break{{Chain: "00000000000000aa/01772600767000000000-abcdefab", Number: 4, Problem: "it is not there"}}
			s.checkpoint()
			return s.log()
		}},
	} {
		log, keys := slices.Clone(whole.log()), tc.keys
		if tc.edit != nil {
			log = tc.edit(log)
		}
		if keys == nil {
			keys = keysOf(listed)
		}
		r := verify(log, keys, known)
		if !slices.ContainsFunc(r.Problems, func(p auditlog.Problem) bool { return p.Rule == tc.rule }) {
			t.Errorf("%s: found %v, not %q", tc.name, r.Problems, tc.rule)
		}
		if len(r.Problems) == 0 || r.Wrong < uint64(len(r.Problems)) {
			t.Errorf("%s: %d problems, %v", tc.name, r.Wrong, r.Problems)
		}
	}
}

// TestOldKeys: a checkpoint under a key that the trust bundle has no more is vouched for by
// the one that follows it.
func TestOldKeys(t *testing.T) {
	t.Parallel()
	s := newScribe(t)
	s.write(0, 3)
	s.checkpoint()
	var listed snapshot.ConfigKey
	s.key, listed = signer(2)
	s.checkpoint() // a reseed starts with one: it covers nothing, and carries the hash
	if r := verify(s.log(), keysOf(listed)); r.Wrong != 0 || r.Covered != 3 {
		t.Errorf("after a change of the key: %+v", r)
	}
	log := s.log()
	log[1].value = bytes.Replace(log[1].value, []byte("alice"), []byte("malice"), 1)
	if r := verify(log, keysOf(listed)); r.Wrong == 0 || r.Problems[0].Rule != auditlog.RuleAltered {
		t.Errorf("altered before a change of the key: %+v", r)
	}
}

// TestToldOnce: what stands after an entry of which a checkpoint tells that it is broken is not told again, and what
// stands in a chain whose note alone was wrong is looked at as ever.
func TestToldOnce(t *testing.T) {
	t.Parallel()
	_, listed := signer(1)
	for _, broken := range []bool{true, false} {
		s := three(t)
		chain, _, _ := auditlog.ParseKey(s.waiting[0].key)
		b := auditlog.Break{Chain: chain, Problem: "it cannot be read"}
		if broken {
			b.Number = s.ends[chain].To + 1
		}
		waiting := s.waiting
		s.waiting, s.breaks = nil, []auditlog.Break{b}
		s.checkpoint()
		s.waiting = waiting
		s.write(0, 1)
		log := s.log()
		i := slices.IndexFunc(log, func(r record) bool { return r.key == waiting[0].key })
		r := verify(slices.Delete(log, i, i+1), keysOf(listed)) // the entry is gone
		if want := map[bool]uint64{true: 1, false: 2}[broken]; r.Wrong != want {
			t.Errorf("broken %v: %v", broken, r.Problems)
		}
	}
}

// TestRetention: what is before the first checkpoint that is kept may be gone, and no more.
func TestRetention(t *testing.T) {
	t.Parallel()
	_, listed := signer(1)
	s := three(t)
	c := auditlog.Checkpoint{Cluster: cluster, Number: 4, At: start, Previous: s.last.Hash, First: 2}
	value, _, err := c.Sign(s.key)
	if err != nil {
		t.Fatal(err)
	}
	log := slices.Concat(s.records, []record{{auditlog.CheckpointKey(4), value}}, s.waiting)
	if r := verify(slices.Clone(log[5:]), keysOf(listed)); r.Wrong != 0 || r.Covered != 8 || r.First != 2 {
		t.Errorf("the first is gone: %+v", r)
	}
	if r := verify(slices.Clone(log[10:]), keysOf(listed)); r.Wrong == 0 {
		t.Errorf("the second is gone too: %+v", r)
	}
}

// TestTampered alters a log at one place, whatever it is, and wants the verifier to find it.
func TestTampered(t *testing.T) {
	t.Parallel()
	_, listed := signer(1)
	rapid.Check(t, func(t *rapid.T) {
		s := newScribe(nilTB{})
		for range rapid.IntRange(1, 4).Draw(t, "checkpoints") {
			for range rapid.IntRange(1, 4).Draw(t, "transactions") {
				s.write(rapid.IntRange(0, 1).Draw(t, "writer"), rapid.IntRange(1, 3).Draw(t, "entries"))
			}
			s.checkpoint()
		}
		log := slices.Clone(s.records)
		if r := verify(log, keysOf(listed)); r.Wrong != 0 {
			t.Fatalf("a whole log: %+v", r)
		}
		known := auditlog.Known{Number: s.last.Number, Hash: s.last.Hash}
		i := rapid.IntRange(0, len(log)-1).Draw(t, "place")
		switch rapid.SampledFrom([]string{"flip", "delete", "exchange", "twice"}).Draw(t, "how") {
		case "flip":
			v := bytes.Clone(log[i].value)
			v[rapid.IntRange(0, len(v)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			if was, err := auditlog.DecodeCheckpoint(log[i].value); err == nil {
				if is, err := auditlog.DecodeCheckpoint(v); err == nil && is.Hash == was.Hash {
					t.Skip("another spelling of the same checkpoint")
				}
			}
			log[i].value = v
		case "delete":
			log = slices.Delete(log, i, i+1)
		case "exchange":
			j := rapid.IntRange(0, len(log)-1).Draw(t, "with")
			if i == j || bytes.Equal(log[i].value, log[j].value) {
				t.Skip("nothing is exchanged")
			}
			log[i].value, log[j].value = log[j].value, log[i].value
		case "twice":
			log = slices.Insert(log, rapid.IntRange(0, len(log)).Draw(t, "again"), log[i])
		}
		if r := verify(log, keysOf(listed), known); r.Wrong == 0 {
			t.Fatalf("nothing was found: %+v", r)
		}
	})
}

// nilTB ends a program that cannot write a log.
type nilTB struct{ testing.TB }

func (nilTB) Helper()           {}
func (nilTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// TestWriter has transactions end in every way, several at once, and wants each chain whole.
func TestWriter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := start
		w, err := auditlog.NewWriter("00000000000000aa", func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		stored := map[string][]byte{}
		var acked, maybe int
		var under, late []*auditlog.Stamped
		apply := func(s *auditlog.Stamped) {
			for _, w := range s.Writes {
				if _, ok := stored[w.Key]; ok {
					t.Fatalf("%s is written twice", w.Key)
				}
				stored[w.Key] = w.Value
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				if len(under) >= 8 {
					t.Skip("enough")
				}
				s, err := w.Stamp(context.Background(), make([]auditlog.Entry, rapid.IntRange(1, 3).Draw(t, "entries")))
				if err != nil {
					t.Fatal(err)
				}
				under = append(under, s)
			},
			"end": func(t *rapid.T) {
				if len(under) == 0 {
					t.Skip("none is under way")
				}
				i := rapid.IntRange(0, len(under)-1).Draw(t, "which")
				s := under[i]
				under = slices.Delete(under, i, i+1)
				switch rapid.SampledFrom([]string{"applied", "refused", "unknown and applied", "unknown and not", "unknown and late"}).Draw(t, "how") {
				case "applied":
					apply(s)
					acked++
					s.Applied()
				case "refused":
					s.Discarded()
				case "unknown and applied":
					apply(s)
					maybe++
					s.Unknown()
				case "unknown and not":
					s.Unknown()
				case "unknown and late":
					s.Unknown()
					late = append(late, s)
				}
			},
			"late": func(t *rapid.T) {
				if len(late) == 0 {
					t.Skip("none is late")
				}
				apply(late[0])
				late = late[1:]
			},
			"crash": func(t *rapid.T) { // what is under way may land, or not
				for _, s := range under {
					if rapid.Bool().Draw(t, "lands") {
						apply(s)
					}
				}
				under = nil
				w, _ = auditlog.NewWriter("00000000000000aa", func() time.Time { return now })
			},
			"": func(t *rapid.T) {
				v := auditlog.NewVerifier(cluster, nil)
				for key, value := range stored {
					v.Add(key, value)
				}
				for _, p := range v.Close().Problems {
					if p.Rule != auditlog.RuleNoCheckpoint {
						t.Fatalf("%v", p)
					}
				}
				for key := range stored {
					if chain, _, ok := auditlog.ParseKey(key); ok && stored[auditlog.HeadPrefix+chain] == nil {
						t.Fatalf("nothing tells of chain %s", chain)
					}
				}
			},
		})
	})
}

// TestOneChainAtATime: who does one thing at a time has one chain, and a place whose
// transaction was refused goes to the next.
func TestOneChainAtATime(t *testing.T) {
	t.Parallel()
	w, err := auditlog.NewWriter("00000000000000aa", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for i := range 6 {
		s, err := w.Stamp(t.Context(), make([]auditlog.Entry, 1))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			s.Discarded()
			continue
		}
		keys = append(keys, s.Writes[0].Key)
		s.Applied()
	}
	chain, _, _ := auditlog.ParseKey(keys[0])
	for i, k := range keys {
		if k != auditlog.Key(chain, uint64(i+1)) {
			t.Errorf("entry %d stands at %s", i, k)
		}
	}
}

func FuzzDecode(f *testing.F) {
	s := three(f)
	for _, r := range s.log()[:7] {
		f.Add(r.key, r.value)
	}
	_, listed := signer(1)
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		if c, err := auditlog.DecodeCheckpoint(value); err == nil {
			if len(c.Lines) > auditlog.MaxLines || c.Number == 0 || c.First == 0 || c.First > c.Number {
				t.Errorf("%+v", c.Checkpoint)
			}
		}
		if e, err := auditlog.Decode(key, value); err == nil && e.Chained() {
			if chain, number, ok := auditlog.ParseKey(key); !ok || chain != e.Chain || number != e.Number {
				t.Errorf("%q holds %+v", key, e)
			}
		}
		if chain, number, ok := auditlog.ParseKey(key); ok && auditlog.Key(chain, number) != key {
			t.Errorf("%q is read as %q", key, auditlog.Key(chain, number))
		}
		verify([]record{{key, value}, {auditlog.CheckpointKey(1), value}, {key, value}}, keysOf(listed))
	})
}

// TestCheckpointsThatCannotBe: nobody signs a checkpoint above a limit or at odds with itself, and nobody reads one.
func TestCheckpointsThatCannotBe(t *testing.T) {
	t.Parallel()
	s := three(t)
	line := s.last.Lines[0]
	for _, tc := range []struct {
		name, want string
		edit       func(*auditlog.Checkpoint)
	}{
		{"no number", "follows none", func(c *auditlog.Checkpoint) { c.Number = 0 }},
		{"the first follows another", "follows none", func(c *auditlog.Checkpoint) { c.Number = 1 }},
		{"a later one follows none", "follows none", func(c *auditlog.Checkpoint) { c.Previous = auditlog.Hash{} }},
		{"it keeps none", "is the first one kept", func(c *auditlog.Checkpoint) { c.First = 0 }},
		{"it keeps later ones", "is the first one kept", func(c *auditlog.Checkpoint) { c.First = c.Number + 1 }},
		{"too many chains", "above 32", func(c *auditlog.Checkpoint) { c.Lines = make([]auditlog.Line, auditlog.MaxLines+1) }},
		{"too many breaks", "above 32", func(c *auditlog.Checkpoint) { c.Breaks = make([]auditlog.Break, auditlog.MaxBreaks+1) }},
		{"a chain twice", "not sorted", func(c *auditlog.Checkpoint) { c.Lines = []auditlog.Line{line, line} }},
		{"a chain that covers nothing", "cannot be", func(c *auditlog.Checkpoint) { l := line; l.To = l.From; c.Lines = []auditlog.Line{l} }},
		{"a chain without a hash", "cannot be", func(c *auditlog.Checkpoint) { l := line; l.Hash = auditlog.Hash{}; c.Lines = []auditlog.Line{l} }},
		{"too many entries", "more than 1024", func(c *auditlog.Checkpoint) { l := line; l.To = l.From + 1025; c.Lines = []auditlog.Line{l} }},
	} {
		c := s.last.Checkpoint
		tc.edit(&c)
		if _, _, err := c.Sign(s.key); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: signed, %v", tc.name, err)
		}
		payload, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		value, err := json.Marshal(auditlog.Signed{Payload: payload, Signatures: []auditlog.Signature{{Key: "k", Bytes: []byte("s")}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := auditlog.DecodeCheckpoint(value); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: read, %v", tc.name, err)
		}
	}
	value := s.records[0].value
	for name, v := range map[string][]byte{"more after it": append(bytes.Clone(value), "{}"...), "an unknown field": bytes.Replace(value, []byte("{"), []byte(`{"x":1,`), 1)} {
		if _, err := auditlog.DecodeCheckpoint(v); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}

// TestHashOf: the hash of an entry is over its place and its value, and over nothing that can be read as
// another place and value.
func TestHashOf(t *testing.T) {
	t.Parallel()
	one := auditlog.HashOf("audit/chain/a", []byte("bc"))
	for _, other := range []auditlog.Hash{auditlog.HashOf("audit/chain/b", []byte("bc")), auditlog.HashOf("audit/chain/a", []byte("bd")), auditlog.HashOf("audit/chain/ab", []byte("c"))} {
		if one == other {
			t.Errorf("%s", one)
		}
	}
}

// TestDecode: an entry is read at its place alone.
func TestDecode(t *testing.T) {
	t.Parallel()
	r := three(t).records[1]
	chain, _, _ := auditlog.ParseKey(r.key)
	if e, err := auditlog.Decode(r.key, r.value); err != nil || e.Chain != chain || e.Number != 1 {
		t.Errorf("%+v, %v", e, err)
	}
	for name, tc := range map[string]struct {
		key, value, want string
	}{
		"of no chain, and says one": {"audit/00001772600767000000000-abcdefab", `{"chain":"x"}`, "stands in none"},
		"of another number":         {r.key, `{"chain":"` + chain + `","number":2}`, "stands elsewhere"},
		"the first follows another": {r.key, `{"previous":"` + strings.Repeat("ab", 32) + `"}`, "follows none"},
		"a later one follows none":  {auditlog.Key(chain, 2), `{}`, "follows none"},
		"too large":                 {r.key, `{"actor":"` + strings.Repeat("x", auditlog.MaxEntryBytes) + `"}`, "above 262144"},
	} {
		if _, err := auditlog.Decode(tc.key, []byte(tc.value)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWriterLimits: a chain ends an hour after its start, and a writer adds to so many at once and no more.
func TestWriterLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, err := auditlog.NewWriter("00000000000000aa", time.Now)
		if err != nil {
			t.Fatal(err)
		}
		stamp := func() (chain string, s *auditlog.Stamped) {
			t.Helper()
			s, err := w.Stamp(t.Context(), make([]auditlog.Entry, 1))
			if err != nil {
				t.Fatal(err)
			}
			chain, _, _ = auditlog.ParseKey(s.Writes[0].Key)
			return chain, s
		}
		first, s := stamp()
		s.Applied()
		time.Sleep(auditlog.MaxChainAge - time.Second)
		again, s := stamp()
		s.Applied()
		time.Sleep(time.Second)
		later, s := stamp()
		s.Applied()
		if again != first || later == first {
			t.Errorf("chains %s, %s and %s", first, again, later)
		}
		var under []*auditlog.Stamped
		for range auditlog.MaxLanes {
			_, s := stamp()
			under = append(under, s)
		}
		waits := make(chan struct{})
		go func() {
			_, s := stamp()
			s.Discarded()
			close(waits)
		}()
		synctest.Wait()
		select {
		case <-waits:
			t.Error("one more is added to")
		default:
		}
		under[0].Unknown()
		<-waits
	})
}
