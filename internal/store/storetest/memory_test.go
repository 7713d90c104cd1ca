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
		}
	}}
}

func TestMemory(t *testing.T) { Run(t, memoryEngine()) }
