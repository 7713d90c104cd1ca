package cli

import (
	"regexp"
	"strings"
)

// programName is what the program is called in pages, in JSON and in logs.
const programName = "fealty"

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
