// Package subjects says for whom a snapshot is: who makes one names its subject, and who holds some looks for it by
// that.
package subjects

import (
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/snapshotdoor"
	"github.com/fealty-io/fealty/snapshot"
)

// The functions.
var (
	// Node is the node with id that enrolled with the key incarnation. A node that enrolls again, under the same name,
	// is another subject.
	Node = snapshotdoor.NodeSubject.(func(id identity.ID, incarnation identity.KeyID) snapshot.Subject)

	// Cluster is every member.
	Cluster = snapshotdoor.ClusterSubject.(func() snapshot.Subject)

	// Group is every member with exactly these roles and exactly these organizations, in whatever order they are given
	// here. The view of such a member is a function of the two, so that its group's content is made and kept once.
	Group = snapshotdoor.GroupSubject.(func(roles, organizations []string) snapshot.Subject)

	// Parse reads what snapshot.Subject.String prints.
	Parse = snapshotdoor.ParseSubject.(func(s string) (snapshot.Subject, error))
)
