package coordinator

import (
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/manifest"
)

// matching returns what decides whether a request is about a member; nil for all.
func matching(req *fealtyv1.ListMembersRequest) (keep func(record.Member) bool, err error) {
	if req.GetHost() == "" && len(req.GetLabels()) == 0 {
		return nil, nil
	}
	if _, problem := manifest.SortedLabels(req.GetLabels()); problem != "" {
		return nil, explain.New(explain.RequestField, "field", "labels", "problem", problem)
	}
	return func(r record.Member) bool {
		return (req.GetHost() == "" || strings.EqualFold(r.Machine.Host, req.GetHost())) &&
			!slices.ContainsFunc(req.GetLabels(), func(l string) bool { return !slices.Contains(r.AllLabels(), l) })
	}, nil
}
