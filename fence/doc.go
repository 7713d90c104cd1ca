// Package fence decides whether a command may still be obeyed.
//
// A process that was in charge and does not know that it no longer is, a zombie, keeps
// sending for as long as its packets live. No care of the sender can help, since a zombie
// believes that it is healthy. So every command carries a [Token], and its receiver asks
// a [Ledger] first. Leases and clocks tell an honest sender when to stop; only the ledger
// stops the others.
//
// Two kinds of commands are told apart:
//
//   - An order of a leader carries the leader's term, and [Term] refuses a lower one. One
//     leader gives many orders in a term, so an equal one passes.
//   - A mutation of a resource carries a token, and [Ledger] admits only what is strictly
//     newer than its mark: by Ownership across the holders of a domain, by Epoch within one
//     holder, and by Sequence within one of its processes and a resource.
//
// The parts of a token, from the outside in:
//
//	Ownership  which assignment of the resource's domain the sender acts under; 0 where
//	           nobody assigns it
//	Epoch      one life of the sender's process: a grant of the authority, and the starts
//	           since that grant
//	Sequence   one attempt in that life; the first is 1
//
// Sequences are compared for each pair of holder and resource, and not for each holder: one
// live holder's concurrent commands to different resources arrive in any order and must not
// fence each other. A holder therefore has one command under way for a resource. Epochs are
// compared for each holder: nothing of a process is obeyed after something of its successor.
//
// The package promises:
//
//   - A refusal changes nothing: no mark moves, and nothing new is remembered.
//   - A mark never goes down, and a token that was admitted is never admitted again,
//     whatever became of the command that carried it (I6).
//   - After [Gate.Promise] returned nil for an assignment, no mutation under an older
//     assignment of that domain is running or will be (I7).
//   - Of two processes that run with copies of one state a receiver that hears of both obeys
//     one, and where it can tell that they are copies it says so: see [Reason.Alarm].
//   - Nobody raises an ownership without a statement that the authority signed, nor a grant
//     unless [LedgerOptions.BelieveEpochs] says so. One forged huge number locks out nobody.
//
// This is left to the caller: the name of the holder, which comes from the sender's
// certificate and never from the message; to ask before anything else is looked at, the
// existence of the resource and the answer to an earlier attempt included, so that a
// zombie learns nothing; and to keep what a restart must not forget on disk, before an
// effect can be seen: package fence/durable does so with an epoch, a term and a ledger.
//
// The package does no I/O, reads no clock and starts no goroutine. Only [NewIncarnation]
// uses randomness. The page docs/explanation/fencing.md tells why each rule is there.
package fence
