package snapshot

import (
	"fmt"
)

// Claims are what an envelope says of itself. Nothing of it is verified: it is for
// people who look at a snapshot, and to choose what to verify it with. Never act on
// it; see Verify.
type Claims struct {
	Header Header
	// Record is nil for what is signed by itself.
	Record *Record
}

// ReadClaims reads the header and the record of s without verifying them. Errors
// match ErrMalformed: what cannot be read verifies neither.
func ReadClaims(s *Signed) (Claims, error) {
	var c Claims
	if msg := s.fault(); msg != "" {
		return Claims{}, fmt.Errorf("snapshot: an envelope with %s: %w", msg, ErrMalformed)
	}
	if _, err := decode(string(s.Header), &c.Header); err != nil {
		return Claims{}, fmt.Errorf("snapshot: header: %w: %w", err, ErrMalformed)
	}
	if s.Publication != nil {
		r, err := ReadRecord(s.Publication)
		if err != nil {
			return Claims{}, err
		}
		c.Record = &r
	}
	return c, nil
}

// ReadRecord reads a publication record without verifying it, as ReadClaims does.
func ReadRecord(p *Publication) (Record, error) {
	var r Record
	if n := len(p.Record); n > MaxRecord {
		return Record{}, fmt.Errorf("snapshot: a record of %d bytes, limit %d: %w", n, MaxRecord, ErrMalformed)
	}
	if _, err := decode(string(p.Record), &r); err != nil {
		return Record{}, fmt.Errorf("snapshot: publication record: %w: %w", err, ErrMalformed)
	}
	return r, nil
}

// ReadRootClaims reads a root statement without verifying it: to know for which
// cluster and with which root to call VerifyRoot. Errors match ErrMalformed.
func ReadRootClaims(r *SignedRoot) (RootStatement, error) {
	var s RootStatement
	if r == nil || len(r.Statement) > MaxRecord {
		return RootStatement{}, fmt.Errorf("snapshot: no root statement, or one above its limit: %w", ErrMalformed)
	}
	if _, err := decode(string(r.Statement), &s); err != nil {
		return RootStatement{}, fmt.Errorf("snapshot: root statement: %w: %w", err, ErrMalformed)
	}
	return s, nil
}

// Rule is one step of Verify.
type Rule struct {
	Check  int    // the number in a RejectedError; 0 for limits
	Name   string // what has to hold
	Source string // where that is written
}

// Rules returns the steps of Verify in the order in which they are taken. The first
// that does not hold refuses a snapshot, and the later ones are not taken.
func Rules() []Rule {
	out := make([]Rule, len(checks))
	for i, c := range checks {
		out[i] = Rule{c.number, c.rule, c.source}
	}
	return out
}
