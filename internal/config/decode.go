package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// A Document is a record as somebody wrote it.
type Document struct {
	Record Record
	Place  document.Place // where it begins
	read   *decoder
}

// At returns the place of a field, or where the record begins if the field is not
// there.
func (d *Document) At(field string) document.Place {
	if at := d.read.At(field); at != (document.Place{}) {
		return at
	}
	return d.Place
}

// Decode reads records in YAML or JSON: documents of one record or of a list of
// them. The error is an [*InvalidError] with every problem found. It does not look
// at what the records refer to; see [Set.With].
func Decode(data []byte) ([]*Document, error) {
	roots, problems := format().Read(data)
	if problems != nil {
		out := make([]*Problem, len(problems))
		for i, p := range problems {
			out[i] = &Problem{Problem: *p}
		}
		return nil, invalid(out)
	}
	var records []*node
	for _, root := range roots {
		if root.Kind == document.List {
			records = append(records, root.Items...)
		} else {
			records = append(records, root)
		}
	}
	if n := len(records); n > MaxBatch {
		return nil, invalid([]*Problem{{Problem: document.Problem{Rule: "too-many", What: fmt.Sprintf("%d records", n), Do: fmt.Sprintf("write at most %d at a time", MaxBatch)}}})
	}
	var docs []*Document
	var found []*Problem
	for _, n := range records {
		doc, problems := decodeNode(n, snapshot.SecretIn)
		found = append(found, problems...)
		if doc == nil {
			continue
		}
		key := KeyOf(doc.Record)
		if i := slices.IndexFunc(docs, func(o *Document) bool { return KeyOf(o.Record) == key }); i >= 0 {
			at := doc.At("name")
			found = append(found, &Problem{key, document.Problem{Rule: "duplicate-record", Line: at.Line, Column: at.Column, Field: "name",
				What: fmt.Sprintf("the record stands in line %d already", docs[i].Place.Line), Do: "keep one of them"}})
			continue
		}
		docs = append(docs, doc)
	}
	if err := invalid(found); err != nil {
		return nil, err
	}
	return docs, nil
}

func format() *document.Format {
	return &document.Format{
		Noun: "a config record", Start: "see the fields of a kind with fealty explain KIND, such as: fealty explain route", TooLong: "put the records in several steps",
		Bytes: MaxText, Documents: MaxBatch, Depth: maxDepth, Fields: maxFields, Items: MaxBatch, Marks: maxMarks, Problems: MaxProblems,
	}
}

// A secretIn says what kind of raw secret the value of a setting is, by its name and its text, or "".
type secretIn func(name, text string) string

// decodeNode reads one record. It returns a record without problems, or problems. secret is
// [snapshot.SecretIn] for what is put, and [snapshot.CheckedIn] for what was.
func decodeNode(n *node, secret secretIn) (*Document, []*Problem) {
	d := document.NewDecoder(MaxProblems)
	key := keyOf(n)
	problems := func() []*Problem {
		out := make([]*Problem, len(d.Problems))
		for i, p := range d.Problems {
			out[i] = &Problem{key, *p}
		}
		return out
	}
	// First of all, so that nothing that is said later shows one.
	if conceal(d, n, "", secret); d.Problems != nil {
		return nil, problems()
	}
	if !d.Expect(n, "", document.Object) {
		return nil, problems()
	}
	i := slices.IndexFunc(n.Fields, func(f document.Field) bool { return f.Name == "kind" })
	if i < 0 {
		d.Report("missing-field", document.Place{Line: n.Line, Column: n.Column}, "kind", "the field is missing", "add it: one of "+kindNames())
		return nil, problems()
	}
	kind := document.Word(d, n.Fields[i].Value, "kind", "kind", Kinds())
	if d.Problems != nil {
		return nil, problems()
	}
	r := newRecord(kind)
	concealNamed(d, n, secret)
	fields := allFields(r)
	d.Object(n, "", parts(d, fields)...)
	if d.Problems == nil {
		r.faults(d)
	}
	if d.Problems != nil {
		return nil, problems()
	}
	if size := len(Encode(r)); size > MaxRecord {
		d.Report("size", document.Place{Line: n.Line, Column: n.Column}, "", fmt.Sprintf("the record has %d bytes", size), fmt.Sprintf("at most %d are allowed", MaxRecord))
		return nil, problems()
	}
	return &Document{Record: r, Place: document.Place{Line: n.Line, Column: n.Column}, read: d}, nil
}

func kindNames() string {
	s := ""
	for i, k := range Kinds() {
		if i > 0 {
			s += ", "
		}
		s += string(k)
	}
	return s
}

// keyOf returns the key that n seems to have, as far as it can be shown.
func keyOf(n *node) Key {
	var k Key
	for _, f := range n.Fields {
		if f.Value.Kind != document.String || snapshot.SecretIn("", f.Value.Text) != "" {
			continue
		}
		switch f.Name {
		case "kind":
			if slices.Contains(Kinds(), Kind(f.Value.Text)) {
				k.Kind = Kind(f.Value.Text)
			}
		case "name":
			k.Name = f.Value.Text
		}
	}
	if what, _ := nameFault(k.Kind, k.Name); k.Kind == "" || what != "" {
		return Key{}
	}
	return k
}

const secretRemedy = "keep it out of the config: put a record of kind secret that says where it is, name that in the field secrets, and replace what was exposed"

// conceal reports every raw secret in n, in names and values.
func conceal(d *decoder, n *node, path string, secret secretIn) {
	report := func(at document.Place, what string) {
		d.Report("raw-secret", at, path, "this looks like a "+what, secretRemedy)
	}
	if what := secret("", n.Text); what != "" {
		report(document.Place{Line: n.Line, Column: n.Column}, what)
	}
	for _, f := range n.Fields {
		at := document.Place{Line: f.Line, Column: f.Column}
		if what := secret("", f.Name); what != "" {
			report(at, what)
			continue
		}
		inside := document.Join(path, f.Name)
		conceal(d, f.Value, inside, secret)
	}
	for i, item := range n.Items {
		conceal(d, item, fmt.Sprintf("%s[%d]", path, i), secret)
	}
}

// concealNamed reports what is a secret by the name of its parameter, and takes it out of n, so that nothing that
// is said of the value shows it.
func concealNamed(d *decoder, n *node, secret secretIn) {
	i := slices.IndexFunc(n.Fields, func(f document.Field) bool { return f.Name == "parameters" && f.Value.Kind == document.Object })
	if i < 0 {
		return
	}
	in := n.Fields[i].Value
	in.Fields = slices.DeleteFunc(in.Fields, func(f document.Field) bool {
		what := secret(f.Name, f.Value.Text)
		if what != "" {
			d.Report("raw-secret", document.Place{Line: f.Line, Column: f.Column}, document.Join("parameters", f.Name),
				"this is a "+what, secretRemedy)
		}
		return what != ""
	})
}

// Encode returns the canonical form of a record: JSON with sorted fields and
// nothing that is left out by default. Equal records have equal bytes.
func Encode(r Record) []byte { return appendNode(nil, Node(r)) }

// Node returns a record as a document, with its fields sorted.
func Node(r Record) *document.Node { return object(allFields(r)) }

func appendNode(b []byte, n *node) []byte {
	switch n.Kind {
	case document.Object:
		b = append(b, '{')
		for i, f := range n.Fields {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendNode(append(appendString(b, f.Name), ':'), f.Value)
		}
		return append(b, '}')
	case document.List:
		b = append(b, '[')
		for i, item := range n.Items {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendNode(b, item)
		}
		return append(b, ']')
	case document.String:
		return appendString(b, n.Text)
	default:
		return append(b, n.Text...)
	}
}

func appendString(b []byte, s string) []byte {
	out, err := jsontext.AppendQuote(b, s)
	if err != nil {
		// Not UTF-8: no decoder makes such a record, and none takes what this writes.
		return append(b, `"\ufffd"`...)
	}
	return out
}

// DecodeCanonical reads what [Encode] wrote, and nothing else. What looks like a raw secret by a rule that is younger than
// the record is read; see [Set.Exposed].
func DecodeCanonical(data []byte) (Record, error) {
	r, _, err := decodeCanonical(data)
	return r, err
}

// decodeCanonical also says what of the record could not be put today.
func decodeCanonical(data []byte) (Record, *Problem, error) {
	none := func(err error) (Record, *Problem, error) { return nil, nil, err }
	if len(data) > MaxRecord {
		return none(fmt.Errorf("%w: a record of %d bytes, at most %d are allowed", ErrInvalid, len(data), MaxRecord))
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	n, err := readJSON(dec, 0)
	if err != nil {
		return none(fmt.Errorf("%w: this is no JSON of a record", ErrInvalid))
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return none(fmt.Errorf("%w: something follows the record", ErrInvalid))
	}
	doc, problems := decodeNode(n, snapshot.CheckedIn)
	if err := invalid(problems); err != nil {
		return none(err)
	}
	if !bytes.Equal(Encode(doc.Record), data) {
		return none(fmt.Errorf("%w: %s is not in its canonical form", ErrInvalid, KeyOf(doc.Record)))
	}
	today := document.NewDecoder(1)
	conceal(today, n, "", snapshot.SecretIn)
	if concealNamed(today, n, snapshot.SecretIn); today.Problems != nil {
		return doc.Record, &Problem{KeyOf(doc.Record), *today.Problems[0]}, nil
	}
	return doc.Record, nil, nil
}

var errDepth = errors.New("nested too deeply")

func readJSON(dec *jsontext.Decoder, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	t, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	n := &node{}
	switch t.Kind() {
	case '"':
		n.Kind, n.Text = document.String, t.String()
	case '0':
		n.Kind, n.Text = document.Int, t.String()
	case 't', 'f':
		n.Kind, n.Text = document.Bool, t.String()
	case '{':
		n.Kind = document.Object
		for dec.PeekKind() != '}' {
			name, err := dec.ReadToken()
			if err != nil {
				return nil, err
			}
			f := document.Field{Name: name.String()}
			if f.Value, err = readJSON(dec, depth+1); err != nil {
				return nil, err
			}
			n.Fields = append(n.Fields, f)
		}
		_, err = dec.ReadToken()
	case '[':
		n.Kind = document.List
		for dec.PeekKind() != ']' {
			item, err := readJSON(dec, depth+1)
			if err != nil {
				return nil, err
			}
			n.Items = append(n.Items, item)
		}
		_, err = dec.ReadToken()
	}
	return n, err
}
