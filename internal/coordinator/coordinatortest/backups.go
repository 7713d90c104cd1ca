package coordinatortest

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"

	"filippo.io/age"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

// BackUp takes a backup over the admin socket.
func BackUp(f *Fleet, req *fealtyv1.CreateBackupRequest) (*fealtyv1.BackupHead, []byte, error) {
	f.T.Helper()
	stream, err := fealtyv1.NewBackupServiceClient(f.LocalConn()).CreateBackup(f.Context(), req)
	if err != nil {
		return nil, nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, nil, err
	}
	var file []byte
	for !req.GetDryRun() {
		part, err := stream.Recv()
		if err != nil {
			return nil, nil, err
		}
		file = append(file, part.GetChunk()...)
		if end := part.GetEnd(); end != nil {
			if sum := sha256.Sum256(file); end.GetBytes() != uint64(len(file)) ||
				!bytes.Equal(end.GetSha256(), sum[:]) {
				return nil, nil, errors.New("the end is that of another file")
			}
			break
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) { // the end of the call
		return nil, nil, err
	}
	return first.GetHead(), file, nil
}

// Saved is a backup, and what is needed to restore it.
type Saved struct {
	F    *Fleet
	File []byte
	Ids  []age.Identity
	Plan *backup.Intent
	V    *history.Verified
}

// Save takes a backup of f that its owners can read.
func Save(f *Fleet, owners *People) *Saved {
	f.T.Helper()
	_, file, err := BackUp(f, &fealtyv1.CreateBackupRequest{})
	if err != nil {
		f.T.Fatal(err)
	}
	b := &Saved{F: f, File: file, Ids: []age.Identity{owners.Keys["alice"]}}
	return b.Planned()
}

// Planned plans the restore for now.
func (b *Saved) Planned() *Saved {
	b.F.T.Helper()
	found, err := backup.Check(bytes.NewReader(b.File), b.Ids)
	if err != nil {
		b.F.T.Fatal(err)
	}
	b.V = found.History
	if b.Plan, err = backup.Plan(found, b.F.Clock(), "test"); err != nil {
		b.F.T.Fatal(err)
	}
	return b
}

// Signed adds the signature of key to the plan.
func (b *Saved) Signed(key ed25519.PrivateKey) *Saved {
	t := b.Plan.Transition(b.V)
	b.Plan.Signatures = append(b.Plan.Signatures,
		history.Signature{Key: SignerKey(b.F.T, key), Signature: [64]byte(ed25519.Sign(key, t.Statement()))})
	return b
}

// InStore runs do on the store of the fleet, whose coordinator is stopped.
func InStore(f *Fleet, do func(st *sqlite.Store) error) {
	f.T.Helper()
	st, err := sqlite.Open(f.Context(), filepath.Join(f.Dir, "store", "db"), sqlite.Options{})
	if err != nil {
		f.T.Fatal(err)
	}
	defer st.Close()
	if err := do(st); err != nil {
		f.T.Fatal(err)
	}
}

// Restore stops the coordinator, throws its store away and restores b into a new one.
func (b *Saved) Restore() {
	f := b.F
	f.T.Helper()
	f.Stop()
	if err := os.RemoveAll(filepath.Join(f.Dir, "store")); err != nil {
		f.T.Fatal(err)
	}
	b.Again()
}

// Again runs the restore on the store as it is.
func (b *Saved) Again() {
	b.F.T.Helper()
	InStore(b.F, func(st *sqlite.Store) error {
		r, err := backup.Open(bytes.NewReader(b.File), b.Ids)
		if err != nil {
			return err
		}
		_, err = backup.Restore(b.F.Context(), st, b.Plan, r, nil)
		return err
	})
}
