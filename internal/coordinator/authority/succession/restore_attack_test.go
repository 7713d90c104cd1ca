package succession_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"testing"

	"filippo.io/age"

	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
)

// claimRestore puts an intent into the store that nobody signed, to go on from the head
// that the store shows: whoever can write the store can.
func claimRestore(d *coordinatortest.Desk, t *testing.T) {
	t.Helper()
	head, err := d.Store.Get(t.Context(), history.HeadKey)
	coordinatortest.WantOnly(t, "head", err, "")
	public, key, err := ed25519.GenerateKey(rand.Reader) // one's own
	coordinatortest.WantOnly(t, "key", err, "")
	reader, err := age.GenerateX25519Identity()
	coordinatortest.WantOnly(t, "recipient", err, "")
	header := backup.Header{Cluster: coordinatortest.Cluster, CreatedAt: d.Clock(), Revision: 1, Head: head.Value,
		TransactionKey: public}
	w, err := backup.NewWriter(io.Discard, header, reader.Recipient().String())
	coordinatortest.WantOnly(t, "begin a backup", err, "")
	end, err := w.Close(key)
	coordinatortest.WantOnly(t, "end the backup", err, "")
	intent := backup.Intent{
		Header: header, Trailer: end,
		Index: uint64(d.Clock().Unix()), AuthorityEpoch: uint64(d.Clock().Unix()), Floor: 1, At: d.Clock(), Whole: true,
	}
	raw, err := intent.Encode()
	coordinatortest.WantOnly(t, "encode", err, "")
	d.Store.Write(backup.IntentKey, raw)
}

// A store that went back, and says that it was restored, takes no coordinator along:
// not one that runs and holds what the older head needs, by whichever call it finds
// out, and not one that starts.
func TestClaimedRestoreTakesNobodyBack(t *testing.T) {
	t.Parallel()
	back := func(t *testing.T) (d *coordinatortest.Desk, m *coordinatortest.Machine, seen history.Link) {
		d = coordinatortest.PoolDesk(t)
		m = d.Joined("a")
		old := d.Store.Snapshot()
		// Authority does not move: the mesh CA key of the older head is at hand.
		coordinatortest.WantOnly(t, "set", d.Set(
			coordinatortest.PoolEntries+"  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"),
			"")
		seen = d.State().Head
		d.Store.Revert(old)
		claimRestore(d, t)
		return d, m, seen
	}
	wantNotBack := func(t *testing.T, d *coordinatortest.Desk, seen history.Link) {
		t.Helper()
		if s := d.State(); s.Phase == authority.Ready && s.Head.Hash != seen.Hash {
			t.Fatalf("it is ready at index %d by %s, after index %d", s.Head.Index, s.Head.Kind, seen.Index)
		}
		mark, err := d.C.Parts().Head.Seen()
		coordinatortest.WantOnly(t, "mark", err, "")
		if mark.Hash != seen.Hash {
			t.Errorf("it remembers index %d as the newest, after index %d", mark.Index, seen.Index)
		}
		if head := coordinatortest.MustHead(t, d); head.Index >= seen.Index {
			t.Errorf("it moved the head to index %d", head.Index)
		}
	}
	t.Run("a call finds out", func(t *testing.T) {
		d, m, seen := back(t)
		if err := m.Renew(); err == nil {
			t.Error("a member was renewed on a store that went back")
		}
		wantNotBack(t, d, seen)
		d.LookAgain()
		wantNotBack(t, d, seen)
	})
	t.Run("the loop finds out", func(t *testing.T) {
		d, _, seen := back(t)
		d.LookAgain()
		wantNotBack(t, d, seen)
		coordinatortest.WantPhase(d, "recovery", string(errcode.RestoreUnfit))
	})
	t.Run("it starts", func(t *testing.T) {
		d, _, seen := back(t)
		d.Restart()
		wantNotBack(t, d, seen)
	})
	// The store shows the intent to who decides whether the mark counts, and hides it
	// from who asks for signatures.
	t.Run("the intent vanishes", func(t *testing.T) {
		d, _, seen := back(t)
		w, _, err := d.C.Parts().Moves.Succession.Read(t.Context(), d.State())
		coordinatortest.WantOnly(t, "read", err, "")
		if w == nil || !w.Restores() {
			t.Fatal("the intent was not read")
		}
		d.Store.Alter(backup.IntentKey, func([]byte) []byte { return nil })
		release, err := d.C.Parts().Moves.Turn.Take(t.Context())
		coordinatortest.WantOnly(t, "turn", err, "")
		_, err = d.C.Parts().Moves.Succession.Resume(t.Context(), w)
		release()
		if err == nil {
			t.Error("it went on without a restore transition")
		}
		wantNotBack(t, d, seen)
	})
}
