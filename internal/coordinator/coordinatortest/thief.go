package coordinatortest

import (
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
)

// stolen are the secrets of a coordinator as a thief has them.
type stolen struct {
	keyring.Handed
	Keys keyring.Keys
}

// handedOver has s seal its secrets to a recipient of this process.
func handedOver(s *authority.State) (recipient *keyring.EphemeralRecipient, h keyring.Handover, sealed []byte) {
	recipient, err := keyring.NewEphemeral()
	if err == nil {
		h = keyring.Handover{Purpose: "theft", Cluster: s.Manifest.Cluster, From: "the cluster", To: "a thief",
			Head: s.Head.Hash}
		sealed, err = s.Secrets.HandOver(recipient.Public(), h, s.MeshCA())
	}
	if err != nil {
		panic(err)
	}
	return recipient, h, sealed
}

// Steal takes the secrets of s, as whoever holds one of its keepers can.
func Steal(s *authority.State) stolen {
	recipient, h, sealed := handedOver(s)
	handed, err := recipient.TakeOver(h, sealed)
	if err != nil {
		panic(err)
	}
	keys, err := handed.Seed.Derive(s.Head.Salt[:])
	if err != nil {
		panic(err)
	}
	return stolen{handed, keys}
}

// Brought are the secrets of s as they come to another coordinator: without derived keys.
func Brought(s *authority.State) (*authority.Secrets, *authority.MeshKey) {
	secrets, mesh, err := authority.TakeOver(handedOver(s))
	if err != nil {
		panic(err)
	}
	return secrets, mesh
}

// SecretsOf are those of a seed that a test knows.
func SecretsOf(seed keyring.Seed, salt history.Salt) *authority.Secrets {
	shares, err := keyring.Split(seed, 2, 2)
	if err != nil {
		panic(err)
	}
	secrets, err := authority.Combine(2, shares)
	if err == nil {
		err = secrets.Derive(salt)
	}
	if err != nil {
		panic(err)
	}
	return secrets
}
