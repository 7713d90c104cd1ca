package layout

import (
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// corporaBytes is how much of the repository inputs of fuzz targets may be.
const corporaBytes = 1 << 20

// Inputs that fuzzing found are kept beside the target that takes them, and are few: who clones the repository gets all
// of them. tools/fuzz.sh chooses them.
func TestKeptInputsAreSmall(t *testing.T) {
	const root = "../.."
	files, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	sources, err := testSources(root, files)
	if err != nil {
		t.Fatal(err)
	}
	targets := make(map[string]bool) // folder of inputs
	for dir, all := range sources {
		for _, f := range all {
			for _, d := range f.syntax.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Fuzz") {
					targets[filepath.Join(filepath.FromSlash(dir), "testdata", "fuzz", fn.Name.Name)] = true
				}
			}
		}
	}
	if len(targets) == 0 {
		t.Fatal("no fuzz target was found")
	}
	total, kept := int64(0), 0
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != root && (strings.HasPrefix(base, ".") || base == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil || filepath.Base(filepath.Dir(folder)) != "fuzz" {
			return err
		}
		if !targets[folder] {
			t.Errorf("%s is of no fuzz target", folder)
		}
		info, err := os.Stat(name)
		if err == nil {
			total, kept = total+info.Size(), kept+1
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d inputs of %d targets, %d bytes", kept, len(targets), total)
	if total > corporaBytes {
		t.Errorf("inputs of fuzz targets are %d bytes, want %d at most: remove some, and have tools/fuzz.sh choose anew", total, corporaBytes)
	}
}
