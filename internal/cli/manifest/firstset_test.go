// Inside the package: what a command sends shows nowhere else.
package manifest

import (
	"bytes"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
)

func TestFirstSetParts(t *testing.T) {
	for _, tc := range []struct{ bytes, most, messages int }{{10, 0, 1}, {10, 10, 1}, {11, 10, 3}, {95, 10, 11}} {
		text := bytes.Repeat([]byte("m"), tc.bytes)
		parts := firstSetParts(&fealtyv1.SetManifestRequest{Manifest: text, Reason: "first"}, []byte("e"), tc.most)
		whole := bytes.Clone(parts[0].GetSet().GetManifest())
		for _, p := range parts[1:] {
			if len(p.GetPart()) > tc.most {
				t.Errorf("a part of %d bytes, at most %d are taken", len(p.GetPart()), tc.most)
			}
			whole = append(whole, p.GetPart()...)
		}
		if len(parts) != tc.messages || !bytes.Equal(whole, text) || parts[0].GetSet().GetReason() != "first" {
			t.Errorf("%d bytes in %d messages of at most %d, want all %d in %d", len(whole), len(parts), tc.most, tc.bytes, tc.messages)
		}
	}
}
