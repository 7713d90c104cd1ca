package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/term"
)

// confirm asks whether to go on with something that takes something away. Where
// nobody can be asked, it has to be said beforehand.
func (c *CLI) confirm(ctx context.Context, command, risk string, yes bool) error {
	if yes {
		return nil
	}
	refuse := func(problem string) error {
		return explain.New(explain.NotConfirmed, "command", command, "risk", risk, "problem", problem)
	}
	if !c.env.IsTerminal(c.env.Stdin) {
		return refuse("there is no terminal to ask on")
	}
	fmt.Fprintf(c.env.Stderr, "fealty: %s\nfealty: go on? [y/N] ", term.Sanitize(c.called(risk)))
	answer := make(chan string, 1)
	// The read ends with the process: a terminal cannot be told to stop waiting.
	go func() {
		line, _ := bufio.NewReader(c.env.Stdin).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(c.env.Stderr)
		return ctx.Err()
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
		return refuse("the answer was no")
	}
}

// planned prints what a dry run would have done.
func (c *CLI) planned(what string) {
	c.talk("dry run: %s; nothing was changed", what)
}
