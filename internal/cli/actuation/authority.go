package actuation

import (
	"context"
	"crypto/ed25519"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/pflag"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki/pemfile"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/reload"
)

// maxKeys bounds a file of keys, in bytes, and maxKeyBlocks the keys in it.
const (
	maxKeys      = 16 << 10
	maxKeyBlocks = 64
)

// authorityFlags say whose grants and assignments count.
type authorityFlags struct{ key, cluster string }

func (f *authorityFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.key, "authority-key", "",
		"the public keys that sign grants and assignments, in this PEM file")
	flags.StringVar(&f.cluster, "authority-cluster", "",
		"the cluster whose grants and assignments count; else that of the certificate")
}

// authority returns whose grants and assignments count: by --authority-key, or by what the
// agent beside it believes; else the zero one. who is nil without TLS.
func (f *authorityFlags) authority(w World, who *self) (fence.Authority, error) {
	switch {
	case f.key != "" && who != nil && who.agent != nil:
		return fence.Authority{}, badValue("--authority-key", f.key, "the agent's folder says whose grants count",
			"one of them")
	case who != nil && who.agent != nil:
		return who.agent.Authority(), nil
	case f.key == "":
		return fence.Authority{}, nil
	}
	a := fence.Authority{Cluster: f.cluster}
	if a.Cluster == "" && who != nil {
		a.Cluster = who.id.Cluster()
	}
	if err := identity.CheckCluster(a.Cluster); err != nil {
		return fence.Authority{}, badValue("--authority-cluster", f.cluster, "whose grants count is not known",
			"the cluster's name")
	}
	keys, err := readKeys(w.Within(f.key), f.key)
	if err != nil {
		return fence.Authority{}, err
	}
	var now atomic.Pointer[map[string]ed25519.PublicKey]
	now.Store(&keys)
	w.Reload.Add(reload.Part{Name: "the keys in " + f.key, Read: func(context.Context) (string, error) {
		next, err := readKeys(w.Within(f.key), f.key)
		if err != nil {
			return "", err
		}
		before := now.Swap(&next)
		if same := func(a, b ed25519.PublicKey) bool { return a.Equal(b) }; maps.EqualFunc(*before, next, same) {
			return "", nil
		}
		return "the grants and assignments of " + strings.Join(slices.Sorted(maps.Keys(next)), ", ") + " count", nil
	}})
	a.Key = func(id string) (ed25519.PublicKey, bool) { key, ok := (*now.Load())[id]; return key, ok }
	return a, nil
}

// readKeys reads the public keys in a file, which is called name.
func readKeys(path, name string) (map[string]ed25519.PublicKey, error) {
	unusable := func(problem string) error {
		return errcode.New(errcode.KeyFileUnusable, "file", name, "problem", problem)
	}
	text, err := durable.OS().ReadFile(path, maxKeys)
	if err != nil {
		return nil, unusable(err.Error())
	}
	keys := make(map[string]ed25519.PublicKey)
	found, err := pemfile.PublicKeys(text, pemfile.Limits{Bytes: maxKeys, Blocks: maxKeyBlocks})
	if err != nil {
		return nil, unusable(err.Error())
	}
	for _, k := range found {
		key, ok := k.Key.(ed25519.PublicKey)
		if !ok {
			return nil, unusable("it has a public key that is not Ed25519")
		}
		keys[fence.KeyID(key)] = key
	}
	return keys, nil
}
