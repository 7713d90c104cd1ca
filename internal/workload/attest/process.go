package attest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"

	"github.com/fealty-io/fealty/internal/workload"
)

// Limits of what is read of a process.
const (
	// MaxExecutable bounds the bytes of an executable that is hashed.
	MaxExecutable = 1 << 30
	// maxHashes bounds the hashes that are remembered, and hashers those that are made at once.
	maxHashes = 1024
	hashers   = 2
	// maxCgroup bounds what is read of a process's control groups.
	maxCgroup = 64 << 10
)

// ErrGone is matched where the process has ended.
var ErrGone = errors.New("the process has ended")

// ErrOther is matched where the process runs another program than when it connected.
var ErrOther = errors.New("the process runs another program than when it connected")

// file tells one version of a file from all others.
type file struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64 // in nanoseconds
}

// program tells an executable from all others, also once its name is gone.
type program struct{ dev, ino uint64 }

func (f file) program() program { return program{f.dev, f.ino} }

// Hashes remembers the hashes of executables. The zero value is ready.
type Hashes struct {
	mu    sync.Mutex
	known map[file]string // guarded by mu
	turns chan struct{}   // guarded by mu until made; as many as may hash at once
}

// of returns the SHA-256 of what open returns, which id names, in lower-case hexadecimal digits.
func (h *Hashes) of(ctx context.Context, id file, open func() (*os.File, error), stat func(*os.File) (file,
	error)) (string, error) {
	h.mu.Lock()
	sum, ok := h.known[id]
	if h.turns == nil {
		h.turns = make(chan struct{}, hashers)
	}
	turns := h.turns
	h.mu.Unlock()
	if ok {
		return sum, nil
	}
	if id.size > MaxExecutable {
		return "", fmt.Errorf("it has %d bytes, at most %d are hashed", id.size, MaxExecutable)
	}
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	f, err := open()
	if err != nil {
		return "", err
	}
	defer f.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, io.LimitReader(&interruptible{ctx, f}, MaxExecutable+1)); err != nil {
		return "", err
	}
	// Also what was opened must be what is named, all the while.
	if after, err := stat(f); err != nil || after != id {
		return "", errors.New("it changed while it was read")
	}
	sum = hex.EncodeToString(digest.Sum(nil))
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil || len(h.known) >= maxHashes {
		h.known = make(map[file]string)
	}
	h.known[id] = sum
	return sum, nil
}

// interruptible reads until its context ends.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i *interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(p)
}

// containerPart is a control group that a container runtime named: docker-ID.scope of systemd's
// driver, libpod-ID.scope of podman, cri-containerd-ID.scope of Kubernetes, or the ID alone.
var containerPart = regexp.MustCompile(`^(?:[a-z][a-z0-9-]*-)?([0-9a-f]{64})(?:\.scope)?$`)

// placed reads the unit and the container out of /proc/PID/cgroup (cgroups(7)).
//
// The topmost unit counts. Below it users make groups of any name: those of a user's own manager
// stand below user@UID.service, so that no user can take the name of a service of the system. A
// unit stands below slices alone: what is below any other group was named by somebody else than
// the machine's manager, such as the one inside of a container of LXC.
func placed(cgroups string) (unit, container string) {
	slices := true // so far
	for part := range strings.SplitSeq(strings.TrimPrefix(groupOf(cgroups), "/"), "/") {
		isUnit := slices && workload.UnitFault(part) == ""
		switch m := containerPart.FindStringSubmatch(part); {
		case part == "..":
			// The group is outside of what we may see: nothing below has a place that we know.
			return "", ""
		case m != nil:
			if isUnit {
				unit = part
			}
			return unit, m[1]
		case isUnit:
			return part, ""
		}
		slices = slices && strings.HasSuffix(part, ".slice")
	}
	return "", ""
}

// groupOf returns the control group that says where a process was placed: that of the unified
// hierarchy, or of systemd's own if it is in none there. A line is an id, controllers and the
// group, which is the last because it may have colons.
func groupOf(cgroups string) string {
	unified, named := "", ""
	for line := range strings.Lines(cgroups) {
		id, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		switch controllers, group, _ := strings.Cut(rest, ":"); {
		case id == "0" && controllers == "":
			unified = group
		case controllers == "name=systemd":
			named = group
		}
	}
	if unified == "" || unified == "/" && named != "" {
		return named
	}
	return unified
}
