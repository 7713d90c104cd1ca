package coordinator

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/explain"
)

// maxLabels bounds the labels of a token, and of a question.
const maxLabels = 16

var labelForm = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,62})=([A-Za-z0-9._-]{0,63})$`)

// sortedLabels returns labels in order, or says what is wrong with them. Labels help
// people to find members, and decide nothing.
func sortedLabels(labels []string) (_ []string, problem string) {
	if len(labels) > maxLabels {
		return nil, fmt.Sprintf("%d are above %d", len(labels), maxLabels)
	}
	keys := make(map[string]bool)
	for _, l := range labels {
		m := labelForm.FindStringSubmatch(l)
		switch {
		case m == nil:
			return nil, fmt.Sprintf("%q is not KEY=VALUE with letters, digits, dots, dashes and underscores, at most 63 on each side", clip(l, maxShownBytes))
		case keys[m[1]]:
			return nil, fmt.Sprintf("key %s stands there twice", m[1])
		}
		keys[m[1]] = true
	}
	out := slices.Clone(labels)
	slices.Sort(out)
	return out, ""
}

// matching returns what decides whether a request is about a member; nil for all.
func matching(req *fealtyv1.ListMembersRequest) (keep func(memberRecord) bool, err error) {
	if req.GetHost() == "" && len(req.GetLabels()) == 0 {
		return nil, nil
	}
	if _, problem := sortedLabels(req.GetLabels()); problem != "" {
		return nil, explain.New(explain.RequestField, "field", "labels", "problem", problem)
	}
	return func(r memberRecord) bool {
		return (req.GetHost() == "" || strings.EqualFold(r.Machine.Host, req.GetHost())) &&
			!slices.ContainsFunc(req.GetLabels(), func(l string) bool { return !slices.Contains(r.Labels, l) })
	}, nil
}
