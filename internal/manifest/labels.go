package manifest

import (
	"fmt"
	"regexp"
	"slices"
)

// MaxLabels bounds the labels of an entry, of a token, and of a question.
const MaxLabels = 16

var form = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,62})=([A-Za-z0-9._-]{0,63})$`)

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
	parts := form.FindStringSubmatch(label)
	if parts == nil {
		return "", fmt.Sprintf("%q is not KEY=VALUE with letters, digits, dots, dashes and underscores, "+
			"at most 63 on each side", label[:min(len(label), 128)])
	}
	return parts[1], ""
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
