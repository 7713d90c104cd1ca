// Package agent is the process on a member: it joins, keeps the member certified,
// verifies what it is told, and goes on alone.
//
// [Join] makes a machine a member, [Open] and [Agent.Run] keep it one, [Login]
// does for a person what Join does for a machine. What is promised:
//
//   - Whatever a coordinator grants or sends is verified from its own bytes, as if
//     it came from an enemy, before anything of it is kept. A refusal changes
//     nothing and its reason is kept (I14).
//   - A kill or a power cut at any instant leaves the old state or the new one,
//     whole (I13), and a join or renewal whose answer was lost is repeated with
//     the same key, so that the cluster sees one request.
//   - What was accepted of a scope never goes down (I11). Marks are durable before
//     a snapshot is used.
//   - With every coordinator gone, Run goes on (I16). It ends with its context, or
//     when the member left.
//
// # The data directory
//
// One process owns it, by a lock that ends with the process. Directories have
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
//	identity/joined.json        a join that is being put in place; see below
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
// What the agent writes itself carries a checksum; what it received carries
// signatures. Everything is verified again at start.
//
// A join is one write: joined.json holds all that it gives, and from then on the
// node has joined; spreading it over the other files is repeated by whoever opens
// the directory next. A snapshot goes to pending, the marks are raised, and then
// it takes the place of the active one; a start that finds a pending snapshot
// which the marks know finishes that.
//
// What is damaged: a snapshot falls back to the previous one, is reported, and
// fetched anew. Lost marks do not make a new node: what is on disk stays unused,
// and serves as a floor, until a coordinator that proves itself has said what
// holds now, scope by scope. A damaged identity is an error to a person (FE-N102).
//
// A copy of the whole directory on another machine cannot be told from the
// original here: that takes a key which cannot be copied, in hardware. The
// cluster notices it, because each renewal makes the key before it worthless and
// an older one an alarm.
package agent
