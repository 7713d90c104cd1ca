package snapshot_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/snapshot"
)

// A receiver does not treat each refusal alike: of some it has nothing to fear, and one is an
// alarm.
func ExampleVerify() {
	c := newExampleCluster("core")
	var marks snapshot.Marks
	receive := func(data []byte) string {
		signed, err := snapshot.Unmarshal(data)
		if errors.Is(err, snapshot.ErrMalformed) {
			return "no snapshot at all"
		}
		v, err := snapshot.Verify(signed, c.trust(), marks, c.now)
		if rejected, ok := errors.AsType[*snapshot.RejectedError](err); ok {
			switch rejected.Reason {
			case snapshot.ReasonUnchanged:
				return "no news"
			case snapshot.ReasonVersion, snapshot.ReasonStaleRecord:
				return "from before, as of a mirror that lags: ask another"
			case snapshot.ReasonEquivocation:
				return "ALARM: keep both"
			}
			return fmt.Sprint("refused by check ", rejected.Check, ", ", errors.Is(err, snapshot.ErrRejected))
		} else if err != nil {
			return err.Error()
		}
		if marks, err = snapshot.Accept(marks, v); err != nil { // durably, before it is activated
			return err.Error()
		}
		return fmt.Sprint("active: version ", v.Header().ConfigVersion)
	}
	first, second := c.publish(1, exampleRoutes), c.publish(2, exampleRoutes)
	fmt.Println(receive(first))
	fmt.Println(receive(first))
	fmt.Println(receive(second))
	fmt.Println(receive(first))
	fmt.Println(receive(first[:10]))
	fmt.Println(receive(newExampleCluster("core").publish(3, exampleRoutes)))
	// Output:
	// active: version 1
	// no news
	// active: version 2
	// from before, as of a mirror that lags: ask another
	// no snapshot at all
	// refused by check 5, true
}

// A node that starts, perhaps in an outage, comes up with what it had: the marks know it.
func ExampleRecheck() {
	c := newExampleCluster("core")
	signed, err := snapshot.Unmarshal(c.publish(1, exampleRoutes))
	if err != nil {
		fmt.Println(err)
		return
	}
	v, err := snapshot.Verify(signed, c.trust(), snapshot.Marks{}, c.now)
	if err != nil {
		fmt.Println(err)
		return
	}
	marks, err := snapshot.Accept(snapshot.Marks{}, v)
	if err != nil {
		fmt.Println(err)
		return
	}
	saved, err := marks.Marshal() // to disk, with a checksum of your own
	if err != nil {
		fmt.Println(err)
		return
	}

	known, err := snapshot.ParseMarks(saved) // lost marks are an error, and not none
	if err != nil {
		fmt.Println(err)
		return
	}
	mark, _ := known.Get(v.Header().ScopeType, v.Header().Subject)
	v, err = snapshot.Recheck(signed, c.trust(), known, c.now.Add(24*time.Hour))
	fmt.Println(mark.ConfigVersion, v.HeaderDigest() == mark.Header, err)
	_, err = snapshot.Recheck(signed, c.trust(), snapshot.Marks{}, c.now)
	planted, _ := errors.AsType[*snapshot.RejectedError](err)
	fmt.Println(planted.Reason, planted.Reason == snapshot.ReasonUnrecorded)
	// Output:
	// 1 true <nil>
	// unrecorded true
}

// The age of what a node holds says how far it may rely on it, whoever can be reached.
func ExampleVerified_Freshness() {
	v := exampleVerified("core", exampleRoutes)
	act := func(now time.Time) string {
		switch v.Freshness(now, time.Hour) { // that long it is stale before it is degraded
		case snapshot.Fresh:
			return "act"
		case snapshot.Stale:
			return "act, and ask for news"
		case snapshot.Degraded:
			return "do what the degraded mode policy allows"
		case snapshot.Expired:
			return "do nothing by it"
		}
		return ""
	}
	issued := v.Header().IssuedAt
	for _, age := range []time.Duration{time.Minute, 30 * time.Minute, 2 * time.Hour, 800 * time.Hour} {
		fmt.Println(age, act(issued.Add(age)))
	}
	// Output:
	// 1m0s act
	// 30m0s act, and ask for news
	// 2h0m0s do what the degraded mode policy allows
	// 800h0m0s do nothing by it
}

// A node that pins the root CA learns the config root key from a statement, whoever brings it.
func ExampleVerifyRoot() {
	c := newExampleCluster()
	public := c.root.Public().(ed25519.PublicKey)
	statement, err := snapshot.RootStatement{ClusterID: "prod.example", ConfigRoot: public, SeedEpoch: 1,
		IssuedAt: c.now}.Sign(c.ca.Root().Key) // a coordinator's work
	if err != nil {
		fmt.Println(err)
		return
	}
	roots := []*x509.Certificate{c.ca.Root().Cert} // pinned
	key, err := snapshot.VerifyRoot(statement, roots, "prod.example", c.now)
	fmt.Println(key.Equal(public), err)
	_, err = snapshot.VerifyRoot(statement, roots, "other.example", c.now)
	fmt.Println(errors.Is(err, snapshot.ErrRejected))
	// Output:
	// true <nil>
	// true
}

// People look at what travels before anybody has verified it, and never act on that.
func ExampleUnmarshal() {
	signed, err := snapshot.Unmarshal(newExampleCluster("core").publish(1, exampleRoutes))
	if err != nil {
		fmt.Println(err)
		return
	}
	record, err := signed.Publication.ReadRecord()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("generation", record.Generation, "of", record.ClusterID, "covers", record.TreeSize, "header")
	fmt.Println("proof of header", signed.Proof.Index, "has", len(signed.Proof.Hashes), "hashes")
	for _, s := range signed.Publication.Signatures {
		fmt.Println("signed by", len(s.KeyID), "hex digits with", s.Algorithm)
	}
	// Output:
	// generation 1 of prod.example covers 1 header
	// proof of header 0 has 0 hashes
	// signed by 16 hex digits with ed25519-tree
}

// The trust bundle says whom a node believes in a handshake, and what it relies on no more.
func ExampleTrustBundle() {
	c := newExampleCluster("core")
	bundle, ok := c.bundle.TrustBundle() // of the scope snapshot.ScopeTrustBundle
	if !ok {
		fmt.Println("no", snapshot.ScopeTrustBundle)
		return
	}
	believed, err := bundle.Identity()
	if err != nil {
		fmt.Println(err)
		return
	}
	chain, _ := c.ca.Issue(exampleTB{}, c.me)
	verified, err := believed.Verify(chain, c.now)
	fmt.Println(verified.ID.Name(), err, believed.BannedIDs())
	for _, r := range bundle.Revoked {
		fmt.Println("do not rely on", r.Kind, r.Name)
	}
	fmt.Println(bundle.Revokes("service", "billing"))
	// Output:
	// node-c <nil> [spiffe://prod.example/data/node-x]
	// do not rely on service shop
	// false
}
