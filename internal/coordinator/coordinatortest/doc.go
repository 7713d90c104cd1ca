// Package coordinatortest runs real coordinators for tests. A [Desk] has no loops and no listeners,
// its store and disk are in memory, and its time stands still. A [Fleet] serves on listeners over a
// store: on loopback over SQLite or a server, or all in memory ([NewFleetIn]), where time can be
// virtual. Both have the steps that tests share: join, ban and remove members, put config, publish
// snapshots that a node reads, replace the seed, and read the audit log.
//
// Members that need no real coordinator are tested with package nodetest.
package coordinatortest
