// Package desktest is what tests do at the desk of package coordinatortest: they ban and
// remove members, put config, and publish snapshots that a node reads.
package desktest
