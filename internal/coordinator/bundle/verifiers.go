package bundle

import (
	"crypto/ecdsa"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/jwtsvid"
)

// LeftFor is how long the keys of tokens are told to verifiers beyond the rotation that ended their
// config signing key: twice as long as a token lives, since another coordinator signs with the key
// until it hears that the rotation ended.
const LeftFor = 10 * time.Minute

// maxLeft bounds the keys that left and are told still, the newest ones.
const maxLeft = 16

// LeftKey is a config signing key that left in a rotation.
type LeftKey struct {
	Number uint32    `json:"number"`
	At     time.Time `json:"at"`
}

// leave notes the keys that a rotation ends, beside those of before that are told still.
func (t *State) leave(keys []ConfigKey, now time.Time) {
	left := slices.DeleteFunc(slices.Clone(t.Left), func(k LeftKey) bool { return now.Sub(k.At) >= LeftFor })
	for _, k := range keys {
		left = append(left, LeftKey{Number: k.Number, At: now})
	}
	t.Left = left[max(0, len(left)-maxLeft):]
}

// next is the number of the key that the next rotation introduces.
func (t *State) next() uint32 {
	n := t.LastConfigKey
	for _, k := range t.ConfigKeys {
		n = max(n, k.Number)
	}
	return n + 1
}

// VerifierKeys are the keys by which those verify tokens at now who hold no trust bundle, and ask
// for keys now and then: those of the config signing keys that the bundle lists, of those that left
// not long ago, and of the one that comes next, so that whoever asks between two rotations knows
// the key of the second before it signs. None is revoked. They are the same until the time that is
// returned too, unless the state changes; zero: for good.
func (t *State) VerifierKeys(a *Authority, now time.Time) ([]jwtsvid.Key, time.Time, error) {
	return a.verifierKeys(t.ConfigKeys, t.Left, t.next(), now)
}

// VerifierKeys are those of the state that the view was compiled from; none of a view that was only
// reopened.
func (t *View) VerifierKeys(a *Authority, now time.Time) ([]jwtsvid.Key, time.Time, error) {
	if len(t.ConfigKeys) == 0 {
		return nil, time.Time{}, nil
	}
	return a.verifierKeys(t.ConfigKeys, t.left, t.nextKey, now)
}

func (a *Authority) verifierKeys(listed []ConfigKey, left []LeftKey, next uint32, now time.Time) (keys []jwtsvid.Key,
	until time.Time, err error) {
	var numbers []uint32
	for _, k := range left {
		if end := k.At.Add(LeftFor); now.Before(end) {
			numbers = append(numbers, k.Number)
			if until.IsZero() || end.Before(until) {
				until = end
			}
		}
	}
	for _, k := range listed {
		if !k.revoked() {
			numbers = append(numbers, k.Number)
		}
	}
	for _, n := range append(numbers, next) {
		public, ok := a.TokenKey(n).Public().(*ecdsa.PublicKey)
		if !ok {
			return nil, time.Time{}, fmt.Errorf("key %d of tokens is no ECDSA key", n)
		}
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("encode a key of tokens: %w", err)
		}
		keys = append(keys, jwtsvid.Key{ID: jwtsvid.IDOf(der), Public: public})
	}
	return keys, until, nil
}
