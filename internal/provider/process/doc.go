// Package process is a provider whose machines are processes of this machine: a slot is
// reserved, its profile's command is started for a tenant, ended, and the slot is released.
// It makes actuation real on one laptop, and shows how a provider keeps its promises.
//
// A machine is known by a file, which is durable before an order is accepted. A process is
// known by its pid, the time of its start and the boot of the system, all on disk before its
// command begins: after a restart the provider finds its own processes again, and it never
// signals one that is not its own.
package process
