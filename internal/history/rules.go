package history

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"slices"

	"github.com/fealty-io/fealty/internal/manifest"
)

// A Rule is one thing that every history must hold to.
type Rule struct {
	Name    string // stable: see VerifyError.Rule
	Why     string // what goes wrong without it
	Section string // where it is written
}

// The pages on which rules are explained.
const (
	inFields     = "docs/reference/manifest.md#fields"
	inLimits     = "docs/reference/limits.md#history-and-store"
	inSeed       = "docs/how-to/seed-owners.md"
	inReseed     = "docs/explanation/reseed.md#the-history"
	inRestore    = "docs/explanation/recovery.md#a-database-that-was-brought-back"
	inHistory    = "docs/explanation/trust.md#3-the-set-and-the-history"
	inInvariants = "docs/explanation/failure-model.md#invariants"
)

// Rules returns every rule of [Verify], in the order in which they are checked.
func Rules() []Rule {
	var rules []Rule
	for _, r := range headRules {
		rules = append(rules, r.Rule)
	}
	for _, r := range linkRules {
		rules = append(rules, r.Rule)
	}
	for _, r := range endRules {
		rules = append(rules, r.Rule)
	}
	return rules
}

// replay is what the rules about the head look at.
type replay struct {
	history *History
	key     ed25519.PublicKey // trusted by the caller: that of some seed of the chain
	known   *Verified         // the links before those of history; nil: none
	record  Record            // set by head-encoding
}

// headKey returns the key that has to have signed the head: that of the last reseed,
// or else the one that is trusted. It is a claim of the chain until the links were
// replayed; what it spares is replaying a chain whose head nobody signed.
func (r *replay) headKey() ed25519.PublicKey {
	for _, raw := range slices.Backward(r.history.Links) {
		if !bytes.Contains(raw, reseedMember) {
			continue
		}
		if t, err := Decode(raw); err == nil && t.Reseed != nil {
			return t.Reseed.TransactionKey[:]
		}
	}
	if r.known != nil {
		return r.known.TransactionKey()
	}
	return r.key
}

// reseedMember is in the canonical bytes of every link that names keys.
var reseedMember = []byte(`"reseed":{`)

func (r *replay) checkHead() error {
	for _, rule := range headRules {
		if detail := rule.find(r); detail != "" {
			return &VerifyError{Rule: rule.Name, Detail: detail}
		}
	}
	return nil
}

var headRules = [...]struct {
	Rule
	find func(r *replay) string
}{
	{Rule{"bounds", "a store that nobody vouches for must not exhaust a coordinator", inLimits}, func(r *replay) string {
		total := len(r.history.Head)
		for _, l := range r.history.Links {
			total += len(l)
		}
		for _, m := range r.history.Manifests {
			total += len(m)
		}
		switch n := r.known.length() + len(r.history.Links); {
		case n == 0:
			return "no transitions"
		case n > MaxTransitions:
			return fmt.Sprintf("%d transitions, at most %d are allowed", n, MaxTransitions)
		case total > MaxHistoryBytes:
			return fmt.Sprintf("%d bytes, at most %d are allowed", total, MaxHistoryBytes)
		}
		return ""
	}},
	{Rule{"head-encoding", "one head has one form", inHistory}, func(r *replay) string {
		var err error
		if r.record, err = DecodeRecord(r.history.Head); err != nil {
			return err.Error()
		}
		return ""
	}},
	{Rule{"head-signature", "who cannot derive keys from the seed must not move the head (I10)", inHistory}, func(r *replay) string {
		if !r.record.VerifySignature(r.headKey()) {
			return "the head is not signed by the transaction key of this seed: this is the history of another cluster or seed, or forged"
		}
		return ""
	}},
}

// A step is one link and the verified chain before it.
type step struct {
	raw       []byte
	before    *Verified
	manifests map[manifest.Hash][]byte

	prev     *Link              // nil for the first
	link     Link               // set by encoding
	manifest *manifest.Manifest // set by manifest-blob; nil: not known, in an outline
	outline  *outlining         // nil: every manifest has to be there
}

// has reports whether the manifests that a rule reads are known. They all are but in
// an outline.
func (s *step) has(needs manifestNeed) bool {
	return s.outline == nil || needs == 0 ||
		(needs&thisManifest == 0 || s.manifest != nil) && (needs&manifestBefore == 0 || s.genesis() || s.before.manifest != nil)
}

// manifestNeed is which manifests a rule reads.
type manifestNeed int

const (
	thisManifest   manifestNeed = 1 << iota // that the link names
	manifestBefore                          // that the link before names
	bothManifests  = thisManifest | manifestBefore
)

// moved says which parts of authority the manifests move, if they are known.
func (s *step) moved() string {
	if !s.has(bothManifests) {
		return ""
	}
	return fmt.Sprintf(": %v", manifest.AuthorityMoves(s.before.manifest, s.manifest))
}

// inForce returns the manifest whose signers sign the link. In an outline it may be
// known by its signers alone, or not at all: nil.
func (s *step) inForce() *manifest.Manifest {
	m, hash := s.manifest, s.link.Manifest
	if !s.genesis() {
		m, hash = s.before.manifest, s.prev.Manifest
	}
	if m == nil && s.outline != nil {
		if signers, ok := s.outline.signers[hash]; ok {
			return &manifest.Manifest{Signers: signers}
		}
	}
	return m
}

func (s *step) check(position uint64) error {
	if n := len(s.before.links); n > 0 {
		s.prev = &s.before.links[n-1]
	}
	for _, rule := range linkRules {
		if !s.has(rule.needs) {
			continue
		}
		if detail := rule.find(s); detail != "" {
			index := s.link.Index
			if index == 0 {
				index = position
			}
			return &VerifyError{Rule: rule.Name, Index: index, Detail: detail}
		}
	}
	return nil
}

// genesis reports whether the link is the first; rules that compare two links
// leave it to genesis-shape.
func (s *step) genesis() bool { return s.prev == nil }

// linkRules are checked in order for every link. encoding and manifest-blob
// read what the others look at. An outline leaves out those whose manifests it lacks.
var linkRules = [...]struct {
	Rule
	needs manifestNeed
	find  func(s *step) string
}{
	{Rule{"encoding", "one transition has one name", "RFC 8785; " + inHistory}, 0, func(s *step) string {
		t, err := Decode(s.raw)
		if err != nil {
			return err.Error()
		}
		s.link.Transition, s.link.Hash = *t, hashOf(s.raw)
		return ""
	}},
	{Rule{"kind", "an unknown kind might change what we do not check", inHistory}, 0, func(s *step) string {
		if !slices.Contains(Kinds(), s.link.Kind) {
			return fmt.Sprintf("kind %.32q is not known: it was written by a newer release", s.link.Kind)
		}
		return ""
	}},
	{Rule{"manifest-blob", "the signed hash names exact bytes, and they must be a manifest", inFields}, 0, func(s *step) string {
		want := s.link.Manifest
		if s.prev != nil && s.prev.Manifest == want {
			s.manifest = s.before.manifest
			return ""
		}
		data, ok := s.manifests[want]
		if !ok && s.outline != nil {
			return ""
		}
		if !ok {
			return fmt.Sprintf("manifest %v is missing", want)
		}
		if got := manifest.Hash(hashOf(data)); got != want {
			return fmt.Sprintf("the bytes under the name of manifest %v have the hash %v", want, got)
		}
		m, err := manifest.ParseAccepted(data)
		if err != nil {
			return fmt.Sprintf("manifest %v: %v", want, err)
		}
		s.manifest = m
		return ""
	}},
	{Rule{"genesis-shape", "a chain has one beginning, known to all", inHistory}, 0, func(s *step) string {
		t := &s.link.Transition
		switch {
		case s.genesis() != (t.Kind == KindGenesis):
			return fmt.Sprintf("kind %s: the first link, and it alone, is genesis", t.Kind)
		case !s.genesis():
			return ""
		case t.Index != 1 || !t.Previous.IsZero() || t.AuthorityEpoch != 1 || t.SeedEpoch != 1:
			return fmt.Sprintf("genesis has index %d, epoch %d, seed epoch %d and a link before it of %v, want 1, 1, 1 and none", t.Index, t.AuthorityEpoch, t.SeedEpoch, t.Previous)
		}
		return ""
	}},
	{Rule{"previous", "the chain is what the head's signature covers (I10)", inHistory}, 0, func(s *step) string {
		if !s.genesis() && s.link.Previous != s.prev.Hash {
			return fmt.Sprintf("it names %v as the link before, which is %v", s.link.Previous, s.prev.Hash)
		}
		return ""
	}},
	{Rule{"index", "a reader orders heads by it; only a restore may jump, and must pass every mark", inRestore}, 0, func(s *step) string {
		switch {
		case s.genesis():
		case s.link.Kind == KindRestore:
			if s.link.Index <= s.prev.Index || s.link.Index < restoreFloor {
				return fmt.Sprintf("a restore after index %d has index %d, want more, and at least the Unix time", s.prev.Index, s.link.Index)
			}
		case s.link.Index != s.prev.Index+1:
			return fmt.Sprintf("index %d follows %d", s.link.Index, s.prev.Index)
		}
		return ""
	}},
	{Rule{"epoch-not-lower", "receivers refuse a lower authority epoch, so going back would cut them off", inInvariants}, 0, func(s *step) string {
		if !s.genesis() && s.link.AuthorityEpoch < s.prev.AuthorityEpoch {
			return fmt.Sprintf("authority epoch %d follows %d", s.link.AuthorityEpoch, s.prev.AuthorityEpoch)
		}
		return ""
	}},
	{Rule{"epoch-with-authority", "who lost authority keeps it until the epoch moves; a needless move re-issues every identity", inHistory}, 0, func(s *step) string {
		if s.genesis() {
			return ""
		}
		got, was := s.link.AuthorityEpoch, s.prev.AuthorityEpoch
		if !s.has(bothManifests) && (s.link.Kind == KindSet || s.link.Kind == KindReshare) {
			if got > was+1 {
				return fmt.Sprintf("the epoch goes from %d to %d, want one more at most", was, got)
			}
			return "" // whether authority moves stands in the manifests
		}
		switch moves := authorityMoves(s.link.Kind, s.before.manifest, s.manifest); {
		case s.link.Kind == KindRestore:
			if got <= was || got < restoreFloor {
				return fmt.Sprintf("a restore after authority epoch %d has %d, want more, and at least the Unix time", was, got)
			}
		case moves && got != was+1:
			return fmt.Sprintf("authority moves (%s%s) and the epoch goes from %d to %d, want %d", s.link.Kind, s.moved(), was, got, was+1)
		case !moves && got != was:
			return fmt.Sprintf("authority does not move and the epoch goes from %d to %d", was, got)
		}
		return ""
	}},
	{Rule{"mesh-key-named", "comparing manifests alone cannot tell two mesh keys apart", inHistory}, 0, func(s *step) string {
		if s.link.MeshCAKey.IsZero() {
			return "no mesh CA key is named"
		}
		return ""
	}},
	{Rule{"mesh-key-with-epoch", "one mesh key, one epoch (I9)", inInvariants}, 0, func(s *step) string {
		if s.genesis() {
			return ""
		}
		if moved := s.link.AuthorityEpoch != s.prev.AuthorityEpoch; moved != (s.link.MeshCAKey != s.prev.MeshCAKey) {
			return fmt.Sprintf("authority epoch %d follows %d and mesh CA key %v follows %v: they move together", s.link.AuthorityEpoch, s.prev.AuthorityEpoch, s.link.MeshCAKey, s.prev.MeshCAKey)
		}
		return ""
	}},
	{Rule{"mesh-key-once", "a key that comes back signs under two epochs (I9)", inInvariants}, 0, func(s *step) string {
		if epoch, seen := s.before.seen[s.link.MeshCAKey]; seen && epoch != s.link.AuthorityEpoch {
			return fmt.Sprintf("mesh CA key %v of epoch %d was that of epoch %d already", s.link.MeshCAKey, s.link.AuthorityEpoch, epoch)
		}
		return ""
	}},
	{Rule{"same-cluster", "identities of another trust domain would all change", inFields}, bothManifests, func(s *step) string {
		if !s.genesis() && s.manifest.Cluster != s.before.manifest.Cluster {
			return fmt.Sprintf("cluster %s follows %s", s.manifest.Cluster, s.before.manifest.Cluster)
		}
		return ""
	}},
	{Rule{"same-manifest", "the transaction key alone, or a backup, must not change policy", inHistory}, 0, func(s *step) string {
		if (s.link.Kind == KindRekey || s.link.Kind == KindRestore) && s.link.Manifest != s.prev.Manifest {
			return fmt.Sprintf("%s changes the manifest from %v to %v", s.link.Kind, s.prev.Manifest, s.link.Manifest)
		}
		return ""
	}},
	{Rule{"reshare-seed-only", "signers consented to other owners, not to another authority", inSeed}, bothManifests, func(s *step) string {
		if s.link.Kind != KindReshare {
			return ""
		}
		for _, part := range manifest.AuthorityMoves(s.before.manifest, s.manifest) {
			if part != manifest.AuthoritySeed && part != manifest.AuthorityEverySet {
				return "reshare also changes " + part
			}
		}
		return ""
	}},
	{Rule{"seed-epoch", "shares of one seed must not be taken for those of another", inSeed}, 0, func(s *step) string {
		if s.genesis() {
			return ""
		}
		want := s.prev.SeedEpoch
		if s.link.Kind == KindReseed {
			want++
		}
		if s.link.SeedEpoch != want {
			return fmt.Sprintf("%s takes the seed epoch from %d to %d, want %d", s.link.Kind, s.prev.SeedEpoch, s.link.SeedEpoch, want)
		}
		return ""
	}},
	{Rule{"salt", "keys derive from seed and salt: the salt is fixed for a seed epoch and fresh for the next", inSeed}, 0, func(s *step) string {
		switch {
		case s.link.Salt == Salt{}:
			return "no salt"
		case s.genesis():
		case s.link.SeedEpoch == s.prev.SeedEpoch && s.link.Salt != s.prev.Salt:
			return "the salt changes within a seed epoch"
		case s.link.SeedEpoch != s.prev.SeedEpoch && slices.ContainsFunc(s.before.links, func(l Link) bool { return l.Salt == s.link.Salt }):
			return "the salt of an earlier seed epoch comes back"
		}
		return ""
	}},
	{Rule{"restore-backup", "of two backups at one head the older one lacks bans: signers consent to one of them", inRestore}, 0, func(s *step) string {
		if (s.link.Kind == KindRestore) == s.link.Backup.IsZero() {
			return fmt.Sprintf("kind %s names backup %v: a restore, and it alone, names the backup", s.link.Kind, s.link.Backup)
		}
		return ""
	}},
	{Rule{"reseed-keys", "the keys of a new seed count by the signers' word, and hang together with those before", inReseed}, 0, checkReseed},
	{Rule{"threshold", "owners would learn at a loss that it takes more of them", inFields}, thisManifest, func(s *step) string {
		if want := s.manifest.Seed.Threshold; s.link.Threshold != want {
			return fmt.Sprintf("threshold %d, and the manifest says %d", s.link.Threshold, want)
		}
		return ""
	}},
	{Rule{"shares-of-owners", "a bad share is refused by the name of its owner", inSeed}, thisManifest, checkShares},
	{Rule{"shares-with-seed", "a share must not change behind the backs of owners and signers", inSeed}, 0, func(s *step) string {
		if s.genesis() {
			return ""
		}
		same := slices.Equal(s.link.ShareCommitments, s.prev.ShareCommitments)
		if !s.has(bothManifests) && s.link.Kind == KindSet {
			return "" // whether owners change stands in the manifests
		}
		change := s.link.Kind == KindReshare || s.link.Kind == KindReseed
		if s.link.Kind == KindSet {
			change = sharesChange(KindSet, s.before.manifest, s.manifest)
		}
		if change && same && len(s.link.ShareCommitments) > 0 {
			return fmt.Sprintf("%s changes the seed, its owners or their threshold and keeps the old shares", s.link.Kind)
		}
		if !change && !same {
			return fmt.Sprintf("%s makes other shares of the seed", s.link.Kind)
		}
		return ""
	}},
	{Rule{"signatures", "a signature that does not verify is a mistake or an attempt", inHistory}, 0, func(s *step) string {
		if len(s.link.Signatures) == 0 {
			return ""
		}
		if s.link.Kind == KindRekey {
			return "rekey is signed by the head alone and carries none"
		}
		// The signers of the manifest in force; of a genesis, its own.
		inForce := s.inForce()
		if inForce == nil {
			return ""
		}
		if _, err := countSigners(inForce, s.link.Statement(), s.link.Signatures); err != nil {
			return err.Error()
		}
		return ""
	}},
	{Rule{"signers-threshold", "a coordinator, or who kept the seed, must not change policy alone", inHistory}, 0, func(s *step) string {
		if s.genesis() || !s.link.Kind.signed() {
			return ""
		}
		inForce := s.inForce()
		if inForce == nil {
			s.outline.unsigned++
			return ""
		}
		if err := Authorize(inForce, s.link.Statement(), s.link.Signatures); err != nil {
			return err.Error()
		}
		return ""
	}},
}

// checkReseed: a reseed, and it alone, names keys: those of its seed, which are new,
// and the transaction key before, which signed the head before.
func checkReseed(s *step) string {
	r := s.link.Reseed
	if (s.link.Kind == KindReseed) != (r != nil) {
		return fmt.Sprintf("kind %s: a reseed, and it alone, names the keys of its seed", s.link.Kind)
	}
	if r == nil {
		return ""
	}
	if s.manifest != nil && r.Cluster != s.manifest.Cluster {
		return fmt.Sprintf("the change of root is of cluster %.80q, the manifest of %s", r.Cluster, s.manifest.Cluster)
	}
	if _, err := s.link.RootChange().Encode(); err != nil {
		return err.Error()
	}
	if before := s.before.TransactionKey(); before != nil && !before.Equal(ed25519.PublicKey(r.PreviousKey[:])) {
		return "it names another transaction key before it than the reseed before"
	}
	for _, l := range s.before.links {
		if o := l.Reseed; o != nil && (o.Root == r.Root || o.PreviousRoot == r.Root || o.ConfigRoot == r.ConfigRoot || o.TransactionKey == r.TransactionKey || o.PreviousKey == r.TransactionKey) {
			return "a key of an earlier seed comes back"
		}
	}
	if last := s.before.lastReseed(); last != nil && last.Root != r.PreviousRoot {
		return fmt.Sprintf("it takes the place of root %s, and %s was in force", r.PreviousRoot, last.Root)
	}
	if r.PreviousKey == r.TransactionKey {
		return "the transaction key stays"
	}
	head := Record{Hash: s.prev.Hash, Index: s.prev.Index, AuthorityEpoch: s.prev.AuthorityEpoch, Signature: r.PreviousSignature}
	if !head.VerifySignature(r.PreviousKey[:]) {
		return "the head before it was not signed by the transaction key before it"
	}
	return ""
}

// checkShares: one commitment for each person, in the order of the manifest. A
// keeper holds the whole seed, sealed, and there is nothing to compare that with.
func checkShares(s *step) string {
	people := s.manifest.Seed.People()
	for i, o := range people {
		switch {
		case i >= len(s.link.ShareCommitments) || s.link.ShareCommitments[i].Owner != o.Name:
			return "no commitment to the share of " + o.Name + " where it belongs"
		case s.link.ShareCommitments[i].Hash.IsZero():
			return "the commitment to the share of " + o.Name + " is empty"
		}
	}
	if len(s.link.ShareCommitments) > len(people) {
		return fmt.Sprintf("a commitment to a share of %.128q, who holds none", s.link.ShareCommitments[len(people)].Owner)
	}
	return ""
}

var endRules = [...]struct {
	Rule
	find func(v *Verified) string
}{
	{Rule{"head-is-last", "the signature must cover all links, and no other chain", inHistory}, func(v *Verified) string {
		last := v.Current()
		if v.record.Hash != last.Hash || v.record.Index != last.Index || v.record.AuthorityEpoch != last.AuthorityEpoch {
			return fmt.Sprintf("the head names index %d, epoch %d, %v, and the last link is index %d, epoch %d, %v",
				v.record.Index, v.record.AuthorityEpoch, v.record.Hash, last.Index, last.AuthorityEpoch, last.Hash)
		}
		return ""
	}},
	{Rule{"transaction-key", "a chain that no trusted key signed is anybody's (I10)", inHistory}, func(v *Verified) string {
		if !slices.ContainsFunc(v.keys, func(k ed25519.PublicKey) bool { return k.Equal(v.trusted) }) {
			return "no seed of the chain has the transaction key that is trusted: this is the history of another cluster, or forged"
		}
		return ""
	}},
}
