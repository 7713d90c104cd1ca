package backups_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/backups"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
)

func TestBackup(t *testing.T) {
	t.Parallel()
	f, owners := coordinatortest.NewOwnedFleet(t, nil)
	f.Member("data")
	f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 5})
	dry, _, err := coordinatortest.BackUp(f, &fealtyv1.CreateBackupRequest{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	head, file, err := coordinatortest.BackUp(f, &fealtyv1.CreateBackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if dry.GetMembers() != head.GetMembers() || head.GetMembers() != 1 || head.GetTokens() == 0 ||
		!slices.Equal(head.GetOwners(), []string{"alice", "bob", "carol"}) {
		t.Errorf("the backup is of %v, planned was %v", head, dry)
	}
	ids := []age.Identity{owners.Keys["alice"]}
	found, err := backup.Check(bytes.NewReader(file), ids)
	if err != nil {
		t.Fatal(err)
	}
	s := f.C.Rooms().Head.State()
	if found.History.Current().Hash != s.Head.Hash || uint64(found.Header.Revision) != head.GetRevision() ||
		!found.Trailer.SignedBy(s.Secrets.TransactionKey()) {
		t.Errorf("found %+v", found.Header)
	}
	// It holds what the store had, all of it that is to survive.
	kept := make(map[string][]byte)
	r, err := backup.Open(bytes.NewReader(file), ids)
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range r.Entries() {
		if err != nil {
			t.Fatal(err)
		}
		kept[e.Key] = e.Value
	}
	l, err := f.Store.List(f.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range l.Entries {
		value, ok := kept[e.Key]
		late := strings.HasPrefix(e.Key, auditlog.Prefix) || e.Version > found.Header.Revision
		if !late && ok != backup.Kept(e.Key) || ok && !late && !bytes.Equal(value, e.Value) {
			t.Errorf("%s: in the backup %v", e.Key, ok)
		}
		if strings.HasPrefix(e.Key, admission.TokenPrefix) && ok {
			t.Errorf("token %s is in the backup", e.Key)
		}
	}
	audit, err := f.Store.List(f.Context(), auditlog.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range audit.Entries {
		n += strings.Count(string(e.Value), `"action":"backup.create"`)
	}
	if n != 1 {
		t.Errorf("%d audit entries of one backup", n)
	}
}

// TestBackupRefused walks when no backup is made.
func TestBackupRefused(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil) // with a keeper alone
	if _, _, err := coordinatortest.BackUp(f, &fealtyv1.CreateBackupRequest{}); !errors.Is(explain.Of(err),
		explain.BackupNoReader) {
		t.Errorf("without a reader: %v", err)
	}
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	_, file, err := coordinatortest.BackUp(f,
		&fealtyv1.CreateBackupRequest{Recipients: []string{key.Recipient().String()}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Check(bytes.NewReader(file), []age.Identity{key}); err != nil {
		t.Errorf("for a named reader: %v", err)
	}
	for name, recipients := range map[string][]string{
		"no key": {"alice"}, "a private key": {key.String()}, "too " +
			"many": slices.Repeat([]string{key.Recipient().String()}, backups.MaxRecipients+1),
	} {
		if _, _, err := coordinatortest.BackUp(f, &fealtyv1.CreateBackupRequest{Recipients: recipients}); !errors.Is(
			explain.Of(err),
			explain.RequestField) {
			t.Errorf("%s as recipient: %v", name, err)
		} else if strings.Contains(err.Error(), key.String()) {
			t.Errorf("%s is shown: %v", name, err)
		}
	}
	one := []string{key.Recipient().String()}
	f.C.Rooms().Shown.Backups.Busy() <- struct{}{}
	if _, _, err := coordinatortest.BackUp(f, &fealtyv1.CreateBackupRequest{Recipients: one}); !errors.Is(
		explain.Of(err),
		explain.RateLimited) {
		t.Errorf("beside another one: %v", err)
	}
	<-f.C.Rooms().Shown.Backups.Busy()
	// A replica whose head is not the store's backs nothing up.
	e, err := f.Store.Get(f.Context(), history.HeadKey)
	if err != nil {
		t.Fatal(err)
	}
	s := f.C.Rooms().Head.State()
	if _, _, err := f.C.Rooms().Shown.Backups.HeadOf(s, store.Listing{Entries: []store.Entry{{Key: history.HeadKey,
		Version: e.Version + 1}}}, nil); !errors.Is(err, explain.StoreBusy) {
		t.Errorf("at another head: %v", err)
	}
	if _, _, err := f.C.Rooms().Shown.Backups.HeadOf(s, store.Listing{Entries: []store.Entry{{Key: record.LockKey}}},
		nil); !errors.Is(err, explain.BackupReseeding) {
		t.Errorf("during a reseed: %v", err)
	}
	// Without its audit entry it does not leave.
	if _, err := f.Store.CompareAndSwap(f.Context(), record.LockKey, 0,
		[]byte(fmt.Sprintf(`{"salt":%q,"ledger":"x","at":%q}`, strings.Repeat("0", 64),
			f.Clock().UTC().Format("2006-01-02T15:04:05Z")))); err != nil {
		t.Fatal(err)
	}
	if _, file, err := coordinatortest.BackUp(f, &fealtyv1.CreateBackupRequest{Recipients: one}); err == nil ||
		len(file) > 0 {
		t.Errorf("with locked records: %d bytes, %v", len(file), err)
	}
}
