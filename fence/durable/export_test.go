// Inside the package: tests cut the power of a disk in memory, and the type of that is
// internal, so that no public name may show it.
package durable

import (
	"bufio"
	"bytes"
	"io"

	"github.com/fealty-io/fealty/fence"
	files "github.com/fealty-io/fealty/internal/platform/durable"
)

// Functions that end in On are on a disk of a test, OpenTermOn with true is [EnrolTerm];
// EncodeEpoch makes a file of a life that takes long to reach.
// OpenLedgerOn, EnrolLedgerOn and MendLedgerOn are as their namesakes.
var (
	OpenEpochOn  = openEpoch
	EnrolEpochOn = enrolEpoch
	OpenTermOn   = openTerm
	EncodeEpoch  = encodeEpoch
)

// Mending returns options by which every way to open an epoch is [MendEpoch].
func Mending(o EpochOptions) EpochOptions {
	o.mend = true
	return o
}

func OpenLedgerOn(disk files.FS, dir string, o fence.LedgerOptions) (*Ledger, error) {
	return openLedger(disk, dir, o, opening{})
}

func EnrolLedgerOn(disk files.FS, dir string, o fence.LedgerOptions) (*Ledger, error) {
	return openLedger(disk, dir, o, opening{enrol: true})
}

func MendLedgerOn(disk files.FS, dir string, o fence.LedgerOptions, since uint64) (*Ledger, error) {
	return openLedger(disk, dir, o, opening{mend: true, since: since})
}

// ReadLedger replays the bytes of a file, for a fuzz target.
func ReadLedger(from io.Reader, memory *fence.Ledger) error {
	_, err := readLedger(from, memory)
	return err
}

// Memory is what a ledger shows: it is compared, and not changed.
func Memory(l *Ledger) *fence.Ledger { return l.memory }

// Needed is what a file of what it shows would have of changes, in bytes.
func Needed(l *Ledger) int64 {
	is, _ := writeLedger(io.Discard, l.header, l.memory)
	return is.live
}

// SetQueue bounds the calls that wait, and SetSlack what a file has beside twice what it
// needs.
func SetQueue(l *Ledger, n int)   { l.queue = n }
func SetSlack(l *Ledger, n int64) { l.slack = n }

// WithFrame appends a frame with this body, and right checksums, to a file of whole frames;
// to no file the body of a header.
func WithFrame(file, body []byte) []byte {
	r := &frameReader{from: bufio.NewReader(bytes.NewReader(file))}
	whole := 0
	for {
		b, err := r.next()
		if err != nil {
			break
		}
		if whole == 0 {
			h, err := decodeHeader(b)
			if err != nil {
				break
			}
			r.id = h.id
		}
		whole = int(r.at)
	}
	f := frames{id: r.id, chain: r.chain}
	f.begin()
	f.buf = append(f.buf, body...)
	return append(file[:whole:whole], f.end()...)
}
