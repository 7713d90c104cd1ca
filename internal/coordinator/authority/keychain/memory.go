package keychain

import (
	"slices"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/pki"
)

// Memory is what this process holds, as decisions see it: of a state, and of heads that are not
// in force.
type Memory struct {
	keys  *Keychain
	state *authority.State
}

// Memory returns what is held beside s.
func (k *Keychain) Memory(s *authority.State) Memory { return Memory{k, s} }

// Phase is the phase of the state.
func (m Memory) Phase() decide.Phase { return m.state.Phase }

// Head is the head in force; the zero one if there is none.
func (m Memory) Head() decide.Head {
	if s := m.state.Ready(); s != nil {
		return decide.HeadOf(&s.Head)
	}
	return decide.Head{}
}

// Knows reports whether the head with the hash is one of the history in force.
func (m Memory) Knows(hash history.Hash) bool {
	s := m.state.Ready()
	return s != nil && slices.ContainsFunc(s.Chain.Links(), func(l history.Link) bool { return l.Hash == hash })
}

// HoldsSeed reports whether the seed with this salt is here.
func (m Memory) HoldsSeed(salt history.Salt) bool { return m.Secrets(salt) != nil }

// HoldsMesh reports whether the mesh CA with this key is here.
func (m Memory) HoldsMesh(key identity.KeyID) bool { return m.Mesh(key) != nil }

// Secrets returns the seed with this salt, and the keys that derive from it; nil if it
// is not here.
func (m Memory) Secrets(salt history.Salt) *authority.Secrets {
	if s := m.state.Ready(); s != nil && s.Head.Salt == salt {
		return s.Secrets
	}
	m.keys.mu.Lock()
	defer m.keys.mu.Unlock()
	for _, mv := range m.keys.pending {
		if mv.Link.Salt == salt {
			return mv.Secrets
		}
	}
	if o := m.keys.opened; o != nil && o.salt == salt {
		return o.secrets
	}
	return nil
}

// Mesh returns the mesh CA with this key; nil if it is not here.
func (m Memory) Mesh(key identity.KeyID) *pki.MeshCA {
	if s := m.state.Ready(); s != nil && s.MeshKey == key {
		return s.MeshCA()
	}
	m.keys.mu.Lock()
	defer m.keys.mu.Unlock()
	for _, mv := range m.keys.pending {
		if mv.Link.MeshCAKey == key {
			return mv.Mesh
		}
	}
	for _, p := range m.keys.prepared {
		if p.Mesh.KeyID() == key {
			return p.Mesh
		}
	}
	return nil
}
