package errcode

// This file has every code. What is said about each, and how to add one, stands in codes.md. A code that
// is used and not here, or here and not used, fails the tests.

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
	StoreProgramMissing Code = "FE-S122"
	StoreNotStarted     Code = "FE-S123"
	StoreProcessEnded   Code = "FE-S124"

	ContractBroken Code = "FE-P101"
	ShardFenced    Code = "FE-P102"
	ShardPaused    Code = "FE-P103"
	DemandHeld     Code = "FE-P104"
	DemandRefused  Code = "FE-P105"
	DemandUnready  Code = "FE-P106"
	ShardSilent    Code = "FE-P107"
	ShardShort     Code = "FE-P108"
	ShardHolds     Code = "FE-P109"
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
