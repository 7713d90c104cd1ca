package proof

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
)

func joinForm() lineForm {
	return lineForm{name: "join token", prefix: "fealty1_", use: "fealty join TOKEN", get: "fealty token create"}
}

// JoinToken is what a node needs for its first join: where to go, whom to
// believe there, and a secret to prove. It shows itself as its first four
// characters, however it is printed; [JoinToken.Line] alone gives it away.
type JoinToken struct {
	// ID names the token: 16 characters of a-z and 2-7. It is no secret.
	ID string
	// Cluster is the cluster to join.
	Cluster string
	// Addresses are those of coordinators, host:port, 1 to MaxAddresses.
	Addresses []string
	// Pin is the key of the cluster's root certificate: it authenticates the seed.
	Pin identity.KeyID
	// Expires is when the token ends, in whole seconds. The cluster decides; it is
	// in the token so that a node can say so before it connects.
	Expires time.Time
	// Secret is what the token proves.
	Secret Secret
}

// NewJoinToken returns t with an id and a secret of its own, made from random;
// nil means crypto/rand. A fraction of a second in t.Expires is dropped. It fails
// if t has an id or a secret already, if another field is not acceptable, or if
// all of them do not fit a line.
func NewJoinToken(random io.Reader, t JoinToken) (JoinToken, error) {
	if random == nil {
		random = rand.Reader
	}
	if t.ID != "" || !t.Secret.IsZero() {
		return JoinToken{}, errors.New("join token: id and secret are made here, and were given")
	}
	var id [tokenIDBytes]byte
	if _, err := io.ReadFull(random, id[:]); err != nil {
		return JoinToken{}, fmt.Errorf("make a token's id: %w", err)
	}
	secret, err := newSecret(random)
	if err != nil {
		return JoinToken{}, err
	}
	t.ID, t.Secret = tokenIDEncoding().EncodeToString(id[:]), secret
	t.Addresses = slices.Clone(t.Addresses)
	t.Expires = t.Expires.UTC().Truncate(time.Second)
	if err := t.check(); err != nil {
		return JoinToken{}, fmt.Errorf("join token: %w", err)
	}
	return t, nil
}

// Line returns the one line to paste. Its fields, in this order:
//
//	id 10 · cluster 1+n · addresses 1+(1+n)… · pin 32 · expires 8 · secret 32 · CRC-32 4
//
// in bytes, where 1+ is a length and expires counts seconds since 1970, big
// endian. It panics if [NewJoinToken] or [ParseJoinToken] did not make t.
func (t JoinToken) Line() string {
	if err := t.check(); err != nil {
		panic("proof: JoinToken.Line: " + err.Error())
	}
	return joinForm().encode(t.fields())
}

// fields encodes what has passed the checks of each field.
func (t JoinToken) fields() []byte {
	id, err := tokenIDEncoding().DecodeString(t.ID)
	if err != nil {
		panic("proof: a checked token id does not decode")
	}
	b := appendText(id, t.Cluster)
	b = appendTexts(b, t.Addresses)
	b = append(b, t.Pin[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(t.Expires.Unix()))
	return append(b, t.Secret.reveal()...)
}

// ParseJoinToken reads what [JoinToken.Line] returns, with white space around it
// at most. The error is a [*TokenFormatError].
func ParseJoinToken(line string) (JoinToken, error) {
	form := joinForm()
	fields, err := form.decode(line)
	if err != nil {
		return JoinToken{}, err
	}
	c := cursor{rest: fields}
	t := JoinToken{
		ID:        tokenIDEncoding().EncodeToString(c.take(tokenIDBytes)),
		Cluster:   c.text(),
		Addresses: c.texts(),
		Pin:       identity.KeyID(c.take(len(identity.KeyID{}))),
	}
	// A value beyond an int64 turns negative and fails the check below.
	t.Expires = time.Unix(int64(binary.BigEndian.Uint64(c.take(8))), 0).UTC()
	t.Secret = secretOf([secretBytes]byte(c.take(secretBytes)))
	if !c.done() {
		err = errors.New("it has too few or too many fields")
	} else {
		err = t.check()
	}
	if err != nil {
		return JoinToken{}, form.problem(ProblemContent, "it was not made by this release: get a new one: "+form.get, "%v", err)
	}
	return t, nil
}

// check refuses what no usable token holds. The error begins with the field.
func (t JoinToken) check() error {
	if !ValidTokenID(t.ID) {
		return fmt.Errorf("id: %.32q is not 16 characters of a-z and 2-7", t.ID)
	}
	if err := identity.CheckCluster(t.Cluster); err != nil {
		return err
	}
	if err := checkAddresses(t.Addresses); err != nil {
		return err
	}
	switch {
	case t.Pin.IsZero():
		return errors.New("pin: the key of the cluster's root is missing")
	case t.Expires.Unix() <= 0 || t.Expires.Year() > 9999 || t.Expires.Nanosecond() != 0:
		return errors.New("expires: it is not a time in whole seconds between 1970 and 9999")
	case t.Secret.IsZero():
		return errors.New("secret: it is missing")
	}
	return joinForm().checkFits(t.fields())
}

// PublicKey returns the key that the cluster keeps of the token. It derives from
// secret and id, so that two tokens never share a key. It panics if
// [NewJoinToken] or [ParseJoinToken] did not make t.
func (t JoinToken) PublicKey() ed25519.PublicKey {
	return t.privateKey().Public().(ed25519.PublicKey)
}

func (t JoinToken) privateKey() ed25519.PrivateKey {
	return deriveKey(t.Secret, "fealty-join-token-v1/"+t.ID)
}

// deriveKey derives an Ed25519 key by HKDF-SHA256 (RFC 5869). No salt: the secret
// is uniformly random (§3.1).
func deriveKey(s Secret, info string) ed25519.PrivateKey {
	if s.IsZero() {
		panic("proof: a token without a secret has no key")
	}
	seed, err := hkdf.Key(sha256.New, s.reveal(), nil, info, ed25519.SeedSize)
	if err != nil {
		panic("proof: HKDF-SHA256 of 32 bytes failed: " + err.Error())
	}
	return ed25519.NewKeyFromSeed(seed)
}

// String returns the first four characters of the line.
func (t JoinToken) String() string               { return redact(joinForm().prefix) }
func (t JoinToken) GoString() string             { return t.String() }
func (t JoinToken) Format(f fmt.State, _ rune)   { io.WriteString(f, t.String()) }
func (t JoinToken) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
func (t JoinToken) LogValue() slog.Value         { return slog.StringValue(t.String()) }

// tokenIDBytes is the length of a token's id before it is spelled: enough that
// ids made at random do not meet.
const tokenIDBytes = 10

func tokenIDEncoding() *base32.Encoding {
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
}

// ValidTokenID reports whether id can be the id of a join token: 16 characters of
// a-z and 2-7.
func ValidTokenID(id string) bool {
	if len(id) != tokenIDBytes*8/5 {
		return false
	}
	for i := range len(id) {
		if c := id[i]; !(c >= 'a' && c <= 'z' || c >= '2' && c <= '7') {
			return false
		}
	}
	return true
}
