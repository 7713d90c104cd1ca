package signedtest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/snapshot"
)

// Replica is a mirror with a fault switch: a disk that a coordinator wrote to, and
// what is made of its files on the way.
type Replica struct {
	name string
	Disk *durabletest.Disk
	Bend func(ctx context.Context, name string, data []byte) ([]byte, error) // nil: nothing
	Down bool
}

// NewReplica returns an empty mirror.
func NewReplica(name string) *Replica { return &Replica{name: name, Disk: durabletest.NewDisk()} }

// String is its name.
func (r *Replica) String() string { return r.name }

// Get implements mirror.Source.
func (r *Replica) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	if r.Down {
		return nil, &mirror.Error{Reason: mirror.Unreachable, Name: name, Detail: "nobody is there"}
	}
	data, err := r.Disk.FS().ReadFile("pub/"+name, 1<<24)
	if err == nil && r.Bend != nil {
		data, err = r.Bend(ctx, name, data)
	}
	switch {
	case err != nil:
		return nil, &mirror.Error{Reason: mirror.Unreachable, Name: name, Detail: "it cannot be read", Err: err}
	case int64(len(data)) > limit:
		return nil, &mirror.Error{Reason: mirror.TooLarge, Name: name, Detail: "too much"}
	}
	return data, nil
}

// Publish writes a generation with a node_runtime for m, and a trust bundle, to the
// mirrors.
func (a *Author) Publish(m *Member, to []*Replica, edits ...func(*snapshot.Header, *snapshot.NodeRuntime,
	*snapshot.Record)) {
	a.TB.Helper()
	a.PublishAs(m, Cluster, to, edits...)
}

// PublishAs is Publish in the name of a cluster.
func (a *Author) PublishAs(m *Member, cluster string, to []*Replica,
	edits ...func(*snapshot.Header, *snapshot.NodeRuntime, *snapshot.Record)) {
	a.TB.Helper()
	signed, err := snapshot.Unmarshal(a.Runtime(m, edits...).GetEnvelope())
	a.Must(err)
	claims, err := signed.Claims()
	a.Must(err)
	other := []byte("of somebody else")
	p := mirror.Publication{
		Cluster: cluster, AuthorityEpoch: claims.Record.AuthorityEpoch, Generation: claims.Record.Generation,
		Root:   claims.Record.Root,
		Signed: *signed.Publication, TrustBundle: a.TrustBundle().GetEnvelope(),
		Headers: []mirror.Header{
			{Path: "node_runtime/node/data/a", Scope: snapshot.ScopeNodeRuntime, Subject: "node:a", Bytes: other,
				Leaf: snapshot.LeafOf(Cluster, other), Content: snapshot.DigestOf(other)},
			{Path: "node_runtime/node/data/b", Scope: snapshot.ScopeNodeRuntime,
				Subject: claims.Header.Subject.String(), Bytes: signed.Header,
				Leaf: snapshot.LeafOf(Cluster, signed.Header), Content: claims.Header.ContentHash},
		},
		Content: func(h snapshot.Digest) []byte {
			if h == snapshot.DigestOf(other) {
				return other
			}
			return signed.Content
		},
	}
	for _, r := range to {
		if wrote, err := mirror.NewWriter(r.Disk.FS(), "pub", a.Clock).Write(context.Background(), p); err != nil ||
			!wrote {
			a.TB.Fatalf("write generation %d to %s: %v, %v", p.Generation, r.name, wrote, err)
		}
	}
}

// GenerationOf writes a generation to the mirrors in which m has this node_runtime and
// these companions, as a coordinator does that compiled them together.
func (a *Author) GenerationOf(m *Member, to []*Replica, runtime func(*snapshot.NodeRuntime),
	companions ...snapshot.Content) {
	a.TB.Helper()
	a.Do(func() {
		a.Next++
		now := a.Clock().UTC().Truncate(time.Second)
		h := snapshot.Header{
			ClusterID: Cluster, ConfigVersion: a.Next, AuthorityEpoch: a.Epoch, IssuedAt: now, ValidFrom: now,
			ExpiresAt: now.Add(30 * 24 * time.Hour), RefreshAfter: now.Add(15 * 24 * time.Hour),
		}
		is := &snapshot.NodeRuntime{
			ClusterID: Cluster, Kind: m.ID.Kind(), Entry: "edge-pool", State: snapshot.MemberActive,
			Coordinators: a.Addresses(),
			RenewEvery:   a.RenewEvery, SVIDTTL: a.SVIDTTL, Roles: GroupRoles, Organizations: GroupOrganizations,
			Degraded: &snapshot.DegradedPolicy{Allow: []string{"continue_services"},
				Max: (a.SVIDTTL * 24 / 25).Truncate(time.Second), RouteTTL: time.Minute},
		}
		if runtime != nil {
			runtime(is)
		}
		h.Roles, h.OrganizationIDs = is.Roles, is.Organizations
		node, group := snapshot.NodeSubject(m.ID, m.Incarnation), snapshot.GroupSubject(is.Roles, is.Organizations)
		var drafts []*snapshot.Draft
		add := func(subject snapshot.Subject, content snapshot.Content) snapshot.Scope {
			h.Subject = subject
			h.ScopeType = ""
			draft, err := snapshot.Compose(h, content)
			a.Must(err)
			drafts = append(drafts, draft)
			return draft.Header().ScopeType
		}
		for _, c := range companions {
			subject := group
			if _, ok := c.(*snapshot.ServiceAssignment); ok {
				subject = node
			}
			is.Companions = append(is.Companions, add(subject, c))
		}
		slices.Sort(is.Companions)
		add(node, is)

		p := mirror.Publication{Cluster: Cluster, AuthorityEpoch: a.Epoch, Generation: a.Next,
			TrustBundle: a.TrustBundle().GetEnvelope()}
		contents := make(map[snapshot.Digest][]byte)
		slices.SortFunc(drafts, func(x, y *snapshot.Draft) int {
			return strings.Compare(string(x.Header().ScopeType), string(y.Header().ScopeType))
		})
		var leaves []snapshot.Digest
		for _, d := range drafts {
			header := d.Header()
			leaves = append(leaves, d.Leaf())
			contents[header.ContentHash] = d.ContentBytes()
			p.Headers = append(p.Headers, mirror.Header{Path: string(header.ScopeType) + "/x", Scope: header.ScopeType,
				Subject: header.Subject.String(),
				Bytes:   d.HeaderBytes(), Leaf: d.Leaf(), Content: header.ContentHash})
		}
		p.Content = func(h snapshot.Digest) []byte { return contents[h] }
		tree := snapshot.NewTree(leaves)
		record := snapshot.Record{ClusterID: Cluster, AuthorityEpoch: a.Epoch, Generation: a.Next, IssuedAt: now,
			FreshUntil: now.Add(15 * time.Minute), Revocations: a.revocations(), Root: tree.Root(),
			TreeSize: tree.Size()}
		signed, err := record.Sign(a.ConfigKey)
		a.Must(err)
		p.Signed, p.Root = *signed, record.Root
		for _, r := range to {
			if wrote, err := mirror.NewWriter(r.Disk.FS(), "pub", a.Clock).Write(context.Background(), p); err != nil ||
				!wrote {
				a.TB.Fatalf("write generation %d to %s: %v, %v", p.Generation, r.name, wrote, err)
			}
		}
	})
}
