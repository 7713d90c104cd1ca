package snapshot

import (
	"cmp"
	"fmt"
	"github.com/fealty-io/fealty/internal/canonical"
	"github.com/fealty-io/fealty/internal/snapshot"
	"maps"
	"slices"
	"strings"
	"time"
)

// Mark is the newest that was ever accepted for one scope and subject. It never
// goes down: a newer epoch may carry a lower version, and that is all.
type Mark struct {
	Scope   Scope
	Subject Subject

	AuthorityEpoch uint64
	ConfigVersion  uint64
	IssuedAt       time.Time
	ContentHash    Digest

	// Header is the digest of the header accepted last. Replaced and Previous may
	// still be on disk: Previous is the version before, Replaced what was active when
	// Header or Previous were accepted. Zero: none.
	Header, Replaced, Previous Digest

	// The newest publication record over Header; zero for what is signed by itself.
	PublicationEpoch uint64
	Generation       uint64
	Root             Digest

	// SignedAt is the latest time in what was accepted here that somebody signed.
	SignedAt time.Time
}

func (m *Mark) walk(c *codec) {
	c.Begin()
	c.Member("authority_epoch")
	c.Number64(&m.AuthorityEpoch)
	c.Member("config_version")
	c.Number64(&m.ConfigVersion)
	c.Member("content_hash")
	c.Fixed(m.ContentHash[:])
	c.Member("generation")
	c.Number64(&m.Generation)
	c.Member("header")
	c.Fixed(m.Header[:])
	c.Member("issued_at")
	c.Instant(&m.IssuedAt)
	c.Member("previous")
	c.Fixed(m.Previous[:])
	c.Member("publication_epoch")
	c.Number64(&m.PublicationEpoch)
	c.Member("replaced")
	c.Fixed(m.Replaced[:])
	c.Member("root")
	c.Fixed(m.Root[:])
	c.Member("scope_type")
	c.Text((*string)(&m.Scope), maxName)
	c.Member("signed_at")
	c.Instant(&m.SignedAt)
	c.Member("subject")
	m.Subject.walk(c)
	c.End()
}

type markKey struct {
	scope   Scope
	subject Subject
}

// Marks are what a node has accepted so far. They are a value: Accept returns
// new ones. The zero Marks are those of a node that accepted nothing; a node
// that *lost* its marks must not use them as if it were new.
type Marks struct{ m map[markKey]Mark }

// Get returns the mark of (scope, subject).
func (m Marks) Get(scope Scope, subject Subject) (Mark, bool) {
	mark, ok := m.m[markKey{scope, subject}]
	return mark, ok
}

// All returns the marks, sorted by scope, then subject.
func (m Marks) All() []Mark {
	return slices.SortedStableFunc(maps.Values(m.m), compareMarks)
}

func compareMarks(a, b Mark) int {
	if n := strings.Compare(string(a.Scope), string(b.Scope)); n != 0 {
		return n
	}
	return strings.Compare(a.Subject.String(), b.Subject.String())
}

// SignedTime returns the latest signed time that was accepted under the highest
// authority epoch: a floor under the clock, which a clock that was once wrong
// cannot move, and a new epoch resets. Zero: none.
func (m Marks) SignedTime() time.Time {
	var epoch uint64
	var at time.Time
	for _, mark := range m.m {
		if mark.AuthorityEpoch > epoch {
			epoch, at = mark.AuthorityEpoch, time.Time{}
		}
		if mark.AuthorityEpoch == epoch && mark.SignedAt.After(at) {
			at = mark.SignedAt
		}
	}
	return at
}

type marksFile struct{ marks []Mark }

func (f *marksFile) walk(c *codec) {
	version := schemaVersion
	c.Begin()
	c.Member("marks")
	canonical.List(c, &f.marks, snapshot.MaxMarks, func(c *codec, m *Mark) { m.walk(c) })
	c.Member("schema_version")
	c.Number(&version, 1<<15)
	c.End()
	if c.Err() == nil && version != schemaVersion {
		c.Fail("schema version %d, supported is %d", version, schemaVersion)
	}
}

// Marshal returns the marks for disk: canonical JSON. Equal marks have equal
// bytes. A checksum is the caller's.
func (m Marks) Marshal() ([]byte, error) {
	out, err := encode(&marksFile{m.All()})
	if err != nil {
		return nil, fmt.Errorf("snapshot: marks: %w", err)
	}
	return out, nil
}

// ParseMarks reads what Marshal wrote. Errors match ErrMalformed: the marks are
// lost then, which is not the same as none.
func ParseMarks(data []byte) (Marks, error) {
	var f marksFile
	if _, err := decode(string(data), &f); err != nil {
		return Marks{}, fmt.Errorf("snapshot: marks: %w: %w", ErrMalformed, err)
	}
	if !canonical.Ascending(f.marks, compareMarks) {
		return Marks{}, fmt.Errorf("snapshot: marks: out of order or double: %w", ErrMalformed)
	}
	m := Marks{m: make(map[markKey]Mark, len(f.marks))}
	for _, mark := range f.marks {
		if !inVersions(mark.AuthorityEpoch) || !inVersions(mark.ConfigVersion) || mark.PublicationEpoch > snapshot.MaxVersion || mark.Generation > snapshot.MaxVersion {
			return Marks{}, fmt.Errorf("snapshot: marks: a mark of %.40q beyond 2^53 or without a version: %w", mark.Scope, ErrMalformed)
		}
		m.m[markKey{mark.Scope, mark.Subject}] = mark
	}
	return m, nil
}

// Accept returns marks raised to v, for the caller to make durable before it
// activates v. It decides by checks 8 and 9 again, against these marks, so that
// of two verified at once only the newer one counts; an error is a
// *RejectedError, and the marks stay. It panics on a Verified that no Verify
// returned.
func Accept(marks Marks, v *Verified) (Marks, error) {
	if v == nil || v.content == nil {
		panic("snapshot: Accept of a Verified that was not verified")
	}
	s := &v.activation
	if msg := marks.epochFault(s); msg != "" {
		return marks, refuse(checkEpoch, s.header.ScopeType, msg)
	}
	if reason, msg := marks.versionFault(s); msg != "" {
		err := refuse(checkVersion, s.header.ScopeType, msg)
		err.Reason = reason
		return marks, err
	}
	key := markKey{s.header.ScopeType, s.header.Subject}
	old, was := marks.m[key]
	var gone markKey // that key takes the place of
	if !was && len(marks.m) >= snapshot.MaxMarks {
		var err *RejectedError
		if gone, err = marks.placeFor(key, s.record); err != nil {
			return marks, err
		}
	}
	mark := Mark{
		Scope: key.scope, Subject: key.subject,
		AuthorityEpoch: s.header.AuthorityEpoch, ConfigVersion: s.header.ConfigVersion,
		IssuedAt: s.header.IssuedAt, ContentHash: s.header.ContentHash,
		Header: s.digest, SignedAt: s.header.IssuedAt,
	}
	switch {
	case !was:
	case old.Header == s.digest: // another record over the same header
		mark.Replaced, mark.Previous = old.Replaced, old.Previous
	case old.AuthorityEpoch == mark.AuthorityEpoch && old.ConfigVersion == mark.ConfigVersion: // a renewal
		mark.Replaced, mark.Previous = old.Header, old.Previous
	default:
		mark.Replaced, mark.Previous = old.Previous, old.Header
	}
	if r := s.record; r != nil {
		mark.PublicationEpoch, mark.Generation, mark.Root = r.AuthorityEpoch, r.Generation, r.Root
		if r.IssuedAt.After(mark.SignedAt) {
			mark.SignedAt = r.IssuedAt
		}
	}
	// Within an epoch signed time does not go back, whatever the signer's clock did.
	if was && old.AuthorityEpoch == mark.AuthorityEpoch && old.SignedAt.After(mark.SignedAt) {
		mark.SignedAt = old.SignedAt
	}
	next := Marks{m: maps.Clone(marks.m)}
	if next.m == nil {
		next.m = make(map[markKey]Mark, 1)
	}
	delete(next.m, gone)
	next.m[key] = mark
	return next, nil
}

// placeFor returns the mark that makes place for key: that of the group under the oldest
// record. A group without a mark is then taken under a newer record than that alone. So
// nothing that was accepted for a group whose mark went, nor anything before it, comes
// back: its record is no newer than that of any group that is left.
func (m Marks) placeFor(key markKey, r *Record) (markKey, *RejectedError) {
	var oldest *Mark
	for _, mark := range m.All() { // sorted: of several it is always the same one
		if mark.Subject.kind() == subjectGroup && (oldest == nil || cmp.Or(cmp.Compare(mark.PublicationEpoch, oldest.PublicationEpoch), cmp.Compare(mark.Generation, oldest.Generation)) < 0) {
			oldest = &mark
		}
	}
	if oldest == nil {
		return markKey{}, refuse(checkLimits, key.scope, fmt.Sprintf("%d marks, limit %d", len(m.m)+1, snapshot.MaxMarks))
	}
	if key.subject.kind() == subjectGroup && (r == nil || cmp.Or(cmp.Compare(r.AuthorityEpoch, oldest.PublicationEpoch), cmp.Compare(r.Generation, oldest.Generation)) <= 0) {
		err := refuse(checkVersion, key.scope, fmt.Sprintf("a group that is not known any more, under a record no newer than generation %d of epoch %d", oldest.Generation, oldest.PublicationEpoch))
		err.Reason = ReasonStaleRecord
		return markKey{}, err
	}
	return markKey{oldest.Scope, oldest.Subject}, nil
}

// Keep returns marks that go on knowing v, for a node that uses v although it accepted
// something newer for the same scope and subject: a failed trial. The newest stays the
// newest. v is one that the marks know; of any other they stay as they are.
func (m Marks) Keep(v *Verified) Marks {
	key := markKey{v.header.ScopeType, v.header.Subject}
	mark, ok := m.m[key]
	if !ok || v.digest == mark.Header || v.digest != mark.Previous && v.digest != mark.Replaced {
		return m
	}
	if v.digest == mark.Replaced {
		mark.Replaced, mark.Previous = mark.Previous, mark.Replaced
	}
	next := Marks{m: maps.Clone(m.m)}
	next.m[key] = mark
	return next
}

// activation is what checks 8 and 9 look at.
type activation struct {
	header Header
	digest Digest  // of the header's bytes
	record *Record // nil for what is signed by itself
}

// epochFault is check 8.
func (m Marks) epochFault(s *activation) string {
	h := &s.header
	if !inVersions(h.AuthorityEpoch) {
		return fmt.Sprintf("authority_epoch %d is not within 1 and 2^53", h.AuthorityEpoch)
	}
	if s.record != nil && (!inVersions(s.record.AuthorityEpoch) || s.record.AuthorityEpoch < h.AuthorityEpoch) {
		return fmt.Sprintf("a record of authority_epoch %d over a header of %d", s.record.AuthorityEpoch, h.AuthorityEpoch)
	}
	if mark, ok := m.Get(h.ScopeType, h.Subject); ok && h.AuthorityEpoch < mark.AuthorityEpoch {
		return fmt.Sprintf("authority_epoch %d, accepted was %d", h.AuthorityEpoch, mark.AuthorityEpoch)
	}
	return ""
}

// versionFault is check 9.
func (m Marks) versionFault(s *activation) (Reason, string) {
	h, r := &s.header, s.record
	if !inVersions(h.ConfigVersion) {
		return ReasonVersion, fmt.Sprintf("config_version %d is not within 1 and 2^53", h.ConfigVersion)
	}
	if r != nil {
		if !inVersions(r.Generation) {
			return ReasonVersion, fmt.Sprintf("generation %d is not within 1 and 2^53", r.Generation)
		}
		for _, mark := range m.m {
			if mark.Generation == r.Generation && mark.PublicationEpoch == r.AuthorityEpoch && mark.Root != r.Root {
				return ReasonEquivocation, fmt.Sprintf("generation %d of epoch %d has root %s, and had %s",
					r.Generation, r.AuthorityEpoch, r.Root, mark.Root)
			}
		}
	}
	mark, ok := m.Get(h.ScopeType, h.Subject)
	if !ok {
		return "", ""
	}
	if h.AuthorityEpoch == mark.AuthorityEpoch && h.ConfigVersion == mark.ConfigVersion && h.ContentHash != mark.ContentHash {
		return ReasonEquivocation, fmt.Sprintf("version %d of epoch %d has content %s, and had %s",
			h.ConfigVersion, h.AuthorityEpoch, h.ContentHash, mark.ContentHash)
	}
	if h.AuthorityEpoch == mark.AuthorityEpoch && h.ConfigVersion < mark.ConfigVersion {
		return ReasonVersion, fmt.Sprintf("version %d of epoch %d, accepted was %d", h.ConfigVersion, h.AuthorityEpoch, mark.ConfigVersion)
	}
	newer := 1 // the record against the accepted one
	if r != nil {
		newer = cmp.Compare(r.AuthorityEpoch, mark.PublicationEpoch)
		if newer == 0 {
			newer = cmp.Compare(r.Generation, mark.Generation)
		}
	}
	if newer < 0 {
		return ReasonStaleRecord, fmt.Sprintf("generation %d of epoch %d, accepted was %d of %d",
			r.Generation, r.AuthorityEpoch, mark.Generation, mark.PublicationEpoch)
	}
	switch {
	case h.AuthorityEpoch > mark.AuthorityEpoch || h.ConfigVersion > mark.ConfigVersion:
		return "", ""
	case s.digest == mark.Header:
		if r != nil && newer > 0 {
			return "", "" // renewed by a newer record
		}
		return ReasonUnchanged, fmt.Sprintf("version %d of epoch %d is the accepted one", h.ConfigVersion, h.AuthorityEpoch)
	case !h.IssuedAt.After(mark.IssuedAt):
		return ReasonVersion, fmt.Sprintf("version %d of epoch %d again, issued at %s, accepted was one of %s",
			h.ConfigVersion, h.AuthorityEpoch, h.IssuedAt.Format(canonical.TimeLayout), mark.IssuedAt.Format(canonical.TimeLayout))
	}
	return "", "" // a renewal
}

// recordedFault replaces checks 8 and 9 at start-up.
func (m Marks) recordedFault(s *activation) string {
	mark, ok := m.Get(s.header.ScopeType, s.header.Subject)
	if !ok {
		return "there is no mark for its scope and subject"
	}
	if s.digest != mark.Header && s.digest != mark.Replaced && s.digest != mark.Previous {
		return "it is not what was accepted"
	}
	return ""
}
