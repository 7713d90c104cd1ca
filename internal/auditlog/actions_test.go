package auditlog_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// Whoever asks for an action that is not in the list is told so: the list has all that the code writes, and
// nothing else.
func TestActionsAreThoseOfTheCode(t *testing.T) {
	var written []string
	for _, k := range []history.Kind{history.KindGenesis, history.KindSet, history.KindRekey, history.KindReshare,
		history.KindReseed, history.KindRestore} {
		written = append(written, "manifest."+string(k))
	}
	for _, k := range scheduler.Kinds() {
		written = append(written, "machine."+string(k))
	}
	sorts := make(map[string]bool)
	for _, a := range auditlog.Actions() {
		sort, _, _ := strings.Cut(a, ".")
		sorts[sort] = true
	}
	// A literal of such a form in these folders is an action: of a file or a socket it is another form of name.
	literal := regexp.MustCompile(`"([a-z]+(?:\.[a-z]+)+)"`)
	files := regexp.MustCompile(`\.(sock|lock|key|a|b|json|yaml|pem|log|proto)$`)
	for _, root := range []string{"../coordinator", "../shard"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range literal.FindAllStringSubmatch(string(text), -1) {
				sort, _, _ := strings.Cut(m[1], ".")
				if !files.MatchString(m[1]) && (sorts[sort] || strings.Contains(string(text), `Action: "`+m[1])) {
					written = append(written, m[1])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(written)
	if written = slices.Compact(written); !slices.Equal(written, auditlog.Actions()) {
		t.Errorf("the code writes\n%q, and the list has\n%q", written, auditlog.Actions())
	}
}
