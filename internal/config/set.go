package config

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// Hash is the SHA-256 of a record in its canonical form, or of a set.
type Hash [sha256.Size]byte

// String returns the hash in lower-case hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// A Set is all records at one time, valid for themselves and together. It never
// changes, and may be shared. The zero Set has no records.
type Set struct {
	entries map[Key]*entry
	keys    []Key // sorted
	size    int   // bytes of all records
}

// An entry is a record with what is asked of it more than once.
type entry struct {
	record    Record
	canonical []byte
	hash      Hash
	refs      []reference
	exposed   *Problem // what looks like a raw secret in it, by a rule that is younger; nil: nothing
}

// A reference is a record that a field names.
type reference struct {
	field string
	to    Key
}

// newEntry takes a copy of r, which is only made if r is valid.
func newEntry(r Record) (*entry, []*Problem) {
	canonical := Encode(r)
	n, err := readJSON(jsontext.NewDecoder(bytes.NewReader(canonical)), 0)
	if err != nil {
		return nil, []*Problem{{KeyOf(r), document.Problem{Rule: "syntax", What: "the record has no JSON form", Do: "use valid UTF-8"}}}
	}
	doc, problems := decodeNode(n, snapshot.SecretIn)
	if problems != nil {
		return nil, problems
	}
	return entryOf(doc.Record, canonical), nil
}

// entryOf returns the entry of a record, which is its own, and its canonical form.
func entryOf(r Record, canonical []byte) *entry {
	return &entry{record: r, canonical: canonical, hash: sha256.Sum256(canonical), refs: references(allFields(r), "")}
}

// references are the records that fields name, those of objects in them included.
func references(fields []field, path string) []reference {
	var out []reference
	for _, f := range fields {
		at := document.Join(path, f.name)
		if f.names != nil {
			for _, name := range f.names() {
				out = append(out, reference{at, Key{f.refers, name}})
			}
		}
		if f.within != nil {
			out = append(out, references(f.within(), at)...)
		}
	}
	return out
}

// NewSet returns the set of records. The error is an [*InvalidError]; see [Set.With].
func NewSet(records ...Record) (*Set, error) { return new(Set).With(records, nil) }

// With returns s with records put, in place of those with the same keys, and others
// deleted. s does not change, and the records put are copied.
//
// The error is an [*InvalidError] that names what is wrong with which record: a
// record by itself, a key that is put twice or put and deleted, a deletion of what
// is not there or is referred to, a reference to what is not there or to another
// organization's, more than a limit.
func (s *Set) With(put []Record, deleted []Key) (*Set, error) {
	next := &Set{entries: maps.Clone(s.entries)}
	if next.entries == nil {
		next.entries = make(map[Key]*entry)
	}
	var problems []*Problem
	fault := func(k Key, rule, field, what, do string) {
		problems = append(problems, &Problem{k, document.Problem{Rule: rule, Field: field, What: what, Do: do}})
	}
	touched := make(map[Key]bool, len(put)+len(deleted))
	gone := make(map[Key]bool, len(deleted))
	once := func(k Key) bool {
		if touched[k] {
			fault(k, "duplicate-record", "", "the record is written twice at a time", "write it once")
		}
		defer func() { touched[k] = true }()
		return !touched[k]
	}
	for _, r := range put {
		e, found := newEntry(r)
		if found != nil {
			problems = append(problems, found...)
			continue
		}
		if k := KeyOf(e.record); once(k) {
			next.entries[k] = e
		}
	}
	for _, k := range deleted {
		if !once(k) {
			continue
		}
		if _, ok := next.entries[k]; !ok {
			fault(k, "no-such-record", "", "there is no such record", "list what there is: fealty config list")
			continue
		}
		delete(next.entries, k)
		gone[k] = true
	}
	if err := invalid(problems); err != nil {
		return nil, err
	}
	return next.whole(gone)
}

// whole returns s, which is new, once its records are valid together. gone were deleted just now.
func (s *Set) whole(gone map[Key]bool) (*Set, error) {
	s.keys = slices.SortedFunc(maps.Keys(s.entries), Key.Compare)
	if problems := s.check(gone); problems != nil {
		return nil, invalid(problems)
	}
	return s, nil
}

// A Reading makes a set of the canonical forms of its records, as a store has them. A record that the
// set of before has too is not decoded again, so that a change of one costs little where there are many.
// Make it with [Set.Reading]; it belongs to one goroutine.
type Reading struct {
	known map[Hash]*entry
	next  *Set
	twice []*Problem
}

// Reading begins to read the set that comes after s; nil: there was none.
func (s *Set) Reading() *Reading {
	r := &Reading{known: make(map[Hash]*entry), next: &Set{entries: make(map[Key]*entry)}}
	if s != nil {
		for _, e := range s.entries {
			r.known[e.hash] = e
		}
	}
	return r
}

// Add adds the record that has this canonical form, which it keeps. Errors are those of
// [DecodeCanonical]; that a record is there twice is a problem of the set.
func (r *Reading) Add(canonical []byte) error {
	e := r.known[sha256.Sum256(canonical)]
	if e == nil {
		rec, exposed, err := decodeCanonical(canonical)
		if err != nil {
			return err
		}
		e = entryOf(rec, canonical)
		e.exposed = exposed
	}
	k := KeyOf(e.record)
	if r.next.entries[k] != nil {
		r.twice = append(r.twice, &Problem{k, document.Problem{Rule: "duplicate-record",
			What: "the record is there twice", Do: "keep one of them"}})
	}
	r.next.entries[k] = e
	return nil
}

// Set returns the set of all that was added, and ends the reading. The error is an [*InvalidError]; see
// [Set.With].
func (r *Reading) Set() (*Set, error) {
	if err := invalid(r.twice); err != nil {
		return nil, err
	}
	return r.next.whole(nil)
}

// Exposed returns what looks like a raw secret in records that were put before a rule knew it, in order. They stay in
// force, since nodes need what they have; none of them could be put again as it is.
func (s *Set) Exposed() []*Problem {
	var out []*Problem
	for _, k := range s.keys {
		if p := s.entries[k].exposed; p != nil {
			out = append(out, p)
		}
	}
	return out
}

// check looks at all records together. gone were deleted just now.
func (s *Set) check(gone map[Key]bool) []*Problem {
	var problems []*Problem
	fault := func(k Key, rule, field, what, do string) {
		problems = append(problems, &Problem{k, document.Problem{Rule: rule, Field: field, What: what, Do: do}})
	}
	perKind := make(map[Kind]int)
	for _, k := range s.keys {
		perKind[k.Kind]++
		s.size += len(s.entries[k].canonical)
	}
	for _, kind := range Kinds() {
		if n := perKind[kind]; n > MaxOfKind {
			fault(Key{}, "too-many", "", fmt.Sprintf("%d records of kind %s", n, kind), fmt.Sprintf("at most %d are allowed", MaxOfKind))
		}
	}
	if n := len(s.keys); n > MaxRecords {
		fault(Key{}, "too-many", "", fmt.Sprintf("%d records", n), fmt.Sprintf("at most %d are allowed", MaxRecords))
	}
	if s.size > MaxBytes {
		fault(Key{}, "size", "", fmt.Sprintf("the records have %d bytes together", s.size), fmt.Sprintf("at most %d are allowed", MaxBytes))
	}
	holders := make(map[Key][]string) // who still refers to what is gone
	for _, k := range s.keys {
		e := s.entries[k]
		for _, ref := range e.refs {
			to, ok := s.entries[ref.to]
			switch {
			case !ok && gone[ref.to]:
				holders[ref.to] = append(holders[ref.to], fmt.Sprintf("%s (%s)", k, ref.field))
			case !ok:
				what, do := s.missing(ref.to)
				fault(k, "unknown-reference", ref.field, what, do)
			default:
				if rule, what, do := crosses(e.record, to.record); rule != "" {
					fault(k, rule, ref.field, what, do)
				}
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(holders), Key.Compare) {
		fault(k, RuleInUse, "", "it is referred to by "+some(holders[k]), "delete those too, or change them first")
	}
	return problems
}

// missing words a reference to what is not there. A name of a secret is not shown:
// it can be a secret that somebody took for its name.
func (s *Set) missing(to Key) (what, do string) {
	var names []string
	for k := range s.of(to.Kind) {
		names = append(names, k.Name)
	}
	what = fmt.Sprintf("there is no %s", to)
	if to.Kind == KindSecret {
		what, to.Name = "there is no record of kind secret with this name", ""
	}
	do = fmt.Sprintf("put a record of kind %s and this name first, or in the same step", to.Kind)
	if near := document.Nearest(to.Name, names); near != "" {
		do = fmt.Sprintf("did you mean %s? If not, %s", near, do)
	}
	return what, do
}

// some joins a list that may be long.
func some(list []string) string {
	const most = 5
	if n := len(list); n > most {
		return strings.Join(list[:most], ", ") + fmt.Sprintf(" and %d more", n-most)
	}
	return strings.Join(list, ", ")
}

// crosses says why a record must not refer to another one, which then would not be
// there for all who get the first.
func crosses(from, to Record) (rule, what, do string) {
	k, source, target := KeyOf(to), from.Base(), to.Base()
	name := k.String()
	if k.Kind == KindSecret {
		name = "the secret" // its name is not shown; see missing
	}
	if target.Organization != "" && target.Organization != source.Organization {
		// Not whose: that would tell one organization of another.
		return "other-organization", name + " belongs to another organization than this record", "refer to records of its own organization, or of the whole cluster"
	}
	// Only these are in one snapshot with what refers to them. The others are in
	// snapshots of their own, which a node may hold or not.
	if k.Kind != KindResource && k.Kind != KindSecret || len(target.Roles) == 0 {
		return "", "", ""
	}
	if len(source.Roles) == 0 {
		return "fewer-roles", fmt.Sprintf("%s is for members with role %s alone, and this record for all", name, strings.Join(target.Roles, " or ")), "give both the same roles"
	}
	for _, role := range source.Roles {
		if !slices.Contains(target.Roles, role) {
			return "fewer-roles", fmt.Sprintf("%s is not for members with role %s, and this record is", name, role), "give both the same roles"
		}
	}
	return "", "", ""
}

// Len returns how many records there are.
func (s *Set) Len() int { return len(s.keys) }

// Keys returns the keys of all records, sorted.
func (s *Set) Keys() []Key { return slices.Clone(s.keys) }

// Get returns a record, which must not be changed.
func (s *Set) Get(k Key) (Record, bool) {
	e, ok := s.entries[k]
	if !ok {
		return nil, false
	}
	return e.record, true
}

// Canonical returns a copy of the canonical form of a record and its hash.
func (s *Set) Canonical(k Key) ([]byte, Hash, bool) {
	e, ok := s.entries[k]
	if !ok {
		return nil, Hash{}, false
	}
	return slices.Clone(e.canonical), e.hash, true
}

// Digest returns a hash over the keys and hashes of all records: two sets have the
// same one if and only if they are the same.
func (s *Set) Digest() Hash {
	h := sha256.New()
	h.Write([]byte("fealty config set v1\x00"))
	part := func(b []byte) {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(b))))
		h.Write(b)
	}
	for _, k := range s.keys {
		part([]byte(k.String()))
		part(s.entries[k].hash[:])
	}
	return Hash(h.Sum(nil))
}

// All yields all records, sorted by key. They must not be changed.
func (s *Set) All() iter.Seq2[Key, Record] {
	return func(yield func(Key, Record) bool) {
		for _, k := range s.keys {
			if !yield(k, s.entries[k].record) {
				return
			}
		}
	}
}

// of yields the records of a kind.
func (s *Set) of(kind Kind) iter.Seq2[Key, Record] {
	first, _ := slices.BinarySearchFunc(s.keys, kind, func(k Key, kind Kind) int { return cmp.Compare(k.Kind, kind) })
	return func(yield func(Key, Record) bool) {
		for _, k := range s.keys[first:] {
			if k.Kind != kind || !yield(k, s.entries[k].record) {
				return
			}
		}
	}
}

// collect returns the records of a kind.
func collect[T Record](s *Set, kind Kind) []T {
	var out []T
	for _, r := range s.of(kind) {
		out = append(out, r.(T))
	}
	return out
}

// The records of each kind, sorted by name. They must not be changed.

// Degraded returns the records of kind degraded.
func (s *Set) Degraded() []*Degraded { return collect[*Degraded](s, KindDegraded) }

// Organizations returns the records of kind organization.
func (s *Set) Organizations() []*Organization { return collect[*Organization](s, KindOrganization) }

// Peers returns the records of kind peer.
func (s *Set) Peers() []*Peer { return collect[*Peer](s, KindPeer) }

// QoS returns the records of kind qos.
func (s *Set) QoS() []*QoS { return collect[*QoS](s, KindQoS) }

// Resources returns the records of kind resource.
func (s *Set) Resources() []*Resource { return collect[*Resource](s, KindResource) }

// Roles returns the records of kind role.
func (s *Set) Roles() []*Role { return collect[*Role](s, KindRole) }

// Routes returns the records of kind route.
func (s *Set) Routes() []*Route { return collect[*Route](s, KindRoute) }

// Secrets returns the records of kind secret.
func (s *Set) Secrets() []*Secret { return collect[*Secret](s, KindSecret) }

// Services returns the records of kind service.
func (s *Set) Services() []*Service { return collect[*Service](s, KindService) }

// Storages returns the records of kind storage.
func (s *Set) Storages() []*Storage { return collect[*Storage](s, KindStorage) }
