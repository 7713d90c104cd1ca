//go:build !linux

package mesh

import (
	"errors"

	"github.com/fealty-io/fealty/identity"
)

// maxSocketPath is the least size of sun_path among the systems we build for,
// less its terminating zero.
const maxSocketPath = 103

// peerCredentials refuses: only Linux is asked so far, and guessing is worse.
func peerCredentials(int) (identity.Local, error) {
	return identity.Local{}, errors.New("peer credentials are supported on Linux only")
}
