package command

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/errcode"
)

// JoinText joins two texts by a colon, unless one is blank or they are the same.
func JoinText(a, b string) string {
	if a == "" || b == "" || a == b {
		return a + strings.TrimPrefix(b, a)
	}
	return a + ": " + b
}

// SayAltered says what a list leaves out because its records were altered in the store.
func SayAltered(say func(text string, args ...any), altered []string) {
	if len(altered) > 0 {
		say("left out, because their records were altered in the store (fealty explain %s says what to do): %s",
			errcode.StoreForged, strings.Join(altered, ", "))
	}
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

// AtTheLatest says by when a domain that moves passes on, as the end of a sentence; "" if nobody waits.
func AtTheLatest(d *fealtyv1.Domain) string {
	if d.GetWaitsUntil() == nil {
		return ""
	}
	return "; at the latest at " + When(d.GetWaitsUntil()) + ", as its lease is over then"
}
