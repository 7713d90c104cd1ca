package publication

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
)

// sampleHeader is the header of a member as it is signed.
func sampleHeader(i int) HeaderRecord {
	content, incarnation, group := hashOf(fmt.Append(nil, "content", i)), hashOf(fmt.Append(nil, "key", i)), hashOf([]byte("group"))
	subject := fmt.Sprintf("node:spiffe://prod.example/data/node-%05d#%s", i, incarnation)
	return HeaderRecord{
		Header: fmt.Appendf(nil, `{"authority_epoch":"1","cluster_id":"prod.example","config_version":"%d","content_hash":"%s",`+
			`"content_size":477,"expires_at":"2026-12-30T10:39:33Z","issued_at":"2026-11-30T10:39:33Z","organization_ids":["acme"],`+
			`"refresh_after":"2026-12-15T10:39:33Z","roles":["core"],"schema_version":1,"scope_ids":[],"scope_type":"node_runtime",`+
			`"snapshot_id":"01a22c09da88-%s","subject":"%s","valid_from":"2026-11-30T10:39:33Z"}`, 1000+i, content, content[:20], subject),
		Content: content, Subject: subject, Group: group, AuthorityEpoch: 1, ConfigVersion: uint64(1000 + i),
		IssuedAt: time.Date(2026, 11, 30, 10, 39, 33, 0, time.UTC),
	}
}

// packedSample is sampleHeader(7) as the first release that packs stored it.
const packedSample = "AcTTQU4zMQwF4Lv8/3rQczx24p6DC8Sxs6KiYsWGu6MWIQEzKpVAYp0okZ+/dxOr09Nj3OVzP54eco8YAXXLTMpgwyC3NNExQqBjXadZE2u1kamz" +
	"uQe6tmpttaw5MmBrBWpsmK61bqQWXagsjHvCge3AvKNVF6KvV3bM/uvjeHG4I/fyC8mnJ37q9ztupQxY9NaWvSSv0Pm4rjdG5/MFAOp/Sp5WAlNr" +
	"S2/s8GncRMKgZtF6Skxfe6Kwx2QpHi2MZ4HCaYf4Nt9r5n+BxV8N/t7EHsY6h2co0+xaEzI4O9iEDVIKDYtV+4SSeoX3mATppjqd6MYmn2t1A+aX1wAAAP//"

// What was packed is read as it was, the bytes that were signed among it, and takes a third of the place.
func TestPacked(t *testing.T) {
	t.Parallel()
	var x packer
	var y unpacker
	for i := range 10 {
		h := sampleHeader(i)
		if i%2 == 1 {
			h.Base, h.BaseVersion, h.Group = hashOf([]byte("base")), 17, ""
		}
		raw, err := x.pack(h)
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) > 360 {
			t.Errorf("a header of %d bytes takes %d", len(h.Header), len(raw))
		}
		if got, err := y.unpack(raw); err != nil || !reflect.DeepEqual(got, h) {
			t.Errorf("%+v is read as %+v (%v)", h, got, err)
		}
	}
	raw, err := base64.StdEncoding.DecodeString(packedSample)
	if got, err2 := y.unpack(raw); err != nil || err2 != nil || !reflect.DeepEqual(got, sampleHeader(7)) {
		now, _ := x.pack(sampleHeader(7))
		t.Errorf("what was stored before is read as %+v (%v, %v); now it is %s", got, err, err2, base64.StdEncoding.EncodeToString(now))
	}
}

// Whatever is in the place of what was packed is refused, and takes no more memory than a header may.
func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	var x packer
	var y unpacker
	good, err := x.pack(sampleHeader(1))
	if err != nil {
		t.Fatal(err)
	}
	large := sampleHeader(1)
	large.Header = bytes.Repeat([]byte("x"), internalsnapshot.MaxHeader+1)
	bomb, err := x.pack(large)
	if err != nil {
		t.Fatal(err)
	}
	long := sampleHeader(1)
	long.Subject = strings.Repeat("x", 1<<20)
	longer, err := x.pack(long)
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string][]byte{
		"nothing": nil, "a form": {packedForm}, "another form": append([]byte{packedForm + 1}, good[1:]...),
		"cut": good[:len(good)-1], "more": append(bytes.Clone(good), 0), "a long header": bomb, "a long record": longer,
	} {
		if h, err := y.unpack(raw); !errors.Is(err, errPacked) {
			t.Errorf("%s is read as %+v (%v)", name, h, err)
		}
	}
	if h, err := y.unpack(good); err != nil || h.ConfigVersion != sampleHeader(1).ConfigVersion {
		t.Errorf("after those, what is good is refused (%v)", err)
	}
	for _, header := range []string{"", "{\n}"} {
		if _, err := x.pack(HeaderRecord{Header: []byte(header)}); err == nil {
			t.Errorf("%q is packed", header)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	var x packer
	for i := range 3 {
		raw, err := x.pack(sampleHeader(i))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte{packedForm, 0, 1})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var x packer
		var y unpacker
		h, err := y.unpack(raw)
		if err != nil {
			if !errors.Is(err, errPacked) {
				t.Fatal(err)
			}
			return
		}
		again, err := x.pack(h)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := y.unpack(again); err != nil || !bytes.Equal(got.Header, h.Header) || got.Content != h.Content {
			t.Fatalf("%+v is read as %+v (%v)", h, got, err)
		}
	})
}
