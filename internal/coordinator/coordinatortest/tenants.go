package coordinatortest

import (
	"fmt"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/proof"
)

// TenantEntries admit nodes of two organizations.
const TenantEntries = `  - {name: acme, kind: data, match: ["token:acme"], roles: [egress], organizations: [acme]}
  - {name: globex, kind: data, match: ["token:globex"], roles: [egress], organizations: [globex]}
  - {name: edge, kind: data, match: ["token:edge"], roles: [ingress], organizations: [acme]}
  - {name: both, kind: data, match: ["token:both"], roles: [core], organizations: [acme, globex]}
  - {name: ops, kind: admin, match: ["token:ops"]}
`

// Tenants returns a desk with a member of each entry, named as it, and a config of
// both organizations.
func Tenants(t *testing.T) *Desk { return TenantsWith(t, nil) }

// TenantsWith is [Tenants], with a config that alter changes.
func TenantsWith(t *testing.T, alter func(*coordinator.Config)) *Desk {
	t.Helper()
	d := ReadyDeskWith(t, TenantEntries, alter)
	for _, entry := range []string{"acme", "globex", "edge", "both"} {
		JoinedAs(d, entry, entry)
	}
	var records []string
	for _, o := range []string{"acme", "globex"} {
		records = append(records, fmt.Sprintf(`kind: organization
name: %[1]s
---
kind: secret
name: %[1]s-secret
organization: %[1]s
resolver: %[1]s-vault
path: kv/%[1]s
---
kind: resource
name: %[1]s-db
organization: %[1]s
type: db
address: %[1]s.example:1
secrets: [%[1]s-secret]
---
kind: service
name: %[1]s-web
organization: %[1]s
type: web
resources: [%[1]s-db]
expose: {address: "%[1]s-web.example:1", protocol: http}
---
kind: peer
name: %[1]s-peer
organization: %[1]s
member: data/%[1]s
addresses: ["%[1]s-peer.example:1"]
class: bootstrap
---
kind: route
name: %[1]s-route
organization: %[1]s
match: host %[1]s
to: [%[1]s-peer]
---
kind: qos
name: %[1]s-qos
organization: %[1]s
priority: 1
---
kind: storage
name: %[1]s-store
organization: %[1]s
url: https://%[1]s-store.example/
families: [route_policy]`, o))
	}
	MustPut(d, strings.Join(records, "\n---\n"))
	return d
}

// JoinedAs is a new member of an entry, with a name.
func JoinedAs(d *Desk, entry, name string) *Machine {
	d.T.Helper()
	m := d.Machine()
	if err := m.Join(identity.Data, proof.NewTokenProver(d.Token(&fealtyv1.CreateTokenRequest{Entry: entry,
		Name: name}))); err != nil {
		d.T.Fatalf("join %s: %v", name, err)
	}
	return m
}
