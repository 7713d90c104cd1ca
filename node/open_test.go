package node_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/node"
)

// Without a folder the one that fealty's commands would take is opened.
func TestOpenTakesTheAgentsFolder(t *testing.T) {
	for _, want := range []string{filepath.Join(t.TempDir(), "agent"), ""} {
		t.Setenv("FEALTY_DATA", want)
		if want == "" {
			want = "/var/lib/fealty/agent"
		}
		n, err := node.Open("", node.Options{})
		if err == nil { // this machine is a member
			n.Close()
			continue
		}
		if !strings.Contains(err.Error(), "open "+want+":") {
			t.Errorf("it opens another folder than %s: %v", want, err)
		}
	}
}
