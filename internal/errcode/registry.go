package errcode

import "google.golang.org/grpc/codes"

// This file is the registry: every code and everything that is said about it. A
// code that is used and not here, or here and not used, fails the tests.

// Authorization.
const (
	Unauthenticated  Code = "FE-A101"
	Denied           Code = "FE-A102"
	CallerNoIdentity Code = "FE-A103"
	CallerMismatch   Code = "FE-A104"
	CallerBanned     Code = "FE-A105"
	CallerExpired    Code = "FE-A106"
	CallerOutlived   Code = "FE-A107"
	AuditBroken      Code = "FE-A108"
	AuditWrong       Code = "FE-A109"
	AuditUnreadable  Code = "FE-A110"
)

// Credentials and certificates.
const (
	CredentialUnusable Code = "FE-C101"
	TLSFilesIncomplete Code = "FE-C102"
	CertificateRefused Code = "FE-C103"
	LoginNeeded        Code = "FE-C104"
	CredentialMismatch Code = "FE-C105"
	CredentialExpired  Code = "FE-C106"
	CredentialForeign  Code = "FE-C107"
)

// Desired config, and what is compiled from it.
const (
	ConfigInvalid Code = "FE-D101"
	ConfigStale   Code = "FE-D102"
	ConfigInUse   Code = "FE-D103"
	ConfigExposed Code = "FE-D104"

	ConfigNotGiven     Code = "FE-D111"
	SnapshotUncompiled Code = "FE-D112"
	AssignmentHeld     Code = "FE-D113"
)

// Fencing.
const (
	GrantsExhausted   Code = "FE-F101"
	StatementUnsigned Code = "FE-F102"
	DomainUnfit       Code = "FE-F103"
	DomainTooMany     Code = "FE-F104"
	DomainExhausted   Code = "FE-F105"
	ProcessOvertaken  Code = "FE-F106"
	DomainKind        Code = "FE-F107"
	DomainOwnerGone   Code = "FE-F108"
	DomainOwnerSilent Code = "FE-F109"
	DomainMoving      Code = "FE-F110"
)

// History and manifest.
const (
	ManifestInvalid      Code = "FE-H101"
	ManifestUnsigned     Code = "FE-H102"
	ManifestMissigned    Code = "FE-H103"
	ManifestStale        Code = "FE-H104"
	HistoryUninitialized Code = "FE-H105"
	HistoryInitialized   Code = "FE-H106"
	HistoryInvalid       Code = "FE-H107"
	ManifestLeavesOut    Code = "FE-H108"
	SetupRefused         Code = "FE-H109"
	ManifestOtherKind    Code = "FE-H110"
	SignatureOther       Code = "FE-H111"
	SignatureStale       Code = "FE-H112"
	SignatureForeign     Code = "FE-H113"
	SignatureTwice       Code = "FE-H114"
	SignatureFileBad     Code = "FE-H115"
	ReseedUnprepared     Code = "FE-H120"
	ManifestOutdated     Code = "FE-H121"

	CoordinatorWithoutCertificate Code = "FE-H122"
	CoordinatorCertificateForeign Code = "FE-H123"
	CoordinatorCertificateOther   Code = "FE-H124"
	CoordinatorCertificateRenames Code = "FE-H125"
	ManifestFieldUnread           Code = "FE-H126"
	OperatorRootsEnd              Code = "FE-H127"
	TrustRotating                 Code = "FE-H130"
	TrustFull                     Code = "FE-H131"
	EmergencyRefused              Code = "FE-H132"
)

// Join.
const (
	JoinWrongCluster  Code = "FE-J101"
	JoinUnauthorized  Code = "FE-J102"
	JoinKindMismatch  Code = "FE-J103"
	JoinBanned        Code = "FE-J104"
	JoinBadCSR        Code = "FE-J105"
	JoinEntryFull     Code = "FE-J106"
	JoinNameTaken     Code = "FE-J107"
	JoinClone         Code = "FE-J108"
	JoinClockWrong    Code = "FE-J109"
	ProofStale        Code = "FE-J110"
	ProofOtherSession Code = "FE-J111"
	ProofUnknownType  Code = "FE-J112"
	JoinNoBinding     Code = "FE-J113"
	JoinGrantRefused  Code = "FE-J114"

	JoinCertificateForeign Code = "FE-J115"
	JoinCertificateExpired Code = "FE-J116"
	JoinCertificateUnfit   Code = "FE-J117"
	JoinOtherMember        Code = "FE-J118"
)

// Keys and keepers; leadership.
const (
	KeeperUnusable  Code = "FE-K101"
	KeeperCannot    Code = "FE-K102"
	KeyFileUnusable Code = "FE-K104"
	KeyFileLocked   Code = "FE-K105"
	KeeperElsewhere Code = "FE-K106"
	KeeperUnopened  Code = "FE-K107"
	KeeperNotHere   Code = "FE-K108"
	KeeperLastCopy  Code = "FE-K109"

	NobodyLeads Code = "FE-L101"
	LeaderUnfit Code = "FE-L102"
)

// Membership; node and agent.
const (
	RenewEntryGone    Code = "FE-M101"
	RejoinGraceOver   Code = "FE-M102"
	RenewOlderKey     Code = "FE-M103"
	MemberOwnsDomains Code = "FE-M104"
	MemberBaseline    Code = "FE-M105"
	MemberExpired     Code = "FE-M106"
	MemberSilent      Code = "FE-M107"
	MemberInContact   Code = "FE-M108"
	MemberNotDraining Code = "FE-M109"
	StreamReplaced    Code = "FE-M110"
	MemberCopied      Code = "FE-M111"
	MemberStale       Code = "FE-M112"
	MemberClock       Code = "FE-M113"
	MemberOlderKey    Code = "FE-M114"

	NodeNotJoined     Code = "FE-N101"
	NodeStateCorrupt  Code = "FE-N102"
	NodeNoCoordinator Code = "FE-N103"
	NodeWrong         Code = "FE-N104"
	SnapshotRefused   Code = "FE-N105"
	NodeJoined        Code = "FE-N106"
	NodeLocked        Code = "FE-N107"

	ActionNeedsContact Code = "FE-N108"
	ActionNotAllowed   Code = "FE-N109"
	ActionBoundOver    Code = "FE-N110"

	NodeStateNewer  Code = "FE-N111"
	NodeDiskRefuses Code = "FE-N112"

	ActionUnknown Code = "FE-N113"

	SnapshotUnreadable Code = "FE-N120"
	SnapshotNone       Code = "FE-N121"
	MirrorNoNews       Code = "FE-N122"
)

// Recovery.
const (
	RecoveryMode        Code = "FE-R101"
	RecoveryNotNeeded   Code = "FE-R102"
	RecoveryOver        Code = "FE-R103"
	ShareWrong          Code = "FE-R104"
	ShareOld            Code = "FE-R105"
	ShareForeign        Code = "FE-R106"
	ShareNoOwner        Code = "FE-R107"
	ShareUnusable       Code = "FE-R108"
	RecoveryUnproven    Code = "FE-R109"
	RecoveryHistory     Code = "FE-R110"
	RecoveryUnexpected  Code = "FE-R111"
	RecoverySeedRefused Code = "FE-R112"
	RecoveryNoShares    Code = "FE-R113"
	DoneNotInForce      Code = "FE-R114"
	HeadNotFollowed     Code = "FE-R115"

	CoordinatorUnheard    Code = "FE-R116"
	CoordinatorRecovering Code = "FE-R117"
	CoordinatorHeard      Code = "FE-R118"

	PeerRefused   Code = "FE-R120"
	PeerBehind    Code = "FE-R121"
	RootNotPinned Code = "FE-R122"

	BackupUnusable  Code = "FE-R130"
	BackupNoReader  Code = "FE-R131"
	BackupReseeding Code = "FE-R132"

	RestoreUnfinished Code = "FE-R133"
	RestoreUnsigned   Code = "FE-R134"
	RestoreUnfit      Code = "FE-R135"
	RestoreOccupied   Code = "FE-R136"
	RestoreClock      Code = "FE-R137"
)

// Verification of a cluster, and what was seen of it.
const (
	VerifyUnproven  Code = "FE-R141"
	VerifyHistory   Code = "FE-R142"
	VerifyManifest  Code = "FE-R143"
	VerifyAuthority Code = "FE-R144"
	HistoryWentBack Code = "FE-R145"
	HistoryForked   Code = "FE-R146"
	MarkUnusable    Code = "FE-R147"
)

// Store; providers.
const (
	StoreLocked         Code = "FE-S101"
	StoreFull           Code = "FE-S102"
	StoreUnreachable    Code = "FE-S103"
	StoreOutcomeUnknown Code = "FE-S104"
	StoreForged         Code = "FE-S105"
	StoreNewerSchema    Code = "FE-S106"
	StoreBusy           Code = "FE-S107"
	StoreLoginRefused   Code = "FE-S108"
	StoreUnsuitable     Code = "FE-S109"
	PublishDirFailed    Code = "FE-S110"
	StoreOccupied       Code = "FE-S111"
	StoreWentBack       Code = "FE-S112"
	StoreClaimed        Code = "FE-S113"
	StoreRefuses        Code = "FE-S118"
	StoreHeld           Code = "FE-S119"
	StoreOverloaded     Code = "FE-S120"
	StoreUnrecorded     Code = "FE-S121"

	ContractBroken Code = "FE-P101"
	ShardFenced    Code = "FE-P102"
	ShardPaused    Code = "FE-P103"
)

// Token.
const (
	TokenUnknown   Code = "FE-T101"
	TokenSpent     Code = "FE-T102"
	TokenExpired   Code = "FE-T103"
	TokenForeign   Code = "FE-T104"
	TokenRevoked   Code = "FE-T105"
	TokenMalformed Code = "FE-T106"
	TokenRequest   Code = "FE-T107"
	TokenOtherKind Code = "FE-T108"
)

// Usage and configuration.
const (
	UnknownCommand          Code = "FE-U101"
	UnknownFlag             Code = "FE-U102"
	BadValue                Code = "FE-U103"
	UnknownKey              Code = "FE-U104"
	FileMissing             Code = "FE-U105"
	NoCoordinatorConfigured Code = "FE-U106"
	RequestField            Code = "FE-U107"
	NotFound                Code = "FE-U108"
	Conflict                Code = "FE-U109"
	WaitRanOut              Code = "FE-U110"
	Interrupted             Code = "FE-U111"
	NotConfirmed            Code = "FE-U112"
	BadSetting              Code = "FE-U113"
	AddressUnusable         Code = "FE-U114"
	FileExists              Code = "FE-U115"
	FileNotWritten          Code = "FE-U116"
	StoryFailed             Code = "FE-U117"
	FolderUnusable          Code = "FE-U118"
	LoginRefused            Code = "FE-U119"
	LogFailing              Code = "FE-U120"
	NoFilesLeft             Code = "FE-U121"
	SocketForbidden         Code = "FE-U122"
)

// Transport.
const (
	Unreachable          Code = "FE-X101"
	OutcomeUnknown       Code = "FE-X102"
	MessageTooLarge      Code = "FE-X103"
	RateLimited          Code = "FE-X104"
	PeerUntrusted        Code = "FE-X105"
	PeerIdentityMismatch Code = "FE-X106"
	PeerNoIdentity       Code = "FE-X107"
	PeerExpired          Code = "FE-X108"
	PeerRejectedUs       Code = "FE-X109"
	PeerProtocol         Code = "FE-X110"
	Internal             Code = "FE-X111"
	PeerOtherCluster     Code = "FE-X112"
)

// registry is read only; its rows stand in the order of their codes.
var registry = []Entry{
	{
		Code:  Unauthenticated,
		Title: "no identity was shown",
		What:  "{method|the call} was refused: the caller showed no certificate",
		Why:   "this method is not open to strangers, and the connection has no verified client certificate",
		Do:    "get an identity first: fealty login for a person, fealty join for a node",
		Exit:  ExitDenied, GRPC: codes.Unauthenticated,
		Page: `
Only a few methods are open to a caller without a certificate: joining, recovering, and verifying. Every
other one needs a certificate of this cluster in the TLS handshake. On the machine of a coordinator or an
agent its local socket works too: there the kernel says who is calling. ` + "`fealty authz`" + ` prints who
may call what.`,
	},
	{
		Code:  Denied,
		Title: "this caller may not do this",
		What:  "{method|the call} was refused to {identity|the caller}",
		Why:   "{reason|the method is for other kinds of caller}",
		Do:    "see who may with fealty authz, and ask one of them",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
Each method lists the kinds that may call it, and the list is strict: an admin does not pass as a shard.
The answer is the same whether or not the thing asked for exists. The coordinator logs every refusal with
the identity and the address that it came from, and counts it in ` + "`fealty_authz_denied_total`" + `.`,
	},
	{
		Code:  CallerNoIdentity,
		Title: "the certificate identifies nobody",
		What:  "{method|the call} was refused: the caller's certificate identifies nobody",
		Why:   "{problem|an identity is exactly one SPIFFE id of this cluster in the certificate}",
		Do:    "look at the certificate with fealty cert show, and join again for one of this cluster",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
The chain verified, but the leaf has no URI name, several, or one of another trust domain. Such a
certificate proves that somebody is known without saying who, so every call on it is refused.`,
	},
	{
		Code:  CallerMismatch,
		Title: "the message names somebody else",
		What:  "{method|the call} was refused: it speaks for {asserted|another member}",
		Why:   "the caller's certificate says {identity|something else}, and a caller speaks only for itself",
		Do:    "call with the identity that the message names, or leave that name out",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
No server believes a name in a message that the caller's certificate does not carry. If this appears
without a change on your side, a node runs with the data directory or the certificate of another one.`,
	},
	{
		Code:  CallerBanned,
		Title: "the caller is banned",
		What:  "{identity|the caller} was refused: it is banned",
		Why:   "{reason|an admin banned this identity or its key}",
		Do:    "if the ban is a mistake, an admin lifts it with fealty member unban, and the member joins again",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
Coordinators refuse a banned identity, and any key that it had, from the moment of the ban: calls, renewals and new joins.
Running streams are cut within five seconds, at members that reach a coordinator too. A member that reaches none does not
hear of the ban: there the certificate ends it.`,
	},
	{
		Code:  CallerExpired,
		Title: "the caller's certificate has expired",
		What:  "{identity|the caller} was refused: its certificate has expired",
		Why:   "it was valid until {not_after|a time that has passed}, and the clock here says {now|later}",
		Do:    "let the agent renew it: fealty status on that node says why it has not",
		Exit:  ExitDenied, GRPC: codes.Unauthenticated,
		Page: `
An expired certificate ends calls and streams within a second, also on a connection that was made when it
was valid. A member renews long before that; one that was offline for longer rejoins by itself within
` + "`rejoin_grace`" + `, by proof of its last key.`,
	},
	{
		Code:  CallerOutlived,
		Title: "the caller's root was replaced",
		What:  "{identity|the caller} was refused: its certificate ended with the root that it came from",
		Why:   "the cluster got a new seed, and the old root vouches for no coordinator, admin or reader any more",
		Do:    "log in again, with the pin of the new root: fealty login with a new token, or --root-pin",
		Exit:  ExitDenied, GRPC: codes.Unauthenticated,
		Page: `
A reseed puts another root in the place of the one in force. Members keep their certificates and renew them under
the new root; who decides for others is cut off at once, as an old seed could make such certificates. Join tokens
that name the old root have ended too: get a new one. Take the new pin from a person, and not from the network.`,
	},
	{
		Code:  AuditBroken,
		Title: "the audit log was altered",
		What:  "the audit log is not what the coordinators wrote",
		Why:   "{problem|an entry of it was altered, moved or removed}; it was found at {found|the time that the log names}",
		Do:    "see what is left of it with fealty audit verify, compare it with a backup and with the log of each coordinator, and look who can write to the database",
		Exit:  ExitDegraded, GRPC: codes.DataLoss,
		Page: `
Each coordinator chains its audit entries by their hashes. Once a minute the leader signs a checkpoint of all chains,
after it compared them with the checkpoint before, and it reads one older checkpoint and the entries behind it again.
Every coordinator remembers the last checkpoint that it saw, and the leader how far each chain was behind one: a note of
that in the store which vanished or went back is told too, and made anew. A log that does not fit was changed past
Fealty: by somebody who can write to the store, or by a database that lost something.

The finding stands in the next checkpoint, so that ` + "`fealty audit verify`" + ` goes on naming it. The finding
ends after a week. The chain that is broken gets no more entries behind a checkpoint; coordinators begin new ones within
the hour. ` + "`fealty_audit_breaks_total`" + ` counts, and an alert goes with it.

A restore of an older backup is no break: who signed it wanted it.`,
	},
	{
		Code:  AuditWrong,
		Title: "an audit log does not verify",
		What:  "the audit log does not verify: {count|some} problems",
		Why:   "{problem|an entry was altered, moved or removed}",
		Do:    "keep the file as it is, and find out who can write to the store: fealty explain FE-A108",
		Exit:  ExitFailed, GRPC: codes.DataLoss,
		Page: `
` + "`fealty audit verify`" + ` compares every entry with the checkpoint that vouches for it, every checkpoint with the
one before it, and the newest with the config signing keys of a trust bundle. Each problem is named with its rule:

- ` + "`altered`" + `, ` + "`missing`" + `, ` + "`duplicate`" + `, ` + "`stray`" + `, ` + "`entry`" + `: an entry is not what was written, or not where.
- ` + "`checkpoint`" + `, ` + "`checkpoint-order`" + `, ` + "`checkpoint-link`" + `, ` + "`line`" + `, ` + "`first-kept`" + `: a checkpoint is.
- ` + "`signature`" + `, ` + "`cluster`" + `: a checkpoint was made by somebody else.
- ` + "`key`" + `: the newest is under no key of the trust bundle. Right after a new seed, or with an older bundle, get the
  bundle in force and verify again; the leader signs one under its new keys within seconds.
- ` + "`known-checkpoint`" + `: the one that was named with ` + "`--known`" + ` is not there, so that the log was cut or made anew.
- ` + "`break`" + `: the leader itself found something wrong when it made a checkpoint.
- ` + "`without-checkpoint`" + `: nothing vouches for the log yet; wait a minute.`,
	},
	{
		Code:  AuditUnreadable,
		Title: "a file is no audit log",
		What:  "{file|the file} is no audit log that can be read",
		Why:   "{problem|it does not begin as one}",
		Do:    "write one with: fealty audit list --export FILE",
		Exit:  ExitUsage, GRPC: codes.InvalidArgument,
		Page: `
` + "`fealty audit verify FILE`" + ` reads what ` + "`fealty audit list --export FILE`" + ` writes: lines of JSON, of which the first
names the format ` + "`fealty.audit/v1`" + ` and the cluster, and each other one key of the store and its exact value.`,
	},

	{
		Code:  CredentialUnusable,
		Title: "certificate or key cannot be used",
		What:  "the credentials from {source|their source} cannot be used",
		Why:   "{problem|they did not pass the checks}",
		Do:    "mend the files; a running process keeps its last good ones and tries again by itself",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
New material is adopted only if certificate and key belong together, the certificate is in date, its chain
verifies, and it carries exactly one identity. A process that already has good material keeps it, says so
once for each change in its log, and counts ` + "`fealty_credential_reload_failures_total`" + `. At start
there is nothing to keep, so the process ends.`,
	},
	{
		Code:  TLSFilesIncomplete,
		Title: "some of the three TLS flags are missing",
		What:  "the TLS flags are incomplete: {missing|some} missing",
		Why:   "--tls-cert, --tls-key and --tls-ca are given together or not at all",
		Do:    "give all three, or none to use another proof",
		Exit:  ExitConfig, GRPC: codes.InvalidArgument,
		Page: `
A flag that was forgotten must not turn checks off without a word, so that some of the three are an error
at start and never a weaker mode.`,
	},
	{
		Code:  CertificateRefused,
		Title: "a certificate does not verify",
		What:  "certificate {certificate|given} was refused",
		Why:   "{problem|it does not verify}",
		Do:    "look at it with fealty cert show; a member gets a new one with its next renewal",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
The answer of ` + "`fealty cert verify`" + `, by the rules that every process of a cluster verifies its peers
with: the exact profile of leaf, mesh CA and root, their dates, and one SPIFFE id. A root alone cannot tell
whether a mesh CA key is still accepted or an identity is banned; trust bundles say that.`,
	},
	{
		Code:  LoginNeeded,
		Title: "there is no login to use",
		What:  "there is no identity to use in {dir|the identity folder}",
		Why:   "{problem|nobody logged in there}",
		Do:    "{do|log in: fealty login --token-file FILE --identity DIR}",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
A person's identity lasts for hours and is not renewed: whoever still may log in does so again. On the machine
of a coordinator its local socket works without one.`,
	},
	{
		Code:  CredentialMismatch,
		Title: "certificate and key do not belong together",
		What:  "the key in {key|the key file} is not that of the certificate in {certificate|its file}",
		Why:   "a certificate proves its holder only with its own private key",
		Do:    "write both files anew together; a running process keeps its last good ones and tries again by itself",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
Half of a rotation looks like this: one of the two files is of the new certificate, the other one of the old.
A process that already has good material keeps it until both files agree, and says so in its log, in ` + "`fealty status`" + `
and in ` + "`fealty_credential_reload_failures_total`" + `. At start there is nothing to keep, so the process ends.`,
	},
	{
		Code:  CredentialExpired,
		Title: "the certificate in the files is out of date",
		What:  "the certificate in {certificate|its file} is out of date",
		Why:   "{problem|it is past its end or before its start}",
		Do:    "have your PKI issue a new one, or set this machine's clock",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
The certificate or one of its issuers is past its end or before its start, by the clock of this machine. It
is not sent to a coordinator, which would refuse it. A process that already has good material keeps it and
looks at the files again by itself.`,
	},
	{
		Code:  CredentialForeign,
		Title: "the certificate is not of the CA that was given",
		What:  "the certificate in {certificate|its file} does not verify by the CA certificates in {ca|their file}",
		Why:   "{problem|they do not vouch for it}",
		Do:    "give the CA certificates that your PKI issues from, and the issuers below the root in the certificate's file",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
Before a certificate is proven to a coordinator it is verified by the CA file that came with it, so that a
wrong file, a missing intermediate or a certificate that is not for client authentication shows on the machine
itself. A process that already has good material keeps it and looks at the files again by itself.`,
	},

	{
		Code:  ConfigInvalid,
		Title: "config records have problems",
		What:  "the config {file|given} was not accepted, problems: {count|one or more}",
		Why:   "{problem|see the list}",
		Do:    "mend it and look at the result first: fealty config put -f {file|FILE} --dry-run",
		Exit:  ExitConfig, GRPC: codes.InvalidArgument,
		Page: `
Records are read strictly: an unknown field, a value of another form, a name twice, a reference to what is not
there or to what belongs to another organization are each an error with its record and field. So is what looks
like a secret: it is not shown, and has to be kept elsewhere, with a record of kind secret that says where. If
it stood in a file, replace it. All problems are reported at once. Nothing was changed.`,
	},
	{
		Code:  ConfigStale,
		Title: "the config has changed since",
		What:  "the config was not changed: somebody else changed it first",
		Why:   "the change was meant for version {expected|it was made from}, and the config is at version {version|another}",
		Do:    "look at what is there now with fealty config list, and try again with its version",
		Exit:  ExitConflict, GRPC: codes.Aborted,
		Page: `
Each write of config makes a new version of the whole. A caller that names the version that a change was made from is
refused if there is another one by now, so that nobody undoes what he has not seen.`,
	},
	{
		Code:  ConfigInUse,
		Title: "config records that others refer to",
		What:  "{record|a record} was not deleted",
		Why:   "{problem|other records refer to it}",
		Do:    "delete those in the same command, or put them first without the reference; fealty config get shows one",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A record that others refer to is not deleted: what they say would be about nothing. Nothing was changed.`,
	},
	{
		Code:  ConfigExposed,
		Title: "the config holds what looks like a secret",
		What:  "{count|some} records of the config hold what looks like a raw secret",
		Why:   "they were put before this release knew the form; the first is {record|one of them}, in {field|a field}: {problem|it looks like one}",
		Do:    "keep it elsewhere: put a record of kind secret that says where, name that in the field secrets of {record|the record}, put {record|it} without the value, and replace the secret",
		Exit:  ExitDegraded, GRPC: codes.FailedPrecondition,
		Page: `
A release learned to recognize a form of password, key or token after the record was put. A rule binds what is new: the
record stays in force and nodes keep what they have, since they refuse no form in a snapshot that earlier releases did not
refuse. Whoever reads the config, its backups or the disk of a node that gets the record can read the secret: replace it, and not only the
record. The record cannot be put again as it is, and the finding goes when none is left.`,
	},
	{
		Code:  ConfigNotGiven,
		Title: "the config asks for what is not given",
		What:  "{record|a record} is left out of the {scope|snapshots}",
		Why:   "{problem|somebody it names may not have it}",
		Do:    "{remedy|look at it: fealty config get KIND NAME}",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A record can name a member that there is not, or that is banned, does not serve the record's organization, or
has none of its roles; it can ask for a role to hold what no node with that role may hold; and what it is about
or leads to can have been revoked by name. Nobody is given that: not in part, and not until somebody looks. Everything
else in the config is given as if the record were not there. It is counted in ` + "`fealty_compile_removed_total`" + `
by scope and reason, and the finding goes with its cause.`,
	},
	{
		Code:  SnapshotUncompiled,
		Title: "a snapshot could not be compiled",
		What:  "no new snapshots are made for {subjects|some members or groups}",
		Why:   "{problem|see the coordinator's log}",
		Do:    "see what changed last, and take that back: fealty config list; the members keep what they have",
		Exit:  ExitDegraded, GRPC: codes.Internal,
		Page: `
The content for members and groups is compiled from the manifest and the config. Where that fails, the last
snapshot stays signed and in force, the others are made, and the failed one is tried again with every change.
A group is all members with the same roles and organizations. ` + "`fealty_snapshot_uncompiled`" + ` counts
the members and groups without a new one.`,
	},
	{
		Code:  AssignmentHeld,
		Title: "a member keeps services that the config lost",
		What:  "{members|some members} keep their services for now",
		Why:   "{problem|the config has no records of almost all of them}",
		Do:    "if that is meant, wait two minutes; else put the records back: fealty config put FILE",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A member of at least 10 services of which the config has less than a tenth of the records keeps them until three looks
in a row, a minute apart, find the same. One that is placed elsewhere or revoked goes at once: its record is there.`,
	},

	{
		Code:  GrantsExhausted,
		Title: "a holder has had all grants",
		What:  "{member|the member} was given no grant: it has had the highest number there is",
		Why:   "a grant has 32 bits, so something asked for grants without end",
		Do:    "find out what: fealty audit list --action grant.give; then have the member join under another name",
		Exit:  ExitConflict, GRPC: codes.FailedPrecondition,
		Page: `
Each grant of a name is newer than all before it, for ever: a receiver that heard of one obeys nothing older. So the
numbers of a name that used them up cannot begin anew, and another name has its own. At ten grants a second they last
for thirteen years.`,
	},
	{
		Code:  StatementUnsigned,
		Title: "no key signs statements now",
		What:  "nothing was granted or assigned: no config signing key may sign now",
		Why:   "the newest one is not valid yet, or it expired or was revoked before another took its place",
		Do:    "see the keys with fealty trust show, and make another: fealty trust rotate",
		Exit:  ExitUnreachable, GRPC: codes.Unavailable,
		Page: `
Grants and assignments are statements that the newest config signing key of the trust bundle signs. While none may,
what was granted and assigned before goes on to count, and a call is to be made again when there is a key.`,
	},
	{
		Code:  DomainUnfit,
		Title: "the member can own no domain now",
		What:  "the domain was not assigned to {member|the member}",
		Why:   "{problem|it is banned, its certificate ended, it drains, or no machine holds it}",
		Do:    "{remedy|name another member: fealty member list}",
		Exit:  ExitConflict, GRPC: codes.FailedPrecondition,
		Page: `
A domain goes to a member that a machine holds, whose certificate did not end, that is not banned and that does not
drain. A member that becomes
unfit while the owner before it lets go is not given the domain: it then belongs to nobody, and ` +
			"`fealty domain show`" + ` says so.`,
	},
	{
		Code:  DomainTooMany,
		Title: "there are too many domains",
		What:  "the domain was not assigned: {what|the cluster} has {limit|as many as may be}",
		Why:   "domains are for parts of a fleet that move as one, and not for single resources",
		Do:    "put several resources into one domain: fealty domain list shows those there are",
		Exit:  ExitConflict, GRPC: codes.ResourceExhausted,
		Page: `
A cluster has at most 10,000 domains, and a member owns at most 500. A domain is never removed, as its ownership
may not begin anew; one that nobody needs any more costs a record.`,
	},
	{
		Code:  DomainExhausted,
		Title: "a domain has had all ownerships",
		What:  "{domain|the domain} was not passed on: there is no ownership above the last one",
		Why:   "an ownership has 64 bits, of which the upper half is the authority epoch",
		Do:    "put its resources into a domain of another name: fealty domain assign NAME --to MEMBER",
		Exit:  ExitConflict, GRPC: codes.FailedPrecondition,
		Page: `
Each change of the owner takes the next ownership, so four billion changes within one authority epoch, or as many
authority epochs, lead here. No cluster has been seen to.`,
	},
	{
		Code:  ProcessOvertaken,
		Title: "another process of the member is in charge",
		What:  "this process of {member|the member} is told nothing any more",
		Why:   "{problem|another process of this member is in charge}",
		Do: "stop the one of the two that is not meant; then start the other one again, with a folder that no other " +
			"process has",
		Exit: ExitConflict, GRPC: codes.FailedPrecondition,
		Page: `
A shard asks for a grant when it starts, and names its life in each call to a coordinator. The coordinators serve the
newest life of the newest grant alone: what an older process polls, acknowledges, lets go or reports changes nothing. A
process that hears so is fenced, and acts no more; it reports that once, which is FE-P102. One whose grant was passed
by another that was never used is not fenced, as nobody is known to be in charge: start it again, and it gets the next.

A process of a release that names no life is served until one of its member does.`,
	},
	{
		Code:  DomainKind,
		Title: "only members of kind data and shard own domains",
		What:  "the domain was not assigned to {member|the member}",
		Why:   "only members of kind data and shard own domains, and this one is of kind {kind|another}",
		Do:    "name one of those: fealty member list --kind shard, or --kind data",
		Exit:  ExitUsage, GRPC: codes.InvalidArgument,
		Page: `
An owner asks the coordinators what it owns, and acts in it. People, providers, operators, witnesses and coordinators do
not.`,
	},
	{
		Code:  DomainOwnerGone,
		Title: "the owner of domains is gone",
		What:  "nobody acts in domains of {member|a member}",
		Why:   "{problem|it is banned, its certificate ended, or it is a member no more}",
		Do:    "give each to another member: fealty domain list --member {name|MEMBER}, and fealty domain assign DOMAIN --to MEMBER",
		Exit:  ExitUnhealthy, GRPC: codes.FailedPrecondition,
		Page: `
No coordinator and no member hears it, so it can neither let go nor be asked to. A domain that is assigned to another
member passes on at once: the owner that is gone is not waited for. What keeps it out is what keeps out every owner of
before: the new one acts at a provider once that promised the new ownership, and from then on obeys no other.

The leader passes on by itself what waits for an owner that is banned meanwhile. It does not for a certificate that ended,
as a clock that was set wrong ends them all: assign such a domain once more.`,
	},
	{
		Code:  DomainOwnerSilent,
		Title: "the owner of domains is not heard",
		What:  "no process of {member|a member} asks what it owns",
		Why:   "none was heard since {since|a while ago}",
		Do: "see that its process runs beside its agent and reaches a coordinator; if its machine is lost, give its domains " +
			"to another member: fealty domain assign DOMAIN --to MEMBER --force --reason TEXT",
		Exit: ExitUnhealthy, GRPC: codes.FailedPrecondition,
		Page: `
An owner asks every two seconds what it owns, and acts without an answer until its lease is over: degraded.max of the
manifest, and at least a minute. Then it does nothing in its domains. A process that was overtaken by another one is not
heard either: FE-P102 tells of it.`,
	},
	{
		Code:  DomainMoving,
		Title: "a domain waits for its owner to let go",
		What:  "domain {member|named} did not pass on yet",
		Why:   "it waits {until|for its owner}",
		Do: "see that the owner runs; or do not wait for it: fealty domain assign {name|DOMAIN} --to MEMBER --force " +
			"--reason TEXT",
		Exit: ExitUnhealthy, GRPC: codes.FailedPrecondition,
		Page: `
An owner that is there lets go when its cycle is over. One that is silent is waited for until the lease that it was given is
over, and an eighth longer, as clocks go wrong: degraded.max of the manifest, and at least a minute. The leader waits by a
clock that nobody sets, from when the owner was asked or from when it began to lead.`,
	},
	{
		Code:  ManifestInvalid,
		Title: "the manifest has problems",
		What:  "the manifest {file|given} was not accepted: {count|one or more} problems",
		Why:   "{problem|see the list}",
		Do:    "mend it and check it offline: fealty manifest verify {file|FILE}",
		Exit:  ExitConfig, GRPC: codes.InvalidArgument,
		Page: `
Parsing is strict. An unknown field, a duplicate name, an entry that nothing can match, two entries that
could give one identity two kinds, a threshold above the number of owners, no coordinator entry and no
signer are each an error with its line and field. All problems are reported at once. Nothing was changed.`,
	},
	{
		Code:  ManifestUnsigned,
		Title: "too few signatures for this change",
		What:  "{change|the manifest was not set}: valid signatures: {got|none} of {want|the number} needed",
		Why:   "the signers of the manifest in force have to sign the new manifest together with the current head",
		Do:    "let the signers sign it: {sign|fealty manifest set --sign-with KEY} for each of them",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
Authority changes only with the threshold of signers of the manifest that is in force, not of the one that
is proposed. An admin's identity carries a manifest to the coordinator; it does not authorize it. A key
counts once, however often it signed.`,
	},
	{
		Code:  ManifestMissigned,
		Title: "a signature does not fit",
		What:  "{change|the manifest was not set}: the signature of {signer|a signer} does not verify",
		Why:   "it was made over another manifest, over another head, or with another key",
		Do:    "fetch the current head with fealty manifest history -o wide (TRANSITION) and sign the exact bytes of the file again",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
A signature covers the exact bytes of the new manifest and the hash of the transition that it follows, so
that it cannot be used twice or on another history. An editor that changes a line end makes other bytes.`,
	},
	{
		Code:  ManifestStale,
		Title: "another manifest was set first",
		What:  "the manifest was not set: the history has moved on",
		Why:   "it was made for head {expected|of its time}, and the head is now {head|another} at index {index|above it}",
		Do:    "read what changed with fealty manifest diff, take it over, and have the result signed again",
		Exit:  ExitConflict, GRPC: codes.Aborted,
		Page: `
The head moves only to its own child, by compare-and-swap. Of two changes made for the same head one wins,
and the other one changes nothing and gets this answer with the new head.`,
	},
	{
		Code:  HistoryUninitialized,
		Title: "the cluster has no manifest yet",
		What:  "{method|the call} has to wait: the cluster has no manifest",
		Why:   "nobody has set the first manifest, so there is no authority that could admit or sign",
		Do:    "on the coordinator's machine: fealty manifest init, then fealty manifest set FILE",
		Exit:  ExitFailed, GRPC: codes.FailedPrecondition,
		Page: `
A new coordinator waits for its first manifest. It is set over the coordinator's local socket, or from
elsewhere with the one-time setup token that the coordinator wrote when it started. Setting it creates the
seed, from which the cluster's lasting keys derive.`,
	},
	{
		Code:  HistoryInitialized,
		Title: "the cluster has a manifest already",
		What:  "the first manifest was not set: cluster {cluster|here} has one",
		Why:   "it was initialized before, and a setup token works once",
		Do:    "change it as a signer: fealty manifest set FILE --sign-with KEY",
		Exit:  ExitConflict, GRPC: codes.AlreadyExists,
		Page: `
Only the first manifest can be set without signatures. If you did not initialize this cluster yourself,
compare its root with what you expect before you go on: ` + "`fealty verify --manifest FILE`" + `.`,
	},
	{
		Code:  HistoryInvalid,
		Title: "the history does not verify",
		What:  "the history of cluster {cluster|here} was refused at index {index|that is not told}",
		Why:   "{problem|the chain, a signature or the head does not verify}",
		Do:    "keep the store as it is, check it with fealty manifest verify-history, and restore a backup if it is damaged",
		Exit:  ExitRefused, GRPC: codes.DataLoss,
		Page: `
Every transition names the hash of the one before, is signed by those who were allowed to make it, and the
head is signed with a key that derives from the seed. A store that was edited, rolled back or mixed up with
another one does not pass, and nothing is adopted from it.`,
	},
	{
		Code:  ManifestLeavesOut,
		Title: "the manifest does not admit this coordinator",
		What:  "the manifest does not admit the coordinator that should serve it",
		Why:   "no entry of kind coordinator matches its enrolment key",
		Do:    "add match: [\"key:{key|ENROLMENT KEY}\"] to an entry of kind coordinator and set the manifest again",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A coordinator that its own manifest does not admit could neither certify itself nor get the seed back after a
restart, so that setting such a manifest would lock everybody out. ` + "`fealty status`" + ` on the
coordinator's machine shows its enrolment key.`,
	},
	{
		Code:  SetupRefused,
		Title: "the setup token does not fit",
		What:  "the first manifest was not set: the setup token was refused",
		Why:   "its signature does not verify for this manifest over this connection",
		Do:    "use the token that this coordinator wrote when it last started, or its local socket",
		Exit:  ExitDenied, GRPC: codes.Unauthenticated,
		Page: `
A coordinator without a manifest writes a setup token once, readable by its own user alone. It works for one
first manifest, on that coordinator, and over a connection that nothing in between ends.`,
	},
	{
		Code:  ManifestOtherKind,
		Title: "a set or a reshare asks for what the other one does",
		What:  "the {kind|change} was refused: it is not one",
		Why:   "{problem|a set keeps the owners of the seed, and a reshare changes nothing else}",
		Do:    "{do|make two changes of it, each signed for itself}",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
The owners of the seed change by ` + "`fealty manifest reshare`" + ` alone, which makes new shares and changes
nothing else. Everything else changes by ` + "`fealty manifest set`" + `. Their signatures differ, so that nobody
can pass off the consent to one as the consent to the other.`,
	},
	{
		Code:  SignatureOther,
		Title: "a signature is over something else",
		What:  "the signature {file|that was given} is not for this change",
		Why:   "{problem|it is over another manifest, or consents to another kind of change}",
		Do:    "have the signer sign this file: fealty manifest sign FILE --current HASH --key KEY",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
A signature covers the exact bytes of the file, the head that it follows, and whether it is a set or a reshare.
An editor that changes a line end makes other bytes. Nothing was sent.`,
	},
	{
		Code:  SignatureStale,
		Title: "a signature is for another head",
		What:  "the signature {file|that was given} was made for a head that is not the one in force",
		Why:   "it follows {expected|another head}, and the head is {head|another one}",
		Do:    "read what changed with fealty manifest diff, and sign again with --current {head|HEAD}",
		Exit:  ExitConflict, GRPC: codes.Aborted,
		Page: `
Somebody set another manifest after the signature was made. A signature works once, at the head that it names,
so that a change nobody looked at cannot slip in between. Nothing was sent.`,
	},
	{
		Code:  SignatureForeign,
		Title: "a signature is by no signer",
		What:  "{change|the manifest was not set}: {signer|a key} is none of the signers in force",
		Why:   "the signers of the manifest in force sign a change, not those of the one that is proposed",
		Do:    "leave this signature away; fealty manifest get shows who signs",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
A signature by a stranger is refused even where there are enough others: it is a mistake, or an attempt, and would
stay in the history for ever.`,
	},
	{
		Code:  SignatureTwice,
		Title: "one key signed twice",
		What:  "{change|the manifest was not set}: {signer|a key} signed it twice",
		Why:   "a key counts once towards the threshold, however often it signed",
		Do:    "give one signature of each signer",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
Two files with signatures by one key, or a file and a --sign-with of the same key, look like two people. They are
not counted as two, and not silently as one either.`,
	},
	{
		Code:  SignatureFileBad,
		Title: "a signature file cannot be used",
		What:  "signature file {file|given} cannot be used",
		Why:   "{problem|it is no signature that verifies}",
		Do:    "make it again with fealty manifest sign, and hand it over unchanged",
		Exit:  ExitConfig, GRPC: codes.InvalidArgument,
		Page: `
A signature file is one line of JSON that fealty manifest sign wrote. It was changed on the way, or is something else.`,
	},
	{
		Code:  ReseedUnprepared,
		Title: "no such seed is prepared",
		What:  "the seed was not changed: the coordinator does not hold the seed that was signed for",
		Why:   "{problem|a prepared seed is kept in memory alone, and not for long}",
		Do:    "prepare another one with fealty manifest reseed, and have that signed",
		Exit:  ExitConflict, GRPC: codes.FailedPrecondition,
		Page: `
A new seed is made by a coordinator, and exists in its memory alone until the signers have signed the public
keys that derive from it. It is dropped after an hour, when the coordinator stops, and when another one is
prepared. Nothing is lost by that: what was signed for it authorizes nothing else.`,
	},

	{
		Code:  ManifestOutdated,
		Title: "the manifest in force holds what would be refused today",
		What:  "the manifest in force has {count|some} places that could not be set today",
		Why:   "the first is: {problem|a rule came after it was set}",
		Do:    "mend it: fealty manifest get > manifest.yaml, fealty manifest verify manifest.yaml names each place; then set it again",
		Exit:  ExitDegraded, GRPC: codes.FailedPrecondition,
		Page: `
A release became stricter after this manifest was set. A rule binds what is new: the cluster goes on under the
manifest that its signers signed, and the next one has to be without these places. Three kinds are told so: characters
that nobody sees, behind which two names look like one; selectors that this release has no proof for, so that
their entry admits nobody (` + "`k8s:`, `tpm:`, `sevsnp:`" + `); and more brackets, quotes and line ends than are read today.`,
	},
	{
		Code:  CoordinatorWithoutCertificate,
		Title: "the manifest wants a certificate of this coordinator",
		What:  "the manifest does not admit this coordinator, which was given no certificate",
		Why:   "no entry of kind coordinator names its enrolment key, and those that admit by x509 are {entry|others}",
		Do:    "start it with --tls-cert, --tls-key and --tls-ca, or add match: [\"key:{key|ENROLMENT KEY}\"] to an entry of kind coordinator",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A coordinator proves its enrolment key, which is in its folder, and beside it a certificate of the operator's PKI
if it was given one. An entry ` + "`x509:…`" + ` of kind coordinator admits by the certificate alone.`,
	},
	{
		Code:  CoordinatorCertificateForeign,
		Title: "the manifest's roots do not vouch for this coordinator's certificate",
		What:  "the certificate in {certificate|--tls-cert} does not admit this coordinator",
		Why:   "entry {entry|of kind coordinator} wants one that leads to a root of the manifest, and this one does not: {problem|its issuer is none of them}",
		Do:    "have a CA issue it whose root stands in proofs.x509.roots_pem, or add that root to the manifest and set it at a coordinator that is ready",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
` + "`--tls-ca`" + ` says which CA the files come from, and the manifest says which CAs count. The coordinator follows the
files: it need not be started again when they are mended.`,
	},
	{
		Code:  CoordinatorCertificateOther,
		Title: "no entry matches this coordinator's certificate",
		What:  "the certificate in {certificate|--tls-cert} does not admit this coordinator",
		Why:   "it shows {shows|other names}, and the entries of kind coordinator that admit by x509 are {entry|others}",
		Do:    "give it a certificate of a name that an entry matches, or add match: [\"key:{key|ENROLMENT KEY}\"] to an entry of kind coordinator and set the manifest",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
The certificate is good, and the manifest names others. The coordinator follows the files: it need not be started
again when they are mended.`,
	},
	{
		Code:  CoordinatorCertificateRenames,
		Title: "the new certificate is that of another coordinator",
		What:  "the certificate in {certificate|--tls-cert} is not used: it makes another coordinator of this one",
		Why:   "this coordinator is {is|another one}, and entry {entry|of the manifest} gives the new certificate the name {shows|of another}; the one before stays in use",
		Do:    "put a certificate of the old name into the files, or stop the coordinator and start it with the new one",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A process keeps its identity. Files that belong to another coordinator are in the wrong place more often than they are
meant.`,
	},
	{
		Code:  ManifestFieldUnread,
		Title: "a coordinator cannot read a field of the manifest",
		What:  "the manifest was not set: coordinator {coordinator|of an earlier release} cannot read {field|one of its fields}",
		Why:   "it runs release {release|an earlier one}, which does not know that field: it would refuse the whole manifest, and serve no more",
		Do:    "upgrade that coordinator first; or leave the field out; or stop the coordinator, if it is to go, and set the manifest two minutes later",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A manifest is read strictly: what is not understood is refused. Each coordinator says in the store which of the newer
fields it reads, and a set waits for those that were heard in the last minutes. One that is not heard, or that the new
manifest does not admit, holds up nothing: it is in recovery mode when it comes back, until it is upgraded.`,
	},
	{
		Code:  OperatorRootsEnd,
		Title: "the last root of your own PKI ends",
		What:  "the last root in proofs.x509 of the manifest {ends|ends soon}",
		Why:   "{root|its subject is not known} ends at {at|a time that is not known}, and no other one lasts longer: after that nobody joins, logs in or is admitted by a certificate of your PKI",
		Do:    "add the next root to proofs.x509.roots_pem, beside this one, and set the manifest: fealty manifest get > manifest.yaml",
		Exit:  ExitDegraded, GRPC: codes.FailedPrecondition,
		Page: `
A root is taken into a manifest whatever its dates are: whether it is in date is a question for the moment of a proof. Once
the last one has ended every proof by a certificate is refused (` + "`FE-J115`" + `), while members that have their
identity go on. The finding comes 30 days before, and is critical when the time is over;
` + "`fealty_operator_roots_not_after_seconds`" + ` has the time for alerts.`,
	},
	{
		Code:  TrustRotating,
		Title: "a config signing key is being replaced",
		What:  "no other rotation was begun: key {key|before it} is replacing the config signing key",
		Why:   "members still need the old key, until {deadline|its deadline} at the latest",
		Do:    "wait until fealty trust show says that it ended; a key that was stolen is revoked at once, with --compromised",
		Exit:  ExitConflict, GRPC: codes.FailedPrecondition,
		Page: `
At most two keys sign at once. ` + "`fealty trust show`" + ` names the members that the rotation waits for: those whose
certificate is in date and who have not said that they hold everything under the new key. At the deadline the old key
leaves whether they have or not. A member that was away is told when it comes back.`,
	},
	{
		Code:  TrustFull,
		Title: "the trust bundle has no room",
		What:  "nothing was changed: the trust bundle cannot list more {what|entries}",
		Why:   "the limit is {limit|reached}, and what is revoked stays in it",
		Do:    "a new seed starts with an empty list of keys: fealty manifest reseed",
		Exit:  ExitRefused, GRPC: codes.ResourceExhausted,
		Page: `
Revocations only accumulate: a bundle that left one out could be followed by one that trusts what was revoked. A revoked
config signing key leaves the bundle when its validity ends; what is revoked by name stays for good. A quarter of the room
is for statements of the signers: fealty trust emergency.`,
	},
	{
		Code:  EmergencyRefused,
		Title: "an emergency statement does not count",
		What:  "nothing was revoked: the emergency statement does not count",
		Why:   "{problem|it is not what the signers of the manifest signed}",
		Do:    "{do|look at it with fealty trust emergency show FILE --manifest MANIFEST; have it signed again where it was changed, or by as many signers as the manifest asks for}",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A statement counts if the threshold of the signers of the manifest signed its exact bytes, for this cluster and the root
in force. A node knows the signers from its trust bundle, and takes an expired one for that. After a reseed earlier
statements count for nothing, because all keys are other ones. Two statements cannot have one number; they count in
whatever order they come.`,
	},
	{
		Code:  JoinWrongCluster,
		Title: "the join is for another cluster",
		What:  "the join was refused: it names cluster {presented|of another name}",
		Why:   "this coordinator serves {cluster|another cluster}",
		Do:    "check address and cluster id; a token that was made for that cluster holds both",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
This is the first thing that is checked, before any proof, so that a node never becomes a member of a
cluster that it did not mean. Which cluster answers is told only to a candidate whose proof verified.`,
	},
	{
		Code:  JoinUnauthorized,
		Title: "nothing admits this candidate",
		What:  "the join was refused: no entry of the manifest admits the candidate",
		Why:   "its proof shows {shown|nothing that an entry matches}",
		Do:    "an admin adds an entry that matches with fealty manifest set, or makes a token with fealty token create",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
The proof was good, and what it shows, its selectors, matches no entry under ` + "`admit`" + `. Nothing else
admits: neither the network that the candidate comes from nor the name that it asks for. Compare the
selectors above with the ` + "`match`" + ` lists; a star in a selector stands for any text.`,
	},
	{
		Code:  JoinKindMismatch,
		Title: "the entry allows another kind",
		What:  "{identity|the candidate} was not admitted as {requested|that kind}",
		Why:   "its entry allows {allowed|another kind}",
		Do:    "{do|ask for the kind that it allows with --kind, or have an admin change the entry with fealty manifest set}",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
An identity has one kind. A member whose entry was changed to another kind gets this answer when it joins
again, and its record stays as it was: remove the member first if the change is meant.`,
	},
	{
		Code:  JoinBanned,
		Title: "the candidate is banned",
		What:  "{identity|the candidate} was not admitted: it is banned",
		Why:   "an admin banned this identity or a key that it had",
		Do:    "if the ban is a mistake, an admin lifts it: fealty member unban {identity|MEMBER}",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
Banned keys are remembered for as long as a certificate over them could still be used to come back. A new
key does not help a banned identity, and a new name does not help a banned key.`,
	},
	{
		Code:  JoinBadCSR,
		Title: "the certificate request is not acceptable",
		What:  "the certificate request was refused",
		Why:   "{problem|it is malformed, or its key is of a type that is not allowed}",
		Do:    "send a PKCS #10 request of at most 8 KiB over a P-256 or Ed25519 key, without names",
		Exit:  ExitFailed, GRPC: codes.InvalidArgument,
		Page: `
Only the key of the request is believed. Names come from the manifest's entry, so that a request with names
in it is an error and not a wish. The agent makes correct requests by itself; this code appears with
programs that speak the protocol on their own.`,
	},
	{
		Code:  JoinEntryFull,
		Title: "the entry is full",
		What:  "the join was refused: entry {entry|of the manifest} is full",
		Why:   "it allows at most {max|a number of} members and has that many",
		Do:    "remove members that are gone with fealty member remove, or raise max_members with fealty manifest set",
		Exit:  ExitRefused, GRPC: codes.ResourceExhausted,
		Page: `
` + "`max_members`" + ` bounds what a leaked token or a mistaken pattern can admit. Members that exist
rejoin and renew as before; only new ones are refused.`,
	},
	{
		Code:  JoinNameTaken,
		Title: "the name belongs to a member",
		What:  "the join was refused: {identity|the name} is a member already",
		Why:   "the proof does not show that the candidate is that member",
		Do:    "{do|if the machine was replaced, an admin runs fealty member replace MEMBER; otherwise join under a free name}",
		Exit:  ExitConflict, GRPC: codes.AlreadyExists,
		Page: `
A token admits names that do not exist yet. A member comes back by its own last key or by a selector that is
unique to it, so that nobody takes over its record and domains with a token. ` + "`fealty member replace`" + `
bans the old machine's key and lets the new one in under the same name. A login has its name until its certificate ends.`,
	},
	{
		Code:  JoinClone,
		Title: "two machines use one identity",
		What:  "{identity|the member} was refused: an older key of it came back",
		Why:   "key {key|shown} was replaced by a newer one, so two machines hold state of this member",
		Do:    "find the copy; keep one machine, and give the other a name of its own or run fealty member replace {identity|MEMBER}",
		Exit:  ExitRefused, GRPC: codes.PermissionDenied,
		Page: `
A member gets a new key with every renewal, and only the last one counts. An older one means a copied data
directory, a restored disk image, or a stolen key. Nothing was changed, and an alarm was recorded. The
machine that holds the newest key goes on working.`,
	},
	{
		Code:  JoinClockWrong,
		Title: "a clock is wrong",
		What:  "the clocks of {who|this machine} and of the coordinator differ by {skew|more than is tolerated}",
		Why:   "it says {local|one time} where the coordinator says {remote|another}; at most {limit|2 minutes} are tolerated",
		Do:    "see which of the two is wrong, set it right, for one with an NTP client such as chrony, and try again",
		Exit:  ExitFailed, GRPC: codes.FailedPrecondition,
		Page: `
Certificates and snapshots are valid between two times, so that a clock that is far off makes good ones look expired or
not yet valid. The coordinator's clock is no authority: compare both with a third one before you change anything.`,
	},
	{
		Code:  ProofStale,
		Title: "the proof came too late",
		What:  "the join was refused: its proof is too old",
		Why:   "it is {age|too long} after the challenge, which has to be answered within {limit|30 seconds}, once",
		Do:    "try again; if it happens again, look for a slow network or a slow token device",
		Exit:  ExitDenied, GRPC: codes.Unauthenticated,
		Page: `
Each join answers a fresh challenge of the coordinator. An answer to an old one could be a recording.`,
	},
	{
		Code:  ProofOtherSession,
		Title: "the proof belongs to another connection",
		What:  "the join was refused: its proof was made for another connection",
		Why:   "the signature does not cover the binding of this TLS session",
		Do:    "connect to the coordinator without anything in between that ends TLS, and try again",
		Exit:  ExitDenied, GRPC: codes.Unauthenticated,
		Page: `
A proof covers a value that only the two ends of one TLS session know. A proxy or load balancer that ends
TLS has two sessions with two values: pass the connection through as plain TCP instead. Seen from the
coordinator it is the same as somebody who relays another node's proof.`,
	},
	{
		Code:  ProofUnknownType,
		Title: "the type of proof is not known",
		What:  "the join was refused: proof type {type|given} is not known here",
		Why:   "this coordinator verifies {known|other types}",
		Do:    "join with one of those, or upgrade the coordinators before the nodes",
		Exit:  ExitFailed, GRPC: codes.InvalidArgument,
		Page: `
Either the node is of a newer release than the coordinator, or the manifest's ` + "`proofs`" + ` section does
not configure this type.`,
	},
	{
		Code:  JoinNoBinding,
		Title: "the connection cannot carry a proof",
		What:  "the join was refused: its connection cannot carry a proof",
		Why:   "{problem|it has no binding that both ends know}",
		Do:    "connect with TLS 1.3 straight to the coordinator, without a proxy that ends TLS",
		Exit:  ExitDenied, GRPC: codes.FailedPrecondition,
		Page: `
A proof is tied to the TLS session that it is sent in. Without that tie somebody in the middle could use it,
so that there is no join without it.`,
	},
	{
		Code:  JoinGrantRefused,
		Title: "what was granted does not verify",
		What:  "the grant of {coordinator|the coordinator} was not accepted",
		Why:   "{problem|a part of it does not verify}",
		Do:    "try again; if it stays so, compare releases and clocks of both, and look at the coordinator's log",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A node verifies what it is granted as if it came from an enemy: the certificate is over its own key, of the kind that
it asked for, and verifies under the pinned root; the trust bundle and the first snapshot are signed for it. Nothing of
a grant that fails is kept but the key that was asked for, so that the next try is the same request.`,
	},
	{
		Code:  JoinCertificateForeign,
		Title: "no root of the manifest vouches for the certificate",
		What:  "the join was refused: the cluster does not know who issued the certificate",
		Why:   "its chain ends at issuer {issuer|that it names}, and no root in the manifest vouches for that",
		Do:    "send the issuers below the root too, or have an admin add the root to proofs.x509.roots_pem with fealty manifest set",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
The ` + "`x509`" + ` proof takes chains to the roots that the manifest names, and to no others: neither to those
of the coordinator's machine nor to the cluster's own. The file of ` + "`--tls-cert`" + ` holds the certificate and
its issuers below the root. An issuer of the right name and another key does not count. Nothing was changed.`,
	},
	{
		Code:  JoinCertificateExpired,
		Title: "the certificate that was proven is out of date",
		What:  "the join was refused: the certificate, or an issuer of it, is out of date",
		Why:   "it is valid from {not_before|its start} to {not_after|its end}, and it is {now|another time} at the coordinator",
		Do:    "have your PKI issue a new certificate, and compare the clocks of both machines",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
The coordinator's clock decides at a join. The certificate was genuine: its chain leads to a root that the
manifest names. Nothing was changed.`,
	},
	{
		Code:  JoinCertificateUnfit,
		Title: "the certificate cannot prove a candidate",
		What:  "the join was refused: the certificate is not one to prove with",
		Why:   "rule {rule|of the chain} ({section|of the standard}): {problem|it does not hold}",
		Do:    "have your PKI issue one for client authentication, over an ECDSA, Ed25519 or RSA key, that is not a CA's",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
A certificate proves a candidate if it is made for that: extended key usage client authentication, said explicitly; key
usage digital signature; no CA's; a chain of at most six certificates in order; a key of a type and size that is safe;
at most 16 names. The rule and the standard's section say which one does not hold. Nothing was changed.`,
	},
	{
		Code:  JoinOtherMember,
		Title: "the proof is not that of the member",
		What:  "the join was refused: what was proven is not member {claimed|as claimed}",
		Why:   "{problem|it is another member, or one that is no more}",
		Do:    "prove with what that member joined by; to make the machine another member, let it leave and join anew",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
A machine that is a member already says so when it enrols again. It gets its own record back or nothing: it
becomes no other member, and one that was removed does not come back without a person. A certificate that shows
another name than the one that the member joined by is the usual cause. Nothing was changed.`,
	},

	{
		Code:  KeeperUnusable,
		Title: "the keeper cannot be reached or read",
		What:  "keeper {keeper|of the seed} cannot be used",
		Why:   "{problem|it cannot be read}",
		Do:    "mend what it says; a coordinator that has the keys gives them to this one meanwhile",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
A keeper seals the seed for a restart without a human. For ` + "`file:`" + ` it is a key file that only the
coordinator's user may read (mode 0600), or that root gives to a group of that user (mode 0440), as Kubernetes mounts a
Secret for the pod's ` + "`fsGroup`" + `; for ` + "`exec:`" + ` a program that only root or that user can
change. The coordinator does not fall back to a weaker way by itself.`,
	},
	{
		Code:  KeeperCannot,
		Title: "the sealed seed does not open",
		What:  "keeper {keeper|of the seed} could not open what is stored",
		Why:   "{problem|it was sealed under another key, for another cluster, or at another head, or it was changed}",
		Do:    "give the coordinator the key that sealed it; a coordinator that has the keys gives them to this one meanwhile",
		Exit:  ExitRefused, GRPC: codes.DataLoss,
		Page: `
A sealed secret is bound to its cluster, its purpose and the head of the history, so that a copy from
elsewhere or from earlier does not open. Which of these is wrong cannot be told from outside.`,
	},
	{
		Code:  KeyFileUnusable,
		Title: "a key file cannot be used",
		What:  "key file {file|given} cannot be used",
		Why:   "{problem|it does not hold the key that is wanted}",
		Do:    "give {want|a PEM file (PKCS #8) with an Ed25519 private key} that only you can read: chmod 600 {file|FILE}",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
Signers and machines that join by a key hold an Ed25519 key in a file of their own, mode 0600.
` + "`fealty manifest init --signer-key-out FILE`" + ` makes one. A key that others can read is not used: it has
to be counted as theirs. Owners of a share open it with an age key file or an SSH key, under the same rule.`,
	},
	{
		Code:  KeyFileLocked,
		Title: "an encrypted key file was not opened",
		What:  "key file {file|given} is encrypted and was not opened",
		Why:   "{problem|the passphrase does not open it}",
		Do:    "{do|type the passphrase of this key on a terminal, or put it in a file of mode 0600 and give --passphrase-file FILE}",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
The passphrase of an owner's private key is asked for on the terminal, where it is not shown, or read from
` + "`--passphrase-file`" + `: its one line, of which the line end does not count. The file must be readable by its
owner alone; ` + "`/dev/fd/N`" + ` works too. A passphrase is no argument and no variable: others on the machine could
see those. Nothing was sent.`,
	},
	{
		Code:  KeeperElsewhere,
		Title: "a coordinator has no key that opens the seed",
		What:  "{coordinator|a coordinator} does not open the seed by itself",
		Why:   "{keepers|no keeper on its machine opens it}",
		Do:    "bring that key to this machine: copy the key file of a coordinator that has it, mode 0600, or name a keeper of its own in the manifest",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
Each coordinator looks each minute whether a keeper on its own machine opens the seed that is in force, and says
so in the status of all. This one goes on working, and is back after a restart while another coordinator runs.
When all of them are down it waits for one whose keeper opens the seed, or for the owners.

A keeper ` + "`file:PATH`" + ` is one in the manifest and a file on each machine. The key is made once, on the machine that
first sealed, and no other one is made in its place: two machines with one ` + "`file:`" + ` keeper need the same file. If
a file was restored from a backup, compare its key with the one that is named here: a file of an older cluster has
another one. A machine that has another key seals a copy under that key as well when a manifest is set there, and
no copy of another key is replaced.`,
	},
	{
		Code:  KeeperUnopened,
		Title: "no coordinator opens what a keeper sealed",
		What:  "no coordinator opens what keeper {keeper|of the seed} sealed under key {keys|that was lost}",
		Why:   "{problem|its key is on none of their machines}",
		Do:    "restore its key file from the backup; if it is lost for good: fealty manifest keeper forget {keeper|NAME} KEYID, then set a manifest, which seals again",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
The seed is in the memory of the coordinators that run, and with this keeper alone in nothing else that opens: mend
it before the last of them stops. Other keepers, and people with shares, are not touched by it.

A key that was lost is not replaced by itself. A new key in the same place would make the backup of the old one
worthless without a word, and an operator who then restores the backup would lose the new one. So say that it is
lost: with the last sealed copy forgotten, the next manifest that is set makes a key, and its answer names it.`,
	},
	{
		Code:  KeeperNotHere,
		Title: "a new seed needs the key of a keeper",
		What:  "this coordinator cannot seal a new seed by keeper {keeper|of the seed}",
		Why:   "it {here|has no key of it}, and the seed in force is sealed under key {keys|of another machine}: {who|another coordinator can}",
		Do:    "reseed at a coordinator that has this key, or copy {file|its key file} from there; a manifest without this keeper can be reseeded here too",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
The sealed copies of the old seed go with it. If the new seed were sealed under a key that this machine makes, the
keys on the other machines, and those in backups, would open nothing any more. So a reseed seals with the key that
opens the seed in force, on the machine that has it.

With a keeper for each machine no coordinator has the keys of all. Give the reseed a manifest with the keepers of
the machine where it is made, and bring the others back afterwards, each by a ` + "`fealty manifest reshare`" + ` at its own
coordinator.`,
	},
	{
		Code:  KeeperLastCopy,
		Title: "this copy is the last that opens",
		What:  "what keeper {keeper|of the seed} sealed under key {key|KEYID} is not forgotten",
		Why:   "a coordinator opens it, or did not say that it does not, and no other copy is known to open",
		Do:    "look at keepers in fealty status -o json; have another key seal first: restore its file, or name another keeper, and set a manifest",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
Without this copy no coordinator would be back by itself after all of them stopped. A coordinator of an earlier
release does not say which copies it opens, and counts as one that may open this one.`,
	},

	{
		Code:  NobodyLeads,
		Title: "no coordinator leads",
		What:  "no coordinator leads, for {since|more than 10s}",
		Why:   "{problem|none that is ready can reach the store and write there, or somebody keeps altering leader/term from outside}",
		Do:    "{remedy|look at the coordinators and their logs: fealty status; what members were told stays in force, and nothing new is compiled until one leads}",
		Exit:  ExitUnhealthy, GRPC: codes.Unavailable,
		Page: `
One coordinator leads: it compiles what members are told, ends rotations and prunes. The others take over by themselves
when they have not heard of it for a lease, which takes a second or two. If nobody does for longer, then no coordinator
that is ready can write the store. Joins, renewals and changes of config are served by every coordinator that is ready,
whoever leads; members learn of changes once somebody leads again.`,
	},
	{
		Code:  LeaderUnfit,
		Title: "leadership was not handed over",
		What:  "leadership was not handed over to {name|another coordinator}",
		Why:   "{problem|nobody else can lead}",
		Do:    "see which coordinators are ready: fealty status; then name one of them with --to, or none for any",
		Exit:  ExitConflict, GRPC: codes.FailedPrecondition,
		Page: `
A leader hands over to a coordinator that is ready and was heard of within the last minutes. One that stops hands over by
itself, so that a transfer is for moving work, as before maintenance of a machine.`,
	},
	{
		Code:  RenewEntryGone,
		Title: "no entry admits this member any more",
		What:  "{identity|the member} was not renewed: no entry of the manifest in force admits it",
		Why:   "the manifest was changed since it joined",
		Do:    "put its entry back with fealty manifest set, or let it go with fealty member drain and fealty member remove",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
Each renewal asks the manifest in force again. The certificate that the member holds works until it expires;
` + "`fealty manifest diff`" + ` shows beforehand which members a change would cut off.`,
	},
	{
		Code:  RejoinGraceOver,
		Title: "the member was away for too long",
		What:  "{identity|the member} was not renewed: its certificate has expired",
		Why:   "it ended at {not_after|a time that has passed}, and the grace of {grace|rejoin_grace} is over or switched off",
		Do:    "join again with a proof as at first: fealty join --token-file FILE, after fealty member replace if it used a token",
		Exit:  ExitDenied, GRPC: codes.Unauthenticated,
		Page: `
An expired certificate cannot be renewed. Within ` + "`rejoin_grace`" + ` the agent comes back by itself with
its last key; afterwards a proof as at first is needed. Record and domains of the member are kept. An agent that
was given ` + "`--tls-cert`, `--tls-key` and `--tls-ca`" + ` proves that certificate then, and needs nobody.`,
	},
	{
		Code:  RenewOlderKey,
		Title: "the renewal came with an older key",
		What:  "{identity|the member} was not renewed: it used key {key|of an older certificate}",
		Why:   "a newer key of this member was certified at {newer_at|a later time}, so two machines hold its state",
		Do:    "find the copy; if this machine is the right one, an admin runs fealty member replace {identity|MEMBER}",
		Exit:  ExitRefused, GRPC: codes.PermissionDenied,
		Page: `
Like FE-J108, met on renewal: a copied data directory or a restored image of the machine renews with a key
that was replaced since. Nothing was changed, and ` + "`fealty status`" + ` names the member (` + "`FE-M114`" + `).`,
	},
	{
		Code:  MemberOwnsDomains,
		Title: "the member still owns domains",
		What:  "{member|the member} was not removed: it owns {domains|some domains}",
		Why:   "removing an owner would leave its domains without one",
		Do:    "give them to others first: fealty domain list --member {member|MEMBER} and fealty domain assign",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
` + "`remove`" + ` is for members that are empty, also with ` + "`--force`" + `: a domain never loses its owner
by the way.`,
	},
	{
		Code:  MemberBaseline,
		Title: "fewer data members than the baseline",
		What:  "the cluster is below its resilience baseline",
		Why:   "{have|too few} data members are connected, {need|more} are needed; {note|witnesses do not count}",
		Do:    "{remedy|let more nodes of kind data join: fealty token create --entry ENTRY}",
		Exit:  ExitDegraded, GRPC: codes.FailedPrecondition,
		Page: `
The manifest says how many are needed: ` + "`baseline.data`" + `, 3 where it says nothing, and 0 for none. Three are the
least with which one can be lost or serviced while the others still outnumber it. Witnesses do not count, and neither
does a member that drains: it is about to go, and what it holds up must stand without it.

The baseline counts members that are connected, and not those that have joined. While a coordinator does not answer, or
the one that is asked became ready less than a minute ago, those that it may hear are unknown. If there would be enough with
them, the baseline is unknown too, and nobody is alarmed. The finding clears itself when enough are connected.`,
	},
	{
		Code:  MemberExpired,
		Title: "a member's certificate has expired",
		What:  "no valid certificate any more: {member|a member}",
		Why:   "the last one ended at {expired|a time that has passed}, and was not renewed",
		Do:    "see on that machine why: fealty status there; if it is gone for good, fealty member remove {name|MEMBER}",
		Exit:  ExitDegraded, GRPC: codes.FailedPrecondition,
		Page: `
A member renews many times within the life of its certificate, so that one that ran out was off, cut off, or
refused for a long time. Its record and domains are kept. Within ` + "`rejoin_grace`" + ` it comes back by
itself when it can reach a coordinator.`,
	},
	{
		Code:  MemberSilent,
		Title: "a member does not report",
		What:  "no reports come from {member|a member}",
		Why:   "the last one came {since|a while ago}",
		Do:    "see how long it works alone: fealty member show {name|MEMBER}; and there, whether its agent runs: fealty check node",
		Exit:  ExitDegraded, GRPC: codes.Unavailable,
		Page: `
Silence is not failure: the member may work on its verified snapshots without a coordinator in reach. Nothing
is moved away from it for being silent. While another coordinator does not answer, to which it may be connected, its
contact is *unknown*, and this is not said.`,
	},

	{
		Code:  MemberInContact,
		Title: "the member is at work",
		What:  "{member|the member} was not removed: it is at work",
		Why:   "{seen|it is in contact}, and it does not drain",
		Do:    "run fealty member drain {member|MEMBER} --wait, then remove it; for one that must go now: fealty member remove {member|MEMBER} --force --reason TEXT",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
Somebody who removes a member that is alive may have named the wrong one, so that it takes a second step. A member that
drains, is banned, or has not reported for two minutes is removed at once. A coordinator that just started, or comes
out of recovery mode, waits as long before it calls a member silent. It asks the other coordinators what they hear of the
member, and takes it for at work while one of them does not answer.`,
	},
	{
		Code:  MemberNotDraining,
		Title: "the member does not drain",
		What:  "{member|the member} will not be drained: it does not drain",
		Why:   "nobody marked it, or somebody put it back into service",
		Do:    "run fealty member drain {member|MEMBER} --wait",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
Nothing moves away from a member that is in service, so that waiting for it would only end with the time.`,
	},
	{
		Code:  StreamReplaced,
		Title: "another process runs as this member",
		What:  "the stream of {identity|the member} was ended: another process runs as the same member",
		Why:   "of two streams of one member the newer one stays",
		Do:    "stop the other process; if this machine, its disk or its data directory was copied, run fealty member replace MEMBER for the one that is to go on",
		Exit:  ExitConflict, GRPC: codes.Aborted,
		Page: `
A member is one process on one machine. When a second one connects with the same identity, the coordinator serves that
one and ends the stream of the first, which tries again after a while. Two that go on taking the place of each other
raise the alarm ` + "`FE-M111`" + ` within a minute. A process that was restarted takes the place of the one
before it, and that is all.`,
	},
	{
		Code:  MemberCopied,
		Title: "two machines hold one identity",
		What:  "two processes take the place of each other as {member|a member}: a machine or its data directory was copied",
		Why:   "the last time was at {at|a moment ago}",
		Do:    "find the copy and stop it, then give the machine that stays a new key: fealty member replace {name|MEMBER}; or fealty member ban {name|MEMBER}",
		Exit:  ExitUnhealthy, GRPC: codes.Aborted,
		Page: `
A copy holds the same key, so that nothing in a certificate tells the two apart. It shows that both run: each
stream that one of them opens ends that of the other. The member is served meanwhile, by turns. As both hold its key,
only a new one ends this: ` + "`fealty member replace`" + ` bans the key that both hold. The finding ends ten minutes after the
two took each other's place last.`,
	},
	{
		Code:  MemberStale,
		Title: "a connected member holds what is not fresh",
		What:  "{member|a member} is connected, and says that what it holds is not fresh",
		Why:   "it said so first at {since|a while ago}, and is sent what is newer at once",
		Do:    "see which scope, and what it refused: fealty member show {name|MEMBER}",
		Exit:  ExitDegraded, GRPC: codes.Unavailable,
		Page: `
A node renews what it holds long before it is stale. One that is connected and holds something stale for a minute refuses
what it is sent, or is sent nothing: the records that nobody could compile are findings of their own.`,
	},
	{
		Code:  MemberClock,
		Title: "a member's clock is behind",
		What:  "the clock of {member|a member} is {behind|more than two minutes} behind",
		Why:   "what was signed for it says so; it goes by the later of the two times",
		Do:    "set the clock of that machine, and keep it right: NTP",
		Exit:  ExitDegraded, GRPC: codes.Unavailable,
		Page: `
A node that reads a time that was signed, and is later than its own clock by more than clocks may differ, goes by that
time, and says so to its coordinator. Its metric is ` + "`fealty_agent_clock_behind_seconds`" + `.`,
	},

	{
		Code:  MemberOlderKey,
		Title: "an earlier key of a member is in use",
		What:  "somebody proved an earlier key of {member|a member}, and was refused: a copy of its data directory runs, or one that was put back",
		Why:   "the last time was at {at|a moment ago}",
		Do:    "find the machine that is refused, and stop it; if it is the one that is to go on: fealty member replace {name|MEMBER}",
		Exit:  ExitUnhealthy, GRPC: codes.PermissionDenied,
		Page: `
A member changes its key with each renewal. Of two machines with one data directory the one that renews first goes on,
whichever that is, and the other one is refused with ` + "`FE-M103`" + ` or ` + "`FE-J108`" + `. It tries again every few minutes, and the
finding ends ten minutes after it did so last.`,
	},

	{
		Code:  NodeNotJoined,
		Title: "this machine is not a member",
		What:  "there is no identity in {dir|the data directory}",
		Why:   "this machine has not joined a cluster, or its data directory is another one",
		Do:    "join it with fealty join --token-file FILE, or name the right folder with --data",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
The agent does not make up an identity. A token for the join is made by an admin with
` + "`fealty token create --entry NAME`" + `.`,
	},
	{
		Code:  NodeStateCorrupt,
		Title: "the state on disk is damaged",
		What:  "{file|a file of the node's state} cannot be used",
		Why:   "{problem|its content does not pass its checks}",
		Do:    "{do|look at the disk, and put the file back from a copy; or have an admin run fealty member replace and fealty token create, and join again: fealty join --token-file FILE}",
		Exit:  ExitUnhealthy, GRPC: codes.DataLoss,
		Page: `
Everything on disk is verified again at start, and what fails is not used. Damaged snapshots mend themselves with the
next contact. With damaged marks the node forgot what it had accepted: its log has this code, and it uses nothing until a
coordinator has said what holds now. With a damaged identity the agent does not start. Its name belongs to the member
still, so that an admin frees it with ` + "`fealty member replace`" + ` before another token for it counts: one made by
` + "`fealty token create`" + ` with the member's name. Keep a copy of the folder for diagnosis.`,
	},
	{
		Code:  NodeNoCoordinator,
		Title: "no coordinator can be reached",
		What:  "no coordinator of cluster {cluster|here} can be reached",
		Why:   "{tried|all known addresses} failed, the last one with: {problem|no answer}",
		Do:    "{do|check network and coordinators: fealty status says how long the node works without them}",
		Exit:  ExitUnreachable, GRPC: codes.Unavailable,
		Page: `
The agent goes on trying, with growing pauses. It works on what it has verified until that expires or the
degraded mode's limit is reached; ` + "`fealty status`" + ` on the node shows how long that is.`,
	},
	{
		Code:  NodeWrong,
		Title: "the state belongs to another node",
		What:  "the state in {dir|the data directory} belongs to {owner|another node}",
		Why:   "its parts name different nodes: there {identity|it is another one}, so the folder was put together from two",
		Do:    "give this machine an empty data directory and a token of its own: fealty join --token-file FILE --data DIR",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
The parts of a data directory name one node each, and have to agree. A whole copy agrees with itself, so that
a machine cannot tell it from the original; the cluster can, as soon as both have renewed (FE-M103). Two
machines with one identity would fight over everything that it owns. To move a member, run ` + "`fealty member replace`" + ` and join the new machine.`,
	},
	{
		Code:  SnapshotRefused,
		Title: "a snapshot did not pass its checks",
		What:  "snapshot {scope|received} at version {version|given} was refused",
		Why:   "check {check|failed}: {problem|it does not hold}",
		Do:    "look at it with fealty snapshot verify; the one that was active stays active",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
Twelve checks are made in a fixed order, and the first that fails is named. A refused snapshot never replaces
a good one. The refusal is counted in ` + "`fealty_snapshot_rejected_total`" + ` and reported to the
coordinator at the next contact. A single refusal can be a damaged transfer; the same one again and again is
a wrong clock, a stale mirror, or somebody who tries.`,
	},
	{
		Code:  NodeJoined,
		Title: "this machine is a member already",
		What:  "{dir|the data directory} holds an identity already: {identity|a member}",
		Why:   "{problem|a join would replace it}",
		Do:    "start it with fealty agent; to join anew as a member of the same cluster, add --rejoin; to leave it, fealty leave",
		Exit:  ExitConflict, GRPC: codes.AlreadyExists,
		Page: `
A working identity is never replaced by accident. Joining again under the same root keeps what the node has seen, so
that nobody can hand it anything older. For another cluster it has to leave first, or use a folder of its own.`,
	},
	{
		Code:  NodeLocked,
		Title: "another process uses the data directory",
		What:  "{dir|the data directory} is in use",
		Why:   "process {pid|of another agent} holds its lock",
		Do:    "stop that process first, or name another folder with --data",
		Exit:  ExitConflict, GRPC: codes.FailedPrecondition,
		Page: `
A data directory belongs to exactly one process. The lock ends with that process, so that there is never a
stale one to delete. Two nodes on one machine have a folder each.`,
	},
	{
		Code:  ActionNeedsContact,
		Title: "a node out of contact may not do this",
		What:  "{action|the action} is refused while this node is {partition|out of contact} (state {state|degraded}, reason {reason|forbidden})",
		Why:   "no node decides this alone: it takes a coordinator, a record that is fresh, or revocations that are known",
		Do:    "bring the node back into contact: fealty status on it shows whom it misses; do not work around it",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A cut-off part of a cluster must never do these by itself: approve enrollment, issue certificates, assign roles,
change policy, rotate trust roots, promote itself, fetch secrets that it was not assigned, create authority. No policy
allows it. The reason is a word: ` + "`forbidden`" + `, ` + "`needs_record`" + ` for what starts something new, and
` + "`revocations_unknown`" + ` where somebody may have been revoked without this node knowing.`,
	},
	{
		Code:  ActionNotAllowed,
		Title: "the policy of degraded mode does not allow this",
		What:  "{action|the action} is refused: this node is in degraded mode, and its policy does not list it",
		Why:   "what it holds is older than announced (state {state|degraded}, {partition|record_stale}), and then only the policy allows to act",
		Do:    "bring the node back into contact; to allow it the next time, list it in degraded.allow of the manifest",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A node that had no news for more than an hour beyond what was announced works by the policy of degraded mode
alone. The manifest is the ceiling, and a ` + "`degraded_mode_policy`" + ` snapshot can only narrow it.
` + "`fealty status`" + ` on the node shows what is allowed.`,
	},
	{
		Code:  ActionBoundOver,
		Title: "the time in which a node may do this alone is over",
		What:  "{action|the action} is refused: {bound|what it lives by} {ended|is not there}",
		Why:   "nothing outlives its bound (state {state|degraded}, {partition|record_stale}, reason {reason|bound_over})",
		Do:    "bring the node back into contact; stop what depends on it until then",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
The bounds are the ends of snapshots and of the node's certificate, and ` + "`degraded.max`, `degraded.route_ttl` and `degraded.session_ttl`" + `,
which count from the newest word that the cluster signed. A restart or a clock that is set back does not extend
them. The agent stops giving what has ended to local services; these have to stop by themselves.`,
	},
	{
		Code:  NodeStateNewer,
		Title: "a newer release wrote the data directory",
		What:  "{dir|the data directory} is of a newer form than this release knows",
		Why:   "{release|a newer release} wrote it last, and this one would misread or damage it",
		Do:    "run that release or a newer one; nothing was changed",
		Exit:  ExitConflict, GRPC: codes.FailedPrecondition,
		Page: `
A data directory names the form that it has in store.json, and the release that wrote it last. A release that
does not know the form leaves everything as it is. To go back to an older release, join again in another folder.`,
	}, {
		Code:  NodeDiskRefuses,
		Title: "a node's disk takes no key",
		What:  "{file|a file of the identity} was not written",
		Why:   "{problem|the disk has no space left, or was made read-only}",
		Do:    "free space or make the data directory writable; until then the node has its present key certified again",
		Exit:  ExitFailed, GRPC: codes.ResourceExhausted,
		Page: `
A renewal has a new key certified, and the key is on disk before anybody is asked: a node that forgot it would come
back with an older one, as a copy does. While the disk takes nothing, the node asks for its present key instead, and so
stays certified for as long as that goes on. It looks at the disk every minute, and renews with a new key at once when
it takes one. A certificate that could not be written is in memory alone: a node that is started again meanwhile finds
its key, and comes back by it. Larger writes than a key fail longer:
new snapshots are not used before they are kept.`,
	},
	{
		Code:  ActionUnknown,
		Title: "no action has this name",
		What:  "{action|the action} was not permitted: no action has this name",
		Why:   "a name with a slip in it would be permitted in contact, and refused in the outage that the guard is for",
		Do:    "{guess|ask by one of the names in docs/reference/degraded-actions.md}",
		Exit:  ExitUsage, GRPC: codes.InvalidArgument,
		Page: `
A service asks the agent by name whether it may do something now. A name that the agent does not know is refused
always, in contact too, with the reason ` + "`unknown_action`" + `. Programs in Go have constants for the names in package
node. An agent of an earlier release does not know actions that came later: upgrade it before the program that asks.`,
	},
	{
		Code:  SnapshotUnreadable,
		Title: "a file is no snapshot",
		What:  "{file|the file} is no {sort|snapshot}",
		Why:   "{problem|its bytes are not the encoding of one}",
		Do:    "get it again from where it is served, whole and as bytes; fealty snapshot get writes one",
		Exit:  ExitRefused, GRPC: codes.InvalidArgument,
		Page: `
A snapshot has one encoding, and a file holds its exact bytes: what was cut off, converted or edited is none any
more. That a file can be read says nothing about whether it is true; ` + "`fealty snapshot verify`" + ` does.`,
	},
	{
		Code:  SnapshotNone,
		Title: "there is no snapshot of this scope",
		What:  "there is no snapshot of scope {scope|named} at {place|the place that was asked}",
		Why:   "{cause|nothing of this scope is in use there}",
		Do:    "look at fealty status for the scopes that the node has, or name another place",
		Exit:  ExitNotFound, GRPC: codes.NotFound,
		Page: `
Which scopes a node holds goes by its roles and by what it is assigned. A scope whose last snapshot expired or
was withdrawn is not in use, and the node tells so.`,
	},
	{
		Code:  MirrorNoNews,
		Title: "a mirror has no news",
		What:  "nothing came from the mirror {mirror|named}",
		Why:   "{problem|it is not there, or what it serves is not a publication}",
		Do:    "look at the server or the folder; a node asks its other sources meanwhile",
		Exit:  ExitUnreachable, GRPC: codes.Unavailable,
		Page: `
Every fault of a mirror means the same: no news from there. It is counted in
` + "`fealty_snapshot_mirror_reads_total`" + ` by its reason. A copy that was made while a new generation was written mends
itself with the next copy; one that stays wrong was altered, or is of another cluster.`,
	},

	{
		Code:  ContractBroken,
		Title: "a provider breaks the contract",
		What:  "the provider at {provider|this address} breaks the contract",
		Why:   "cases that it failed: {cases|some}",
		Do:    "read what each case saw, correct the provider, and run the same command again",
		Exit:  ExitUnhealthy, GRPC: codes.FailedPrecondition,
		Page: `
Each case of ` + "`fealty conformance provider`" + ` is a rule. A provider that breaks one of the fence obeys a
zombie, or refuses a shard that is in charge: it must not be used.`,
	},
	{
		Code:  ShardFenced,
		Title: "the shard was fenced",
		What:  "a process of {member|the shard} acts no more: it was refused",
		Why:   "another process with its identity is in charge{process|, so that all it knows is out of date}",
		Do: "stop the one that was refused, if the other one is meant; otherwise find that one first, and start one " +
			"of the two again, with a folder that no other process has",
		Exit: ExitUnhealthy, GRPC: codes.FailedPrecondition,
		Page: `
A shard that was paused, cut off or replaced comes back and believes that it is in charge. A provider has obeyed another
process with the same identity since, or a coordinator granted it a newer epoch, and refuses the old one: nothing of what
it asked for was done. It acts no more, takes no instruction, lets no domain go, and
stays up, with ` + "`fealty_shard_fenced`" + ` at 1 and its readiness gone, until it is stopped; then it ends with this
error. If nobody started another one on purpose, somebody has a copy of its folder, or of its machine.

A shard with ` + "`--agent`" + ` tells the coordinators, while it is there. That is one entry ` + "`shard.fenced`" + `
of the audit log, and ` + "`fealty status`" + ` says so, with its address and its incarnation, until 24 hours after it
told so last.`,
	},
	{
		Code:  ShardPaused,
		Title: "a shard is paused",
		What:  "{member|a shard} decides, and does nothing",
		Why:   "it is paused, {said|by its own word}",
		Do: "when it may act again: fealty instruction give {name|shard/NAME} resume --reason TEXT; one that was started " +
			"with --actuation-paused is started without it",
		Exit: ExitUnhealthy, GRPC: codes.FailedPrecondition,
		Page: `
A shard says so itself each time that it asks what it is to do, so that this is what was seen and not what was ordered. Its
log and its journal say what it would have done, and ` + "`fealty_shard_paused`" + ` is 1.`,
	},
	{
		Code:  RecoveryMode,
		Title: "the coordinator is recovering",
		What:  "the coordinator cannot serve {method|this} yet: it is in recovery mode",
		Why:   "{reason|its state is not the newest that is stored, or its secrets are not in memory}",
		Do:    "{do|use another coordinator or wait; if all are recovering, an owner brings a share: fealty recover --share FILE}",
		Exit:  ExitUnreachable, GRPC: codes.Unavailable,
		Page: `
A coordinator keeps its secrets in memory and gets them back from a ready peer, from a keeper, or from the
seed share owners. Until then it changes nothing and issues nothing. ` + "`/probe/readiness`" + ` says what
it waits for. Owners without their share files get them on the coordinator's own machine:
` + "`fealty manifest shares --socket PATH --out DIR`" + `.`,
	},
	{
		Code:  RecoveryNotNeeded,
		Title: "the coordinator needs no share",
		What:  "no share was sent: the coordinator says that it is ready",
		Why:   "it got its seed back from another coordinator, a keeper, or other owners",
		Do:    "look with fealty status; keep the share file for another day",
		Exit:  ExitConflict, GRPC: codes.FailedPrecondition,
		Page: `
A coordinator asks for shares in recovery mode alone. That this one is ready is what it says, and was not
verified: if it was meant to be recovering, ask on its own machine with ` + "`fealty status --socket`" + `.`,
	},
	{
		Code:  RecoveryOver,
		Title: "the recovery attempt is over",
		What:  "the share of {owner|its owner} was not taken: attempt {attempt|it was sent for} is over",
		Why:   "{problem|it expired, the coordinator restarted, or the history moved on}",
		Do:    "run the same fealty recover command again: it takes part in the attempt that is open now",
		Exit:  ExitConflict, GRPC: codes.Aborted,
		Page: `
Shares are gathered for one attempt, encrypted to a key that lives in the coordinator's memory and ends with
the attempt. An attempt ends an hour after its last share, with the process, and when the head of the history
moves: then somebody else brought the cluster back. Nobody can read the gathered shares any more.`,
	},
	{
		Code:  ShareWrong,
		Title: "a share is not the one that the history commits to",
		What:  "the share of {owner|its owner} was refused",
		Why:   "{problem|it is not the share that the head of the history commits to for that owner}",
		Do:    "{owner|the owner} looks for the right file: fealty recover --drill --share FILE checks it without sending it",
		Exit:  ExitRefused, GRPC: codes.InvalidArgument,
		Page: `
The transition that made the shares holds a commitment to each, so that a wrong one is refused by the name of
its owner, instead of spoiling the seed for all. Nothing of a refused share is kept.`,
	},
	{
		Code:  ShareOld,
		Title: "a share is of an earlier set",
		What:  "the share of {owner|its owner} was refused: newer ones were made since",
		Why:   "it is of transition {made|before the last reshare} of the history, and the shares in force are of transition {now|after it}",
		Do:    "{owner|the owner} brings the file of the last reshare or reseed; an admin gets the encrypted one with fealty manifest shares",
		Exit:  ExitRefused, GRPC: codes.InvalidArgument,
		Page: `
A reshare or a reseed gives every owner a new share, and the old ones count no more: old and new ones do not
fit together. The new files are encrypted to their owners, and kept in the store too.`,
	},
	{
		Code:  ShareForeign,
		Title: "a share is of another cluster",
		What:  "the share of {owner|its owner} was refused: it is of cluster {share|another one}",
		Why:   "the coordinator is of cluster {cluster|another one}",
		Do:    "check the address of the coordinator, and which file is given",
		Exit:  ExitRefused, GRPC: codes.InvalidArgument,
		Page: `
A share is of one cluster. ` + "`fealty recover`" + ` compares that before it sends anything (` + "`FE-X112`" + `), and the coordinator
compares it again.`,
	},
	{
		Code:  ShareNoOwner,
		Title: "a share is of nobody who owns one",
		What:  "the share of {owner|somebody} was refused: the manifest in force names no such owner with a share",
		Why:   "the owners with shares are {owners|others}",
		Do:    "bring a share of one of them",
		Exit:  ExitRefused, GRPC: codes.InvalidArgument,
		Page: `
Shares are held by people: the owners of the seed with a recipient in the manifest in force. Keepers seal the
whole seed and hold no share. An owner of before a reshare is none any more.`,
	},
	{
		Code:  ShareUnusable,
		Title: "a share file cannot be used",
		What:  "share file {file|given} cannot be used",
		Why:   "{problem|it does not open}",
		Do:    "name the owner's private key with --share-key KEYFILE, and the file that was encrypted to it with --share FILE",
		Exit:  ExitConfig, GRPC: codes.InvalidArgument,
		Page: `
A share file is encrypted to its owner's recipient in the manifest: an age key, or an SSH key of type ed25519
or RSA. It opens with that private key alone.`,
	},
	{
		Code:  RecoveryUnproven,
		Title: "who asks for the share is not a coordinator of the manifest",
		What:  "nothing was sent: {endpoint|what answered} did not prove that it is a coordinator of cluster {cluster|of the share}",
		Why:   "{problem|its proof is not by a key that the manifest in force admits as a coordinator, over this connection}",
		Do:    "check the address, and that no proxy terminates TLS in between; if both are right, treat the machine as taken over",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
A recovering coordinator has no certificate that means anything. It proves instead, over the very connection,
the enrolment key by which the manifest in force admits it. Somebody in between has another connection on each
of the two sides, and the proof of one is none on the other.`,
	},
	{
		Code:  RecoveryHistory,
		Title: "the history that was shown is not that of the share",
		What:  "nothing was sent: the history that {endpoint|the coordinator} shows was refused",
		Why:   "{problem|it is not signed by the seed that the share is of}",
		Do:    "find out who wrote that store; compare with a copy of the history: fealty manifest verify-history --file FILE",
		Exit:  ExitRefused, GRPC: codes.DataLoss,
		Page: `
The share file holds the key that signs the head of the history. The owner's tool replays the whole history
under that key, as a coordinator does, before it believes who is admitted as a coordinator: whoever controls
the store could otherwise name himself.`,
	},
	{
		Code:  RecoveryUnexpected,
		Title: "the cluster is not the one that was expected",
		What:  "nothing was sent: {what|something} is not what was expected",
		Why:   "expected {expected|another value}, found {found|this one}",
		Do:    "find out which transition changed it (fealty manifest history) before a share is brought",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
With ` + "`--manifest FILE`" + ` an owner says which manifest must be in force, and with ` + "`--root-pin`" + ` under
which root key. A store that was rolled back shows an older history, which is signed all the same: this is
what notices it.`,
	},
	{
		Code:  RecoverySeedRefused,
		Title: "the shares make no seed that signed the history",
		What:  "{needed|enough} shares are in, and the seed that they make did not sign the history",
		Why:   "{problem|each share is the one that the head names, so the head is not of this seed}",
		Do:    "all that was gathered was thrown away; restore the store from a backup, then bring the shares again",
		Exit:  ExitRefused, GRPC: codes.DataLoss,
		Page: `
Until the seed is back, a coordinator can compare shares with the head of the history, but cannot know that the
head is genuine. With the seed it replays the whole history, and adopts nothing that the seed did not sign.`,
	},
	{
		Code:  RecoveryNoShares,
		Title: "nobody holds a share",
		What:  "the seed of cluster {cluster|here} has no shares",
		Why:   "the manifest in force names keepers alone as owners of the seed",
		Do:    "mend the keeper, or give back its key file from a backup; fealty status on the coordinator's machine says what is wrong with it",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
Shares are held by people. A cluster whose manifest names keepers alone comes back through one of them, and is
lost with all of them: add people to ` + "`seed.owners`" + ` with a reshare.`,
	},
	{
		Code:  DoneNotInForce,
		Title: "it was done, and is not in force at this coordinator yet",
		What:  "{what|the change} was made, and this coordinator could not bring it into force or tell all of it",
		Why:   "{reason|it lost its readiness, or the store, right after the change was in the store}",
		Do:    "do not repeat it: coordinators bring it into force by themselves; fealty status says when they are ready",
		Exit:  ExitOutcomeUnknown, GRPC: codes.Unknown,
		Page: `
The change is in the store, and stays there. Any coordinator that sees it brings into force what follows from it, such
as a new trust bundle or a new mesh CA key. So that a change is not made twice, no client repeats one that was
answered like this at another coordinator; a recovery mode that came before the change is answered with FE-R101, and
that is repeated.`,
	},
	{
		Code:  HeadNotFollowed,
		Title: "a newer manifest is not in force at this coordinator yet",
		What:  "the coordinator changes nothing and certifies nobody for now: the history moved on to a newer head",
		Why:   "the store has shown that head since {since|a few seconds ago}, and it is not in force here",
		Do:    "use another coordinator or try again; if it lasts, its log says what keeps it from the newer head",
		Exit:  ExitUnreachable, GRPC: codes.Unavailable,
		Page: `
After a manifest was set through another coordinator this one follows it at once, which takes milliseconds. Until then
it goes on to serve reads, and what changes something or certifies anybody waits for the newer head. This answer comes
when that takes longer than ten seconds. Nothing was changed, so it is safe to repeat the call here or elsewhere.`,
	},
	{
		Code:  CoordinatorUnheard,
		Title: "a coordinator is not heard",
		What:  "{left|not all coordinators are heard}; missing: {name|one of the manifest}",
		Why:   "no answer for {since|10 seconds} at {addresses|their addresses}; {note|it may be down, or out of reach}",
		Do:    "see whether process and machine run, and start it; if it runs, mend the network between the two; if it is gone for good: fealty coordinator forget {forget|NAME}",
		Exit:  ExitDegraded, GRPC: codes.Unavailable,
		Page: `
Every coordinator that is ready asks the others every few seconds, over a connection on which they prove who they
are. One that does not answer for ten seconds is missed, by a clock of the one that asks; what stands in the store
counts for nothing. The finding ends when it answers again.

One that was stopped by SIGINT or SIGTERM said so in the store, and is not missed; neither is one that the manifest
admits no more. One that died is missed until it is back or somebody says that it is gone for good. A coordinator
that just became ready misses nobody for a minute.

While it is not heard nobody can tell which members are connected to it alone: those that no other coordinator hears
are *unknown*, and counts say *at least*.`,
	},
	{
		Code:  CoordinatorRecovering,
		Title: "a coordinator is in recovery mode",
		What:  "coordinator {name|of the manifest} is in recovery mode",
		Why:   "it says so in the store, and serves nobody at {addresses|its addresses}",
		Do:    "look there what it waits for: fealty status on its machine",
		Exit:  ExitDegraded, GRPC: codes.Unavailable,
		Page: `
It has not got the secrets of the head of the history, from another coordinator, a keeper or the owners of the seed,
or could not read the history. Its own status and its log say which.`,
	},
	{
		Code:  CoordinatorHeard,
		Title: "a coordinator that may run is not forgotten",
		What:  "coordinator {name|of that name} was not forgotten",
		Why:   "{problem|it answers}",
		Do:    "stop it first; for good, with a manifest that does not admit it; if it does not run, wait ten seconds and try again",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
Forgetting ends the finding on a coordinator that is gone for good. One that runs would say again what it is within a
minute. Which coordinators there can be, and who holds the seed, the manifest says alone.`,
	},
	{
		Code:  PeerRefused,
		Title: "one coordinator refused another",
		What:  "coordinator {peer|that was asked} hands nothing over: it does not take who asks for a coordinator of this cluster",
		Why:   "{problem|its key is in no entry of kind coordinator of the manifest in force there, or it did not prove it over this connection}",
		Do:    "have the key that fealty status -o wide shows as enrolment key put into an entry of kind coordinator; if it is in one, see that no proxy terminates TLS in between",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
A coordinator gives the seed and the mesh CA key to nobody but a coordinator that the manifest in force at the
giver names, and that has proven its enrolment key over the very connection. Both sides prove.`,
	},
	{
		Code:  PeerBehind,
		Title: "two coordinators are at different heads",
		What:  "coordinator {peer|that was asked} hands nothing over: it is not at the head of the history that was asked for",
		Why:   "asked was {asked|another head}; {problem|it serves another one, and what it has may be the mesh CA key of an older one}",
		Do:    "wait: whoever is behind reads the head again and tries again by itself",
		Exit:  ExitUnreachable, GRPC: codes.Unavailable,
		Page: `
Before it gives anything a coordinator reads the head again. If the head has moved it answers that it is behind
rather than hand out the mesh CA key of an older head. After a change of the manifest this lasts for a moment.`,
	},
	{
		Code:  RootNotPinned,
		Title: "the root is not the one that is pinned",
		What:  "the history is refused: its root key is {root|another one}",
		Why:   "this coordinator was told to take part in the cluster with root key {pin|another one} alone",
		Do:    "if the root was changed by a reseed, start it with the new --root-pin; else find out who changed the store",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A coordinator without a seed learns from the store who may give it one. Somebody who controls the store could make it
a coordinator of a cluster of his own, and it could not tell: everything would verify. With ` + "`--root-pin`" + ` it
takes one root and no other. After a reseed the pin is that of the new root.`,
	},
	{
		Code:  BackupUnusable,
		Title: "the backup cannot be used",
		What:  "{file|the file} is no backup that can be used: {problem|it does not verify}",
		Why:   "a backup counts whole, as a coordinator of the cluster signed it, or not at all",
		Do:    "{do|use another backup, and find out how this one was damaged: fealty backup check FILE --share-key KEY}",
		Exit:  ExitRefused, GRPC: codes.DataLoss,
		Page: `
A backup is encrypted and authenticated in parts, and ends with a signature by the cluster's transaction key over
all of it. So one that was cut, or of which a byte is another one, is refused before anything is written, and so is
one that a newer release wrote in another format.`,
	},
	{
		Code:  BackupNoReader,
		Title: "nobody could read the backup",
		What:  "no backup was made: nobody could read it",
		Why:   "a backup is encrypted to the people who own shares of the seed, and keepers alone own this one",
		Do:    "have a key made that reads it, and keep that elsewhere: fealty backup create {file|prod.backup} --reader-key backup-reader.key; or name a reader with --recipient",
		Exit:  ExitUsage, GRPC: codes.FailedPrecondition,
		Page: `
A keeper runs where the coordinators run, so what it alone can open is lost together with them. With ` + "`--reader-key`" + `
the command makes a key, writes it to that file and encrypts to it; the same file serves the next backups. Give
` + "`--recipient`" + ` the public key of somebody who keeps the private one elsewhere, or add people to
` + "`seed.owners`" + ` with a reshare. What a restore needs besides is the keeper's key file: back that up too.`,
	},
	{
		Code:  BackupReseeding,
		Title: "no backup while the seed changes",
		What:  "no backup was made: the records are moving to a new seed",
		Why:   "half of them would be under one seed, and half under the other",
		Do:    "try again in a minute, when the reseed has ended",
		Exit:  ExitRefused, GRPC: codes.Unavailable,
		Page: `
A reseed moves every record to the keys of the new seed, which takes seconds. A backup of that time could be
restored under neither.`,
	},
	{
		Code:  RestoreUnfinished,
		Title: "a restore was cut off",
		What:  "the store is being restored from the backup of {made|a backup}, or that was cut off",
		Why:   "a coordinator serves nothing from half a backup",
		Do:    "run fealty backup restore again with the same backup: it goes on where it was",
		Exit:  ExitRefused, GRPC: codes.Unavailable,
		Page: `
A restore writes an intent first, then the entries, and the head of the history last. A coordinator that finds the
intent alone waits, and nobody can set a first manifest into that store.`,
	},
	{
		Code:  RestoreUnsigned,
		Title: "a restore waits for its signers",
		What:  "the store was restored, and {have|too few} of {need|the} signatures are there",
		Why:   "going back in time takes the signers of the manifest; not signed yet: {missing|some of them}",
		Do:    "fealty backup restore FILE --store URL --share-key KEY --sign-with KEY, or --signature FILE of fealty backup sign; it changes nothing else",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
The history goes on from a backup by a restore transition, which the threshold of the signers authorizes: nodes
that have seen newer things accept it by these signatures. Signatures may be added one after the other, by running
the restore again with the same backup.`,
	},
	{
		Code:  RestoreUnfit,
		Title: "the restored store cannot be brought back",
		What:  "the restored store was not adopted: {problem|it is not what the backup held}",
		Why:   "a coordinator compares the store with what one of this cluster signed as the backup",
		Do:    "restore the backup into a new, empty store, with all coordinators stopped",
		Exit:  ExitRefused, GRPC: codes.DataLoss,
		Page: `
Between a restore and the first coordinator nobody vouches for the store but the backup's signature. An entry that
is missing there could be a ban. So the store must hold exactly what the backup held, and the intent must be one
that this release knows.`,
	},
	{
		Code:  RestoreOccupied,
		Title: "the store takes no restore",
		What:  "nothing was restored into {store|the store}: {problem|it is not empty}",
		Why:   "a restore mixed with something else would be the state of no cluster",
		Do:    "{do|name a new, empty store with --store, with all coordinators of it stopped}",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
A restore goes into an empty store, or on in one where the same backup was begun. A coordinator that was started on
an empty store has written to it already: stop it, and take another one.`,
	},
	{
		Code:  RestoreClock,
		Title: "the clock is behind the backup",
		What:  "nothing was restored: {problem|the clock of this machine is behind}",
		Why:   "index and epoch of a restore come from the Unix time, and must be above all that the fleet remembers",
		Do:    "set this machine's clock, then run it again",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
Nodes and coordinators remember the newest clocks that they saw. A restore whose clocks were below them would be
refused by all of them as a rollback.`,
	},
	{
		Code:  VerifyUnproven,
		Title: "who answered is not a coordinator of the expected manifest",
		What:  "the cluster was not verified: {endpoint|what answered} did not prove that it is a coordinator of cluster {cluster|of the manifest}",
		Why:   "{problem|its proof is not by a key that the expected manifest admits as a coordinator, over this connection}",
		Do:    "check the address, and that no proxy terminates TLS in between; believe nothing that it says",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
The coordinator signs, with the enrolment key by which the expected manifest admits it, all that it claims
together with the connection and a number that was chosen for it. Somebody in between has another connection on
each of the two sides, and the proof of one is none on the other.`,
	},
	{
		Code:  VerifyHistory,
		Title: "the history that was shown does not verify",
		What:  "the cluster was not verified: the history that {endpoint|the coordinator} shows was refused",
		Why:   "{problem|it is not signed by the key that signed it when it was seen last}",
		Do:    "find out who wrote that store; compare with a copy of the history: fealty manifest verify-history --file FILE",
		Exit:  ExitRefused, GRPC: codes.DataLoss,
		Page: `
The whole history is replayed, from its first transition to the head, as coordinators do. The key under which it
has to be signed is the one that the mark of this cluster holds; of a cluster that was never seen before it is the
one that the coordinator proved.`,
	},
	{
		Code:  VerifyManifest,
		Title: "another manifest is in force",
		What:  "the cluster was not verified: the manifest in force at index {index|of the head} is not the expected one",
		Why:   "expected {expected|another}, found {found|this one}: {when|it was never in force}",
		Do:    "look at what changed (fealty manifest diff), and give --manifest the one that you agree with",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
The manifest says who holds authority over the cluster. It is compared to the byte: nothing of it is of no matter.
If it was in force before, the history says which transition ended that.`,
	},
	{
		Code:  VerifyAuthority,
		Title: "root or mesh CA are not those of the history",
		What:  "the cluster was not verified: the certificates that {endpoint|the coordinator} shows were refused",
		Why:   "{problem|the mesh CA key is not the one that the head of the history names}",
		Do:    "believe no certificate of that cluster before its operators say what happened",
		Exit:  ExitRefused, GRPC: codes.DataLoss,
		Page: `
The head of the history names the one mesh CA key of its authority epoch, a reseed names the root key, and the mark
keeps the root key that was seen. A coordinator that shows others does not hold the secrets of that history.`,
	},
	{
		Code:  HistoryWentBack,
		Title: "the history went back",
		What:  "the history that {endpoint|the coordinator} shows was refused: it ends before what this machine has seen of cluster {cluster|it is of}",
		Why:   "seen: {seen|a newer head}; shown: {shown|an older one}",
		Do:    "{do|ask the operators whether the store was restored without fealty backup restore, or replaced; do not remove the mark before that is clear}",
		Exit:  ExitRefused, GRPC: codes.DataLoss,
		Page: `
An older head is signed as well as the newest: only who remembers can tell. Each tool of an owner keeps a mark of the
newest head that it verified, in the folder that ` + "`--marks`" + ` names. A restore that was signed leads on from an older
head by a link of its own, and passes. One that waits for the seed has no link yet: ` + "`fealty recover`" + ` shows an owner who
signed it and what is lost, and asks, if the signers that this machine remembers signed it for exactly this history.`,
	},
	{
		Code:  HistoryForked,
		Title: "the history was forked",
		What:  "the history that {endpoint|the coordinator} shows was refused: it does not lead through what this machine has seen of cluster {cluster|it is of}",
		Why:   "seen: {seen|one head}; shown: {shown|another one that does not follow it}",
		Do:    "somebody signs two histories with one seed: treat the seed as stolen until the operators explain it",
		Exit:  ExitRefused, GRPC: codes.DataLoss,
		Page: `
The head moves only to its child, so that of two heads that were ever in force one leads to the other. The mark names
the head that was seen last; a history without it is another one, however well it is signed. Only a restore that the
signers signed may take its place.`,
	},
	{
		Code:  MarkUnusable,
		Title: "a mark cannot be used",
		What:  "the mark of what was seen of cluster {cluster|here} cannot be {verb|used}: {file|its file}",
		Why:   "{problem|it is damaged}",
		Do:    "{do|name a folder for marks that can be read and written: --marks DIR}",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
A tool that forgets what it has seen can be shown an older history. So a mark that is damaged is not overwritten:
give it back from a backup, or remove it and take the next look at that cluster as the first.`,
	},

	{
		Code:  StoreLocked,
		Title: "another process has the store open",
		What:  "{path|the store} cannot be opened: it is in use",
		Why:   "process {pid|of another coordinator} holds its lock",
		Do:    "stop that process first; two coordinators on one SQLite file need PostgreSQL or etcd instead",
		Exit:  ExitConflict, GRPC: codes.FailedPrecondition,
		Page: `
A SQLite store belongs to exactly one coordinator process, which holds a lock for life. The lock ends with
its process, so that there is never a stale one to delete.`,
	},
	{
		Code:  StoreFull,
		Title: "the store has no space left",
		What:  "{what|the write} was refused: the store is full",
		Why:   "the disk that it is on, or its quota, has no space left",
		Do:    "free or add space; nothing was lost, and calls work again by themselves",
		Exit:  ExitFailed, GRPC: codes.ResourceExhausted,
		Page: `
Nothing is acknowledged that is not on disk. Reads go on, writes fail until there is space: a full disk, or etcd's quota.
A PostgreSQL that was made read-only, as hosted ones are when their disk fills up, is ` + "`FE-S118`" + `. Before SQLite
says so it has copied its log into the database and given that space back. Meanwhile a coordinator is ready
and certifies the recorded keys of members again, until 4 hours after the recorded end; members ask for that by
themselves. Nobody is admitted or banned, nobody leads, and nothing changes. Do not restart coordinators for this: one
that starts gets no secrets from its peers, because that is to be audited first.`,
	},
	{
		Code:  StoreUnreachable,
		Title: "the store does not answer",
		What:  "{what|the call} failed: the store cannot be reached",
		Why:   "{cause|it does not answer}",
		Do:    "{do|check it and the way to it with fealty check store; coordinators that run go on by themselves when it is back}",
		Exit:  ExitUnreachable, GRPC: codes.Unavailable,
		Page: `
Where a server answers and refuses there is a code for that: ` + "`FE-S108`" + ` (it does not let the coordinator in),
` + "`FE-S109`" + ` (it is a standby, or something else that holds no store), ` + "`FE-S119`" + ` (somebody holds a lock) and
` + "`FE-S120`" + ` (it takes no more connections). Scripts that know this code alone may go by it: the four are told with the exit
status of this one, and with its name as the reason of the ErrorInfo of gRPC; the code is its field ` + "`exact`" + `.

Nothing was changed. A coordinator that is ready serves reads, and certifies the recorded keys of members again,
for up to ` + "`max_head_age`" + ` without its store; it admits nobody and changes nothing. Members ask for that by
themselves, and for a new key again when the store is back. Do not restart coordinators for this: their memory
holds the seed.`,
	},
	{
		Code:  StoreOutcomeUnknown,
		Title: "it is not known whether the write happened",
		What:  "{what|the write}: its answer was lost",
		Why:   "{cause|the store stopped answering after the write was sent}",
		Do:    "look before you try again: {look|fealty status, fealty member list}",
		Exit:  ExitOutcomeUnknown, GRPC: codes.Unknown,
		Page: `
Between sending a write and reading its answer anything can fail, and then both are possible. Fealty does not
guess: it neither says "failed" nor tries again by itself.`,
	},
	{
		Code:  StoreForged,
		Title: "a record was written by somebody else",
		What:  "a record of the store was refused: its authentication code does not match ({what|found on reading})",
		Why:   "it was not written by a coordinator of this cluster, or it was changed in the store",
		Do:    "find out who can write to the store and take that access away; then put the record back from a dump of the database, or go back to a backup: fealty backup restore FILE --store URL",
		Exit:  ExitRefused, GRPC: codes.DataLoss,
		Page: `
Records that decide about admission carry a code under a key that derives from the seed, over name and value.
Somebody who can write to the database can delete records and bring back older ones, but not make one up. A record
that fails is treated as if the question had no answer: the call ends, and so does every list that the record is part of.
The record of a member alone hides no other: ` + "`fealty status` and `fealty member list`" + ` show the rest, and name the one that was
altered. The log of the coordinator has its key. The record as it was, from a dump of the database, counts again at once; a restart
is not needed.`,
	},
	{
		Code:  StoreNewerSchema,
		Title: "the store was written by a newer release",
		What:  "store {store|here} cannot be opened by this release",
		Why:   "its schema is version {found|newer}, and this release knows up to {known|an older one}",
		Do:    "run the newer release again, or restore a backup that was made before the migration",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
Migrations go forward only. An older release does not touch what it does not understand.`,
	},
	{
		Code:  StoreBusy,
		Title: "the write lost against others too often",
		What:  "{what|the write} was not made: others wrote the same record each time",
		Why:   "it was tried {tries|several} times and somebody else was first each time",
		Do:    "try again in a moment; nothing was changed",
		Exit:  ExitConflict, GRPC: codes.Aborted,
		Page: `
Writes are conditional on what they were decided on, and are decided again when that changed. A bound on the
tries keeps one busy record from holding a call for ever.`,
	},
	{
		Code:  StoreLoginRefused,
		Title: "the database server does not let the coordinator in",
		What:  "{what|opening the store} failed: the database server refused the login",
		Why:   "{cause|the server did not accept user and password}",
		Do:    "check the user in the URL, the password in FEALTY_STORE, PGPASSWORD, PGPASSFILE or FEALTY_ETCD_PASSWORD, and what the server lets that user do; files are read again for each connection",
		Exit:  ExitDenied, GRPC: codes.Unavailable,
		Of: StoreUnreachable,
		Page: `
The server was reached and answered. A coordinator that runs goes on by itself once the server lets it in: write the
password or certificate that the server takes into its file. Whoever called it is answered as by a store that cannot be
reached, with exit status 4: that the coordinator was refused does not mean that the caller was.

The server tells the reason in its own log in more detail than to a client. Nothing of the password is in any message or
log of Fealty. The characters ` + "`@ : / ? # %`" + ` of a password in a URL are
written in percent form, ` + "`%40`" + ` for an @.`,
	},
	{
		Code:  StoreUnsuitable,
		Title: "the database server cannot hold the store",
		What:  "{what|opening the store} failed: the database server cannot hold the store",
		Why:   "{cause|the server cannot hold a store}",
		Do:    "{do|name another server or database; of servers that fail over, name them all}",
		Exit:  ExitConfig, GRPC: codes.Unavailable,
		Of: StoreUnreachable,
		Page: `
The server was reached and let the coordinator in, but cannot keep what a cluster needs kept: the database is not
there, its tables belong to another program, the user may not make any, the server is a replica or read-only or
too old, or a pooler in between drops LISTEN. Of etcd: the prefix holds keys of something else or stands in another
store's, or the servers were told to take less than etcd does by default. Nothing was written.`,
	},
	{
		Code:  PublishDirFailed,
		Title: "the publish directory is not written",
		What:  "what is published was not written to {dir|the publish directory}",
		Why:   "{cause|the file system refused it}",
		Do:    "make room, or let the coordinator's user write there; it is tried again every 30 seconds",
		Exit:  ExitUnhealthy, GRPC: codes.Unavailable,
		Page: `
The files written before stay whole, and grow old: a node that reads nothing else is stale, then degraded. Members
that hear the coordinators over their streams notice nothing. A directory that has the publication of another
cluster is left alone; give each cluster its own.`,
	},
	{
		Code:  StoreOccupied,
		Title: "the store is not empty",
		What:  "nothing was tested on {store|the store}: it holds something",
		Why:   "the tests write and delete, and are run on an empty store alone",
		Do:    "name an empty database, a new file, or a prefix that nobody uses",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
` + "`fealty conformance store`" + ` never touches what it finds. Test the servers of a cluster beside its store: in another
database, or under another prefix.`,
	},
	{
		Code:  StoreWentBack,
		Title: "the store went back",
		What:  "nothing was changed: the store {problem|shows less than was seen of it}",
		Why:   "somebody put an older copy of it in place, or it failed over to a server that lagged: what was acknowledged since is not in it",
		Do:    "put the newest copy back or go on from this one: stop all coordinators, fealty backup restore --in-place --store {store|URL} --sign-with SIGNER.key, and start them",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
Each coordinator remembers the newest revision of its store and the counter of the trust state, in
` + "`store-seen.json` and `trust-seen.json`" + ` of its data directory, and believes what another one or a member shows
with the cluster's own signature. A store that holds less lost what was acknowledged: bans, members, config.

Nothing is changed from then on, nobody leads, and no trust bundle is signed, so that no ban ends by it. Coordinators
serve what they know, and certify the recorded keys of members again. It stays so whatever the store shows later: only the
signers say that the cluster goes on from less. A restore in place is that: it moves every clock above what the fleet
remembers, members show the bans that they know of, and those are in force again. Join tokens are void then.

While the newest copy is still at hand, stop the coordinators, put that one in place, and restore it in place as well.`,
	},
	{
		Code:  StoreClaimed,
		Title: "somebody says that it holds more than the store gave",
		What:  "{member|a member} says that it holds {claim|a version that the store did not give}",
		Why:   "its report is wrong, or the store went back and nobody who can prove that was asked yet",
		Do:    "compare it with what the others say: fealty status, fealty member list; if several say so, the store went back: fealty explain FE-S112",
		Exit:  ExitDegraded, GRPC: codes.FailedPrecondition,
		Page: `
A number in a report is what its sender says. It is shown with the sender's name, and holds up nobody: a member that
says that it holds the highest version there can be would stop all others else. Only what the cluster itself signed,
and what a coordinator saw, counts as proof.`,
	},
	{
		Code:  StoreRefuses,
		Title: "the store is read and takes no writes",
		What:  "{what|the write} was refused: the store takes no writes",
		Why:   "{reason|of it the coordinator's log says why}",
		Do:    "{do|look at the store; nothing was lost, and calls work again by themselves once it takes writes}",
		Exit:  ExitFailed, GRPC: codes.ResourceExhausted,
		Page: `
The store answers, so that reads go on, and it refuses to change anything for another reason than space, which is
` + "`FE-S102`" + `:

- The file of a SQLite store was moved, removed or replaced while it was open. Data in a file without a name is gone
  with the process, so nothing is written.
- The disk fails writes, or its file system was made read-only, as many are after an error of the disk.
- The database server is a replica, or was made read-only.
- The user that the coordinator writes with may not write, or not any more.

The same goes on meanwhile as on a full disk. Nobody is admitted or banned, nobody leads, and nothing changes.
Known members have their recorded key certified again, until 4 hours after the recorded end. The coordinator stays ready
and alive: restarting it mends nothing.`,
	},
	{
		Code:  StoreHeld,
		Title: "somebody else holds a lock on the store",
		What:  "{what|the call} failed: somebody else holds a lock on the store",
		Why:   "{cause|no call was answered in time}",
		Do:    "find out who holds it, and end that: of PostgreSQL pg_locks and pg_blocking_pids() say who, of a SQLite file fuser does; coordinators that run go on by themselves",
		Exit:  ExitUnreachable, GRPC: codes.Unavailable,
		Of: StoreUnreachable,
		Page: `
The server was reached and let the coordinator in. A table or a row of the store is locked by somebody who is no coordinator,
or by one that was stopped in the middle: a migration by hand, ` + "`VACUUM FULL`" + `, a session with an open transaction, a tool
that has the SQLite file open. Nothing was changed.`,
	},
	{
		Code:  StoreOverloaded,
		Title: "the database server takes no more connections",
		What:  "{what|the call} failed: the server of the store takes no more connections or requests",
		Why:   "{cause|its limit is reached}",
		Do:    "end connections that nobody needs, or raise max_connections, the role's CONNECTION LIMIT or what limits the server; coordinators that run go on by themselves",
		Exit:  ExitUnreachable, GRPC: codes.Unavailable,
		Of: StoreUnreachable,
		Page: `
A coordinator takes up to ten connections of PostgreSQL, and one of etcd. Those that it has go on being used, so that
some calls are answered and others are not. Nothing was changed.`,
	},

	{
		Code:  StoreUnrecorded,
		Title: "what was seen of the store is not written down",
		What:  "this coordinator does not write down what it sees of the store: the protection against one that goes back is off",
		Why:   "{dir|its data directory} takes nothing: {cause|it refuses writes}",
		Do:    "make space or inodes there, or let the coordinator's user write; it is tried again every second",
		Exit:  ExitDegraded, GRPC: codes.FailedPrecondition,
		Page: `
Each coordinator keeps the newest revision and head that it saw in ` + "`store-seen.json`, `trust-seen.json` and `head-seen.json`" + `
of its data directory, and refuses a store that shows less (` + "`FE-S112`, `FE-H107`" + `). It has that in memory, so that nothing
is amiss before it restarts. Then it would go by what it wrote last.`,
	},

	{
		Code:  TokenUnknown,
		Title: "the token is not valid",
		What:  "the join token was refused",
		Why:   "it is not known here, or its secret is not the right one",
		Do:    "ask an admin for a new one: fealty token create",
		Exit:  ExitDenied, GRPC: codes.Unauthenticated,
		Page: `
The answer is the same for a token that never existed, one that was deleted, and one with a wrong secret, so
that nobody learns by asking which tokens there are. Was the line cut when it was copied? Its checksum is
verified before anything is sent, so that a typo has a code of its own: FE-T106.`,
	},
	{
		Code:  TokenSpent,
		Title: "the token is used up",
		What:  "the join token {token|given} was refused: it is used up",
		Why:   "the number of machines that it admits is {uses|given with it}",
		Do:    "ask an admin for a new one: fealty token create, with --uses for several machines",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
A machine that joined with this token does not need it again: it comes back by its own key. If nobody of
yours used the token, somebody else did: ` + "`fealty token show`" + ` lists whom it admitted.`,
	},
	{
		Code:  TokenExpired,
		Title: "the token has expired",
		What:  "the join token {token|given} was refused: it has expired",
		Why:   "it was good until {expired_at|a time that has passed}, and it is {now|later}",
		Do:    "ask an admin for a new one: fealty token create, with --ttl if an hour is too short",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
The coordinator's clock decides. If the times above look wrong to you, check that clock first.`,
	},
	{
		Code:  TokenForeign,
		Title: "the token is for another cluster",
		What:  "the join token was refused: it is for cluster {presented|of another name}",
		Why:   "{reason|the coordinator that answered does not hold the root key that the token pins}",
		Do:    "{do|ask an admin of the cluster that you want to join for a token}",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
A token holds the hash of its cluster's root key, so that it also tells whether the right coordinator
answered. A cluster that was rebuilt from nothing has another root under the old name, and tokens of the old
one are for another cluster. Nothing was sent to the coordinator that answered.`,
	},
	{
		Code:  TokenRevoked,
		Title: "the token was revoked",
		What:  "the join token {token|given} was refused: it was revoked",
		Why:   "an admin ended it",
		Do:    "ask that admin, or any other, for a new one: fealty token create",
		Exit:  ExitDenied, GRPC: codes.PermissionDenied,
		Page: `
A member that the token admitted before stays one: banning is another command.`,
	},
	{
		Code:  TokenMalformed,
		Title: "this is not a whole join token",
		What:  "the join token {token|given} cannot be read",
		Why:   "{problem|it was cut or mistyped: its checksum does not match}",
		Do:    "copy the whole line that fealty token create printed; it starts with fealty1_",
		Exit:  ExitUsage, GRPC: codes.InvalidArgument,
		Page: `
A token is one line without spaces and with a checksum, verified before a packet leaves. It can also be read
from ` + "`--token-file`" + `, from standard input, or from ` + "`FEALTY_JOIN_TOKEN`" + `.`,
	},
	{
		Code:  TokenRequest,
		Title: "such a token cannot be made",
		What:  "no token was made: {field|a field} is not acceptable",
		Why:   "{problem|it is outside of what the entry allows}",
		Do:    "change it and try again; fealty manifest get shows what entries allow",
		Exit:  ExitUsage, GRPC: codes.InvalidArgument,
		Page: `
A token narrows an entry of the manifest and never widens it, and only entries that match tokens have any.`,
	},
	{
		Code:  TokenOtherKind,
		Title: "the token is for another command",
		What:  "this is not a {wanted|token of the kind that is wanted here}",
		Why:   "{problem|its prefix says that it is of another kind}",
		Do:    "{do|use it with the command that it was made for}",
		Exit:  ExitUsage, GRPC: codes.InvalidArgument,
		Page: `
Each kind of token begins in its own way, so that one that came to the wrong command is answered with the
right one: ` + "`fealty1_`" + ` is a join token, for ` + "`fealty join`" + ` and ` + "`fealty login`" + `; a setup
token sets the first manifest of a cluster: ` + "`fealty manifest set --setup-token-file`" + `. Nothing was sent.`,
	},

	{
		Code:  UnknownCommand,
		Title: "no such command",
		What:  "there is no command {command|of that name}",
		Why:   "{guess|nothing is similar to it}",
		Do:    "see them all with fealty --help",
		Exit:  ExitUsage, GRPC: codes.InvalidArgument,
		Page: `
Commands are nouns and verbs, such as ` + "`fealty member list`" + `.`,
	},
	{
		Code:  UnknownFlag,
		Title: "no such flag",
		What:  "{command|the command} has no flag {flag|of that name}",
		Why:   "{guess|nothing is similar to it}",
		Do:    "see its flags with {command|fealty COMMAND} --help",
		Exit:  ExitUsage, GRPC: codes.InvalidArgument,
		Page: `
An unknown flag is never ignored: it could be the one that makes a command safe.`,
	},
	{
		Code:  BadValue,
		Title: "a value is not acceptable",
		What:  "{name|a value} cannot be {value|that}",
		Why:   "{problem|it is not of the form wanted}",
		Do:    "give {want|another value}; fealty explain knows each setting",
		Exit:  ExitUsage, GRPC: codes.InvalidArgument,
		Page: `
Nothing was started or changed. ` + "`--print-config`" + ` shows each setting in force and where it came
from: a flag, the environment, or a file.`,
	},
	{
		Code:  UnknownKey,
		Title: "the configuration has an unknown key",
		What:  "{place|the configuration}: there is no setting {key|of that name}",
		Why:   "{guess|nothing is similar to it}",
		Do:    "correct or remove it; fealty explain lists the settings",
		Exit:  ExitConfig, GRPC: codes.InvalidArgument,
		Page: `
A mistyped key would otherwise leave a default in force that nobody chose. The same holds for variables of
the environment that start with ` + "`FEALTY_`" + `.`,
	},
	{
		Code:  FileMissing,
		Title: "a file cannot be read",
		What:  "{purpose|the file} {file|named} cannot be read",
		Why:   "{cause|it does not exist}",
		Do:    "{do|check the path and who may read it}",
		Exit:  ExitConfig, GRPC: codes.NotFound,
		Page: `
A relative path is taken from the folder in which the command was started, also if the path comes from a
configuration file.`,
	},
	{
		Code:  NoCoordinatorConfigured,
		Title: "it is not said which coordinator to ask",
		What:  "no coordinator is named",
		Why:   "there is none in {looked|flags, environment, configuration file and local sockets}, and none is taken by default",
		Do:    "{ways|name one with --socket PATH or --coordinator HOST:PORT and --identity DIR, in the environment or in a file}",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
A command that guessed would one day change the wrong cluster. There are these ways to name one, and the first
that is given counts:

- ` + "`--socket PATH`" + ` or ` + "`FEALTY_SOCKET`" + `: the admin socket of a coordinator on this machine
- ` + "`--identity DIR`" + ` or ` + "`FEALTY_IDENTITY`" + `: what ` + "`fealty login`" + ` wrote, which remembers its
  coordinators; ` + "`--coordinator HOST:PORT`" + ` or ` + "`FEALTY_COORDINATOR`" + ` names others
- the same as ` + "`socket`" + `, ` + "`identity`" + ` and ` + "`coordinator`" + ` in the file of ` + "`--config`" + `
- the folder ` + "`.fealty-dev`" + ` of a local cluster in the folder where the command is started; the command says
  that it used it`,
	},
	{
		Code:  RequestField,
		Title: "a field of the request is not acceptable",
		What:  "the request was refused: {field|a field} is not acceptable",
		Why:   "{problem|it is not of the form wanted}",
		Do:    "correct it and try again; nothing was changed",
		Exit:  ExitUsage, GRPC: codes.InvalidArgument,
		Page: `
The coordinator checks what a command has checked before it, since others call it too.`,
	},
	{
		Code:  NotFound,
		Title: "there is no such thing",
		What:  "there is no {what|such thing} {name|of that name}",
		Why:   "{why|nothing of that name exists, or it was removed}",
		Do:    "{do|check the spelling: fealty member list, fealty token list, fealty config list and fealty manifest get show the names there are}",
		Exit:  ExitNotFound, GRPC: codes.NotFound,
		Page: `
Only callers who may list these things get this answer; others get FE-A102 whether or not it exists.`,
	},
	{
		Code:  Conflict,
		Title: "somebody else was first",
		What:  "{what|the change} was not made: it changed in the meantime",
		Why:   "{problem|another writer was first, so the decision was made on old facts}",
		Do:    "look at it again and decide anew; nothing was changed",
		Exit:  ExitConflict, GRPC: codes.Aborted,
		Page: `
Changes are conditional on what they were based on. The first one wins, later ones are told.`,
	},
	{
		Code:  WaitRanOut,
		Title: "the wait ran out",
		What:  "{what|what was waited for} had not happened after {waited|the time given}",
		Why:   "{problem|the time ran out first; it may still happen}",
		Do:    "see how far it is with fealty status, and wait longer with --wait=DURATION if it moves",
		Exit:  ExitWaitRanOut, GRPC: codes.DeadlineExceeded,
		Page: `
The change itself was accepted, and goes on; only the waiting ended.`,
	},
	{
		Code:  Interrupted,
		Title: "interrupted",
		What:  "{what|the command} was interrupted",
		Why:   "it got a signal, or its caller went away",
		Do:    "start it again; what was already acknowledged stays done",
		Exit:  ExitInterrupted, GRPC: codes.Canceled,
		Page: `
Commands can be interrupted at any time. A write that was on its way may still have been done: look before
you repeat it.`,
	},
	{
		Code:  NotConfirmed,
		Title: "a dangerous command was not confirmed",
		What:  "{command|the command} was not started",
		Why:   "{risk|it cannot be undone}, and {problem|nobody confirmed it}",
		Do:    "look at it with --dry-run, then confirm it on a terminal or add --yes",
		Exit:  ExitRefused, GRPC: codes.FailedPrecondition,
		Page: `
Commands that take something away from a running fleet name what they do and ask. A script has nobody to ask,
so that it says ` + "`--yes`" + ` beforehand. ` + "`--dry-run`" + ` shows what would be done and never asks.`,
	},
	{
		Code:  BadSetting,
		Title: "a setting is not acceptable",
		What:  "{from|the configuration} sets {key|a setting} to a value that cannot be used",
		Why:   "{problem|it is not of the form wanted}",
		Do:    "correct it; fealty {page|explain config} says what it takes",
		Exit:  ExitConfig, GRPC: codes.InvalidArgument,
		Page: `
Nothing was started or changed. The value is from a configuration file or the environment; one from the command
line gets FE-U103. ` + "`--print-config`" + ` shows each setting in force and where it came from.`,
	},
	{
		Code:  AddressUnusable,
		Title: "an address cannot be listened on",
		What:  "nothing can be served on {address|the address given}",
		Why:   "{problem|the system refused it}",
		Do:    "end what uses it, or choose another address with {flag|--listen}",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
Another process listens there, the address is not one of this machine, or the port needs rights that this
process does not have. The process ended before it served anything.`,
	},
	{
		Code:  FileExists,
		Title: "a file would be overwritten",
		What:  "{file|the file} was not written: it exists",
		Why:   "it may hold {purpose|something} that is still needed, and writing it would destroy that",
		Do:    "choose another name, or move it away first",
		Exit:  ExitConflict, GRPC: codes.AlreadyExists,
		Page: `
Commands that make keys and policies never replace a file. Nothing was written.`,
	},
	{
		Code:  FileNotWritten,
		Title: "a file cannot be written",
		What:  "{purpose|the file} {file|named} was not written",
		Why:   "{cause|the system refused it}",
		Do:    "check the folder, its rights and its free space",
		Exit:  ExitFailed, GRPC: codes.FailedPrecondition,
		Page: `
Files are written whole or not at all, so that there is no half of one to clean up.`,
	},
	{
		Code:  StoryFailed,
		Title: "a step of the story failed",
		What:  "the story did not go as it should: {failed|some} of {steps|its} steps failed",
		Why:   "what was seen is not what the step expects; it stands beside the step above",
		Do:    "run it again; if the same step fails, report it with the output of fealty dev --story --exit -o json",
		Exit:  ExitFailed, GRPC: codes.Internal,
		Page: `
The story runs the whole product on real listeners on this machine. A step that fails on an idle machine is a
defect of Fealty. On a machine that is very busy a wait may run out; the step then says what it waited for.`,
	},
	{
		Code:  FolderUnusable,
		Title: "a folder cannot be written",
		What:  "nothing can be kept in {dir|the folder}",
		Why:   "{cause|the system does not let this user write there}",
		Do:    "run it as a user who may write there, as root with sudo, or name another folder with {flag|--data}",
		Exit:  ExitConfig, GRPC: codes.FailedPrecondition,
		Page: `
The folder, or one above it, belongs to another user, is on a disk that is read-only, or has a file in its place. It
is made with mode 0700 if it is missing. The default folders are below ` + "`/var/lib`" + `, where root alone may
make one. Nothing was sent and nothing was changed.`,
	},
	{
		Code:  LoginRefused,
		Title: "the coordinator refused this login",
		What:  "{endpoint|the coordinator} refused the login of {identity|this person}",
		Why:   "it ended the handshake without a reason; by the clock here the login is good until {until|a later time}, so it was banned, or the cluster has another root now",
		Do:    "log in again: fealty login --token-file FILE; if that is refused too, an admin sees why: fealty member show {member|MEMBER}",
		Exit:  ExitDenied, GRPC: codes.Unavailable,
		Page: `
A ban ends a login within seconds, at every coordinator, and so does a new seed, which has a new root. A banned person is told no
more than that in the handshake; an admin sees the reason of a ban, and lifts it with ` + "`fealty member unban`" + `.
A login that has ended by its own time has a code of its own, FE-C104.`,
	},
	{
		Code:  LogFailing,
		Title: "the log of a process is lost",
		What:  "standard error of {who|a process} does not take its log",
		Why:   "{problem|a write to it fails or does not come back}, since {since|a while ago}; {lines|some} lines were left out",
		Do:    "look at what reads it on that machine: the service manager, the container's log driver, the disk, the other end of the pipe; this clears itself, but what was left out is lost",
		Exit:  ExitDegraded, GRPC: codes.Unavailable,
		Page: `
A coordinator, an agent, a shard and a provider write their log to standard error. Where that is closed or full, or
its reader went away or stopped reading, nothing waits for it: requests are served, identities are renewed, a leader
leads, and SIGTERM ends the process. Up to 8192 lines or 1 MiB wait for a reader that is slow; what does not fit is left
out, and so is what comes while a write fails. The metric ` + "`fealty_log_dropped_total`" + ` counts those lines, and
` + "`fealty_log_failing`" + ` is 1 while this lasts. Once the stream takes something again, which is tried each second, one
line of the log says at its place how many lines are missing, and the finding ends.

A stream that was closed when the process started cannot be told from /dev/null that was opened for reading and writing:
both say so. Whoever wants no log sends it to /dev/null for writing alone, as a shell does with ` + "`2>/dev/null`" + `.`,
	},
	{
		Code:  NoFilesLeft,
		Title: "no more files can be opened here",
		What:  "{what|this command} failed, because {whose|this process} may open no more files",
		Why:   "{problem|too many open files}; files, sockets and connections count alike",
		Do:    "{do|raise the limit: ulimit -n 65536 in the shell, LimitNOFILE= of the unit, or --ulimit nofile= of the container}",
		Exit:  ExitFailed, GRPC: codes.ResourceExhausted,
		Page: `
This is a fault of this machine: nothing is known of the network, of a coordinator or of a login then. Fealty raises its own
limit as far as it may; ` + "`ulimit -Hn`" + ` shows how far that is. "Too many open files in system" is the limit of the whole machine,
` + "`fs.file-max`" + `, and another process may have them all.`,
	},
	{
		Code:  SocketForbidden,
		Title: "a local socket may not be opened",
		What:  "the socket {endpoint|of the process} may not be opened by this user",
		Why:   "{problem|it belongs to another user, or a folder above it does}",
		Do:    "run the same command as that user, or with sudo; people and tools get a login of their own instead: fealty login --token-file FILE",
		Exit:  ExitConfig, GRPC: codes.PermissionDenied,
		Page: `
The permissions of this machine are in the way, and nobody was asked: whether the process runs is not known. The
socket of a coordinator, and that of an agent, is of the user as whom that process runs.`,
	},

	{
		Code:  Unreachable,
		Title: "the other side cannot be reached",
		What:  "{endpoint|the other side} cannot be reached",
		Why:   "{problem|there was no answer}",
		Do:    "{do|check address, network and firewall, and whether the process runs there}",
		Exit:  ExitUnreachable, GRPC: codes.Unavailable,
		Page: `
A plain failure of the network: no handshake took place. If the other side answered and was not trusted, the
code is one from FE-X105 to FE-X110, or FE-X112.`,
	},
	{
		Code:  OutcomeUnknown,
		Title: "it is not known whether it was done",
		What:  "there was no answer to {method|the call}",
		Why:   "the time ran out after the request was sent, so it may have been done",
		Do:    "look before you try again: {look|the noun's list or show command tells whether it was done}",
		Exit:  ExitOutcomeUnknown, GRPC: codes.DeadlineExceeded,
		Page: `
This is not a failure: it is not known to have failed. Repeating is harmless where the command is idempotent,
which its help says.`,
	},
	{
		Code:  MessageTooLarge,
		Title: "a message is too large",
		What:  "{what|a request or its answer} was refused: it is too large",
		Why:   "it has {got|more} bytes, at most {max|fewer} are allowed",
		Do:    "send less, or ask for less, at once",
		Exit:  ExitFailed, GRPC: codes.ResourceExhausted,
		Page: `
Everything that a peer sends has a limit, checked before it is looked at.`,
	},
	{
		Code:  RateLimited,
		Title: "too much at once",
		What:  "{what|the request} was put off: too many at once",
		Why:   "the limit is {limit|reached}",
		Do:    "try again in a while; agents do so by themselves",
		Exit:  ExitFailed, GRPC: codes.ResourceExhausted,
		Page: `
Joins are limited for each source address and overall, so that a flood of them slows neither renewals nor
members. Many machines behind one address share its limit: let them join in waves.`,
	},
	{
		Code:  PeerUntrusted,
		Title: "the other side is not trusted",
		What:  "{endpoint|the other side} was not trusted",
		Why:   "{problem|its certificate does not verify against the trust bundle}",
		Do:    "{do|check that it belongs to this cluster; if the root was changed, get the new bundle from an admin}",
		Exit:  ExitDenied, GRPC: codes.Unavailable,
		Page: `
Certificates are verified against the roots of the cluster, never against those of the system. A different
program on that port, a cluster of the same name under another root, and a proxy that ends TLS all look like this. A
cluster of another name is ` + "`FE-X112`" + `.`,
	},
	{
		Code:  PeerIdentityMismatch,
		Title: "somebody else answered",
		What:  "{endpoint|the other side} is not who was expected",
		Why:   "expected was {expected|another identity}, and the certificate says {identity|something else}",
		Do:    "check the address: it may have been given to another machine",
		Exit:  ExitDenied, GRPC: codes.Unavailable,
		Page: `
Addresses are hints, identities are trusted. The endpoint is passed over and tried again later.`,
	},
	{
		Code:  PeerNoIdentity,
		Title: "the other side has no identity",
		What:  "{endpoint|the other side} showed a certificate that identifies nobody",
		Why:   "{problem|it does not carry exactly one SPIFFE id of this cluster}",
		Do:    "look at its certificate with fealty cert show, and let it join again",
		Exit:  ExitDenied, GRPC: codes.Unavailable,
		Page: `
It is in the trust domain of nobody, or of several: a certificate of a tool that does not make SPIFFE
certificates, or that puts more than one id into each.`,
	},
	{
		Code:  PeerExpired,
		Title: "the other side's certificate is out of date",
		What:  "{endpoint|the other side} showed a certificate that is not in date",
		Why:   "it is valid from {not_before|a time} to {not_after|a time}, and the clock here says {now|another}",
		Do:    "compare the clocks first; then see on the other machine why it does not renew: fealty status",
		Exit:  ExitDenied, GRPC: codes.Unavailable,
		Page: `
If only this machine sees it, this machine's clock is wrong.`,
	},
	{
		Code:  PeerRejectedUs,
		Title: "the other side refused our certificate",
		What:  "{endpoint|the other side} refused this side's certificate",
		Why:   "it ended the handshake; it does not say why",
		Do:    "see there: its log names the reason; here fealty cert show tells what was shown",
		Exit:  ExitDenied, GRPC: codes.Unavailable,
		Page: `
Usual reasons are an expired certificate, a ban, or a bundle on the other side that does not know our root.`,
	},
	{
		Code:  PeerProtocol,
		Title: "the other side does not speak this protocol",
		What:  "the handshake with {endpoint|the other side} failed",
		Why:   "{problem|it does not speak TLS 1.3}",
		Do:    "check the port: TLS 1.3 with a client certificate is expected there",
		Exit:  ExitUnreachable, GRPC: codes.Unavailable,
		Page: `
Plain HTTP, an older TLS, or a port of another service.`,
	},
	{
		Code:  Internal,
		Title: "an unexpected failure",
		What:  "{what|the call} failed",
		Why:   "{cause|the reason is in the log of the process that failed}",
		Do:    "look in the log of the process; report it with what fealty version -o wide and fealty check print",
		Exit:  ExitFailed, GRPC: codes.Internal,
		Page: `
A failure without a code of its own. If you can make it happen again, please report it.`,
	},
	{
		Code:  PeerOtherCluster,
		Title: "the other side is of another cluster",
		What:  "{endpoint|the other side} belongs to {cluster|another cluster}, not {expected|the one that is meant}",
		Why:   "{problem|its certificate names that cluster}",
		Do:    "{do|name a coordinator of the cluster that is meant with --coordinator, or the other cluster}",
		Exit:  ExitDenied, GRPC: codes.Unavailable,
		Page: `
The name is that of the certificate that the other side showed in the handshake, which everybody sees who connects.
Where nothing known here vouches for it, the second line says so: anybody can make a certificate with any name, so
the name helps to find the mistake and is no proof. Nothing was sent there. To ` + "`fealty verify`" + ` and ` + "`fealty recover`" + `
nobody is known before it proved itself: there it is what the other side says of itself, and the manifest or the share that
is given says which cluster is meant. Of a manifest or a history in a file it is what stands in it.`,
	},
}
