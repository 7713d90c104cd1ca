package backup_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	recoverybackup "github.com/fealty-io/fealty/internal/coordinator/recovery/backup"
	"github.com/fealty-io/fealty/internal/errcode"
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
	s := f.State()
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

// Status says when the last backup was sent and since when enough shares are known to be good:
// what a coordinator saw, whichever is asked. Shares that are none of the newest count for nothing.
func TestUpkeepIsWhatWasSeen(t *testing.T) {
	t.Parallel()
	f, _ := coordinatortest.NewOwnedFleet(t, nil)
	upkeep := func() *fealtyv1.Upkeep {
		t.Helper()
		return coordinatortest.GetStatus(f).GetUpkeep()
	}
	u := upkeep()
	if u.GetBackupAt() != nil || len(u.GetOwners()) != 3 || u.GetThreshold() != 2 || recoverybackup.EnoughDrilled(u) != nil {
		t.Fatalf("at first it is %v", u)
	}
	if _, _, err := coordinatortest.BackUp(f, &fealtyv1.CreateBackupRequest{DryRun: true}); err != nil {
		t.Fatal(err)
	}
	if u := upkeep(); u.GetBackupAt() != nil {
		t.Errorf("a dry run counts: %v", u)
	}
	head, _, err := coordinatortest.BackUp(f, &fealtyv1.CreateBackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if u := upkeep(); u.GetBackupAt() == nil || u.GetBackupRevision() != head.GetRevision() || u.GetBackupBy() == "" {
		t.Errorf("after a backup of revision %d it is %v", head.GetRevision(), u)
	}

	committed := func(owner string) *fealtyv1.DrilledShare {
		for _, c := range f.State().Head.ShareCommitments {
			if c.Owner == owner {
				return &fealtyv1.DrilledShare{Owner: owner, Commitment: c.Hash[:]}
			}
		}
		t.Fatalf("%s owns no share", owner)
		return nil
	}
	drill := func(shares ...*fealtyv1.DrilledShare) error {
		_, err := fealtyv1.NewBackupServiceClient(f.LocalConn()).RecordDrill(f.Context(),
			&fealtyv1.RecordDrillRequest{Shares: shares})
		return err
	}
	for name, shares := range map[string][]*fealtyv1.DrilledShare{
		"nobody":          {},
		"a stranger":      {{Owner: "mallory", Commitment: make([]byte, 32)}},
		"another share":   {{Owner: "alice", Commitment: committed("bob").Commitment}},
		"one of them":     {committed("alice"), {Owner: "bob", Commitment: make([]byte, 32)}},
		"far too many":    slices.Repeat([]*fealtyv1.DrilledShare{committed("alice")}, 65),
		"no share at all": {{Owner: "alice"}},
	} {
		if err := drill(shares...); !errors.Is(errcode.Of(err), errcode.RequestField) {
			t.Errorf("%s: %v", name, err)
		}
	}
	coordinatortest.WantOnlyNil(t, drill(committed("alice"), committed("alice")))
	if u := upkeep(); u.GetOwners()[0].GetAt() == nil || u.GetOwners()[1].GetAt() != nil || recoverybackup.EnoughDrilled(u) != nil {
		t.Errorf("one good share is %v", u)
	}
	coordinatortest.WantOnlyNil(t, drill(committed("bob")))
	u = upkeep()
	if at := recoverybackup.EnoughDrilled(u); at == nil || !at.AsTime().Equal(u.GetOwners()[0].GetAt().AsTime()) {
		t.Errorf("two good shares are %v", u)
	}
	if got := coordinatortest.Audited(f, "seed.drill"); len(got) != 2 || got[0].Fields["owners"] != "alice" {
		t.Errorf("the audit log has %v", got)
	}
	for name, want := range map[string]int64{"fealty_last_backup_seconds": u.GetBackupAt().GetSeconds(),
		"fealty_last_drill_seconds": u.GetOwners()[0].GetAt().GetSeconds()} {
		if got := coordinatortest.CounterOf(f.C.Registry(), name); int64(got) != want {
			t.Errorf("%s is %v, want %d", name, got, want)
		}
	}
}

// What a coordinator noted whose clock is ahead is not recent until that time has come: it is not known when it was, and the
// next note puts it right.
func TestUpkeepOfAClockThatIsAhead(t *testing.T) {
	t.Parallel()
	f, _ := coordinatortest.NewOwnedFleet(t, nil)
	parts := f.C.Parts()
	by := func(ahead time.Duration) *recoverybackup.Backups {
		return recoverybackup.New(recoverybackup.Config{Head: parts.Head, Store: f.Store, Now: func() time.Time { return f.Clock().Add(ahead) }})
	}
	shares := &fealtyv1.RecordDrillRequest{}
	for _, c := range parts.Head.State().Head.ShareCommitments {
		shares.Shares = append(shares.Shares, &fealtyv1.DrilledShare{Owner: c.Owner, Commitment: c.Hash[:]})
	}
	metric := func(name string) int64 { return int64(coordinatortest.CounterOf(f.C.Registry(), name)) }
	for _, row := range []struct {
		ahead time.Duration
		known bool
	}{{-8 * 24 * time.Hour, true}, {0, true}, {time.Minute, true}, {3 * time.Minute, false}, {8 * 24 * time.Hour, false}, {0, true}} {
		coordinatortest.WantOnlyNil(t, by(row.ahead).Note(f.Context(), "somebody", 7))
		coordinatortest.WantOnlyNil(t, by(row.ahead).Drilled(f.Context(), shares))
		u, now := coordinatortest.GetStatus(f).GetUpkeep(), f.Clock()
		if u.GetBackupBy() != "somebody" || u.GetBackupRevision() != 7 || u.GetOwners()[0].GetBy() == "" {
			t.Errorf("%v ahead: who made it is lost: %v", row.ahead, u)
		}
		drilled := recoverybackup.EnoughDrilled(u)
		if (u.GetBackupAt() != nil) != row.known || (drilled != nil) != row.known || u.GetBackupAt().AsTime().After(now) ||
			drilled.AsTime().After(now) {
			t.Errorf("%v ahead, at %v: the backup is of %v, and the drill of %v", row.ahead, now, u.GetBackupAt(), drilled)
		}
		if metric("fealty_last_backup_seconds") != u.GetBackupAt().GetSeconds() || metric("fealty_last_drill_seconds") != drilled.GetSeconds() {
			t.Errorf("%v ahead: the metrics say %d and %d", row.ahead, metric("fealty_last_backup_seconds"), metric("fealty_last_drill_seconds"))
		}
		if want := now.Add(row.ahead); row.ahead < 0 && u.GetBackupAt().AsTime().After(want) {
			t.Errorf("an old one is of %v, want at most %v", u.GetBackupAt().AsTime(), want)
		}
	}
}

// TestBackupRefused walks when no backup is made.
func TestBackupRefused(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil) // with a keeper alone
	if _, _, err := coordinatortest.BackUp(f, &fealtyv1.CreateBackupRequest{}); !errors.Is(errcode.Of(err),
		errcode.BackupNoReader) {
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
			"many": slices.Repeat([]string{key.Recipient().String()}, recoverybackup.MaxRecipients+1),
	} {
		if _, _, err := coordinatortest.BackUp(f, &fealtyv1.CreateBackupRequest{Recipients: recipients}); !errors.Is(
			errcode.Of(err),
			errcode.RequestField) {
			t.Errorf("%s as recipient: %v", name, err)
		} else if strings.Contains(err.Error(), key.String()) {
			t.Errorf("%s is shown: %v", name, err)
		}
	}
	one := []string{key.Recipient().String()}
	f.C.Parts().Shown.Backups.Busy() <- struct{}{}
	if _, _, err := coordinatortest.BackUp(f, &fealtyv1.CreateBackupRequest{Recipients: one}); !errors.Is(
		errcode.Of(err),
		errcode.RateLimited) {
		t.Errorf("beside another one: %v", err)
	}
	<-f.C.Parts().Shown.Backups.Busy()
	// A replica whose head is not the store's backs nothing up.
	e, err := f.Store.Get(f.Context(), history.HeadKey)
	if err != nil {
		t.Fatal(err)
	}
	s := f.State()
	if _, _, err := f.C.Parts().Shown.Backups.HeadOf(s, store.Listing{Entries: []store.Entry{{Key: history.HeadKey,
		Version: e.Version + 1}}}, nil); !errors.Is(err, errcode.StoreBusy) {
		t.Errorf("at another head: %v", err)
	}
	if _, _, err := f.C.Parts().Shown.Backups.HeadOf(s, store.Listing{Entries: []store.Entry{{Key: record.LockKey}}},
		nil); !errors.Is(err, errcode.BackupReseeding) {
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
