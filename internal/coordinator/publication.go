package coordinator

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ed25519"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/compiler"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/lifetimes"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/gauge"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/snapshot"
)

// The publication: the current headers of all subjects, one for each (scope,
// subject), and the one record that signs them. All of it is derived, and can be
// made again from the members and the manifest. Keys, all under the record MAC:
//
//	publication/state                              the record in force, and what it stands on
//	publication/header/<scope>/node/<kind>/<name>  a header for one member, exact bytes
//	publication/header/<scope>/group/<hex>         one for all members with the same roles and organizations
//	publication/content/<sha256>                   content that a header names, as its own or as its base
//
// A header at any other key is a stray: the next generation removes it, and makes
// again what its subject lacks.
//
// Every change of any of them writes publication/state, on the condition that it
// is still at the version that the change was made from. So that version is the
// version of the whole, and it numbers what comes next: the record and the headers
// of a commit carry the revision of the commit before it, which is known while
// they are signed, and of which no second commit can be the successor. That is
// why two replicas, or one that is late, never sign two roots for one generation
// that anybody is served.
const (
	publicationPrefix   = "publication/"
	publicationStateKey = "publication/state"
	headerPrefix        = "publication/header/"
	contentPrefix       = "publication/content/"
)

// Limits and times of publications.
const (
	// maxPublished bounds the headers that one generation changes: up to five
	// operations of its transaction each. What is left goes with the next.
	maxPublished = 160
	// publishedBytes bounds the contents of one generation: from there on no other
	// group or member is begun. A group brings at most two times as much, so that all of
	// it stays below what one transaction takes.
	publishedBytes = 4 << 20
	// maxStoredContent bounds one content: what the store takes as one value. It is less
	// than a peer_directory may have.
	maxStoredContent = store.MaxValueBytes - store.SealBytes
	// publishPause gathers what changes soon after a publication.
	publishPause = 50 * time.Millisecond
	// publishShare is how much of its time the loop may spend on compiling, as the
	// least ratio of pause to work.
	publishShare = 4
	// publicationPollPause bounds how long another replica's publication goes unseen.
	publicationPollPause = 5 * time.Second
	// publicationFresh is how long a record is fresh, and publicationRenew its age at
	// which a newer one is made over the same headers.
	publicationFresh = 15 * time.Minute
	publicationRenew = 5 * time.Minute
	// headerLife is the hard end of a header. At half of it its subject gets a new one
	// over the same content.
	headerLife = 30 * 24 * time.Hour
)

// publicationRecord is publication/state.
type publicationRecord struct {
	// Change numbers the writes, so that each makes a new value.
	Change uint64 `json:"change"`
	// Record is the signed record in force; null before the first and while there is
	// no member.
	Record     []byte               `json:"record"`
	Signatures []snapshot.Signature `json:"signatures"`

	// What the record says, for its maker.
	Generation     uint64    `json:"generation"`
	AuthorityEpoch uint64    `json:"authority_epoch"`
	Root           string    `json:"root"`
	Revocations    string    `json:"revocations"`
	IssuedAt       time.Time `json:"issued_at"`
	FreshUntil     time.Time `json:"fresh_until"`

	// Since is the generation from which everything was made anew, because somebody had
	// altered it: a header of a lower version is a left-over. It lets a repair that takes
	// many generations go on where another coordinator, or a start, finds it.
	Since uint64 `json:"since"`

	// Coordinators are the addresses that each coordinator advertises, by its
	// enrolment key, as one entry may admit several: what a header says must not depend
	// on which replica compiles it.
	Coordinators map[string][]string `json:"coordinators"`
}

// addresses returns the addresses of all coordinators, by key.
func (r publicationRecord) addresses() []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(r.Coordinators)) {
		for _, a := range r.Coordinators[key] {
			if !slices.Contains(out, a) && len(out) < snapshot.MaxCoordinators {
				out = append(out, a)
			}
		}
	}
	return out
}

// headerRecord is the current header of one subject in one scope, with what its
// maker needs to know of it.
type headerRecord struct {
	Header  []byte `json:"header"`
	Content string `json:"content"` // SHA-256, hex: the name of its record
	Subject string `json:"subject"`
	// Group is that of the roles and organizations of the subject; empty if it is given
	// nothing that is for groups.
	Group          string    `json:"group"`
	AuthorityEpoch uint64    `json:"authority_epoch"`
	ConfigVersion  uint64    `json:"config_version"`
	IssuedAt       time.Time `json:"issued_at"`

	// The version right before, of the same epoch and group, where the scope has
	// increments; 0 and "" for none. Its content is kept for as long as this header is.
	BaseVersion uint64 `json:"base_version,omitempty"`
	Base        string `json:"base,omitempty"` // as Content
}

// published is one header in a publication.
type published struct {
	headerPath
	header headerRecord
	leaf   snapshot.Digest
}

// headerPath says which header it is: its key, without the prefix, in parts. It is
// a member's or a group's.
type headerPath struct {
	scope  snapshot.Scope
	member string // <kind>/<name>
	group  string // the hex digits of the group's subject
}

func (p headerPath) String() string {
	if p.group != "" {
		return string(p.scope) + "/" + groupMark + p.group
	}
	return string(p.scope) + "/" + nodeMark + p.member
}

const (
	nodeMark  = "node/"
	groupMark = "group/"
)

// parseHeaderPath reads what String prints, and nothing else.
func parseHeaderPath(s string) (headerPath, bool) {
	scope, rest, _ := strings.Cut(s, "/")
	p := headerPath{scope: snapshot.Scope(scope)}
	if group, ok := strings.CutPrefix(rest, groupMark); ok {
		p.group = group
		_, err := snapshot.ParseSubject(groupSubjectPrefix + group)
		return p, err == nil && slices.Contains(compiler.GroupScopes(), p.scope)
	}
	member, ok := strings.CutPrefix(rest, nodeMark)
	kind, name, named := strings.Cut(member, "/")
	p.member = member
	return p, ok && named && name != "" && identity.Kind(kind).Valid() && slices.Contains(nodeScopes(), p.scope)
}

const groupSubjectPrefix = "group:"

// groupOf returns the hex digits of a group's subject.
func groupOf(g compiler.Group) string {
	return strings.TrimPrefix(g.Subject().String(), groupSubjectPrefix)
}

// nodeScopes are the scopes in which each member has a header of its own.
func nodeScopes() []snapshot.Scope {
	return []snapshot.Scope{snapshot.ScopeNodeRuntime, snapshot.ScopeServiceAssignment}
}

// runtimePath is the path of a member's node_runtime.
func runtimePath(member string) headerPath { return nodePath(snapshot.ScopeNodeRuntime, member) }

func nodePath(scope snapshot.Scope, member string) headerPath {
	return headerPath{scope: scope, member: member}
}

func groupPath(scope snapshot.Scope, group string) headerPath {
	return headerPath{scope: scope, group: group}
}

// compareHeaders is the order of headers in the tree.
func compareHeaders(a, b headerPath) int {
	return cmp.Or(cmp.Compare(a.scope, b.scope), cmp.Compare(a.group, b.group), cmp.Compare(a.member, b.member))
}

// publication is one version of what is served. It is immutable.
type publication struct {
	state   record.Versioned[publicationRecord]
	headers []published // sorted; the leaves of the tree, in this order
	tree    *snapshot.Tree
	// contents are those that headers name, by their hash; a base that was lost is
	// missing.
	contents map[string][]byte
	// groups says how many node_runtimes there are of each group.
	groups map[string]int
	// messages are those that the members of a group share; see news.
	messages *sync.Map
	// broken: the headers are not those of the record. Somebody else wrote them.
	broken bool
	// strays are keys that no header uses.
	strays []string
}

// find returns the index of a header.
func (p *publication) find(path headerPath) (int, bool) {
	return slices.BinarySearchFunc(p.headers, path,
		func(h published, path headerPath) int { return compareHeaders(h.headerPath, path) })
}

// of returns the indices of the headers that a member gets, in their order:
// nothing else is sent to it, nor handed out to it by hash.
func (p *publication) of(kind identity.Kind, name string) []int {
	var out []int
	add := func(path headerPath) bool {
		i, ok := p.find(path)
		if ok {
			out = append(out, i)
		}
		return ok
	}
	member := string(kind) + "/" + name
	if !add(runtimePath(member)) {
		return nil // who is told nothing of itself is told nothing else
	}
	group := p.headers[out[0]].header.Group
	if group == "" {
		return out
	}
	add(nodePath(snapshot.ScopeServiceAssignment, member))
	for _, scope := range compiler.GroupScopes() {
		add(groupPath(scope, group))
	}
	slices.Sort(out)
	return out
}

// signed returns the envelope of header i.
func (p *publication) signed(i int) (*snapshot.Signed, error) {
	proof, err := p.tree.Proof(i)
	if err != nil {
		return nil, err
	}
	h := p.headers[i].header
	return &snapshot.Signed{
		Header: h.Header, Content: p.contents[h.Content],
		Publication: &snapshot.Publication{Record: p.state.Value.Record,
			Signatures: p.state.Value.Signatures}, Proof: proof,
	}, nil
}

// uses reports whether a header or a content of p is stored at key.
func (p *publication) uses(key string) bool {
	if path, ok := strings.CutPrefix(key, headerPrefix); ok {
		parsed, ok := parseHeaderPath(path)
		if ok {
			_, ok = p.find(parsed)
		}
		return ok
	}
	hash, ok := strings.CutPrefix(key, contentPrefix)
	return ok && p.contents[hash] != nil
}

// message returns the envelope of header i for the wire.
func (p *publication) message(i int) (*fealtyv1.SignedSnapshot, error) {
	signed, err := p.signed(i)
	if err != nil {
		return nil, err
	}
	raw, err := signed.Marshal()
	if err != nil {
		return nil, err
	}
	return &fealtyv1.SignedSnapshot{Scope: string(p.headers[i].scope), Envelope: raw}, nil
}

// serves reports whether p has a record under which its headers can be sent.
func (p *publication) serves() bool {
	return p != nil && !p.broken && len(p.state.Value.Record) > 0
}

// with returns p after a commit that put some headers and dropped others.
func (p *publication) with(put []published, drop map[headerPath]bool, contents map[string][]byte) *publication {
	next := &publication{headers: make([]published, 0, len(p.headers)+len(put)), contents: make(map[string][]byte)}
	changed := make(map[headerPath]bool, len(put))
	for _, h := range put {
		changed[h.headerPath] = true
	}
	for _, h := range p.headers {
		if !changed[h.headerPath] && !drop[h.headerPath] {
			next.headers = append(next.headers, h)
		}
	}
	next.headers = append(next.headers, put...)
	slices.SortFunc(next.headers, func(a, b published) int { return compareHeaders(a.headerPath, b.headerPath) })
	for _, h := range next.headers {
		for _, hash := range []string{h.header.Content, h.header.Base} {
			if raw, ok := contents[hash]; ok {
				next.contents[hash] = raw
			} else if raw, ok := p.contents[hash]; ok {
				next.contents[hash] = raw
			}
		}
	}
	next.settle()
	return next
}

// settle makes what follows from the headers.
func (p *publication) settle() {
	leaves := make([]snapshot.Digest, len(p.headers))
	p.groups, p.messages = make(map[string]int), new(sync.Map)
	for i, h := range p.headers {
		leaves[i] = h.leaf
		if h.scope == snapshot.ScopeNodeRuntime {
			p.groups[h.header.Group]++
		}
	}
	p.tree = snapshot.NewTree(leaves)
}

// loadPublication reads the publication as it is stored. What fails its MAC, or a
// hash, is left out and reported: it is made again. It is a [store.ConflictError] on the
// head if that is because the head moved on.
func (c *Publication) loadPublication(ctx context.Context, s *authority.State) (*publication, error) {
	l, err := c.cfg.Store.List(ctx, publicationPrefix)
	if err != nil {
		return nil, err
	}
	p := &publication{contents: make(map[string][]byte)}
	var headers []published
	var bad []authority.Suspect
	for _, e := range l.Entries {
		switch {
		case e.Key == publicationStateKey:
			if p.state, err = record.Open[publicationRecord](s.Records, e); err != nil {
				bad = append(bad, authority.Suspect{What: e.Key, Err: err})
				// It is written anew over this very version.
				p.state, p.broken = record.Versioned[publicationRecord]{Version: e.Version}, true
			}
		case strings.HasPrefix(e.Key, contentPrefix):
			raw, err := s.Records.Open(e.Key, e.Value)
			if hash := e.Key[len(contentPrefix):]; err == nil && snapshot.DigestOf(raw).String() == hash {
				p.contents[hash] = raw
				continue
			}
			if err == nil {
				err = fmt.Errorf("the content is not what its name says: %w", store.ErrForged)
			}
			bad = append(bad, authority.Suspect{What: e.Key, Err: err})
			p.strays = append(p.strays, e.Key)
		case strings.HasPrefix(e.Key, headerPrefix):
			h, err := record.Open[headerRecord](s.Records, e)
			if err != nil {
				bad = append(bad, authority.Suspect{What: e.Key, Err: err})
				p.strays = append(p.strays, e.Key)
				continue
			}
			path, ok := parseHeaderPath(e.Key[len(headerPrefix):])
			if !ok { // as another release laid them out
				p.strays = append(p.strays, e.Key)
				continue
			}
			headers = append(headers, published{path, h.Value, snapshot.LeafOf(s.Manifest.Cluster, h.Value.Header)})
		default:
			p.strays = append(p.strays, e.Key)
		}
	}
	if err := c.cfg.Head.ForgedUnder(ctx, s, bad...); err != nil {
		return nil, err
	}
	slices.SortFunc(headers, func(a, b published) int { return compareHeaders(a.headerPath, b.headerPath) })
	used := make(map[string]bool)
	for _, h := range headers {
		if p.contents[h.header.Content] == nil || h.header.ConfigVersion < p.state.Value.Since {
			p.strays = append(p.strays, headerKey(h.headerPath))
			continue
		}
		used[h.header.Content], used[h.header.Base] = true, true
		p.headers = append(p.headers, h)
	}
	for hash := range p.contents {
		if !used[hash] {
			p.strays = append(p.strays, contentKey(hash))
			delete(p.contents, hash)
		}
	}
	slices.Sort(p.strays)
	p.settle()
	if len(p.state.Value.Record)+len(p.headers) > 0 && p.tree.Root().String() != p.state.Value.Root {
		// Which of them somebody set back or removed cannot be told: all are made again,
		// with new versions, so that members take them.
		p.broken = true
		for _, h := range p.headers {
			p.strays = append(p.strays, headerKey(h.headerPath))
		}
		p.headers = nil
		p.settle()
		for hash := range p.contents {
			p.strays = append(p.strays, contentKey(hash))
		}
		clear(p.contents)
		slices.Sort(p.strays)
	}
	return p, nil
}

// compileRuntime makes the content of a member's node_runtime, by the manifest in
// force. It is a function of what the store holds. False: the member is told
// nothing, because no entry covers it or its name waits for a new machine.
//
// Its companions are the scopes of its group; the caller adds what it is assigned.
func compileRuntime(s *authority.State, rec record.Member, coordinators []string) (*snapshot.NodeRuntime, bool) {
	doing, ok := runtimeState(rec)
	if !ok {
		return nil, false
	}
	rec, entry, ok := covered(s, rec)
	if !ok {
		return nil, false
	}
	return runtimeContent(s, rec, doing, entry, coordinators), true
}

// covered returns a node's record as the manifest in force has it, and the entry
// that covers it.
func covered(s *authority.State, rec record.Member) (record.Member, *manifest.Entry, bool) {
	if record.IsSession(rec.Kind) {
		return rec, nil, false
	}
	found, ok := s.Manifest.Match(rec.Kind, rec.Selectors)
	if !ok {
		return rec, nil, false
	}
	rec.Cover(found.Entry)
	return rec, found.Entry, true
}

// compiled returns a member as the compiler sees it; ok is false where the manifest
// in force has no such member.
func compiled(s *authority.State, rec record.Member) (m compiler.Member, ok bool) {
	rec, _, ok = covered(s, rec)
	if !ok {
		return m, false
	}
	id, err := identity.New(s.Manifest.Cluster, rec.Kind, rec.Name)
	if err != nil {
		return m, false
	}
	doing, _ := runtimeState(rec)
	return compiler.Member{ID: id, Group: groupOfRecord(rec), State: doing, Outsider: rec.Outsider()}, true
}

// groupOfRecord is the group of a member that its entry covers.
func groupOfRecord(rec record.Member) compiler.Group {
	return compiler.Group{Roles: roleNames(rec.Roles), Organizations: slices.Sorted(slices.Values(rec.Organizations))}
}

// runtimeContent is what a member that entry covers is told.
func runtimeContent(s *authority.State, rec record.Member, doing snapshot.MemberState, entry *manifest.Entry,
	coordinators []string) *snapshot.NodeRuntime {
	group := groupOfRecord(rec)
	content := &snapshot.NodeRuntime{
		ClusterID: s.Manifest.Cluster, Kind: rec.Kind, Entry: rec.Entry, State: doing,
		Roles: group.Roles, Organizations: group.Organizations, Companions: group.Scopes(),
		Coordinators: coordinators,
		RenewEvery:   lifetimes.RenewEvery(entry.SVIDTTL).Truncate(time.Second),
		SVIDTTL:      entry.SVIDTTL.Truncate(time.Second),
	}
	if snapshot.MayHold(snapshot.ScopeNodeRuntime, snapshot.SectionDegraded, content.Roles) {
		policy := degradedPolicy(s.Manifest)
		content.Degraded = &policy
	}
	return content
}

// contentsFit reports whether the members of each entry can be told what they are. An
// entry whose cannot would admit nobody, and its members would hear of no change.
func (c *Publication) contentsFit(after *authority.State) error {
	for i := range after.Manifest.Admit {
		e := &after.Manifest.Admit[i]
		if record.IsSession(e.Kind) || e.Kind == identity.Coordinator {
			continue
		}
		rec := record.Member{Kind: e.Kind, Name: e.Name}
		rec.Cover(e)
		content := runtimeContent(after, rec, snapshot.MemberActive, e, c.cfg.Addresses)
		t, err := nodeTarget(after, snapshot.ScopeNodeRuntime, rec, groupOfRecord(rec))
		if err == nil {
			_, _, _, err = compileHeader(after, t, content, nil, 1, c.cfg.Now())
		}
		if err != nil {
			return explain.Wrap(err, explain.RequestField,
				"field", "manifest", "problem", fmt.Sprintf("the members of entry %s could not be told what they are: "+
					"%v", e.Name, err))
		}
	}
	return nil
}

// runtimeState is what a member is told that it is doing.
func runtimeState(rec record.Member) (snapshot.MemberState, bool) {
	switch rec.State {
	case record.Active:
		return snapshot.MemberActive, true
	case record.Draining:
		return snapshot.MemberDraining, true
	}
	return "", false
}

func roleNames(roles []manifest.Role) []string {
	out := make([]string, 0, len(roles))
	for _, r := range roles {
		out = append(out, string(r))
	}
	slices.Sort(out)
	return out
}

// degradedPolicy is the ceiling that the manifest sets.
func degradedPolicy(m *manifest.Manifest) snapshot.DegradedPolicy {
	p := snapshot.DegradedPolicy{Max: m.Degraded.Max.Truncate(time.Second),
		RouteTTL: m.Degraded.RouteTTL.Truncate(time.Second)}
	for _, a := range m.Degraded.Allow {
		p.Allow = append(p.Allow, string(a))
	}
	slices.Sort(p.Allow)
	return p
}

// target is for whom a header is made.
type target struct {
	headerPath
	subject   snapshot.Subject
	group     compiler.Group
	withdrawn bool // one of its roles is revoked: it is given nothing that is for its group
}

// gets returns the group whose headers go to the target's subject; empty: none.
func (t target) gets() string {
	if t.withdrawn {
		return ""
	}
	return groupOf(t.group)
}

// nodeTarget is a member, in one of the scopes of its own.
func nodeTarget(s *authority.State, scope snapshot.Scope, rec record.Member, g compiler.Group) (target, error) {
	id, err := identity.New(s.Manifest.Cluster, rec.Kind, rec.Name)
	if err != nil {
		return target{}, err
	}
	return target{headerPath: nodePath(scope, rec.Path()), subject: snapshot.NodeSubject(id, rec.Incarnation),
		group: g}, nil
}

// groupTarget is a group, in one of its scopes.
func groupTarget(scope snapshot.Scope, g compiler.Group) target {
	return target{headerPath: groupPath(scope, groupOf(g)), subject: g.Subject(), group: g}
}

// errContentTooLarge: no store takes it.
var errContentTooLarge = fmt.Errorf("the content has more than %d bytes", maxStoredContent)

// compileHeader makes the header of a target for generation, or returns the one
// that it has: equal content keeps its version, and is written again only to
// extend its validity. changed is false for the latter. raw is the exact bytes of
// the content.
func compileHeader(s *authority.State, t target, content snapshot.Content, old *published, generation uint64,
	now time.Time) (h published, raw []byte, changed bool, err error) {
	issued := now.UTC().Truncate(time.Second)
	header := snapshot.Header{
		ClusterID: s.Manifest.Cluster, Subject: t.subject, ScopeType: t.scope,
		Roles: t.group.Roles, OrganizationIDs: t.group.Organizations,
		ConfigVersion: generation, AuthorityEpoch: s.Head.AuthorityEpoch,
		IssuedAt: issued, ValidFrom: issued,
		ExpiresAt: issued.Add(headerLife), RefreshAfter: issued.Add(headerLife / 2),
	}
	record := headerRecord{
		Subject: t.subject.String(), Group: t.gets(), AuthorityEpoch: header.AuthorityEpoch, IssuedAt: issued,
	}
	follows := old != nil && old.header.Subject == record.Subject && old.header.Group == record.Group &&
		old.header.AuthorityEpoch == record.AuthorityEpoch
	draft, err := snapshot.Compose(header, content)
	if err != nil {
		return published{}, nil, false, err
	}
	if len(draft.ContentBytes()) > maxStoredContent {
		return published{}, nil, false, errContentTooLarge
	}
	record.Content = draft.Header().ContentHash.String()
	renewed := false
	if follows && old.header.Content == record.Content {
		age := issued.Sub(old.header.IssuedAt)
		if age > -snapshot.ClockTolerance && age < headerLife/2 {
			return *old, nil, false, nil
		}
		renewed = age > 0 // one from a clock that was ahead could not be renewed, and takes a version
	}
	switch {
	case renewed:
		header.ConfigVersion = old.header.ConfigVersion
		record.BaseVersion, record.Base = old.header.BaseVersion, old.header.Base
	case follows && t.scope.Increments():
		record.BaseVersion, record.Base = old.header.ConfigVersion, old.header.Content
	}
	if record.Base != "" {
		hash, err := snapshot.ParseDigest(record.Base)
		if err != nil {
			return published{}, nil, false, err
		}
		header.Base = &snapshot.Base{ConfigVersion: record.BaseVersion, ContentHash: hash}
	}
	if renewed || header.Base != nil {
		if draft, err = snapshot.Compose(header, content); err != nil {
			return published{}, nil, false, err
		}
	}
	record.Header, record.ConfigVersion = draft.HeaderBytes(), header.ConfigVersion
	return published{headerPath: t.headerPath, header: record, leaf: draft.Leaf()}, draft.ContentBytes(), true, nil
}

// signRecord signs the record over p's tree for generation.
func signRecord(s *authority.State, t *bundle.View, p *publication, generation uint64,
	now time.Time) (*snapshot.Publication, snapshot.Record, error) {
	issued := now.UTC().Truncate(time.Second)
	r := snapshot.Record{
		ClusterID: s.Manifest.Cluster, AuthorityEpoch: s.Head.AuthorityEpoch, Generation: generation,
		Root: p.tree.Root(), TreeSize: p.tree.Size(),
		IssuedAt: issued, FreshUntil: issued.Add(publicationFresh), Revocations: t.Revocations,
	}
	signed, err := r.Sign(t.Signers(s.Bundle, now)...)
	return signed, r, err
}

// keyIDs are the ids of the keys that signed the record in force, in one text.
func (r publicationRecord) keyIDs() string {
	ids := make([]string, len(r.Signatures))
	for i, sig := range r.Signatures {
		ids[i] = sig.KeyID
	}
	return strings.Join(ids, " ")
}

// sharesKey reports whether one of the keys in ids, as of keyIDs, signed it too.
func (r publicationRecord) sharesKey(ids string) bool {
	return slices.ContainsFunc(r.Signatures,
		func(sig snapshot.Signature) bool { return slices.Contains(strings.Fields(ids), sig.KeyID) })
}

// signedBy reports whether the record in force is signed by the keys that would
// sign it now.
func (r publicationRecord) signedBy(keys []crypto.Signer) bool {
	return slices.EqualFunc(r.Signatures, keys, func(sig snapshot.Signature, key crypto.Signer) bool {
		public, ok := key.Public().(ed25519.PublicKey)
		return ok && sig.KeyID == snapshot.KeyIDOf(public)
	})
}

func contentKey(hash string) string    { return contentPrefix + hash }
func headerKey(path headerPath) string { return headerPrefix + path.String() }

// publicationMetrics are what Publication counts.
type publicationMetrics struct {
	uncompiled prometheus.Gauge
	removed    *prometheus.CounterVec
	outlet     *prometheus.CounterVec
}

func newPublicationMetrics(reg prometheus.Registerer) *publicationMetrics {
	m := &publicationMetrics{
		uncompiled: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fealty_snapshot_uncompiled",
			Help: "Members and groups for whom a snapshot could not be compiled: they keep their last one.",
		}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_compile_removed_total",
			Help: "What records of the config ask for and is not given, each once until it is mended, " +
				"by scope and reason.",
		}, []string{"scope", "reason"}),
		outlet: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_publish_dir_writes_total",
			Help: "Generations for the publish directory by outcome: written, not_needed, or failed.",
		}, []string{"outcome"}),
	}
	reg.MustRegister(m.uncompiled, m.removed, m.outlet)
	return m
}

// registerMetrics registers what it counts, and what is served.
func (c *Publication) registerMetrics(reg prometheus.Registerer) {
	c.metrics = newPublicationMetrics(reg)
	reg.MustRegister(
		gauge.Of("fealty_publication_generation",
			"Generation of the publication record that is served; 0 without one.",
			func() float64 {
				if p := c.publication.Load(); p.serves() {
					return float64(p.state.Value.Generation)
				}
				return 0
			}),
		gauge.Of("fealty_publication_fresh_until_seconds",
			"Until when the publication record that is served is fresh, in seconds since 1970; 0 without one.",
			func() float64 {
				if p := c.publication.Load(); p.serves() {
					return float64(p.state.Value.FreshUntil.Unix())
				}
				return 0
			}),
		gauge.Of("fealty_publish_dir_generation",
			"Generation that this coordinator wrote to its publish directory last; 0 if it wrote none.",
			func() float64 { return float64(c.outlet.generation()) }),
	)
}

// fits reports whether everybody can be told what another manifest means.
func (c *Publication) fits(_ context.Context, from, after *authority.State) error {
	if from != nil && from.Manifest.Hash() == after.Manifest.Hash() {
		return nil
	}
	return c.contentsFit(after)
}

// coordinators are the addresses of coordinators that members are told, by enrolment key.
func (c *Publication) coordinators() map[string][]string {
	if p := c.publication.Load(); p != nil {
		return p.state.Value.Coordinators
	}
	return nil
}
