// Package dir defines the folder of a member: the names and forms of its files. It reads the keys and plain files;
// package state reads what has to be verified.
//
// One process owns the folder, by a lock that ends with the process. Directories have
// mode 0700, files 0600.
//
//	lock                        held for life; names the process
//	identity/svid.pem           private key, leaf, mesh CA, root: one file, so that key
//	                            and chain cannot tear
//	identity/next.key           the key of a join or renewal under way, durable before
//	                            the request, gone after it
//	identity/anchor.json        whom the node believes without asking: cluster, pin and
//	                            root, the root's statement of the config root key; and
//	                            who it is: id, incarnation, where to find coordinators
//	identity/joined.json        a join that is being put in place
//	snapshots/SCOPE.active      exact received bytes of what is in use,
//	snapshots/SCOPE.previous    of what was before,
//	snapshots/SCOPE.pending     and of what is being put in place
//	snapshots/SCOPE.refused     of one that proves that its signer lies
//	marks.a, marks.b            the newest that was ever accepted, what is on trial and
//	                            what failed one, twice
//	emergency.a, emergency.b    statements of the signers that are in force here, twice
//	refusals.json               the last refusal of each scope
//	clock.json                  the floor under the machine's clock
//	behind.json                 the trust bundle that a newer authority epoch overtook
//	current/SCOPE.json          content in use, for others to read
//	state.json                  what is in use, for people
//	store.json                  the form of the folder, and who wrote it
//	degraded.json               when it was in degraded mode, for reports
//	agent.sock                  the local API
//
// Files of the member's own making carry a checksum, by [Seal]; what it received carries
// signatures.
package dir
