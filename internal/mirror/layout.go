// Package mirror writes and reads a cluster's publication as a tree of plain files, which any file
// or HTTPS server can serve.
//
// The promises:
//
//   - Everything but one small pointer is immutable and named by a hash of what it
//     holds. So a reader never takes parts of two generations for one, wherever the
//     bytes come from and however a copy of the tree was made.
//   - The pointer is replaced last, in one step, when all that it leads to is durable.
//     A crash at any instant leaves a tree that verifies.
//   - Only changes are written: a newer record over the same headers writes two
//     files, however many members there are; a changed header some ten.
//   - Nothing is removed that the pointer leads to, and nothing younger than
//     [Grace] that it led to.
//   - A reader takes no more bytes than it was told by what is signed or, of what is
//     not signed, than a constant; and no longer than its deadlines.
//
// Nothing here is trusted. The server of the tree can keep it back, whole or in
// part; what it serves is verified by package snapshot, as from anywhere.
//
// The layout, where HASH is 64 hex digits and HH the first two of them:
//
//	latest              the pointer: which generation is the newest
//	object/HH/HASH      by SHA-256: generations, contents, trust bundles, buckets, pages
//	tree/L/HH/HASH      by Merkle hash: nodes of the tree, up to 256 under one
package mirror

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// PointerName is the name of the one file that changes.
const PointerName = "latest"

// Formats, by which a reader knows what it has.
const (
	pointerFormat    = "fealty/mirror/v1"
	generationFormat = "fealty/mirror-generation/v1"
)

// Limits of what is not signed, in bytes, and of the tree.
const (
	MaxPointer    = 1 << 10
	MaxGeneration = 64 << 10
	MaxBucket     = 1 << 20
	MaxKeys       = 1 << 20
	MaxLinks      = 256 << 10
	MaxChanges    = internalsnapshot.MaxRootChanges * (internalsnapshot.MaxSignedRootChange*4/3 + 8)
	// MaxBundle bounds a trust bundle with its envelope.
	MaxBundle = internalsnapshot.DefaultContent + internalsnapshot.MaxHeader + 4<<10

	// MaxHeaders bounds the headers of a generation, and the leaves of its tree.
	MaxHeaders = 1 << 20

	tileWidth  = 256 // nodes under one of a tree's files
	pageWidth  = 128 // buckets of a page
	maxBits    = 14  // of the number of a bucket
	bucketFill = 16  // headers of a bucket, as intended
)

// Grace is how long what a generation needed is kept after the pointer left it: for
// readers that are under way, and for copies that are being made.
const Grace = 15 * time.Minute

// Pointer is the content of the pointer file. Nothing signs it: what it leads to is
// verified.
type Pointer struct {
	Format         string `json:"format"`
	Cluster        string `json:"cluster"`
	AuthorityEpoch uint64 `json:"authority_epoch,string"`
	Generation     uint64 `json:"generation,string"`
	Object         string `json:"object"` // SHA-256 of the generation
	Size           int    `json:"size"`
}

// compare orders pointers by how new they say that they are.
func (p Pointer) compare(q Pointer) int {
	return cmp.Or(cmp.Compare(p.AuthorityEpoch, q.AuthorityEpoch), cmp.Compare(p.Generation, q.Generation))
}

func parsePointer(data []byte) (Pointer, error) {
	var p Pointer
	if err := strict(data, &p); err != nil {
		return Pointer{}, malformed("the pointer", err.Error())
	}
	switch {
	case p.Format != pointerFormat:
		return Pointer{}, malformed("the pointer", fmt.Sprintf("it is of format %.40q, known is %q", p.Format, pointerFormat))
	case identity.CheckCluster(p.Cluster) != nil:
		return Pointer{}, malformed("the pointer", "it names no cluster")
	case p.Size < 1 || p.Size > MaxGeneration:
		return Pointer{}, malformed("the pointer", fmt.Sprintf("it leads to %d bytes, limit %d", p.Size, MaxGeneration))
	}
	if _, err := snapshot.ParseDigest(p.Object); err != nil {
		return Pointer{}, malformed("the pointer", "it leads to no object")
	}
	return p, nil
}

// ref names an object.
type ref struct {
	Hash string `json:"sha256"`
	Size int    `json:"size"`
}

func (r ref) check(what string, limit int) (snapshot.Digest, error) {
	h, err := snapshot.ParseDigest(r.Hash)
	if err != nil {
		return h, malformed("the generation", what+" has no hash")
	}
	if r.Size < 1 || r.Size > limit {
		return h, malformed("the generation", fmt.Sprintf("%s of %d bytes, limit %d", what, r.Size, limit))
	}
	return h, nil
}

// generation is one version of the publication.
type generation struct {
	Format     string      `json:"format"`
	Cluster    string      `json:"cluster"`
	Record     []byte      `json:"record"`
	Signatures []signature `json:"signatures"`

	TrustBundle ref  `json:"trust_bundle"`
	RootChanges *ref `json:"root_changes,omitempty"`
	Links       *ref `json:"history_links,omitempty"`

	// Bits is how many bits of SHA-256(scope, subject) are the number of its bucket,
	// and Pages are the hashes of the pages of buckets.
	Bits  int      `json:"bucket_bits"`
	Pages []string `json:"bucket_pages"`
	// Keys has for each of the tree's lowest files the least path of a header under it.
	Keys ref `json:"tree_keys"`
}

type signature struct {
	KeyID     string `json:"key_id"`
	Algorithm string `json:"algorithm"`
	Signature []byte `json:"signature"`
}

func parseGeneration(data []byte) (*generation, error) {
	g := new(generation)
	if err := strict(data, g); err != nil {
		return nil, malformed("the generation", err.Error())
	}
	switch {
	case g.Format != generationFormat:
		return nil, malformed("the generation", fmt.Sprintf("it is of format %.40q, known is %q", g.Format, generationFormat))
	case len(g.Record) == 0 || len(g.Record) > internalsnapshot.MaxRecord:
		return nil, malformed("the generation", fmt.Sprintf("a record of %d bytes, limit %d",
			len(g.Record), internalsnapshot.MaxRecord))
	case len(g.Signatures) == 0 || len(g.Signatures) > internalsnapshot.MaxSignatures:
		return nil, malformed("the generation", fmt.Sprintf("%d signatures, want 1 to %d",
			len(g.Signatures), internalsnapshot.MaxSignatures))
	case g.Bits < 0 || g.Bits > maxBits || len(g.Pages) != pagesOf(g.Bits):
		return nil, malformed("the generation", fmt.Sprintf("%d pages of buckets for %d bits", len(g.Pages), g.Bits))
	}
	return g, nil
}

// bucket has the headers whose SHA-256(scope, subject) begins with its number.
type bucket struct {
	Headers []bucketHeader `json:"headers"`
}

type bucketHeader struct {
	Path    string `json:"path"` // by which Keys say under which file of the tree it is
	Scope   string `json:"scope"`
	Subject string `json:"subject"`
	Header  []byte `json:"header"`
}

// bucketOf returns the number of the bucket of (scope, subject): the first bits of
// SHA-256(scope LF subject).
func bucketOf(scope snapshot.Scope, subject string, bits int) int {
	h := sha256.New()
	io.WriteString(h, string(scope))
	io.WriteString(h, "\n")
	io.WriteString(h, subject)
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return (int(sum[0])<<8 | int(sum[1])) >> (16 - bits)
}

// pagesOf returns how many pages hold the hashes of 2^bits buckets.
func pagesOf(bits int) int { return max(1, 1<<bits/pageWidth) }

// bitsFor returns the bits for n headers: those that were, as long as they fit, so
// that a count that goes up and down does not write everything anew.
func bitsFor(n, were int) int {
	if fill := n >> were; were > 0 && fill <= 2*bucketFill && fill >= bucketFill/4 {
		return were
	}
	bits := 0
	for bits < maxBits && n>>bits > bucketFill {
		bits++
	}
	return bits
}

// objectName is where the object with a SHA-256 is.
func objectName(hash snapshot.Digest) string {
	text := hash.String()
	return "object/" + text[:2] + "/" + text
}

// tileName is where the node of a level with a hash is, with the nodes under it.
func tileName(level int, hash snapshot.Digest) string {
	text := hash.String()
	return "tree/" + strconv.Itoa(level) + "/" + text[:2] + "/" + text
}

// levelsOf returns for a tree of n leaves how many nodes there are under the files of
// each level, from the leaves up: each file has tileWidth of them, the last one of a
// level has the rest, and the last level has one file.
func levelsOf(n uint64) []uint64 {
	out := []uint64{n}
	for n > tileWidth {
		n = (n + tileWidth - 1) / tileWidth
		out = append(out, n)
	}
	return out
}

func hashes(data []byte) []snapshot.Digest {
	out := make([]snapshot.Digest, 0, len(data)/sha256.Size)
	for h := range slices.Chunk(data, sha256.Size) {
		out = append(out, snapshot.Digest(h))
	}
	return out
}

// strict reads JSON with known members alone, and nothing after it.
func strict(data []byte, into any) error {
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return errors.New("it is not JSON of its format")
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is something after its end")
	}
	return nil
}

// encode writes JSON. The types of this package have nothing that JSON cannot hold.
func encode(v any) []byte {
	out, err := json.Marshal(v)
	if err != nil {
		panic("mirror: " + err.Error())
	}
	return append(out, '\n')
}
