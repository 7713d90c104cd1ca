package record_test

import (
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/manifest"
)

func TestRenewEvery(t *testing.T) {
	for _, ttl := range []time.Duration{manifest.MinSVIDTTL, 6 * time.Minute, time.Hour, 8 * time.Hour, 25 * time.Hour,
		72 * time.Hour, manifest.MaxSVIDTTL} {
		every := record.RenewEvery(ttl)
		if every <= 0 || every > ttl/2 {
			t.Errorf("svid_ttl %v renews every %v, want at most half of it", ttl, every)
		}
		if n := ttl / every; n > record.MaxLiveKeys {
			t.Errorf("svid_ttl %v renews every %v: %d certificates are valid at once, and a record remembers %d", ttl,
				every, n, record.MaxLiveKeys)
		}
		if n := (ttl + record.StretchOf(ttl)) / every; n > record.MaxOlderKeys-8 {
			t.Errorf("svid_ttl %v renews every %v: over %d keys a certificate may be valid at once, and a record "+
				"remembers %d", ttl, every, n, record.MaxOlderKeys)
		}
	}
	if got := record.RenewEvery(25 * time.Hour); got != 30*time.Minute {
		t.Errorf("the default svid_ttl renews every %v, want 30m", got)
	}
}
