package mesh

import "encoding/binary"

// HTTP/2 frames (RFC 9113 §4.1) as far as somebody who counts them has to know.
const (
	prefaceBytes     = 24 // what a client sends before its first frame
	frameHeaderBytes = 9
	frameData        = 0x0
	frameHeaders     = 0x1
	frameReset       = 0x3
	frameContinued   = 0x9
)

// FrameCounter counts what a client sends on one connection. The zero value
// stands before the preface.
type FrameCounter struct {
	begun  bool
	skip   int  // bytes of the preface or of the payload under way that are yet to come
	counts bool // the payload under way is one that a server keeps
	head   [frameHeaderBytes]byte
	have   int // of head
}

// Read goes on with p. held is how many bytes of it are headers and data of calls, which
// a server keeps until somebody read them; resets is how many calls were given up.
func (f *FrameCounter) Read(p []byte) (held int64, resets int) {
	if !f.begun {
		f.begun, f.skip = true, prefaceBytes
	}
	for len(p) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(p))
			if f.counts {
				held += int64(n)
			}
			f.skip, p = f.skip-n, p[n:]
			continue
		}
		n := copy(f.head[f.have:], p)
		f.have, p = f.have+n, p[n:]
		if f.have < frameHeaderBytes {
			continue
		}
		f.have, f.skip = 0, int(binary.BigEndian.Uint32(f.head[:4])>>8)
		switch f.head[3] {
		case frameData, frameHeaders, frameContinued:
			f.counts, held = true, held+frameHeaderBytes
		case frameReset:
			f.counts, resets = false, resets+1
		default:
			f.counts = false
		}
	}
	return held, resets
}
