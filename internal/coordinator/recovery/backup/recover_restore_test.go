package backup_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/manifest"
)

// seenBy is the mark of an owner's tool that looked at the head in force.
func seenBy(f *coordinatortest.Fleet) recovery.Mark {
	s := f.State()
	return recovery.Mark{Cluster: s.Manifest.Cluster, SeenHead: s.Chain.Seen(),
		TransactionKey: s.Chain.TransactionKey()}
}

// goOnFrom sets another manifest, as happens after a backup.
func goOnFrom(f *coordinatortest.Fleet, owners *coordinatortest.People) {
	f.T.Helper()
	if err := f.Set(coordinatortest.WithSeed(f.Manifest("  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"),
		owners.Seed(2, "file:"+filepath.Join(f.Dir, "keeper.key")))); err != nil {
		f.T.Fatal(err)
	}
}

// Owners whose tools have seen a newer head bring the seed back for a restore that the
// signers signed, once they agreed to it, and for nothing else; the members follow.
func TestOwnersRestoreBehindTheirMarks(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	a := f.Member("a")
	b := coordinatortest.Save(f, owners).Signed(f.Signer)
	goOnFrom(f, owners)
	seen := seenBy(f)
	b.Restore()
	if err := os.Remove(filepath.Join(f.Dir, "keeper.key")); err != nil {
		t.Fatal(err)
	}
	f.Start()

	alice := owners.ShareFile(f.Store, "alice")
	expect := recovery.Options{Expect: recovery.Expect{Seen: seen}}
	_, err := f.Bring(alice, expect)
	unagreed, ok := errors.AsType[*recovery.UnagreedError](err)
	if !ok {
		t.Fatalf("without an agreement: %v", err)
	}
	r := unagreed.Restore
	if r.Seen != seen.SeenHead.Mark || r.Back != b.V.Mark() || len(r.Signers) != 1 || r.Signers[0] != "alice" ||
		r.Needed != 1 || !r.BackupAt.Equal(b.Plan.Header.CreatedAt) || r.Reason != "test" ||
		r.PlannedAt.Sub(b.Plan.At).Abs() > time.Minute {
		t.Errorf("it shows %+v", r)
	}
	other := expect
	other.Agreed = [32]byte{1}
	if _, err := f.Bring(alice, other); err == nil {
		t.Error("who agreed to another restore sends a share for this one")
	}
	if p, _ := f.C.Parts().Secrets.OwnerRecovery.Progress(); len(p.GetBrought()) != 0 {
		t.Fatalf("in are %v", p.GetBrought())
	}
	var told *recovery.Restore
	agreed := expect
	agreed.Agreed, agreed.Verified = r.ID, func(v recovery.Verified) { told = v.Restore }
	for _, name := range []string{"alice", "bob"} {
		if _, err := f.Bring(owners.ShareFile(f.Store, name), agreed); err != nil {
			t.Fatal(err)
		}
	}
	if told == nil || told.ID != r.ID {
		t.Errorf("who keeps marks is told of %v", told)
	}
	f.Await(authority.Ready)
	s := f.State()
	if s.Head.Kind != history.KindRestore {
		t.Fatalf("the head is a %v", s.Head.Kind)
	}
	if restored, err := seen.Accepts(s.Chain); err != nil || !restored {
		t.Errorf("the mark of before: %v, %v", restored, err)
	}
	if err := a.Renew(false); err != nil {
		t.Errorf("a member of before does not follow: %v", err)
	}
}

// A store's claim of a restore takes no owner back behind the mark.
func TestOwnersBelieveNoClaimedRestore(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	b := coordinatortest.Save(f, owners)
	goOnFrom(f, owners)
	later := coordinatortest.Save(f, owners).Signed(f.Signer)
	seen := seenBy(f)
	foreignFleet, foreignOwners := coordinatortest.NewOwnedFleet(t, nil)
	foreign := coordinatortest.Save(foreignFleet, foreignOwners).Signed(foreignFleet.Signer)
	goOnFrom(foreignFleet, foreignOwners)
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	coordinatortest.WantOnlyNil(t, err)
	strangerKey, err := manifest.NewKey(stranger.Public().(ed25519.PublicKey))
	coordinatortest.WantOnlyNil(t, err)
	intentOf := func(i backup.Intent) []byte {
		i.Whole = true
		raw, err := i.Encode()
		coordinatortest.WantOnlyNil(t, err)
		return raw
	}
	signed := func(key ed25519.PrivateKey) *coordinatortest.Saved {
		c := &coordinatortest.Saved{F: f, File: b.File, Ids: b.Ids, V: b.V}
		plan := *b.Plan
		plan.Signatures = nil
		c.Plan = &plan
		if key != nil {
			c.Signed(key)
		}
		return c
	}
	good := signed(f.Signer)
	if _, err := seen.CheckRestore(b.V, intentOf(*good.Plan)); err != nil {
		t.Fatalf("the one that is signed: %v", err)
	}
	with := func(alter func(*recovery.Mark)) recovery.Mark {
		m := seen
		signers := *seen.Signers
		m.Signers = &signers
		alter(&m)
		return m
	}
	altered := func(alter func(*backup.Intent)) []byte {
		i := *good.Plan
		alter(&i)
		return intentOf(i)
	}
	unfinished := *good.Plan
	unfinished.Whole = false
	cut, err := unfinished.Encode()
	coordinatortest.WantOnlyNil(t, err)
	for name, row := range map[string]struct {
		mark recovery.Mark
		v    *history.Verified
		raw  []byte
		why  string // of the refusal
	}{
		"nobody signed":     {seen, b.V, intentOf(*signed(nil).Plan), "0 of 1"},
		"a stranger signed": {seen, b.V, intentOf(*signed(stranger).Plan), "0 of 1"},
		"below the threshold": {with(func(m *recovery.Mark) {
			m.Signers = &history.SeenSigners{Threshold: 2, Keys: append([]manifest.Key{strangerKey}, m.Signers.Keys...)}
		}), b.V, intentOf(*good.Plan), "1 of 2"},
		"signed twice by one": {with(func(m *recovery.Mark) {
			m.Signers = &history.SeenSigners{Threshold: 2, Keys: append([]manifest.Key{strangerKey}, m.Signers.Keys...)}
		}), b.V, altered(func(i *backup.Intent) { i.Signatures = append(i.Signatures, i.Signatures...) }), "1 of 2"},
		"signed by who is no signer any more": {with(func(m *recovery.Mark) {
			m.Signers = &history.SeenSigners{Threshold: 1, Keys: []manifest.Key{strangerKey}}
		}), b.V, intentOf(*good.Plan), "0 of 1"},
		"who were the signers is not known": {with(func(m *recovery.Mark) { m.Signers = nil }), b.V,
			intentOf(*good.Plan), "does not remember who the signers were"},
		"for another head":                           {seen, b.V, intentOf(*later.Plan), "goes on from head"},
		"of another cluster":                         {seen, b.V, intentOf(*foreign.Plan), "head"},
		"shown under the history of another cluster": {seen, foreign.V, intentOf(*foreign.Plan), ""},
		"an older one, " +
			"replayed": {with(func(m *recovery.Mark) { m.AuthorityEpoch = good.Plan.AuthorityEpoch }), b.V,
			intentOf(*good.Plan), "older than what"},
		"under other clocks": {seen, b.V,
			altered(func(i *backup.Intent) { i.AuthorityEpoch++ }), "does not verify"},
		"at another index": {seen, b.V, altered(func(i *backup.Intent) { i.Index++ }),
			"does not verify"},
		"of another backup": {seen, b.V,
			altered(func(i *backup.Intent) { i.Trailer.Digest[0] ^= 1 }), ""},
		"made at another time": {seen, b.V,
			altered(func(i *backup.Intent) { i.Header.CreatedAt = i.Header.CreatedAt.Add(time.Hour) }), ""},
		"not at its end":      {seen, b.V, cut, "did not come to its end"},
		"nothing that is one": {seen, b.V, []byte("{}"), ""},
		"too long":            {seen, b.V, bytes.Repeat([]byte(" "), 1<<20), "at most"},
	} {
		r, err := row.mark.CheckRestore(row.v, row.raw)
		if err == nil || r != nil || !strings.Contains(err.Error(), row.why) {
			t.Errorf("%s: %v, %v, want a refusal with %q", name, r, err, row.why)
		}
	}

	// Over the wire the refusal is the one of the mark, and says what is missing.
	signed(stranger).Restore()
	coordinatortest.WantOnlyNil(t, os.Remove(filepath.Join(f.Dir, "keeper.key")))
	f.Start()
	_, err = f.Bring(owners.ShareFile(f.Store, "alice"), recovery.Options{Expect: recovery.Expect{Seen: seen}})
	if !errors.Is(err, errcode.HistoryWentBack) || !strings.Contains(err.Error(), "0 of 1") ||
		!strings.Contains(err.Error(), "fealty backup sign") {
		t.Errorf("a restore that a stranger signed: %v", err)
	}
}
