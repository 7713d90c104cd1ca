package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// programName is what the program is called in pages, in JSON and in logs.
const programName = "fealty"

// calledAs returns the name under which somebody can run this program again from
// where it was called: as it was typed, or alone where the PATH finds the same file.
func calledAs(argv0 string) string {
	if argv0 == "" {
		return programName
	}
	if filepath.IsAbs(argv0) && found(filepath.Base(argv0), argv0) {
		argv0 = filepath.Base(argv0)
	}
	return shellWord(argv0)
}

// shellWord returns text as one word of a shell's command line.
func shellWord(text string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_./+@%:,=-", r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// found reports whether the PATH leads from name to file.
func found(name, file string) bool {
	path, err := exec.LookPath(name)
	if err != nil {
		return false
	}
	a, err := os.Stat(path)
	if err != nil {
		return false
	}
	b, err := os.Stat(file)
	return err == nil && os.SameFile(a, b)
}

// commandsIn finds the commands of this program in a text, given the words that follow
// its name. A path before the name is another program's, or was put there already.
func commandsIn(words []string) *regexp.Regexp {
	return regexp.MustCompile(`(^|[^A-Za-z0-9_./-])` + programName + ` (--[a-z]|(?:` + strings.Join(words, "|") + `)\b)`)
}

// called returns a text for a person, with the commands in it under the name by
// which this program was called: they are there to be pasted. What programs read
// (JSON, YAML) has the plain name, whoever asked.
func (c *CLI) called(text string) string {
	if c.commands == nil {
		return text
	}
	return c.commands.ReplaceAllString(text, "${1}"+strings.ReplaceAll(c.env.Program, "$", "$$")+" $2")
}
