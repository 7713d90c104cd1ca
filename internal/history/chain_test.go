package history_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

// A history with every kind of link verifies, and says what is in force.
func TestVerifyAccepts(t *testing.T) {
	k := newTesters(t)
	c := newChain(t, k, base)
	more := base
	more.nodes = 1
	c.add(history.KindSet, more) // no authority moves
	moved := more
	moved.coord = 1
	c.add(history.KindSet, moved)
	c.add(history.KindRekey, moved)
	c.add(history.KindReshare, moved)
	other := moved
	other.seed, other.persons = 2, 2
	c.add(history.KindReshare, other)
	c.add(history.KindSet, base) // owners change back, by a set
	c.add(history.KindReseed, base)
	restore := c.verified().Restore(time.Unix(1_800_000_000, 0), history.Hash{1})
	c.fill(restore, base, true)
	c.links, c.manifests = append(c.links, restore), append(c.manifests, c.manifests[0])
	c.add(history.KindSet, more)

	v := c.verified()
	type state struct{ index, epoch, seedEpoch uint64 }
	var got []state
	for _, l := range v.Links() {
		got = append(got, state{l.Index, l.AuthorityEpoch, l.SeedEpoch})
	}
	want := []state{{1, 1, 1}, {2, 1, 1}, {3, 2, 1}, {4, 3, 1}, {5, 3, 1}, {6, 4, 1}, {7, 5, 1}, {8, 6, 2},
		{1_800_000_000, 1_800_000_000, 2}, {1_800_000_001, 1_800_000_000, 2}}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("links %v, want %v", got, want)
		}
	}
	if v.Manifest().Hash() != k.manifest(t, more).Hash() || v.Current().Index != v.Head().Index {
		t.Errorf("in force: %v", v.Current())
	}
	keys := v.MeshCAKeys()
	if len(keys) != 7 || keys[0].AuthorityEpoch != 1 || keys[6].Key != v.Current().MeshCAKey {
		t.Errorf("mesh CA keys: %v", keys)
	}
}

// spoiled builds a history that breaks one rule and no rule before it.
type spoiled struct {
	rule, name string
	build      func(c *chain) *history.History
}

// set spoils the transition that sets p after genesis; it is signed afterwards.
func set(kind history.Kind, p policy, spoil func(c *chain, t *history.Transition)) func(c *chain) *history.History {
	return func(c *chain) *history.History {
		t := c.add(kind, p)
		spoil(c, t)
		c.authorize(t)
		return c.history()
	}
}

func genesis(spoil func(t *history.Transition)) func(c *chain) *history.History {
	return func(c *chain) *history.History {
		spoil(c.links[0])
		return c.history()
	}
}

func raw(change func(c *chain, h *history.History)) func(c *chain) *history.History {
	return func(c *chain) *history.History {
		h := c.history()
		change(c, h)
		return h
	}
}

func spoiledHistories() []spoiled {
	moreNodes, moved, owners, mesh, cluster := base, base, base, base, base
	moreNodes.nodes = 1
	moved.coord = 1
	owners.keepers = 3
	mesh.trust = manifest.TrustMesh
	cluster.cluster = "other.example"
	replaceLast := func(c *chain, h *history.History, old, new string) {
		i := len(h.Links) - 1
		h.Links[i] = bytes.Replace(h.Links[i], []byte(old), []byte(new), 1)
		h.Head = c.k.head(c.last(), h.Links[i])
	}
	return []spoiled{
		{"bounds", "nothing", raw(func(_ *chain, h *history.History) { h.Links = nil })},
		{"bounds", "too many links", raw(func(_ *chain, h *history.History) { h.Links = make([][]byte, history.MaxTransitions+1) })},
		{"head-encoding", "garbage", raw(func(_ *chain, h *history.History) { h.Head = []byte("{}") })},
		{"head-encoding", "a space more", raw(func(_ *chain, h *history.History) { h.Head = append(h.Head, ' ') })},
		{"head-signature", "other index", raw(func(_ *chain, h *history.History) {
			h.Head = bytes.Replace(h.Head, []byte(`"index":"1"`), []byte(`"index":"2"`), 1)
		})},
		{"head-signature", "other key", raw(func(c *chain, h *history.History) {
			c.k = newTesters(c.t)
			h.Head = c.k.head(c.last(), h.Links[0])
		})},
		{"encoding", "unknown member", raw(func(c *chain, h *history.History) { replaceLast(c, h, `"index"`, `"extra":1,"index"`) })},
		{"encoding", "not canonical", raw(func(c *chain, h *history.History) { replaceLast(c, h, `"index":`, `"index": `) })},
		{"encoding", "cut", raw(func(c *chain, h *history.History) { replaceLast(c, h, `}`, ``) })},
		{"kind", "unknown", set(history.KindSet, moreNodes, func(_ *chain, t *history.Transition) { t.Kind = "emergency" })},
		{"manifest-blob", "missing", raw(func(c *chain, h *history.History) { delete(h.Manifests, c.links[0].Manifest) })},
		{"manifest-blob", "altered", raw(func(c *chain, h *history.History) {
			h.Manifests[c.links[0].Manifest] = append(h.Manifests[c.links[0].Manifest], '\n')
		})},
		{"manifest-blob", "no manifest", func(c *chain) *history.History {
			c.links[0].Manifest = manifest.Hash(history.HashOf([]byte("x")))
			h := c.history()
			h.Manifests[c.links[0].Manifest] = []byte("x")
			return h
		}},
		{"genesis-shape", "index", genesis(func(t *history.Transition) { t.Index = 2 })},
		{"genesis-shape", "link before", genesis(func(t *history.Transition) { t.Previous = history.Hash{1} })},
		{"genesis-shape", "epoch", genesis(func(t *history.Transition) { t.AuthorityEpoch = 2 })},
		{"genesis-shape", "seed epoch", func(c *chain) *history.History {
			c.links[0].SeedEpoch = 2
			h := c.history()
			h.Head = headBy(c.k.transaction, c.links[0], h.Links[0])
			return h
		}},
		{"genesis-shape", "another kind first", genesis(func(t *history.Transition) { t.Kind = history.KindSet })},
		{"genesis-shape", "a second one", set(history.KindSet, moreNodes, func(_ *chain, t *history.Transition) { t.Kind = history.KindGenesis })},
		{"genesis-shape", "beginning cut off", func(c *chain) *history.History {
			c.add(history.KindSet, moreNodes)
			h := c.history()
			h.Links = h.Links[1:]
			return h
		}},
		{"previous", "another link", set(history.KindSet, moreNodes, func(_ *chain, t *history.Transition) { t.Previous[0] ^= 1 })},
		{"previous", "a link altered before", func(c *chain) *history.History {
			c.add(history.KindSet, moreNodes)
			c.links[0].Reason = "rewritten"
			return c.history()
		}},
		{"index", "jump", set(history.KindSet, moreNodes, func(_ *chain, t *history.Transition) { t.Index = 3 })},
		{"index", "stays", set(history.KindSet, moreNodes, func(_ *chain, t *history.Transition) { t.Index = 1 })},
		{"index", "restore by one", set(history.KindRestore, base, func(_ *chain, t *history.Transition) { t.AuthorityEpoch = history.RestoreFloor })},
		{"epoch-not-lower", "rekey goes back", set(history.KindRekey, base, func(_ *chain, t *history.Transition) { t.AuthorityEpoch = 0 })},
		{"epoch-with-authority", "coordinator changed, epoch not", set(history.KindSet, moved, func(c *chain, t *history.Transition) {
			t.AuthorityEpoch, t.MeshCAKey = 1, c.links[0].MeshCAKey
		})},
		{"epoch-with-authority", "jump", set(history.KindSet, moved, func(_ *chain, t *history.Transition) { t.AuthorityEpoch = 3 })},
		{"epoch-with-authority", "node added, epoch too", set(history.KindSet, moreNodes, func(c *chain, t *history.Transition) {
			t.AuthorityEpoch, t.MeshCAKey = 2, c.k.meshKey()
		})},
		{"epoch-with-authority", "rekey without", set(history.KindRekey, base, func(c *chain, t *history.Transition) {
			t.AuthorityEpoch, t.MeshCAKey = 1, c.links[0].MeshCAKey
		})},
		{"epoch-with-authority", "restore by one", set(history.KindRestore, base, func(_ *chain, t *history.Transition) { t.Index = history.RestoreFloor })},
		{"epoch-with-authority", "trust mesh, same manifest, same epoch", func(c *chain) *history.History {
			c.add(history.KindSet, mesh)
			t := c.add(history.KindSet, mesh)
			t.AuthorityEpoch, t.MeshCAKey = 2, c.links[1].MeshCAKey
			c.authorize(t)
			return c.history()
		}},
		{"mesh-key-named", "genesis", genesis(func(t *history.Transition) { t.MeshCAKey = [32]byte{} })},
		{"mesh-key-with-epoch", "key without epoch", set(history.KindSet, moreNodes, func(c *chain, t *history.Transition) { t.MeshCAKey = c.k.meshKey() })},
		{"mesh-key-with-epoch", "epoch without key", set(history.KindSet, moved, func(c *chain, t *history.Transition) { t.MeshCAKey = c.links[0].MeshCAKey })},
		{"mesh-key-once", "comes back", func(c *chain) *history.History {
			c.add(history.KindRekey, base)
			c.add(history.KindRekey, base).MeshCAKey = c.links[0].MeshCAKey
			return c.history()
		}},
		{"same-cluster", "another", set(history.KindSet, cluster, func(*chain, *history.Transition) {})},
		{"same-manifest", "rekey changes policy", set(history.KindRekey, moreNodes, func(*chain, *history.Transition) {})},
		{"same-manifest", "restore changes policy", func(c *chain) *history.History {
			m := c.k.manifest(c.t, moreNodes)
			t := c.verified().Restore(time.Unix(history.RestoreFloor, 0), history.Hash{1})
			t.Manifest = m.Hash()
			c.fill(t, base, true)
			c.links, c.manifests = append(c.links, t), append(c.manifests, m)
			return c.history()
		}},
		{"restore-backup", "none is named", set(history.KindRestore, base, func(_ *chain, t *history.Transition) {
			t.Index, t.AuthorityEpoch, t.Backup = history.RestoreFloor, history.RestoreFloor, history.Hash{}
		})},
		{"restore-backup", "a set names one", set(history.KindSet, moreNodes, func(_ *chain, t *history.Transition) { t.Backup[0]++ })},
		{"reshare-seed-only", "coordinator", set(history.KindReshare, moved, func(*chain, *history.Transition) {})},
		{"seed-epoch", "set moves it", func(c *chain) *history.History {
			t := c.add(history.KindSet, moreNodes)
			t.SeedEpoch = 2
			h := c.history()
			h.Head = headBy(c.k.transaction, t, h.Links[1])
			return h
		}},
		{"seed-epoch", "reseed keeps it", func(c *chain) *history.History {
			t := c.add(history.KindReseed, base)
			t.SeedEpoch = 1
			h := c.history()
			h.Head = headBy(c.k.transactionOf(2), t, h.Links[1])
			return h
		}},
		{"salt", "none", genesis(func(t *history.Transition) { t.Salt = history.Salt{} })},
		{"salt", "changes", set(history.KindSet, moreNodes, func(_ *chain, t *history.Transition) { t.Salt[5]++ })},
		{"salt", "reseed keeps it", set(history.KindReseed, base, func(c *chain, t *history.Transition) { t.Salt = c.links[0].Salt })},
		{"reseed-keys", "a reseed without", func(c *chain) *history.History {
			t := c.add(history.KindReseed, base)
			t.Reseed = nil
			h := c.history()
			h.Head = headBy(c.k.transaction, t, h.Links[1])
			return h
		}},
		{"reseed-keys", "a set with", set(history.KindSet, moreNodes, func(c *chain, t *history.Transition) {
			t.Reseed = c.verifiedUpTo(1).ReseedTo(rootOf(1), history.SeedKeys{Root: rootOf(2), TransactionKey: c.k.public()})
		})},
		{"reseed-keys", "of another cluster", set(history.KindReseed, base, func(_ *chain, t *history.Transition) { t.Reseed.Cluster = "other.example" })},
		{"reseed-keys", "of no cluster", set(history.KindReseed, base, func(_ *chain, t *history.Transition) { t.Reseed.Cluster = "" })},
		{"reseed-keys", "the root stays", set(history.KindReseed, base, func(_ *chain, t *history.Transition) { t.Reseed.Root = t.Reseed.PreviousRoot })},
		{"reseed-keys", "the transaction key stays", func(c *chain) *history.History {
			t := c.add(history.KindReseed, base)
			copy(t.Reseed.TransactionKey[:], c.k.public())
			c.authorize(t)
			h := c.history()
			h.Head = headBy(c.k.transaction, t, h.Links[1])
			return h
		}},
		{"reseed-keys", "the head before was not signed by the key before", set(history.KindReseed, base, func(_ *chain, t *history.Transition) { t.Reseed.PreviousSignature[3]++ })},
		{"reseed-keys", "another key before", set(history.KindReseed, base, func(c *chain, t *history.Transition) {
			copy(t.Reseed.PreviousKey[:], newTesters(c.t).public())
		})},
		{"reseed-keys", "the second skips the first", func(c *chain) *history.History {
			c.add(history.KindReseed, base)
			t := c.add(history.KindReseed, base)
			t.Reseed.PreviousRoot = rootOf(1)
			c.authorize(t)
			return c.history()
		}},
		{"reseed-keys", "an earlier root comes back", func(c *chain) *history.History {
			c.add(history.KindReseed, base)
			t := c.add(history.KindReseed, base)
			t.Reseed.Root = rootOf(1)
			c.authorize(t)
			return c.history()
		}},
		{"reseed-keys", "the second names another key before", func(c *chain) *history.History {
			c.add(history.KindReseed, base)
			t := c.add(history.KindReseed, base)
			copy(t.Reseed.PreviousKey[:], c.k.public())
			return c.history()
		}},
		{"signatures", "of a reseed to other keys", func(c *chain) *history.History {
			t := c.add(history.KindReseed, base)
			consent := t.Signatures
			t.Reseed.ConfigRoot[1]++
			t.Signatures = consent
			return c.history()
		}},
		{"transaction-key", "a chain of others, reseeded", func(c *chain) *history.History {
			c.k = newTesters(c.t)
			c = newChain(c.t, c.k, base)
			c.add(history.KindReseed, base)
			return c.history()
		}},
		{"head-signature", "by the seed before the reseed", func(c *chain) *history.History {
			t := c.add(history.KindReseed, base)
			h := c.history()
			h.Head = headBy(c.k.transaction, t, h.Links[1])
			return h
		}},
		{"threshold", "another", genesis(func(t *history.Transition) { t.Threshold = 2 })},
		{"shares-of-owners", "a person without", func(c *chain) *history.History {
			c.links[0].ShareCommitments = c.links[0].ShareCommitments[:1]
			return c.history()
		}},
		{"shares-of-owners", "a stranger", genesis(func(t *history.Transition) { t.ShareCommitments[1].Owner = "mallory" })},
		{"shares-of-owners", "a keeper, which holds the whole seed", genesis(func(t *history.Transition) {
			t.ShareCommitments = append(t.ShareCommitments, history.ShareCommitment{Owner: "keeper0", Hash: history.Hash{1}})
		})},
		{"shares-of-owners", "order", genesis(func(t *history.Transition) {
			t.ShareCommitments[0], t.ShareCommitments[1] = t.ShareCommitments[1], t.ShareCommitments[0]
		})},
		{"shares-of-owners", "empty", genesis(func(t *history.Transition) { t.ShareCommitments[0].Hash = history.Hash{} })},
		{"shares-with-seed", "set makes others", set(history.KindSet, moreNodes, func(_ *chain, t *history.Transition) { t.ShareCommitments = shares(base, 9) })},
		{"shares-with-seed", "reshare keeps them", set(history.KindReshare, base, func(c *chain, t *history.Transition) { t.ShareCommitments = c.links[0].ShareCommitments })},
		{"shares-with-seed", "new owner, old shares", set(history.KindSet, owners, func(c *chain, t *history.Transition) { t.ShareCommitments = c.links[0].ShareCommitments })},
		{"signatures", "by a stranger besides", func(c *chain) *history.History {
			t := c.add(history.KindSet, moreNodes)
			t.Signatures = c.k.sign(t.Statement(), 0, 1, 2)
			return c.history()
		}},
		{"signatures", "replayed from another head", func(c *chain) *history.History {
			c.add(history.KindSet, moreNodes)
			again := c.links[1].Signatures
			c.add(history.KindSet, base)
			c.add(history.KindSet, moreNodes).Signatures = again
			return c.history()
		}},
		{"signatures", "consent to another kind", func(c *chain) *history.History {
			t := c.add(history.KindReshare, base)
			t.Signatures = c.k.sign(history.SetStatement(t.Manifest, t.Previous), 0, 1)
			return c.history()
		}},
		{"signatures", "restore at another index", func(c *chain) *history.History {
			t := c.verified().Restore(time.Unix(history.RestoreFloor, 0), history.Hash{1})
			c.fill(t, base, true)
			t.Index++
			c.links, c.manifests = append(c.links, t), append(c.manifests, c.manifests[0])
			return c.history()
		}},
		{"signatures", "restore of another backup", func(c *chain) *history.History {
			t := c.verified().Restore(time.Unix(history.RestoreFloor, 0), history.Hash{1})
			c.fill(t, base, true)
			t.Backup[0]++
			c.links, c.manifests = append(c.links, t), append(c.manifests, c.manifests[0])
			return c.history()
		}},
		{"signatures", "of the next signers", func(c *chain) *history.History {
			p := base
			p.signers = []int{2, 3}
			t := c.add(history.KindSet, p)
			t.Signatures = c.k.sign(t.Statement(), 2, 3)
			return c.history()
		}},
		{"signatures", "on a rekey", func(c *chain) *history.History {
			t := c.add(history.KindRekey, base)
			t.Signatures = c.k.sign(t.Statement(), 0)
			return c.history()
		}},
		{"signatures", "a stranger on genesis", func(c *chain) *history.History {
			c.links[0].Signatures = c.k.sign(c.links[0].Statement(), 2)
			return c.history()
		}},
		{"signers-threshold", "one of two", func(c *chain) *history.History {
			t := c.add(history.KindSet, moreNodes)
			t.Signatures = c.k.sign(t.Statement(), 1)
			return c.history()
		}},
		{"signers-threshold", "none, for a reseed", func(c *chain) *history.History {
			c.add(history.KindReseed, base).Signatures = nil
			return c.history()
		}},
		{"signers-threshold", "none, for a reshare", func(c *chain) *history.History {
			c.add(history.KindReshare, base).Signatures = nil
			return c.history()
		}},
		{"signers-threshold", "none, for a restore", func(c *chain) *history.History {
			t := c.verified().Restore(time.Unix(history.RestoreFloor, 0), history.Hash{1})
			c.fill(t, base, true)
			t.Signatures = nil
			c.links, c.manifests = append(c.links, t), append(c.manifests, c.manifests[0])
			return c.history()
		}},
		{"head-is-last", "end cut off", func(c *chain) *history.History {
			c.add(history.KindSet, moreNodes)
			h := c.history()
			h.Links = h.Links[:1]
			return h
		}},
		{"head-is-last", "head behind", func(c *chain) *history.History {
			head := c.history().Head
			c.add(history.KindSet, moreNodes)
			h := c.history()
			h.Head = head
			return h
		}},
		{"head-is-last", "head lies about the epoch", raw(func(c *chain, h *history.History) {
			t := *c.last()
			t.AuthorityEpoch = 9
			h.Head = c.k.head(&t, h.Links[0])
		})},
	}
}

func TestVerifyRefuses(t *testing.T) {
	broken := make(map[string]bool)
	for _, tc := range spoiledHistories() {
		broken[tc.rule] = true
		t.Run(tc.rule+"/"+tc.name, func(t *testing.T) {
			k := newTesters(t)
			v, err := history.Verify(tc.build(newChain(t, k, base)), k.public())
			refused, ok := errors.AsType[*history.VerifyError](err)
			if !ok || v != nil || !errors.Is(err, history.ErrUnverified) {
				t.Fatalf("Verify = %v, %v, want a VerifyError", v, err)
			}
			if refused.Rule != tc.rule || refused.Detail == "" {
				t.Errorf("refused by rule %s (%s), want %s", refused.Rule, refused.Detail, tc.rule)
			}
		})
	}
	for _, r := range history.Rules() {
		if !broken[r.Name] {
			t.Errorf("rule %s has no history that breaks it", r.Name)
		}
		if r.Why == "" || r.Section == "" {
			t.Errorf("rule %s does not say why and where it is written", r.Name)
		}
	}
}

func TestVerifyNeedsTheTransactionKey(t *testing.T) {
	k := newTesters(t)
	h := newChain(t, k, base).history()
	for name, key := range map[string]ed25519.PublicKey{"none": nil, "short": k.public()[:31], "another": newTesters(t).public()} {
		if _, err := history.Verify(h, key); !errors.Is(err, history.ErrUnverified) {
			t.Errorf("%s key: %v", name, err)
		}
	}
}

func TestAuthorize(t *testing.T) {
	k := newTesters(t)
	m := k.manifest(t, base)
	statement := history.SetStatement(manifest.Hash{1}, history.Hash{2})
	other := history.SetStatement(manifest.Hash{1}, history.Hash{3})
	one, two, stranger := k.sign(statement, 0)[0], k.sign(statement, 1)[0], k.sign(statement, 2)[0]
	for _, tc := range []struct {
		name       string
		signatures []history.Signature
		have       int // -1: authorized
	}{
		{"both", []history.Signature{one, two}, -1},
		{"other order", []history.Signature{two, one}, -1},
		{"none", nil, 0},
		{"one", []history.Signature{one}, 1},
		{"one, twice", []history.Signature{one, one}, 1},
		{"with a stranger", []history.Signature{one, two, stranger}, 0},
		{"wrong statement", k.sign(other, 0, 1), 0},
		{"key of one, signature of the other", []history.Signature{one, {Key: two.Key, Signature: one.Signature}}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := history.Authorize(m, statement, tc.signatures)
			if (err == nil) != (tc.have < 0) {
				t.Fatalf("Authorize = %v", err)
			}
			refused, ok := errors.AsType[*history.UnauthorizedError](err)
			if err != nil && (!ok || refused.Have != tc.have || !errors.Is(err, history.ErrUnauthorized)) {
				t.Errorf("Authorize = %v, want an UnauthorizedError with %d", err, tc.have)
			}
		})
	}
}

// Statements that authorize different things are different bytes.
func TestStatementsDiffer(t *testing.T) {
	seen := make(map[string]string)
	add := func(name string, tr history.Transition) {
		s := string(tr.Statement())
		if other, twice := seen[s]; twice {
			t.Errorf("%s and %s have one statement", name, other)
		}
		seen[s] = name
	}
	for _, kind := range history.Kinds() {
		if kind == history.KindReseed {
			continue // see below: without its keys it has no statement
		}
		add(string(kind), history.Transition{Kind: kind})
		add(string(kind)+" of a manifest", history.Transition{Kind: kind, Manifest: manifest.Hash{1}})
		add(string(kind)+" after a link", history.Transition{Kind: kind, Previous: history.Hash{1}})
	}
	add("restore at an index", history.Transition{Kind: history.KindRestore, Index: 1})
	add("restore in an epoch", history.Transition{Kind: history.KindRestore, AuthorityEpoch: 1})
	add("restore of a backup", history.Transition{Kind: history.KindRestore, Backup: history.Hash{1}})

	if s := (&history.Transition{Kind: history.KindReseed, Manifest: manifest.Hash{1}, Previous: history.Hash{1}}).Statement(); s != nil {
		t.Errorf("a reseed without keys has the statement %q", s)
	}
	k := newTesters(t)
	reseed := *newChain(t, k, base).add(history.KindReseed, base)
	add("reseed", reseed)
	for name, change := range map[string]func(t *history.Transition){
		"manifest":        func(t *history.Transition) { t.Manifest[0]++ },
		"previous":        func(t *history.Transition) { t.Previous[0]++ },
		"index":           func(t *history.Transition) { t.Index++ },
		"authority epoch": func(t *history.Transition) { t.AuthorityEpoch++ },
		"seed epoch":      func(t *history.Transition) { t.SeedEpoch++ },
		"cluster":         func(t *history.Transition) { t.Reseed.Cluster = "other.example" },
		"previous root":   func(t *history.Transition) { t.Reseed.PreviousRoot[0]++ },
		"root":            func(t *history.Transition) { t.Reseed.Root[0]++ },
		"config root":     func(t *history.Transition) { t.Reseed.ConfigRoot[0]++ },
		"transaction key": func(t *history.Transition) { t.Reseed.TransactionKey[0]++ },
	} {
		other, keys := reseed, *reseed.Reseed
		other.Reseed = &keys
		change(&other)
		add("reseed with another "+name, other)
	}
}

// Somebody who knows the transaction key of any seed of the chain can verify all of
// it, and learns which seed is in force.
func TestVerifyAcrossSeeds(t *testing.T) {
	k := newTesters(t)
	c := newChain(t, k, base)
	more := base
	more.nodes = 1
	c.add(history.KindSet, more)
	c.add(history.KindReseed, more)
	c.add(history.KindRekey, more)
	c.add(history.KindReseed, base)
	c.add(history.KindSet, more)
	h := c.history()
	for epoch := uint64(1); epoch <= 3; epoch++ {
		v, err := history.Verify(h, k.transactionOf(epoch).Public().(ed25519.PublicKey))
		if err != nil {
			t.Fatalf("by the key of seed epoch %d: %v", epoch, err)
		}
		if !v.TransactionKey().Equal(k.transactionOf(3).Public()) || v.Current().SeedEpoch != 3 || len(v.Reseeds()) != 2 {
			t.Errorf("by the key of seed epoch %d: key %x, seed epoch %d, %d reseeds", epoch, v.TransactionKey(), v.Current().SeedEpoch, len(v.Reseeds()))
		}
	}
	// A seed that was replaced moves no head, whatever it is told to write.
	kv := storetest.NewMemory(0).Open()
	l := history.New(kv)
	var v *history.Verified
	for i, link := range c.links {
		var err error
		if i > 0 {
			if _, err := l.Append(t.Context(), v, link, c.manifests[i], newTesters(t).transaction); !errors.Is(err, history.ErrUnverified) {
				t.Errorf("link %d by a key of nobody: %v", i, err)
			}
		}
		if link.SeedEpoch > 1 {
			if _, err := l.Append(t.Context(), v, link, c.manifests[i], k.transaction); !errors.Is(err, history.ErrUnverified) {
				t.Errorf("link %d by the first seed: %v", i, err)
			}
		}
		if v, err = l.Append(t.Context(), v, link, c.manifests[i], k.transactionOf(link.SeedEpoch)); err != nil {
			t.Fatalf("link %d: %v", i, err)
		}
		if _, err := l.Follow(t.Context(), v, k.public()); err != nil {
			t.Errorf("follow to link %d by the first key: %v", i, err)
		}
	}
	// Following needs no more than what came after.
	first := newChain(t, k, base).verified()
	if _, err := l.Follow(t.Context(), first, k.public()); err != nil {
		t.Errorf("follow from genesis: %v", err)
	}
}

func TestCheckMark(t *testing.T) {
	k := newTesters(t)
	c := newChain(t, k, base)
	first := c.verified()
	more, moved := base, base
	more.nodes, moved.coord = 1, 1
	c.add(history.KindSet, more)
	second := c.verified()

	fork := &chain{t: t, k: k, links: c.links[:1:1], manifests: c.manifests[:1:1]}
	fork.add(history.KindSet, moved)
	forked := fork.verified()

	restored := &chain{t: t, k: k, links: c.links[:1:1], manifests: c.manifests[:1:1]}
	r := first.Restore(time.Unix(history.RestoreFloor+7, 0), history.Hash{1})
	restored.fill(r, base, true)
	restored.links, restored.manifests = append(restored.links, r), append(restored.manifests, c.manifests[0])
	after := restored.verified()

	for _, tc := range []struct {
		name     string
		seen     history.Mark
		shown    *history.Verified
		restored bool
		want     error
	}{
		{"nothing seen", history.Mark{}, first, false, nil},
		{"the same", second.Mark(), second, false, nil},
		{"older", first.Mark(), second, false, nil},
		{"went back", second.Mark(), first, false, history.ErrRollback},
		{"fork at the same index, higher epoch", second.Mark(), forked, false, history.ErrFork},
		{"fork at the same index, lower epoch", forked.Mark(), second, false, history.ErrRollback},
		{"restored past the mark", second.Mark(), after, true, nil},
		{"restored, and the mark is before", first.Mark(), after, true, nil},
		{"the mark is after the restore", after.Mark(), after, false, nil},
		{"back before a restore", after.Mark(), second, false, history.ErrRollback},
		{"seen in an epoch above the restore", history.Mark{AuthorityEpoch: history.RestoreFloor + 7, Index: 3, Hash: history.Hash{1}}, after, false, history.ErrFork},
		{"same hash, other numbers", history.Mark{AuthorityEpoch: 1, Index: 2, Hash: first.Mark().Hash}, second, false, history.ErrFork},
	} {
		t.Run(tc.name, func(t *testing.T) {
			restored, err := tc.shown.CheckMark(tc.seen)
			if !errors.Is(err, tc.want) || restored != tc.restored {
				t.Errorf("CheckMark = %v, %v, want %v, %v", restored, err, tc.restored, tc.want)
			}
			if mark, ok := errors.AsType[*history.MarkError](err); err != nil && (!ok || mark.Seen != tc.seen || mark.Shown != tc.shown.Mark()) {
				t.Errorf("error %v does not show both marks", err)
			}
		})
	}
}

func TestEncode(t *testing.T) {
	k := newTesters(t)
	good := *newChain(t, k, base).last()
	for name, spoil := range map[string]func(tr *history.Transition){
		"long reason":        func(tr *history.Transition) { tr.Reason = strings.Repeat("x", history.MaxReasonBytes+1) },
		"escape in reason":   func(tr *history.Transition) { tr.Reason = "\x1b[2K" },
		"line in reason":     func(tr *history.Transition) { tr.Reason = "a\nb" },
		"override in reason": func(tr *history.Transition) { tr.Reason = "\u202e" },
		"reason not UTF-8":   func(tr *history.Transition) { tr.Reason = "\xff" },
		"owner not UTF-8":    func(tr *history.Transition) { tr.ShareCommitments = []history.ShareCommitment{{Owner: "\xff"}} },
		"signed twice":       func(tr *history.Transition) { tr.Signatures = k.sign(nil, 0, 0) },
		"threshold":          func(tr *history.Transition) { tr.Threshold = -1 },
		"shares":             func(tr *history.Transition) { tr.ShareCommitments = make([]history.ShareCommitment, 256) },
		"signatures":         func(tr *history.Transition) { tr.Signatures = make([]history.Signature, 65) },
		"size": func(tr *history.Transition) {
			tr.ShareCommitments = []history.ShareCommitment{{Owner: strings.Repeat("x", history.MaxTransitionBytes)}}
		},
	} {
		tr := good
		spoil(&tr)
		if data, err := tr.Encode(); !errors.Is(err, history.ErrEncoding) {
			t.Errorf("%s: Encode = %.80q, %v", name, data, err)
		}
	}
	// The order in which signatures came in makes no difference.
	good.Signatures = k.sign(nil, 0, 1, 2)
	one, err1 := good.Encode()
	good.Signatures = k.sign(nil, 2, 0, 1)
	two, err2 := good.Encode()
	if err1 != nil || err2 != nil || !bytes.Equal(one, two) {
		t.Errorf("encodings differ: %v %v\n%s\n%s", err1, err2, one, two)
	}
}

// A signature in another spelling of base64 would give one link two names.
func TestSignatureSpelling(t *testing.T) {
	k := newTesters(t)
	c := newChain(t, k, base)
	more := base
	more.nodes = 1
	c.add(history.KindSet, more)
	data, err := c.last().Encode()
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.LastIndex(data, []byte(`=="`))
	other := bytes.Clone(data)
	other[at-1]++ // bits that the decoder ignores
	for name, d := range map[string][]byte{"padding bits": other, "no padding": append(bytes.Clone(data[:at]), data[at+2:]...),
		"line break": append(append(bytes.Clone(data[:at]), `\n`...), data[at:]...)} {
		if _, err := history.Decode(d); !errors.Is(err, history.ErrEncoding) {
			t.Errorf("%s: Decode = %v", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	k := newTesters(f)
	c := newChain(f, k, base)
	p := base
	p.persons, p.coord = 2, 1
	c.add(history.KindSet, p)
	for _, l := range c.history().Links {
		f.Add(l)
		f.Add(append(l, ' '))
		f.Add(bytes.ToUpper(l))
	}
	f.Add(c.history().Head)
	f.Fuzz(func(t *testing.T, data []byte) {
		if tr, err := history.Decode(data); err == nil {
			again, err := tr.Encode()
			if err != nil || !bytes.Equal(again, data) {
				t.Fatalf("decoded, and encodes as %s, %v", again, err)
			}
		} else if !errors.Is(err, history.ErrEncoding) {
			t.Fatalf("error of another kind: %v", err)
		}
		if r, err := history.DecodeRecord(data); err == nil {
			if !bytes.Equal(r.Encode(), data) {
				t.Fatalf("head decoded, and encodes as %s", r.Encode())
			}
		} else if !errors.Is(err, history.ErrEncoding) {
			t.Fatalf("error of another kind: %v", err)
		}
		// Bytes that are signed but not made by us reach the rules: no panic.
		tr, err := history.Decode(data)
		if err != nil {
			return
		}
		h := &history.History{Links: [][]byte{data}, Head: k.head(tr, data), Manifests: map[manifest.Hash][]byte{}}
		if _, err := history.Verify(h, k.public()); err == nil {
			t.Fatal("a link without its manifest verified")
		}
	})
}

func TestRecord(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r := history.Record{Hash: history.Hash{1}, Index: 1<<63 + 1, AuthorityEpoch: 7}
	copy(r.Signature[:], ed25519.Sign(private, r.SignedBytes()))
	back, err := history.DecodeRecord(r.Encode())
	if err != nil || back != r || !back.VerifySignature(public) {
		t.Fatalf("DecodeRecord = %+v, %v", back, err)
	}
	for name, change := range map[string]func(r *history.Record){
		"hash":  func(r *history.Record) { r.Hash[3]++ },
		"index": func(r *history.Record) { r.Index-- },
		"epoch": func(r *history.Record) { r.AuthorityEpoch++ },
	} {
		altered := r
		change(&altered)
		if altered.VerifySignature(public) {
			t.Errorf("the signature does not cover the %s", name)
		}
	}
}
