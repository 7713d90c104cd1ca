package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/internal/workload"
)

// commonFields are the fields of every record but those that its kind has no use for.
func commonFields(r Record) []field {
	c, kind := r.common(), r.Kind()
	out := []field{
		{name: "kind", about: "The kind of the record, which says what it is about.", required: true, value: value{
			takes: "the kind", read: func(d *decoder, n *node, path string) { d.Text(n, path) }, write: func() *node { return text(string(kind)) },
		}},
		{name: "name", about: "The name of the record, unique among those of its kind.", required: true, value: one(&c.Name, nameForm(kind))},
	}
	// A record of these that has them nevertheless is written with them, so that it is
	// refused when it is read.
	if (kind == KindOrganization || kind == KindRole) && c.Organization == "" && len(c.Roles) == 0 {
		return out
	}
	return append(out,
		field{name: "organization", about: "The organization that owns the record: nobody outside of it gets to see it.", unset: "the whole cluster's", value: ref(&c.Organization, KindOrganization)},
		field{name: "roles", about: "Narrows who gets the record to members with at least one of these roles.", unset: "all whose roles may hold it", value: set(&c.Roles, known("role", roleNames()))},
	)
}

// allFields are the fields of a record, those that all have first.
func allFields(r Record) []field { return append(commonFields(r), r.fields()...) }

const none = "none"

func (o *Organization) fields() []field {
	return []field{
		{name: "description", about: "A note for people.", unset: none, value: one(&o.Description, textForm(MaxValue))},
	}
}

func (r *Role) fields() []field {
	return []field{
		{name: "sessions", about: "Bounds the sessions of members with the role.", unset: "no bounds", value: nested(&r.Sessions, (*Sessions).fields, (*Sessions).faults)},
		{name: "issuers", about: "The issuers whose tokens an ingress accepts from clients.", unset: none, value: issuers(&r.Issuers)},
		{name: "max_sessions", about: "How many clients an ingress lets in at a time.", unset: "as many as it can", value: number(&r.MaxSessions, 1, MaxSessions)},
	}
}

func (s *Sessions) fields() []field {
	return []field{
		{name: "ttl", about: "How long a session lasts at most.", unset: "no bound", value: duration(&s.TTL, time.Second, MaxTTL)},
		{name: "idle", about: "How long a session lasts without traffic, at most `ttl`.", unset: "no bound", value: duration(&s.Idle, time.Second, MaxTTL)},
		{name: "max", about: "How many sessions there are at a time.", unset: "no bound", value: number(&s.Max, 1, MaxSessions)},
	}
}

func (s *Sessions) faults(d *decoder, path string) {
	if s.TTL != 0 && s.Idle > s.TTL {
		d.Fault("idle-above-ttl", document.Join(path, "idle"), fmt.Sprintf("%s is more than ttl, %s", document.FormatDuration(s.Idle), document.FormatDuration(s.TTL)), "write at most ttl")
	}
}

func (s *Service) fields() []field {
	return []field{
		{name: "type", about: "The kind of workload; whoever runs it knows the types.", required: true, value: one(&s.Type, wordForm())},
		{name: "addresses", about: "Where it is reached, in the order to try them.", unset: none, value: sequence(&s.Addresses, addressForm())},
		{name: "members", about: "The members that run it.", unset: "every member with the record's roles and organization", value: set(&s.Members, memberForm())},
		{name: "qos", about: "Its share of the network.", unset: none, value: ref(&s.QoS, KindQoS)},
		{name: "resources", about: "The resources that it uses.", unset: none, value: refs(&s.Resources, KindResource)},
		{name: "secrets", about: "The secrets that it uses, by the names of their records.", unset: none, value: refs(&s.Secrets, KindSecret)},
		{name: "parameters", about: "Its settings. No place for a secret.", unset: none, value: parameters(&s.Parameters)},
		{name: "expose", about: "The endpoint that an ingress forwards to.", unset: "no ingress forwards to it", value: nested(&s.Expose, (*Endpoint).fields, nil)},
		{name: "workload", about: "The processes that get an identity of their own from their machine's agent, " +
			"by the SPIFFE Workload API. One is meant if it fits all that is set.",
			unset: "none", value: nested(&s.Workload, (*Workload).fields, (*Workload).faults)},
	}
}

func (s *Service) faults(d *decoder) {
	if s.Workload == nil {
		return
	}
	settings := s.Workload.Settings()
	for _, p := range s.Parameters {
		if strings.HasPrefix(p.Name, workload.Prefix) {
			d.Fault("workload-twice", document.Join("parameters", p.Name),
				"the field workload says this, and a parameter says it too", "remove the parameter")
		}
	}
	if n := len(s.Parameters) + len(settings); n > MaxItems {
		d.Fault("too-many", "parameters", fmt.Sprintf("%d parameters and %d fields of workload, which travel "+
			"together", len(s.Parameters), len(settings)), fmt.Sprintf("at most %d are allowed", MaxItems))
	}
}

func (w *Workload) fields() []field {
	return []field{
		{name: "id", about: "The name in its identity, behind `spiffe://<cluster>/workload/`.",
			unset: "the name of the service", value: one(&w.ID, workloadForm())},
		{name: "uid", about: "The user that it runs as.", unset: "any", value: account(&w.UID)},
		{name: "gid", about: "The group that it runs as.", unset: "any", value: account(&w.GID)},
		{name: "path", about: "Its executable.", unset: "any", value: one(&w.Path, faultForm("path",
			"absolute path", workload.PathFault, "write the whole path, as in /usr/bin/billing"))},
		{name: "sha256", about: "The SHA-256 of its executable.", unset: "any", value: one(&w.SHA256,
			faultForm("sha256", "64 lower-case hexadecimal digits", workload.HexFault, "write what sha256sum prints"))},
		{name: "unit", about: "The systemd unit that it runs in.", unset: "any", value: one(&w.Unit,
			faultForm("unit", "name of a unit", workload.UnitFault, "write it as systemctl prints it"))},
		{name: "container", about: "The container that it runs in, by its whole id.", unset: "any",
			value: one(&w.Container, faultForm("container", "64 lower-case hexadecimal digits", workload.HexFault,
				"write the whole id, as podman ps --no-trunc prints it"))},
		{name: "ttl", about: "How long its certificates live.", unset: document.FormatDuration(workload.DefaultTTL),
			value: duration(&w.TTL, workload.MinTTL, workload.MaxTTL)},
	}
}

func (w *Workload) faults(d *decoder, path string) {
	if fault := w.Selector().Fault(); fault != "" {
		d.Fault("workload-anybody", path, fault,
			"add uid, gid, unit or container")
	}
}

func (e *Endpoint) fields() []field {
	return []field{
		{name: "address", about: "Where an ingress reaches it.", required: true, value: one(&e.Address, addressForm())},
		{name: "protocol", about: "How it is spoken to, such as http or tcp.", required: true, value: one(&e.Protocol, wordForm())},
	}
}

func (r *Resource) fields() []field {
	return []field{
		{name: "type", about: "The kind of resource; its connector knows the types.", required: true, value: one(&r.Type, wordForm())},
		{name: "address", about: "Where it is, as its connector takes it.", required: true, value: one(&r.Address, lineForm(MaxAddress))},
		{name: "connector", about: "The connector through which services reach it.", unset: none, value: one(&r.Connector, wordForm())},
		{name: "parameters", about: "Its settings. No place for a secret.", unset: none, value: parameters(&r.Parameters)},
		{name: "secrets", about: "The secrets that its connector uses, by the names of their records.", unset: none, value: refs(&r.Secrets, KindSecret)},
	}
}

func (p *Peer) fields() []field {
	return []field{
		{name: "member", about: "The member that is the peer.", required: true, value: one(&p.Member, memberForm())},
		{name: "addresses", about: "Where it is reached, in the order to try them.", required: true, value: sequence(&p.Addresses, addressForm())},
		{name: "class", about: "The use that others make of it: they work with it (active), keep it in reserve (warm), or find the fleet by it when no coordinator answers (bootstrap).", required: true,
			value: one(&p.Class, known("class", []string{PeerActive, PeerWarm, PeerBootstrap}))},
	}
}

func (p *Peer) faults(d *decoder) { wantItems(d, "addresses", len(p.Addresses)) }

// wantItems reports an empty list where one item is needed.
func wantItems(d *decoder, path string, n int) {
	if n == 0 {
		d.Fault("missing-item", path, "the list is empty", "add an item")
	}
}

func (r *Route) fields() []field {
	return []field{
		{name: "service", about: "The service that it leads to.", unset: "any", value: ref(&r.Service, KindService)},
		{name: "match", about: "The look of the traffic, in the words of whoever forwards it.", unset: "all of it", value: one(&r.Match, textForm(MaxValue))},
		{name: "to", about: "The peers that it leads to, in the order of preference.", unset: none, value: refSequence(&r.To, KindPeer)},
		{name: "via", about: "The peers to pass, in this order.", unset: none, value: refSequence(&r.Via, KindPeer)},
		{name: "priority", about: "Of several that match, the one with the highest counts.", unset: "0", value: number(&r.Priority, 0, MaxPriority)},
		{name: "ttl", about: "How long a decision may be kept.", unset: "it is not kept", value: duration(&r.TTL, 0, MaxTTL)},
		{name: "deny", about: "The traffic goes nowhere.", unset: "false", value: yes(&r.Deny)},
		{name: "entry", about: "It is about what comes in from outside.", unset: "false", value: yes(&r.Entry)},
	}
}

func (r *Route) faults(d *decoder) {
	for name, list := range map[string][]string{"to": r.To, "via": r.Via} {
		if r.Deny && len(list) > 0 {
			d.Fault("deny-leads-on", name, "the route denies, and says where to", "remove this, or deny")
		}
	}
}

func (q *QoS) fields() []field {
	return []field{
		{name: "priority", about: "The highest goes first.", unset: "0", value: number(&q.Priority, 0, MaxPriority)},
		{name: "min_kbps", about: "The rate it gets at least, in kilobits per second.", unset: "0", value: number(&q.MinKbps, 0, MaxKbps)},
		{name: "max_kbps", about: "The rate it gets at most, in kilobits per second, not below `min_kbps`.", unset: "no bound", value: number(&q.MaxKbps, 1, MaxKbps)},
	}
}

func (q *QoS) faults(d *decoder) {
	if q.MaxKbps != 0 && q.MaxKbps < q.MinKbps {
		d.Fault("max-below-min", "max_kbps", fmt.Sprintf("%d is less than min_kbps, %d", q.MaxKbps, q.MinKbps), "write at least min_kbps")
	}
}

func (s *Storage) fields() []field {
	return []field{
		{name: "url", about: "Where it is. Content from there is verified as if anybody had brought it.", required: true, value: one(&s.URL, urlForm())},
		{name: "families", about: "The scopes of the snapshots that are there.", required: true, value: set(&s.Families, known("scope", scopeNames()))},
		{name: "priority", about: "The highest is asked first.", unset: "0", value: number(&s.Priority, 0, MaxPriority)},
		{name: "shard", about: "The shard of these families, where they are divided.", unset: "they are not divided", value: nested(&s.Shard, (*Shard).fields, (*Shard).faults)},
	}
}

func (s *Storage) faults(d *decoder) { wantItems(d, "families", len(s.Families)) }

func (s *Shard) fields() []field {
	return []field{
		{name: "replicas", about: "The peers that may keep it.", required: true, value: refs(&s.Replicas, KindPeer)},
		{name: "factor", about: "How many of the replicas are to have it.", required: true, value: number(&s.Factor, 1, MaxItems)},
	}
}

func (s *Shard) faults(d *decoder, path string) {
	if s.Factor > len(s.Replicas) {
		d.Fault("factor-above-replicas", document.Join(path, "factor"), fmt.Sprintf("%d is more than there are replicas, %d", s.Factor, len(s.Replicas)), "name more replicas, or write at most as many")
	}
}

func (s *Secret) fields() []field {
	return []field{
		{name: "resolver", about: "The resolver that is asked for the secret.", required: true, value: one(&s.Resolver, quiet(wordForm()))},
		{name: "path", about: "The path that the resolver is asked for. Never the secret.", required: true, value: one(&s.Path, quiet(lineForm(MaxValue)))},
		{name: "version", about: "Which version of it.", unset: "the newest", value: one(&s.Version, quiet(wordForm()))},
	}
}

func (g *Degraded) fields() []field {
	return []field{
		{name: "allow", about: "The actions that members may do out of reach.", unset: "all that the manifest allows", value: optionalSet(&g.Allow, known("permission", permissionNames()))},
		{name: "max", about: "How long they go on.", unset: "as the manifest says", value: optionalDuration(&g.Max, MaxTTL)},
		{name: "route_ttl", about: "How long existing routes stay valid.", unset: "as the manifest says", value: optionalDuration(&g.RouteTTL, MaxTTL)},
		{name: "session_ttl", about: "How long existing sessions stay valid.", unset: "as long as `max`", value: optionalDuration(&g.SessionTTL, MaxTTL)},
		{name: "trials", about: "For how long a new snapshot of a scope is on trial after its activation.", unset: "no trials", value: trials(&g.Trials)},
	}
}
