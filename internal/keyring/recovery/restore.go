package recovery

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
)

// A Restore goes back behind what an owner's tool has seen, and the signers known to
// that tool signed it. No coordinator has carried it out: that takes the seed.
type Restore struct {
	// ID names what was signed. A signer that agrees to a restore agrees to this one.
	ID [sha256.Size]byte
	// Seen is what the tool remembers, and Back the head of the backup, which the
	// history goes on from.
	Seen, Back history.Mark
	// BackupAt is when the backup was made, and PlannedAt when the restore was begun, which
	// is its authority epoch. Reason is why; that nobody signed.
	BackupAt, PlannedAt time.Time
	Reason              string
	// Signers are those known to the tool who signed it, by their names in the manifest
	// of the backup, or by their keys; Needed is how many have to.
	Signers []string
	Needed  int
}

// UnagreedError says that a share was not sent, because nobody agreed to a restore yet
// that goes back behind what this machine has seen.
type UnagreedError struct{ Restore *Restore }

func (e *UnagreedError) Error() string {
	return fmt.Sprintf("recovery: a restore goes back from index %d to index %d, and nobody agreed to it here", e.Restore.Seen.Index, e.Restore.Back.Index)
}

// CheckRestore returns the restore that raw, which a coordinator shows as it stands in
// the store, has for v. It is believed by no word of the coordinator's, and no word of v's
// but its head:
// the signers that m remembers, by their threshold, signed that the history goes on from
// the head of v, under clocks above all that m has seen.
func (m Mark) CheckRestore(v *history.Verified, raw []byte) (*Restore, error) {
	intent, err := backup.DecodeIntent(raw)
	if err != nil {
		return nil, err
	}
	head, err := intent.Head()
	switch {
	case err != nil:
		return nil, errors.New("the head that the restore names does not parse")
	case !intent.Whole:
		return nil, errors.New("the restore did not come to its end")
	case intent.Header.Cluster != m.Cluster || v.Manifest().Cluster != m.Cluster:
		return nil, fmt.Errorf("the restore is of cluster %s", clip(intent.Header.Cluster))
	case head.Hash != v.Current().Hash:
		return nil, fmt.Errorf("the restore goes on from head %.16s, and the history ends at %.16s", head.Hash, v.Current().Hash)
	case !slices.ContainsFunc(v.TransactionKeys(), intent.Trailer.SignedBy):
		return nil, errors.New("no coordinator of this cluster made the backup that the restore names")
	case intent.AuthorityEpoch <= m.AuthorityEpoch:
		return nil, errors.New("the restore is older than what this machine has seen")
	case m.Signers == nil || len(m.Signers.Keys) == 0:
		return nil, errors.New("this machine does not remember who the signers were at the head that it has seen")
	}
	t := intent.Transition(v)
	known := manifest.Signers{Threshold: max(m.Signers.Threshold, 1)}
	for _, key := range m.Signers.Keys {
		known.Keys = append(known.Keys, manifest.Signer{Key: key})
	}
	signed := slices.DeleteFunc(slices.Clone(t.Signatures), func(s history.Signature) bool { return !slices.Contains(m.Signers.Keys, s.Key) })
	if err := history.Authorize(&manifest.Manifest{Signers: known}, t.Statement(), signed); err != nil {
		if u, ok := errors.AsType[*history.UnauthorizedError](err); ok && u.Key == nil {
			err = fmt.Errorf("%d of %d needed have signed it, of the signers that this machine remembers", u.Have, u.Need)
		}
		return nil, err
	}
	// As a link it has to pass all that links have to. The mesh CA key is made by who
	// carries it out, and any other stands for it.
	rand.Read(t.MeshCAKey[:])
	after, err := v.With(t, v.Manifest())
	if err == nil {
		var restored bool
		if restored, err = m.Accepts(after); err == nil && !restored {
			err = errors.New("the history goes on from what was seen without it")
		}
	}
	if err != nil {
		return nil, err
	}
	r := &Restore{
		ID: sha256.Sum256(t.Statement()), Seen: m.SeenHead.Mark, Back: v.Mark(),
		BackupAt: intent.Header.CreatedAt, PlannedAt: time.Unix(int64(min(t.AuthorityEpoch, 1<<40)), 0), Reason: intent.Reason, Needed: known.Threshold,
	}
	for _, s := range signed {
		name := s.Key.String()
		if i := slices.IndexFunc(v.Manifest().Signers.Keys, func(k manifest.Signer) bool { return k.Key == s.Key }); i >= 0 {
			name = v.Manifest().Signers.Keys[i].Name
		}
		if !slices.Contains(r.Signers, name) {
			r.Signers = append(r.Signers, name)
		}
	}
	return r, nil
}

// mark checks the history against what was seen, and finds the restore that may go back
// behind that.
func (c *checks) mark() error {
	seen := c.opts.Expect.Seen
	_, err := seen.Check(c.verified, c.opts.Endpoint)
	raw := c.offer.GetRestore()
	if err == nil || len(raw) == 0 {
		return err
	}
	restore, why := seen.CheckRestore(c.verified, raw)
	if why != nil {
		e := errcode.Of(err)
		return errcode.Wrap(err, e.Code, "endpoint", c.opts.Endpoint, "cluster", c.file.Cluster, "seen", e.Fields["seen"],
			"shown", fmt.Sprintf("%s, with a restore that does not pass: %v", e.Fields["shown"], why),
			"do", "have the signers sign the restore that waits there (fealty backup sign), or ask the operators which one they mean; do not remove the mark")
	}
	c.restore = restore
	return nil
}
