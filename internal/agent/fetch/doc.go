// Package fetch gets what is signed for a member, from whoever has it.
//
// Coordinators are asked first, then mirrors, and then other members for what is not for the
// node alone. Each answer is verified in the same way: nothing that a source says is
// trusted. A content is pulled exactly, by the size and the hash that are signed. An error of
// a source is no news from it, and others are asked.
package fetch
