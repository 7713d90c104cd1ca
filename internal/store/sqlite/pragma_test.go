package sqlite

import (
	"context"
	"net/url"
	"path/filepath"
	"testing"
)

// TestPragmas asks every kind of connection for what durability rests on: no
// test without a power cut would notice a missing sync.
func TestPragmas(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), Options{MaxBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, more := range map[string]url.Values{"writer": nil, "reader": {"_query_only": {"1"}}} {
		db, err := s.db.connect(3, more)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		for range 3 { // held, so that each is another one
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for pragma, want := range map[string]string{
				"journal_mode":       "wal",
				"synchronous":        "2", // FULL: the log is synced at every commit
				"wal_autocheckpoint": "0",
				"busy_timeout":       "10000",
				"max_page_count":     "262144",
				"page_size":          "4096",
				"query_only":         map[bool]string{true: "1", false: "0"}[more != nil],
			} {
				var got string
				if err := conn.QueryRowContext(context.Background(), "pragma "+pragma).Scan(&got); err != nil || got != want {
					t.Errorf("%s: %s is %q, %v, want %q", name, pragma, got, err, want)
				}
			}
		}
	}
}
