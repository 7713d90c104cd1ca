package snapshot

import (
	"fmt"
	"slices"
	"strings"
)

// An increment carries the sections in which a content differs from its base: a
// member of the content, or, of a member that is an object of records, one record.
// A patch is a canonical JSON object of their names and values:
//
//	{"routes/to-db":{…},"routes/to-web":null}
//
// A value is the whole section as it is in the result, to the byte; null says that
// the result has no such section. Names ascend, each entry changes something, and
// there is at least one: of a base and a result there is one patch. It is not
// signed. The hash of the result is signed, so that a patch is never more
// than a shorter way to send the whole.

// section is a part of a content that is replaced as one, or, with records, that
// has such parts.
type section struct {
	name string
	// records: the member is always there, an object of records, each of which is
	// replaced as one. Else the member may be left out.
	records bool
}

// part is one section as it is in a content or a patch.
type part struct {
	section int    // in scopeRule.sections
	record  string // "" for a member without records
	value   string // its exact bytes
}

// compare orders parts as they stand in a content, which is the order of their
// names in a patch.
func (p part) compare(q part) int {
	if p.section != q.section {
		return p.section - q.section
	}
	return strings.Compare(p.record, q.record)
}

func (p part) name(sections []section) string {
	if s := sections[p.section]; s.records {
		return s.name + "/" + p.record
	}
	return sections[p.section].name
}

// partReader takes the parts of a content, or the entries of a patch, one by one,
// and holds one at a time: what a stranger sent is not copied into lists first. It
// finds where values end, and does not judge what is in them.
type partReader struct {
	sections []section
	in       string
	pos      int
	current  part
	more     bool   // current is one that was not taken yet
	err      string // in is not what it should be; more is false then

	at   int  // contents: the section to look at
	open bool // contents: in the object of that section
	one  bool // something was read: a comma comes before the next
}

func (r *partReader) fail(format string, args ...any) {
	if r.err == "" {
		r.err = fmt.Sprintf("at byte %d: %s", r.pos, fmt.Sprintf(format, args...))
	}
	r.more = false
}

func (r *partReader) skip(t string) bool {
	if r.err == "" && strings.HasPrefix(r.in[r.pos:], t) {
		r.pos += len(t)
		return true
	}
	return false
}

// nextOfContent takes the next part of a content.
func (r *partReader) nextOfContent() {
	last, ordered := r.current, r.more
	r.more = false
	if r.err == "" && r.pos == 0 && !r.skip("{") {
		r.fail("want an object")
	}
	for r.err == "" {
		if r.open {
			if r.skip("}") {
				r.open, r.one, r.at = false, true, r.at+1
				continue
			}
			if r.one && !r.skip(",") {
				r.fail("want a comma")
				return
			}
			r.one = true
			r.current = part{r.at, r.quoted(), r.value()}
			switch {
			case r.err != "":
			case !validRecordName(r.current.record):
				r.fail("%.80q is no name of a record", r.current.record)
			case ordered && last.compare(r.current) >= 0:
				r.fail("%.80q is out of order or double", r.current.record)
			default:
				r.more = true
			}
			return
		}
		if r.at == len(r.sections) {
			if !r.skip("}") || r.pos != len(r.in) {
				r.fail("want the end")
			}
			return
		}
		s, comma := r.sections[r.at], ""
		if r.one {
			comma = ","
		}
		switch {
		case r.skip(comma + `"` + s.name + `":`):
			r.one = true
			if !s.records {
				r.current, r.more = part{r.at, "", r.value()}, r.err == ""
				r.at++
				return
			}
			if !r.skip("{") {
				r.fail("want an object of records")
			}
			r.open, r.one = true, false
		case s.records:
			r.fail("want member %q", s.name)
		default:
			r.at++
		}
	}
}

// nextOfPatch takes the next entry of a patch. A value of null says that the part
// is removed.
func (r *partReader) nextOfPatch() {
	last, ordered := r.current, r.more
	r.more = false
	switch {
	case r.err != "":
		return
	case r.pos == 0 && !r.skip("{"):
		r.fail("want an object")
	case r.skip("}"):
		if r.pos != len(r.in) {
			r.fail("%d bytes after the end", len(r.in)-r.pos)
		}
		return
	case r.one && !r.skip(","):
		r.fail("want a comma")
	}
	if r.err != "" {
		return
	}
	r.one = true
	name := r.quoted()
	member, record, isRecord := strings.Cut(name, "/")
	at := slices.IndexFunc(r.sections, func(s section) bool { return s.name == member })
	r.current = part{at, record, r.value()}
	switch {
	case r.err != "":
	case at < 0 || isRecord != r.sections[at].records || isRecord && !validRecordName(record):
		r.fail("%.120q is no section", name)
	case ordered && last.compare(r.current) >= 0:
		r.fail("%.120q is out of order or double", name)
	default:
		r.more = true
	}
}

// quoted takes a name and the colon behind it. Names have no character that JSON
// spells in another way; who takes it looks whether it is a name.
func (r *partReader) quoted() string {
	rest := r.in[r.pos:]
	if r.err == "" && strings.HasPrefix(rest, `"`) {
		const longest = 2 * maxRecordName // a section's name, a slash and a record's
		if end := strings.IndexByte(rest[1:min(len(rest), longest)], '"'); end >= 0 && strings.HasPrefix(rest[end+2:], ":") {
			r.pos += end + 3
			return rest[1 : 1+end]
		}
	}
	r.fail("want a name")
	return ""
}

// value takes one value. It follows strings and brackets alone, without recursion:
// whether what is inside is JSON, and canonical, is decided on the whole.
func (r *partReader) value() string {
	if r.err != "" {
		return ""
	}
	depth, start := 0, r.pos
	for i := start; i < len(r.in); i++ {
		switch r.in[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			for i++; i < len(r.in) && r.in[i] != '"'; i++ {
				if r.in[i] == '\\' {
					i++
				}
			}
		}
		// It ends where the next byte, outside of all brackets, is not its own.
		if depth == 0 && i+1 < len(r.in) && strings.IndexByte(",}]", r.in[i+1]) >= 0 {
			r.pos = i + 1
			return r.in[start:r.pos]
		}
		if depth < 0 {
			break
		}
	}
	r.fail("want a value, and its end")
	return ""
}

const removed = "null"

// Diff returns the patch that makes result of base, both contents of scope. It is
// false if the whole is to be sent: the scope has no increments, one of the two is
// not a content of it, they do not differ, or the patch would not be shorter than
// result.
func Diff(scope Scope, base, result []byte) (patch []byte, ok bool) {
	rule := ruleOf(scope)
	if rule == nil || !rule.increments {
		return nil, false
	}
	was := &partReader{sections: rule.sections, in: string(base)}
	is := &partReader{sections: rule.sections, in: string(result)}
	was.nextOfContent()
	is.nextOfContent()
	patch = []byte("{")
	put := func(p part, value string) {
		if len(patch) > 1 {
			patch = append(patch, ',')
		}
		patch = append(append(append(patch, '"'), p.name(rule.sections)...), `":`...)
		patch = append(patch, value...)
	}
	for (was.more || is.more) && len(patch) < len(result) {
		order := 0
		switch {
		case !was.more:
			order = 1
		case !is.more:
			order = -1
		default:
			order = was.current.compare(is.current)
		}
		switch {
		case order < 0:
			put(was.current, removed)
		case is.current.value == removed:
			is.fail("null is no section")
		case order > 0 || was.current.value != is.current.value:
			put(is.current, is.current.value)
		}
		if order <= 0 {
			was.nextOfContent()
		}
		if order >= 0 {
			is.nextOfContent()
		}
	}
	patch = append(patch, '}')
	if was.err != "" || is.err != "" || len(patch) == len("{}") || len(patch) >= len(result) {
		return nil, false
	}
	return patch, true
}

// applied returns the content that patch makes of base, of at most size bytes, or
// what is wrong with the patch. Whether it is the content that was signed is for
// its hash to say.
func (rule *scopeRule) applied(base string, patch []byte, size int) (content []byte, msg string) {
	was := &partReader{sections: rule.sections, in: base}
	change := &partReader{sections: rule.sections, in: string(patch)}
	was.nextOfContent()
	change.nextOfPatch()
	if !change.more && change.err == "" {
		change.fail("it is empty")
	}
	// It cannot be larger than both together: who sends a few bytes gets no more memory.
	out := make([]byte, 0, min(size, len(base)+len(patch)))
	put := func(texts ...string) {
		for _, t := range texts {
			if len(t) > size-len(out) {
				change.fail("its result is larger than the %d bytes that the header says", size)
				return
			}
			out = append(out, t...)
		}
	}
	put("{")
	comma := ""
	for i, s := range rule.sections {
		if s.records {
			put(comma, `"`, s.name, `":{`)
			comma = ""
		}
		for was.err == "" && change.err == "" {
			had, has := was.more && was.current.section == i, change.more && change.current.section == i
			if !had && !has {
				break
			}
			order := 0
			switch {
			case !has:
				order = -1
			case !had:
				order = 1
			default:
				order = was.current.compare(change.current)
			}
			take := was.current
			if order >= 0 {
				take = change.current
				if order == 0 && take.value == was.current.value || order > 0 && take.value == removed {
					change.fail("%.120q is to change, and does not", take.name(rule.sections))
				}
			}
			if order < 0 || take.value != removed {
				name := s.name
				if s.records {
					name = take.record
				}
				put(comma, `"`, name, `":`, take.value)
				comma = ","
			}
			if order <= 0 {
				was.nextOfContent()
			}
			if order >= 0 {
				change.nextOfPatch()
			}
		}
		if s.records {
			put("}")
			comma = ","
		}
	}
	put("}")
	switch {
	case was.err != "":
		return nil, "the base: " + was.err
	case change.err != "":
		return nil, "the patch: " + change.err
	}
	return out, ""
}
