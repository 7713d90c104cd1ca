package manifest

import (
	"fmt"
	"regexp"
	"slices"
)

// later are the fields that an earlier release cannot read, by the names that the
// reference gives them: to it they are unknown, and the whole manifest is refused. A new
// field gets a row here, and stays as long as releases without it may be in use.
var later = [...]struct {
	name string
	has  func(m *Manifest) bool
}{
	{"admit.labels", func(m *Manifest) bool {
		return slices.ContainsFunc(m.Admit, func(e Entry) bool { return len(e.Labels) > 0 })
	}},
	{"baseline", func(m *Manifest) bool { return m.Baseline.stated }},
	{"baseline.data", func(m *Manifest) bool { return m.Baseline.stated }},
}

// LaterFields returns the names of the fields that this release reads and an earlier one
// may not: what a coordinator tells the others of itself.
func LaterFields() []string {
	out := make([]string, len(later))
	for i, f := range later {
		out[i] = f.name
	}
	return out
}

// LaterFields returns those of [LaterFields] that m has.
func (m *Manifest) LaterFields() []string {
	var out []string
	for _, f := range later {
		if f.has(m) {
			out = append(out, f.name)
		}
	}
	return out
}

// MaxLabels bounds the labels of an entry, of a token, and of a question.
const MaxLabels = 16

var labelForm = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,62})=([A-Za-z0-9._-]{0,63})$`)

// SortedLabels returns labels, each KEY=VALUE, in order, or says what is wrong with them.
// Labels help people to find members, and decide nothing.
func SortedLabels(labels []string) (_ []string, problem string) {
	if len(labels) > MaxLabels {
		return nil, fmt.Sprintf("%d are above %d", len(labels), MaxLabels)
	}
	keys := make(map[string]bool)
	for _, l := range labels {
		key, problem := labelKey(l)
		switch {
		case problem != "":
			return nil, problem
		case keys[key]:
			return nil, fmt.Sprintf("key %s stands there twice", key)
		}
		keys[key] = true
	}
	out := slices.Clone(labels)
	slices.Sort(out)
	return out, ""
}

// labelKey returns the key of a label, or says what is wrong with it.
func labelKey(label string) (key, problem string) {
	form := labelForm.FindStringSubmatch(label)
	if form == nil {
		return "", fmt.Sprintf("%q is not KEY=VALUE with letters, digits, dots, dashes and underscores, at most 63 on each side", label[:min(len(label), 128)])
	}
	return form[1], ""
}

// WithLabels returns the labels of base and over, sorted: of two with one key that of
// over.
func WithLabels(base, over []string) []string {
	byKey := make(map[string]string, len(base)+len(over))
	for _, l := range slices.Concat(base, over) {
		key, _ := labelKey(l)
		byKey[key] = l
	}
	out := make([]string, 0, len(byKey))
	for _, l := range byKey {
		out = append(out, l)
	}
	slices.Sort(out)
	return out
}
