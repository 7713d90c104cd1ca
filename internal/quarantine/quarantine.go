// Package quarantine does not believe a report that replaces a whole set, and would leave less than a tenth of it, until
// three in a row say so.
//
// A sender whose cache is empty, or that was taken over, says that nothing is wanted any
// more, in a message that is valid in every other respect. So a replacement that keeps
// less than a tenth of what stands is held, and what stood goes on to count. It is
// believed when three in a row say so: a sender that means it says it again with its next
// message, and one that was wrong for a moment does not.
//
// Small things may go at once: below [AtLeast] a tenth says nothing.
package quarantine

// When a replacement is held.
const (
	// AtLeast is how much has to stand for a replacement to be held.
	AtLeast = 10
	// KeepPercent is how much of what stands a replacement has to keep.
	KeepPercent = 10
	// Confirmations is how many replacements in a row have to say the same; the last of them
	// is believed.
	Confirmations = 3
)

// Guard counts the replacements of one sender. The zero value is ready. It belongs to one
// goroutine.
type Guard struct{ suspicious int }

// Drops reports whether a replacement that keeps kept of had keeps too little. Both count
// the same things; neither is negative.
func Drops(had, kept int) bool {
	// kept < had*KeepPercent/100 without a product that could overflow.
	return had >= AtLeast && kept < had/100*KeepPercent+ceil(had%100*KeepPercent, 100)
}

func ceil(n, by int) int { return (n + by - 1) / by }

// Judge takes the next replacement of the sender, and reports whether it is believed.
// drops says that it keeps too little, as of [Drops].
func (g *Guard) Judge(drops bool) (believed bool) {
	if !drops {
		g.suspicious = 0
		return true
	}
	if g.suspicious++; g.suspicious < Confirmations {
		return false
	}
	g.suspicious = 0
	return true
}

// Held returns how many replacements in a row were held since the last that was believed.
func (g *Guard) Held() int { return g.suspicious }
