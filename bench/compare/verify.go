package main

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/theupdateframework/go-tuf/v2/metadata"
	"github.com/theupdateframework/go-tuf/v2/metadata/trustedmetadata"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// verifications compare what a receiver does with new content, from the bytes that came to values that a program
// uses. A client of TUF holds the root already, and is sent timestamp, snapshot and targets anew, with the content as
// a target. The third side is what nothing can do without: one signature, and one hash of the content.
func verifications(ctx context.Context, o options) ([]row, error) {
	var rows []row
	for _, size := range []int{4 << 10, 64 << 10} {
		ours, content, err := fealtySnapshot(size)
		if err != nil {
			return nil, err
		}
		theirs, err := tufRepository(content)
		if err != nil {
			return nil, err
		}
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			return nil, err
		}
		message := make([]byte, 300) // as long as a record of a publication is
		sig, hash := ed25519.Sign(key, message), sha256.Sum256(content)
		floor := func() error {
			if !ed25519.Verify(key.Public().(ed25519.PublicKey), message, sig) || sha256.Sum256(content) != hash {
				return errors.New("the signature does not verify")
			}
			return nil
		}
		n := o.scaled(200)
		sides := []side{inProcess("Fealty", n, ours), inProcess("go-tuf", n, theirs), inProcess("Ed25519 and SHA-256 alone", n, floor)}
		cost, err := turns(ctx, o.rounds, sides...)
		if err != nil {
			return nil, err
		}
		rows = append(rows, against(fmt.Sprintf("verify and read %d KiB of content", size>>10), "µs CPU", sides, cost)...)
	}
	return rows, nil
}

// routes are so many that their content has about some size bytes.
func routes(size int) []snapshot.Route {
	var out []snapshot.Route
	for i := 0; i*len(`"r-0000":{"deny":true,"match":"host=r-0000.shop.example","organization":"acme","priority":0,"service":"","to":[],"ttl_seconds":0,"via":[]},`) < size; i++ {
		name := fmt.Sprintf("r-%04d", i)
		out = append(out, snapshot.Route{Name: name, Organization: "acme", Match: "host=" + name + ".shop.example", Deny: true})
	}
	return out
}

// fealtySnapshot signs routes among a thousand snapshots of one publication, and returns what verifies them from bytes to
// typed content, and the content.
func fealtySnapshot(size int) (func() error, []byte, error) {
	now := time.Now().UTC().Truncate(time.Second)
	a := pkitest.NewAuthority(noTest{}, "prod.example")
	me := a.ID(noTest{}, identity.Data, "n1")
	_, root, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, nil, err
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, nil, err
	}
	_, signer, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, nil, err
	}
	header := snapshot.Header{ClusterID: "prod.example", ConfigVersion: 1, AuthorityEpoch: 1, IssuedAt: now, ValidFrom: now,
		RefreshAfter: now.Add(time.Hour), ExpiresAt: now.Add(720 * time.Hour), Subject: snapshot.ClusterSubject()}
	draft, err := snapshot.Compose(header, &snapshot.TrustBundle{
		ClusterID: "prod.example", AuthorityEpoch: 1, Roots: [][]byte{a.Root().Cert.Raw},
		MeshKeys: []identity.KeyID{a.MeshCA().KeyID()}, ConfigRoot: root.Public().(ed25519.PublicKey),
		ConfigKeys: []snapshot.ConfigKey{{Algorithm: internalsnapshot.AlgorithmTree, Key: key.Public().(ed25519.PublicKey),
			Scopes: []snapshot.Scope{snapshot.ScopeRoutePolicy}, NotBefore: now, NotAfter: now.Add(2000 * time.Hour)}},
		Signers: snapshot.Signers{Threshold: 1, Keys: []snapshot.SignerKey{{Name: "alice", Key: signer.Public().(ed25519.PublicKey)}}},
		Head:    snapshot.Head{Index: 1, Hash: snapshot.DigestOf([]byte("genesis"))},
	})
	if err != nil {
		return nil, nil, err
	}
	signed, err := draft.Sign(root)
	if err != nil {
		return nil, nil, err
	}
	trust := snapshot.Trust{Me: me, Incarnation: identity.KeyID{7}, ConfigRoot: root.Public().(ed25519.PublicKey),
		Roles: []string{"core"}, Organizations: []string{"acme"}}
	if trust.Bundle, err = snapshot.Verify(signed, trust, snapshot.Marks{}, now); err != nil {
		return nil, nil, err
	}
	header.Roles, header.OrganizationIDs = trust.Roles, trust.Organizations
	header.Subject = snapshot.GroupSubject(header.Roles, header.OrganizationIDs)
	if draft, err = snapshot.Compose(header, &snapshot.RoutePolicy{Routes: routes(size)}); err != nil {
		return nil, nil, err
	}
	leaves := make([]snapshot.Digest, 1000)
	for i := range leaves {
		leaves[i] = snapshot.DigestOf(fmt.Append(nil, i))
	}
	leaves[700] = draft.Leaf()
	tree := snapshot.NewTree(leaves)
	publication, err := snapshot.Record{ClusterID: "prod.example", AuthorityEpoch: 1, Generation: 1, IssuedAt: now,
		FreshUntil: now.Add(24 * time.Hour), Root: tree.Root(), TreeSize: tree.Size()}.Sign(key)
	if err != nil {
		return nil, nil, err
	}
	proof, err := tree.Proof(700)
	if err != nil {
		return nil, nil, err
	}
	signed = &snapshot.Signed{Header: draft.HeaderBytes(), Content: draft.ContentBytes(), Publication: publication, Proof: proof}
	data, err := signed.Marshal()
	if err != nil {
		return nil, nil, err
	}
	return func() error {
		s, err := snapshot.Unmarshal(data)
		if err != nil {
			return err
		}
		v, err := snapshot.Verify(s, trust, snapshot.Marks{}, now)
		if err != nil {
			return err
		}
		if policy, ok := v.RoutePolicy(); !ok || len(policy.Routes) == 0 {
			return errors.New("no routes were read")
		}
		return nil
	}, draft.ContentBytes(), nil
}

// tufRepository signs content as the target of a TUF repository, and returns what verifies it, as a client does that holds
// the root.
func tufRepository(content []byte) (func() error, error) {
	expires := time.Now().Add(24 * time.Hour).UTC()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	signer, err := signature.LoadSigner(key, crypto.Hash(0))
	if err != nil {
		return nil, err
	}
	public, err := metadata.KeyFromPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	root := metadata.Root(expires)
	for _, role := range metadata.TOP_LEVEL_ROLE_NAMES {
		if err := root.Signed.AddKey(public, role); err != nil {
			return nil, err
		}
	}
	targets := metadata.Targets(expires)
	target, err := metadata.TargetFile().FromBytes("routes.json", content)
	if err != nil {
		return nil, err
	}
	targets.Signed.Targets["routes.json"] = target
	inSnapshot, timestamp := metadata.Snapshot(expires), metadata.Timestamp(expires)
	for _, sign := range []func(signature.Signer) (*metadata.Signature, error){root.Sign, targets.Sign, inSnapshot.Sign, timestamp.Sign} {
		if _, err := sign(signer); err != nil {
			return nil, err
		}
	}
	var parts [4][]byte
	for i, marshal := range []func(bool) ([]byte, error){root.ToBytes, timestamp.ToBytes, inSnapshot.ToBytes, targets.ToBytes} {
		if parts[i], err = marshal(false); err != nil {
			return nil, err
		}
	}
	held, err := trustedmetadata.New(parts[0])
	if err != nil {
		return nil, err
	}
	type route struct {
		Deny         bool
		Match        string
		Organization string
		Priority     int
		Service      string
		To, Via      []string
		TTL          int `json:"ttl_seconds"`
	}
	return func() error {
		client := *held
		client.Targets = make(map[string]*metadata.Metadata[metadata.TargetsType])
		if _, err := client.UpdateTimestamp(parts[1]); err != nil {
			return err
		}
		if _, err := client.UpdateSnapshot(parts[2], false); err != nil {
			return err
		}
		verified, err := client.UpdateTargets(parts[3])
		if err != nil {
			return err
		}
		if err := verified.Signed.Targets["routes.json"].VerifyLengthHashes(content); err != nil {
			return err
		}
		var policy struct{ Entry, Routes map[string]route }
		if err := json.Unmarshal(content, &policy); err != nil {
			return err
		}
		if len(policy.Routes) == 0 {
			return errors.New("no routes were read")
		}
		return nil
	}, nil
}
