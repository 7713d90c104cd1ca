package snapshot

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"github.com/fealty-io/fealty/internal/canonical"
	"github.com/fealty-io/fealty/internal/snapshot"
	"slices"
	"strings"
)

// ServiceAssignment is the content of scope service_assignment: what one node is
// to run, and what that needs. Lists are sorted by name or, of names, as strings,
// without duplicates, unless they say otherwise.
type ServiceAssignment struct {
	Endpoints []Endpoint // what an ingress may forward to
	Entry     *EntryPolicy
	Resources []Resource
	Secrets   []SecretRef
	Services  []Service
}

// Service is one workload that is assigned to the node.
type Service struct {
	Name         string
	Organization string // "": the whole cluster's
	Type         string
	Addresses    []string // in the order to try them
	QoS          string   // a class of the qos_policy; "": none
	Resources    []string // of this content
	Secrets      []string // of this content
	Parameters   []Parameter
}

// Parameter is one setting of a service or a resource. It is no place for a
// secret: those are referred to.
type Parameter struct{ Name, Value string }

// Resource is something outside of the fleet that services reach through a
// connector.
type Resource struct {
	Name         string
	Organization string // "": the whole cluster's
	Type         string
	Address      string
	Connector    string
	Parameters   []Parameter
	Secrets      []string // of this content
}

// SecretRef says where a secret is kept, and has no place for the secret.
type SecretRef struct {
	Name         string
	Organization string // "": the whole cluster's
	Resolver     string // who is asked for it
	Path         string // what the resolver is asked for
	Version      string // "": the newest
}

// EntryPolicy says which callers from outside an ingress lets in.
type EntryPolicy struct {
	Issuers     []Issuer
	MaxSessions int // 0: as many as it can
}

// Issuer is somebody whose tokens an ingress accepts.
type Issuer struct {
	Name      string
	URL       string
	Audiences []string // at least one
	Keys      [][]byte // PKIX DER public keys, sorted by their bytes; at least one
}

// Endpoint is the part of a service that an ingress needs to forward to it.
type Endpoint struct {
	Name         string
	Organization string // "": the whole cluster's
	Address      string
	Protocol     string
}

func (a *ServiceAssignment) scope() Scope { return ScopeServiceAssignment }

func (a *ServiceAssignment) walk(c *codec) {
	c.Begin()
	c.Member(snapshot.SectionEndpoints)
	dict(c, &a.Endpoints, snapshot.MaxRecords, validRecordName)
	if c.Has(snapshot.SectionEntry, a.Entry != nil) {
		if c.Reading() {
			a.Entry = new(EntryPolicy)
		}
		c.Member(snapshot.SectionEntry)
		a.Entry.walk(c)
	}
	c.Member(snapshot.SectionResources)
	dict(c, &a.Resources, snapshot.MaxRecords, validRecordName)
	c.Member(snapshot.SectionSecrets)
	dict(c, &a.Secrets, snapshot.MaxRecords, validRecordName)
	c.Member(snapshot.SectionServices)
	dict(c, &a.Services, snapshot.MaxRecords, validRecordName)
	c.End()
}

func (s *Service) key() *string  { return &s.Name }
func (s *Service) owner() string { return s.Organization }

func (s *Service) walk(c *codec) {
	c.Begin()
	c.Member("addresses")
	c.Names(&s.Addresses, snapshot.MaxReferences, maxAddress)
	c.Member("organization")
	c.Text(&s.Organization, maxName)
	c.Member("parameters")
	dict(c, &s.Parameters, snapshot.MaxReferences, validName)
	c.Member("qos")
	c.Text(&s.QoS, maxRecordName)
	c.Member("resources")
	c.Names(&s.Resources, snapshot.MaxReferences, maxRecordName)
	c.Member("secrets")
	c.Names(&s.Secrets, snapshot.MaxReferences, maxRecordName)
	c.Member("type")
	c.Text(&s.Type, maxName)
	c.End()
}

func (p *Parameter) key() *string { return &p.Name }

func (p *Parameter) walk(c *codec) {
	c.Text(&p.Value, snapshot.MaxText)
	if c.Err() == nil && p.Value != "" {
		c.Notice(snapshot.SecretName(p.Name))
	}
}

func (r *Resource) key() *string  { return &r.Name }
func (r *Resource) owner() string { return r.Organization }

func (r *Resource) walk(c *codec) {
	c.Begin()
	c.Member("address")
	c.Text(&r.Address, maxAddress)
	c.Member("connector")
	c.Text(&r.Connector, maxName)
	c.Member("organization")
	c.Text(&r.Organization, maxName)
	c.Member("parameters")
	dict(c, &r.Parameters, snapshot.MaxReferences, validName)
	c.Member("secrets")
	c.Names(&r.Secrets, snapshot.MaxReferences, maxRecordName)
	c.Member("type")
	c.Text(&r.Type, maxName)
	c.End()
}

func (s *SecretRef) key() *string  { return &s.Name }
func (s *SecretRef) owner() string { return s.Organization }

func (s *SecretRef) walk(c *codec) {
	c.Begin()
	c.Member("organization")
	c.Text(&s.Organization, maxName)
	c.Member("path")
	c.Text(&s.Path, snapshot.MaxText)
	c.Member("resolver")
	c.Text(&s.Resolver, maxName)
	c.Member("version")
	c.Text(&s.Version, maxName)
	c.End()
}

func (e *EntryPolicy) walk(c *codec) {
	c.Begin()
	c.Member("issuers")
	dict(c, &e.Issuers, snapshot.MaxReferences, validRecordName)
	c.Member("max_sessions")
	c.Number(&e.MaxSessions, canonical.MaxSeconds)
	c.End()
}

func (i *Issuer) key() *string { return &i.Name }

func (i *Issuer) walk(c *codec) {
	c.Begin()
	c.Member("audiences")
	c.Names(&i.Audiences, snapshot.MaxReferences, maxAddress)
	c.Member("keys")
	canonical.List(c, &i.Keys, snapshot.MaxReferences, func(c *codec, key *[]byte) { c.Blob(key, maxKeyBytes) })
	c.Member("url")
	c.Text(&i.URL, maxAddress)
	c.End()
}

func (e *Endpoint) key() *string  { return &e.Name }
func (e *Endpoint) owner() string { return e.Organization }

func (e *Endpoint) walk(c *codec) {
	c.Begin()
	c.Member("address")
	c.Text(&e.Address, maxAddress)
	c.Member("organization")
	c.Text(&e.Organization, maxName)
	c.Member("protocol")
	c.Text(&e.Protocol, maxName)
	c.End()
}

func (a *ServiceAssignment) grants(h *Header) string {
	msg := grantsOf(h, snapshot.SectionEndpoints, a.Endpoints)
	if msg == "" && a.Entry != nil {
		msg = grantsOfSection(h, snapshot.SectionEntry)
	}
	if msg == "" {
		msg = grantsOf(h, snapshot.SectionResources, a.Resources)
	}
	if msg == "" {
		msg = grantsOf(h, snapshot.SectionSecrets, a.Secrets)
	}
	if msg == "" {
		msg = grantsOf(h, snapshot.SectionServices, a.Services)
	}
	return msg
}

func (a *ServiceAssignment) fault(*Header) string {
	for i := range a.Endpoints {
		e := &a.Endpoints[i]
		if !validLine(e.Address, maxAddress) || !validName(e.Protocol) {
			return about(snapshot.SectionEndpoints, e.Name, fmt.Sprintf("address %.80q of protocol %.40q", e.Address, e.Protocol))
		}
	}
	if a.Entry != nil {
		for i := range a.Entry.Issuers {
			if msg := a.Entry.Issuers[i].fault(); msg != "" {
				return about("entry: issuer", a.Entry.Issuers[i].Name, msg)
			}
		}
	}
	for i := range a.Resources {
		if msg := a.Resources[i].fault(a); msg != "" {
			return about(snapshot.SectionResources, a.Resources[i].Name, msg)
		}
	}
	for i := range a.Secrets {
		s := &a.Secrets[i]
		if !validName(s.Resolver) || !validLine(s.Path, snapshot.MaxText) || s.Version != "" && !validName(s.Version) {
			return about(snapshot.SectionSecrets, s.Name, fmt.Sprintf("resolver %.40q, path %.80q, version %.40q", s.Resolver, s.Path, s.Version))
		}
	}
	for i := range a.Services {
		if msg := a.Services[i].fault(a); msg != "" {
			return about(snapshot.SectionServices, a.Services[i].Name, msg)
		}
	}
	return ""
}

func (r *Resource) fault(a *ServiceAssignment) string {
	switch {
	case !validName(r.Type):
		return fmt.Sprintf("type %.40q is no name", r.Type)
	case !validLine(r.Address, maxAddress):
		return fmt.Sprintf("%.80q is no address", r.Address)
	case r.Connector != "" && !validName(r.Connector):
		return fmt.Sprintf("connector %.40q is no name", r.Connector)
	}
	msg := faultOfReferences(r.Secrets)
	if msg == "" {
		msg = resolves("secret", r.Secrets, a.Secrets)
	}
	return msg
}

func (s *Service) fault(a *ServiceAssignment) string {
	switch {
	case !validName(s.Type):
		return fmt.Sprintf("type %.40q is no name", s.Type)
	case s.QoS != "" && !validRecordName(s.QoS):
		return fmt.Sprintf("qos %.80q is no name of a record", s.QoS)
	}
	msg := faultOfAddresses(s.Addresses)
	if msg == "" {
		msg = faultOfReferences(s.Resources)
	}
	if msg == "" {
		msg = faultOfReferences(s.Secrets)
	}
	if msg == "" {
		msg = resolves("resource", s.Resources, a.Resources)
	}
	if msg == "" {
		msg = resolves("secret", s.Secrets, a.Secrets)
	}
	return msg
}

func (i *Issuer) fault() string {
	switch {
	case !strings.HasPrefix(i.URL, "https://") || !validLine(i.URL, maxAddress):
		return fmt.Sprintf("%.80q is no https:// URL", i.URL)
	case len(i.Audiences) == 0 || !slices.IsSorted(i.Audiences) || len(slices.Compact(slices.Clone(i.Audiences))) != len(i.Audiences):
		return "audiences: want at least one, in order, none double"
	case len(i.Keys) == 0 || !canonical.Ascending(i.Keys, bytes.Compare):
		return "keys: want at least one, in order, none double"
	}
	for _, a := range i.Audiences {
		if !validLine(a, maxAddress) {
			return fmt.Sprintf("%.80q is no audience", a)
		}
	}
	for _, der := range i.Keys {
		key, err := x509.ParsePKIXPublicKey(der)
		if err != nil {
			return "a key is no PKIX public key"
		}
		switch k := key.(type) {
		case ed25519.PublicKey, *ecdsa.PublicKey:
		case *rsa.PublicKey:
			if k.N.BitLen() < 2048 {
				return fmt.Sprintf("an RSA key of %d bits, want 2048 or more", k.N.BitLen())
			}
		default:
			return fmt.Sprintf("a key of type %T, want Ed25519, ECDSA or RSA", key)
		}
	}
	return ""
}

// clone returns a copy that shares nothing that can be written.
func (a *ServiceAssignment) clone() ServiceAssignment {
	n := ServiceAssignment{
		Endpoints: slices.Clone(a.Endpoints), Resources: slices.Clone(a.Resources),
		Secrets: slices.Clone(a.Secrets), Services: slices.Clone(a.Services),
	}
	if a.Entry != nil {
		entry := *a.Entry
		entry.Issuers = slices.Clone(entry.Issuers)
		for i := range entry.Issuers {
			issuer := &entry.Issuers[i]
			issuer.Audiences, issuer.Keys = slices.Clone(issuer.Audiences), slices.Clone(issuer.Keys)
			for j := range issuer.Keys {
				issuer.Keys[j] = bytes.Clone(issuer.Keys[j])
			}
		}
		n.Entry = &entry
	}
	for i := range n.Resources {
		r := &n.Resources[i]
		r.Parameters, r.Secrets = slices.Clone(r.Parameters), slices.Clone(r.Secrets)
	}
	for i := range n.Services {
		s := &n.Services[i]
		s.Addresses, s.Resources, s.Secrets = slices.Clone(s.Addresses), slices.Clone(s.Resources), slices.Clone(s.Secrets)
		s.Parameters = slices.Clone(s.Parameters)
	}
	return n
}
