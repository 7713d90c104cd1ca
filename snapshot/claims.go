package snapshot

import (
	"fmt"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// Claims are what an envelope says of itself. Nothing of it is verified: it is for
// people who look at a snapshot, and to choose what to verify it with. Never act on
// it; see Verify.
type Claims struct {
	Header Header
	// Record is nil for what is signed by itself.
	Record *Record
}

// Claims reads the header and the record of s without verifying them. Errors
// match ErrMalformed: what cannot be read verifies neither.
func (s *Signed) Claims() (Claims, error) {
	var c Claims
	if msg := s.fault(); msg != "" {
		return Claims{}, fmt.Errorf("snapshot: an envelope with %s: %w", msg, ErrMalformed)
	}
	if _, err := decode(string(s.Header), &c.Header); err != nil {
		return Claims{}, fmt.Errorf("snapshot: header: %w: %w", err, ErrMalformed)
	}
	if s.Publication != nil {
		r, err := s.Publication.ReadRecord()
		if err != nil {
			return Claims{}, err
		}
		c.Record = &r
	}
	return c, nil
}

// ReadRecord reads a publication record without verifying it, as people who look at it want to see it: never act on it.
func (p *Publication) ReadRecord() (Record, error) {
	var r Record
	if n := len(p.Record); n > snapshot.MaxRecord {
		return Record{}, fmt.Errorf("snapshot: a record of %d bytes, limit %d: %w", n, snapshot.MaxRecord, ErrMalformed)
	}
	if _, err := decode(string(p.Record), &r); err != nil {
		return Record{}, fmt.Errorf("snapshot: publication record: %w: %w", err, ErrMalformed)
	}
	return r, nil
}
