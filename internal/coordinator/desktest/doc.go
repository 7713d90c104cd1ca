// Package desktest is what tests do at the desk, or in the fleet, of package coordinatortest: they ban and
// remove members, put config, and publish snapshots that a node reads.
package desktest
