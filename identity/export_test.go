package identity

// What the tests compare, and nobody else needs.
var (
	Scan        = scan
	ParseSlowly = parseSlowly
)
