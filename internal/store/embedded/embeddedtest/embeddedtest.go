// Package embeddedtest finds the program fealty-store for tests that start it.
package embeddedtest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Program returns the path of fealty-store: FEALTY_STORE_BIN, or what tools/store.sh built in bin. A test without one
// fails.
func Program(tb testing.TB) string {
	tb.Helper()
	path, err := Find()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Find is [Program] for who has no test at hand.
func Find() (string, error) {
	if path := os.Getenv("FEALTY_STORE_BIN"); path != "" {
		return path, nil
	}
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			break
		}
		if at == filepath.Dir(at) {
			return "", errors.New("embeddedtest: not within the source tree, so set FEALTY_STORE_BIN to a fealty-store")
		}
	}
	path := filepath.Join(at, "bin", "fealty-store")
	if _, err := os.Stat(path); err != nil {
		return "", errors.New("embeddedtest: there is no bin/fealty-store, and these tests need it: run tools/store.sh, " +
			"which builds it, or set FEALTY_STORE_BIN")
	}
	return path, nil
}
