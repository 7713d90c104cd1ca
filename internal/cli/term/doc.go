// Package term shows things to people on a terminal: tables, facts and paragraphs that fit its
// width, in colours that only repeat what the words say.
package term
