package command

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// JoinText joins two texts by a colon, unless one is blank or they are the same.
func JoinText(a, b string) string {
	if a == "" || b == "" || a == b {
		return a + strings.TrimPrefix(b, a)
	}
	return a + ": " + b
}

// Itoa writes a number for people.
func Itoa(n int64) string { return strconv.FormatInt(n, 10) }

// Number is a number of 64 bits as JSON readers keep it.
func Number(n uint64) string { return strconv.FormatUint(n, 10) }

// SortedKeys returns the keys of m in their order.
func SortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// ReadAll reads r to its end, which has to come within limit bytes.
func ReadAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("it has more than %d bytes", limit)
	}
	return data, err
}
