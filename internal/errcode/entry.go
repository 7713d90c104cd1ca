package errcode

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// Exit is the exit status of a command. The numbers are promised to scripts.
type Exit int

// The fixed table of exit statuses.
const (
	ExitOK             Exit = 0
	ExitFailed         Exit = 1
	ExitUsage          Exit = 2
	ExitConfig         Exit = 3
	ExitUnreachable    Exit = 4
	ExitDenied         Exit = 5
	ExitRefused        Exit = 6 // by a safety rule
	ExitConflict       Exit = 7
	ExitNotFound       Exit = 8
	ExitDegraded       Exit = 9
	ExitUnhealthy      Exit = 10
	ExitOutcomeUnknown Exit = 11
	ExitWaitRanOut     Exit = 12
	ExitInterrupted    Exit = 130
)

// String returns the status in words.
func (x Exit) String() string {
	for _, row := range Exits() {
		if row.Exit == x {
			return row.Words
		}
	}
	return fmt.Sprintf("exit status %d", int(x))
}

// ExitRow is a row of the table of exit statuses.
type ExitRow struct {
	Exit  Exit
	Words string
}

// Exits returns the whole table, in order.
func Exits() []ExitRow {
	return []ExitRow{
		{ExitOK, "ok"},
		{ExitFailed, "failed"},
		{ExitUsage, "usage"},
		{ExitConfig, "config"},
		{ExitUnreachable, "unreachable"},
		{ExitDenied, "denied"},
		{ExitRefused, "refused by a safety rule"},
		{ExitConflict, "conflict"},
		{ExitNotFound, "not found"},
		{ExitDegraded, "degraded"},
		{ExitUnhealthy, "unhealthy"},
		{ExitOutcomeUnknown, "outcome unknown"},
		{ExitWaitRanOut, "wait ran out"},
		{ExitInterrupted, "interrupted"},
	}
}

// Area is what the letter of a code stands for.
type Area struct {
	Letter byte
	Title  string
}

// Areas returns all areas, by letter.
func Areas() []Area {
	return []Area{
		{'A', "authorization"},
		{'C', "credentials and certificates"},
		{'D', "desired config"},
		{'F', "fencing"},
		{'H', "history and manifest"},
		{'J', "join"},
		{'K', "keys and keepers"},
		{'L', "leadership"},
		{'M', "membership"},
		{'N', "node and agent"},
		{'P', "providers"},
		{'R', "recovery"},
		{'S', "store"},
		{'T', "token"},
		{'U', "usage and configuration"},
		{'X', "transport"},
	}
}

// Entry is all that is known of a code.
type Entry struct {
	Code  Code
	Title string
	// The three lines are What, Why and Do, one sentence each, with {name} in place
	// of a value, or {name|words to use where it is not known}.
	What, Why, Do string
	Exit          Exit
	GRPC          codes.Code
	// Of is the wider code that this one is a case of; empty: none. errors.Is matches it too. A peer is told
	// both, so that one of a release that does not know this code goes by the wider one.
	Of Code
	// Page says more: when it happens, what it protects, how to mend it.
	Page string
}

// Text returns the whole page of a code, as Markdown.
func (e Entry) Text() string {
	// A placeholder reads as its name, so that the page shows which values a
	// message has.
	shown := make(map[string]string)
	for _, name := range e.fieldNames() {
		shown[name] = "<" + name + ">"
	}
	// The advice may be decided case by case: the page has what is said in most.
	for _, p := range Parse(e.Do) {
		if p.Words != "" && slices.Contains([]string{"do", "remedy", "ways", "look"}, p.Name) {
			shown[p.Name] = p.Words
		}
	}
	lines := (&Error{Code: e.Code, What: Fill(e.What, shown), Why: Fill(e.Why, shown),
		Do: Fill(e.Do, shown)}).Lines()
	return fmt.Sprintf("# %s: %s\n\n```\n%s\n```\n\n%s\n\nExit status of a command: %d (%s). Status of an RPC: %s.\n",
		e.Code, e.Title, strings.Join(lines[:], "\n"), e.Page, int(e.Exit), e.Exit, e.GRPC)
}

// unknown stands for a code that this release does not know: one of a newer
// peer. What a peer says is no part of a template: braces in it are shown as question marks.
func unknown(code Code) Entry {
	shown := strings.NewReplacer("{", "?", "}", "?").Replace(clean(string(code), maxKeyBytes))
	return Entry{
		Code:  code,
		Title: "a code of another release",
		What:  "{message|the call failed}",
		Why:   "the other side gave a code that this release does not know",
		Do:    "look it up with the other side's release: fealty explain " + shown,
		Exit:  ExitFailed,
		GRPC:  codes.Unknown,
	}
}
