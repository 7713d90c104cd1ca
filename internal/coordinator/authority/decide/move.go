package decide

// Stage is a step of a move of the head.
type Stage int

const (
	// Make the mesh CA key, if the move begins an authority epoch. Its hash stands in
	// the transition, which therefore comes after it.
	Make Stage = iota
	// Seal it by the keepers, with what else must be found by who comes up at the new
	// head.
	Seal
	// Prepare ready peers: they get the key, and adopt it when the head appears.
	Prepare
	// Swap the head for its child, after the blobs.
	Swap
	// Adopt the new head.
	Adopt
	// Keep what was made: the head may have moved, or may yet. A coordinator that
	// sees it adopts it.
	Keep
	// Drop what was made: the head did not move to it, and never will.
	Drop
	// Done: nothing is left to do.
	Done
)

func (s Stage) String() string {
	return [...]string{"make", "seal", "prepare", "swap", "adopt", "keep", "drop", "done"}[s]
}

// Result is how a stage ended.
type Result int

const (
	// OK: it did what it says.
	OK Result = iota
	// Failed: it did not, and changed nothing that counts.
	Failed
	// Conflict: somebody else moved the head.
	Conflict
	// Unknown: the answer was lost, and reading did not settle it.
	Unknown
	// Overtaken: the head moved, and somebody moved it on before it could be adopted.
	Overtaken
)

// Move orders a change of the head. The order is the proof: the key is there before
// the head that names it, so that no crash leaves a head whose key nobody ever had,
// and it is given up only when the head can never come to it. The zero Move is at its
// beginning.
type Move struct{ stage Stage }

// Stage returns what is to be done now.
func (m *Move) Stage() Stage { return m.stage }

// Ended goes on after the stage ended so.
func (m *Move) Ended(r Result) {
	switch m.stage {
	case Make, Seal:
		m.stage = next(r == OK, m.stage+1, Drop)
	case Prepare:
		m.stage = Swap // a peer without it asks for it
	case Swap:
		switch r {
		case OK:
			m.stage = Adopt
		case Unknown, Overtaken:
			m.stage = Keep
		default:
			m.stage = Drop
		}
	case Adopt:
		m.stage = next(r == OK, Done, Keep)
	default:
		m.stage = Done
	}
}

func next(ok bool, then, otherwise Stage) Stage {
	if ok {
		return then
	}
	return otherwise
}
