// Package transition composes and authorises the next link of the history, and computes the state
// after it: a move. It writes nothing and asks nobody; only new keys make it more than a function
// of what it is given.
package transition

import (
	"crypto/x509"
	"fmt"
	"maps"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/keepers"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
)

// A Move is one transition on its way into force, and what the state after it
// holds. The kinds of transitions differ in how they compose a move; the way from
// there is one and the same: check, write what it needs, swap the head, adopt.
type Move struct {
	From     *authority.State // what it follows; nil for the first
	Manifest *manifest.Manifest
	Link     history.Link
	Secrets  *authority.Secrets
	Root     *x509.Certificate
	Mesh     *pki.MeshCA
	Sealing  keepers.Sealing // by the keepers of manifest
	Shares   ShareSet        // made by it; empty if it makes none

	// NewSeed says that the seed was made for this move: its root is written, and
	// it is wiped if the move does not come into force.
	NewSeed bool

	// Actor is who brought it about, for the audit log; empty: who called.
	Actor string
	// Audited is set once a state that was not adopted took along what the audit log is told
	// of the move.
	Audited bool
	// Received says for the audit log where the seed came from, if it was in no state of
	// this coordinator before; nil: it was, or newSeed.
	Received map[string]string
}

// Wipe overwrites the secrets that were made for the move, if nobody uses them. A
// nil move has none.
func (mv *Move) Wipe() {
	if mv != nil && mv.NewSeed {
		mv.Secrets.Wipe()
	}
}

// WipeMesh overwrites the mesh CA key that was made for the move, once it is known that
// no head will ever name it.
func (mv *Move) WipeMesh() {
	if mv.Mesh != nil && (mv.From == nil || mv.Mesh.KeyID() != mv.From.MeshKey) {
		authority.WipeMesh(mv.Mesh)
	}
}

// Seals is what keepers seal for the move.
func (mv *Move) Seals() keepers.Sealing {
	return keepers.Sealing{From: mv.From, Manifest: mv.Manifest, NewSeed: mv.NewSeed, Link: mv.Link,
		Secrets: mv.Secrets, Mesh: mv.Mesh}
}

// Seal names the transition of the move by its hash, which is known before
// anything is written.
func (mv *Move) Seal(t *history.Transition) (err error) {
	mv.Link, err = linkOf(t)
	return err
}

// Audit is what the audit log is told of a move that brought s about: the transition,
// and which of its secrets were made for it.
func (mv *Move) Audit(s *authority.State) []record.AuditEntry {
	t := &mv.Link.Transition
	out := []record.AuditEntry{{Actor: mv.Actor, Action: "manifest." + string(t.Kind), Target: s.Head.Hash.String(),
		Reason: t.Reason,
		Fields: map[string]string{"index": fmt.Sprint(t.Index), "authority_epoch": fmt.Sprint(t.AuthorityEpoch)}}}
	if mv.Received != nil {
		out = append(out, OriginOf(s, ActionSeedReceived, mv.Received))
	}
	if mv.NewSeed {
		out = append(out, OriginOf(s, ActionSeedCreated, nil))
	}
	if mv.From == nil || mv.From.Head.MeshCAKey != mv.Link.MeshCAKey {
		out = append(out, OriginOf(s, ActionMeshMade, nil))
	}
	for _, k := range mv.Sealing.Made {
		out = append(out, record.AuditEntry{Actor: mv.Actor, Action: "keeper.key.made", Target: k.GetKeeper(),
			Fields: map[string]string{"key": k.GetKeyId(), "coordinator": k.GetCoordinator()}})
	}
	return out
}

// Where the secrets of a coordinator come from is in the audit log, so that anybody
// can see that each of them is one of these (I8): made here, given by the owners, by a
// keeper, or by a coordinator that was admitted.
const (
	ActionSeedCreated  = "seed.created"
	ActionSeedReceived = "seed.received"
	ActionMeshMade     = "mesh.made"
	ActionMeshReceived = "mesh.received"
)

// OriginOf is the audit entry for a secret of s that came to this coordinator.
func OriginOf(s *authority.State, action string, from map[string]string) record.AuditEntry {
	e := record.AuditEntry{Action: action, Target: s.Manifest.Cluster,
		Fields: map[string]string{"head": s.Head.Hash.String()}}
	if action == ActionMeshMade || action == ActionMeshReceived {
		e.Fields["mesh_ca_key"] = s.MeshKey.String()
	}
	maps.Copy(e.Fields, from)
	return e
}
