// Package agent is the process on a member: it joins, keeps the member certified and up
// to date, serves what it verified, and goes on alone.
//
// [Join] makes a machine a member, [Open] and [Agent.Run] keep it one, [Login]
// does for a person what Join does for a machine. What is promised:
//
//   - A join or renewal whose answer was lost is repeated with the same key, so that the
//     cluster sees one request.
//   - With every coordinator gone, Run goes on (I16). It ends with its context, or
//     when the member left.
//
// Package state verifies and keeps what it hears, in a folder of the form that package dir
// tells.
package agent
