package mesh_test

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/mesh"
)

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// frame is a frame of HTTP/2 with a payload of so many bytes.
func frame(kind, flags byte, stream uint32, payload int) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(payload)<<8|uint32(kind))
	b = append(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, make([]byte, payload)...)
}

// What a client sends is counted by call, and a call that the server ends is found.
func TestFramesAreCountedByCall(t *testing.T) {
	t.Parallel()
	sent := slices.Concat([]byte(preface), frame(4, 0, 0, 18), frame(1, 4, 1, 100), frame(0, 0, 1, 1000), frame(1, 4, 3, 50),
		frame(9, 4, 3, 7), frame(8, 0, 0, 4), frame(0, 1, 3, 0), frame(3, 0, 1, 4), frame(0, 0, 1<<31|5, 10))
	c := mesh.FrameCounter{Held: make(map[uint32]int64)}
	held, resets := c.Read(sent)
	if want := map[uint32]int64{1: 9 + 100 + 9 + 1000, 3: 9 + 50 + 9 + 7 + 9, 5: 9 + 10}; !maps.Equal(c.Held, want) || resets != 1 {
		t.Errorf("%v and %d resets, want %v and 1", c.Held, resets, want)
	}
	if want := int64(1118 + 84 + 19); held != want {
		t.Errorf("%d bytes in all, want %d", held, want)
	}
	var e mesh.EndFinder
	var over []uint32
	e.Write(slices.Concat(frame(4, 0, 0, 6), frame(4, 1, 0, 0), frame(1, 4, 1, 20), frame(0, 0, 1, 300), frame(8, 1, 7, 4), frame(1, 5, 1, 30),
		frame(3, 0, 3, 4), frame(0, 1, 5, 0)), func(stream uint32) { over = append(over, stream) })
	if want := []uint32{1, 3, 5}; !slices.Equal(over, want) {
		t.Errorf("ended %v, want %v", over, want)
	}
}

// However what a client sends is cut into reads, it is counted alike, and no byte twice.
func FuzzFrames(f *testing.F) {
	f.Add([]byte(preface+string(frame(1, 4, 1, 5))+string(frame(0, 1, 1, 3))+string(frame(3, 0, 1, 4))), uint16(7))
	f.Add([]byte(strings.Repeat("\x00", 40)), uint16(1))
	f.Fuzz(func(t *testing.T, sent []byte, cut uint16) {
		size := 1 + int(cut)%(len(sent)+1)
		whole, parts := mesh.FrameCounter{Held: make(map[uint32]int64)}, mesh.FrameCounter{Held: make(map[uint32]int64)}
		held, resets := whole.Read(sent)
		var heldInParts int64
		var resetsInParts int
		var ends, endsInParts []uint32
		var end, endInParts mesh.EndFinder
		end.Write(sent, func(stream uint32) { ends = append(ends, stream) })
		for p := range slices.Chunk(sent, size) {
			h, r := parts.Read(p)
			heldInParts, resetsInParts = heldInParts+h, resetsInParts+r
			endInParts.Write(p, func(stream uint32) { endsInParts = append(endsInParts, stream) })
		}
		if held != heldInParts || resets != resetsInParts || !maps.Equal(whole.Held, parts.Held) || !slices.Equal(ends, endsInParts) {
			t.Fatalf("whole %d, %d, %v, %v, in parts of %d %d, %d, %v, %v", held, resets, whole.Held, ends, size, heldInParts, resetsInParts,
				parts.Held, endsInParts)
		}
		var sum int64
		for _, n := range whole.Held {
			sum += n
		}
		if sum != held || held > int64(len(sent)) {
			t.Fatalf("%d bytes, %d by call, of %d", held, sum, len(sent))
		}
	})
}
