package reference

import (
	"fmt"
	"strings"

	"github.com/fealty-io/fealty/internal/errcode"
)

// A Topic is a word of the system that fealty explain knows. The first line of its
// text says what it is.
type Topic struct {
	Name   string
	Text   string
	Fields []Field
}

// Field is a field of what a topic is about.
type Field struct{ Name, Text string }

// Topics returns the words, in the order in which one leads to the next.
func Topics() []Topic {
	words := []Topic{
		{"cluster", `One trust domain: everybody in it has an identity spiffe://CLUSTER/KIND/NAME.
Its id is the SPIFFE trust domain, such as prod.example, and is part of every identity, proof and signature, so that
nothing of one cluster counts in another.`, nil},
		{"coordinator", `A replica of the control plane: it admits, certifies, and signs what members believe.
It keeps its secrets in memory and its records in the store. A member works without one for as long as its policy
allows.`, nil},
		{"agent", `The process on a member: it joins, holds the identity, verifies snapshots, and goes on alone.
It serves a socket in its folder to the machine's own operator: fealty status --data DIR, fealty leave.`, nil},
		{"member", `An admitted node, named KIND/NAME: data, witness, shard, operator or provider.
Its state is a word of its own: connected; away (it has reported, and is not connected: it may well work on what it
verified); unknown (not heard of since this coordinator started); expired (no valid certificate); draining (it is to go,
connected or not); replacing (its name waits for a new machine); banned. People and tools, kinds admin and ` +
			`readonly, are certified and hold no connection.`, []Field{
			{"spiffe_id", "The identity, spiffe://CLUSTER/KIND/NAME: the one URI name in its certificate."},
			{"kind", "Its kind: data, witness, shard, operator, provider; admin and readonly are people and tools."},
			{"name", "The name within its kind: the entry's, what a selector captured, or the token's. A candidate " +
				"never chooses it."},
			{"state", "active; draining from fealty member drain to undrain; replacing while the name waits for a " +
				"new machine."},
			{"roles", "The roles that it may hold: core, ingress, egress, storage, thin. From its entry."},
			{"organizations", "The organizations whose configuration it may be given. From its entry, narrowed by " +
				"its token."},
			{"domains", "Units of exclusive ownership that are assigned to it. A member that just joined owns none."},
			{"joined_at", "When it was admitted."},
			{"joined_by", "The selector that admitted it, such as token:nodes."},
			{"entry", "The entry of the manifest that covers it. A member that no entry covers is not renewed."},
			{"key_id", "The SHA-256 of its last certified key. Each renewal has a new one, and an older one is an " +
				"alarm."},
			{"svid_not_after", "When its certificate ends, unless it renews before."},
			{"banned", "Whether the identity is forbidden, wherever a coordinator is reached."},
			{"ban_reason", "Why."},
			{"draining_since", "When it was marked to go, if it was. The mark stays when it restarts, rejoins or is " +
				"replaced."},
			{"drained_by", "The caller who marked it."},
			{"drain_reason", "Why."},
			{"reported_host", "The host name that its machine said when it joined last. Nobody checked it, and it " +
				"decides nothing."},
			{"reported_os", "Operating system and architecture, as its machine said."},
			{"reported_addresses", "The addresses that its machine said it has."},
			{"seen_address", "The address that its last join came from, which may be one of a NAT or a proxy."},
			{"contact", "Whether a coordinator hears it: connected, not heard, or unknown where one that may did not " +
				"say."},
			{"labels", "KEY=VALUE of its entry and of its token. They help to find it, and decide nothing."},
			{"live", "This coordinator's latest observations of it: never stored, and unset since a restart " +
				"until it is heard of."},
		}},
		{"witness", `A member that holds no user data and never owns a domain.
It does not count for the resilience baseline.`, nil},
		{"token", `A join token: one line that admits a machine under an entry of the manifest.
The line names the cluster, its coordinators, the root key to believe and an expiry, and holds a secret and a
checksum. The cluster keeps no secret of it: who loses the line makes another token.`, []Field{
			{"id", "16 characters; no secret."},
			{"entry", "The entry of the manifest that it admits under."},
			{"name", "The name of the one member that it admits; blank if a coordinator makes one up."},
			{"organizations", "Those that it narrows the entry to."},
			{"uses", "How many machines it admits at most."},
			{"used", "How many it has admitted."},
			{"created_at", "When it was made."},
			{"expires_at", "When it ends, by the coordinator's clock."},
			{"created_by", "The caller who made it."},
			{"revoked", "Whether an admin ended it."},
			{"admitted", "The members that it admitted, as KIND/NAME."},
			{"kind", "The kind that it admits as: that of its entry."},
			{"labels", "KEY=VALUE that the members it admits have."},
			{"state", "usable, spent, expired, revoked, or no entry (the manifest has none of that name any more)."},
		}},
		{"manifest", `The trust policy of a cluster: who may join as what, and who may change that.
One YAML or JSON document. Its history is a signed chain; a change is signed by the signers of the one in force.
fealty manifest init writes one to start from, fealty manifest verify checks one offline.`, []Field{
			{"cluster", "The id of the cluster, a SPIFFE trust domain. It never changes."},
			{"seed", "The owners, who can bring the seed back after a total loss."},
			{"seed.threshold", "How many people with a recipient it takes. A keeper needs nobody; where all owners " +
				"are keepers it is 1."},
			{"seed.owners", "The owners: each a name with a recipient or a keeper."},
			{"seed.owners.name", "The owner's name, unique in the manifest."},
			{"seed.owners.recipient", "A person's public key that the share is encrypted to: age1…, ssh-ed25519 …, " +
				"ssh-rsa …."},
			{"seed.owners.keeper", "The way to open the seed without a human: file:PATH of a key file, or exec:PATH " +
				"of a program."},
			{"signers", "The people who may set the next manifest."},
			{"signers.threshold", "How many of them it takes."},
			{"signers.keys", "The signers: each a name with a key."},
			{"signers.keys.name", "The signer's name, unique in the manifest."},
			{"signers.keys.key", "The signer's public key, ed25519:BASE64."},
			{"proofs", "The trust that proofs are checked against."},
			{"proofs.x509", "The operator's own PKI, for selectors that begin with x509:."},
			{"proofs.x509.roots_pem", "Its roots, in PEM."},
			{"proofs.sevsnp", "Reference values of AMD SEV-SNP guests, for selectors that begin with sevsnp:."},
			{"proofs.sevsnp.measurements", "Launch measurements that are accepted, in hex."},
			{"proofs.sevsnp.min_tcb", "The least version of each component of the platform."},
			{"proofs.sevsnp.min_tcb.bootloader", "The least version of the bootloader."},
			{"proofs.sevsnp.min_tcb.tee", "The least version of the TEE."},
			{"proofs.sevsnp.min_tcb.snp", "The least version of the SNP firmware."},
			{"proofs.sevsnp.min_tcb.microcode", "The least version of the microcode."},
			{"admit", "The candidates who may join: a list of entries. Nobody else may."},
			{"admit.name", "The entry's name, unique in the manifest. It is the member's name where the selector " +
				"captures none."},
			{"admit.kind", "The kind that a candidate of the entry becomes: coordinator, data, witness, shard, " +
				"operator, provider, admin or readonly."},
			{"admit.match", "Selectors, any of which admits: token:NAME, key:ed25519:…, x509:subject:CN=…, and so " +
				"on. One * captures the member's name."},
			{"admit.roles", "The roles that members of the entry may hold."},
			{"admit.organizations", "The organizations whose configuration they may be given."},
			{"admit.max_members", "How many there may be: it bounds what a leaked token can do. Without it there is " +
				"no limit."},
			{"admit.svid_ttl", "How long a certificate is good. For nodes it is longer than degraded.max."},
			{"admit.dns_names", "Names that are put into the certificate. They identify nobody."},
			{"admit.ips", "Addresses that are put into the certificate. They identify nobody."},
			{"admit.labels", "KEY=VALUE, by which members of the entry are found: `fealty member list --label " +
				"rack=r2`. They decide nothing; of a token's label with the same key the token's counts. Members " +
				"have them from their next renewal on."},
			{"admit.platform_may_read_seed", "Admit coordinators by a Kubernetes service account, knowing that who " +
				"runs that API server can then obtain the seed."},
			{"trust", "root: people pin the root, and the mesh CA key changes when authority moves. mesh: it changes " +
				"with every set."},
			{"degraded", "The policy for nodes while no coordinator is in reach. A snapshot can narrow it, never " +
				"widen it."},
			{"degraded.allow", "The actions that they may go on with."},
			{"degraded.max", "For how long. 0: not at all."},
			{"degraded.route_ttl", "For how long routes are kept, at most degraded.max."},
			{"rejoin_grace", "How long after its certificate ended a member may come back by its last key. 0: never."},
			{"baseline", "The members that have to be there for the fleet to be well. It decides nothing: people are " +
				"told when they are not."},
			{"baseline.data", "How many data members have to be connected. Witnesses do not count. 0: none."},
			{"workloads", "It is true of the identities of all processes."},
			{"workloads.token_issuer", "The issuer of JWT-SVIDs, their claim `iss`, for those who verify tokens by " +
				"OpenID Connect: they find the keys below this URL. It has no query, no fragment and no slash at " +
				"the end. From then on each token has it."},
		}},
		{"epoch", `The authority epoch: how often authority has changed or was recovered.
It moves when the mesh CA key or the seed is replaced, and after a recovery that could not get the key back: then all
members renew by themselves. A node never goes back to a lower one. fealty trust show tells it.`, nil},
		{"term", `How often leadership has changed: each coordinator that begins to lead has a higher one.
Instructions carry it, and whoever has seen a higher one refuses what is older: a coordinator that led once and does not
know that it is over changes nothing any more. fealty leader show tells it.`, nil},
		{"baseline", `How many data members have to be connected, so that the fleet survives the loss of one.
The manifest says how many: baseline.data, 3 where it says nothing. Witnesses do not count, and neither does a member
that drains. fealty status says whether it is met, and FE-M105 what to do if it is not.`, nil},
		{"history", `The signed chain of transitions that says how the manifest came about.
Each names the one before by its hash; the head is signed with a key that derives from the seed. fealty manifest
verify-history replays it on your machine.`, nil},
		{"seed", `The 32 secret bytes from which a cluster's stable keys derive.
It is made when the first manifest is set, is in the memory of coordinators alone, and leaves them only encrypted: to
its owners, to a keeper, or to another coordinator that proved itself.`, nil},
		{"keeper", `A key file or a program that seals the seed so that a coordinator can start without a human.
file:PATH is a key file of mode 0600 on the coordinator's machine, exec:PATH a program that seals and opens.`, nil},
		{"svid", `A SPIFFE identity document: here a short-lived certificate with one URI name.
An agent renews it long before it ends, with a new key each time.`, nil},
		{"snapshot", `Signed content for one node: a scope, a version and an expiry that the node verifies alone.
Versions are shown as authority epoch and config version, such as trust_bundle 1.4; both together never go down.`, nil},
		{"finding", `Something that needs attention, with a code and what to do about it.
It clears itself when its cause is gone.`, []Field{
			{"code", "A stable code: fealty explain CODE has its page."},
			{"severity", "info, warning or critical."},
			{"coordinator", "Which coordinator found it, where that is another one than was asked."},
			{"summary", "The fact that was found, and why it counts."},
			{"remedy", "A command to paste, or what a person can do."},
		}},
		{"exit", exitTopic(), nil},
	}
	return append(words, recordTopics()...)
}

func exitTopic() string {
	var b strings.Builder
	b.WriteString("The exit status of a command says how it ended; scripts may rely on it.\n")
	for _, row := range errcode.Exits() {
		fmt.Fprintf(&b, "\n    %3d  %s", int(row.Exit), row.Words)
	}
	return b.String()
}

// Page returns the page of a topic, as Markdown.
func (t Topic) Page() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n", t.Name, t.Text)
	if len(t.Fields) > 0 {
		fmt.Fprintf(&b, "\nFields:\n\n")
		for _, f := range t.Fields {
			fmt.Fprintf(&b, "- %s.%s: %s\n", t.Name, f.Name, f.Text)
		}
	}
	return b.String()
}
