package manifest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/internal/pki/pemfile"
)

// A decoder turns nodes into a Manifest and collects what is wrong.
type decoder struct{ *document.Decoder }

type (
	node = document.Node
	part = document.Part
)

// name reads a name that becomes part of identities and of error messages.
func (d *decoder) name(n *node, path string) string {
	s, ok := d.Text(n, path)
	if ok && !IsName(s) {
		d.Fault("name", path, document.Shown(s)+" is not a name",
			fmt.Sprintf("use letters, digits, '.', '-' and '_', at most %d of them", MaxNameBytes))
		return ""
	}
	return s
}

func (d *decoder) manifest(root *node) *Manifest {
	m := &Manifest{Trust: defaultTrust, RejoinGrace: DefaultRejoinGrace,
		Baseline: Baseline{Data: DefaultBaselineData},
		Degraded: Degraded{Allow: Permissions(), Max: DefaultDegradedMax, RouteTTL: -1}}
	d.Object(root, "",
		part{Name: "cluster", Required: true, Read: func(n *node, path string) {
			s, ok := d.Text(n, path)
			if !ok {
				return
			}
			if err := identity.CheckCluster(s); err != nil {
				d.Fault("cluster-name", path, err.Error(), "write a SPIFFE trust domain, such as prod.example")
				return
			}
			m.Cluster = s
		}},
		part{Name: "seed", Required: true, Read: func(n *node, path string) { d.seed(n, path, &m.Seed) }},
		part{Name: "signers", Required: true, Read: func(n *node, path string) { d.signers(n, path, &m.Signers) }},
		part{Name: "proofs", Required: false, Read: func(n *node, path string) { d.proofs(n, path, &m.Proofs) }},
		part{Name: "admit", Required: true, Read: func(n *node, path string) {
			d.List(n, path, MaxEntries, func(n *node, path string) {
				m.Admit = append(m.Admit, d.entry(n, path))
			})
		}},
		part{Name: "trust", Required: false, Read: func(n *node, path string) {
			m.Trust = document.Word(d.Decoder, n, path, "trust", []Trust{TrustRoot, TrustMesh})
		}},
		part{Name: "degraded", Required: false, Read: func(n *node, path string) { d.degraded(n, path, &m.Degraded) }},
		part{Name: "rejoin_grace", Required: false, Read: func(n *node, path string) {
			m.RejoinGrace = d.Duration(n, path, 0, MaxRejoinGrace)
		}},
		part{Name: "baseline", Required: false, Read: func(n *node, path string) {
			m.Baseline.stated = true
			d.Object(n, path, part{Name: "data", Required: false, Read: func(n *node, path string) {
				m.Baseline.Data = d.Number(n, path, 0, MaxMembers)
			}})
		}},
		part{Name: "workloads", Required: false, Read: func(n *node, path string) {
			d.Object(n, path, part{Name: "token_issuer", Required: true,
				Read: func(n *node, path string) { m.TokenIssuer = d.issuer(n, path) }})
		}},
	)
	fillDefaults(m)
	return m
}

// fillDefaults sets what the document leaves to other fields of it.
func fillDefaults(m *Manifest) {
	if m.Degraded.RouteTTL < 0 {
		m.Degraded.RouteTTL = min(DefaultRouteTTL, m.Degraded.Max)
	}
	for i := range m.Admit {
		switch e := &m.Admit[i]; {
		case e.SVIDTTL != 0:
		case isPerson(e.Kind):
			e.SVIDTTL = DefaultPersonTTL
		default:
			e.SVIDTTL = m.Degraded.Max + DefaultSVIDMargin
		}
	}
}

// isPerson reports whether k is a kind of people and tools, which log in again
// instead of living through degraded mode.
func isPerson(k identity.Kind) bool { return k == identity.Admin || k == identity.Readonly }

func (d *decoder) seed(n *node, path string, s *Seed) {
	d.Object(n, path,
		part{Name: "threshold", Required: true, Read: func(n *node, path string) {
			s.Threshold = d.Number(n, path, 1, MaxOwners)
		}},
		part{Name: "owners", Required: true, Read: func(n *node, path string) {
			d.List(n, path, MaxOwners, func(n *node, path string) {
				s.Owners = append(s.Owners, d.owner(n, path))
			})
		}},
	)
}

func (d *decoder) owner(n *node, path string) Owner {
	var o Owner
	d.Object(n, path,
		part{Name: "name", Required: true, Read: func(n *node, path string) { o.Name = d.name(n, path) }},
		part{Name: "recipient", Required: false, Read: func(n *node, path string) {
			s, ok := d.Text(n, path)
			if !ok {
				return
			}
			if _, wrong := checkRecipient(s); wrong != "" {
				d.Fault("recipient", path, wrong, "paste an age recipient (age1…, from age-keygen) or an SSH "+
					"public key (ssh-ed25519 or ssh-rsa)")
			}
			o.Recipient = s
		}},
		part{Name: "keeper", Required: false, Read: func(n *node, path string) {
			s, ok := d.Text(n, path)
			if !ok {
				return
			}
			if wrong := checkKeeper(s); wrong != "" {
				d.Fault("keeper", path, wrong, "write file:/path of a key file, or exec:/path of a program")
			}
			o.Keeper = s
		}},
	)
	if (o.Recipient == "") == (o.Keeper == "") && n.Kind == document.Object && !d.Faulty(path) {
		d.Fault("owner-holder", path, "an owner has a recipient or a keeper, exactly one of the two",
			"add one, or split the owner in two")
	}
	return o
}

func (d *decoder) signers(n *node, path string, s *Signers) {
	d.Object(n, path,
		part{Name: "threshold", Required: true, Read: func(n *node, path string) {
			s.Threshold = d.Number(n, path, 1, MaxSigners)
		}},
		part{Name: "keys", Required: true, Read: func(n *node, path string) {
			d.List(n, path, MaxSigners, func(n *node, path string) {
				s.Keys = append(s.Keys, d.signer(n, path))
			})
		}},
	)
}

func (d *decoder) signer(n *node, path string) Signer {
	var s Signer
	d.Object(n, path,
		part{Name: "name", Required: true, Read: func(n *node, path string) { s.Name = d.name(n, path) }},
		part{Name: "key", Required: true, Read: func(n *node, path string) {
			text, ok := d.Text(n, path)
			if !ok {
				return
			}
			k, err := ParseKey(text)
			if err != nil {
				d.Fault("key", path, err.Error(), "write ed25519: and the public key in base64")
			}
			s.Key = k
		}},
	)
	return s
}

func (d *decoder) proofs(n *node, path string, p *Proofs) {
	d.Object(n, path,
		part{Name: "x509", Required: false, Read: func(n *node, path string) {
			p.X509 = &X509Proof{}
			d.Object(n, path, part{Name: "roots_pem", Required: true, Read: func(n *node, path string) {
				d.roots(n, path, p.X509)
			}})
		}},
		part{Name: "sevsnp", Required: false, Read: func(n *node, path string) {
			p.SEVSNP = &SEVSNPProof{}
			d.Object(n, path,
				part{Name: "measurements", Required: true, Read: func(n *node, path string) {
					p.SEVSNP.Measurements = document.Unique(d.Decoder, n, path, MaxListItems,
						d.measurement)
				}},
				part{Name: "min_tcb", Required: false, Read: func(n *node, path string) {
					d.tcb(n, path, &p.SEVSNP.MinTCB)
				}},
			)
		}},
	)
}

func (d *decoder) measurement(n *node, path string) string {
	s, ok := d.Text(n, path)
	if !ok {
		return ""
	}
	canonical, wrong := parseHex(48)(s)
	if wrong != "" {
		d.Fault("measurement", path, document.Shown(s)+" is not a launch measurement",
			"write its 48 bytes as 96 hex digits")
	}
	return canonical
}

func (d *decoder) tcb(n *node, path string, t *TCB) {
	component := func(v *uint8) func(*node, string) {
		return func(n *node, path string) { *v = uint8(d.Number(n, path, 0, 255)) }
	}
	d.Object(n, path,
		part{Name: "bootloader", Required: false, Read: component(&t.Bootloader)},
		part{Name: "tee", Required: false, Read: component(&t.TEE)},
		part{Name: "snp", Required: false, Read: component(&t.SNP)},
		part{Name: "microcode", Required: false, Read: component(&t.Microcode)},
	)
}

// roots reads the certificates of proofs.x509. Whether one is in date is a
// question for the moment of a proof, not of parsing.
func (d *decoder) roots(n *node, path string, p *X509Proof) {
	const do = "paste CA certificates, each from BEGIN CERTIFICATE to END CERTIFICATE"
	s, ok := d.Text(n, path)
	if !ok {
		return
	}
	if len(s) > maxRootsPEMBytes {
		d.Fault("roots-pem", path, fmt.Sprintf("%d bytes", len(s)), fmt.Sprintf("at most %d are allowed",
			maxRootsPEMBytes))
		return
	}
	p.RootsPEM = s
	certs, _, err := pemfile.Certificates([]byte(s), pemfile.Limits{Bytes: maxRootsPEMBytes, Blocks: 2 * maxRoots},
		pemfile.Nothing)
	switch {
	case errors.Is(err, pemfile.ErrPrivateKey):
		d.Fault("roots-pem", path, "a private key, and a manifest is public", "remove it, replace that key pair, and "+do)
		return
	case err != nil:
		d.Fault("roots-pem", path, err.Error(), do)
		return
	case len(certs) > maxRoots:
		d.Fault("roots-pem", path, "too many certificates", fmt.Sprintf("at most %d are allowed", maxRoots))
		return
	}
	for i, cert := range certs {
		if !cert.BasicConstraintsValid || !cert.IsCA {
			d.Fault("roots-pem", path, fmt.Sprintf("certificate %d, of %s, is not a CA's", i+1,
				document.Shown(cert.Subject.String())), do)
			return
		}
		p.RootsDER = append(p.RootsDER, cert.Raw)
	}
}

func (d *decoder) entry(n *node, path string) Entry {
	var e Entry
	d.Object(n, path,
		part{Name: "name", Required: true, Read: func(n *node, path string) { e.Name = d.name(n, path) }},
		part{Name: "kind", Required: true, Read: func(n *node, path string) {
			e.Kind = document.Word(d.Decoder, n, path, "kind", Kinds())
		}},
		part{Name: "match", Required: true, Read: func(n *node, path string) {
			d.List(n, path, MaxPatterns, func(n *node, path string) {
				e.Match = append(e.Match, d.pattern(n, path))
			})
			if e.Match == nil && !d.Faulty(path) {
				d.Fault("selector", path, "an entry without a selector can match nothing",
					"add one, such as "+selectorForms[2].example)
			}
		}},
		part{Name: "roles", Required: false, Read: func(n *node, path string) {
			e.Roles = document.Unique(d.Decoder, n, path, MaxListItems, func(n *node, path string) Role {
				return document.Word(d.Decoder, n, path, "role", Roles())
			})
		}},
		part{Name: "organizations", Required: false, Read: func(n *node, path string) {
			e.Organizations = document.Unique(d.Decoder, n, path, MaxListItems, d.name)
		}},
		part{Name: "max_members", Required: false, Read: func(n *node, path string) {
			e.MaxMembers = d.Number(n, path, 1, MaxMembers)
		}},
		part{Name: "svid_ttl", Required: false, Read: func(n *node, path string) {
			e.SVIDTTL = d.Duration(n, path, MinSVIDTTL, MaxSVIDTTL)
		}},
		part{Name: "dns_names", Required: false, Read: func(n *node, path string) {
			e.DNSNames = document.Unique(d.Decoder, n, path, MaxListItems, d.dnsName)
		}},
		part{Name: "ips", Required: false, Read: func(n *node, path string) {
			e.IPs = document.Unique(d.Decoder, n, path, MaxListItems, d.ip)
		}},
		part{Name: "labels", Required: false, Read: func(n *node, path string) { e.Labels = d.labels(n, path) }},
		part{Name: "platform_may_read_seed", Required: false, Read: func(n *node, path string) {
			e.PlatformMayReadSeed = d.Yes(n, path)
		}},
	)
	return e
}

// pattern keeps a place in the list for a pattern that is wrong, so that the
// indices of those after it stay those of the document.
func (d *decoder) pattern(n *node, path string) Pattern {
	s, ok := d.Text(n, path)
	if !ok {
		return Pattern{}
	}
	p, err := ParsePattern(s)
	if e, wrong := errors.AsType[*patternError](err); wrong {
		d.Fault("selector", path, e.What, e.Do)
	}
	return p
}

// labels reads labels, no two of one key.
func (d *decoder) labels(n *node, path string) []string {
	var out, keys []string
	d.List(n, path, MaxLabels, func(n *node, path string) {
		s, ok := d.Text(n, path)
		if !ok {
			return
		}
		key, problem := labelKey(s)
		switch {
		case problem != "":
			d.Fault("label", path, problem, "write one such as rack=r2")
		case slices.Contains(keys, key):
			d.Fault("label", path, "key "+key+" stands in the list already", "remove one of them")
		default:
			out, keys = append(out, s), append(keys, key)
		}
	})
	slices.Sort(out)
	return out
}

// issuer reads who tokens say signed them.
func (d *decoder) issuer(n *node, path string) string {
	s, ok := d.Text(n, path)
	if !ok {
		return ""
	}
	if wrong := issuerFault(s); wrong != "" {
		d.Fault("token-issuer", path, document.Shown(s)+" is no issuer: "+wrong,
			"write the URL below which verifiers find .well-known/openid-configuration, such as https://id.example")
		return ""
	}
	return s
}

// dnsName reads a host name (RFC 1123 §2.1): a wildcard would let one member
// stand for others.
func (d *decoder) dnsName(n *node, path string) string {
	s, ok := d.Text(n, path)
	if !ok {
		return ""
	}
	valid := len(s) <= 253
	for label := range strings.SplitSeq(s, ".") {
		valid = valid && label != "" && len(label) <= 63 && label[0] != '-' && label[len(label)-1] != '-' &&
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
	}
	if !valid || netip.Addr.IsValid(addrOrZero(s)) {
		d.Fault("dns-name", path, document.Shown(s)+" is not a host name",
			"write it in lower case, without a wildcard, such as node-c.example")
	}
	return s
}

func addrOrZero(s string) netip.Addr {
	a, _ := netip.ParseAddr(s)
	return a
}

func (d *decoder) ip(n *node, path string) netip.Addr {
	s, ok := d.Text(n, path)
	if !ok {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() {
		d.Fault("ip", path, document.Shown(s)+" is not the address of a host",
			"write an IPv4 or IPv6 address without a zone")
	}
	return a
}

func (d *decoder) degraded(n *node, path string, g *Degraded) {
	d.Object(n, path,
		part{Name: "allow", Required: false, Read: func(n *node, path string) {
			g.Allow = document.Unique(d.Decoder, n, path, MaxListItems,
				func(n *node, path string) Permission {
					return document.Word(d.Decoder, n, path, "permission", Permissions())
				})
		}},
		part{Name: "max", Required: false, Read: func(n *node, path string) {
			g.Max = d.Duration(n, path, 0, MaxSVIDTTL-DefaultSVIDMargin)
		}},
		part{Name: "route_ttl", Required: false, Read: func(n *node, path string) {
			g.RouteTTL = d.Duration(n, path, 0, MaxRouteTTL)
		}},
	)
}
