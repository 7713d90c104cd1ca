package auditing // inside: it holds the lock of a queue

import (
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Whoever asks whether the queue is alive waits while its lock is held.
func TestAlive(t *testing.T) {
	q, done := New(Config{}), make(chan struct{})
	q.mu.Lock()
	go func() { defer close(done); q.Alive() }()
	for stacks := make([]byte, 1<<20); ; runtime.Gosched() {
		select {
		case <-done:
			t.Fatal("it is alive while its lock is held")
		default:
		}
		waits := func(stack string) bool {
			return strings.Contains(stack, "[sync.Mutex.Lock") && strings.Contains(stack, "(*Queue).Alive")
		}
		each := strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n")
		if slices.ContainsFunc(each, waits) {
			break
		}
	}
	q.mu.Unlock()
	<-done
}
