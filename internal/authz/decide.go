package authz

import (
	"slices"

	"github.com/fealty-io/fealty/identity"
)

// Reason says why a call was refused. It is stable: a metric label.
type Reason string

// The reasons.
const (
	UnknownMethod   Reason = "unknown-method"  // the table has no rule for it
	Unauthenticated Reason = "unauthenticated" // no verified client certificate
	Unidentified    Reason = "unidentified"    // a verified one that identifies nobody
	OtherCluster    Reason = "other-cluster"   // an identity of another cluster
	KindNotAllowed  Reason = "kind"            // the method is not for this kind
	NotItsName      Reason = "name"            // the request names somebody else, or nobody
	NotLocal        Reason = "not-local"       // the method is not for the local socket
	OtherUser       Reason = "other-user"      // the local socket is not for this user
)

// Reasons returns all reasons, in the order in which they are looked for.
func Reasons() []Reason {
	return []Reason{UnknownMethod, NotLocal, OtherUser, Unauthenticated, Unidentified, OtherCluster, KindNotAllowed, NotItsName}
}

// Decision is the answer to a call. The zero Decision refuses.
type Decision struct {
	Allowed bool
	Reason  Reason // empty if allowed
}

func refuse(r Reason) Decision { return Decision{Reason: r} }

// Self is what a server knows of itself, for deciding on others.
type Self struct {
	// Cluster is the cluster that it serves. Empty, while there is none: every
	// identity is then one of another cluster.
	Cluster string
	// UID is the user that it runs as.
	UID uint32
	// Consumer reports whether the settings name a local process as a consumer. Nil:
	// there are none.
	Consumer func(identity.Local) bool
}

// decideCaller answers a call under rule by peer before a message of it is read. With
// [decideName] on each message it is the whole decision, and takes nothing else into
// account:
//
//  1. an open method passes;
//  2. on the local socket, a method that is local passes for the server's own
//     user and for root, and one for consumers also for whom the settings name;
//     without a certificate nothing else does;
//  3. without a verified certificate: [Unauthenticated];
//  4. a certificate that identifies nobody: [Unidentified];
//  5. an identity of another cluster: [OtherCluster];
//  6. a kind that is not listed, exactly: [KindNotAllowed];
//  7. a bound field that is not the caller's name, or empty: [NotItsName].
//
// The last is that of decideName.
func decideCaller(rule Rule, self Self, peer identity.Peer) Decision {
	switch {
	case rule.Open, admitsLocally(rule, self, peer):
		return Decision{Allowed: true}
	case peer.Local != nil && anonymous(peer) && !rule.Local:
		return refuse(NotLocal)
	case peer.Local != nil && anonymous(peer):
		return refuse(OtherUser)
	case anonymous(peer):
		return refuse(Unauthenticated)
	case !peer.Identified() || peer.ID.IsZero():
		return refuse(Unidentified)
	case peer.ID.Cluster() != self.Cluster: // an identity always has one
		return refuse(OtherCluster)
	case !slices.Contains(rule.Kinds, peer.ID.Kind()):
		return refuse(KindNotAllowed)
	}
	return Decision{Allowed: true}
}

// anonymous reports whether peer showed no certificate at all: plaintext, one-way TLS or a unix socket.
func anonymous(peer identity.Peer) bool {
	return peer.ID.IsZero() && peer.Err == nil && peer.Leaf == nil
}

// admitsLocally reports whether the kernel's word for the peer's user is enough.
func admitsLocally(rule Rule, self Self, peer identity.Peer) bool {
	if !rule.Local || peer.Local == nil {
		return false
	}
	return peer.Local.UID == self.UID || peer.Local.UID == 0 || rule.Consumers && self.Consumer != nil && self.Consumer(*peer.Local)
}

// bound reports whether a caller that decideCaller allowed must name itself in
// each message. A caller that passed as the machine's own user has no name.
func bound(rule Rule, self Self, peer identity.Peer) bool {
	return rule.Bind != "" && !rule.Open && !admitsLocally(rule, self, peer)
}

// decideName decides on one message of a bound call, whose field has asserted.
func decideName(peer identity.Peer, asserted string) Decision {
	if asserted == "" || asserted != peer.ID.Name() {
		return refuse(NotItsName)
	}
	return Decision{Allowed: true}
}
