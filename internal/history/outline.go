package history

import (
	"crypto/ed25519"

	"github.com/fealty-io/fealty/internal/manifest"
)

// An Outline is a chain that was verified by its links, without most of the manifests
// that they name: a coordinator shows those to nobody who has not logged in. Immutable.
//
// It says that the head is signed by the transaction key, that the links lead there
// from genesis, and everything of [Verify] that stands in the links: kinds, indices,
// epochs, one mesh CA key for each, salts, the keys of new seeds. Whether signers
// consented to a link is checked where they are known, as it is whether a manifest fits
// its link. [Outline.Unsigned] counts the others. A caller that has to know replays the
// whole chain with [Verify].
type Outline struct {
	v        *Verified
	unsigned int
}

// VerifyOutline replays h from genesis to head as [Verify] does, with as many of its
// manifests as there are. The signers at the head that was seen are known to be those
// of seen; its zero value has seen nothing. Errors: [*VerifyError].
func VerifyOutline(h *History, transactionKey ed25519.PublicKey, seen SeenHead) (*Outline, error) {
	if len(transactionKey) != ed25519.PublicKeySize {
		return nil, &VerifyError{Rule: "head-signature", Detail: "there is no transaction key"}
	}
	r := &replay{history: h, key: transactionKey}
	if err := r.checkHead(); err != nil {
		return nil, err
	}
	o := &outlining{seen: seen, signers: make(map[manifest.Hash]manifest.Signers)}
	v, err := replayLinks(&Verified{seen: make(meshKeys), trusted: transactionKey}, h, r.record, o)
	if err != nil {
		return nil, err
	}
	return &Outline{v, o.unsigned}, nil
}

// Links returns the whole chain, genesis first; it must not be written to.
func (o *Outline) Links() []Link { return o.v.links }

// Current returns the last link.
func (o *Outline) Current() *Link { return o.v.Current() }

// Head returns the signed head record.
func (o *Outline) Head() Record { return o.v.record }

// TransactionKey returns the key that signs the head: that of the newest seed.
func (o *Outline) TransactionKey() ed25519.PublicKey { return o.v.TransactionKey() }

// Reseeds returns the links that brought a new seed into force, oldest first.
func (o *Outline) Reseeds() []Link { return o.v.Reseeds() }

// Unsigned returns how many links were taken that signers have to consent to, and whose
// signers were not known. The transaction key signed the head that covers them.
func (o *Outline) Unsigned() int { return o.unsigned }

// Seen returns o's head, with its signers if its manifest is known.
func (o *Outline) Seen() SeenHead {
	if o.v.manifest == nil {
		return SeenHead{Mark: o.v.Mark()}
	}
	return o.v.Seen()
}

// Mark returns the mark of o's head.
func (o *Outline) Mark() Mark { return o.v.Mark() }

// Accepts reports whether o may take the place of what was seen, as
// [Verified.CheckMarkBy] says of a chain.
func (o *Outline) Accepts(seen SeenHead) (restored bool, err error) { return seen.Accepts(o.v) }

// outlining is what a replay without all manifests knows, and what it passed over.
type outlining struct {
	seen     SeenHead
	signers  map[manifest.Hash]manifest.Signers // of manifests that are not known otherwise
	unsigned int
}

// passed notes a link that was checked. o may be nil: every manifest was there.
func (o *outlining) passed(l *Link) {
	if o != nil && l.Hash == o.seen.Hash && o.seen.Signers != nil {
		o.signers[l.Manifest] = o.seen.signers()
	}
}
