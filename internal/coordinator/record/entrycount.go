package record

import "github.com/fealty-io/fealty/internal/history"

// CountPrefix is the family of the counts of members under admission entries.
const CountPrefix = "count/"

// CountKey returns where the members under an entry are counted.
func CountKey(entry string) string { return CountPrefix + entry }

// EntryCount counts the members under an entry that has a maximum. It holds under
// one head of the history: another manifest may give the entry other members, so
// the first admission under another head counts anew.
type EntryCount struct {
	Members int          `json:"members"`
	Head    history.Hash `json:"head"`
}
