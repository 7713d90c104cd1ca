package store

import "iter"

// Bounds of a transaction that is one of many because the work was cut. A [Tx] may be larger, for
// what has to happen at once. One of this size goes into a request of any engine's servers as
// it is, where the engine that takes least in one would write a larger one aside first.
const (
	CutOps   = 96      // conditions, puts and deletes together
	CutBytes = 1 << 20 // keys and values together
)

// Room is what a transaction that is one of many still takes. A value in it may be longer than
// [CutBytes]: then it goes alone.
type Room struct{ ops, bytes int }

// RoomBeside returns the room that there is beside what tx has.
func RoomBeside(tx Tx) Room {
	return RoomWithin(tx, CutOps, CutBytes)
}

// RoomWithin returns the room beside what tx has in a transaction of so many operations and bytes.
func RoomWithin(tx Tx, ops, bytes int) Room {
	return Room{ops - len(tx.If) - len(tx.Put) - len(tx.Delete), bytes - tx.Size()}
}

// Take reports whether there is room for operations with so many bytes of keys and values, and
// takes it. If there is not, all of it is left.
func (r *Room) Take(ops, bytes int) bool {
	if ops > r.ops || bytes > r.bytes {
		return false
	}
	r.ops, r.bytes = r.ops-ops, r.bytes-bytes
	return true
}

// Cut yields list in runs, in its order, each as long as there is room for beside what every
// transaction has. cost says what an item takes of it. A run has one item at least, whatever that
// takes.
func Cut[T any](list []T, every Tx, cost func(T) (ops, bytes int)) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for len(list) > 0 {
			n := 0
			for room := RoomBeside(every); n < len(list); n++ {
				if ops, bytes := cost(list[n]); !room.Take(ops, bytes) {
					break
				}
			}
			n = max(1, n)
			if !yield(list[:n:n]) {
				return
			}
			list = list[n:]
		}
	}
}

// DeleteCost is the cost of deleting an entry as it was read, on the condition that it is still so.
func DeleteCost(e Entry) (ops, bytes int) { return 2, 2 * len(e.Key) }

// ReplaceCost is the cost of writing an entry anew, on the condition that it is as it was read, with
// a value that is no longer.
func ReplaceCost(e Entry) (ops, bytes int) { return 2, 2*len(e.Key) + len(e.Value) }
