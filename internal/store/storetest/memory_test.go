package storetest

import (
	"testing"

	"github.com/fealty-io/fealty/internal/store"
)

func memoryEngine(bug string) Engine {
	return Engine{New: func(t testing.TB, retain int) Database {
		m := NewMemory(retain)
		m.bug = bug
		return Database{
			Shared: true,
			Open:   func(testing.TB) store.Store { return m.Open() },
			Kill: func(t testing.TB, s store.Store) store.Store {
				s.Close()
				return m.Open()
			},
		}
	}}
}

func TestMemory(t *testing.T) { Run(t, memoryEngine("")) }
