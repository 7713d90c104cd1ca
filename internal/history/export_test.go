package history

// HashOf names bytes.
func HashOf(data []byte) Hash { return hashOf(data) }

// SignedBytes returns what the transaction key signs.
func (r Record) SignedBytes() []byte { return r.signedBytes() }

// RestoreFloor is the least index and epoch of a restore.
const RestoreFloor = restoreFloor

// Overfull returns v with as many links as a history may have.
func Overfull(v *Verified) *Verified {
	full := *v
	full.links = append(make([]Link, MaxTransitions-1), *v.Current())
	return &full
}
