package snapshot

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/canonical"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// Trust is what a node believes when it verifies.
type Trust struct {
	// Me is this node, which names its cluster too, and Incarnation the hash of the
	// key it enrolled with. Required.
	Me          identity.ID
	Incarnation identity.KeyID

	// ConfigRoot verifies trust bundles. It comes from VerifyRoot. Nil: no trust
	// bundle verifies.
	ConfigRoot ed25519.PublicKey

	// Bundle is the active trust bundle. Nil: only trust bundles verify.
	Bundle *Verified

	// Revoked is what statements of the signers revoke beyond the bundle.
	Revoked Revocations

	// Roles and Organizations are this node's, by its own node_runtime, or by its
	// node_bootstrap until there is one.
	Roles         []string
	Organizations []string
}

// Verified is a snapshot that passed all checks: the only way to typed content.
// It is immutable and shares no memory with the bytes that were verified.
type Verified struct {
	activation
	content Content
	text    string
	keys    []string
}

// Header returns the header.
func (v *Verified) Header() Header { return v.header.clone() }

// HeaderDigest returns the SHA-256 of the header's bytes, which Mark records.
func (v *Verified) HeaderDigest() Digest { return v.digest }

// ContentJSON returns the exact content that was verified.
func (v *Verified) ContentJSON() string { return v.text }

// SignerKeyIDs returns the ids of the trusted keys that signed.
func (v *Verified) SignerKeyIDs() []string { return slices.Clone(v.keys) }

// Record returns the publication record that covers the snapshot; false for a
// trust bundle, which is signed by itself.
func (v *Verified) Record() (Record, bool) {
	if v.record == nil {
		return Record{}, false
	}
	return *v.record, true
}

// TrustBundle returns a copy of the content, if v is of scope trust_bundle.
func (v *Verified) TrustBundle() (TrustBundle, bool) {
	if b, ok := v.content.(*TrustBundle); ok {
		return b.clone(), true
	}
	return TrustBundle{}, false
}

// NodeBootstrap returns a copy of the content, if v is of scope node_bootstrap.
func (v *Verified) NodeBootstrap() (NodeBootstrap, bool) {
	if b, ok := v.content.(*NodeBootstrap); ok {
		return b.clone(), true
	}
	return NodeBootstrap{}, false
}

// NodeRuntime returns a copy of the content, if v is of scope node_runtime.
func (v *Verified) NodeRuntime() (NodeRuntime, bool) {
	if r, ok := v.content.(*NodeRuntime); ok {
		return r.clone(), true
	}
	return NodeRuntime{}, false
}

// PeerDirectory returns a copy of the content, if v is of scope peer_directory.
func (v *Verified) PeerDirectory() (PeerDirectory, bool) {
	if c, ok := v.content.(*PeerDirectory); ok {
		return c.clone(), true
	}
	return PeerDirectory{}, false
}

// ServiceAssignment returns a copy of the content, if v is of scope service_assignment.
func (v *Verified) ServiceAssignment() (ServiceAssignment, bool) {
	if c, ok := v.content.(*ServiceAssignment); ok {
		return c.clone(), true
	}
	return ServiceAssignment{}, false
}

// RoutePolicy returns a copy of the content, if v is of scope route_policy.
func (v *Verified) RoutePolicy() (RoutePolicy, bool) {
	if c, ok := v.content.(*RoutePolicy); ok {
		return c.clone(), true
	}
	return RoutePolicy{}, false
}

// QoSPolicy returns a copy of the content, if v is of scope qos_policy.
func (v *Verified) QoSPolicy() (QoSPolicy, bool) {
	if c, ok := v.content.(*QoSPolicy); ok {
		return c.clone(), true
	}
	return QoSPolicy{}, false
}

// StorageDirectory returns a copy of the content, if v is of scope storage_directory.
func (v *Verified) StorageDirectory() (StorageDirectory, bool) {
	if c, ok := v.content.(*StorageDirectory); ok {
		return c.clone(), true
	}
	return StorageDirectory{}, false
}

// DegradedModePolicy returns a copy of the content, if v is of scope degraded_mode_policy.
func (v *Verified) DegradedModePolicy() (DegradedModePolicy, bool) {
	if c, ok := v.content.(*DegradedModePolicy); ok {
		return c.clone(), true
	}
	return DegradedModePolicy{}, false
}

// Verify decides whether s, with its whole content, may be activated by the node
// that trust describes, which accepted marks before. s must not change while it runs.
//
// A refusal is a *RejectedError and matches ErrRejected; it names the first
// check that failed. Any other error is a Trust that no node can have. Accept
// raises the marks.
func Verify(s *Signed, trust Trust, marks Marks, now time.Time) (*Verified, error) {
	return verify(checks, &verification{signed: s, trust: trust, marks: marks, now: now})
}

// Checked is a snapshot whose header passed all checks that need no content: 1 to 5
// and 7 to 9. The hash and the size of its content are signed; nothing of it
// is trusted yet. It is immutable. [VerifyHeader] makes one; the zero Checked takes no content.
type Checked struct{ v verification }

// VerifyHeader is the part of Verify that needs no content, for one that is to be
// got first: by its hash, which the header says, as a patch, or from what is held
// already. It looks at no content or patch in s but their sizes.
//
// Errors are those of Verify. Time passes until the content is there: Accept
// decides by the marks of then.
func VerifyHeader(s *Signed, trust Trust, marks Marks, now time.Time) (*Checked, error) {
	return runHeader(&verification{signed: s, trust: trust, marks: marks, now: now})
}

// RecheckHeader is to VerifyHeader what Recheck is to Verify: for a node that
// accepted this very snapshot before, and lost its content.
func RecheckHeader(s *Signed, trust Trust, marks Marks, now time.Time) (*Checked, error) {
	return runHeader(&verification{signed: s, trust: trust, marks: marks, now: now, recheck: true})
}

func runHeader(v *verification) (*Checked, error) {
	if err := v.run(checks[:firstOfContent]); err != nil {
		return nil, err
	}
	v.signed = nil
	return &Checked{*v}, nil
}

// Header returns the header.
func (c *Checked) Header() Header { return c.v.header.clone() }

// HeaderDigest returns the SHA-256 of the header's bytes.
func (c *Checked) HeaderDigest() Digest { return c.v.digest }

// Record returns the publication record over the header; false for a trust bundle,
// which is signed by itself.
func (c *Checked) Record() (Record, bool) {
	if c.v.record == nil {
		return Record{}, false
	}
	return *c.v.record, true
}

// Complete is the rest of Verify, with content from any source. It can be called again: where
// content is refused, another source may have the right one.
func (c *Checked) Complete(content []byte) (*Verified, error) {
	v := c.v
	v.raw = content
	return v.complete(checks[firstOfContent:])
}

// CompletePatch is Complete with the content that patch makes of what is active,
// which it returns too, to be kept. A patch to anything else but the base that the
// header names is refused with the reason base_mismatch, and nothing but the whole helps then.
func (c *Checked) CompletePatch(active *Verified, patch []byte) (*Verified, []byte, error) {
	h := &c.v.header
	if msg := c.v.baseFault(active); msg != "" {
		err := refuse(checkVersion, h.ScopeType, msg)
		err.Reason = snapshot.ReasonBase
		return nil, nil, err
	}
	if msg := c.v.patchLimitFault(len(patch)); msg != "" {
		return nil, nil, refuse(checkLimits, h.ScopeType, msg)
	}
	content, msg := c.v.rule.applied(active.text, patch, h.ContentSize)
	if msg != "" {
		return nil, nil, refuse(checkHash, h.ScopeType, msg)
	}
	v, err := c.Complete(content)
	if err != nil {
		return nil, nil, err
	}
	return v, content, nil
}

// baseFault is the part of check 9 that a patch needs.
func (v *verification) baseFault(active *Verified) string {
	h := &v.header
	if h.Base == nil {
		return "a patch, and the header names no base"
	}
	if active == nil || active.content == nil {
		return fmt.Sprintf("a patch to version %d, and none is active", h.Base.ConfigVersion)
	}
	is := &active.header
	if is.ScopeType != h.ScopeType || is.Subject != h.Subject || is.AuthorityEpoch != h.AuthorityEpoch {
		return fmt.Sprintf("a patch of %s to %.120q in epoch %d, active is one of %s to %.120q in epoch %d",
			h.ScopeType, h.Subject, h.AuthorityEpoch, is.ScopeType, is.Subject, is.AuthorityEpoch)
	}
	if is.ConfigVersion != h.Base.ConfigVersion || is.ContentHash != h.Base.ContentHash {
		return fmt.Sprintf("a patch to version %d with content %s, active is version %d with content %s",
			h.Base.ConfigVersion, h.Base.ContentHash, is.ConfigVersion, is.ContentHash)
	}
	return ""
}

// patchLimitFault: a patch is shorter than what it makes, or the whole is sent.
func (v *verification) patchLimitFault(n int) string {
	return limitOf("a patch", n, v.header.ContentSize-1)
}

// Recheck is Verify for what is read from the node's own disk at start-up: the
// marks must have recorded exactly this snapshot, as the one accepted last or as
// one that it replaced, where Verify asks for a newer one. A node that starts in
// an outage so comes up with what it had.
func Recheck(s *Signed, trust Trust, marks Marks, now time.Time) (*Verified, error) {
	return verify(checks, &verification{signed: s, trust: trust, marks: marks, now: now, recheck: true})
}

// verification is one run of the checks: what was given, and what the checks so
// far found out.
type verification struct {
	signed  *Signed
	trust   Trust
	marks   Marks
	now     time.Time
	recheck bool

	raw []byte // the content that is to be checked; not there before check 6

	// By check 5: nothing before it looks into the bytes.
	keys   []*ConfigKey // whose signature over the record verifies; nil with byRoot
	byRoot bool         // the config root key signed the header itself
	record *Record

	// By check 1.
	header Header
	digest Digest
	rule   *scopeRule

	// By check 4.
	trusted []string

	// By check 6, and by check 10, which reports no error of decoding.
	text    string
	content Content
	formErr error
	secret  string

	reason Reason // by check 9: more than the check's own reason
	ahead  bool   // by check 8: it is of a newer epoch than the trust bundle
}

// check is one row of the table. run returns what is wrong, or "".
type check struct {
	number int
	rule   string
	source string
	run    func(*verification) string
}

// inChecks lists the checks by their numbers.
const inChecks = "docs/explanation/snapshots.md#the-twelve-checks"

// checks are in the order in which they run. Nothing is parsed before check 5
// but the counts and sizes of the envelope, and no content before check 6.
var checks = []check{
	{checkLimits, "envelope within limits", inChecks, (*verification).limitsFault},
	{checkSignature, "signature over the received bytes", "RFC 8032; RFC 6962 §2.1.1; DSSE v1.0.2", (*verification).signatureFault},
	{checkSchema, "schema is supported", "RFC 8785; " + inChecks, (*verification).headerFault},
	{checkLimits, "content within the scope's limit", inChecks, (*verification).scopeLimitFault},
	{checkCluster, "cluster is mine", inChecks, (*verification).clusterFault},
	{checkSubject, "subject is me", inChecks, (*verification).subjectFault},
	{checkSigner, "signer is trusted for the scope", inChecks, (*verification).signerFault},
	{checkEpoch, "authority epoch is not stale", inChecks, (*verification).epochFault},
	{checkVersion, "config version is newer", inChecks, (*verification).versionFault},
	{checkValidity, "in date", inChecks, (*verification).validityFault},
	{checkHash, "content hash and size", "FIPS 180-4; " + inChecks, (*verification).hashFault},
	{checkGrants, "nothing beyond my roles and organizations", inChecks, (*verification).grantsFault},
	{checkContent, "content is valid", "RFC 8785; " + inChecks, (*verification).contentFault},
	{checkSecret, "no raw secret", inChecks, (*verification).secretFault},
}

// Rule is one step of [Verify].
type Rule struct {
	Check  int    // the number in a [RejectedError]; 0 for limits
	Name   string // what has to hold
	Source string // where that is written
}

// Rules returns the steps of [Verify] in the order in which they are taken. The first
// that does not hold refuses a snapshot, and the later ones are not taken.
func Rules() []Rule {
	out := make([]Rule, len(checks))
	for i, c := range checks {
		out[i] = Rule{c.number, c.rule, c.source}
	}
	return out
}

// firstOfContent is where in checks those begin that need the content.
var firstOfContent = slices.IndexFunc(checks, func(c check) bool { return c.number == checkHash })

func verify(checks []check, v *verification) (*Verified, error) {
	if err := v.run(checks[:firstOfContent]); err != nil {
		return nil, err
	}
	v.raw = v.signed.Content
	return v.complete(checks[firstOfContent:])
}

// run runs checks up to the first that fails.
func (v *verification) run(checks []check) error {
	if v.trust.Me.IsZero() || v.trust.Incarnation.IsZero() {
		return fmt.Errorf("snapshot: Trust without Me or Incarnation: a node that is nobody accepts nothing")
	}
	if n := len(v.trust.ConfigRoot); n != 0 && n != ed25519.PublicKeySize {
		return fmt.Errorf("snapshot: Trust.ConfigRoot has %d bytes, want %d or none", n, ed25519.PublicKeySize)
	}
	if v.trust.Bundle != nil {
		if _, ok := v.trust.Bundle.content.(*TrustBundle); !ok {
			return fmt.Errorf("snapshot: Trust.Bundle is of scope %q, want a trust_bundle", v.trust.Bundle.header.ScopeType)
		}
	}
	for _, c := range checks {
		if msg := c.run(v); msg != "" {
			err := refuse(c.number, v.header.ScopeType, msg)
			if v.reason != "" {
				err.Reason = v.reason
			}
			err.Ahead = v.ahead
			return err
		}
	}
	return nil
}

// complete runs the checks of the content.
func (v *verification) complete(checks []check) (*Verified, error) {
	if err := v.run(checks); err != nil {
		return nil, err
	}
	return &Verified{
		activation: activation{v.header, v.digest, v.record},
		content:    v.content, text: v.text, keys: v.trusted,
	}, nil
}

func (v *verification) limitsFault() string { return v.signed.fault() }

// bundle returns the content of the active trust bundle, or nil.
func (v *verification) bundle() *TrustBundle {
	if v.trust.Bundle == nil {
		return nil
	}
	return v.trust.Bundle.content.(*TrustBundle)
}

// signatureFault is check 5. It finds the keys of the node's bundle whose
// signatures verify; whether they may sign is check 4.
func (v *verification) signatureFault() string {
	cluster := v.trust.Me.Cluster()
	p := v.signed.Publication
	if p == nil {
		message := snapshot.PAE(snapshot.TypeSnapshot, cluster, v.signed.Header)
		for _, sig := range v.signed.Signatures {
			if v.trust.ConfigRoot == nil || sig.Algorithm != snapshot.AlgorithmEd25519 || sig.KeyID != snapshot.KeyIDOf(v.trust.ConfigRoot) {
				continue // not ours: one valid signature is enough
			}
			if ed25519.Verify(v.trust.ConfigRoot, message, sig.Bytes) {
				v.byRoot = true
				return ""
			}
		}
		return "no valid signature of the config root key"
	}
	bundle := v.bundle()
	if bundle == nil {
		return "there is no trust bundle yet to take keys from"
	}
	message := snapshot.PAE(snapshot.TypePublication, cluster, p.Record)
	for _, sig := range p.Signatures {
		if sig.Algorithm != snapshot.AlgorithmTree {
			continue
		}
		for i := range bundle.ConfigKeys {
			k := &bundle.ConfigKeys[i]
			// The id is a hint that saves verifying with every key; a wrong one finds none.
			if k.Algorithm == snapshot.AlgorithmTree && k.ID() == sig.KeyID && ed25519.Verify(k.Key, message, sig.Bytes) {
				v.keys = append(v.keys, k)
			}
		}
	}
	if len(v.keys) == 0 {
		return "no valid signature of a config key of the trust bundle"
	}
	record := new(Record)
	if _, err := decode(string(p.Record), record); err != nil {
		return "the signed publication record: " + err.Error()
	}
	v.record = record
	return v.signed.Proof.fault(LeafOf(cluster, v.signed.Header), record)
}

// headerFault is check 1.
func (v *verification) headerFault() string {
	v.digest = DigestOf(v.signed.Header)
	// One copy, which the header's strings share.
	c, err := decode(string(v.signed.Header), &v.header)
	if err != nil {
		v.header = Header{}
		if version := schemaOf(v.signed.Header); version > 0 && version != schemaVersion {
			return fmt.Sprintf("schema version %d, supported is %d", version, schemaVersion)
		}
		return "header: " + err.Error()
	}
	v.secret = c.Secret()
	v.rule = ruleOf(v.header.ScopeType)
	return v.schemaFault()
}

// schemaFault is what compose shares with check 1.
func (v *verification) schemaFault() string {
	switch {
	case v.rule == nil:
		return fmt.Sprintf("scope_type %.40q is not supported", v.header.ScopeType)
	case v.header.Base != nil && !v.rule.increments:
		return fmt.Sprintf("%s always goes whole, and this one names a base", v.header.ScopeType)
	case v.header.Base != nil:
		if msg := v.header.Base.fault(v.header.ConfigVersion); msg != "" {
			return msg
		}
	}
	return v.header.fault()
}

func (v *verification) scopeLimitFault() string {
	if msg := limitOf("content", max(len(v.signed.Content), v.header.ContentSize), v.rule.maxContent); msg != "" {
		return msg
	}
	if len(v.signed.Patch) > 0 {
		return v.patchLimitFault(len(v.signed.Patch))
	}
	return ""
}

// clusterFault is check 2.
func (v *verification) clusterFault() string {
	mine := v.trust.Me.Cluster()
	if v.header.ClusterID != mine {
		return fmt.Sprintf("cluster %.80q, mine is %q", v.header.ClusterID, mine)
	}
	if v.record != nil && v.record.ClusterID != mine {
		return fmt.Sprintf("a record of cluster %.80q, mine is %q", v.record.ClusterID, mine)
	}
	return ""
}

// subjectFault is check 3.
func (v *verification) subjectFault() string {
	if msg := v.subjectFormFault(); msg != "" {
		return msg
	}
	s, mine := v.header.Subject, false
	switch s.kind() {
	case subjectNode:
		if s.node == v.trust.Me && s.incarnation != v.trust.Incarnation {
			return "it is for another incarnation of this node, from before it enrolled again or after its name was given away"
		}
		mine = s == NodeSubject(v.trust.Me, v.trust.Incarnation)
	case subjectCluster:
		mine = true
	case subjectGroup:
		mine = s == GroupSubject(v.trust.Roles, v.trust.Organizations)
	}
	if !mine {
		return fmt.Sprintf("it is for %.120q, I am %s", s, v.trust.Me)
	}
	return ""
}

// subjectFormFault is what compose shares with check 3.
func (v *verification) subjectFormFault() string {
	h := &v.header
	switch kind := h.Subject.kind(); {
	case kind&v.rule.subjects == 0:
		return fmt.Sprintf("scope %s is not given to %.80q", h.ScopeType, h.Subject)
	case kind == subjectGroup && h.Subject != GroupSubject(h.Roles, h.OrganizationIDs):
		return fmt.Sprintf("%.80q is not the group of roles %.200q and organizations %.200q", h.Subject, h.Roles, h.OrganizationIDs)
	}
	return ""
}

// signerFault is check 4.
func (v *verification) signerFault() string {
	if v.byRoot {
		if v.rule.algorithm != snapshot.AlgorithmEd25519 {
			return fmt.Sprintf("the config root key may not sign %s", v.header.ScopeType)
		}
		v.trusted = []string{snapshot.KeyIDOf(v.trust.ConfigRoot)}
		return ""
	}
	if v.rule.algorithm != snapshot.AlgorithmTree {
		return fmt.Sprintf("no config key may sign %s", v.header.ScopeType)
	}
	if end := v.trust.Bundle.header.ExpiresAt; !v.now.Before(end) {
		return fmt.Sprintf("the trust bundle expired at %s", end.Format(canonical.TimeLayout))
	}
	var why string
	for _, k := range v.keys {
		msg := k.trusts(v.header.ScopeType, v.now)
		if msg == "" && v.trust.Revoked.revokesKey(k.Key) {
			msg = "is revoked by the signers of the manifest"
		}
		if msg == "" {
			v.trusted = append(v.trusted, k.ID())
			continue
		}
		why = fmt.Sprintf("config key %s %s", k.ID(), msg)
	}
	if len(v.trusted) == 0 {
		return why
	}
	return ""
}

func (v *verification) activation() *activation {
	return &activation{v.header, v.digest, v.record}
}

// epochFault is check 8.
func (v *verification) epochFault() string {
	if v.recheck {
		return "" // an epoch refuses what comes in, it does not undo what is active
	}
	// Only the config root key moves the epoch. Otherwise who got hold of a config
	// key could sign an epoch so high that no repair comes after it.
	if b := v.bundle(); v.record != nil && max(v.header.AuthorityEpoch, v.record.AuthorityEpoch) > b.AuthorityEpoch {
		v.ahead = true
		return fmt.Sprintf("authority_epoch %d under a record of %d, the trust bundle is of %d: a newer bundle comes first",
			v.header.AuthorityEpoch, v.record.AuthorityEpoch, b.AuthorityEpoch)
	}
	return v.marks.epochFault(v.activation())
}

// versionFault is check 9.
func (v *verification) versionFault() string {
	if v.recheck {
		msg := v.marks.recordedFault(v.activation())
		if msg != "" {
			v.reason = ReasonUnrecorded
		}
		return msg
	}
	reason, msg := v.marks.versionFault(v.activation())
	v.reason = reason
	return msg
}

// validityFault is check 7.
func (v *verification) validityFault() string {
	h, soon := &v.header, v.now.Add(snapshot.ClockTolerance)
	clock := " (it is " + v.now.UTC().Format(canonical.TimeLayout) + " here)"
	switch {
	case h.ValidFrom.After(soon):
		return "it is valid from " + h.ValidFrom.Format(canonical.TimeLayout) + clock
	// Else a renewal from the future would keep out all that follow.
	case h.IssuedAt.After(soon):
		return "it was issued at " + h.IssuedAt.Format(canonical.TimeLayout) + clock
	case !v.now.Before(h.ExpiresAt):
		return "it expired at " + h.ExpiresAt.Format(canonical.TimeLayout) + clock
	case v.record != nil && v.record.IssuedAt.After(soon):
		return "its record was issued at " + v.record.IssuedAt.Format(canonical.TimeLayout) + clock
	case v.record != nil && !v.record.FreshUntil.After(v.record.IssuedAt):
		return "its record was never fresh"
	}
	return v.timesFault()
}

// timesFault is what compose shares with check 7.
func (v *verification) timesFault() string {
	h := &v.header
	switch {
	case !h.ValidFrom.Before(h.ExpiresAt):
		return "it expires before it is valid"
	case !h.RefreshAfter.Before(h.ExpiresAt):
		return "it expires before it is to be refreshed"
	}
	return ""
}

// hashFault is check 6.
func (v *verification) hashFault() string {
	if n := len(v.raw); n != v.header.ContentSize {
		return fmt.Sprintf("content of %d bytes, the header says %d", n, v.header.ContentSize)
	}
	if DigestOf(v.raw) != v.header.ContentHash {
		return "the content is not the one that the header names"
	}
	// The only copy: all strings of the typed content share it.
	v.text = string(v.raw)
	return ""
}

// grantsFault is check 10.
func (v *verification) grantsFault() string {
	if !v.rule.establishes {
		for _, role := range v.header.Roles {
			if !slices.Contains(v.trust.Roles, role) {
				return fmt.Sprintf("it is for role %.40q, which this node does not have", role)
			}
		}
		for _, org := range v.header.OrganizationIDs {
			if !slices.Contains(v.trust.Organizations, org) {
				return fmt.Sprintf("it is for organization %.40q, which this node does not serve", org)
			}
		}
		// Fewer roles may hold more: what one of them may not hold is no node's that has it.
		if v.header.Subject.kind() == subjectNode && !slices.Equal(v.header.Roles, v.trust.Roles) {
			return fmt.Sprintf("it is for roles %.200q, this node has %.200q", v.header.Roles, v.trust.Roles)
		}
	}
	v.content = v.rule.content()
	c, err := decode(v.text, v.content)
	v.formErr = err
	if v.secret == "" {
		v.secret = c.Secret()
	}
	if err != nil {
		return "" // check 11 says so
	}
	return v.content.grants(&v.header)
}

// contentFault is check 11.
func (v *verification) contentFault() string {
	if v.formErr != nil {
		return v.formErr.Error()
	}
	if msg := v.content.fault(&v.header); msg != "" {
		return msg
	}
	if b, ok := v.content.(*TrustBundle); ok {
		if !b.ConfigRoot.Equal(v.trust.ConfigRoot) {
			return "it names another config root key, which needs the signers of the manifest"
		}
		// At start-up the bundle on disk may be the one before the active one.
		if old := v.bundle(); old != nil && !v.recheck {
			return b.follows(&v.header, old, &v.trust.Bundle.header)
		}
	}
	return ""
}

// secretFault is check 12.
func (v *verification) secretFault() string {
	if v.secret != "" {
		return "it holds a " + v.secret
	}
	return ""
}
