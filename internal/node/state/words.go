package state

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/errcode"
)

// Stamp is t in a sentence.
func Stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Clip bounds a text and makes it printable UTF-8.
func Clip(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "?")
}

// OneLine is err for a status line.
func OneLine(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*errcode.Error](err); ok {
		return Clip(fmt.Sprintf("%s: %s (%s)", e.Code, e.What, e.Why), MaxDetailBytes)
	}
	return Clip(strings.ReplaceAll(err.Error(), "\n", "; "), MaxDetailBytes)
}

// MaxDetailBytes bounds a refusal's sentence.
const MaxDetailBytes = 512
