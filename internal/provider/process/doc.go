// Package process is a provider whose machines are processes of this computer: it reserves a slot,
// starts the command of the slot's profile for a tenant, ends the command, and releases the slot.
// It makes actuation real on one laptop, and shows how a provider keeps its promises.
//
// A machine is known by a file, which is durable before an order is accepted. A process is known by
// its pid, the time of its start and the boot of the system, all on disk before its command begins:
// after a restart the provider finds its own processes again, and it never signals one that is not
// its own.
package process
