package coordinator

import (
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/manifest"
)

// matching returns what decides whether a request is about a member; nil for all.
func matching(req *fealtyv1.ListMembersRequest) (keep func(memberRecord) bool, err error) {
	if req.GetHost() == "" && len(req.GetLabels()) == 0 {
		return nil, nil
	}
	if _, problem := manifest.SortedLabels(req.GetLabels()); problem != "" {
		return nil, explain.New(explain.RequestField, "field", "labels", "problem", problem)
	}
	return func(r memberRecord) bool {
		return (req.GetHost() == "" || strings.EqualFold(r.Machine.Host, req.GetHost())) &&
			!slices.ContainsFunc(req.GetLabels(), func(l string) bool { return !slices.Contains(r.labels(), l) })
	}, nil
}

// labels are those of the member's entry and of its token: of two with one key that of
// the token, which is closer to it.
func (m *memberRecord) labels() []string {
	if len(m.EntryLabels) == 0 {
		return m.Labels
	}
	return manifest.WithLabels(m.EntryLabels, m.Labels)
}
