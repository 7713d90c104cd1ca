// Package state keeps on disk what a member has accepted: verified from its own bytes, and never
// replaced by something older.
//
//   - Each snapshot and grant is verified from its own bytes, as if it came from an enemy,
//     before anything of it is kept. A refusal changes nothing and its reason is kept
//     (I14).
//   - A kill or a power cut at any instant leaves the old state or the new one, whole
//     (I13).
//   - Nothing accepted of a scope ever goes down (I11): the marks are durable before a
//     snapshot is used.
//   - Its clock is never behind what was signed.
//
// It asks nobody and serves nobody: it imports neither gRPC nor what dials, and counts
// nothing for metrics.
//
// The form of the folder is that of package dir, and a [Store] owns its lock. Everything
// in it is verified again at each start.
//
// A join is one write: joined.json holds all that it gives, and from then on the
// node has joined; spreading it over the other files is repeated by whoever opens
// the folder next. A snapshot goes to pending, the marks are raised, and then
// it takes the place of the active one; a start that finds a pending snapshot
// which the marks know finishes that.
//
// Of what is damaged, a snapshot falls back to the previous one, is reported, and
// fetched anew. Lost marks do not make a new node: what is on disk stays unused,
// and serves as a floor, until a coordinator that proves itself has said what
// holds now, scope by scope. A damaged identity is an error to a person (FE-N102).
//
// A copy of the whole folder on another machine cannot be told from the
// original here: that takes a key which cannot be copied, in hardware. The
// cluster notices it, because each renewal makes the key before it worthless and
// an older one an alarm.
package state
