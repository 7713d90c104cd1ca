package operator

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"time"

	"github.com/fealty-io/fealty/internal/platform/durable"
)

const (
	runFile  = "operator-run"
	lockFile = "operator-lock"
	runHead  = "run of an operator, form 1: "
	maxRun   = 4 << 10 // bytes of the file
)

// counted is the content of the file.
type counted struct {
	Run uint64 `json:"run"`
}

// begin takes dir, and returns the number of a run that is greater than that of each run before. It is on disk then.
//
// A folder that was lost, and a machine that takes over from another one, know of no run before: there the clock is
// greater. One that goes back is no harm while the folder is there.
func begin(dir string, now time.Time) (run uint64, lock io.Closer, err error) {
	files := durable.OS()
	if err := files.MkdirAll(dir); err != nil {
		return 0, nil, fmt.Errorf("operator: make the folder %s, in which runs are counted: %w", dir, err)
	}
	held, err := files.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return 0, nil, fmt.Errorf("operator: take the folder %s: %w: give each operator a folder of its own", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, held.Close())
		}
	}()
	name := filepath.Join(dir, runFile)
	var before counted
	text, err := files.ReadFile(name, maxRun)
	if err == nil {
		err = durable.Decode(runHead, text, &before)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, nil, fmt.Errorf("operator: read the last run in %s: %w: it stays as it is; move it away, and the clock "+
			"says which run is next", name, err)
	case before.Run == math.MaxUint64:
		return 0, nil, fmt.Errorf("operator: the last run in %s has the highest number that there is: move the file away, "+
			"and the clock says which run is next", name)
	}
	run = max(before.Run+1, uint64(max(now.UnixMilli(), 0)))
	if text, err = durable.Encode(runHead, counted{run}); err != nil {
		return 0, nil, err
	}
	if err := files.WriteFile(name, text); err != nil {
		return 0, nil, fmt.Errorf("operator: write the run to %s: %w", name, err)
	}
	return run, held, nil
}
