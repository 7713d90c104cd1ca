package durable

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/signed"
)

// A ledger's file is frames, one for each time that it was synced. All numbers are big
// endian and as wide as they are here, so that there is one spelling of each.
//
//	"FLog"   4 bytes
//	length   4 bytes   of the body
//	check   16 bytes   the first of SHA-256(id, the 8 bytes before)
//	body               records
//	chain   32 bytes   SHA-256(chain of the frame before, the frame up to here)
//	'\n'     1 byte
//
// The first frame has the header alone, the id and the chain before it are zero, and the
// last of those that the file was made with ends in a record that says so. A record is a
// letter and its fields; a text has its length, 2 bytes, before it:
//
//	'l'  version, cluster, id 16, since 8                  the header
//	'd'  domain, ownership 8, holder                       a promise
//	'h'  holder, epoch 8, incarnation 16, floor 8          the newest process of a holder
//	'p'  holder, resource, domain, epoch 8, sequence 8, digest 16   a mark
//	'f'  resource                                          it is forgotten
//	'm'                                                    the file was made
//
// A power cut while a frame is appended leaves a torn one at the end: it is cut, or some
// of its sectors were never written and read as zeros. It was not acknowledged, and is
// dropped. A frame that is there and in which a bit has changed is something else, and
// the file is refused: the frame may have been acknowledged. To tell the two apart no
// sector's share of a frame may be all zeros as it is written: a frame begins and ends with
// bytes that are not zero, and no run of zeros in a body is as long as a sector.
const (
	ledgerVersion = "fealty-ledger v1"
	frameBegin    = "FLog"
	frameEnd      = '\n'
	sector        = 512 // the least that a disk writes as one

	headBytes = len(frameBegin) + 4 + 16
	tailBytes = sha256.Size + 1

	// maxBody bounds the records of one frame, in bytes. A frame takes another change as long
	// as it has fewer than fullBody.
	maxBody  = fullBody + 4<<10
	fullBody = 1 << 20
)

const (
	recordHeader  = 'l'
	recordPromise = 'd'
	recordHolder  = 'h'
	recordPair    = 'p'
	recordForget  = 'f'
	recordMade    = 'm'
)

// ledgerHeader is whose file it is.
type ledgerHeader struct {
	cluster string
	id      [16]byte // random: no frame of another file passes for one of this
	since   uint64   // the lowest authority epoch whose statements count; 0: all
}

// frames makes frames of a file, one after the other.
type frames struct {
	id    [16]byte
	chain [sha256.Size]byte
	buf   []byte // the frame being made
}

func (f *frames) begin() { f.buf = append(f.buf[:0], make([]byte, headBytes)...) }

// body returns how many bytes of records there are in the frame being made.
func (f *frames) body() int { return len(f.buf) - headBytes }

// end returns the frame. It is valid until the next begin.
func (f *frames) end() []byte {
	copy(f.buf, frameBegin)
	binary.BigEndian.PutUint32(f.buf[4:], uint32(f.body()))
	check := headCheck(&f.id, f.buf)
	copy(f.buf[8:], check[:])
	f.chain = chained(&f.chain, f.buf)
	f.buf = append(append(f.buf, f.chain[:]...), frameEnd)
	return f.buf
}

func headCheck(id *[16]byte, head []byte) [16]byte {
	var b [16 + 8]byte
	copy(b[copy(b[:], id[:]):], head[:8])
	sum := sha256.Sum256(b[:])
	return [16]byte(sum[:])
}

func chained(before *[sha256.Size]byte, frame []byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	h.Write(before[:])
	h.Write(frame)
	h.Sum(sum[:0])
	return sum
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func (f *frames) header(h ledgerHeader) {
	f.buf = appendText(appendText(append(f.buf, recordHeader), ledgerVersion), h.cluster)
	f.buf = binary.BigEndian.AppendUint64(append(f.buf, h.id[:]...), h.since)
}

// change appends the records of a change.
func (f *frames) change(c fence.Change) {
	be := binary.BigEndian
	b := f.buf
	if c.Assigned.Ownership != 0 {
		b = be.AppendUint64(appendText(append(b, recordPromise), c.Domain), c.Assigned.Ownership)
		f.buf = appendText(b, c.Assigned.Holder)
		return
	}
	if c.Process.Epoch != 0 {
		b = be.AppendUint64(appendText(append(b, recordHolder), c.Pair.Holder), uint64(c.Process.Epoch))
		b = be.AppendUint64(append(b, c.Process.Incarnation[:]...), c.Process.Floor)
	}
	if c.Mark.Sequence != 0 {
		b = appendText(appendText(append(b, recordPair), c.Pair.Holder), c.Pair.Resource)
		b = be.AppendUint64(appendText(b, c.Domain), uint64(c.Mark.Epoch))
		b = append(be.AppendUint64(b, c.Mark.Sequence), c.Mark.Digest[:]...)
	}
	f.buf = b
}

func (f *frames) forget(resource string) {
	f.buf = appendText(append(f.buf, recordForget), resource)
}

// The bytes that a record of each kind takes.
func promiseBytes(domain, holder string) int64 {
	return int64(1 + 2 + len(domain) + 8 + 2 + len(holder))
}
func holderBytes(holder string) int64 { return int64(1 + 2 + len(holder) + 8 + 16 + 8) }
func pairBytes(holder, resource, domain string) int64 {
	return int64(1 + 2 + len(holder) + 2 + len(resource) + 2 + len(domain) + 8 + 8 + 16)
}

// written is a file that was just written anew.
type written struct {
	frames *frames // that go on from there
	size   int64   // of the file
	live   int64   // bytes of its changes
}

// writeLedger writes what memory holds, as a file begins. Nobody changes memory meanwhile.
func writeLedger(to io.Writer, h ledgerHeader, memory *fence.Ledger) (written, error) {
	_, _ = rand.Read(h.id[:]) // never fails (crypto/rand)
	w := bufio.NewWriterSize(to, 64<<10)
	f := new(frames)
	is := written{frames: f}
	write := func() error {
		n, err := w.Write(f.end())
		is.size += int64(n)
		f.begin()
		return err
	}
	f.begin()
	f.header(h)
	if err := write(); err != nil {
		return is, err
	}
	f.id = h.id
	for c := range memory.All() {
		before := f.body()
		f.change(c)
		is.live += int64(f.body() - before)
		if f.body() >= fullBody {
			if err := write(); err != nil {
				return is, err
			}
		}
	}
	f.buf = append(f.buf, recordMade)
	if err := write(); err != nil {
		return is, err
	}
	return is, w.Flush()
}

// damage is why a file is refused.
type damage struct {
	at  int64 // the byte of the file at which the frame begins
	why string
}

func (d *damage) Error() string { return fmt.Sprintf("its frame at byte %d has %s", d.at, d.why) }

// errVersion is matched by a file that another release wrote: it is whole, and not read.
var errVersion = errors.New("written by another release")

// readLedger replays a file into memory. An error that is no [*damage] is of the reading,
// or matches errVersion, and the file may be whole.
func readLedger(from io.Reader, memory *fence.Ledger) (ledgerHeader, error) {
	r := &frameReader{from: bufio.NewReaderSize(from, 64<<10)}
	body, err := r.next()
	if errors.Is(err, io.EOF) {
		return ledgerHeader{}, &damage{0, "no header"}
	}
	if err != nil {
		return ledgerHeader{}, err
	}
	h, err := decodeHeader(body)
	if err != nil {
		return ledgerHeader{}, err
	}
	r.id = h.id
	names := make(map[string]string) // one copy of each holder and domain
	for made := false; ; {
		at := r.at
		body, err := r.next()
		if errors.Is(err, io.EOF) && !made {
			return h, &damage{at, "an end before all that the file was made with"}
		}
		if errors.Is(err, io.EOF) {
			return h, nil
		}
		if err != nil {
			return h, err
		}
		d := decoder{rest: body, names: names}
		for len(d.rest) > 0 && d.fault == "" {
			d.record(memory, &made)
		}
		if d.fault != "" {
			return h, &damage{at, d.fault}
		}
	}
}

// frameReader returns the bodies of frames, one after the other.
type frameReader struct {
	frames
	from *bufio.Reader
	at   int64 // where the next frame begins
}

// next returns the next body, valid until the following call. At the end of the file, a
// torn frame there included, it is io.EOF.
func (r *frameReader) next() ([]byte, error) {
	head, err := r.read(headBytes)
	if err != nil || len(head) == 0 {
		return nil, cmpErr(err, io.EOF)
	}
	length, whole := r.length(head)
	if whole {
		if _, err = r.read(length + tailBytes); err != nil {
			return nil, err
		}
		if frame := r.buf; len(frame) == headBytes+length+tailBytes {
			chain := chained(&r.chain, frame[:headBytes+length])
			if bytes.Equal(chain[:], frame[headBytes+length:len(frame)-1]) && frame[len(frame)-1] == frameEnd {
				r.chain, r.at, r.buf = chain, r.at+int64(len(frame)), frame[:0]
				return frame[headBytes : headBytes+length], nil
			}
		}
	}
	// As much as the longest frame is read, and a byte to see that there is more.
	rest, err := io.ReadAll(io.LimitReader(r.from, int64(headBytes+maxBody+tailBytes+1-len(r.buf))))
	if err != nil {
		return nil, err
	}
	r.buf = append(r.buf, rest...)
	if why := r.untorn(length, whole); why != "" {
		return nil, &damage{r.at, why}
	}
	return nil, io.EOF
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// read appends the next n bytes, or those that are left, to the frame being read, and
// returns all of it.
func (r *frameReader) read(n int) ([]byte, error) {
	before := len(r.buf)
	r.buf = append(r.buf, make([]byte, n)...)
	m, err := io.ReadFull(r.from, r.buf[before:])
	r.buf = r.buf[:before+m]
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return r.buf, err
}

// length returns how long the body of a frame is, if this is the head of the next one.
func (r *frameReader) length(head []byte) (int, bool) {
	if len(head) < headBytes || string(head[:4]) != frameBegin {
		return 0, false
	}
	check := headCheck(&r.id, head)
	n := binary.BigEndian.Uint32(head[4:])
	return int(n), bytes.Equal(check[:], head[8:headBytes]) && n > 0 && n <= maxBody
}

// untorn says why what is left of the file, which is no frame, is not one that was torn
// while it was written; "" if it is.
func (r *frameReader) untorn(length int, whole bool) string {
	rest := r.buf
	if r.at == 0 {
		return "no header" // the file was renamed when it was whole
	}
	if whole {
		total := headBytes + length + tailBytes
		switch {
		case len(rest) > total:
			return "another checksum, and is not the last"
		case len(rest) < total, r.unwritten(total), rest[total-1] == 0:
			return ""
		}
		return "another checksum"
	}
	switch {
	case len(rest) > headBytes+maxBody+tailBytes, r.follows():
		return "no head, and is not the last"
	case len(rest) < headBytes && r.begins(rest):
		return ""
	case r.unwritten(min(headBytes, len(rest))), len(bytes.TrimRight(rest, "\x00")) < headBytes && r.begins(rest):
		return ""
	}
	return "no head"
}

// unwritten reports whether the frame's share of a sector that its first n bytes reach
// into is all zeros.
func (r *frameReader) unwritten(n int) bool {
	for from := 0; from < n; {
		to := min(len(r.buf), from+sector-int((r.at+int64(from))%sector))
		if len(bytes.Trim(r.buf[from:to], "\x00")) == 0 {
			return true
		}
		from = to
	}
	return false
}

// begins reports whether this is how the head of the next frame can begin, up to where it
// is cut, or goes on with zeros.
func (r *frameReader) begins(rest []byte) bool {
	written := bytes.TrimRight(rest[:min(len(rest), headBytes)], "\x00")
	if len(written) <= len(frameBegin) {
		return bytes.HasPrefix([]byte(frameBegin), written)
	}
	if string(written[:4]) != frameBegin {
		return false
	}
	if len(written) < 8 {
		return true
	}
	check := headCheck(&r.id, written)
	return bytes.HasPrefix(check[:], written[8:])
}

// follows reports whether a later frame stands in what is left: the one before it was
// acknowledged then, whatever it looks like now.
func (r *frameReader) follows() bool {
	for from := 1; ; {
		i := bytes.Index(r.buf[from:], []byte(frameBegin))
		if i < 0 || len(r.buf)-from-i < headBytes {
			return false
		}
		head := r.buf[from+i:][:headBytes]
		if check := headCheck(&r.id, head); bytes.Equal(check[:], head[8:]) {
			return true
		}
		from += i + 1
	}
}

// decoder reads records. They passed their checksum, so that a fault in one is of its
// writer.
type decoder struct {
	rest  []byte
	names map[string]string
	fault string
}

func decodeHeader(body []byte) (ledgerHeader, error) {
	d := decoder{rest: body}
	kind, version := d.bytes(1), d.text(64, false)
	if d.fault == "" && kind[0] == recordHeader && version != ledgerVersion {
		return ledgerHeader{}, fmt.Errorf("its header says %q, and this release reads %q: %w", version, ledgerVersion, errVersion)
	}
	h := ledgerHeader{cluster: d.text(signed.MaxName, true)}
	copy(h.id[:], d.bytes(len(h.id)))
	h.since = d.number()
	if d.fault != "" || kind[0] != recordHeader || len(d.rest) > 0 {
		return ledgerHeader{}, &damage{0, "no header"}
	}
	return h, nil
}

// record reads one record, and notes it in memory.
func (d *decoder) record(memory *fence.Ledger, made *bool) {
	var c fence.Change
	switch kind := d.bytes(1)[0]; kind {
	case recordPromise:
		c.Domain = d.interned(false)
		c.Assigned.Ownership = d.counted("an ownership of 0")
		c.Assigned.Holder = d.interned(true)
	case recordHolder:
		c.Pair.Holder = d.interned(false)
		c.Process.Epoch = d.epoch()
		copy(c.Process.Incarnation[:], d.bytes(len(c.Process.Incarnation)))
		c.Process.Floor = d.number()
		if c.Process.Incarnation.IsZero() {
			d.refuse("no incarnation")
		}
	case recordPair:
		c.Pair.Holder = d.interned(false)
		c.Pair.Resource = d.text(signed.MaxName, false)
		c.Domain = d.interned(true)
		c.Mark.Epoch = d.epoch()
		c.Mark.Sequence = d.counted("a sequence of 0")
		copy(c.Mark.Digest[:], d.bytes(len(c.Mark.Digest)))
	case recordForget:
		if resource := d.text(signed.MaxName, false); d.fault == "" {
			memory.Forget(resource)
		}
		return
	case recordMade:
		*made = true
		return
	default:
		d.refuse(fmt.Sprintf("a record of kind %q", kind))
	}
	if d.fault == "" {
		memory.Set(c)
	}
}

func (d *decoder) refuse(why string) {
	if d.fault == "" {
		d.fault = why
	}
}

// bytes returns the next n bytes; zeros, and a fault, if there are fewer.
func (d *decoder) bytes(n int) []byte {
	if len(d.rest) < n {
		d.refuse("a record that is cut")
		return make([]byte, n)
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) number() uint64 { return binary.BigEndian.Uint64(d.bytes(8)) }

func (d *decoder) counted(none string) uint64 {
	n := d.number()
	if n == 0 {
		d.refuse(none)
	}
	return n
}

func (d *decoder) epoch() fence.Epoch {
	e := fence.Epoch(d.number())
	if e.Life() == 0 {
		d.refuse("an epoch of life 0")
	}
	return e
}

func (d *decoder) name(limit int, mayBeEmpty bool) []byte {
	n := int(binary.BigEndian.Uint16(d.bytes(2)))
	if n > limit || n == 0 && !mayBeEmpty {
		d.refuse(fmt.Sprintf("a name of %d bytes", n))
		return nil
	}
	b := d.bytes(n)
	for _, c := range b {
		if c < ' ' || c > '~' {
			d.refuse("a name that is not printable ASCII")
		}
	}
	return b
}

func (d *decoder) text(limit int, mayBeEmpty bool) string { return string(d.name(limit, mayBeEmpty)) }

// interned is text of a name that stands in many records.
func (d *decoder) interned(mayBeEmpty bool) string {
	b := d.name(signed.MaxName, mayBeEmpty)
	if s, ok := d.names[string(b)]; ok {
		return s
	}
	s := string(b)
	d.names[s] = s
	return s
}
