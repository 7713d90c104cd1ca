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

// held are the locks of this process, so that one loop looks after all of them: those of folders, of sockets, of a database.
var held struct {
	mu  sync.Mutex
	all []*flock // guarded by mu
}

func hold(l *flock) *flock {
	held.mu.Lock()
	defer held.mu.Unlock()
	held.all = append(held.all, l)
	return l
}

func letGo(l *flock) {
	held.mu.Lock()
	defer held.mu.Unlock()
	held.all = slices.DeleteFunc(held.all, func(o *flock) bool { return o == l })
}

// TellNewcomers says in the log, until ctx ends, that another process was refused a lock that this one holds. Whoever is refused
// says so as well, and ends; but two of them mean a mistake in somebody's settings, and people look at the one that works. Of
// one lock it is said once a minute at most. What is held for a moment alone, as in turns, is nobody's claim.
func TellNewcomers(ctx context.Context, log *slog.Logger) {
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
		held.mu.Lock()
		all := slices.Clone(held.all)
		held.mu.Unlock()
		for _, l := range all {
			if time.Since(l.since) < lookEvery {
				continue
			}
			if pid := l.refused(); pid != 0 {
				waiting[l] = pid
			}
			pid := waiting[l]
			if at, before := told[l]; pid == 0 || before && time.Since(at) < tellEvery {
				continue
			}
			log.LogAttrs(ctx, slog.LevelWarn, "another process wanted what this one uses, and was refused",
				slog.String("lock", l.name), slog.Int("pid", pid))
			told[l] = time.Now()
			delete(waiting, l)
		}
		for l := range told {
			if !slices.Contains(all, l) {
				delete(told, l)
				delete(waiting, l)
			}
		}
	}
}
