package auditlog

import "slices"

// actions are the actions of entries that this release writes, sorted. What stands before the first dot is
// the sort of an action. A test holds the list to the code.
var actions = []string{
	"audit.dropped", "audit.unreadable",
	"backup.create", "backup.restored",
	"config.delete", "config.put",
	"coordinator.forget",
	"domain.assign", "domain.lapse", "domain.release", "domain.unassign",
	"grant.give",
	"instruction.end", "instruction.give",
	"journal.opened",
	"keeper.forget", "keeper.key.made",
	"leader.transfer",
	"machine.assign", "machine.create", "machine.preempt", "machine.reclaim", "machine.release",
	"manifest.genesis", "manifest.rekey", "manifest.reseed", "manifest.reseed.prepare", "manifest.reshare",
	"manifest.restore", "manifest.set",
	"member.admit", "member.ban", "member.copied", "member.drain", "member.leave", "member.rejoin", "member.remove",
	"member.remove.force", "member.renew.outage", "member.replace", "member.unban", "member.undrain",
	"mesh.made", "mesh.prepared", "mesh.received",
	"provider.delete", "provider.put",
	"quota.delete", "quota.put",
	"seed.created", "seed.drill", "seed.given", "seed.owners", "seed.received",
	"shard.fenced",
	"token.create", "token.revoke",
	"trust.emergency", "trust.presented", "trust.revoke", "trust.rotate", "trust.rotate.compromised",
	"trust.rotate.end",
}

// Actions returns the actions of entries that this release writes, sorted. A coordinator of a later one may
// write others too.
func Actions() []string { return slices.Clone(actions) }
