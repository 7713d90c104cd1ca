package state

import (
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// The history check: a node keeps to one history. Its trust bundle names a head, and a newer bundle is
// accepted only if its head leads on from there: by the links of the history, which
// come with the bundle, or are asked for. A head that is lower is a rollback, another
// one at the same place a fork; both are refused, and so is a newer one that nobody
// can show the way to. A history that was restored from a backup is a fork that the
// signers whom the node knows have signed: it is followed, and what was revoked in the
// time that the backup does not know is shown to the coordinator.

// Limits on links, which are not signed.
const (
	MaxLinks     = 8192
	MaxLinkBytes = 8 << 20
)

// leadsOn decides whether the head of the trust bundle v may take the place of the one
// that is known, and reports whether by a restore. A node that knows none takes any.
func (b *TrustState) leadsOn(v *snapshot.Verified) (restored bool, err error) {
	next, ok := v.TrustBundle()
	was := b.Bundle()
	if !ok || was == nil {
		return false, nil
	}
	known, _ := was.TrustBundle()
	seen, head := headMark(was.Header(), known), headMark(v.Header(), next)
	if seen == head {
		return false, nil
	}
	trail := history.NewTrail(seen, signersOfBundle(known))
	for _, raw := range b.Links {
		if err := trail.Add(raw); err != nil {
			return false, offTrail(err)
		}
	}
	restored, err = trail.LeadsTo(head)
	if err != nil {
		return false, offTrail(err)
	}
	return restored, nil
}

func headMark(h snapshot.Header, b snapshot.TrustBundle) history.Mark {
	return history.Mark{AuthorityEpoch: h.AuthorityEpoch, Index: b.Head.Index, Hash: history.Hash(b.Head.Hash)}
}

func signersOfBundle(b snapshot.TrustBundle) manifest.Signers {
	out := manifest.Signers{Threshold: b.Signers.Threshold}
	for _, s := range b.Signers.Keys {
		key, err := manifest.NewKey(s.Key)
		if err != nil {
			continue // nobody signs with it
		}
		out.Keys = append(out.Keys, manifest.Signer{Name: s.Name, Key: key})
	}
	return out
}

// trailError is a refusal for want of links: they may follow.
type trailError struct {
	*snapshot.RejectedError
	cause error
}

func (e *trailError) Unwrap() []error { return []error{e.RejectedError, e.cause} }

func offTrail(err error) error {
	return &trailError{&snapshot.RejectedError{Scope: snapshot.ScopeTrustBundle, Check: 8,
		Reason: internalsnapshot.ReasonHistory, Detail: err.Error()}, err}
}
