package reference

import (
	"fmt"
	"strings"

	desired "github.com/fealty-io/fealty/internal/config"
)

// recordTopics are the kinds of records of the desired config, as topics.
func recordTopics() []Topic {
	var out []Topic
	for _, kind := range desired.Kinds() {
		t := Topic{Name: string(kind), Text: "A kind of record of the desired config, put with fealty config put.\n" +
			desired.About(kind)}
		for _, f := range desired.Fields(kind) {
			t.Fields = append(t.Fields, Field{f.Path, f.About + " Takes: " + f.Takes + "."})
		}
		out = append(out, t)
	}
	return out
}

// desiredPage is the reference of the desired config.
func desiredPage() string {
	var b strings.Builder
	b.WriteString("# Desired config\n\n" + generatedNote)
	fmt.Fprintf(&b, `Nodes are to run and to know this: records that people put, and that snapshots are compiled `+
		`from. A file holds YAML
documents, each a record or a list of them, or JSON; at most %d records and %d bytes are put at a time. A field that is
not known is an error, and so is one that stands twice. A duration has a unit: `+"`d`, `h`, `m` or `s`"+`, as in `+
		``+"`36h`"+`.

A record is named by its kind and its name. The records that it refers to have to be there, or to be put in the same
step, and one that others refer to is not deleted. A record of an organization refers to records of the same one or of
the whole cluster; one of the whole cluster refers to no organization's. A value that looks like a secret is refused
everywhere: a secret is a record that says where to ask for it.

`+"`fealty explain KIND`"+` shows these fields in a terminal. How to put and change records is told in
[Put the desired config](../how-to/put-config.md).

This example has each kind, with every field. It fits members whose entries in the manifest say this: `+"`data/db-1`"+` has the roles
core and storage; `+"`data/node-c`"+` has the role egress, others have the role ingress, and both are of the organization acme.
Where that is not so, what nobody may be given is left out, and `+"`fealty status`"+` names it
([FE-D111](errors.md#fe-d111-the-config-asks-for-what-is-not-given)).

`+"```yaml\n"+desired.Example+"```\n", desired.MaxBatch, desired.MaxText)
	for _, kind := range desired.Kinds() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| field | what | takes | not set |\n| --- | --- | --- | --- |\n", kind,
			desired.About(kind))
		for _, f := range desired.Fields(kind) {
			unset := f.Unset
			if unset == "" {
				unset = mustBeSet
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", code(f.Path), f.About, f.Takes, unset)
		}
	}
	return b.String()
}
