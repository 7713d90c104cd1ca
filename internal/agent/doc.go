// Package agent runs the process on a member: it keeps the member certified and up to date, serves
// what it verified, and goes on when no coordinator can be reached.
//
// [Open] and [Agent.Run] keep a machine a member that package enroll made one. These
// are its promises:
//
//   - A renewal whose answer was lost is repeated with the same key, so that the cluster
//     sees one request.
//   - With every coordinator gone, Run goes on (I16). It ends with its context, or
//     when the member left.
//
// Package state verifies and keeps what it hears, in a folder of the form that package dir
// tells.
package agent
