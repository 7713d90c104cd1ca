// Package keychain keeps in memory the secrets that may be needed though no head in force names them: those of moves
// whose outcome is unknown, of a seed that a keeper opened, of mesh CA keys that peers brought, and of seeds that were
// replaced and that calls may still use.
//
// It is memory only, and does no I/O under its lock: two coordinators that prepare each other
// would wait for each other. A secret is wiped as soon as it is known that no head will name it,
// but for a replaced seed, which is wiped when the process ends.
package keychain

import (
	"slices"
	"sync"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/pki"
)

// Bounds on what is kept.
const (
	// MaxPending bounds the moves whose outcome is unknown at one time. A coordinator that loses
	// more answers than that needs a keeper, or the owners, for the oldest.
	MaxPending = 8
	// MaxPrepared bounds the mesh CA keys of heads that may come; the oldest is dropped.
	MaxPrepared = 8
)

// Keychain holds secrets. Its zero value is empty; its methods may be called by several
// goroutines at once.
type Keychain struct {
	mu       sync.Mutex
	pending  map[history.Hash]*transition.Move // of unknown outcome; guarded by mu
	opened   *opened                           // guarded by mu
	prepared []Prepared                        // oldest first; guarded by mu
	retired  []*authority.Secrets              // of seeds that were replaced; guarded by mu
}

// opened is a seed without the mesh CA key of the head: a keeper opened it, or what it
// opened did not come into force. It waits for a peer, or for a rekey.
type opened struct {
	salt    history.Salt
	secrets *authority.Secrets
	by      string // the keeper
}

// Prepared is the mesh CA key of a head that may come, as a peer brought it.
type Prepared struct {
	Link history.Link // of the transition, which is in no history yet
	Mesh *pki.MeshCA
}

// Pend remembers a move that may have come into force, or may yet, so that its keys are at
// hand when its head is seen. It reports whether it did.
func (k *Keychain) Pend(mv *transition.Move) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pending[mv.Link.Hash] != mv && len(k.pending) >= MaxPending {
		return false
	}
	if k.pending == nil {
		k.pending = make(map[history.Hash]*transition.Move)
	}
	k.pending[mv.Link.Hash] = mv
	return true
}

// Pending returns the move to the head with the hash; nil if none is known.
func (k *Keychain) Pending(head history.Hash) *transition.Move {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pending[head]
}

// Undecided returns how many moves there are whose outcome is unknown.
func (k *Keychain) Undecided() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.pending)
}

// Settle forgets the moves that are decided, and the keys that peers brought, now that head is
// adopted. The seed of head may be that of one of them.
func (k *Keychain) Settle(head history.Link) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for hash, mv := range k.pending {
		if !decide.Decided(decide.HeadOf(&mv.Link), decide.HeadOf(&head)) {
			continue // it may come yet
		}
		if mv.Link.Salt != head.Salt {
			mv.Wipe()
		}
		if mv.Link.MeshCAKey != head.MeshCAKey {
			mv.WipeMesh()
		}
		delete(k.pending, hash)
	}
	k.prepared = slices.DeleteFunc(k.prepared, func(p Prepared) bool {
		if p.Link.Index > head.Index {
			return false // it may come yet
		}
		if p.Mesh.KeyID() != head.MeshCAKey {
			authority.WipeMesh(p.Mesh)
		}
		return true
	})
}

// Prepare remembers a key, in place of the oldest if there are too many.
func (k *Keychain) Prepare(p Prepared) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.prepared = slices.DeleteFunc(k.prepared, func(have Prepared) bool { return have.Link.Hash == p.Link.Hash })
	if len(k.prepared) >= MaxPrepared {
		k.prepared = slices.Delete(k.prepared, 0, 1)
	}
	k.prepared = append(k.prepared, p)
}

// Brought names the mesh CA keys of heads that may come, the oldest first.
func (k *Keychain) Brought() []identity.KeyID {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []identity.KeyID
	for _, p := range k.prepared {
		out = append(out, p.Mesh.KeyID())
	}
	return out
}

// Open remembers a seed that a keeper opened, for the way back to a head, in place of the one
// before, which is wiped unless it is in use under s, the state that there is.
func (k *Keychain) Open(salt history.Salt, secrets *authority.Secrets, keeper string, s *authority.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opened != nil && k.opened.secrets == secrets {
		return
	}
	k.dropLocked(s)
	k.opened = &opened{salt, secrets, keeper}
}

// Drop forgets the seed that a keeper opened, and wipes it unless it is in use under s, the
// state that there is.
func (k *Keychain) Drop(s *authority.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropLocked(s)
}

func (k *Keychain) dropLocked(s *authority.State) {
	o := k.opened
	k.opened = nil
	if o != nil && !k.holdsLocked(o.secrets, s) {
		o.secrets.Wipe()
	}
}

// Opener names the keeper that opened the seed that is kept, if it is secrets; else "".
func (k *Keychain) Opener(secrets *authority.Secrets) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opened != nil && k.opened.secrets == secrets {
		return k.opened.by
	}
	return ""
}

// Holds reports whether secrets are those of the state s, which is the one that there is, or of
// a move that may be in force: then they are not the caller's to wipe.
func (k *Keychain) Holds(secrets *authority.Secrets, s *authority.State) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.holdsLocked(secrets, s)
}

func (k *Keychain) holdsLocked(secrets *authority.Secrets, s *authority.State) bool {
	for _, mv := range k.pending {
		if mv.Secrets == secrets {
			return true
		}
	}
	ready := s.Ready()
	return ready != nil && ready.Secrets == secrets
}

// Retire keeps the secrets of a seed that was replaced until the process ends.
func (k *Keychain) Retire(secrets *authority.Secrets) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.retired = append(k.retired, secrets)
}

// Wipe overwrites what was opened and what was replaced, when nobody uses it any more: s is the
// state that there is.
func (k *Keychain) Wipe(s *authority.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropLocked(s)
	for _, secrets := range k.retired {
		secrets.Wipe()
	}
}

// Alive returns once nobody holds its lock: a watchdog sees that it is not held for good.
func (k *Keychain) Alive() {
	k.mu.Lock()
	defer k.mu.Unlock()
}
