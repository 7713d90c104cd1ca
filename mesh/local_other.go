//go:build !linux

package mesh

import (
	"errors"

	"github.com/fealty-io/fealty/identity"
)

// peerCredentials refuses: only Linux is asked so far, and guessing is worse.
func peerCredentials(int) (identity.Local, error) {
	return identity.Local{}, errors.New("peer credentials are supported on Linux only")
}
