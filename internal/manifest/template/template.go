// Package template writes a first manifest for people to edit.
package template

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/internal/manifest"
)

// Options says what Write writes. Options that cannot be guessed are
// required: trust has no default.
type Options struct {
	Cluster      string            // such as prod.example; required
	Signers      []manifest.Signer // at least one
	Owners       []manifest.Owner  // at least one
	Coordinators []Enrolled        // at least one

	// SignersThreshold and SeedThreshold are 1 if zero.
	SignersThreshold, SeedThreshold int
}

// Enrolled is a coordinator that proves itself with a key of its own.
type Enrolled struct {
	Name string       // of the entry, and so of the coordinator
	Key  manifest.Key // its enrolment key
}

// Write returns a manifest to start from, with comments. It is valid as it
// is: data nodes join with tokens, people log in with tokens. An error is that
// of [manifest.Parse], for options that make no manifest.
func Write(opts Options) ([]byte, error) {
	if opts.SignersThreshold == 0 {
		opts.SignersThreshold = 1
	}
	if opts.SeedThreshold == 0 {
		opts.SeedThreshold = 1
	}
	var b bytes.Buffer
	write := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	write("# The trust policy of a Fealty cluster: who may join as what, and who may change")
	write("# this. Check an edited copy with: fealty manifest verify FILE")
	write("cluster: %s", quote(opts.Cluster))
	write("")
	write("# The owners can bring the seed back if every coordinator is lost. A person holds a share, encrypted")
	write("# to their key, and it takes threshold people; a keeper holds the whole seed, and needs nobody.")
	write("seed:")
	write("  threshold: %d", opts.SeedThreshold)
	write("  owners:%s", ifEmpty(len(opts.Owners)))
	for _, o := range opts.Owners {
		if o.Keeper != "" {
			write("    - {name: %s, keeper: %s}", quote(o.Name), quote(o.Keeper))
		} else {
			write("    - {name: %s, recipient: %s}", quote(o.Name), quote(o.Recipient))
		}
	}
	write("    # - {name: bob, recipient: \"age1…\"}                             " +
		"# a person: age1…, ssh-ed25519 … or ssh-rsa …")
	write("    # - {name: kms, keeper: \"exec:/usr/local/bin/unwrap-seed\"}   # without a human, at start")
	write("")
	write("# The signers may set the next manifest: so many of these keys sign it, each where it is.")
	write("signers:")
	write("  threshold: %d", opts.SignersThreshold)
	write("  keys:%s", ifEmpty(len(opts.Signers)))
	for _, s := range opts.Signers {
		write("    - {name: %s, key: %s}", quote(s.Name), quote(s.Key.String()))
	}
	write("")
	write("# Proofs are checked against these roots. They are needed for selectors that begin with x509:")
	write("# proofs:")
	write("#   x509:")
	write("#     roots_pem: |")
	write("#       -----BEGIN CERTIFICATE-----")
	write("")
	write("# Entries say who may join, and as what. A * stands for the name of the member.")
	write("admit:")
	for _, c := range opts.Coordinators {
		write("  - {name: %s, kind: coordinator, match: [%s]}",
			quote(c.Name), quote(manifest.FamilyKey+":"+c.Key.String()))
	}
	write("  - {name: nodes, kind: data, match: [\"token:nodes\"]}       # fealty token create --entry nodes")
	write("  - {name: admins, kind: admin, match: [\"token:admins\"]}    # fealty token create --entry admins")
	write("  # - {name: edge, kind: data, match: [\"x509:subject:CN=edge-*\"], roles: [ingress], max_members: 100}")
	write("")
	write("# root: nodes and data owners trust the cluster's root. mesh: every set makes a new mesh CA key.")
	write("trust: %s", manifest.TrustRoot)
	write("")
	write("# This is what a node may do while no coordinator can be reached, and for how long. An SVID")
	write("# lives longer than max (svid_ttl of an entry, by default max and %s).",
		document.FormatDuration(manifest.DefaultSVIDMargin))
	write("degraded:")
	names := make([]string, 0, len(manifest.Permissions()))
	for _, p := range manifest.Permissions() {
		names = append(names, string(p))
	}
	write("  allow: [%s]", strings.Join(names, ", "))
	write("  max: %s", document.FormatDuration(manifest.DefaultDegradedMax))
	write("  route_ttl: %s", document.FormatDuration(manifest.DefaultRouteTTL))
	write("")
	write("# How long after its SVID expired a member may come back with its last key. 0: never.")
	write("rejoin_grace: %s", document.FormatDuration(manifest.DefaultRejoinGrace))
	write("")
	write("# People are told while fewer data members than this are connected. A fleet that is to be smaller")
	write("# says so here; 0: none are needed. Without this it is %d.", manifest.DefaultBaselineData)
	write("# baseline: {data: 1}")

	if _, err := manifest.Parse(b.Bytes()); err != nil {
		if e, ok := errors.AsType[*manifest.InvalidError](err); ok {
			return nil, fmt.Errorf("no manifest comes of these options: %w", e)
		}
		return nil, err
	}
	return b.Bytes(), nil
}

// quote writes s as a YAML double-quoted scalar (YAML 1.2.2 §7.3.1), so that no
// option can end a value and begin another.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func ifEmpty(n int) string {
	if n == 0 {
		return " []"
	}
	return ""
}
