// Package workload decides whether a local process is one of the workloads that are registered for
// a node, by what the kernel says of the process.
//
// A registration travels as parameters of its service, named spiffe:…, so that nodes of an older
// release take it for settings that they do not know. See docs/explanation/workloads.md.
package workload

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/snapshot"
)

// Prefix begins the names of the parameters that register a workload.
const Prefix = "spiffe:"

// The parameters.
const (
	paramID        = Prefix + "id"
	paramUID       = Prefix + "uid"
	paramGID       = Prefix + "gid"
	paramPath      = Prefix + "path"
	paramSHA256    = Prefix + "sha256"
	paramUnit      = Prefix + "unit"
	paramContainer = Prefix + "container"
	paramTTL       = Prefix + "ttl"
)

// Bounds of a registration.
const (
	MaxPath = 1024 // bytes of an executable's path
	MaxUnit = 256  // bytes of a systemd unit's name
	// MinTTL and MaxTTL bound how long a workload's certificate lives, and DefaultTTL is
	// how long one does if nobody says.
	MinTTL     = time.Minute
	DefaultTTL = time.Hour
	MaxTTL     = 24 * time.Hour
)

// Selector says which processes are meant: those that fit all that is set.
type Selector struct {
	UID, GID  *uint32
	Path      string // of the executable, as the kernel says it
	SHA256    string // of the executable's bytes, 64 lower-case hexadecimal digits
	Unit      string // the systemd unit that it runs in
	Container string // the id of its container, 64 lower-case hexadecimal digits
}

// IsZero reports whether s selects nothing, which fits nobody.
func (s Selector) IsZero() bool { return s == Selector{} }

// Equal reports whether s and other mean the same processes.
func (s *Selector) Equal(other *Selector) bool {
	same := func(a, b *uint32) bool { return a == b || a != nil && b != nil && *a == *b }
	return same(s.UID, other.UID) && same(s.GID, other.GID) && s.Path == other.Path && s.SHA256 == other.SHA256 &&
		s.Unit == other.Unit && s.Container == other.Container
}

// Fault says why s must not be registered; "" if it may. A user is free to run any program, and to
// take over what it runs: what a program is counts only beside what a user cannot choose.
func (s Selector) Fault() string {
	switch {
	case s.IsZero():
		return "it says nothing of the processes that it is for"
	case s.UID == nil && s.GID == nil && s.Unit == "" && s.Container == "":
		return "every user of the machine could run such a program"
	}
	return ""
}

// Registration is a workload of one service on this node.
type Registration struct {
	Service string      // the name of its service
	ID      identity.ID // of kind workload
	Selector
	TTL time.Duration // how long its certificates live
}

// Want says which facts of a process are read, beside its user and its group.
type Want struct {
	Path, SHA256 bool
	Placed       bool // its unit and its container
}

// Everything wants all facts.
var Everything = Want{Path: true, SHA256: true, Placed: true}

// Or wants what one of the two wants.
func (w Want) Or(other Want) Want {
	return Want{w.Path || other.Path, w.SHA256 || other.SHA256, w.Placed || other.Placed}
}

// Looks returns what s looks at.
func (s *Selector) Looks() Want {
	return Want{Path: s.Path != "", SHA256: s.SHA256 != "", Placed: s.Unit != "" || s.Container != ""}
}

// Adds returns w with what s looks at, other than the hash: that is asked for last, see
// [Selector.NeedsHash]. Of a process whose user or group is another one nothing more is looked at.
func (s *Selector) Adds(w Want, uid, gid uint32) Want {
	if s.UID != nil && *s.UID != uid || s.GID != nil && *s.GID != gid {
		return w
	}
	first := s.Looks()
	first.SHA256 = false
	return w.Or(first)
}

// Facts are what the kernel says of a process. A fact that was not wanted is blank; so is one that
// could not be read, and Unread says why, by the name of the fact: path, sha256, unit or container.
type Facts struct {
	PID                           int32
	UID, GID                      uint32
	Path, SHA256, Unit, Container string
	Unread                        map[string]string
}

// Mismatch returns the first thing about a process that is not as s has it, for people; "": it
// is one of those that s means.
func (s Selector) Mismatch(f Facts) string {
	if s.IsZero() {
		return "it selects no process"
	}
	c, ok := s.unfit(&f)
	switch {
	case !ok:
		return ""
	case c.name == "uid":
		return fmt.Sprintf("uid is %d, want %d", f.UID, *s.UID)
	case c.name == "gid":
		return fmt.Sprintf("gid is %d, want %d", f.GID, *s.GID)
	case c.got == "" && f.Unread[c.name] != "":
		return fmt.Sprintf("%s is not known (%s), want %s", c.name, f.Unread[c.name], c.want)
	case c.got == "":
		return fmt.Sprintf("it has no %s, want %s", c.name, c.want)
	}
	return fmt.Sprintf("%s is %s, want %s", c.name, c.got, c.want)
}

// Fits reports whether a process is one of those that s means. It is cheaper than
// [Selector.Mismatch].
func (s *Selector) Fits(f *Facts) bool {
	_, unfit := s.unfit(f)
	return !unfit && !s.IsZero()
}

// NeedsHash reports whether it is the hash of its executable, and nothing else, that tells
// whether a process is one of those that s means.
func (s Selector) NeedsHash(f *Facts) bool {
	if s.SHA256 == "" {
		return false
	}
	s.SHA256 = ""
	_, unfit := s.unfit(f)
	return !unfit
}

type compared struct{ name, want, got string }

// unfit returns the first fact that is not as s has it. One that is not known is not.
func (s *Selector) unfit(f *Facts) (compared, bool) {
	if s.UID != nil && *s.UID != f.UID {
		return compared{name: "uid"}, true
	}
	if s.GID != nil && *s.GID != f.GID {
		return compared{name: "gid"}, true
	}
	for _, c := range [...]compared{
		{"path", s.Path, f.Path}, {"sha256", s.SHA256, f.SHA256}, {"unit", s.Unit, f.Unit},
		{"container", s.Container, f.Container},
	} {
		if c.want != "" && c.want != c.got {
			return c, true
		}
	}
	return compared{}, false
}

// Settings returns s as the parameters of a service, sorted by name. id "" is the service's name,
// and ttl 0 is [DefaultTTL].
func (s Selector) Settings(id string, ttl time.Duration) []snapshot.Parameter {
	var out []snapshot.Parameter
	add := func(name, value string) {
		if value != "" {
			out = append(out, snapshot.Parameter{Name: name, Value: value})
		}
	}
	number := func(n *uint32) string {
		if n == nil {
			return ""
		}
		return strconv.FormatUint(uint64(*n), 10)
	}
	add(paramContainer, s.Container)
	add(paramGID, number(s.GID))
	add(paramID, id)
	add(paramPath, s.Path)
	add(paramSHA256, s.SHA256)
	if ttl != 0 {
		add(paramTTL, document.FormatDuration(ttl))
	}
	add(paramUID, number(s.UID))
	add(paramUnit, s.Unit)
	return out
}

// Fault is a service whose registration cannot be read.
type Fault struct{ Service, Problem string }

// Registrations returns the workloads that the services of an assignment register, sorted by id
// and service, and those that cannot be read: these register nobody.
func Registrations(cluster string, services []snapshot.Service) ([]Registration, []Fault) {
	var out []Registration
	var faults []Fault
	for i := range services {
		r, ok, err := registration(cluster, &services[i])
		switch {
		case err != nil:
			faults = append(faults, Fault{services[i].Name, err.Error()})
		case ok:
			if out == nil {
				out = make([]Registration, 0, len(services)-i)
			}
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Registration) int {
		return cmp.Or(a.ID.Compare(b.ID), cmp.Compare(a.Service, b.Service))
	})
	return out, faults
}

func registration(cluster string, s *snapshot.Service) (Registration, bool, error) {
	r := Registration{Service: s.Name, TTL: DefaultTTL}
	name, any := s.Name, false
	for _, p := range s.Parameters {
		if !strings.HasPrefix(p.Name, Prefix) {
			continue
		}
		any = true
		var problem string
		switch p.Name {
		case paramID:
			name = p.Value
		case paramUID:
			r.UID, problem = uid(p.Value)
		case paramGID:
			r.GID, problem = uid(p.Value)
		case paramPath:
			r.Path, problem = p.Value, PathFault(p.Value)
		case paramSHA256:
			r.SHA256, problem = p.Value, HexFault(p.Value)
		case paramUnit:
			r.Unit, problem = p.Value, UnitFault(p.Value)
		case paramContainer:
			r.Container, problem = p.Value, HexFault(p.Value)
		case paramTTL:
			ttl, ok := document.ParseDuration(p.Value)
			if r.TTL = ttl; !ok || ttl < MinTTL || ttl > MaxTTL {
				problem = "is no duration from 1m to 1d"
			}
		default:
			// Of a newer release: what it narrows is not known here, so nobody is let in.
			problem = "is not known to this release"
		}
		if problem != "" {
			return r, false, fmt.Errorf("parameter %s: %.80q %s", p.Name, p.Value, problem)
		}
	}
	if !any {
		return r, false, nil
	}
	if fault := r.Selector.Fault(); fault != "" {
		return r, false, errors.New(fault)
	}
	var err error
	if r.ID, err = identity.New(cluster, identity.Workload, name); err != nil {
		return r, false, err
	}
	return r, true, nil
}

func uid(s string) (*uint32, string) {
	n, err := strconv.ParseUint(s, 10, 32)
	// The last one is nobody's: system calls take it for "leave as it is".
	if err != nil || n == 1<<32-1 || strconv.FormatUint(n, 10) != s {
		return nil, "is no number of a user or group"
	}
	out := uint32(n)
	return &out, ""
}

// PathFault says what is wrong with the path of an executable; "" if nothing is.
func PathFault(s string) string {
	if len(s) > MaxPath || !path.IsAbs(s) || path.Clean(s) != s || strings.IndexFunc(s,
		func(r rune) bool { return r < ' ' || r == 0x7f }) >= 0 {
		return fmt.Sprintf("is no absolute path without dots, of at most %d bytes", MaxPath)
	}
	return ""
}

// HexFault says what is wrong with a SHA-256 or the id of a container; "" if nothing is.
func HexFault(s string) string {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != 32 || hex.EncodeToString(raw) != s {
		return "is not 64 lower-case hexadecimal digits"
	}
	return ""
}

// UnitFault says what is wrong with the name of a systemd unit; "" if nothing is.
func UnitFault(s string) string {
	for _, suffix := range []string{".service", ".scope"} {
		name := strings.TrimSuffix(s, suffix)
		if name != s && name != "" && len(s) <= MaxUnit && !strings.ContainsFunc(s, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
				strings.ContainsRune(`:-_.\@`, r))
		}) {
			return ""
		}
	}
	return "is no name of a systemd unit, such as billing.service"
}
