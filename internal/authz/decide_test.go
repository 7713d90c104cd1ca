package authz

import (
	"crypto/x509"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/identity"
)

const (
	cluster = "prod.example"
	ownUID  = 1000
)

// situation is a caller as the transport knows it.
type situation struct {
	name string
	peer identity.Peer
}

func mustID(t testing.TB, cluster string, kind identity.Kind, name string) identity.ID {
	t.Helper()
	id, err := identity.New(cluster, kind, name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// situations returns every way in which a caller of a kind can stand there.
func situations(t testing.TB, kind identity.Kind) []situation {
	t.Helper()
	leaf := &x509.Certificate{}
	id := mustID(t, cluster, kind, "node-c")
	return []situation{
		{"identified", identity.Peer{ID: id, Leaf: leaf}},
		{"of another cluster", identity.Peer{ID: mustID(t, "dev.example", kind, "node-c"), Leaf: leaf}},
		{"unidentified", identity.Peer{Leaf: leaf, Err: identity.ErrNoIdentity}},
		{"unidentified, and an id", identity.Peer{ID: id, Leaf: leaf, Err: identity.ErrNoIdentity}},
		{"a leaf without an id", identity.Peer{Leaf: leaf}},
		{"insecure", identity.Peer{}},
		{"local, own user", identity.Peer{Local: &identity.Local{UID: ownUID}}},
		{"local, root", identity.Peer{Local: &identity.Local{UID: 0}}},
		{"local, other user", identity.Peer{Local: &identity.Local{UID: ownUID + 1}}},
		{"local, other user, own group", identity.Peer{Local: &identity.Local{UID: ownUID + 1, GID: ownUID}}},
		{"local, other user, identified", identity.Peer{ID: id, Leaf: leaf, Local: &identity.Local{UID: ownUID + 1}}},
		{"local, own user, unidentified", identity.Peer{Leaf: leaf, Err: identity.ErrNoIdentity, Local: &identity.Local{UID: ownUID}}},
	}
}

// expected is the rule book once more, from the caller's side: the first line
// that fits the situation decides.
func expected(rule Rule, self Self, kind identity.Kind, s situation, asserted string) Reason {
	isLocal := map[string]bool{"local, own user": true, "local, root": true, "local, own user, unidentified": true}
	hasID := s.name == "identified" || s.name == "local, other user, identified"
	switch {
	case rule.Open:
		return ""
	case rule.Local && isLocal[s.name]:
		return ""
	case s.name == "insecure":
		return Unauthenticated
	case !rule.Local && (s.name == "local, own user" || s.name == "local, root" || s.name == "local, other user" || s.name == "local, other user, own group"):
		return NotLocal
	case s.name == "local, other user" || s.name == "local, other user, own group":
		return OtherUser
	case s.name == "of another cluster":
		return OtherCluster
	case !hasID:
		return Unidentified
	case self.Cluster != cluster:
		return OtherCluster
	case !slices.Contains(rule.Kinds, kind):
		return KindNotAllowed
	case rule.Bind != "" && asserted != "node-c":
		return NotItsName
	}
	return ""
}

// decide is what the interceptors decide on a call of one message: on its caller, and then on the message.
func decide(rule Rule, self Self, peer identity.Peer, asserted string) Decision {
	d := decideCaller(rule, self, peer)
	if !d.Allowed || !bound(rule, self, peer) {
		return d
	}
	return decideName(peer, asserted)
}

func TestDecideExhaustively(t *testing.T) {
	cells, allowed := 0, 0
	kindSets := [][]identity.Kind{nil, identity.Kinds()}
	for _, k := range identity.Kinds() {
		kindSets = append(kindSets, []identity.Kind{k})
	}
	for _, kinds := range kindSets {
		for _, bind := range []string{"", "name"} {
			for _, open := range []bool{false, true} {
				for _, local := range []bool{false, true} {
					rule := Rule{Method: "/test.Service/M", Kinds: kinds, Bind: bind, Open: open, Local: local}
					for _, self := range []Self{{Cluster: cluster, UID: ownUID}, {UID: ownUID}, {Cluster: "other.example", UID: ownUID}} {
						for _, kind := range identity.Kinds() {
							for _, s := range situations(t, kind) {
								for _, asserted := range []string{"node-c", "node-d", "", "node-c ", "Node-C", string(kind) + "/node-c"} {
									d := decide(rule, self, s.peer, asserted)
									want := expected(rule, self, kind, s, asserted)
									if d.Reason != want || d.Allowed != (want == "") {
										t.Fatalf("%+v, %+v, %s %s asserting %q: %+v, want %q", rule, self, kind, s.name, asserted, d, want)
									}
									cells++
									if d.Allowed {
										allowed++
									} else if !slices.Contains(Reasons(), d.Reason) {
										t.Fatalf("reason %q is not listed", d.Reason)
									}
								}
							}
						}
					}
				}
			}
		}
	}
	t.Logf("%d cells, %d allowed", cells, allowed)
}

func TestZeroDecisionRefuses(t *testing.T) {
	var d Decision
	if d.Allowed {
		t.Error("the zero Decision admits")
	}
	if d := decide(Rule{}, Self{Cluster: cluster}, identity.Peer{ID: mustID(t, cluster, identity.Admin, "alice")}, "alice"); d.Allowed {
		t.Error("the zero Rule admits an admin")
	}
}

// A local method for consumers is served to those that the settings name, and no
// other method is.
func TestDecideConsumers(t *testing.T) {
	self := Self{Cluster: "prod.example", UID: 1, Consumer: func(l identity.Local) bool { return l.UID == 1000 }}
	named, other := identity.Peer{Local: &identity.Local{UID: 1000}}, identity.Peer{Local: &identity.Local{UID: 1001}}
	for _, tc := range []struct {
		name string
		rule Rule
		self Self
		peer identity.Peer
		want Reason
	}{
		{"named", Rule{Local: true, Consumers: true}, self, named, ""},
		{"not named", Rule{Local: true, Consumers: true}, self, other, OtherUser},
		{"a method that is not for consumers", Rule{Local: true}, self, named, OtherUser},
		{"nobody is named", Rule{Local: true, Consumers: true}, Self{UID: 1}, named, OtherUser},
		{"over the network", Rule{Local: true, Consumers: true}, self, identity.Peer{}, Unauthenticated},
	} {
		if d := decide(tc.rule, tc.self, tc.peer, ""); d.Reason != tc.want || d.Allowed != (tc.want == "") {
			t.Errorf("%s: %+v, want %q", tc.name, d, tc.want)
		}
	}
}
