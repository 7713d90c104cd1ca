package mesh

import "encoding/binary"

// HTTP/2 frames (RFC 9113 §4.1, §6) as far as somebody who counts them has to know.
const (
	prefaceBytes     = 24 // what a client sends before its first frame
	frameHeaderBytes = 9
	frameData        = 0x0
	frameHeaders     = 0x1
	frameReset       = 0x3
	frameContinued   = 0x9
	flagEndStream    = 0x1 // of data and headers
)

// frames reads the headers of the frames that go one way on a connection.
type frames struct {
	skip int // bytes of the payload under way that are yet to come
	head [frameHeaderBytes]byte
	have int // of head
}

// payload returns how many bytes of p are of the payload that is under way, if one is.
func (f *frames) payload(p []byte) int {
	n := min(f.skip, len(p))
	f.skip -= n
	return n
}

// header takes bytes of the next frame's header from p, and reports whether it is whole.
func (f *frames) header(p []byte) (n int, whole bool) {
	n = copy(f.head[f.have:], p)
	if f.have += n; f.have < frameHeaderBytes {
		return n, false
	}
	f.have, f.skip = 0, int(binary.BigEndian.Uint32(f.head[:4])>>8)
	return n, true
}

func (f *frames) kind() byte     { return f.head[3] }
func (f *frames) flags() byte    { return f.head[4] }
func (f *frames) stream() uint32 { return binary.BigEndian.Uint32(f.head[5:]) & (1<<31 - 1) }

// FrameCounter counts what a client sends on one connection. The zero value
// stands before the preface.
type FrameCounter struct {
	// Held has what Read counts added, by the stream that it is of. Nil: nobody wants to know.
	Held map[uint32]int64

	begun  bool
	frames frames
	counts bool // the payload under way is one that a server keeps
}

// Read goes on with p. held is how many bytes of it are headers and data of calls, which
// a server keeps until somebody read them; resets is how many calls were given up.
func (f *FrameCounter) Read(p []byte) (held int64, resets int) {
	if !f.begun {
		f.begun, f.frames.skip = true, prefaceBytes
	}
	count := func(n int) {
		held += int64(n)
		if f.Held != nil && n > 0 {
			f.Held[f.frames.stream()] += int64(n)
		}
	}
	for len(p) > 0 {
		if f.frames.skip > 0 {
			n := f.frames.payload(p)
			if f.counts {
				count(n)
			}
			p = p[n:]
			continue
		}
		n, whole := f.frames.header(p)
		if p = p[n:]; !whole {
			continue
		}
		switch f.frames.kind() {
		case frameData, frameHeaders, frameContinued:
			f.counts = true
			count(frameHeaderBytes)
		case frameReset:
			f.counts, resets = false, resets+1
		default:
			f.counts = false
		}
	}
	return held, resets
}

// An EndFinder finds out which calls a server has ended, in what it sends on one connection. The zero value stands at
// its begin.
type EndFinder struct{ frames frames }

// Write goes on with p, and calls ended with each stream of which the server says in p that it is over: with its last
// frame, or by giving it up. Of a call that the client gave up it says nothing.
func (f *EndFinder) Write(p []byte, ended func(stream uint32)) {
	for len(p) > 0 {
		if f.frames.skip > 0 {
			p = p[f.frames.payload(p):]
			continue
		}
		n, whole := f.frames.header(p)
		if p = p[n:]; !whole {
			continue
		}
		switch kind := f.frames.kind(); {
		case kind == frameReset, (kind == frameHeaders || kind == frameData) && f.frames.flags()&flagEndStream != 0:
			ended(f.frames.stream())
		}
	}
}
