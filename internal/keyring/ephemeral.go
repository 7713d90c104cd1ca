package keyring

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"filippo.io/age"
)

// ErrOtherAttempt is matched by every [*AttemptError].
var ErrOtherAttempt = errors.New("share was sent to another recovery attempt")

// Attempt is what a share on its way to a recovering coordinator is bound to.
type Attempt struct {
	ID      string // of the recovery attempt. Required
	Cluster string // the cluster's id. Required
	Owner   string // who sends the share: the owner's name in the manifest. Required
}

func (a Attempt) check() error {
	for _, part := range []string{a.ID, a.Cluster, a.Owner} {
		if part == "" || len(part) > 255 {
			return errors.New("keyring: a recovery attempt has an id, a cluster and an owner of at most 255 bytes each")
		}
	}
	return nil
}

// AttemptError says for what else a share was sent.
type AttemptError struct {
	Field      string // attempt, cluster or owner
	Sent, Want string
}

func (e *AttemptError) Error() string {
	return fmt.Sprintf("keyring: this share was sent for %s %q, not for %q: send it again for this one", e.Field, e.Sent, e.Want)
}

// Is reports that an AttemptError matches [ErrOtherAttempt].
func (e *AttemptError) Is(target error) bool { return target == ErrOtherAttempt }

// EphemeralRecipient is an X25519 key that lives in memory for one recovery
// attempt. Owners encrypt their shares to its public half, so that the store, in
// which shares gather, and whoever reads it later hold nothing.
//
// It may be used concurrently.
type EphemeralRecipient struct {
	public string
	key    atomic.Pointer[age.X25519Identity] // nil once wiped
}

// NewEphemeral makes one with a random key.
func NewEphemeral() (*EphemeralRecipient, error) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("keyring: making an ephemeral recipient: %w", err)
	}
	e := &EphemeralRecipient{public: key.Recipient().String()}
	e.key.Store(key)
	return e, nil
}

// Public returns the recipient, age1…, for [SendShare].
func (e *EphemeralRecipient) Public() string { return e.public }

// Open decrypts a share that was sent to e for attempt a.
//
// Errors match [ErrNotForYou], also once e was wiped, [ErrShareMalformed],
// [ErrShareVersion], or are an [*AttemptError].
func (e *EphemeralRecipient) Open(a Attempt, data []byte) (Share, error) {
	if err := a.check(); err != nil {
		return Share{}, err
	}
	key := e.key.Load()
	if key == nil {
		return Share{}, fmt.Errorf("keyring: this recovery attempt is over, and its key is gone: %w", ErrNotForYou)
	}
	payload, err := decryptWith([]age.Identity{key}, data)
	if err != nil {
		return Share{}, err
	}
	defer Wipe(payload)
	return parseSent(payload, a)
}

// Wipe forgets the key: what was sent to it opens no more. The bytes of the key
// are the age package's, and go when the garbage collector reuses them.
func (e *EphemeralRecipient) Wipe() { e.key.Store(nil) }

// Format implements [fmt.Formatter] for every verb without showing the key.
func (e *EphemeralRecipient) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "keyring.EphemeralRecipient(%s)", e.public)
}

// LogValue implements [slog.LogValuer] without showing the key.
func (e *EphemeralRecipient) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(e)) }

// MarshalText always fails, and with it JSON and every other text encoding.
func (e *EphemeralRecipient) MarshalText() ([]byte, error) { return nil, errHidden }

const (
	sentShareName    = "fealty sent share "
	sentShareVersion = "v1\n"
)

// SendShare encrypts share to the ephemeral recipient of a recovery attempt, for
// this attempt alone: [EphemeralRecipient.Open] refuses it in any other.
//
// Errors match [ErrRecipient] or [ErrNoShare].
func SendShare(recipient string, a Attempt, share Share) ([]byte, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	if share.IsZero() {
		return nil, fmt.Errorf("keyring: sending a share: %w", ErrNoShare)
	}
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return nil, fmt.Errorf("keyring: sending a share to %.128q: %w", recipient, ErrRecipient)
	}
	// name | attempt | cluster | owner | set (16) | index (1) | value (32)
	payload := make([]byte, 0, maxSharePayload)
	payload = append(payload, sentShareName+sentShareVersion...)
	for _, s := range []string{a.ID, a.Cluster, a.Owner} {
		payload = appendString(payload, s)
	}
	payload = appendShare(payload, share)
	defer Wipe(payload)
	return encryptTo(to, payload)
}

func parseSent(payload []byte, want Attempt) (Share, error) {
	r, err := openPayload(payload, sentShareName, sentShareVersion)
	if err != nil {
		return Share{}, err
	}
	got := Attempt{ID: r.text(), Cluster: r.text(), Owner: r.text()}
	share, err := r.share()
	if err != nil {
		return Share{}, err
	}
	for _, part := range []AttemptError{
		{"attempt", got.ID, want.ID}, {"cluster", got.Cluster, want.Cluster}, {"owner", got.Owner, want.Owner},
	} {
		if part.Sent != part.Want {
			share.Wipe()
			return Share{}, &part
		}
	}
	return share, nil
}
