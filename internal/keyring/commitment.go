package keyring

import (
	"crypto/sha256"
	"encoding/binary"
)

// Commitment returns the public commitment to one share of a seed: SHA-256 over
// the length-prefixed label and cluster, the seed epoch, the share's index from 1,
// and the share (manifest.md, Keys). With a threshold of 1 every share is the
// seed itself. It stands in the transition, so that a wrong, foreign or old share
// is refused by its owner's name; it tells nothing of a share of 32 random bytes.
func Commitment(cluster string, seedEpoch uint64, index int, seed Seed) [32]byte {
	share := seed.Reveal()
	defer Wipe(share)
	h := sha256.New()
	for _, part := range []string{"fealty/v1/share-commitment", cluster} {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		h.Write([]byte(part))
	}
	h.Write(binary.BigEndian.AppendUint64(nil, seedEpoch))
	h.Write(binary.BigEndian.AppendUint32(nil, uint32(index)))
	h.Write(share)
	return [32]byte(h.Sum(nil))
}
