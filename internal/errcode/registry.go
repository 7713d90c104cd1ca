package errcode

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
)

// texts is all that is said of the codes; its introduction says how it is written.
//
//go:embed codes.md
var texts string

// registry returns all entries in the order of their codes. The page is parsed when the first error is told, so
// that a command which tells none does not wait for it. That the page can be parsed is for the tests.
var registry = sync.OnceValue(func() []Entry {
	entries, err := parse(texts)
	if err != nil {
		panic("errcode: codes.md: " + err.Error())
	}
	return entries
})

// Codes returns all codes, sorted.
func Codes() []Code {
	var out []Code
	for _, e := range registry() {
		out = append(out, e.Code)
	}
	return out
}

// Lookup returns the entry of a code.
func Lookup(code Code) (Entry, bool) { return find(registry(), code) }

func find(entries []Entry, code Code) (Entry, bool) {
	i, ok := slices.BinarySearchFunc(entries, code, func(e Entry, code Code) int {
		return strings.Compare(string(e.Code), string(code))
	})
	if !ok {
		return Entry{}, false
	}
	return entries[i], true
}

// parse returns the entries of a page: after an introduction it has a section for each code, in their order. The texts
// are parts of the page.
func parse(page string) ([]Entry, error) {
	var entries []Entry
	_, sections, _ := strings.Cut(page, "\n## ")
	for section := range strings.SplitSeq(sections, "\n## ") {
		heading, body, _ := strings.Cut(section, "\n")
		e, err := parseSection(heading, body)
		if n := len(entries); err == nil && n > 0 && entries[n-1].Code >= e.Code {
			err = fmt.Errorf("it stands behind that of %s, and sections are in the order of their codes", entries[n-1].Code)
		}
		if err != nil {
			return nil, fmt.Errorf("section %q: %w", heading, err)
		}
		entries = append(entries, e)
	}
	for _, e := range entries {
		if _, ok := find(entries, e.Of); !ok && e.Of != "" {
			return nil, fmt.Errorf("section of %s: of: there is no code %s", e.Code, e.Of)
		}
	}
	return entries, nil
}

// parseSection returns the entry of a section: one line for each key, a blank line around them, and the page.
func parseSection(heading, body string) (Entry, error) {
	code, title, _ := strings.Cut(heading, ": ")
	keys, page, _ := strings.Cut(strings.TrimPrefix(body, "\n"), "\n\n")
	e := Entry{Code: Code(code), Title: title, Page: strings.TrimSpace(page)}
	if e.Title == "" || e.Page == "" {
		return e, errors.New("it has no title or no page: want FE-X000: TITLE, a blank line, the keys, a blank line, and the page")
	}
	var exit, rpc, of string
	fields := map[string]*string{"what": &e.What, "why": &e.Why, "do": &e.Do, "exit": &exit, "rpc": &rpc, "of": &of}
	for line := range strings.SplitSeq(keys, "\n") {
		key, value, _ := strings.Cut(line, ": ")
		field := fields[strings.TrimPrefix(key, "- ")]
		switch {
		case field == nil || !strings.HasPrefix(key, "- "):
			return e, fmt.Errorf("unknown key in %q", line)
		case *field != "":
			return e, fmt.Errorf("%q is the second of its key", line)
		case value == "" || value != strings.TrimSpace(value):
			return e, fmt.Errorf("%q has no value, or space around it", line)
		}
		*field = value
	}
	for _, key := range []string{"what", "why", "do", "exit", "rpc"} {
		if *fields[key] == "" {
			return e, fmt.Errorf("it has no %s", key)
		}
	}
	e.Of = Code(of)
	for _, row := range Exits() {
		if row.Words == exit && row.Exit != ExitOK {
			e.Exit = row.Exit
		}
	}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		if c.String() == rpc {
			e.GRPC = c
		}
	}
	if e.Exit == ExitOK || e.GRPC == codes.OK {
		return e, fmt.Errorf("exit %q or rpc %q is no failure that is known", exit, rpc)
	}
	return e, nil
}
