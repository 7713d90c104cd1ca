package dir

import "time"

// StoreFormat is the form of the folder. A release that reads it no more, or not without
// harm, gets a higher one.
const StoreFormat = 1

// StoreFile says who wrote the folder.
type StoreFile struct {
	Format  int    `json:"format"`
	Release string `json:"release"`
}

// PendingFile is the key of a request under way.
type PendingFile struct {
	Purpose string `json:"purpose"`
	Key     []byte `json:"key"` // PKCS #8
}

// PurposeRenew is that of a key for a renewal or rejoin; the purpose of a join
// names what was joined, so that another join does not take its key.
const PurposeRenew = "renew"

// ClockFile is the floor under the machine's clock; see the state of a node.
type ClockFile struct {
	AuthorityEpoch uint64        `json:"authority_epoch"`
	Floor          time.Time     `json:"floor"`
	Boot           string        `json:"boot"`       // during which the floor was right
	Since          time.Duration `json:"since_boot"` // at which it was
}
