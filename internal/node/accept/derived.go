package accept

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// readState takes up what is known of how the snapshots came. It decides nothing.
func (d *Derived) readState(at time.Time) error {
	data, err := d.n.store.Read(dir.StateName, dir.MaxStateBytes)
	var f state.StateFile
	if err == nil {
		err = dir.Unseal(data, &f)
	}
	b := d.n.trustState.Load()
	for _, s := range f.Scopes {
		d.n.reports.Applied(s.Scope, s.Applied)
	}
	for scope, h := range b.Active {
		d.receipts[scope] = state.Receipt{At: at, From: state.FromDisk}
		i := slices.IndexFunc(f.Scopes, func(s state.ScopeState) bool {
			return s.Scope == scope && s.ContentHash == h.Verified.Header().ContentHash.String()
		})
		if i >= 0 {
			d.receipts[scope] = state.Receipt{At: f.Scopes[i].VerifiedAt, From: f.Scopes[i].Source}
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d.n.store.Corrupt(dir.StateName, err)
	}
	return nil
}

// state describes what is in use. The caller holds n.activation.
func (d *Derived) state() state.StateFile {
	f := state.StateFile{Release: d.release}
	f.Identity.SVID, f.Identity.Anchor = dir.SVIDName, dir.AnchorName
	b := d.n.trustState.Load()
	for _, scope := range state.Scopes {
		h := b.Active[scope]
		if h == nil {
			continue
		}
		header, r := h.Verified.Header(), d.receipts[scope]
		s := state.ScopeState{
			Scope: scope, Subject: header.Subject.String(), AuthorityEpoch: header.AuthorityEpoch,
			ConfigVersion: header.ConfigVersion,
			ContentHash:   header.ContentHash.String(), SignerKeyIDs: h.Verified.SignerKeyIDs(),
			RefreshAfter: header.RefreshAfter, ExpiresAt: header.ExpiresAt,
			VerifiedAt: r.At.UTC(), Source: r.From, Applied: d.n.reports.AppliedTo(scope),
		}
		if record, ok := h.Verified.Record(); ok {
			s.Generation, s.FreshUntil = record.Generation, &record.FreshUntil
		}
		f.Scopes = append(f.Scopes, s)
	}
	return f
}

// derive brings the files that others read up to what is in use: the contents, and the
// state. A scope that is not in use, ended, or is over by the guard has no content there. A
// failure is logged and mended a little later. A content is there without what is
// revoked. The caller holds n.activation.
func (d *Derived) derive(ctx context.Context) {
	var written []snapshot.Scope
	defer func() { d.n.reports.Changed(written...) }()
	warn := func(name string, err error) {
		d.n.log.LogAttrs(ctx, slog.LevelWarn, "a file for others to read is not up to date yet",
			slog.String("file", d.n.store.Path(name)), slog.Any("err", err))
	}
	b, now := d.n.trustState.Load(), d.n.Clock.Now()
	f := d.n.Autonomy.factsOf(b)
	for _, scope := range state.Scopes {
		h, name := b.Active[scope], dir.CurrentName(scope)
		there, known := d.contents[scope]
		if f.Gives(scope, now) != nil {
			if known && there == nil {
				continue
			}
			if err := d.n.store.Remove(name); err != nil {
				warn(name, err)
				continue
			}
			d.contents[scope] = nil
			delete(d.whole, scope)
			written = append(written, scope)
			continue
		}
		v := b.Effective(h, d.n.me.ID)
		if there != nil && d.whole[scope] == v {
			continue
		}
		content := []byte(v.ContentJSON())
		want := snapshot.DigestOf(content)
		if there == nil || *there != want {
			if err := d.n.store.Write(name, content); err != nil {
				warn(name, err)
				continue
			}
			d.contents[scope] = &want
			written = append(written, scope)
		}
		delete(d.whole, scope)
		if v == h.Verified {
			d.whole[scope] = v
		}
	}
	data, err := dir.Seal(d.state())
	if err == nil && !bytes.Equal(data, d.stated) {
		err = d.n.store.Write(dir.StateName, data)
		if err == nil {
			d.stated = data
		}
	}
	if err != nil {
		warn(dir.StateName, err)
	}
}

// findDerived looks at what the last process left for others to read, so that only what
// differs is written.
func (d *Derived) findDerived() {
	for _, scope := range state.Scopes {
		data, err := d.n.store.Read(dir.CurrentName(scope), internalsnapshot.MaxContent)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			d.contents[scope] = nil
		case err == nil:
			hash := snapshot.DigestOf(data)
			d.contents[scope] = &hash
		}
	}
}
