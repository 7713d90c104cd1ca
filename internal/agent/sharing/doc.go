// Package sharing lets members give each other the trust bundle and the snapshots of a common group while no
// coordinator can be reached.
//
// That is the trust bundle, for each member, and what is signed for the group of this node,
// for a member of the same group. A snapshot of one node is given to nobody. The bytes
// are those that were received and verified, and whoever gets them verifies them again.
//
// A member shows by its own node_runtime that it is in the group: the header of that is
// signed, names the member, and has its roles and organizations. A connection alone says
// only who it is.
package sharing
