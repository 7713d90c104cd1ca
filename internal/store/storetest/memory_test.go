package storetest

import (
	"testing"

	"github.com/fealty-io/fealty/internal/store"
)

func memoryEngine() Engine {
	return Engine{New: func(t testing.TB, retain int) Database {
		m := NewMemory(retain)
		return Database{
			Shared: true,
			Open:   func(testing.TB) store.Store { return m.Open() },
			Kill: func(t testing.TB, s store.Store) store.Store {
				s.Close()
				return m.Open()
			},
			Full: func(t testing.TB, s store.Store, full bool) store.Store {
				m.SetFull(full)
				return s
			},
		}
	}}
}

func TestMemory(t *testing.T) { Run(t, memoryEngine()) }
