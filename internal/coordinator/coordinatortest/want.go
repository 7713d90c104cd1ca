package coordinatortest

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/explain"
)

// WantOnly fails unless err is of code, or nil for "".
func WantOnly(t *testing.T, what string, err error, code explain.Code) {
	t.Helper()
	switch {
	case code == "" && err != nil:
		t.Fatalf("%s: %v, want success", what, err)
	case code != "" && !errors.Is(err, code):
		t.Fatalf("%s: %v, want %s", what, err, code)
	}
}

// LeadPatience is how long tests wait for what is to happen, on a machine as busy as it
// may be.
const LeadPatience = time.Minute

// FormOf returns the form in which text holds secret, or "".
func FormOf(text, secret []byte) string {
	lower := bytes.ToLower(text)
	switch {
	case bytes.Contains(text, secret):
		return "raw"
	case bytes.Contains(lower, []byte(hex.EncodeToString(secret))):
		return "hex"
	case bytes.Contains(text, []byte(fmt.Sprint(secret))):
		return "decimal"
	}
	// In base64 at any of the three alignments; the characters at the ends depend on
	// the neighbours.
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for pad := range 3 {
			coded := enc.EncodeToString(append(make([]byte, pad), secret...))
			if bytes.Contains(text, []byte(coded[(pad*4+2)/3:len(coded)-1])) {
				return "base64"
			}
		}
	}
	return ""
}

// SyncBuffer is a buffer that several goroutines write to.
type SyncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *SyncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *SyncBuffer) Bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.b.Bytes())
}

var ErrCrash = errors.New("crash")

func WantOnlyNil(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
