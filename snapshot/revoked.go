package snapshot

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/canonical"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// Revoked names one thing that nobody may rely on any more, whatever a snapshot
// that is in use says. A kind that is not known here is kept and means nothing: a newer
// release may know it. The kinds, and what names one of each, where a member is named as
// KIND/NAME:
//
//	role         of a member: KIND/NAME/ROLE
//	service      a service, or KIND/NAME/SERVICE for its assignment to one member
//	peer         a record of the peer directory, or a member
//	storage      a storage endpoint: its record, or its URL
//	coordinator  an address (host:port) to refresh at
//	permission   an action of degraded mode
type Revoked struct {
	Kind string
	Name string
}

func (r Revoked) String() string { return r.Kind + " " + r.Name }

// Compare orders by kind, then by name.
func (r Revoked) Compare(o Revoked) int {
	return cmp.Or(cmp.Compare(r.Kind, o.Kind), cmp.Compare(r.Name, o.Name))
}

// Check says why r names nothing that can be revoked in cluster. A kind that is not
// known may have any name.
func (r Revoked) Check(cluster string) error {
	if msg := r.fault(cluster); msg != "" {
		return fmt.Errorf("snapshot: %.40s %.80q: %w", r.Kind, r.Name, errors.New(msg))
	}
	return nil
}

func (r Revoked) fault(cluster string) string {
	if !validName(r.Kind) {
		return "the kind is no name"
	}
	if r.Name == "" || len(r.Name) > snapshot.MaxRevokedName {
		return fmt.Sprintf("a name of %d bytes, want 1 to %d", len(r.Name), snapshot.MaxRevokedName)
	}
	for _, b := range []byte(r.Name) {
		if b <= ' ' || b > '~' {
			return "the name has a character that is not printable ASCII, or a space"
		}
	}
	switch r.Kind {
	case snapshot.RevokedRole:
		member, role, ok := cutLast(r.Name)
		if !ok || !validName(role) || !isMember(cluster, member) {
			return "want KIND/NAME/ROLE of a member"
		}
	case snapshot.RevokedService:
		member, service, ok := cutLast(r.Name)
		if ok && !isMember(cluster, member) || !validName(service) {
			return "want a service, or KIND/NAME/SERVICE"
		}
	case snapshot.RevokedPeer:
		if strings.Contains(r.Name, "/") && !isMember(cluster, r.Name) || !validName(r.Name) {
			return "want a record of the peer directory, or KIND/NAME of a member"
		}
	case snapshot.RevokedCoordinator:
		if msg := faultOfAddress(r.Name); msg != "" {
			return msg
		}
	case snapshot.RevokedPermission:
		if !validName(r.Name) {
			return "want the name of an action"
		}
	}
	return ""
}

// cutLast cuts s around its last slash. Without one all of it is last.
func cutLast(s string) (before, last string, found bool) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+1:], true
}

// isMember reports whether s is KIND/NAME.
func isMember(cluster, s string) bool {
	kind, name, ok := strings.Cut(s, "/")
	if !ok {
		return false
	}
	_, err := identity.New(cluster, identity.Kind(kind), name)
	return err == nil
}

// faultOfRevoked says what is wrong with a list of revoked things, or "".
func faultOfRevoked(cluster string, l []Revoked) string {
	if !canonical.Ascending(l, Revoked.Compare) {
		return "revoked is out of order or double"
	}
	for _, r := range l {
		if msg := r.fault(cluster); msg != "" {
			return fmt.Sprintf("revoked %.40s %.80q: %s", r.Kind, r.Name, msg)
		}
	}
	return ""
}

// Revocations are all that a node does not rely on any more: what its trust bundle
// revokes, and what statements of the signers do. The zero value revokes nothing. It
// is immutable.
type Revocations struct {
	things     []Revoked // sorted, distinct
	configKeys []Digest  // of the keys' bytes; as things
	ids        []identity.ID
	keys       []identity.KeyID
}

// NewRevocations returns what the signers of the manifest revoke beside a bundle: things by name, config keys by the
// digests of their bytes, and the ids and keys of members. The lists stay the caller's.
func NewRevocations(things []Revoked, configKeys []Digest, ids []identity.ID, keys []identity.KeyID) Revocations {
	return merged(Revocations{things, configKeys, ids, keys})
}

// RevocationsOf returns all that bundle, a trust bundle or nil, and more revoke.
func RevocationsOf(bundle *Verified, more ...Revocations) Revocations {
	if bundle != nil {
		if b, ok := bundle.content.(*TrustBundle); ok {
			return RevocationsIn(*b, more...)
		}
	}
	return merged(more...)
}

// RevocationsIn is [RevocationsOf] for who makes the bundle.
func RevocationsIn(b TrustBundle, more ...Revocations) Revocations {
	in := Revocations{things: b.Revoked, ids: b.BannedIDs, keys: b.BannedKeys}
	for i := range b.ConfigKeys {
		if b.ConfigKeys[i].Revoked {
			in.configKeys = append(in.configKeys, DigestOf(b.ConfigKeys[i].Key))
		}
	}
	return merged(append([]Revocations{in}, more...)...)
}

// merged returns all that the parts revoke.
func merged(parts ...Revocations) (r Revocations) {
	for _, p := range parts {
		r.things, r.configKeys = append(r.things, p.things...), append(r.configKeys, p.configKeys...)
		r.ids, r.keys = append(r.ids, p.ids...), append(r.keys, p.keys...)
	}
	slices.SortFunc(r.things, Revoked.Compare)
	slices.SortFunc(r.configKeys, compareDigests)
	slices.SortFunc(r.ids, identity.ID.Compare)
	slices.SortFunc(r.keys, identity.KeyID.Compare)
	r.things, r.configKeys = slices.Compact(r.things), slices.Compact(r.configKeys)
	r.ids, r.keys = slices.Compact(r.ids), slices.Compact(r.keys)
	return r
}

// Things returns what is revoked by name, sorted.
func (r Revocations) Things() []Revoked { return slices.Clone(r.things) }

// Bans returns the identities and the keys that are banned, sorted.
func (r Revocations) Bans() ([]identity.ID, []identity.KeyID) {
	return slices.Clone(r.ids), slices.Clone(r.keys)
}

// Revokes reports whether the thing of this kind and name is revoked.
func (r Revocations) Revokes(kind, name string) bool {
	_, found := slices.BinarySearchFunc(r.things, Revoked{kind, name}, Revoked.Compare)
	return found
}

// revokesKey reports whether a config key is revoked.
func (r Revocations) revokesKey(key []byte) bool {
	_, found := slices.BinarySearchFunc(r.configKeys, DigestOf(key), compareDigests)
	return found
}

// revokesKeyID reports whether the config key with this id is revoked.
func (r Revocations) revokesKeyID(id string) bool {
	return slices.ContainsFunc(r.configKeys, func(d Digest) bool { return hex.EncodeToString(d[:len(id)/2]) == id })
}

// Distrusts reports whether nothing speaks for v any more: every key that it was
// trusted by is revoked. A key that merely left the bundle does not count.
func (r Revocations) Distrusts(v *Verified) bool {
	return v.record != nil && !slices.ContainsFunc(v.keys, func(id string) bool { return !r.revokesKeyID(id) })
}

// IdentityWith is [TrustBundle.Identity] with the identities and keys banned too that
// r revokes.
func (b TrustBundle) IdentityWith(r Revocations) (*identity.Bundle, error) {
	b.BannedIDs = append(slices.Clone(b.BannedIDs), r.ids...)
	b.BannedKeys = append(slices.Clone(b.BannedKeys), r.keys...)
	return b.Identity()
}

// RevokesRole reports whether the member may not act in role any more.
func (r Revocations) RevokesRole(member identity.ID, role string) bool {
	return r.Revokes(snapshot.RevokedRole, memberPath(member)+"/"+role)
}

// RevokesService reports whether the service is revoked, for all or for the member.
func (r Revocations) RevokesService(member identity.ID, service string) bool {
	return r.Revokes(snapshot.RevokedService, service) || r.Revokes(snapshot.RevokedService, memberPath(member)+"/"+service)
}

// RevokesPeer reports whether the peer that a record named so stands for is revoked:
// the record, the member, or its identity. record may be empty.
func (r Revocations) RevokesPeer(record string, member identity.ID) bool {
	_, banned := slices.BinarySearchFunc(r.ids, member, identity.ID.Compare)
	return banned || r.Revokes(snapshot.RevokedPeer, record) || r.Revokes(snapshot.RevokedPeer, memberPath(member))
}

// RevokesStorage reports whether a storage endpoint is revoked, by its record's name
// or its URL.
func (r Revocations) RevokesStorage(record, url string) bool {
	return r.Revokes(snapshot.RevokedStorage, record) || r.Revokes(snapshot.RevokedStorage, url)
}

func memberPath(id identity.ID) string {
	if id.IsZero() {
		return ""
	}
	return string(id.Kind()) + "/" + id.Name()
}

func compareDigests(a, b Digest) int {
	return cmp.Compare(string(a[:]), string(b[:]))
}

// Revokes reports whether the bundle revokes the thing of this kind and name.
func (b TrustBundle) Revokes(kind, name string) bool {
	_, found := slices.BinarySearchFunc(b.Revoked, Revoked{kind, name}, Revoked.Compare)
	return found
}

// revocable is a content of which parts can be revoked.
type revocable interface {
	Content
	// without returns a copy that lacks what r revokes for the node me, in valid form.
	without(r Revocations, me identity.ID) Content
}

// WithoutRevoked returns content without what r revokes for the node me, or for all if me is
// zero. Who composes snapshots, and leaves out what is revoked, tells every node the same thing
// that the node would leave out itself.
func WithoutRevoked(content Content, r Revocations, me identity.ID) Content {
	if c, ok := content.(revocable); ok {
		return c.without(r, me)
	}
	return content
}

// Effective returns what the node me may rely on of v: its content without what r
// revokes. It is for those who act on the content, and has v's header; it is not
// what was signed, so that neither Accept nor a disk may get it. With nothing to
// remove it is v itself.
func (v *Verified) Effective(r Revocations, me identity.ID) *Verified {
	c, ok := v.content.(revocable)
	if !ok || len(r.things)+len(r.ids) == 0 {
		return v
	}
	content := c.without(r, me)
	text, err := encode(content)
	if err != nil {
		panic("snapshot: what is left of a valid content does not encode: " + err.Error())
	}
	if string(text) == v.text {
		return v
	}
	return &Verified{activation: v.activation, content: content, text: string(text), keys: v.keys}
}

func (b *NodeBootstrap) without(r Revocations, me identity.ID) Content {
	n := b.clone()
	n.Roles = withoutRoles(n.Roles, r, me)
	n.Coordinators = withoutCoordinators(n.Coordinators, r)
	n.Members = slices.DeleteFunc(n.Members, func(m Member) bool { return r.RevokesPeer("", m.ID) })
	n.Degraded.Allow = withoutPermissions(n.Degraded.Allow, r)
	return &n
}

func (n *NodeRuntime) without(r Revocations, me identity.ID) Content {
	c := n.clone()
	c.Roles = withoutRoles(c.Roles, r, me)
	c.Coordinators = withoutCoordinators(c.Coordinators, r)
	if c.Degraded != nil {
		c.Degraded.Allow = withoutPermissions(c.Degraded.Allow, r)
	}
	return &c
}

func (d *PeerDirectory) without(r Revocations, _ identity.ID) Content {
	n := d.clone()
	revoked := func(p Peer) bool { return r.RevokesPeer(p.Name, p.ID) }
	n.Active, n.Bootstrap, n.Warm = slices.DeleteFunc(n.Active, revoked), slices.DeleteFunc(n.Bootstrap, revoked), slices.DeleteFunc(n.Warm, revoked)
	return &n
}

func (a *ServiceAssignment) without(r Revocations, me identity.ID) Content {
	n := a.clone()
	n.Services = slices.DeleteFunc(n.Services, func(s Service) bool { return r.RevokesService(me, s.Name) })
	n.Endpoints = slices.DeleteFunc(n.Endpoints, func(e Endpoint) bool { return r.RevokesService(me, e.Name) })
	return &n
}

// A route that forbids stays whatever is revoked, and one that has to pass a peer
// that is revoked goes: neither may let through more than was signed.
func (p *RoutePolicy) without(r Revocations, me identity.ID) Content {
	n := p.clone()
	peer := func(name string) bool { return r.Revokes(snapshot.RevokedPeer, name) }
	left := func(routes []Route) []Route {
		return slices.DeleteFunc(routes, func(route Route) bool {
			return !route.Deny && (r.RevokesService(me, route.Service) || slices.ContainsFunc(route.Via, peer) ||
				len(route.To) > 0 && !slices.ContainsFunc(route.To, func(to string) bool { return !peer(to) }))
		})
	}
	n.Entry, n.Routes = left(n.Entry), left(n.Routes)
	for _, routes := range [][]Route{n.Entry, n.Routes} {
		for i := range routes {
			routes[i].To = slices.DeleteFunc(routes[i].To, peer)
		}
	}
	return &n
}

func (d *StorageDirectory) without(r Revocations, _ identity.ID) Content {
	n := d.clone()
	n.Endpoints = slices.DeleteFunc(n.Endpoints, func(e StorageEndpoint) bool { return r.RevokesStorage(e.Name, e.URL) })
	for i := range n.Shards {
		n.Shards[i].Replicas = slices.DeleteFunc(n.Shards[i].Replicas, func(peer string) bool { return r.Revokes(snapshot.RevokedPeer, peer) })
	}
	return &n
}

func (p *DegradedModePolicy) without(r Revocations, _ identity.ID) Content {
	n := p.clone()
	n.Allow = withoutPermissions(n.Allow, r)
	return &n
}

// Withdraws reports whether the member is to hold nothing that depends on roles: one of
// its roles is revoked. Each role of a node bounds what the others give it, and what it
// holds does not say which of them it has it for. So what is left without one of them
// is not for the node, nor for a coordinator, to work out: the signers give it other
// roles in the manifest.
func (r Revocations) Withdraws(member identity.ID, roles []string) bool {
	return slices.ContainsFunc(roles, func(role string) bool { return r.RevokesRole(member, role) })
}

func withoutRoles(roles []string, r Revocations, me identity.ID) []string {
	return slices.DeleteFunc(roles, func(role string) bool { return r.RevokesRole(me, role) })
}

func withoutCoordinators(addresses []string, r Revocations) []string {
	return slices.DeleteFunc(addresses, func(a string) bool { return r.Revokes(snapshot.RevokedCoordinator, a) })
}

func withoutPermissions(actions []string, r Revocations) []string {
	return slices.DeleteFunc(actions, func(a string) bool { return r.Revokes(snapshot.RevokedPermission, a) })
}
