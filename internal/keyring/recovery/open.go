package recovery

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
)

// MaxOpenBytes bounds what a replica says of its open attempt.
const MaxOpenBytes = 1<<10 + 2*proof.MaxEvidenceBytes // with certificates, in base64

// maxAhead bounds how long an attempt of another replica may go on yet: it is never
// longer than Life, and clocks differ.
const maxAhead = 2 * Life

// An Open is what a recovering replica tells the others of its attempt, through a
// store that anybody may have written: the shares that they took are encrypted to
// its recipient too. [ReadOpen] makes one that may be believed.
type Open struct {
	Attempt   ID
	Cluster   string
	Head      history.Hash
	Recipient string    // age X25519
	Ends      time.Time // to the second
	Key       string    // the enrolment key, "ed25519:<base64>"
}

// openJSON is an Open as it is stored.
type openJSON struct {
	Attempt   string `json:"attempt"`
	Cluster   string `json:"cluster"`
	Head      string `json:"head"`
	Recipient string `json:"recipient"`
	Ends      int64  `json:"ends,string"`
	Key       string `json:"key"`
	Evidence  []byte `json:"evidence"`
	X509      []byte `json:"x509,omitempty"` // by the key of its certificate, if it has one
}

func (o *Open) transcript() proof.AttemptTranscript {
	return proof.AttemptTranscript{Cluster: o.Cluster, Attempt: o.Attempt[:], Recipient: o.Recipient, Head: o.Head[:], Ends: o.Ends.Unix()}
}

// Sign returns o as it is stored, signed by the enrolment key that it names, and with
// what vouch makes of the same; nil for a coordinator without a certificate.
func (o Open) Sign(key ed25519.PrivateKey, vouch func(said [64]byte) ([]byte, error)) ([]byte, error) {
	t := o.transcript()
	claim, evidence, err := proof.ProveAttempt(key, t)
	if err != nil {
		return nil, err
	}
	said, err := t.Digest()
	if err != nil {
		return nil, err
	}
	var x509 []byte
	if vouch != nil {
		if x509, err = vouch(said); err != nil {
			return nil, err
		}
	}
	return json.Marshal(openJSON{
		Attempt: o.Attempt.String(), Cluster: o.Cluster, Head: o.Head.String(), Recipient: o.Recipient, Ends: o.Ends.Unix(),
		Key: claim, Evidence: evidence, X509: x509,
	})
}

// ErrNotOpen is matched by every [*OpenError].
var ErrNotOpen = errors.New("not an open attempt of a coordinator")

// An OpenError says why what a store shows as an open attempt gets no share.
type OpenError struct {
	Rule   string // the rule's stable name
	Detail string
}

func (e *OpenError) Error() string {
	return fmt.Sprintf("recovery: what the store shows as an open attempt breaks rule %s: %s: no share was encrypted to it", e.Rule, e.Detail)
}

// Is reports whether target is [ErrNotOpen].
func (e *OpenError) Is(target error) bool { return target == ErrNotOpen }

// openCheck is what the rules look at.
type openCheck struct {
	raw  []byte
	want Claimed
	key  string // whose place it was found in
	now  time.Time

	stored openJSON          // set by encoding
	open   *Open             // set by encoding
	shown  proof.Coordinator // set by signature
}

// Claimed is a head and the manifest that it names. An owner who was shown both, and
// verified them, sent a share for this head: so the manifest is genuine as soon as
// there is a share to pass on.
type Claimed struct {
	Head     *Head
	Manifest *manifest.Manifest
}

// openRules are made in order; each may use what those before it found. All of them
// hold, or nobody's share is encrypted to that recipient.
var openRules = [...]struct {
	Check
	find func(c *openCheck) string
}{
	{Check{"encoding", "what is not understood could mean anything"}, func(c *openCheck) string {
		if len(c.raw) > MaxOpenBytes {
			return fmt.Sprintf("it has %d bytes, more than %d", len(c.raw), MaxOpenBytes)
		}
		d := json.NewDecoder(bytes.NewReader(c.raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&c.stored); err != nil {
			return "it does not decode: " + clip(err.Error())
		}
		if _, err := d.Token(); err != io.EOF {
			return "something follows it"
		}
		id, errID := hex.DecodeString(c.stored.Attempt)
		head, errHead := hex.DecodeString(c.stored.Head)
		if errID != nil || len(id) != proof.AttemptBytes || errHead != nil || len(head) != proof.HeadBytes {
			return "its attempt or its head is no hash in hex"
		}
		c.open = &Open{
			Attempt: ID(id), Cluster: c.stored.Cluster, Head: history.Hash(head), Recipient: c.stored.Recipient,
			Ends: time.Unix(c.stored.Ends, 0), Key: c.stored.Key,
		}
		return ""
	}},
	{Check{"place", "one replica could fill the places of all others"}, func(c *openCheck) string {
		if c.open.Key != c.key {
			return fmt.Sprintf("it is of key %s, in the place of %s", clip(c.open.Key), c.key)
		}
		return ""
	}},
	{Check{"cluster", "shares of one cluster would go to another"}, func(c *openCheck) string {
		if c.open.Cluster != c.want.Head.Cluster {
			return fmt.Sprintf("it is of cluster %s, not of %s", clip(c.open.Cluster), c.want.Head.Cluster)
		}
		return ""
	}},
	{Check{"head", "owners verified one head and its manifest, and sent their shares for that"}, func(c *openCheck) string {
		if c.open.Head != c.want.Head.Hash {
			return fmt.Sprintf("it is for head %v, not for %v", c.open.Head, c.want.Head.Hash)
		}
		return ""
	}},
	{Check{"ends", "an attempt that is over, or never ends, would be served for ever"}, func(c *openCheck) string {
		switch {
		case !c.now.Before(c.open.Ends):
			return "it ended at " + c.open.Ends.UTC().Format(time.RFC3339)
		case c.open.Ends.After(c.now.Add(maxAhead)):
			return "it ends at " + c.open.Ends.UTC().Format(time.RFC3339) + ", later than an attempt can"
		}
		return ""
	}},
	{Check{"signature", "whoever writes the store could name a recipient of his own"}, func(c *openCheck) string {
		t := c.open.transcript()
		selector, err := proof.VerifyAttempt(t, c.open.Key, c.stored.Evidence)
		if err != nil {
			return err.Error()
		}
		said, err := t.Digest()
		if err == nil {
			c.shown, err = proof.ProvenCoordinator(selector, said, c.stored.X509)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	}},
	{Check{"admitted", "a machine that is no coordinator, or was dismissed, would be given the shares"}, func(c *openCheck) string {
		if _, err := c.shown.Match(c.want.Manifest, c.now); err != nil {
			return fmt.Sprintf("%v, which is that of head %v", err, c.want.Head.Hash)
		}
		return ""
	}},
}

// ReadOpen reads what the store shows as the open attempt of the coordinator with an
// enrolment key, "ed25519:<base64>". The error is an [*OpenError].
func ReadOpen(raw []byte, want Claimed, key string, now time.Time) (*Open, error) {
	c := &openCheck{raw: raw, want: want, key: key, now: now}
	for _, rule := range openRules {
		if detail := rule.find(c); detail != "" {
			return nil, &OpenError{Rule: rule.Name, Detail: detail}
		}
	}
	return c.open, nil
}

// Coordinators returns the enrolment keys, "ed25519:<base64>", that m names as
// coordinators, in its order. They and the coordinators that m admits by x509 are all
// that can have an attempt open, however much a store shows.
func Coordinators(m *manifest.Manifest) []string {
	var keys []string
	for i := range m.Admit {
		e := &m.Admit[i]
		if e.Kind != identity.Coordinator {
			continue
		}
		for _, p := range e.Match {
			if p.Family() == manifest.FamilyKey {
				keys = append(keys, strings.TrimPrefix(p.String(), manifest.FamilyKey+":"))
			}
		}
	}
	return keys
}
