package fetch_test

import (
	"bytes"
	"testing"

	"github.com/fealty-io/fealty/internal/agent/fetch"
)

func TestTrustParts(t *testing.T) {
	for _, tc := range []struct{ bytes, most, messages int }{{10, 0, 1}, {10, 10, 1}, {11, 10, 2}, {95, 10, 10}} {
		envelope := bytes.Repeat([]byte("b"), tc.bytes)
		parts := fetch.TrustParts(envelope, tc.most)
		var whole []byte
		for i, p := range parts {
			if p.GetMore() != (i < len(parts)-1) {
				t.Errorf("message %d of %d says that more follows: %v", i+1, len(parts), p.GetMore())
			}
			whole = append(append(whole, p.GetBundle().GetEnvelope()...), p.GetPart()...)
		}
		if len(parts) != tc.messages || !bytes.Equal(whole, envelope) {
			t.Errorf("%d bytes in %d messages, want all %d in %d", len(whole), len(parts), tc.bytes, tc.messages)
		}
	}
}
