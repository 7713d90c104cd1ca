package node

// Action names what a program asks [Node.Permit] about: docs/reference/degraded-actions.md says of each what ends it.
type Action string

// These go on while the node has no news, where the policy of the cluster allows it and within its bounds.
const (
	ContinueServices    Action = "continue_services"     // run the services that are assigned
	PreserveRoutes      Action = "preserve_routes"       // use the routes that are known
	PreserveSessions    Action = "preserve_sessions"     // keep sessions of clients that are open
	ReconnectPeers      Action = "reconnect_peers"       // look for active, warm and bootstrap peers
	ValidatePeers       Action = "validate_peers"        // judge peers by the local trust bundle
	UseStorageEndpoints Action = "use_storage_endpoints" // fetch snapshots from the storage endpoints
	ReportLater         Action = "report_later"          // keep what happened, and report it afterwards
)

// These begin something new, and take a record that is no older than announced.
const (
	StartServices  Action = "start_services"  // that do not run yet: they may be somebody else's by now
	ResolveSecrets Action = "resolve_secrets" // of a reference that was not resolved yet
	AdmitSessions  Action = "admit_sessions"  // of clients that have none yet
)

// These are for coordinators to decide. No node does them out of contact, whatever a policy says.
const (
	ApproveEnrollment        Action = "approve_enrollment"
	IssueCertificates        Action = "issue_certificates"
	AssignRoles              Action = "assign_roles"
	ChangeClusterPolicy      Action = "change_cluster_policy"
	ChangeOrganizationPolicy Action = "change_organization_policy"
	RotateTrustRoots         Action = "rotate_trust_roots"
	PromotePartition         Action = "promote_partition"
	FetchUnrelatedSecrets    Action = "fetch_unrelated_secrets"
	CreateServiceAuthority   Action = "create_service_authority"
)

// actions are all of them. A test holds them to the table of the agent's guard.
var actions = []Action{ContinueServices, PreserveRoutes, PreserveSessions, ReconnectPeers, ValidatePeers,
	UseStorageEndpoints, ReportLater, StartServices, ResolveSecrets, AdmitSessions, ApproveEnrollment, IssueCertificates,
	AssignRoles, ChangeClusterPolicy, ChangeOrganizationPolicy, RotateTrustRoots, PromotePartition, FetchUnrelatedSecrets,
	CreateServiceAuthority}
