package history

// HashOf names bytes.
func HashOf(data []byte) Hash { return hashOf(data) }

// SignedBytes returns what the transaction key signs.
func (r Record) SignedBytes() []byte { return r.signedBytes() }

// RestoreFloor is the least index and epoch of a restore.
const RestoreFloor = restoreFloor
