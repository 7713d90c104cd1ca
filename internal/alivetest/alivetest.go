// Package alivetest shows that a method which says that nobody holds a lock for good waits for
// that lock.
package alivetest

import (
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Waits fails t unless alive waits while any one of locks is held, and ends once it is free.
// In is part of the name of the function that waits, as a stack shows it: "(*Queue).Alive".
func Waits(t *testing.T, in string, alive func(), locks ...sync.Locker) {
	t.Helper()
	for i, l := range locks {
		done := make(chan struct{})
		l.Lock()
		go func() { defer close(done); alive() }()
		for stacks := make([]byte, 1<<20); ; runtime.Gosched() {
			select {
			case <-done:
				t.Fatalf("it is alive while lock %d is held", i)
			default:
			}
			waits := func(stack string) bool {
				return strings.Contains(stack, "[sync.Mutex.Lock") && strings.Contains(stack, in)
			}
			each := strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n")
			if slices.ContainsFunc(each, waits) {
				break
			}
		}
		l.Unlock()
		<-done
	}
}
