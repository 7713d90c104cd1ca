package publication

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
)

// A header says in some 600 bytes what hundreds of others say too, and its record repeats half of that. Packed, it is
// a third of what it was: what all headers have in common is a text that both sides know, and is referred to. The bytes
// that were signed come out again, and nothing makes them anew.

// packedForm is the first byte of what is packed with [packedText].
const packedForm = 1

// packedText is what headers have in common, the most frequent last. It is part of the stored form: with another
// text, nothing that was packed is read any more.
const packedText = `"storage_directory""degraded_mode_policy""qos_policy""route_policy""peer_directory"` +
	`"base_config_version":"base_content_hash":"group:["ingress""egress""storage""thin"` +
	`{"authority_epoch":"1","cluster_id":"","config_version":"","content_hash":"","content_size":,` +
	`"expires_at":"20-0-0T00:00:00Z","issued_at":"202-0-1T0:0:0Z","organization_ids":[],"refresh_after":"202-1-1T0:0:0Z",` +
	`"roles":["core"],"schema_version":1,"scope_ids":[],"scope_type":"service_assignment","snapshot_id":"01a","subject":` +
	`"node:spiffe://","scope_type":"node_runtime","snapshot_id":"01a","subject":"node:spiffe:///data/#","valid_from":"202"}` +
	"\n" + `{"header":null,"content":"","subject":"node:spiffe:///data/#","group":"","authority_epoch":1,"config_version":,` +
	`"issued_at":"202Z","base_version":,"base":""}`

// maxPacked bounds what comes out: a header, and what its maker needs to know of it.
const maxPacked = internalsnapshot.MaxHeader + 4<<10

// errPacked: a value is not what a packer made.
var errPacked = errors.New("it is packed in a form that this release does not read, or altered")

// packer packs records of headers, one after the other.
type packer struct {
	out bytes.Buffer
	w   *flate.Writer // nil before the first
}

// pack returns h in the form that [unpacker.unpack] reads.
func (x *packer) pack(h HeaderRecord) ([]byte, error) {
	header := h.Header
	if bytes.ContainsRune(header, '\n') || len(header) == 0 {
		return nil, errors.New("a header in its canonical form has no line break")
	}
	h.Header = nil
	rest, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	x.out.Reset()
	x.out.WriteByte(packedForm)
	if x.w == nil {
		if x.w, err = flate.NewWriterDict(&x.out, flate.BestCompression, []byte(packedText)); err != nil {
			return nil, err
		}
	} else {
		x.w.Reset(&x.out)
	}
	if _, err := x.w.Write(slices.Concat(header, []byte("\n"), rest)); err != nil {
		return nil, err
	}
	if err := x.w.Close(); err != nil {
		return nil, err
	}
	return bytes.Clone(x.out.Bytes()), nil
}

// unpacker reads what packers made, one after the other.
type unpacker struct {
	r io.ReadCloser // nil before the first
}

// unpack returns the record of a header. Errors match errPacked.
func (x *unpacker) unpack(raw []byte) (h HeaderRecord, err error) {
	if len(raw) == 0 || raw[0] != packedForm {
		return h, errPacked
	}
	in := bytes.NewReader(raw[1:])
	if x.r == nil {
		x.r = flate.NewReaderDict(in, []byte(packedText))
	} else if err := x.r.(flate.Resetter).Reset(in, []byte(packedText)); err != nil {
		return h, fmt.Errorf("%w: %w", errPacked, err)
	}
	plain, err := io.ReadAll(io.LimitReader(x.r, maxPacked+1))
	if err != nil {
		return h, fmt.Errorf("%w: %w", errPacked, err)
	}
	header, rest, ok := bytes.Cut(plain, []byte("\n"))
	if !ok || in.Len() > 0 || len(plain) > maxPacked || len(header) == 0 || len(header) > internalsnapshot.MaxHeader {
		return h, errPacked
	}
	if err := json.Unmarshal(rest, &h); err != nil {
		return HeaderRecord{}, fmt.Errorf("%w: %w", errPacked, err)
	}
	h.Header = bytes.Clone(header)
	return h, nil
}
