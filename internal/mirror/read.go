package mirror

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"sort"

	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Source is where the files of a tree are.
type Source interface {
	// Get returns the file name, which is one of the layout. It has at most limit
	// bytes: with more the error is a [*Error] with TooLarge, and no more than limit + 1
	// were read.
	Get(ctx context.Context, name string, limit int64) ([]byte, error)

	// String names the source for people, without secrets.
	String() string
}

// Tree is one generation of a source. It returns the words of the source, which are not
// verified but for the hashes that lead to it.
type Tree struct {
	source  Source
	pointer Pointer
	g       *generation
	record  *snapshot.Record
	signed  *snapshot.Publication
	keys    []string // read when they are first needed
}

// Latest reads a source's pointer, of a cluster: the little that says whether there is
// news.
func Latest(ctx context.Context, source Source, cluster string) (Pointer, error) {
	raw, err := source.Get(ctx, PointerName, MaxPointer)
	if err != nil {
		return Pointer{}, err
	}
	p, err := parsePointer(raw)
	if err != nil {
		return Pointer{}, err
	}
	if p.Cluster != cluster {
		return Pointer{}, &Error{Reason: OtherCluster, Name: PointerName, Detail: fmt.Sprintf("it is of cluster %.80q, want %q", p.Cluster, cluster)}
	}
	return p, nil
}

// Open reads the generation that a source's pointer leads to, of a cluster.
func Open(ctx context.Context, source Source, cluster string) (*Tree, error) {
	p, err := Latest(ctx, source, cluster)
	if err != nil {
		return nil, err
	}
	return OpenAt(ctx, source, p)
}

// OpenAt reads the generation that a pointer of the source leads to.
func OpenAt(ctx context.Context, source Source, p Pointer) (*Tree, error) {
	t := &Tree{source: source, pointer: p}
	raw, err := t.object(ctx, ref{p.Object, p.Size}, "the generation", MaxGeneration)
	if err != nil {
		return nil, err
	}
	if t.g, err = parseGeneration(raw); err != nil {
		return nil, err
	}
	t.signed = &snapshot.Publication{Record: t.g.Record}
	for _, s := range t.g.Signatures {
		t.signed.Signatures = append(t.signed.Signatures, snapshot.Signature{KeyID: s.KeyID, Algorithm: s.Algorithm, Bytes: s.Signature})
	}
	record, err := t.signed.ReadRecord()
	if err != nil {
		return nil, malformed("the record", err.Error())
	}
	if record.TreeSize == 0 || record.TreeSize > MaxHeaders {
		return nil, malformed("the record", fmt.Sprintf("a tree of %d leaves, want 1 to %d", record.TreeSize, MaxHeaders))
	}
	t.record = &record
	return t, nil
}

// Record is what the record of the generation says, and Signed the signed bytes.
func (t *Tree) Record() snapshot.Record       { return *t.record }
func (t *Tree) Signed() *snapshot.Publication { return t.signed }

// TrustBundle returns the encoded trust bundle.
func (t *Tree) TrustBundle(ctx context.Context) ([]byte, error) {
	return t.object(ctx, t.g.TrustBundle, "the trust bundle", MaxBundle)
}

// TrustBundleHash returns the SHA-256 of the encoded trust bundle: who has it need
// not get it again.
func (t *Tree) TrustBundleHash() string { return t.g.TrustBundle.Hash }

// RootChanges returns the encoded changes of root, oldest first.
func (t *Tree) RootChanges(ctx context.Context) ([][]byte, error) {
	if t.g.RootChanges == nil {
		return nil, nil
	}
	raw, err := t.object(ctx, *t.g.RootChanges, "the changes of root", MaxChanges)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	if err := strict(raw, &out); err != nil {
		return nil, malformed("the changes of root", err.Error())
	}
	return out, nil
}

// Links returns the newest transitions of the history, oldest first, unverified: how it
// came to the head of the trust bundle.
func (t *Tree) Links(ctx context.Context) ([][]byte, error) {
	if t.g.Links == nil {
		return nil, nil
	}
	raw, err := t.object(ctx, *t.g.Links, "the links of the history", MaxLinks)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	if err := strict(raw, &out); err != nil {
		return nil, malformed("the links of the history", err.Error())
	}
	return out, nil
}

// Header returns the header of (scope, subject) with its proof under the record, and
// without its content. An error with reason Absent says that the generation has none.
func (t *Tree) Header(ctx context.Context, scope snapshot.Scope, subject string) (*snapshot.Signed, error) {
	h, err := t.find(ctx, scope, subject)
	if err != nil {
		return nil, err
	}
	proof, err := t.prove(ctx, h)
	if err != nil {
		return nil, err
	}
	return &snapshot.Signed{Header: h.Header, Publication: t.signed, Proof: proof}, nil
}

// Content returns the content with a hash and a size, which a signed header says. It
// is where it is in every generation.
func Content(ctx context.Context, source Source, hash snapshot.Digest, size int) ([]byte, error) {
	return object(ctx, source, ref{hash.String(), size}, "the content", internalsnapshot.MaxContent)
}

// find returns what the buckets have for (scope, subject).
func (t *Tree) find(ctx context.Context, scope snapshot.Scope, subject string) (bucketHeader, error) {
	absent := func() error {
		return &Error{Reason: Absent, Name: string(scope), Detail: "the generation has no header for this subject"}
	}
	n := bucketOf(scope, subject, t.g.Bits)
	width := min(pageWidth, 1<<t.g.Bits)
	page, err := t.object(ctx, ref{t.g.Pages[n/pageWidth], width * sha256.Size}, "a page of buckets", pageWidth*sha256.Size)
	if err != nil {
		return bucketHeader{}, err
	}
	hash := hashes(page)[n%pageWidth]
	if hash.IsZero() {
		return bucketHeader{}, absent()
	}
	raw, err := t.source.Get(ctx, objectName(hash), MaxBucket)
	if err != nil {
		return bucketHeader{}, err
	}
	if snapshot.DigestOf(raw) != hash {
		return bucketHeader{}, wrongBytes(objectName(hash))
	}
	var b bucket
	if err := strict(raw, &b); err != nil {
		return bucketHeader{}, malformed("a bucket", err.Error())
	}
	for _, h := range b.Headers {
		if h.Scope == string(scope) && h.Subject == subject {
			if len(h.Header) == 0 || len(h.Header) > internalsnapshot.MaxHeader {
				return bucketHeader{}, malformed("a bucket", fmt.Sprintf("a header of %d bytes, limit %d",
					len(h.Header), internalsnapshot.MaxHeader))
			}
			return h, nil
		}
	}
	return bucketHeader{}, absent()
}

// prove finds the header in the tree, and returns its proof.
func (t *Tree) prove(ctx context.Context, h bucketHeader) (snapshot.Proof, error) {
	levels := levelsOf(t.record.TreeSize)
	files := (levels[0] + tileWidth - 1) / tileWidth
	if t.keys == nil {
		raw, err := t.object(ctx, t.g.Keys, "the keys of the tree", MaxKeys)
		if err != nil {
			return snapshot.Proof{}, err
		}
		var keys []string
		if err := json.Unmarshal(raw, &keys); err != nil || uint64(len(keys)) != files || !slices.IsSorted(keys) {
			return snapshot.Proof{}, malformed("the keys of the tree", fmt.Sprintf("they are not %d sorted paths", files))
		}
		t.keys = keys
	}
	file := sort.SearchStrings(t.keys, h.Path)
	if file == len(t.keys) || t.keys[file] != h.Path {
		file--
	}
	if file < 0 {
		return snapshot.Proof{}, malformed("the keys of the tree", "the header is before the first of them")
	}
	// From the root down to the file that has the leaf.
	under := make([][]snapshot.Digest, len(levels))
	node := t.record.Root
	for level := len(levels) - 1; level >= 0; level-- {
		at := uint64(file) >> (8 * level) // the file of this level
		count := min(tileWidth, levels[level]-at*tileWidth)
		name := tileName(level, node)
		raw, err := t.source.Get(ctx, name, int64(count)*sha256.Size)
		if err != nil {
			return snapshot.Proof{}, err
		}
		if uint64(len(raw)) != count*sha256.Size {
			return snapshot.Proof{}, &Error{Reason: Truncated, Name: name, Detail: fmt.Sprintf("%d bytes, want %d", len(raw), count*sha256.Size)}
		}
		under[level] = hashes(raw)
		if snapshot.NewTree(under[level]).Root() != node {
			return snapshot.Proof{}, wrongBytes(name)
		}
		if level > 0 {
			node = under[level][uint64(file)>>(8*(level-1))%tileWidth]
		}
	}
	place := slices.Index(under[0], snapshot.LeafOf(t.record.ClusterID, h.Header))
	if place < 0 {
		return snapshot.Proof{}, malformed("a bucket", "its header is not in the tree")
	}
	index := uint64(file)*tileWidth + uint64(place)
	proof := snapshot.Proof{Index: index}
	for level := range levels {
		var err error
		if proof.Hashes, err = snapshot.NewTree(under[level]).AppendProof(proof.Hashes,
			int(index>>(8*level)%tileWidth)); err != nil {
			return snapshot.Proof{}, err
		}
	}
	return proof, nil
}

func (t *Tree) object(ctx context.Context, r ref, what string, limit int) ([]byte, error) {
	return object(ctx, t.source, r, what, limit)
}

// object returns an object whose size is known before it is read.
func object(ctx context.Context, source Source, r ref, what string, limit int) ([]byte, error) {
	hash, err := r.check(what, limit)
	if err != nil {
		return nil, err
	}
	name := objectName(hash)
	raw, err := source.Get(ctx, name, int64(r.Size))
	if err != nil {
		return nil, err
	}
	if len(raw) < r.Size {
		return nil, &Error{Reason: Truncated, Name: name, Detail: fmt.Sprintf("%d bytes, want %d", len(raw), r.Size)}
	}
	if snapshot.DigestOf(raw) != hash {
		return nil, wrongBytes(name)
	}
	return raw, nil
}

func wrongBytes(name string) error {
	return &Error{Reason: WrongBytes, Name: name, Detail: "its content is not what its name says"}
}
