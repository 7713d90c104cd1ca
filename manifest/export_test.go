package manifest

// Overlaps reports whether one selector may match both.
func Overlaps(p, q Pattern) bool { return p.overlaps(q) }

// Covers reports whether p matches all that q matches.
func Covers(p, q Pattern) bool { return p.covers(q) }
