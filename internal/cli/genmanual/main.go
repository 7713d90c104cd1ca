// Command genmanual writes the man pages and the completions of shells that a release brings: what make release runs.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/reference"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: genmanual DIR RELEASE DATE")
		os.Exit(2)
	}
	if err := generate(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "genmanual:", err)
		os.Exit(1)
	}
}

// generate writes man/*.1 and completions/* below dir.
func generate(dir, release, date string) error {
	files := make(map[string][]byte)
	for name, page := range reference.ManPages(cli.Tree(), release, date) {
		files[filepath.Join("man", name)] = page
	}
	for shell, name := range map[string]string{"bash": "fealty.bash", "zsh": "_fealty", "fish": "fealty.fish"} {
		var script, talk bytes.Buffer
		env := program.Env{Args: []string{"completion", shell}, Stdout: &script, Stderr: &talk, Release: release}
		if status := cli.Run(context.Background(), env); status != 0 {
			return fmt.Errorf("fealty completion %s ended with status %d: %s", shell, status, talk.String())
		}
		files[filepath.Join("completions", name)] = script.Bytes()
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
