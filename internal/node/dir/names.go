package dir

import "github.com/fealty-io/fealty/snapshot"

// Names in the folder, with slashes; see the package documentation.
const (
	// SocketName is the file of the local API, unless it is put elsewhere.
	SocketName = "agent.sock"
	// SVIDName is the file with the node's key and certificates, in PEM.
	SVIDName = "identity/svid.pem"

	LockName       = "lock"
	NextName       = "identity/next.key"
	AnchorName     = "identity/anchor.json"
	LeftName       = "identity/left" // while a node that leaves removes its files
	JournalName    = "identity/joined.json"
	MarksAName     = "marks.a"
	MarksBName     = "marks.b"
	EmergencyAName = "emergency.a"
	EmergencyBName = "emergency.b"
	RefusalsName   = "refusals.json"
	ClockName      = "clock.json"
	BehindName     = "behind.json"
	DegradedName   = "degraded.json"
	StoreName      = "store.json"
	StateName      = "state.json"

	// WorkloadsName is the folder with keys and certificates of workloads.
	WorkloadsName = "workloads"
)

// Limits on what is read back, in bytes.
const (
	MaxSVIDBytes     = 64 << 10
	MaxKeyBytes      = 8 << 10
	MaxAnchorBytes   = 64 << 10
	MaxMarksBytes    = 2 << 20
	MaxRefusalsBytes = 64 << 10
	MaxClockBytes    = 4 << 10
	MaxBehindBytes   = 4 << 10
	MaxStoreBytes    = 4 << 10
	MaxStateBytes    = 256 << 10
	MaxJournalBytes  = 32 << 20
)

// Places of a snapshot.
const (
	Active   = "active"
	Pending  = "pending"
	Previous = "previous"
	Refused  = "refused"
)

// SnapshotName is the file of what has a place of a scope: the exact bytes as received.
func SnapshotName(scope snapshot.Scope, place string) string {
	return "snapshots/" + string(scope) + "." + place
}

// FilesOf names the files of a scope from which it could come back into use.
func FilesOf(scope snapshot.Scope) []string {
	return []string{SnapshotName(scope, Active), SnapshotName(scope, Previous), SnapshotName(scope, Pending)}
}

// CurrentName is the file with the content in use of a scope.
func CurrentName(scope snapshot.Scope) string { return "current/" + string(scope) + ".json" }
