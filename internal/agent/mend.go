package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/explain"
)

// unusableIdentity words why a part of the node's identity is of no use, and what mends
// it: a file that was put back, a mode, or another key under the same name.
func (s *localStore) unusableIdentity(name string, err error) error {
	problem := err.Error()
	who := s.memberOnDisk()
	again := fmt.Sprintf("have an admin run fealty member replace %s and fealty token create --entry ENTRY --name %s, then fealty join --token-file FILE --data %s",
		who, afterSlash(who), s.dir)
	do := "put it back from a copy, or " + again
	switch {
	case errors.Is(err, durable.ErrExposed):
		do = "if nobody else can have read it: chmod 600 " + s.path(name) + "; else " + again
	case errors.Is(err, fs.ErrNotExist):
		problem = "it is missing, and the rest of the identity is there"
	}
	return explain.Wrap(err, explain.NodeStateCorrupt, "file", s.path(name), "problem", problem, "do", do)
}

// memberOnDisk returns KIND/NAME of the node by whichever part of its identity can be
// read. It is for words alone: nothing of it is verified.
func (s *localStore) memberOnDisk() string {
	if data, err := s.read(anchorName, maxAnchorBytes); err == nil {
		var a anchor
		if err := unseal(data, &a); err == nil {
			return string(a.ID.Kind()) + "/" + a.ID.Name()
		}
	}
	if data, err := s.fs.ReadSecret(s.path(SVIDName), maxSVIDBytes); err == nil {
		if v, _, err := parseSVID(data); err == nil && len(v.leaf().URIs) == 1 {
			if id, err := identity.Parse(v.leaf().URIs[0].String()); err == nil {
				return string(id.Kind()) + "/" + id.Name()
			}
		}
	}
	return "KIND/NAME"
}

func afterSlash(path string) string {
	_, name, _ := strings.Cut(path, "/")
	return name
}

// notJoined says that dir holds no identity, or that it lost the file which says of
// which cluster.
func (s *localStore) notJoined() error {
	_, leaving := s.read(leftName, maxAnchorBytes)
	if _, err := s.read(SVIDName, maxSVIDBytes); err == nil && errors.Is(leaving, fs.ErrNotExist) {
		return s.unusableIdentity(anchorName, fs.ErrNotExist)
	}
	return explain.New(explain.NodeNotJoined, "dir", s.dir)
}
