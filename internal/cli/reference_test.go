package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/reference"
)

// The reference in the docs is the one that this code makes.
func TestReferenceIsCurrent(t *testing.T) {
	pages, err := reference.Pages(cli.Tree())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range command.SortedKeys(pages) {
		have, err := os.ReadFile(filepath.Join("../../docs/reference", name))
		if err != nil || !bytes.Equal(have, pages[name]) {
			t.Errorf("docs/reference/%s is not current: run make generate (%v)", name, err)
		}
	}
}
