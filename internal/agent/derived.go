package agent

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
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/snapshot"
)

// readState takes up what is known of how the snapshots came. It decides nothing.
func (a *Agent) readState(at time.Time) error {
	data, err := a.store.Read(dir.StateName, dir.MaxStateBytes)
	var f state.StateFile
	if err == nil {
		err = dir.Unseal(data, &f)
	}
	b := a.beliefs.Load()
	for _, s := range f.Scopes {
		a.hooks.applied(s.Scope, s.Applied)
	}
	for scope, h := range b.Held {
		a.receipts[scope] = state.Receipt{At: at, From: state.FromDisk}
		i := slices.IndexFunc(f.Scopes, func(s state.ScopeState) bool {
			return s.Scope == scope && s.ContentHash == h.Verified.Header().ContentHash.String()
		})
		if i >= 0 {
			a.receipts[scope] = state.Receipt{At: f.Scopes[i].VerifiedAt, From: f.Scopes[i].Source}
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return a.store.Corrupt(dir.StateName, err)
	}
	return nil
}

// state describes what is in use. The caller holds a.activation.
func (a *Agent) state() state.StateFile {
	f := state.StateFile{Release: a.release}
	f.Identity.SVID, f.Identity.Anchor = dir.SVIDName, dir.AnchorName
	b := a.beliefs.Load()
	for _, scope := range state.Scopes {
		h := b.Held[scope]
		if h == nil {
			continue
		}
		header, r := h.Verified.Header(), a.receipts[scope]
		s := state.ScopeState{
			Scope: scope, Subject: header.Subject.String(), AuthorityEpoch: header.AuthorityEpoch, ConfigVersion: header.ConfigVersion,
			ContentHash: header.ContentHash.String(), SignerKeyIDs: h.Verified.SignerKeyIDs(), RefreshAfter: header.RefreshAfter, ExpiresAt: header.ExpiresAt,
			VerifiedAt: r.At.UTC(), Source: r.From, Applied: a.hooks.appliedTo(scope),
		}
		if record, ok := h.Verified.Record(); ok {
			s.Generation, s.FreshUntil = record.Generation, &record.FreshUntil
		}
		f.Scopes = append(f.Scopes, s)
	}
	return f
}

// derive brings the files that others read up to what is in use: the contents, and the
// state. What is not in use, ended, or is over by the guard has no content there. A
// failure is logged and mended a little later. A content is there without what is
// revoked. The caller holds a.activation.
func (a *Agent) derive(ctx context.Context) {
	var written []snapshot.Scope
	defer func() { a.changed(written...) }()
	warn := func(name string, err error) {
		a.log.LogAttrs(ctx, slog.LevelWarn, "a file for others to read is not up to date yet", slog.String("file", a.store.Path(name)), slog.Any("err", err))
	}
	b, now := a.beliefs.Load(), a.now()
	f := a.factsOf(b)
	for _, scope := range state.Scopes {
		h, name := b.Held[scope], dir.CurrentName(scope)
		there, known := a.derived[scope]
		if f.Gives(scope, now) != nil {
			if known && there == nil {
				continue
			}
			if err := a.store.Remove(name); err != nil {
				warn(name, err)
				continue
			}
			a.derived[scope] = nil
			written = append(written, scope)
			continue
		}
		text := b.Effective(h, a.me.ID).ContentJSON()
		want := snapshot.DigestOf([]byte(text))
		if there != nil && *there == want {
			continue
		}
		if err := a.store.Write(name, []byte(text)); err != nil {
			warn(name, err)
			continue
		}
		a.derived[scope] = &want
		written = append(written, scope)
	}
	data, err := dir.Seal(a.state())
	if err == nil && !bytes.Equal(data, a.stated) {
		err = a.store.Write(dir.StateName, data)
		if err == nil {
			a.stated = data
		}
	}
	if err != nil {
		warn(dir.StateName, err)
	}
}

// findDerived looks at what the last process left for others to read, so that only what
// differs is written.
func (a *Agent) findDerived() {
	for _, scope := range state.Scopes {
		data, err := a.store.Read(dir.CurrentName(scope), snapshotform.MaxContent)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			a.derived[scope] = nil
		case err == nil:
			hash := snapshot.DigestOf(data)
			a.derived[scope] = &hash
		}
	}
}
