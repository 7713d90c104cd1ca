package durable

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/fealty-io/fealty/fence"
)

// A file is lines of a name, a blank and a value, in one order; the last one is the
// SHA-256 of those before. There is one spelling of a value: what was read is written
// again, and has to be the same.

const (
	epochHeader = "fealty-epoch v1"
	termHeader  = "fealty-term v1"
)

func encodeEpoch(l fence.Life) []byte {
	return sealed(fmt.Sprintf("%s\ngrant %d\nlife %d\nincarnation %v\nlineage %v\nstatement %s\n",
		epochHeader, l.Epoch.Grant(), l.Epoch.Life(), l.Incarnation, l.Lineage, l.Grant))
}

// decodeEpoch returns the life in a file, or says why it holds none.
func decodeEpoch(text []byte) (fence.Life, string) {
	lines, why := unsealed(text, epochHeader, "grant", "life", "incarnation", "lineage", "statement")
	if why != "" {
		return fence.Life{}, why
	}
	grant, err1 := strconv.ParseUint(lines[0], 10, 32)
	life, err2 := strconv.ParseUint(lines[1], 10, 32)
	if err1 != nil || err2 != nil || life == 0 {
		return fence.Life{}, "no epoch"
	}
	l := fence.Life{Epoch: fence.NewEpoch(uint32(grant), uint32(life)), Grant: lines[4]}
	var err error
	if l.Incarnation, err = fence.ParseIncarnation(lines[2]); err != nil {
		return fence.Life{}, "no incarnation"
	}
	if l.Lineage, err = fence.ParseLineage(lines[3]); err != nil {
		return fence.Life{}, "no lineage"
	}
	if !bytes.Equal(encodeEpoch(l), text) {
		return fence.Life{}, "another spelling than its own"
	}
	return l, ""
}

func encodeTerm(mark int64) []byte { return sealed(fmt.Sprintf("%s\nterm %d\n", termHeader, mark)) }

// decodeTerm is decodeEpoch of a term.
func decodeTerm(text []byte) (int64, string) {
	lines, why := unsealed(text, termHeader, "term")
	if why != "" {
		return 0, why
	}
	mark, err := strconv.ParseInt(lines[0], 10, 64)
	if err != nil || mark < 0 || !bytes.Equal(encodeTerm(mark), text) {
		return 0, "no term"
	}
	return mark, ""
}

func sealed(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return []byte(text + "sha256 " + hex.EncodeToString(sum[:]) + "\n")
}

// unsealed returns the values of the named lines of a file, or says what is wrong with it.
// The callers compare the bytes, and so the checksum too.
func unsealed(text []byte, header string, names ...string) ([]string, string) {
	lines := strings.Split(string(text), "\n")
	if lines[0] != header {
		return nil, fmt.Sprintf("no first line %q", header)
	}
	if len(lines) != len(names)+3 {
		return nil, fmt.Sprintf("%d lines, want %d", len(lines)-1, len(names)+2)
	}
	values := make([]string, len(names))
	for i, name := range names {
		var ok bool
		if values[i], ok = strings.CutPrefix(lines[1+i], name+" "); !ok {
			return nil, "no line " + name
		}
	}
	return values, ""
}
