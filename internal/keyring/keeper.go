package keyring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/fealty-io/fealty/internal/platform/durable"
)

// Keeper seals secrets so that a coordinator can open them again after a restart,
// without a human. Implementations may be called concurrently.
type Keeper interface {
	// KeyID names the key that is here without revealing it. place says whom a program
	// is asked for. Errors match [ErrNoKey] if there is none yet.
	KeyID(ctx context.Context, place Place) (KeyID, error)

	// MakeKey makes a key if there is none, and says whether it did. Only who knows that
	// nothing is sealed under another one may ask for that. A program's key is the
	// program's business: there is always one.
	MakeKey(ctx context.Context) (made bool, err error)

	// Seal encrypts plaintext, at most [MaxPlaintextBytes], so that it opens only
	// in the same place. The caller keeps plaintext, and wipes it. It makes no key:
	// errors match [ErrNoKey] if there is none.
	Seal(ctx context.Context, place Place, plaintext []byte) ([]byte, error)

	// Open returns the plaintext of what Seal made for the same place; the caller
	// wipes it. Errors match [ErrNotOpened] if sealed is no such thing, and
	// [ErrOtherKey] if it was sealed under another key.
	Open(ctx context.Context, place Place, sealed []byte) ([]byte, error)
}

// KeyID names a key of a keeper: 1 to [MaxKeyIDBytes] letters, digits, '.', '_' and
// '-', the first a letter or a digit.
type KeyID string

// MaxKeyIDBytes bounds the name of a keeper's key.
const MaxKeyIDBytes = 64

// ProgramKey is the name of the key of a program that prints none.
const ProgramKey KeyID = "exec"

// Valid reports whether id has the form of a KeyID.
func (id KeyID) Valid() bool {
	if id == "" || len(id) > MaxKeyIDBytes || strings.ContainsRune("._-", rune(id[0])) {
		return false
	}
	return !strings.ContainsFunc(string(id), func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._-", r))
	})
}

// MaxPlaintextBytes bounds what a keeper seals.
const MaxPlaintextBytes = 16 << 10

// Purpose says what a sealed secret is.
type Purpose string

const (
	PurposeSeed Purpose = "seed"    // the seed
	PurposeMesh Purpose = "mesh-ca" // key and certificate of a mesh CA
)

// Place is where a sealed secret belongs. It is authenticated with the secret.
type Place struct {
	Cluster   string   // the cluster's id. Required
	Purpose   Purpose  // required
	Owner     string   // the seed share owner's name in the manifest. Required
	SeedEpoch uint64   // of the seed, from 1; that of a mesh CA's too
	Head      [32]byte // hash of the head of the history; zero exactly for PurposeSeed, which outlives heads
}

var (
	// ErrNotOpened is matched when sealed bytes are damaged, forged, or sealed for
	// another place.
	ErrNotOpened = errors.New("sealed secret does not open")

	// ErrOtherKey is matched when sealed bytes were sealed under another key than
	// the keeper has.
	ErrOtherKey = errors.New("sealed under another key")

	// ErrNoKey is matched when a keeper has no key on this machine. It matches
	// fs.ErrNotExist too.
	ErrNoKey = fmt.Errorf("keeper has no key here: %w", fs.ErrNotExist)

	// ErrNoKeeper is matched when the owner of a share has no keeper that this
	// program can ask: every [*NoKeeperError].
	ErrNoKeeper = errors.New("no keeper")
)

// Owner is what the manifest says of a seed share owner. It has either a
// recipient (a person's age or SSH public key) or a keeper.
type Owner struct {
	Name, Recipient, Keeper string
}

// NoKeeperError says why an owner's share cannot be sealed or opened without the
// owner.
type NoKeeperError struct {
	Owner  string
	Scheme string // the keeper's scheme; empty if the owner has a recipient instead
}

func (e *NoKeeperError) Error() string {
	if e.Scheme == "" {
		return fmt.Sprintf("keyring: seed share owner %q is a person with a key, and no keeper: without that person the share does not open", e.Owner)
	}
	return fmt.Sprintf("keyring: seed share owner %q has a keeper of scheme %q, and this program has file and exec: use a keeper such as file:/etc/fealty/seed.key, or a program as exec:/usr/local/bin/seed-keeper", e.Owner, e.Scheme)
}

// Is reports that a NoKeeperError matches [ErrNoKeeper].
func (e *NoKeeperError) Is(target error) bool { return target == ErrNoKeeper }

// KeeperOf returns the keeper of owner: for file:PATH one that keeps its files in
// fsys, for exec:PATH one that runs a program of this machine. It touches nothing
// yet.
//
// Errors: [*NoKeeperError] for owners without a keeper and for other schemes; a
// plain one for a malformed path.
func KeeperOf(owner Owner, fsys durable.FS) (Keeper, error) {
	if owner.Keeper == "" {
		return nil, &NoKeeperError{Owner: owner.Name}
	}
	scheme, name, _ := strings.Cut(owner.Keeper, ":")
	if scheme != "file" && scheme != "exec" {
		return nil, &NoKeeperError{Owner: owner.Name, Scheme: scheme}
	}
	// The manifest is one for all coordinators, wherever they were started.
	if !path.IsAbs(name) || path.Clean(name) != name || name == "/" {
		return nil, fmt.Errorf("keyring: keeper %q of seed share owner %q: want %s: and an absolute, clean path, such as file:/etc/fealty/seed.key", owner.Keeper, owner.Name, scheme)
	}
	if scheme == "exec" {
		return &ExecKeeper{name: name, timeout: ExecKeeperTimeout}, nil
	}
	return &FileKeeper{name: name, fsys: fsys}, nil
}

// ErrExposedFolder is matched when others than root and this user can change the
// folder of a key file.
var ErrExposedFolder = errors.New("folder of a key file can be changed by others")

// Examine says why the keeper of owner could not be used by this user, as far as
// that shows without sealing or opening anything: the path; for exec: all that is
// looked at before a program is run; for file: the key file, if it is there, and
// its folder. It runs no program and makes no key.
//
// Errors: those of [KeeperOf]; [ErrKeeperProgram]; [ErrKeyFile], which is
// fs.ErrNotExist too if the folder is not there; [ErrExposedFolder], with which
// the keeper works.
func Examine(owner Owner) error {
	k, err := KeeperOf(owner, durable.OS())
	if err != nil {
		return err
	}
	switch k := k.(type) {
	case *ExecKeeper:
		_, err = k.check()
	case *FileKeeper:
		err = k.examine()
	}
	return err
}

func (p Place) check() error {
	switch {
	case p.Cluster == "" || p.Owner == "":
		return fmt.Errorf("keyring: a sealed secret belongs to cluster %q and owner %q: both must be named", p.Cluster, p.Owner)
	case len(p.Cluster) > 255 || len(p.Owner) > 255:
		return errors.New("keyring: a sealed secret belongs to a cluster and an owner of at most 255 bytes each")
	case p.Purpose != PurposeSeed && p.Purpose != PurposeMesh:
		return fmt.Errorf("keyring: unknown purpose %q of a sealed secret", p.Purpose)
	case p.SeedEpoch == 0:
		return errors.New("keyring: seed epochs count from 1")
	case (p.Head == [32]byte{}) != (p.Purpose == PurposeSeed):
		return errors.New("keyring: a sealed mesh CA belongs to a head of the history, and a sealed seed to none")
	}
	return nil
}

// placeVersion begins the authenticated encoding of a Place.
const placeVersion = "fealty/v1/sealed"

// encode returns what is authenticated with a sealed secret. Every field has its
// length before it, in 8 bytes, big endian, so that no two places encode alike.
func (p Place) encode() []byte {
	var epoch [8]byte
	binary.BigEndian.PutUint64(epoch[:], p.SeedEpoch)
	var out []byte
	for _, field := range [][]byte{[]byte(placeVersion), []byte(p.Cluster), []byte(p.Purpose), []byte(p.Owner), epoch[:], p.Head[:]} {
		out = binary.BigEndian.AppendUint64(out, uint64(len(field)))
		out = append(out, field...)
	}
	return out
}
