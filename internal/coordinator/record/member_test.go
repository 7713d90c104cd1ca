package record_test

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/record"
)

// stretch is by how much an outage may stretch a certificate.
const stretch = 4 * time.Hour

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func keyOf(n int) identity.KeyID { return identity.KeyID(sha256.Sum256(fmt.Appendf(nil, "key %d", n))) }

// For anything that a member does, its record remembers every key over which a
// certificate can be valid, once, and a bounded number of others.
func TestRecordRemembersEveryValidKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m record.Member
		now := epoch
		ends := make(map[identity.KeyID]time.Time) // of the last certificate over each key
		t.Repeat(map[string]func(*rapid.T){
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "minutes")) * time.Minute)
			},
			"rekey": func(t *rapid.T) {
				key := keyOf(rapid.IntRange(0, 150).Draw(t, "key"))
				ttl := time.Duration(rapid.IntRange(1, 72).Draw(t, "ttl")) * time.Hour
				after := m
				if !after.Rekey(key, now.Add(ttl), now, stretch) {
					live, held := 0, 0
					for k, end := range ends {
						if k != key && now.Before(end) {
							live++
						}
						if k != key && now.Before(end.Add(stretch)) {
							held++
						}
					}
					if live <= record.MaxLiveKeys && held <= record.MaxOlderKeys {
						t.Fatalf("refused with %d valid certificates beside the new one and %d that may be, the limits are %d and %d", live, held, record.MaxLiveKeys, record.MaxOlderKeys)
					}
					return
				}
				m = after
				ends[key] = record.Later(ends[key], now.Add(ttl))
			},
			"": func(t *rapid.T) {
				known := make(map[identity.KeyID]time.Time)
				for _, k := range m.Keys() {
					if _, twice := known[k.Key]; twice {
						t.Fatalf("key %v is remembered twice", k.Key)
					}
					known[k.Key] = k.NotAfter
				}
				if len(m.Older) > record.MaxOlderKeys {
					t.Fatalf("%d older keys, the limit is %d", len(m.Older), record.MaxOlderKeys)
				}
				for k, end := range ends {
					if now.Before(end.Add(stretch)) && !known[k].Equal(end) {
						t.Fatalf("a certificate over %v is valid until %v, or longer by an outage, and the record says %v", k, end, known[k])
					}
				}
			},
		})
	})
}

// A record in memory is compared with the clock on the wall, as the one that is read from the store.
func TestRekeyReadsTheClockOnTheWall(t *testing.T) {
	now := time.Now()
	var m record.Member
	m.Rekey(identity.KeyID{1}, now.Add(time.Hour), now, time.Hour)
	m.Rekey(identity.KeyID{2}, now.Add(2*time.Hour), now, time.Hour)
	for what, at := range map[string]time.Time{"the last": m.NotAfter, "the one before": m.Older[0].NotAfter} {
		if at != at.Round(0) {
			t.Errorf("the end of %s certificate has a reading of the monotonic clock", what)
		}
	}
}
