package state

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// A revoked key is not relied on from the moment on at which the node knows: by its
// trust bundle, or by a statement of the signers that somebody hands to it as a file.
// A statement needs no coordinator, and no coordinator can take it back. It is durable
// before it has any effect, in two copies, and stays for as long as its root.

const (
	maxEmergencyBytes = 8 << 20
)

// emergencyFile is one of two copies.
type emergencyFile struct {
	Statements [][]byte `json:"statements"` // as they were handed in
}

// WriteEmergencies makes statements durable, in both copies.
func (s *Store) WriteEmergencies(statements [][]byte) error {
	for _, name := range []string{dir.EmergencyAName, dir.EmergencyBName} {
		if err := s.WriteSealed(name, emergencyFile{statements}); err != nil {
			return err
		}
	}
	return nil
}

// ReadEmergencies returns the statements under the root of me: all that one of the
// copies has. Damage is returned beside them. Their signatures were verified when they
// came, by signers who may have changed since; what is on this disk can only take
// away.
func (s *Store) ReadEmergencies(me Self) (raw [][]byte, out []*trust.Emergency, problem error) {
	var problems []error
	for _, name := range []string{dir.EmergencyAName, dir.EmergencyBName} {
		data, err := s.Read(name, maxEmergencyBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var f emergencyFile
		if err == nil {
			err = dir.Unseal(data, &f)
		}
		if err != nil {
			problems = append(problems, s.Corrupt(name, err))
			continue
		}
		for _, statement := range f.Statements {
			e, err := readEmergency(statement)
			if err != nil {
				problems = append(problems, s.Corrupt(name, err))
				continue
			}
			if e.ClusterID != me.Cluster || e.Root != me.Pin {
				continue // of before a reseed, which changed all that it names
			}
			next, news, err := trust.AddEmergency(out, e)
			if err != nil {
				problems = append(problems, s.Corrupt(name, err))
				continue
			}
			if news {
				raw, out = append(raw, statement), next
			}
		}
	}
	return raw, out, errors.Join(problems...)
}

func readEmergency(raw []byte) (*trust.Emergency, error) {
	signed, err := trust.UnmarshalEmergency(raw)
	if err != nil {
		return nil, err
	}
	return trust.DecodeEmergency(signed.Statement)
}

// WithStatement returns the statements that are kept, and raw. One that is kept with
// other signatures is the same statement.
func WithStatement(kept [][]byte, raw []byte) [][]byte {
	digest := func(raw []byte) (d snapshot.Digest) {
		if s, err := trust.UnmarshalEmergency(raw); err == nil {
			d = s.Digest()
		}
		return d
	}
	if slices.ContainsFunc(kept, func(k []byte) bool { return digest(k) == digest(raw) }) {
		return kept
	}
	return append(slices.Clone(kept), raw)
}

// EmergencyProblem says in one line why a statement counts for nothing.
func EmergencyProblem(err error) string {
	if r, ok := errors.AsType[*snapshot.RejectedError](err); ok {
		return r.Detail
	}
	return strings.TrimPrefix(OneLine(err), "snapshot: ")
}
