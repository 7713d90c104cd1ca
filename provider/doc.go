// Package provider turns what a shard decides into real machines: the contract between the
// two, as a server and a client.
//
// A provider implements [Machines] in plain Go, and [Serve] makes a safe service of it. A
// shard calls it with a [Client]. Implementations in other languages serve
// api/fealty/v1/provider.proto; the command `fealty conformance provider` holds either to
// the contract.
//
// A machine goes round:
//
//	speculative ─Create→ creating → idle ─Configure→ configuring → configured
//	     ↑                           ↑ └─Delete→ deleting → speculative, or gone
//	     └───────────────────────────┘← draining ←─Drain─ configuring, configured
//	failed: the last operation did not get there; it may be tried again, or the machine deleted
//
// [Serve] promises this, whatever the implementation does:
//
//   - No mutation reaches the implementation but of a shard that is in charge: the fence is
//     asked first, before the machine is looked up and before an earlier answer is repeated,
//     and a zombie learns nothing (I6). See package fence.
//   - One mutation at a time reaches it for a machine, only from a state that allows it, and
//     never twice while the machine is on its way to one target, or there: a repetition is
//     answered with the same operation.
//   - The caller is known by its certificate, and is of kind shard (I2).
//   - A machine that is declared wrongly (a price that is no number, a state that does not
//     exist, one id twice) is told to nobody: see [InvalidError].
//   - All that a caller can send is bounded before it is read.
//
// This is left to the caller: marks that outlive the process ([Config.Marks]), and, in the
// implementation, to keep on disk what was accepted before it returns.
//
// The page docs/how-to/write-a-provider.md shows how one is written and checked.
package provider
