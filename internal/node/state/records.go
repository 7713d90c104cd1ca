package state

import (
	"cmp"
	"time"

	"github.com/fealty-io/fealty/snapshot"
)

// CompareRecords orders records by how new they are.
func CompareRecords(a, b snapshot.Record) int {
	return cmp.Or(cmp.Compare(a.AuthorityEpoch, b.AuthorityEpoch), cmp.Compare(a.Generation, b.Generation))
}

// NewestRecord returns the newest record over what is in use.
func (b *TrustState) NewestRecord() snapshot.Record {
	var newest snapshot.Record
	for _, h := range b.Active {
		if r, ok := h.Verified.Record(); ok && CompareRecords(r, newest) > 0 {
			newest = r
		}
	}
	return newest
}

// Uses reports whether what was checked is in use, under its record or a newer one.
func (b *TrustState) Uses(c *snapshot.Checked) bool {
	h := b.Active[c.Header().ScopeType]
	if h == nil || h.Verified.HeaderDigest() != c.HeaderDigest() {
		return false
	}
	is, _ := h.Verified.Record()
	came, _ := c.Record()
	return cmp.Or(cmp.Compare(is.AuthorityEpoch, came.AuthorityEpoch), cmp.Compare(is.Generation, came.Generation)) >= 0
}

// FreshSpan returns since when and until when what the node lives by is fresh: of
// what ends first. Both are zero if there is nothing.
func (b *TrustState) FreshSpan() (since, until time.Time) {
	for _, scope := range Scopes {
		h := b.Active[scope]
		if h == nil || scope == snapshot.ScopeNodeBootstrap && b.Terms() != h {
			continue
		}
		header := h.Verified.Header()
		from, to := header.IssuedAt, header.RefreshAfter
		if record, ok := h.Verified.Record(); ok {
			if record.FreshUntil.Before(to) {
				from, to = record.IssuedAt, record.FreshUntil
			}
		}
		if until.IsZero() || to.Before(until) {
			since, until = from, to
		}
	}
	return since, until
}
