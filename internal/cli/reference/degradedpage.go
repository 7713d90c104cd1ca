package reference

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/snapshot"
)

// degradedPage shows the table that the guard of degraded mode decides by.
func degradedPage() string {
	var b strings.Builder
	b.WriteString("# Actions of degraded mode\n\n" + generatedNote)
	b.WriteString(`A node, and a service on it, may do this while it has no news, and this is why it costs what it does:
[offline](../explanation/offline.md). Services ask by these names, with PermitAction on the agent's
[socket for local services](../how-to/use-config-on-a-node.md).

- **fresh, stale** is up to an hour after its newest record stopped being fresh; **degraded** is after that, or ` +
		`when a newer
  authority epoch was seen.
- **In contact** is a stream to a coordinator and a fresh record. There the coordinator decides, and the guard lets ` +
		`pass.
- **High risk** is refused in any state where the node cannot know who was revoked.
- An action that needs a scope is refused after the end of that scope, and one in the name of the node after the end of
  its certificate.

| action | fresh, stale | degraded | ended by | high risk | because |
| --- | --- | --- | --- | --- | --- |
`)
	for _, r := range guard.ActionRows() {
		early, late, ended := "yes", "no", "its scopes"
		switch {
		case r.Class == "policy":
			late = "with " + code(r.Policy)
		case r.Class == "forbidden":
			early = "in contact alone"
		}
		var needs []string
		for _, s := range r.Needs {
			if s != snapshot.ScopeTrustBundle && s != snapshot.ScopeNodeRuntime && s != snapshot.ScopeNodeBootstrap {
				needs = append(needs, code(string(s)))
			}
		}
		switch {
		case r.Bound != "":
			needs = append([]string{code(r.Bound)}, needs...)
			fallthrough
		case len(needs) > 0:
			ended = strings.Join(needs, ", ")
		case !slices.Contains(r.Needs, snapshot.ScopeTrustBundle):
			ended = "-"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", code(string(r.Action)), early, late, ended,
			map[bool]string{true: "yes", false: "-"}[r.Risk], r.Why)
	}
	b.WriteString("\nAn action that is not in the table is refused always, in contact too (`FE-N113`).\n\n## Scopes\n\nOnce " +
		"the action is refused, the agent gives the scope to nobody any more.\n\n| scope | action |\n| --- | --- |\n")
	for _, s := range snapshot.Scopes() {
		action := "until it expires"
		if a := guard.ScopeAction(s); a != "" {
			action = code(string(a))
		}
		fmt.Fprintf(&b, "| %s | %s |\n", code(string(s)), action)
	}
	return b.String()
}
