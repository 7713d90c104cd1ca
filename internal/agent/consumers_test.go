package agent

import (
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/snapshot"
)

// The rights of each caller on the socket for local services.
func TestConsumers(t *testing.T) {
	const own, app, web, other = 500, 1000, 1001, 1002
	cs := consumers{
		{ID: app},
		{ID: web, Scopes: []snapshot.Scope{snapshot.ScopeRoutePolicy}},
		{ID: 77, Group: true, Scopes: []snapshot.Scope{snapshot.ScopePeerDirectory}},
	}
	routes, peers := snapshot.ScopeRoutePolicy, snapshot.ScopePeerDirectory
	for _, tc := range []struct {
		name  string
		who   identity.Local
		scope snapshot.Scope
		has   bool
		sees  bool
	}{
		{"own user", identity.Local{UID: own}, routes, false, true},
		{"root", identity.Local{UID: 0}, routes, false, true},
		{"a consumer of all", identity.Local{UID: app}, peers, true, true},
		{"a consumer of one", identity.Local{UID: web}, routes, true, true},
		{"and of no other", identity.Local{UID: web}, peers, true, false},
		{"by its group", identity.Local{UID: other, GID: 77}, peers, true, true},
		{"and of no other", identity.Local{UID: other, GID: 77}, routes, true, false},
		{"by both", identity.Local{UID: web, GID: 77}, peers, true, true},
		{"a stranger", identity.Local{UID: other}, routes, false, false},
		{"a user with the number of a group", identity.Local{UID: 77}, peers, false, false},
		{"a group with the number of a user", identity.Local{UID: other, GID: app}, routes, false, false},
	} {
		if has, sees := cs.has(tc.who), cs.sees(tc.who, own, tc.scope); has != tc.has || sees != tc.sees {
			t.Errorf("%s: listed %v, sees %v", tc.name, has, sees)
		}
	}
	if (consumers)(nil).has(identity.Local{UID: app}) || (consumers)(nil).sees(identity.Local{UID: app}, own, routes) {
		t.Error("without a list somebody is let in")
	}
}
