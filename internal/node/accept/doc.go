// Package accept takes in snapshots and grants that a member receives while its agent runs, and
// tells what the member may do with them.
//
// A [Node] holds what was accepted and what is in use of it. Changes are made one after the other,
// each in the order that a crash needs: pending, marks, active, and then memory. So what is in use
// is on disk, but for what the disk did not take, which is told and mended. Its parts:
//
//   - [Autonomy] tells what the node may do by now, and notes when it had no news (I15).
//   - [Trials] end what is on trial, by its time or by the word of those who use it.
//   - [Derived] keeps the files that others read up to what is in use.
//   - [Clock] writes down what time it was at the least.
//
// It asks nobody and serves nobody. An agent brings what it heard, and [Reports] tell it what
// becomes of it.
package accept
