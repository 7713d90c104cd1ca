// Package sealed stores the secrets that keepers encrypted: one copy for each key of each keeper,
// none of which ever overwrites the copy of another key.
//
//	sealed/seed/<seed epoch>/<salt>/<keeper>/<key id>  the seed
//	sealed/mesh/<head>/<keeper>/<key id>               the mesh CA key of a head
//	sealed/root/<seed epoch>/<salt>                    the root certificate, which is public
//
// Releases before key ids wrote one copy for each keeper, without the last part. These stand beside
// the others and count like them; which key opens one is read from it.
//
// None of it needs a MAC: a keeper authenticates what it sealed, and the root certificate its own
// key. Seed and root are named by the salt, which is random for each seed and stands in the
// transition that brings it into force: so of two first sets that race, or one that is tried again
// after an answer was lost, none can overwrite the seed of the other. That would lose the cluster.
package sealed

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/store"
)

// Families of the store.
const (
	Prefix     = "sealed/"
	SeedPrefix = Prefix + "seed/"
	MeshPrefix = Prefix + "mesh/"
	RootPrefix = Prefix + "root/"
)

// MaxCopies bounds the keys under which one keeper has a secret sealed. Each is of a
// machine whose key is another one.
const MaxCopies = 16

// Of says what is sealed: a seed, or the mesh CA key of a head. One of the two is set.
type Of struct {
	SeedEpoch uint64
	Salt      history.Salt
	Head      history.Hash
}

// Seed is the seed that t names.
func Seed(t *history.Transition) Of { return Of{SeedEpoch: t.SeedEpoch, Salt: t.Salt} }

// Mesh is the mesh CA key of a head.
func Mesh(head history.Hash) Of { return Of{Head: head} }

// Under is the prefix of all copies of it.
func (o Of) Under() string {
	if o.SeedEpoch == 0 {
		return fmt.Sprintf("%s%s/", MeshPrefix, o.Head)
	}
	return fmt.Sprintf("%s%d/%x/", SeedPrefix, o.SeedEpoch, o.Salt[:])
}

// Key is where the copy stands that keeper sealed under a key.
func (o Of) Key(keeper string, id keyring.KeyID) string {
	return o.Under() + keeper + "/" + string(id)
}

// FormerKey is where releases before key ids wrote the copy of keeper.
func (o Of) FormerKey(keeper string) string { return o.Under() + keeper }

// RootKey is where the root certificate of the seed stands that t names.
func RootKey(t *history.Transition) string {
	return fmt.Sprintf("%s%d/%x", RootPrefix, t.SeedEpoch, t.Salt[:])
}

// Copy is one copy of a secret.
type Copy struct {
	Keeper string
	ID     keyring.KeyID // of the key that it is sealed under; empty: of none that can be read
	Former bool          // it stands where releases before key ids wrote it
	Entry  store.Entry
}

// Copies returns the copies that keeper sealed, those with a key id first.
func Copies(ctx context.Context, st store.Store, o Of, keeper string) ([]Copy, error) {
	l, err := st.List(ctx, o.Under()+keeper)
	if err != nil {
		return nil, err
	}
	var out []Copy
	for _, e := range l.Entries {
		c, of, ok := Parse(e)
		if ok && of == o && c.Keeper == keeper {
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b Copy) int {
		switch {
		case a.Former == b.Former:
			return strings.Compare(string(a.ID), string(b.ID))
		case a.Former:
			return 1
		}
		return -1
	})
	return out, nil
}

// IDs names the keys of copies, each once.
func IDs(copies []Copy) (ids []keyring.KeyID) {
	for _, c := range copies {
		if c.ID != "" && !slices.Contains(ids, c.ID) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// Parse reads what e is a copy of; it does not read the root certificate as one.
func Parse(e store.Entry) (Copy, Of, bool) {
	var o Of
	rest, seed := strings.CutPrefix(e.Key, SeedPrefix)
	if seed {
		epoch, after, _ := strings.Cut(rest, "/")
		salt, after, ok := strings.Cut(after, "/")
		n, err := strconv.ParseUint(epoch, 10, 64)
		if !ok || err != nil || n == 0 || !unhex(o.Salt[:], salt) {
			return Copy{}, Of{}, false
		}
		o.SeedEpoch, rest = n, after
	} else if mesh, ok := strings.CutPrefix(e.Key, MeshPrefix); ok {
		head, after, ok := strings.Cut(mesh, "/")
		if !ok || !unhex(o.Head[:], head) {
			return Copy{}, Of{}, false
		}
		rest = after
	} else {
		return Copy{}, Of{}, false
	}
	c := Copy{Entry: e}
	keeper, id, named := strings.Cut(rest, "/")
	c.Keeper = keeper
	if named {
		c.ID = keyring.KeyID(id)
		return c, o, keeper != "" && c.ID.Valid()
	}
	c.Former = true
	c.ID, _ = keyring.SealedUnder(e.Value) // damaged: it is a copy all the same, which nothing opens
	return c, o, keeper != ""
}

func unhex(into []byte, text string) bool {
	b, err := hex.DecodeString(text)
	return err == nil && copy(into, b) == len(into) && len(b) == len(into)
}

// ErrMeanwhile is matched when somebody wrote a copy in the same place meanwhile.
var ErrMeanwhile = errors.New("another copy was written meanwhile")

// Write writes a copy under key, in the place of the one that was read at version was;
// 0: there was none. It holds only while the head of the history is at version head: who
// is late writes nothing that the head dismissed. So a sweep after the head has moved
// finds everything.
//
// Errors: [ErrMeanwhile]; those of [store.Store.Commit], among them a conflict: the head
// moved.
func Write(ctx context.Context, st store.Store, head store.Revision, key string, was store.Revision, value []byte) error {
	tx := store.Tx{
		ID:  store.NewTxID(),
		If:  []store.Condition{{Key: history.HeadKey, Version: head}, {Key: key, Version: was}},
		Put: []store.Write{{Key: key, Value: value}},
	}
	_, err := st.Commit(ctx, tx)
	if errors.Is(err, store.ErrUnknownOutcome) {
		_, err = st.Commit(ctx, tx) // once more is harmless
	}
	if conflict, ok := errors.AsType[*store.ConflictError](err); ok && conflict.Key == key {
		return fmt.Errorf("%w: %w", ErrMeanwhile, err)
	}
	return err
}

// Gone returns those of entries, all under [Prefix], that nobody may need any more at a
// head: copies of other seeds than its own, and of keepers that it does not name; the
// mesh CA keys of heads before it; and roots of seeds before it. A copy written after
// the head belongs to a move that is under way, and stays; so does a seed that is to
// follow.
func Gone(entries []store.Entry, at *history.Link, version store.Revision, keepers []string) (gone []store.Entry) {
	for _, e := range entries {
		c, of, ok := Parse(e)
		switch {
		case ok && of.SeedEpoch > at.SeedEpoch:
		case ok && of == Seed(&at.Transition), ok && of == Mesh(at.Hash):
			if !slices.Contains(keepers, c.Keeper) && e.Version < version {
				gone = append(gone, e)
			}
		case ok && of.SeedEpoch != 0:
			// Of a seed that was replaced, or that never came into force: what was written
			// for one of this epoch can come into force no more.
			gone = append(gone, e)
		case ok:
			if e.Version < version {
				gone = append(gone, e)
			}
		case strings.HasPrefix(e.Key, RootPrefix):
			epoch, _, _ := strings.Cut(strings.TrimPrefix(e.Key, RootPrefix), "/")
			if n, err := strconv.ParseUint(epoch, 10, 64); err == nil && (n < at.SeedEpoch || n == at.SeedEpoch && e.Key != RootKey(&at.Transition)) {
				gone = append(gone, e)
			}
		}
	}
	return gone
}
