package manifest

// Bounds that nobody outside needs; the others are in form.go.
const (
	maxFields         = 64      // of an object; none has more than 10
	maxMarks          = 250_000 // that begin or end a token; 10,000 entries of one line each have 200,000
	maxSelectorBytes  = 512
	maxRecipientBytes = 4096
	maxRootsPEMBytes  = 256 << 10
	maxRoots          = 64
)

// defaultTrust is what a manifest means that does not say. It is part of the format, as the defaults in
// form.go.
const defaultTrust = TrustRoot
