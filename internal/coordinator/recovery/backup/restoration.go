package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/store"
)

// RestorationConfig is what a Restoration is made of.
type RestorationConfig struct {
	Head   *authority.Head
	Store  store.Store
	Faults *failpoint.Points
	Log    *slog.Logger
	Now    func() time.Time
}

// Restoration looks at what a restore left in the store.
type Restoration struct{ cfg RestorationConfig }

// NewRestoration returns a Restoration. It looks at nothing yet.
func NewRestoration(cfg RestorationConfig) *Restoration { return &Restoration{cfg: cfg} }

// Unfinished says that a restore was not carried to its end.
func Unfinished(intent *backup.Intent) error {
	return errcode.New(errcode.RestoreUnfinished, "made", intent.Header.CreatedAt.UTC().Format(time.RFC3339))
}

// CarriedOut reports whether the transition that intent asks for is in the history, as
// the store claims it to be: only who verifies it acts on that.
func CarriedOut(intent *backup.Intent, h *history.History) bool {
	return slices.ContainsFunc(h.Links, func(raw []byte) bool {
		t, err := history.Decode(raw)
		return err == nil && madeOf(t, intent)
	})
}

// Carries is CarriedOut of a history that is verified, for an intent whose every word
// on the backup is the cluster's own.
func Carries(v *history.Verified, intent *backup.Intent) bool {
	return slices.ContainsFunc(v.TransactionKeys(), intent.VouchedBy) &&
		slices.ContainsFunc(v.Links(), func(l history.Link) bool { return madeOf(&l.Transition, intent) })
}

// madeOf reports whether t is the transition that intent asks for.
func madeOf(t *history.Transition, intent *backup.Intent) bool {
	head, err := intent.Head()
	return err == nil && t.Kind == history.KindRestore && t.Previous == head.Hash && t.Index == intent.Index &&
		t.Backup == history.Hash(intent.Trailer.Digest)
}

// Next returns the restore transition that is to follow before, and nil if
// nothing was restored. mesh CA key and hash are the caller's to fill in. An
// obstacle is an error with a code.
func (r *Restoration) Next(ctx context.Context, before *authority.State) (*history.Transition, error) {
	intent, _, err := authority.PendingRestore(ctx, r.cfg.Store)
	if err != nil {
		return nil, r.cfg.Head.StoreError("read what a restore left", err)
	}
	if intent == nil || Carries(before.Chain, intent) {
		return nil, nil
	}
	unfit := func(cause error, problem string, args ...any) error {
		return errcode.Wrap(cause, errcode.RestoreUnfit, "problem", fmt.Sprintf(problem, args...))
	}
	head, err := intent.Head()
	switch {
	case !intent.Whole:
		return nil, Unfinished(intent)
	case err != nil:
		return nil, unfit(err, "the head that it names does not parse")
	case head.Hash != before.Head.Hash:
		return nil, unfit(nil, "it goes on from head %s, and the history is at %s", head.Hash.String()[:16],
			before.Head.Hash.String()[:16])
	case !intent.VouchedBy(before.Secrets.TransactionKey()):
		return nil, unfit(nil, "no coordinator of this cluster made the backup that it names")
	}
	t := intent.Transition(before.Chain)
	if err := r.authorized(before.Manifest, t); err != nil {
		return nil, err
	}
	// Bans and revocations are records that can be missing: what the store holds is
	// compared with what the backup was signed over.
	l, err := r.cfg.Store.List(ctx, "")
	if err != nil {
		return nil, r.cfg.Head.StoreError("compare the store with the backup", err)
	}
	sum := backup.NewSum()
	for _, e := range l.Entries {
		sum.Add(e.Key, e.Value)
	}
	if sum.Digest() != intent.Trailer.Bound {
		return nil, unfit(nil, "the store does not hold what the backup held: it was written to since")
	}
	return t, nil
}

// authorized says whose signatures are missing.
func (r *Restoration) authorized(m *manifest.Manifest, t *history.Transition) error {
	err := history.Authorize(m, t.Statement(), t.Signatures)
	u, ok := errors.AsType[*history.UnauthorizedError](err)
	switch {
	case err == nil:
		return nil
	case !ok:
		return errcode.Wrap(err, errcode.RestoreUnfit, "problem", err.Error())
	case u.Foreign:
		return errcode.Wrap(err, errcode.SignatureForeign, "change", t.Kind.Undone(), "signer", u.Key.String())
	case u.Key != nil:
		return errcode.Wrap(err, errcode.ManifestMissigned, "change", t.Kind.Undone(), "signer", u.Key.String())
	}
	var missing []string
	for _, s := range m.Signers.Keys {
		if !slices.ContainsFunc(t.Signatures, func(h history.Signature) bool { return h.Key == s.Key }) {
			missing = append(missing, s.Name)
		}
	}
	return errcode.Wrap(err, errcode.RestoreUnsigned, "have", fmt.Sprint(u.Have), "need", fmt.Sprint(u.Need),
		"missing", strings.Join(missing, ", "))
}

// PassesMark reports whether the history before, with t after it, may take the place of
// the newest head that this coordinator has seen.
func (r *Restoration) PassesMark(before *history.Verified, t *history.Transition) error {
	seen, err := r.cfg.Head.Seen()
	if err != nil {
		return err
	}
	if last := r.cfg.Head.State().Ready(); last != nil {
		seen = last.Chain.Seen()
	}
	after, err := before.With(t, before.Manifest())
	if err == nil {
		_, err = seen.Accepts(after)
	}
	if err != nil {
		return errcode.Wrap(err, errcode.HistoryInvalid, "problem", err.Error())
	}
	return nil
}

// Settle ends a restore that was carried out, and has s know of it. It is done
// again by whoever adopts the head next, until it is done.
func (r *Restoration) Settle(ctx context.Context, s *authority.State) error {
	last := s.LastRestore()
	if last == nil {
		return nil
	}
	intent, version, err := authority.PendingRestore(ctx, r.cfg.Store)
	if err != nil {
		return err
	}
	if intent != nil && Carries(s.Chain, intent) && intent.Index == last.Index {
		if err := r.cfg.Faults.Hit("restore.before-end"); err != nil {
			return err
		}
		head, err := intent.Head()
		if err != nil {
			return err
		}
		old, err := record.Get[authority.RestoreWindow](ctx, s.Records, authority.RestoreWindowKey)
		if err != nil && !errors.Is(err, store.ErrForged) {
			return err
		}
		if !old.Exists() || old.Value.Index != last.Index {
			window := authority.RestoreWindow{Index: last.Index, AuthorityEpoch: head.AuthorityEpoch,
				Version: intent.Header.Revision, BackupAt: intent.Header.CreatedAt.UTC()}
			if intent.InPlace {
				// It holds what it held when the trust state was written last. Since when it lacks
				// something nobody knows.
				known, err := record.Get[bundle.State](ctx, s.Records, bundle.StateKey)
				if err != nil {
					return fmt.Errorf("read the trust state: %w", err)
				}
				window.Version, window.BackupAt = known.Version, time.Time{}
			}
			ch := s.Records.NewChange(s.HeadVersion)
			ch.Write(authority.RestoreWindowKey, window)
			ch.Delete(backup.IntentKey, version)
			ch.Audit(r.cfg.Now(), record.AuditEntry{Actor: "restore", Action: "backup.restored",
				Target: last.Hash.String(), Reason: last.Reason,
				Fields: map[string]string{"backup_at": intent.Header.CreatedAt.UTC().Format(time.RFC3339),
					"index": fmt.Sprint(last.Index)}})
			if _, err := ch.Commit(ctx); err != nil {
				return fmt.Errorf("end the restore: %w", err)
			}
			r.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
				"the cluster goes on from a backup", slog.Uint64("index", last.Index), slog.Time("backup_at",
					intent.Header.CreatedAt), slog.Bool("in_place", intent.InPlace))
		}
	}
	window, err := record.Get[authority.RestoreWindow](ctx, s.Records, authority.RestoreWindowKey)
	switch {
	case errors.Is(err, store.ErrForged):
		return r.cfg.Head.ForgedUnder(ctx, s, authority.Suspect{What: authority.RestoreWindowKey, Err: err})
	case err != nil:
		return err
	case window.Exists() && window.Value.Index == last.Index:
		s.RestoreWindow = &window.Value
	}
	return nil
}
