package record

import (
	"fmt"
	"time"

	"github.com/fealty-io/fealty/internal/errcode"
)

// CommitTries bounds how often a decision is made again because somebody else's
// transaction was first.
const CommitTries = 16

// ConflictPause is what passes at most before a decision is made again. Each waits a random
// part of it: who lost to somebody once would lose again in step with them.
const ConflictPause = 5 * time.Millisecond

// Busy says of a change, as in "the token", that others were first [CommitTries] times. It
// is an [errcode.StoreBusy].
func Busy(what string) error {
	return errcode.New(errcode.StoreBusy, "what", what, "tries", fmt.Sprint(CommitTries))
}
