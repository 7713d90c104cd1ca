package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/snapshot"
)

// Header is one header of a publication.
type Header struct {
	Path    string
	Scope   snapshot.Scope
	Subject string
	Bytes   []byte
	Leaf    snapshot.Digest
	Index   int // of the leaf, in a tree with holes
	Content snapshot.Digest
}

// Publication is what is written: one generation. It must not change meanwhile.
type Publication struct {
	Cluster        string
	AuthorityEpoch uint64
	Generation     uint64
	Root           snapshot.Digest
	Signed         snapshot.Publication
	Headers        []Header

	// Leaves is how many leaves the tree has, of which each header says which one it is, and Hole is what the others are.
	// 0: the headers are the leaves, and are sorted by path.
	Leaves int
	Hole   snapshot.Digest

	TrustBundle []byte // encoded
	RootChanges [][]byte
	Links       [][]byte // the newest transitions of the history, oldest first

	// Content returns the content with a hash, nil if there is none.
	Content func(snapshot.Digest) []byte
}

// ErrOtherCluster is matched when a directory has the tree of another cluster: it is
// left alone.
var ErrOtherCluster = errors.New("the directory holds the publication of another cluster")

const (
	writeLock = ".lock"
	maxLevels = 3 // of files of a tree of MaxHeaders, by levelsOf
)

// Writer writes publications to a directory. One of several processes writes at a
// time: they take turns by a lock in it.
type Writer struct {
	fs  durable.FS
	dir string
	now func() time.Time

	mu      sync.Mutex // held while a generation is written
	pointer []byte     // as it was written last; nil: not by us
	// known are the files that the directory has, by name. Without pointer it is not
	// up to date.
	known map[string]*file
	made  map[string]bool // directories that are there

	bits    int
	root    snapshot.Digest // of the tree that was written last
	buckets []written       // of it
	refs    map[string]bool // what it needs, without the generation itself
	g       generation      // of it
}

// file is what is known of a file.
type file struct {
	checked bool      // its bytes are what they have to be
	since   time.Time // when it was last seen unused; zero: it is used
}

// written is a bucket as it was written.
type written struct {
	is     snapshot.Digest // over its headers' leaves and paths: the same have the same bucket
	object snapshot.Digest
}

// NewWriter returns the writer of dir, which is made with the first generation. It
// does nothing yet. now nil means time.Now.
func NewWriter(files durable.FS, dir string, now func() time.Time) *Writer {
	if now == nil {
		now = time.Now
	}
	return &Writer{fs: files, dir: dir, now: now}
}

// Write writes a generation, and then has the pointer lead to it. It reports false
// without an error if there is nothing to do: another process writes, or what is
// there is as new. Errors are of the disk, match [ErrOtherCluster], or say what is
// wrong with p; the generation that was there stays whole.
func (w *Writer) Write(ctx context.Context, p Publication) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.fs.MkdirAll(w.dir); err != nil {
		return false, err
	}
	lock, err := w.fs.Lock(filepath.Join(w.dir, writeLock))
	if errors.Is(err, durable.ErrLocked) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer lock.Close()
	next := Pointer{Format: pointerFormat, Cluster: p.Cluster, AuthorityEpoch: p.AuthorityEpoch, Generation: p.Generation}
	ahead, err := w.look(next)
	if err != nil || ahead {
		return false, err
	}
	if err := w.collect(); err != nil { // what is removed makes room
		return false, err
	}
	if w.refs == nil || p.Root != w.root {
		if err := w.writeTree(ctx, p); err != nil {
			w.refs = nil
			return false, err
		}
	}
	g := w.g
	g.Format, g.Cluster, g.Record = generationFormat, p.Cluster, p.Signed.Record
	for _, s := range p.Signed.Signatures {
		g.Signatures = append(g.Signatures, signature{s.KeyID, s.Algorithm, s.Bytes})
	}
	refs := make(map[string]bool)
	bundle, err := w.object(p.TrustBundle, MaxBundle, refs)
	if err != nil {
		return false, err
	}
	g.TrustBundle = ref{bundle.String(), len(p.TrustBundle)}
	if len(p.RootChanges) > 0 {
		data := encode(p.RootChanges)
		changes, err := w.object(data, MaxChanges, refs)
		if err != nil {
			return false, err
		}
		g.RootChanges = &ref{changes.String(), len(data)}
	}
	if len(p.Links) > 0 {
		data := encode(p.Links)
		links, err := w.object(data, MaxLinks, refs)
		if err != nil {
			return false, err
		}
		g.Links = &ref{links.String(), len(data)}
	}
	data := encode(g)
	object, err := w.object(data, MaxGeneration, refs)
	if err != nil {
		return false, err
	}
	next.Object, next.Size = object.String(), len(data)
	pointer := encode(next)
	if bytes.Equal(pointer, w.pointer) {
		return false, nil
	}
	// From here on it may be that the pointer on disk is either.
	w.pointer = nil
	if err := w.fs.WriteFile(w.path(PointerName), pointer); err != nil {
		return false, err
	}
	w.pointer = pointer
	for name, f := range w.known {
		switch used := refs[name] || w.refs[name]; {
		case used:
			f.since = time.Time{}
		case f.since.IsZero():
			f.since = w.now()
		}
	}
	return true, nil
}

func (w *Writer) path(name string) string { return filepath.Join(w.dir, filepath.FromSlash(name)) }

// look reads the pointer and, if it is not ours, what the directory has. It reports
// whether the pointer is as new as next.
func (w *Writer) look(next Pointer) (ahead bool, err error) {
	raw, err := w.fs.ReadFile(w.path(PointerName), MaxPointer)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, durable.ErrTooLarge):
		raw = nil
	case err != nil:
		return false, err
	}
	if there, err := parsePointer(raw); err == nil { // what cannot be read leads nowhere
		if there.Cluster != next.Cluster {
			return false, fmt.Errorf("mirror: %s: %w, %q: name another directory, or empty this one", w.dir, ErrOtherCluster, there.Cluster)
		}
		same := bytes.Equal(raw, w.pointer)
		if c := there.compare(next); (c > 0 || c == 0 && !same) && w.whole(there) {
			return true, nil
		}
	}
	if w.pointer != nil && bytes.Equal(raw, w.pointer) {
		return false, nil
	}
	// Another process wrote here, or none did yet.
	w.pointer, w.refs, w.made = nil, nil, make(map[string]bool)
	w.known = make(map[string]*file)
	now := w.now()
	return false, w.walk(func(name string) { w.known[name] = &file{since: now} })
}

// whole reports whether the pointer leads to a generation that is there: one of the
// same number may have been cut off from it.
func (w *Writer) whole(p Pointer) bool {
	hash, err := snapshot.ParseDigest(p.Object)
	if err != nil {
		return false
	}
	raw, err := w.fs.ReadFile(w.path(objectName(hash)), int64(p.Size))
	return err == nil && snapshot.DigestOf(raw) == hash
}

// walk names all files of the layout but the pointer.
func (w *Writer) walk(each func(name string)) error {
	top := []string{"object"}
	for level := range maxLevels {
		top = append(top, fmt.Sprintf("tree/%d", level))
	}
	list := func(dir string) ([]string, error) {
		names, err := w.fs.ReadDir(w.path(dir))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return names, err
	}
	for _, dir := range top {
		parts, err := list(dir)
		if err != nil {
			return err
		}
		for _, part := range parts {
			names, err := list(dir + "/" + part)
			if err != nil {
				return err
			}
			for _, name := range names {
				if _, err := snapshot.ParseDigest(name); err == nil && strings.HasPrefix(name, part) {
					each(dir + "/" + part + "/" + name)
				}
			}
		}
	}
	return nil
}

// collect removes what was not used for the time of grace. The caller holds the
// lock, and the pointer is ours or leads nowhere that is kept: nothing that it needs
// is unused.
func (w *Writer) collect() error {
	if w.pointer == nil {
		return nil
	}
	end := w.now().Add(-Grace)
	for name, f := range w.known {
		if f.since.IsZero() || f.since.After(end) {
			continue
		}
		if err := w.fs.Remove(w.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		delete(w.known, name)
	}
	return nil
}

// writeTree writes what headers, contents and the tree over them need.
func (w *Writer) writeTree(ctx context.Context, p Publication) error {
	if n := max(len(p.Headers), p.Leaves); len(p.Headers) == 0 || n > MaxHeaders {
		return fmt.Errorf("mirror: a generation of %d headers, %d leaves, want 1 to %d", len(p.Headers), n, MaxHeaders)
	}
	t, err := place(p)
	if err != nil {
		return err
	}
	refs := make(map[string]bool)
	for _, h := range p.Headers {
		if refs[objectName(h.Content)] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		content := p.Content(h.Content)
		if content == nil {
			return fmt.Errorf("mirror: there is no content %s, which %.80q names", h.Content, h.Path)
		}
		if err := w.put(objectName(h.Content), content, refs); err != nil {
			return err
		}
	}
	g := generation{}
	keys, err := w.writeTiles(ctx, p, t, refs)
	if err != nil {
		return err
	}
	g.Keys = keys
	bits := bitsFor(len(p.Headers), w.bits)
	buckets, err := w.writeBuckets(ctx, p, t, bits, refs)
	if err != nil {
		return err
	}
	g.Bits = bits
	for page := range slices.Chunk(buckets, pageWidth) {
		var data []byte
		for _, b := range page {
			data = append(data, b.object[:]...)
		}
		hash, err := w.object(data, len(data), refs)
		if err != nil {
			return err
		}
		g.Pages = append(g.Pages, hash.String())
	}
	w.bits, w.buckets, w.root, w.refs, w.g = bits, buckets, p.Root, refs, g
	return nil
}

// placed are the leaves of a tree, and what finds a header among them.
type placed struct {
	leaves []snapshot.Digest
	keys   []string // of the files of level 0, sorted
	paths  []string // of each header, which is in the file of the last key that is not above it
}

// place lays the headers out as the leaves that they are. Where these are in the order of the headers' paths, a file is found by
// the path of its first header. Else it is found by its number, so that a header stays as it is while others in its file move.
func place(p Publication) (placed, error) {
	t := placed{paths: make([]string, len(p.Headers))}
	if p.Leaves == 0 {
		for i, h := range p.Headers {
			if i > 0 && t.paths[i-1] >= h.Path {
				return placed{}, fmt.Errorf("mirror: the headers are not sorted by path at %.80q", h.Path)
			}
			if i%tileWidth == 0 {
				t.keys = append(t.keys, h.Path)
			}
			t.leaves, t.paths[i] = append(t.leaves, h.Leaf), h.Path
		}
		return t, nil
	}
	key := func(file int) string { return fmt.Sprintf("%04d", file) }
	for file := 0; file*tileWidth < p.Leaves; file++ {
		t.keys = append(t.keys, key(file))
	}
	t.leaves = slices.Repeat([]snapshot.Digest{p.Hole}, p.Leaves)
	for i, h := range p.Headers {
		if h.Index < 0 || h.Index >= p.Leaves || t.leaves[h.Index] != p.Hole {
			return placed{}, fmt.Errorf("mirror: %.80q is leaf %d of %d, which is not there or another's", h.Path, h.Index, p.Leaves)
		}
		t.leaves[h.Index], t.paths[i] = h.Leaf, key(h.Index/tileWidth)
	}
	return t, nil
}

// writeTiles writes the tree, and what finds a leaf in it.
func (w *Writer) writeTiles(ctx context.Context, p Publication, t placed, refs map[string]bool) (ref, error) {
	nodes := t.leaves
	for level := 0; ; level++ {
		var up []snapshot.Digest
		for under := range slices.Chunk(nodes, tileWidth) {
			if err := ctx.Err(); err != nil {
				return ref{}, err
			}
			node := snapshot.NewTree(under).Root()
			var data []byte
			for _, h := range under {
				data = append(data, h[:]...)
			}
			if err := w.put(tileName(level, node), data, refs); err != nil {
				return ref{}, err
			}
			up = append(up, node)
		}
		if len(up) == 1 {
			if up[0] != p.Root {
				return ref{}, fmt.Errorf("mirror: the tree over the headers of generation %d is not the one of its record", p.Generation)
			}
			break
		}
		nodes = up
	}
	data := encode(t.keys)
	hash, err := w.object(data, MaxKeys, refs)
	return ref{hash.String(), len(data)}, err
}

// writeBuckets writes the headers by the hash of whom they are for.
func (w *Writer) writeBuckets(ctx context.Context, p Publication, t placed, bits int, refs map[string]bool) ([]written, error) {
	members := make([][]int32, 1<<bits)
	for i, h := range p.Headers {
		n := bucketOf(h.Scope, h.Subject, bits)
		members[n] = append(members[n], int32(i))
	}
	out := make([]written, len(members))
	for n, in := range members {
		if len(in) == 0 {
			continue // the zero hash: nobody
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var is []byte
		for _, i := range in {
			is = append(append(append(is, p.Headers[i].Leaf[:]...), t.paths[i]...), '\n')
		}
		out[n].is = snapshot.DigestOf(is)
		if bits == w.bits && n < len(w.buckets) && w.buckets[n].is == out[n].is {
			if name := objectName(w.buckets[n].object); w.known[name] != nil && w.known[name].checked {
				out[n].object, refs[name] = w.buckets[n].object, true
				continue
			}
		}
		var b bucket
		for _, i := range in {
			h := p.Headers[i]
			b.Headers = append(b.Headers, bucketHeader{t.paths[i], string(h.Scope), h.Subject, h.Bytes})
		}
		var err error
		if out[n].object, err = w.object(encode(b), MaxBucket, refs); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// object writes data under its SHA-256.
func (w *Writer) object(data []byte, limit int, refs map[string]bool) (snapshot.Digest, error) {
	hash := snapshot.DigestOf(data)
	if len(data) == 0 || len(data) > limit {
		return hash, fmt.Errorf("mirror: an object of %d bytes, want 1 to %d", len(data), limit)
	}
	return hash, w.put(objectName(hash), data, refs)
}

// put writes an immutable file, unless it is there, and notes that it is needed. Files
// from before this process are believed only when it was read.
func (w *Writer) put(name string, data []byte, refs map[string]bool) error {
	refs[name] = true
	if f := w.known[name]; f != nil {
		if !f.checked {
			old, err := w.fs.ReadFile(w.path(name), int64(len(data)))
			f.checked = err == nil && bytes.Equal(old, data)
		}
		if f.checked {
			return nil
		}
	}
	dir := filepath.Dir(w.path(name))
	if !w.made[dir] {
		if err := w.fs.MkdirAll(dir); err != nil {
			return err
		}
		w.made[dir] = true
	}
	if err := w.fs.WriteFile(w.path(name), data); err != nil {
		return err
	}
	// Unused until a pointer leads to it, and from then on.
	w.known[name] = &file{checked: true, since: w.now()}
	return nil
}
