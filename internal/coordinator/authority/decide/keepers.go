package decide

// Keeper is what a coordinator finds of one keeper of the seed before it moves the
// head. A keeper is one in the manifest, and may have a key on each machine; what it
// sealed stands in the store that all of them share, one copy for each key.
type Keeper struct {
	NewSeed bool // the move makes a seed, of which nothing is sealed yet

	// Copies says that the store holds the seed in force, sealed by this keeper under
	// any key. Of a keeper that the manifest in force does not name it holds none that
	// counts: it was dismissed, or a move that named it did not come into force.
	Copies bool

	Key   KeyHere
	Opens bool // the key that is here opens one of the copies
	Own   bool // one of the copies stands under the id of the key that is here

	// Proven says that the id derives from the key: what stands under it and does not
	// open is damaged. Other ids are claims, and it may be another machine's copy.
	Proven bool
}

// KeyHere says whether a coordinator has a key of a keeper.
type KeyHere int

const (
	KeyMissing KeyHere = iota // there is none
	KeyBroken                 // there may be one, and it cannot be used
	KeyUsable
)

// KeeperAct is what a coordinator does with a keeper when it moves the head.
type KeeperAct int

const (
	// KeepCopies: what is sealed stays as it is. The key that is here, if there is one,
	// opens it.
	KeepCopies KeeperAct = iota
	// KeepForeign: what is sealed stays as it is, and the key that opens it is on
	// another machine or in a backup. Nothing can be sealed here.
	KeepForeign
	// SealOwn: add a copy under the key that is here.
	SealOwn
	// MakeKey and add a copy under it.
	MakeKey
	// RefuseMove: it would leave the machines whose key opens the seed now without
	// their copy, or the keeper without any.
	RefuseMove
)

func (a KeeperAct) String() string {
	return [...]string{"keep the copies", "keep the copies of others", "seal", "make a key and seal", "refuse"}[a]
}

// Act decides. A key is made only where nothing is sealed under another one: people
// were told to back that one up, and a second key in its place would make the backup
// worthless in silence. And no copy under another key is ever replaced; the copies of a
// seed go with it, so a new seed is sealed by who has the key of the old one.
func (k Keeper) Act() KeeperAct {
	switch {
	case k.Key == KeyMissing && !k.Copies:
		return MakeKey
	case k.NewSeed && k.Copies && !k.Opens:
		return RefuseMove
	case k.NewSeed && k.Key == KeyUsable:
		return SealOwn
	case k.Key != KeyUsable && k.Copies:
		return KeepForeign
	case k.Key != KeyUsable:
		return RefuseMove
	case k.Opens && k.Own:
		return KeepCopies
	case k.Own && !k.Proven:
		return KeepForeign
	}
	return SealOwn
}
