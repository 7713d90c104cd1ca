package execute

// Limits of an entry.
const (
	MaxTextBytes = maxTextBytes
	MaxNamed     = maxNamed
)
