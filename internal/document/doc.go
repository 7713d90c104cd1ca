// Package document reads what people write (YAML, and JSON as a part of it) into
// values that know their line and column, and nothing that misleads: no anchors,
// tags, merge keys or duplicate fields, no number with two readings, no character
// that hides text. [Format] bounds what is read, so that a document of anyone's
// costs no more than its limits; [Decoder] turns it into typed values and collects
// all that is wrong, each with its place and a way to mend it.
//
// The package does no I/O. Its callers say what a document means.
package document
