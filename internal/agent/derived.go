package agent

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/snapshot"
)

// What is written here is for others to read. The agent makes it from what it verified
// and never reads it back as anything that counts.

// tendEvery is how often what the disk did not take, or what ended, is looked at.
const tendEvery = time.Minute

// currentName is the file with the content in use of a scope.
func currentName(scope snapshot.Scope) string { return "current/" + string(scope) + ".json" }

// storeFormat is the form of the data directory. A release that reads it no more, or
// not without harm, gets a higher one.
const storeFormat = 1

// storeFile says who wrote the data directory.
type storeFile struct {
	Format  int    `json:"format"`
	Release string `json:"release"`
}

// checkFormat refuses a directory that a newer release wrote, before anything in it is
// changed. Without the file, or with a damaged one, it is of this format or joined by a
// release before there was one.
func (s *localStore) checkFormat() error {
	data, err := s.read(storeName, maxStoreBytes)
	var f storeFile
	if err != nil || unseal(data, &f) != nil || f.Format <= storeFormat {
		return nil
	}
	return explain.New(explain.NodeStateNewer, "dir", s.dir, "release", f.Release)
}

// stamp writes down who writes the directory from now on.
func (s *localStore) stamp(release string) error {
	next, err := seal(storeFile{storeFormat, release})
	if err != nil {
		return err
	}
	if was, err := s.read(storeName, maxStoreBytes); err == nil && bytes.Equal(was, next) {
		return nil
	}
	return s.write(storeName, next)
}

// stateFile tells of what is in use, for people and tools.
type stateFile struct {
	Release  string `json:"release"`
	Identity struct {
		SVID   string `json:"svid"`   // a file beside this one: references, never keys
		Anchor string `json:"anchor"` // likewise
	} `json:"identity"`
	Scopes []scopeState `json:"scopes"`
}

// scopeState is what is known of a snapshot in use.
type scopeState struct {
	Scope          snapshot.Scope `json:"scope"`
	Subject        string         `json:"subject"`
	AuthorityEpoch uint64         `json:"authority_epoch"`
	ConfigVersion  uint64         `json:"config_version"`
	Generation     uint64         `json:"generation,omitempty"`
	ContentHash    string         `json:"content_hash"`
	SignerKeyIDs   []string       `json:"signer_key_ids"`
	RefreshAfter   time.Time      `json:"refresh_after"`
	FreshUntil     *time.Time     `json:"fresh_until,omitempty"`
	ExpiresAt      time.Time      `json:"expires_at"`
	// VerifiedAt is when it was verified as it came, and Source from whom.
	VerifiedAt time.Time `json:"verified_at"`
	Source     origin    `json:"source"`
	// Applied is the content that the program that runs on a change last succeeded with,
	// or that it failed; blank: it did not run.
	Applied string `json:"applied,omitempty"`
}

// receipt is when and from whom a snapshot in use came.
type receipt struct {
	at   time.Time
	from origin
}

// fromDisk is the source of what was verified at a start of which nothing else is known.
const fromDisk origin = "disk"

// readState takes up what is known of how the snapshots came. It decides nothing.
func (a *Agent) readState(at time.Time) error {
	data, err := a.store.read(stateName, maxStateBytes)
	var f stateFile
	if err == nil {
		err = unseal(data, &f)
	}
	b := a.beliefs.Load()
	for _, s := range f.Scopes {
		a.hooks.applied(s.Scope, s.Applied)
	}
	for scope, h := range b.held {
		a.receipts[scope] = receipt{at, fromDisk}
		i := slices.IndexFunc(f.Scopes, func(s scopeState) bool {
			return s.Scope == scope && s.ContentHash == h.v.Header().ContentHash.String()
		})
		if i >= 0 {
			a.receipts[scope] = receipt{f.Scopes[i].VerifiedAt, f.Scopes[i].Source}
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return a.store.corrupt(stateName, err)
	}
	return nil
}

// state describes what is in use. The caller holds a.activation.
func (a *Agent) state() stateFile {
	f := stateFile{Release: a.release}
	f.Identity.SVID, f.Identity.Anchor = SVIDName, anchorName
	b := a.beliefs.Load()
	for _, scope := range scopes {
		h := b.held[scope]
		if h == nil {
			continue
		}
		header, r := h.v.Header(), a.receipts[scope]
		s := scopeState{
			Scope: scope, Subject: header.Subject.String(), AuthorityEpoch: header.AuthorityEpoch, ConfigVersion: header.ConfigVersion,
			ContentHash: header.ContentHash.String(), SignerKeyIDs: h.v.SignerKeyIDs(), RefreshAfter: header.RefreshAfter, ExpiresAt: header.ExpiresAt,
			VerifiedAt: r.at.UTC(), Source: r.from, Applied: a.hooks.appliedTo(scope),
		}
		if record, ok := h.v.Record(); ok {
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
		a.log.LogAttrs(ctx, slog.LevelWarn, "a file for others to read is not up to date yet", slog.String("file", a.store.path(name)), slog.Any("err", err))
	}
	b, now := a.beliefs.Load(), a.now()
	f := a.factsOf(b)
	for _, scope := range scopes {
		h, name := b.held[scope], currentName(scope)
		there, known := a.derived[scope]
		if f.gives(scope, now) != nil {
			if known && there == nil {
				continue
			}
			if err := a.store.remove(name); err != nil {
				warn(name, err)
				continue
			}
			a.derived[scope] = nil
			written = append(written, scope)
			continue
		}
		text := b.effective(h, a.me.ID).ContentJSON()
		want := snapshot.DigestOf([]byte(text))
		if there != nil && *there == want {
			continue
		}
		if err := a.store.write(name, []byte(text)); err != nil {
			warn(name, err)
			continue
		}
		a.derived[scope] = &want
		written = append(written, scope)
	}
	data, err := seal(a.state())
	if err == nil && !bytes.Equal(data, a.stated) {
		err = a.store.write(stateName, data)
		if err == nil {
			a.stated = data
		}
	}
	if err != nil {
		warn(stateName, err)
	}
}

// findDerived looks at what the last process left for others to read, so that only what
// differs is written.
func (a *Agent) findDerived() {
	for _, scope := range scopes {
		data, err := a.store.read(currentName(scope), snapshotform.MaxContent)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			a.derived[scope] = nil
		case err == nil:
			hash := snapshot.DigestOf(data)
			a.derived[scope] = &hash
		}
	}
}
