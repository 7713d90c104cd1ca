package storetest

import (
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/conformance"
)

func memoryEngine() Engine {
	return Engine{New: func(t testing.TB, retain int) conformance.Database {
		m := NewMemory(retain)
		return conformance.Database{
			Shared: true,
			Open:   func() (store.Store, error) { return m.Open(), nil },
			Kill: func(s store.Store) (store.Store, error) {
				s.Close()
				return m.Open(), nil
			},
			Full: func(s store.Store, full bool) (store.Store, error) {
				m.SetFull(full)
				return s, nil
			},
		}
	}}
}

func TestMemory(t *testing.T) { Run(t, memoryEngine()) }
