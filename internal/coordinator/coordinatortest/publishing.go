package coordinatortest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/delivery"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store/chunk"
	"github.com/fealty-io/fealty/snapshot"
)

// Given returns the header and content of a member in each scope, as it would verify
// them.
func Given(t testing.TB, d *Desk, p *publication.View, name string) map[snapshot.Scope]snapshot.Header {
	t.Helper()
	out := make(map[snapshot.Scope]snapshot.Header)
	for _, i := range p.Of(identity.Data, name) {
		out[p.Header(i).Scope] = HeaderAt(t, p, i)
	}
	return out
}

// HeaderAt parses header i, which has to be what its record says.
func HeaderAt(t testing.TB, p *publication.View, i int) snapshot.Header {
	t.Helper()
	h := p.Header(i).Header
	parsed := ParseHeader(t, h.Header)
	if parsed.ConfigVersion != h.ConfigVersion || parsed.ContentHash.String() != h.Content ||
		parsed.Subject.String() != h.Subject || parsed.ScopeType != p.Header(i).Scope ||
		(parsed.Base == nil) != (h.Base == "") || parsed.Base != nil &&
		(parsed.Base.ContentHash.String() != h.Base || parsed.Base.ConfigVersion != h.BaseVersion) {
		t.Fatalf("header %+v is kept as %+v", parsed, h)
	}
	return parsed
}

// ParseHeader reads what was signed, without what verifies it.
func ParseHeader(t testing.TB, raw []byte) snapshot.Header {
	t.Helper()
	var in struct {
		Subject     string         `json:"subject"`
		Scope       snapshot.Scope `json:"scope_type"`
		Orgs        []string       `json:"organization_ids"`
		Version     uint64         `json:"config_version,string"`
		Epoch       uint64         `json:"authority_epoch,string"`
		Expires     time.Time      `json:"expires_at"`
		Content     string         `json:"content_hash"`
		BaseVersion uint64         `json:"base_config_version,string"`
		Base        string         `json:"base_content_hash"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	digest := func(s string) snapshot.Digest {
		d, err := snapshot.ParseDigest(s)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		return d
	}
	h := snapshot.Header{ScopeType: in.Scope, OrganizationIDs: in.Orgs, ConfigVersion: in.Version,
		AuthorityEpoch: in.Epoch, ExpiresAt: in.Expires, ContentHash: digest(in.Content)}
	var err error
	if h.Subject, err = snapshot.ParseSubject(in.Subject); err != nil {
		t.Fatal(err)
	}
	if in.Base != "" {
		h.Base = &snapshot.Base{ConfigVersion: in.BaseVersion, ContentHash: digest(in.Base)}
	}
	return h
}

// WantWholeAt checks that p holds what its headers name, and nothing else, in memory
// and in the store.
func WantWholeAt(d *Desk, t testing.TB, p *publication.View) {
	t.Helper()
	named := make(map[string]bool)
	for i := range p.Len() {
		HeaderAt(t, p, i)
		named[p.Header(i).Header.Content] = true
		if base := p.Header(i).Header.Base; base != "" {
			named[base] = true
		}
	}
	for hash := range named {
		if snapshot.DigestOf(p.Content(hash)).String() != hash {
			t.Errorf("content %s is missing", hash)
		}
	}
	indexes, pieces := d.Store.Keys(publication.IndexPrefix), make(map[[sha256.Size]byte]bool)
	for _, key := range indexes {
		_, list := chunk.Split(p.Content(strings.TrimPrefix(key, publication.IndexPrefix)))
		for _, part := range list {
			pieces[sha256.Sum256(part)] = true
		}
	}
	if got := d.Store.Keys(publication.PartPrefix); len(got) != len(pieces) {
		t.Errorf("%d parts are stored, of %d that indexes name", len(got), len(pieces))
	}
	if got := append(d.Store.Keys(publication.ContentPrefix), indexes...); len(got) != len(named) ||
		len(maps.Collect(p.Contents())) != len(named) || len(p.Orphans) != 0 {
		t.Errorf("%d contents are stored and %d in memory, of %d that headers name; %d orphans", len(got),
			len(maps.Collect(p.Contents())), len(named), len(p.Orphans))
	}
	if got := append(d.Store.Keys(publication.HeaderPrefix), d.Store.Keys(publication.PackedPrefix)...); len(got) != p.Len() {
		t.Errorf("%d headers are stored, %d served", len(got), p.Len())
	}
}

// LongPeers makes a peer_directory longer than one value may be, once for each of names.
func LongPeers(d *Desk, names ...string) {
	d.T.Helper()
	// No form of a secret begins with this letter: it is looked through in no time.
	long := strings.Repeat("z", 55)
	addresses := make([]string, 60)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("%q", fmt.Sprintf("h%d-%s.%s.%s.example:1", i, long, long, long))
	}
	for _, name := range names {
		var records []string
		for i := range 60 {
			records = append(records, fmt.Sprintf(
				"kind: peer\nname: %s-%d\nmember: data/both\naddresses: [%s]\nclass: bootstrap", name, i,
				strings.Join(addresses, ", ")))
		}
		MustPut(d, strings.Join(records, "\n---\n"))
	}
}

// FindingsAt returns the findings of a code that the desk's coordinator has.
func FindingsAt(d *Desk, t testing.TB, code errcode.Code) (out []*fealtyv1.Finding) {
	t.Helper()
	st, err := d.C.Parts().Shown.Status.GetStatus(
		context.Background(), &fealtyv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range st.GetFindings() {
		if f.GetCode() == string(code) {
			out = append(out, f)
		}
	}
	return out
}

// Envelopes returns what was sent of scope since the last call.
func (s *SentNews) Envelopes(t *testing.T, scope snapshot.Scope) []*snapshot.Signed {
	t.Helper()
	var out []*snapshot.Signed
	for _, m := range s.Sent {
		if m.GetSnapshot().GetScope() != string(scope) {
			continue
		}
		signed, err := snapshot.Unmarshal(m.GetSnapshot().GetEnvelope())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, signed)
	}
	s.Sent = nil
	return out
}

// PublishAll publishes at c until there is nothing more to do.
func PublishAll(d *Desk, c *coordinator.Coordinator, b *publication.Publisher) error {
	d.T.Helper()
	d.Lead(c)
	for range 100 {
		more, err := c.Parts().Publication.Publish(context.Background(), c.Parts().Head.State(), b)
		if err != nil || !more {
			return err
		}
	}
	d.T.Fatal("there is always more to publish")
	return nil
}

// MustPublish is [PublishAll] at the desk's coordinator, and returns what it serves then.
func MustPublish(d *Desk, b *publication.Publisher) *publication.View {
	d.T.Helper()
	if err := PublishAll(d, d.C, b); err != nil {
		d.T.Fatalf("publish: %v", err)
	}
	return d.C.Parts().Publication.View()
}

// FollowMembers makes c's view of the members that of the store, as its loop does.
func FollowMembers(d *Desk, c *coordinator.Coordinator) {
	d.T.Helper()
	s := c.Parts().Head.State()
	l, err := d.Store.List(context.Background(), record.MemberPrefix)
	if err != nil {
		d.T.Fatal(err)
	}
	var recs []record.Versioned[record.Member]
	for _, e := range l.Entries {
		r, err := record.Open[record.Member](s.Records, e)
		if err != nil {
			d.T.Fatal(err)
		}
		recs = append(recs, r)
	}
	c.Parts().Membership.Roster().Fill(recs, l.Revision)
}

// Reader is a node as it verifies: it remembers what it accepted.
type Reader struct {
	Trust snapshot.Trust
	Marks snapshot.Marks
}

// ReaderOf is a reader that trusts what m was told when it joined, and the bundle in force.
func ReaderOf(m *Machine) *Reader {
	m.Desk.T.Helper()
	s := m.Desk.State()
	r := &Reader{Trust: snapshot.Trust{Me: m.ID, Incarnation: m.Desk.Record(m.ID.Kind(), m.ID.Name()).Value.Incarnation,
		ConfigRoot: s.Bundle.PublicRoot()}}
	r.Follow(m.Desk)
	return r
}

// Follow takes the trust bundle in force.
func (r *Reader) Follow(d *Desk) {
	d.T.Helper()
	signed, err := snapshot.Unmarshal(d.C.Parts().Bundle.View().Signed)
	if err != nil {
		d.T.Fatal(err)
	}
	if r.Trust.Bundle, err = snapshot.Verify(signed, r.Trust, snapshot.Marks{}, d.Clock()); err != nil {
		d.T.Fatal(err)
	}
}

// Read verifies and accepts what p has for the node.
func (r *Reader) Read(d *Desk, p *publication.View) (*snapshot.Verified, error) {
	d.T.Helper()
	i, ok := p.Find(publication.RuntimePath(string(r.Trust.Me.Kind()) + "/" + r.Trust.Me.Name()))
	if !ok {
		return nil, errors.New("nothing is published for it")
	}
	m, err := p.Message(i)
	if err != nil {
		return nil, err
	}
	signed, err := snapshot.Unmarshal(m.GetEnvelope())
	if err != nil {
		return nil, err
	}
	v, err := snapshot.Verify(signed, r.Trust, r.Marks, d.Clock())
	if err != nil {
		return nil, err
	}
	r.Marks, err = snapshot.Accept(r.Marks, v)
	return v, err
}

// MustRead is [Reader.Read] of what has to verify.
func (r *Reader) MustRead(d *Desk, p *publication.View) *snapshot.Verified {
	d.T.Helper()
	v, err := r.Read(d, p)
	if err != nil {
		d.T.Fatal(err)
	}
	return v
}

// SentNews stands for a member's stream.
type SentNews struct {
	Ctx  context.Context
	Sent []*fealtyv1.ConnectResponse
}

func (s *SentNews) Context() context.Context { return s.Ctx }

func (s *SentNews) Send(m *delivery.News) error {
	s.Sent = append(s.Sent, m.ConnectResponse)
	return nil
}

// Until receives snapshots until one is of the scope, and returns those scopes that
// came before it.
func Until(t *testing.T, stream fealtyv1.AgentService_ConnectClient, scope snapshot.Scope) (*fealtyv1.SignedSnapshot,
	[]string) {
	t.Helper()
	var before []string
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("waiting for a %s, after %v: %v", scope, before, err)
		}
		if m.GetSnapshot().GetScope() == string(scope) {
			return m.GetSnapshot(), before
		}
		if m.GetSnapshot() == nil {
			continue // another kind of news
		}
		before = append(before, m.GetSnapshot().GetScope())
	}
}
