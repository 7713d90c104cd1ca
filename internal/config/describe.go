package config

import "github.com/fealty-io/fealty/internal/document"

// A FieldText explains one field of a kind.
type FieldText struct {
	Path  string // such as expose.address; a field of the objects of a list is named like one of an object
	About string
	Takes string // its form
	Unset string // what it means to leave it out; empty: it is required, where the object around it is given
}

// About says what the records of a kind are, in one sentence.
func About(kind Kind) string {
	switch kind {
	case KindDegraded:
		return "Bounds of what members may do out of reach of coordinators: of all records for a member the least counts, below what the manifest allows."
	case KindOrganization:
		return "A tenant, by its name in the manifest: records of an organization are given to its members alone."
	case KindPeer:
		return "A member that others may talk to, and where it is reached."
	case KindQoS:
		return "A share of the network, which services name."
	case KindResource:
		return "Something outside of the fleet that services reach through a connector."
	case KindRole:
		return "The terms of one of the five roles, which is its name: bounds of sessions, and whose tokens an ingress accepts."
	case KindRoute:
		return "Where traffic goes."
	case KindSecret:
		return "Where a secret is kept. The secret itself is never in the config."
	case KindService:
		return "A workload, and which members run it."
	case KindStorage:
		return "A place to get snapshots from beside the coordinators."
	}
	return ""
}

// Fields explains the fields of a kind, in the order in which people write them.
func Fields(kind Kind) []FieldText {
	r := newRecord(kind)
	if r == nil {
		return nil
	}
	return describe(allFields(r), "")
}

func describe(fields []field, path string) []FieldText {
	var out []FieldText
	for _, f := range fields {
		at := document.Join(path, f.name)
		out = append(out, FieldText{at, f.about, f.takes, f.unset})
		out = append(out, describe(f.fields, at)...)
	}
	return out
}
