package execute

import (
	"bytes"
	"errors"
	"io/fs"

	"github.com/fealty-io/fealty/internal/platform/durable"
)

// place is up to where a journal is on disk for good: a segment, and how many bytes of it. The
// text behind it is of a write that failed, and may be replaced.
type place struct {
	segment uint64
	bytes   int
}

// Reader reads what is in a journal, in its order, while the journal is written to. It belongs to
// one goroutine, which may be another than that of the journal.
type Reader struct {
	files durable.FS
	dir   string
	until func() place

	segment uint64 // that it reads; 0: none yet
	lines   int    // of it that were read
}

// Reader returns a reader that begins with the oldest record. It reads nothing that a cycle of
// [Journal.Append] did not say is on disk.
func (j *Journal) Reader() *Reader {
	kept := j.kept
	return &Reader{files: j.Files, dir: j.Dir, until: func() place { return *kept.Load() }}
}

// Rewind has r begin anew with the oldest record.
func (r *Reader) Rewind() { r.segment, r.lines = 0, 0 }

// Next returns the records after those that it returned before, in their order: at most records of
// them, and at most size bytes but for the first. None says that there are no more yet. Records that
// were dropped before they were read are left out: the next one shows it, by its chain and number.
//
// An error matches [ErrBroken] where something is no record; the next call goes on after that segment. It is
// of the disk otherwise, and the next call tries again.
func (r *Reader) Next(records, size int) ([]Record, error) {
	numbers, err := segments(r.files, r.dir)
	if err != nil {
		return nil, err
	}
	until := r.until() // after the list: what is there then was written by somebody who is done
	for _, n := range numbers {
		if n < r.segment || n > until.segment {
			continue
		}
		if n > r.segment {
			r.segment, r.lines = n, 0
		}
		data, err := r.files.ReadFile(segmentPath(r.dir, n), maxSegmentBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was dropped meanwhile
		}
		if err != nil {
			return nil, err
		}
		if n == until.segment {
			data = data[:min(until.bytes, len(data))]
		}
		out, err := r.take(data, records, size)
		if err != nil {
			r.segment, r.lines = n+1, 0
			return nil, err
		}
		if len(out) > 0 {
			r.lines += len(out)
			return out, nil
		}
	}
	return nil, nil
}

// take returns the records of a segment after those that were read.
func (r *Reader) take(data []byte, records, size int) (out []Record, err error) {
	line := 0
	for text := range bytes.Lines(data) {
		if line++; line <= r.lines {
			continue
		}
		if len(out) == records {
			break
		}
		record, err := parse(r.segment, line, text)
		if err != nil && len(out) > 0 {
			break // the next call tells of it
		}
		if err != nil {
			return nil, err
		}
		if size -= len(record.Value); len(out) > 0 && size < 0 {
			break
		}
		out = append(out, record)
	}
	return out, nil
}
