// Package term writes output for a terminal: tables, facts and paragraphs that fit its width, in
// colours that only repeat what the words say; the formats table, JSON and YAML; and commands that
// can be pasted into a shell.
package term
