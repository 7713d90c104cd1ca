// Package operator is a tenant's side of a shard: it says what the tenant wants, and hears what it has and what it
// is about to lose.
//
// A shard turns demand into machines. A tenant's demand is so many machines of each profile, each row with a priority,
// and is always stated whole: what is not in it is not wanted any more. [Operator.Set] states it, [Operator.Run]
// keeps the session over which that happens, and [Operator.Watch] shows what the shard makes of it. These are the
// promises:
//
//   - An operator speaks for the tenant that its certificate names, spiffe://CLUSTER/operator/TENANT, and the shard
//     at the other end proves who it is.
//   - When the connection breaks, Run opens another session, with growing pauses. It states again what the shard took
//     last: a shard that was started anew has forgotten it.
//   - Demand that cannot be is refused before it is sent, with an [*InvalidError].
//   - Of two processes of one tenant the one that was started later is believed: the other one hears so, and its Run
//     ends with an error that matches [ErrOvertaken]. See [Config.Dir].
//   - All that a shard can send is bounded and checked; a shard that breaks the protocol ends the session, with an
//     error that matches [ErrProtocol].
//
// Errors match one of the package's variables: what a program can do about them differs.
package operator
