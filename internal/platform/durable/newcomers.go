package durable

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	lookEvery = 2 * time.Second
	tellEvery = time.Minute // a service manager may start the same process again every second
)

// Locks are the locks that a process holds, so that one loop looks after all of them: those of folders, of sockets, of a
// database. Who starts a process makes them, and hands them to the parts that take a lock. The zero Locks has none; of a
// nil one nobody looks after the locks.
type Locks struct {
	mu  sync.Mutex
	all []*flock // guarded by mu
}

// OS is the function [OS], of files whose locks are among these.
func (l *Locks) OS() FS { return &protocol{osDisk{file: 0o600, dir: 0o700, locks: l}, ofProcess} }

func (l *Locks) hold(lock *flock) *flock {
	if l == nil {
		return lock
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, lock)
	return lock
}

func (l *Locks) letGo(lock *flock) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(o *flock) bool { return o == lock })
}

// TellNewcomers says in the log, until ctx ends, that another process was refused one of the locks. Whoever is refused
// says so as well, and ends; but two of them mean a mistake in somebody's settings, and people look at the one that works. Of
// one lock it is said once a minute at most. What is held for a moment alone, as in turns, is nobody's claim.
func (l *Locks) TellNewcomers(ctx context.Context, log *slog.Logger) {
	told := map[*flock]time.Time{}
	waiting := map[*flock]int{} // pids that were not told yet
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		l.mu.Lock()
		all := slices.Clone(l.all)
		l.mu.Unlock()
		for _, lock := range all {
			if time.Since(lock.since) < lookEvery {
				continue
			}
			if pid := lock.refused(); pid != 0 {
				waiting[lock] = pid
			}
			pid := waiting[lock]
			if at, before := told[lock]; pid == 0 || before && time.Since(at) < tellEvery {
				continue
			}
			log.LogAttrs(ctx, slog.LevelWarn, "another process wanted what this one uses, and was refused",
				slog.String("lock", lock.name), slog.Int("pid", pid))
			told[lock] = time.Now()
			delete(waiting, lock)
		}
		for lock := range told {
			if !slices.Contains(all, lock) {
				delete(told, lock)
				delete(waiting, lock)
			}
		}
	}
}
