package trust

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// No store has the changes between a backup and its restore. The fleet holds trust
// bundles of it, which this cluster signed then: they say what was banned and revoked,
// and which mesh CA keys signed. A member that has a newer one than the backup shows
// it, and it is believed for its signature and not for who shows it; so a member need
// not be known yet. Bans and revocations are added, none is lifted; and a ban that a
// person lifted since the restore stays lifted.

const (
	// LinkPage bounds a page of transitions.
	LinkPage = 1 << 20
	// mergeBatch bounds the bans that one transaction adds.
	mergeBatch = 200
)

// presentersAtOnce bounds who brings a trust bundle of before a restore, and
// presentersPerSource those of them from one address: what they bring is large.
const (
	presentersAtOnce    = 4
	presentersPerSource = 2
)

// newPresenters bounds the callers that show a trust bundle of before a restore.
func newPresenters() *ratelimit.Limiter {
	return ratelimit.New(ratelimit.Limits{What: "trust bundles", Most: presentersAtOnce,
		PerSource: presentersPerSource, Patience: ratelimit.AnswerTimeout})
}

// restoreServer serves RestoreService.
type restoreServer struct {
	fealtyv1.UnimplementedRestoreServiceServer
	c *Trust
}

func (r restoreServer) GetLinks(req *fealtyv1.GetLinksRequest, stream fealtyv1.RestoreService_GetLinksServer) error {
	s, err := r.c.cfg.Head.Ready()
	if err != nil {
		return err
	}
	// From a head that is not in this history a restore alone leads on. It may be the
	// first of several: who signed a later one need not have been a signer then.
	links := s.Chain.Links()
	from := slices.IndexFunc(links,
		func(l history.Link) bool { return string(l.Hash[:]) == string(req.GetKnown()) }) + 1
	if from == 0 {
		if from = slices.IndexFunc(links,
			func(l history.Link) bool { return l.Kind == history.KindRestore }); from < 0 {
			from = len(links)
		}
	}
	page, size := &fealtyv1.GetLinksResponse{}, 0
	send := func() error {
		ctx, cancel := context.WithTimeout(stream.Context(), ratelimit.TransferTime(LinkPage))
		defer cancel()
		return r.c.cfg.Readers.Do(ctx, func() error { return stream.Send(page) })
	}
	for _, l := range links[from:] {
		raw, err := l.Encode()
		if err != nil {
			return err
		}
		if size += len(raw); size > LinkPage && len(page.Links) > 0 {
			if err := send(); err != nil {
				return err
			}
			page, size = &fealtyv1.GetLinksResponse{}, len(raw)
		}
		page.Links = append(page.Links, raw)
	}
	return send()
}

func (r restoreServer) PresentTrust(stream fealtyv1.RestoreService_PresentTrustServer) error {
	c := r.c
	ctx, cancel := context.WithTimeout(stream.Context(), ratelimit.ExchangeTimeout)
	defer cancel()
	addr := identity.FromContext(ctx).Addr
	if err := c.cfg.Limiter.Admit("calls", addr, c.cfg.Now()); err != nil {
		return err
	}
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return err
	}
	first := &fealtyv1.PresentTrustResponse{}
	if window, err := c.windowOf(ctx, s); err != nil {
		return err
	} else if window.Exists() {
		first.Restored, first.AuthorityEpoch = true, window.Value.AuthorityEpoch
		first.ConfigVersion = uint64(window.Value.Version)
	} else if t := c.cfg.Bundle.View(); t != nil {
		first.Compares, first.AuthorityEpoch, first.ConfigVersion = true, t.Epoch, t.Version
	}
	first.PartBytes = ratelimit.PartBytes
	if err := stream.Send(first); err != nil {
		return err
	}
	slot, err := c.presenters.Enter(ctx, addr, c.cfg.Now())
	if err != nil {
		return err
	}
	defer slot.Leave()
	waiting, stop := context.WithTimeout(slot.Context(), ratelimit.AnswerTimeout)
	defer stop()
	raw, err := c.bundleParts(waiting, stream)
	if errors.Is(err, io.EOF) {
		return nil // it has none that is news
	}
	if err != nil {
		return slot.Reason(err)
	}
	n, err := 0, error(nil)
	if first.Compares || c.aheadOf(s, raw) {
		err = c.Proven(ctx, addr, raw)
	} else if n, err = c.TakePresented(ctx, raw); err == nil {
		err = c.cfg.Bundle.Apply(ctx)
	}
	if err != nil {
		c.cfg.Refusals.Log(ctx, c.cfg.Log, slog.LevelWarn, "a trust bundle of before the restore is not believed",
			slog.String("remote", addr), slog.String("reason", err.Error()))
		return err
	}
	return stream.Send(&fealtyv1.PresentTrustResponse{Restored: first.Restored, Taken: uint32(n)})
}

// aheadOf reports whether a bundle says that it is newer than the one in force, and of its
// authority epoch: what it revokes is of after every restore.
func (c *Trust) aheadOf(s *authority.State, raw []byte) bool {
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return false
	}
	claims, err := signed.Claims()
	t := c.cfg.Bundle.View()
	return err == nil && t != nil && claims.Header.AuthorityEpoch == s.Head.AuthorityEpoch &&
		claims.Header.ConfigVersion > t.Version
}

// bundleParts receives the envelope of a trust bundle. Its content shows when it is
// whole, so that few are received at a time.
func (c *Trust) bundleParts(ctx context.Context, stream fealtyv1.RestoreService_PresentTrustServer) ([]byte, error) {
	req, err := ratelimit.Receive(ctx, c.cfg.Readers, stream.Recv)
	if err != nil || !req.GetMore() {
		return req.GetBundle().GetEnvelope(), err
	}
	return ratelimit.ReceiveParts(ctx, c.cfg.Readers, req.GetBundle().GetEnvelope(), ratelimit.MaxMessageBytes,
		func() ([]byte, bool, error) {
			m, err := stream.Recv()
			return m.GetPart(), m.GetMore(), err
		})
}

// windowOf reads the window of the last restore; it does not exist if there was none.
func (c *Trust) windowOf(ctx context.Context, s *authority.State) (record.Versioned[authority.RestoreWindow], error) {
	last := s.LastRestore()
	if last == nil {
		return record.Versioned[authority.RestoreWindow]{}, nil
	}
	window, err := record.Get[authority.RestoreWindow](ctx, s.Records, authority.RestoreWindowKey)
	if err != nil {
		return window, c.cfg.Head.StoreError("read what a restore left", err)
	}
	if window.Value.Index != last.Index {
		return record.Versioned[authority.RestoreWindow]{}, nil
	}
	return window, nil
}

// TakePresented takes in what a trust bundle of the window revokes, and returns how much
// of it was new. The caller puts it into force.
func (c *Trust) TakePresented(ctx context.Context, raw []byte) (int, error) {
	// One at a time: each is compared with what those before it brought.
	release, err := c.presenting.Lock(ctx, "presented")
	if err != nil {
		return 0, err
	}
	defer release()
	return c.mergePresented(ctx, raw)
}

// mergePresented is TakePresented for the holder of its lock.
func (c *Trust) mergePresented(ctx context.Context, raw []byte) (int, error) {
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return 0, err
	}
	window, err := c.windowOf(ctx, s)
	if err != nil {
		return 0, err
	}
	shown, header, err := presented(s, raw, window)
	if err != nil {
		return 0, errcode.Wrap(err, errcode.RequestField,
			"field", "bundle", "problem", strings.TrimPrefix(err.Error(), "snapshot: "))
	}
	total := 0
	for ctx.Err() == nil {
		n, more, err := c.mergeOnce(ctx, shown, header)
		if err != nil && c.cfg.Head.Conflicts(ctx, err) {
			continue
		}
		if err != nil {
			return total, c.cfg.Head.StoreError("take in what was revoked before the restore",
				current.WordFull("what was revoked before the restore", err))
		}
		if total += n; !more {
			break
		}
	}
	if ctx.Err() != nil {
		return total, ctx.Err()
	}
	c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
		"a member showed what was revoked after the backup", slog.Uint64("authority_epoch", header.AuthorityEpoch),
		slog.Uint64("config_version", header.ConfigVersion), slog.Int("new", total))
	return total, nil
}

// presented verifies a trust bundle of the window. When it was valid is of no matter: it
// takes away, and gives nothing.
func presented(s *authority.State, raw []byte, window record.Versioned[authority.RestoreWindow]) (*snapshot.TrustBundle,
	snapshot.Header,
	error) {
	last := s.LastRestore()
	if !window.Exists() || last == nil {
		return nil, snapshot.Header{}, errors.New("this cluster was not restored")
	}
	shown, h, err := s.Bundle.Open(raw)
	switch {
	case err != nil:
		return nil, h, err
	case h.AuthorityEpoch >= last.AuthorityEpoch:
		return nil, h, fmt.Errorf("authority epoch %d is not of before the restore, which began %d", h.AuthorityEpoch,
			last.AuthorityEpoch)
	case h.AuthorityEpoch < window.Value.AuthorityEpoch, h.AuthorityEpoch == window.Value.AuthorityEpoch &&
		h.ConfigVersion <= uint64(window.Value.Version):
		return nil, h, fmt.Errorf("version %d of epoch %d is no newer than what is known, %d of %d", h.ConfigVersion,
			h.AuthorityEpoch, window.Value.Version, window.Value.AuthorityEpoch)
	}
	return shown, h, nil
}

// mergeOnce adds a part of what bundle takes away. The last part moves the window.
func (c *Trust) mergeOnce(ctx context.Context, shown *snapshot.TrustBundle, h snapshot.Header) (
	n int, more bool, err error) {
	s, err := c.cfg.Head.InForce(ctx)
	if err != nil {
		return 0, false, err
	}
	window, err := c.windowOf(ctx, s)
	if err != nil || !window.Exists() {
		return 0, false, err
	}
	in, err := c.cfg.Bundle.Read(ctx, s)
	if err != nil {
		return 0, false, err
	}
	now, by := c.cfg.Now().UTC().Truncate(time.Second), fmt.Sprintf("trust bundle %d of epoch %d", h.ConfigVersion,
		h.AuthorityEpoch)
	ban := record.Ban{Reason: "in force before the restore", By: by, At: now}
	ch := s.Records.NewChange(s.HeadVersion)
	var d bundle.Delta
	for _, id := range shown.BannedIDs {
		if slices.Contains(in.BannedIDs, id) || in.LiftedAfter(id, h.AuthorityEpoch) {
			continue
		}
		if n == mergeBatch {
			more = true
			break
		}
		d.Ban, n = append(d.Ban, id), n+1
	}
	d.Write = func(counter uint64) {
		ban.Counter = counter
		for _, id := range d.Ban {
			ch.Put(record.BanIDKey(id.Kind(), id.Name()), 0, ban)
		}
	}
	listed := in.Listed()
	for _, key := range shown.BannedKeys {
		if slices.Contains(listed, key) || key == s.MeshKey {
			continue
		}
		if n == mergeBatch {
			more = true
			break
		}
		old, err := record.Get[record.Ban](ctx, s.Records, record.BanKeyKey(key))
		if err != nil {
			return 0, false, err
		}
		next := ban
		next.CertEnd = record.Later(now.Add(s.Manifest.LongestSVIDTTL()+record.CertMargin), old.Value.CertEnd)
		next.Until = record.Later(record.Later(now.Add(record.KeyMemory(s.Manifest)), next.CertEnd), old.Value.Until)
		ch.Put(record.BanKeyKey(key), old.Version, next)
		d.Keys, n = append(d.Keys, bundle.KeyBan{Key: key, CertEnd: next.CertEnd}), n+1
	}
	if !more {
		d.Edit = func(t *bundle.State, _ store.Revision) error {
			news, err := t.CatchUp(s.Bundle, shown, h, now, by)
			n += news
			return err
		}
		ch.Put(authority.RestoreWindowKey, window.Version, authority.RestoreWindow{Index: window.Value.Index,
			AuthorityEpoch: h.AuthorityEpoch,
			Version:        store.Revision(h.ConfigVersion), BackupAt: window.Value.BackupAt})
	}
	if err := c.cfg.Bundle.Touch(ctx, s, ch, d, bundle.ForBans); err != nil {
		return 0, false, err
	}
	ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: "restore", Action: "trust.presented", Target: by,
		Fields: map[string]string{"bans": fmt.Sprint(len(d.Ban)), "keys": fmt.Sprint(len(d.Keys))}})
	_, err = ch.Commit(ctx)
	return n, more, err
}
