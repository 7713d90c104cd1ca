package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/fealty-io/fealty/internal/instruction"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// errPausedHere is why a shard is not resumed from afar.
var errPausedHere = errors.New("it was started with --actuation-paused, which people at its machine take back")

// pausedFile says that the shard was told to pause. A start after that is paused too.
const pausedFile = "paused"

// openInstructions opens what this shard remembers of instructions, and reports whether it is to
// be paused.
func (r *running) openInstructions() (paused bool, err error) {
	if r.domains == nil {
		return r.cfg.Paused, nil
	}
	files, dir := r.cfg.Locks.OS(), filepath.Join(r.cfg.Dir, "instructions")
	if err := files.MkdirAll(dir); err != nil {
		return false, fmt.Errorf("make the shard's folder: %w", err)
	}
	begin := instruction.OpenBook
	if r.cfg.Enrol || r.cfg.Mend {
		begin = instruction.EnrolBook
	}
	book, err := begin(files, dir)
	if errors.Is(err, instruction.ErrMissing) || errors.Is(err, instruction.ErrDamaged) {
		return false, lost(err)
	}
	if err != nil {
		return false, err
	}
	r.closers = append(r.closers, book.Close)
	name := filepath.Join(dir, pausedFile)
	switch _, err = files.ReadFile(name, 1<<10); {
	case err == nil:
		r.cfg.Log.Warn("this shard was told to pause: it decides, and does nothing", "file", name)
		paused = true
		r.pauses.told.Store(true)
	case !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	r.executor = instruction.NewExecutor(instruction.ExecutorConfig{ID: r.cfg.ID, Conn: r.coordinators, Authority: r.cfg.Authority,
		Term: r.domains.mark, Book: book, Now: time.Now, Log: r.cfg.Log,
		Paused: func() bool { return r.shard.Last().Paused }, Do: r.carriesOut(files, name)})
	return paused || r.cfg.Paused, nil
}

// carriesOut is what this shard can be told. One that was fenced meanwhile is not who was told.
func (r *running) carriesOut(files durable.FS, pausedName string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		// On disk first: a shard that pauses goes on pausing.
		instruction.Pause: func(context.Context) error {
			if err := r.sender.Err(); err != nil {
				return err
			}
			if err := files.WriteFile(pausedName, []byte("told to pause\n")); err != nil {
				return err
			}
			r.pauses.told.Store(true)
			r.shard.Pause(true)
			return nil
		},
		instruction.Resume: func(context.Context) error {
			if err := r.sender.Err(); err != nil {
				return err
			}
			if r.cfg.Paused {
				return errPausedHere
			}
			if err := files.Remove(pausedName); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			r.pauses.told.Store(false)
			r.shard.Pause(false)
			return nil
		},
	}
}
