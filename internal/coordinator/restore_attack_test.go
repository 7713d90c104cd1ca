package coordinator_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"testing"

	"filippo.io/age"

	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
)

// claimRestore puts an intent into the store that nobody signed, to go on from the head
// that the store shows: whoever can write the store can.
func (d *desk) claimRestore(t *testing.T) {
	t.Helper()
	head, err := d.store.Get(t.Context(), history.HeadKey)
	wantOnly(t, "head", err, "")
	public, key, err := ed25519.GenerateKey(rand.Reader) // one's own
	wantOnly(t, "key", err, "")
	reader, err := age.GenerateX25519Identity()
	wantOnly(t, "recipient", err, "")
	header := backup.Header{Cluster: testCluster, CreatedAt: d.clock(), Revision: 1, Head: head.Value,
		TransactionKey: public}
	w, err := backup.NewWriter(io.Discard, header, reader.Recipient().String())
	wantOnly(t, "begin a backup", err, "")
	end, err := w.Close(key)
	wantOnly(t, "end the backup", err, "")
	intent := backup.Intent{
		Header: header, Trailer: end,
		Index: uint64(d.clock().Unix()), AuthorityEpoch: uint64(d.clock().Unix()), Floor: 1, At: d.clock(), Whole: true,
	}
	raw, err := intent.Encode()
	wantOnly(t, "encode", err, "")
	d.store.write(backup.IntentKey, raw)
}

// A store that went back, and says that it was restored, takes no coordinator along:
// not one that runs and holds what the older head needs, by whichever call it finds
// out, and not one that starts.
func TestClaimedRestoreTakesNobodyBack(t *testing.T) {
	t.Parallel()
	back := func(t *testing.T) (d *desk, m *machine, seen history.Link) {
		d = testDesk(t)
		m = d.joined("a")
		old := d.store.snapshot()
		// Authority does not move: the mesh CA key of the older head is at hand.
		wantOnly(t, "set", d.set(poolEntries+"  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"), "")
		seen = d.state().Head
		d.store.revert(old)
		d.claimRestore(t)
		return d, m, seen
	}
	wantNotBack := func(t *testing.T, d *desk, seen history.Link) {
		t.Helper()
		if s := d.state(); s.Phase == authority.Ready && s.Head.Hash != seen.Hash {
			t.Fatalf("it is ready at index %d by %s, after index %d", s.Head.Index, s.Head.Kind, seen.Index)
		}
		mark, err := d.c.Rooms().Head.Seen()
		wantOnly(t, "mark", err, "")
		if mark.Hash != seen.Hash {
			t.Errorf("it remembers index %d as the newest, after index %d", mark.Index, seen.Index)
		}
		if head := mustHead(t, d); head.Index >= seen.Index {
			t.Errorf("it moved the head to index %d", head.Index)
		}
	}
	t.Run("a call finds out", func(t *testing.T) {
		d, m, seen := back(t)
		if err := m.renew(); err == nil {
			t.Error("a member was renewed on a store that went back")
		}
		wantNotBack(t, d, seen)
		d.lookAgain()
		wantNotBack(t, d, seen)
	})
	t.Run("the loop finds out", func(t *testing.T) {
		d, _, seen := back(t)
		d.lookAgain()
		wantNotBack(t, d, seen)
		d.wantPhase("recovery", string(explain.RestoreUnfit))
	})
	t.Run("it starts", func(t *testing.T) {
		d, _, seen := back(t)
		d.restart()
		wantNotBack(t, d, seen)
	})
	// The store shows the intent to who decides whether the mark counts, and hides it
	// from who asks for signatures.
	t.Run("the intent vanishes", func(t *testing.T) {
		d, _, seen := back(t)
		w, _, err := d.c.Rooms().Authority.Read(t.Context(), d.state())
		wantOnly(t, "read", err, "")
		if w == nil || w.Restore == nil {
			t.Fatal("the intent was not read")
		}
		d.store.alter(backup.IntentKey, func([]byte) []byte { return nil })
		release, err := d.c.Rooms().Authority.SettingTurn(t.Context())
		wantOnly(t, "turn", err, "")
		_, err = d.c.Rooms().Authority.GoOn(t.Context(), w)
		release()
		if err == nil {
			t.Error("it went on without a restore transition")
		}
		wantNotBack(t, d, seen)
	})
}
