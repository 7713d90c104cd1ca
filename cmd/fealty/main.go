// Command fealty is the one binary: a coordinator, an agent, and the commands of
// those who run them.
package main

import (
	"os"

	"github.com/fealty-io/fealty/internal/cli"
)

func main() { os.Exit(cli.Main()) }
