// Package snapshot decides whether a node may act on config that somebody
// handed to it.
//
// A snapshot is the config of one [Scope] for one [Subject]: a header in
// canonical JSON (RFC 8785), the content whose hash and size the header names,
// and signatures. It can come from a coordinator, a mirror, a peer or a USB
// stick: who carries it is not trusted. [Verify] answers from the received
// bytes, from what the node believes ([Trust]), from what it accepted before
// ([Marks]: the newest version of each scope, below which nothing is taken) and from the time, by
// twelve checks in a fixed order. It is the
// only way to the typed content: a [Verified] cannot be made elsewhere.
//
// # What is signed
//
// Every signature is over the pre-authentication encoding of a type, a cluster
// and the exact bytes, so that bytes signed as one thing never pass
// as another, and bytes of one cluster never pass in another:
//
//	"FealtyPAEv1" SP len(type) SP type SP len(cluster) SP cluster SP len(payload) SP payload
//
// There is one path for each scope:
//
//	trust_bundle  ed25519       the config root key signs the header
//	the others    ed25519-tree  a config signing key signs a small [Record],
//	                            whose Merkle root (RFC 6962) covers the header
//
// A newer record over the same header renews it without touching it. The config
// root key itself is introduced by a statement that the root CA's key signs: [VerifyRoot].
//
// # Whole, patched, detached
//
// The header signs the hash and the size of the whole content, however that gets to
// the node: with the header, as a patch to the version before, which the header
// names, or later, by its hash. [VerifyHeader] checks the header of what comes in parts, and
// [Checked] completes it; what is kept on disk, and what [Verify] is given, is whole.
//
// # Groups
//
// Content that many nodes share is for a group: the members with exactly the same
// roles and organizations. A node belongs to one group, by its own
// node_runtime, and which part of what scope its roles may hold is a table
// ([Scope.MayHold]) that the compiler and the verifier both ask.
//
// # Who composes
//
// [Compose] makes the exact bytes of a snapshot, and asks of them the checks that [Verify] asks
// whatever signed them. What it made is signed by itself, [Draft.Sign], alone, [Draft.Publish],
// or with others: their leaves make a [Tree], and [Record.Sign] signs its root.
//
// # What is not decided here
//
// The package does no I/O, reads no clock and starts no goroutines. The caller
// keeps marks on disk, durably, before it activates what they accept; says how
// old a record may be before the node degrades; and keeps what was valid when
// something is refused.
package snapshot
