package docs

import (
	"os"
	"strings"
	"testing"

	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// The table of who may hold what is the one that the code decides by.
func TestTableOfRoles(t *testing.T) {
	raw, err := os.ReadFile("explanation/snapshots.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(raw), "<!-- roles: ")
	if !found {
		t.Fatal("there is no table")
	}
	var roles []string
	seen := make(map[snapshot.Scope]bool)
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if len(seen) > 0 {
				break
			}
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		switch {
		case roles == nil:
			for _, role := range cells[2:] {
				if role == "none" {
					role = internalsnapshot.NoRole
				}
				roles = append(roles, role)
			}
			continue
		case strings.HasPrefix(cells[0], "---"):
			continue
		}
		scope, section := snapshot.Scope(cells[0]), cells[1]
		if section == "all of it" {
			section = internalsnapshot.SectionWhole
		}
		seen[scope] = true
		for i, role := range roles {
			var has []string
			if role != internalsnapshot.NoRole {
				has = []string{role}
			}
			if may, says := scope.MayHold(section, has), cells[2+i] == "yes"; may != says {
				t.Errorf("the page says %v of %s %s for role %q, the code %v", says, scope, section, role, may)
			}
		}
	}
	if len(roles) != 6 || len(seen) != 6 {
		t.Fatalf("%d roles and %d scopes", len(roles), len(seen))
	}
}
