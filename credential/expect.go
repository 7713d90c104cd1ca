package credential

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/identity"
)

// ErrNoExpectation is what a client gets that does not say which peer it expects.
// There is no way to accept anybody.
var ErrNoExpectation = errors.New("credential: no expected identity: say who must be on the other end with ExactID, AnyOf, AnyOfKind or AnyNamed")

// Expect says who may be on the other end of a dialed connection. Addresses do
// not matter: they are found, the identity is proved. The zero value expects
// nobody and is refused where a connection is made.
type Expect struct {
	ids     []identity.ID // sorted; if empty, kind counts
	kind    identity.Kind
	named   bool // and its names match pattern, as path.Match has it
	pattern string
}

// ExactID expects exactly id.
func ExactID(id identity.ID) Expect { return AnyOf(id) }

// AnyOf expects one of ids.
func AnyOf(ids ...identity.ID) Expect {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, identity.ID.Compare)
	return Expect{ids: slices.Compact(ids)}
}

// AnyOfKind expects any identity of that kind in the bundle's cluster.
func AnyOfKind(kind identity.Kind) Expect { return Expect{kind: kind} }

// AnyNamed expects any identity of that kind in the bundle's cluster whose name matches a pattern of [path.Match], such
// as web-*: a star stands for any text, and a question mark for one character. A blank pattern expects nobody, so that
// a setting that is missing lets nobody in.
func AnyNamed(kind identity.Kind, pattern string) Expect {
	return Expect{kind: kind, named: true, pattern: pattern}
}

// Validate reports whether e can be met in cluster: [ErrNoExpectation] for the
// zero value, another error for an identity of another cluster or an unknown
// kind. A blank cluster leaves the clusters of identities unchecked.
func (e Expect) Validate(cluster string) error {
	switch {
	case len(e.ids) == 0 && e.kind == "":
		return ErrNoExpectation
	case len(e.ids) == 0 && !e.kind.Valid():
		return fmt.Errorf("credential: expected kind %q does not exist; use one that package identity has", e.kind)
	}
	if e.named && e.pattern == "" {
		return ErrNoExpectation
	}
	if _, err := path.Match(e.pattern, ""); err != nil {
		return fmt.Errorf("credential: expected names %.80q: %w: write it as path.Match has it, such as web-*", e.pattern, err)
	}
	for _, id := range e.ids {
		if id.IsZero() {
			return ErrNoExpectation
		}
		if cluster != "" && id.Cluster() != cluster {
			return fmt.Errorf("credential: expected identity %s is not of cluster %s, whose bundle is used: it can never be met", id, cluster)
		}
	}
	return nil
}

// Check returns nil if id is expected, else a [*MismatchError]. That id belongs
// to the cluster at hand is checked before, by the bundle.
func (e Expect) Check(id identity.ID) error {
	if !id.IsZero() {
		if len(e.ids) == 0 && e.kind != "" && id.Kind() == e.kind && e.names(id.Name()) {
			return nil
		}
		if _, ok := slices.BinarySearchFunc(e.ids, id, identity.ID.Compare); ok {
			return nil
		}
	}
	return &MismatchError{Expected: e, Got: id}
}

// names reports whether a name is one of those expected. A pattern that is none expects nobody.
func (e Expect) names(name string) bool {
	if !e.named {
		return true
	}
	matched, err := path.Match(e.pattern, name)
	return err == nil && matched
}

// Equal reports whether e and other expect the same.
func (e Expect) Equal(other Expect) bool {
	return slices.Equal(e.ids, other.ids) && (len(e.ids) > 0 || e.kind == other.kind && e.named == other.named && e.pattern == other.pattern)
}

// maxShown bounds how many identities the text form of an Expect lists.
const maxShown = 8

// String returns the expected identities, or the kind; equal for equal
// expectations of at most 8 identities.
func (e Expect) String() string {
	if len(e.ids) == 0 {
		if e.kind == "" {
			return "nobody"
		}
		if e.named {
			return "any " + string(e.kind) + "/" + e.pattern
		}
		return "any " + string(e.kind)
	}
	var names []string
	for _, id := range e.ids[:min(len(e.ids), maxShown)] {
		names = append(names, id.String())
	}
	if more := len(e.ids) - maxShown; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, " or ")
}

// MismatchError says that a peer proved an identity, and not the expected one.
type MismatchError struct {
	Expected Expect
	Got      identity.ID
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("credential: the other end is %s, expected %s: the address leads to another process, or its identity was changed", e.Got, e.Expected)
}
