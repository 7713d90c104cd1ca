// Package document reads YAML (and JSON, which is a part of it) that people write into values that
// know their line and column, and refuses what misleads: anchors, tags, merge keys, duplicate
// fields, numbers with two readings, characters that hide text.
//
// [Format] bounds what is read, so that no document costs more than its limits, whoever sent it.
// [Decoder] turns it into typed values and collects all that is wrong, each with its place and a
// way to mend it. [NameProblem] checks names of tenants, profiles, providers and machines, which
// have to fit into fences, log lines and labels of metrics.
//
// The package does no I/O. Its callers say what a document means.
package document
