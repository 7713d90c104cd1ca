// Package finding makes the findings that status shows: what in a cluster needs somebody's
// attention.
package finding

import (
	"fmt"
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/errcode"
)

// FoldAbove is up to how many members have a finding each, and how many are named where
// there are more.
const FoldAbove = 3

// New makes a finding of an entry of the registry of package errcode. fields are names and
// values in turn; see [errcode.New].
func New(code errcode.Code, fields ...any) *fealtyv1.Finding {
	e := errcode.New(code, fields...)
	return &fealtyv1.Finding{Code: string(code), Severity: Warning, Summary: e.What + ": " + e.Why, Remedy: e.Do}
}

// NewCritical is [New] for what makes the cluster of no use for something that it is there for:
// nothing can be changed, or nobody can join.
func NewCritical(code errcode.Code, fields ...any) *fealtyv1.Finding {
	f := New(code, fields...)
	f.Severity = Critical
	return f
}

// The severities.
const (
	Critical = "critical"
	Warning  = "warning"
	Info     = "info"
)

// A Case is one member of which something is found.
type Case struct {
	Member string // its path, "<kind>/<name>"
	Value  string // what is found of it, such as since when
}

// Fold makes a finding of each case, or a single one of all if there are more than
// [FoldAbove]: what has happened to many at once has one cause. field is the field of code
// that takes the value of a case.
func Fold(code errcode.Code, field string, all []Case) []*fealtyv1.Finding {
	var out []*fealtyv1.Finding
	if len(all) <= FoldAbove {
		for _, c := range all {
			out = append(out, New(code, "member", c.Member, "name", c.Member, field, c.Value))
		}
		return out
	}
	var named []string
	for _, c := range all[:FoldAbove] {
		named = append(named, c.Member)
	}
	named = append(named, fmt.Sprintf("and %d more", len(all)-FoldAbove))
	return []*fealtyv1.Finding{New(code, "member", strings.Join(named, ", "), "name", all[0].Member,
		field, all[0].Value+", of the first of them")}
}

// Altered makes one finding of the records that were altered in the store, by their keys; none of none. effect says
// what that comes to, as a part of a sentence: each kind of record has its own.
func Altered(effect string, keys []string) []*fealtyv1.Finding {
	if len(keys) == 0 {
		return nil
	}
	named := strings.Join(keys[:min(len(keys), FoldAbove)], ", ")
	if more := len(keys) - FoldAbove; more > 0 {
		named += fmt.Sprintf(", and %d more", more)
	}
	return []*fealtyv1.Finding{NewCritical(errcode.StoreForged, "what", named, "effect", effect)}
}

// Rank orders findings by severity, the most urgent first; below 0 if the severity is none
// that there is.
func Rank(f *fealtyv1.Finding) int {
	return slices.Index([]string{Critical, Warning, Info}, f.GetSeverity())
}
