// Package desktest is what tests do at the desk, or in the fleet, of package coordinatortest: they join, ban and
// remove members, put config, publish snapshots that a node reads, replace the seed, and read the audit log.
package desktest
