package program

import "runtime/debug"

// What tools/release.sh has the linker set. All of them are empty in other builds.
var releaseVersion, releaseCommit, releaseDate string

// A Build says what the program was built from.
type Build struct {
	Release string // such as v0.4.1; devel: it is no release
	Commit  string // of git, in hex; empty: unknown
	Date    string // when the commit was made, in UTC as RFC 3339 has it; empty: unknown
	Changed bool   // files differed from the commit
}

// Built returns what this program was built from: of a release what its maker said, else what the go command
// found in git. Nothing of it is of the clock, so that the same commit gives the same bytes.
func Built() Build {
	if releaseVersion != "" {
		return Build{Release: releaseVersion, Commit: releaseCommit, Date: releaseDate}
	}
	b := Build{Release: "devel"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Release = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		case "vcs.modified":
			b.Changed = s.Value == "true"
		}
	}
	return b
}
