package document

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// A Node is a value of a document with its place. It is what is left of YAML and
// JSON once everything that a plain document does not need (anchors, tags, merge
// keys) has been refused.
type Node struct {
	Kind         Kind
	Line, Column int     // from 1; 0 in what was not read from a text
	Text         string  // of a scalar
	Fields       []Field // of an object, in document order, duplicates included
	Items        []*Node // of a list
}

// A Field is one name and value of an object.
type Field struct {
	Name         string
	Line, Column int
	Value        *Node
}

// Kind is what a node is.
type Kind int

// The kinds of nodes.
const (
	Null Kind = iota
	String
	Int // decimal, without sign tricks: Text is what was written
	Bool
	Other // a float, a timestamp: nothing that a plain document holds
	Object
	List
)

func (k Kind) String() string {
	return [...]string{"nothing", "a string", "a number", "true or false", "a number of another form", "an object", "a list"}[k]
}

// A Format bounds documents, and words what is said of them. All fields are
// required: what is read may come from anyone.
type Format struct {
	Noun      string // what a document is, such as "a manifest"
	Start     string // what to do about one that is empty or of no known syntax
	TooLong   string // what to do about a text of more than Bytes, and a list of more than Items
	Bytes     int    // of the whole text
	Documents int    // in one text; 1: a text is a document
	Depth     int    // of nested objects and lists
	Fields    int    // of one object
	Items     int    // of one list
	Marks     int    // characters that begin or end a token, see [Format.checkMarks]
	Problems  int    // that are worth knowing at a time
}

// Empty is what is wrong with a text without any content.
const Empty = "the document is empty"

// Read reads data into the root of each document in it. It returns roots or
// problems, never both. A document without any content is an error where a text is
// one document, and passed over where it may have several.
func (f *Format) Read(data []byte) ([]*Node, []*Problem) {
	if p := f.checkMarks(data); p != nil {
		return nil, []*Problem{p}
	}
	roots, problems := f.ReadAccepted(data)
	if problems != nil {
		return nil, problems
	}
	if problems := f.Hidden(data, roots); problems != nil {
		return nil, problems
	}
	return roots, nil
}

// ReadAccepted reads data that an earlier release accepted, as [Format.Read] does but
// without the rules that came since: those of [Format.Hidden], and Marks.
func (f *Format) ReadAccepted(data []byte) ([]*Node, []*Problem) {
	if p := f.checkBytes(data); p != nil {
		return nil, []*Problem{p}
	}
	tokens, p := f.tokenize(string(data))
	if p != nil {
		return nil, []*Problem{p}
	}
	// Before the parser, which recurses for each level and copies what an alias
	// names, so that neither a deep nor a self-multiplying document reaches it.
	if problems := f.checkTokens(tokens); problems != nil {
		return nil, problems
	}
	file, p := f.parse(tokens)
	if p != nil {
		return nil, []*Problem{p}
	}
	if n := len(file.Docs); n > f.Documents {
		line, col := 0, 0
		if start := file.Docs[f.Documents].Start; start != nil {
			line, col = start.Position.Line, start.Position.Column
		}
		what, do := "a second document begins", "keep one document in the file"
		if f.Documents > 1 {
			what = fmt.Sprintf("%d documents", n)
			do = fmt.Sprintf("at most %d are allowed in one text: divide it", f.Documents)
		}
		return nil, []*Problem{{Rule: "one-document", Line: line, Column: col, What: what, Do: do}}
	}
	var problems []*Problem
	var roots []*Node
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if root := f.convert(doc.Body, &problems); root.Kind != Null {
			roots = append(roots, root)
		}
	}
	if problems != nil {
		return nil, problems
	}
	if roots == nil {
		return nil, []*Problem{{Rule: "syntax", What: Empty, Do: f.Start}}
	}
	return roots, nil
}

func (f *Format) checkBytes(data []byte) *Problem {
	if len(data) > f.Bytes {
		return &Problem{Rule: "size", What: fmt.Sprintf("the document has %d bytes", len(data)),
			Do: fmt.Sprintf("keep it to %d bytes: %s", f.Bytes, f.TooLong)}
	}
	line, col := 1, 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		// YAML 1.2.2 §5.1 leaves out the control characters; a terminal that shows
		// the document to a signer could hide text behind them. The byte order mark
		// and the directional controls are refused for the same reason.
		if r == utf8.RuneError && size <= 1 || r < 0x20 && r != '\n' && r != '\r' && r != '\t' || r >= 0x7f && r <= 0x9f || hidesText(r) {
			return &Problem{Rule: "characters", Line: line, Column: col,
				What: fmt.Sprintf("character %U, which is invisible or not UTF-8", r), Do: "remove it"}
		}
		if r == '\n' {
			line, col = line+1, 1
		} else {
			col++
		}
		i += size
	}
	return nil
}

// hidesText reports whether r changes how text around it is shown (Unicode
// TR36 §2, bidirectional and zero-width characters) or ends a line for some
// readers only.
func hidesText(r rune) bool {
	return r == 0x061c || r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e ||
		r >= 0x2060 && r <= 0x2069 || r == 0xfeff
}

// Newer returns what [Format.Read] refuses in data, from which roots were read, and
// [Format.ReadAccepted] does not.
func (f *Format) Newer(data []byte, roots []*Node) []*Problem {
	problems := f.Hidden(data, roots)
	if p := f.checkMarks(data); p != nil {
		problems = append([]*Problem{p}, problems...)
	}
	return problems
}

// checkMarks refuses a text with more tokens than any document of its kind has, before
// one is made: each costs about a microsecond and 200 bytes, so that a megabyte of
// brackets would keep a processor busy for seconds. There are at most twice as many
// tokens as characters that can begin or end one, and one more.
func (f *Format) checkMarks(data []byte) *Problem {
	marks := 0
	for _, b := range data {
		switch b {
		case '[', ']', '{', '}', ',', ':', '-', '?', '&', '*', '!', '|', '>', '%', '@', '`', '"', '\'', '#', '\n':
			marks++
		}
	}
	if marks <= f.Marks {
		return nil
	}
	return &Problem{Rule: "too-many", What: fmt.Sprintf("the document has %d brackets, quotes, line ends and other marks", marks),
		Do: fmt.Sprintf("keep it to %d: %s", f.Marks, f.TooLong)}
}

// tokenize and parseTokens turn a panic of the YAML library into a problem: a
// document that breaks it says nothing, and must not end a coordinator.
func (f *Format) tokenize(data string) (tokens token.Tokens, problem *Problem) {
	defer f.brokenLibrary(&problem)
	return lexer.Tokenize(data), nil
}

func (f *Format) parse(tokens token.Tokens) (file *ast.File, problem *Problem) {
	defer f.brokenLibrary(&problem)
	// Duplicates are found in decode, all of them and with both places.
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, syntaxProblem(err)
	}
	return file, nil
}

func (f *Format) brokenLibrary(problem **Problem) {
	if recover() != nil {
		*problem = &Problem{Rule: "syntax", What: "this is neither YAML nor JSON", Do: f.Start}
	}
}

func syntaxProblem(err error) *Problem {
	p := &Problem{Rule: "syntax", What: "this is neither YAML nor JSON", Do: "check indentation, quotes and brackets here"}
	// The library's errors are internal types; this is the part of them that has
	// the place without a copy of the source text.
	if located, ok := err.(interface {
		GetMessage() string
		GetToken() *token.Token
	}); ok {
		p.What = located.GetMessage()
		t := located.GetToken()
		for _, s := range slips {
			if strings.Contains(p.What, s.library) && (!s.item || t != nil && t.Type == token.SequenceEntryType) {
				p.What, p.Do = s.what, s.do
				break
			}
		}
		if t != nil && t.Position != nil {
			p.Line, p.Column = t.Position.Line, t.Position.Column
		}
	}
	return p
}

const withColon = "write it as KEY: VALUE, with a space after the colon"

// slips say what people did who get an error of the library, which speaks of its tokens. The first one whose text
// is in the error counts.
var slips = []struct {
	library  string // in the library's text
	item     bool   // the place is an item of a list
	what, do string
}{
	{"\t", false, "a tab stands where YAML takes spaces only", "indent with spaces"},
	{"tab character", false, "a tab stands where YAML takes spaces only", "indent with spaces"},
	{"non-map value", true, "an item of a list stands among fields", "indent it below the field that it belongs to"},
	{"non-map value", false, "this line has no colon after its key", withColon},
	{"unexpected key name", false, "this line has no colon after its key", withColon},
	{"mapping value is not allowed", false, "a value goes on with another colon, or with fields below it",
		"quote a value that has a colon in it; begin fields of fields on the line below their key"},
	{"block sequence entries are not allowed", false, "a list begins on the line of its key",
		"begin it on the next line"},
	{"flow mapping end token", false, "a { is not closed", "close it with }"},
	{"',' or '}' must", false, "a { is not closed, or a comma is missing", "close it with }"},
	{"sequence end token", false, "a [ is not closed", "close it with ]"},
	{"',' or ']' must", false, "a [ is not closed, or a comma is missing", "close it with ]"},
	{"could not find '[' character", false, "a ] closes nothing", "take it away, or quote the text that it is part of"},
	{"could not find '{' character", false, "a } closes nothing", "take it away, or quote the text that it is part of"},
	{"end character of", false, "a quoted text does not end", "close it with the quote that it begins with"},
	{"reserved character", false, "a value begins with a character that YAML keeps for itself", "quote the value"},
	{"value is not allowed in this context", false, "this does not go on with what stands above it",
		"indent it as its neighbours, or move it"},
}

// refusedTokens are the parts of YAML that a plain document does without. An alias
// can multiply itself, a tag or merge key can make a value mean what it does
// not show, and a signer should read what is written.
var refusedTokens = map[token.Type]string{
	token.AnchorType:     "an anchor (&)",
	token.AliasType:      "an alias (*)",
	token.TagType:        "a tag (!)",
	token.MergeKeyType:   "a merge key (<<)",
	token.MappingKeyType: "an explicit key (?)",
	token.DirectiveType:  "a directive (%)",
}

// checkTokens refuses what a plain document does without, nesting beyond Depth, and
// objects and lists longer than any has: the parser's time grows with the square
// of their length.
func (f *Format) checkTokens(tokens token.Tokens) []*Problem {
	var problems []*Problem
	var blocks []level // block levels that are open
	var flows []level  // brackets that are open
	chained, lastLine := 0, 0
	for i, t := range tokens {
		if what, refused := refusedTokens[t.Type]; refused {
			problems = append(problems, &Problem{Rule: "plain-yaml", Line: t.Position.Line, Column: t.Position.Column,
				What: what + " is not allowed in " + f.Noun, Do: "write the value out; quote it if the character belongs to it"})
			if len(problems) >= f.Problems {
				return problems
			}
			continue
		}
		if len(flows) == 0 && t.Position.Line != lastLine && t.Type != token.CommentType {
			for len(blocks) > 0 && blocks[len(blocks)-1].column > t.Position.Column {
				blocks = blocks[:len(blocks)-1]
			}
			lastLine = t.Position.Line
		}
		if t.Type == token.DocumentHeaderType || t.Type == token.DocumentEndType {
			blocks = blocks[:0] // brackets stay open: they do not end with a document
		}
		fields, items := 0, 0
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flows = append(flows, level{})
		case token.SequenceEndType, token.MappingEndType:
			if n := len(flows); n > 0 {
				chained -= flows[n-1].chain
				flows = flows[:n-1]
			}
		case token.CollectEntryType:
			if n := len(flows); n > 0 {
				chained -= flows[n-1].chain
				flows[n-1].chain = 0
				flows[n-1].items++
				items = flows[n-1].items
			}
		case token.SequenceEntryType:
			if n := len(blocks); n == 0 || blocks[n-1].column != t.Position.Column || !blocks[n-1].list {
				blocks = append(blocks, level{column: t.Position.Column, list: true})
			}
			blocks[len(blocks)-1].items++
			items = blocks[len(blocks)-1].items
		case token.MappingValueType:
			if n := len(flows); n > 0 {
				flows[n-1].chain++
				chained++
				flows[n-1].fields++
				fields = flows[n-1].fields
				break
			}
			column := t.Position.Column
			if i > 0 && tokens[i-1].Position.Line == t.Position.Line {
				column = tokens[i-1].Position.Column
			}
			blocks, fields = blockField(blocks, column)
		}
		if fields > f.Fields {
			return append(problems, &Problem{Rule: "too-many", Line: t.Position.Line, Column: t.Position.Column,
				What: fmt.Sprintf("an object with more than %d fields", f.Fields), Do: "no object of " + f.Noun + " has as many: check indentation"})
		}
		if items > f.Items {
			return append(problems, &Problem{Rule: "too-many", Line: t.Position.Line, Column: t.Position.Column,
				What: fmt.Sprintf("a list with more than %d items", f.Items), Do: f.TooLong})
		}
		if len(blocks)+len(flows)+chained > f.Depth {
			return append(problems, &Problem{Rule: "depth", Line: t.Position.Line, Column: t.Position.Column,
				What: fmt.Sprintf("nested deeper than %d levels", f.Depth), Do: f.Noun + " is flat: check indentation and brackets"})
		}
	}
	return problems
}

// A level is a list or an object that is open while tokens are counted.
type level struct {
	column int  // where its items or field names begin; 0 in brackets
	list   bool // a block list, of which an object at the same column is no part
	fields int  // of an object, so far
	items  int  // of a list, so far; in brackets, commas
	chain  int  // colons since the last comma, in brackets
}

// blockField counts a field whose name begins at column.
func blockField(blocks []level, column int) ([]level, int) {
	if n := len(blocks); n > 0 && blocks[n-1].column == column && blocks[n-1].list {
		blocks = blocks[:n-1] // a list at the column of its own field name is over
	}
	if n := len(blocks); n == 0 || blocks[n-1].column != column {
		blocks = append(blocks, level{column: column})
	}
	blocks[len(blocks)-1].fields++
	return blocks, blocks[len(blocks)-1].fields
}

// convert turns the library's tree into nodes. checkTokens has bounded its depth.
func (f *Format) convert(n ast.Node, problems *[]*Problem) *Node {
	out := &Node{Kind: Other}
	if t := n.GetToken(); t != nil && t.Position != nil {
		out.Line, out.Column = t.Position.Line, t.Position.Column
	}
	switch n := n.(type) {
	case *ast.NullNode:
		out.Kind = Null
	case *ast.StringNode:
		out.Kind, out.Text = String, n.Value
	case *ast.LiteralNode:
		out.Kind, out.Text = String, n.Value.Value
	case *ast.BoolNode:
		out.Kind, out.Text = Bool, "false"
		if n.Value {
			out.Text = "true"
		}
	case *ast.IntegerNode:
		out.Text = n.Token.Value
		if isDecimal(out.Text) {
			out.Kind = Int
		}
	case *ast.FloatNode:
		out.Text = n.Token.Value
	case *ast.MappingNode:
		out.Kind = Object
		for _, v := range n.Values {
			out.Fields = append(out.Fields, f.convertField(v, problems))
		}
		if len(out.Fields) > 0 && !n.IsFlowStyle {
			out.Line, out.Column = out.Fields[0].Line, out.Fields[0].Column
		}
	case *ast.MappingValueNode:
		out.Kind = Object
		out.Fields = []Field{f.convertField(n, problems)}
		out.Line, out.Column = out.Fields[0].Line, out.Fields[0].Column
	case *ast.SequenceNode:
		out.Kind = List
		for _, v := range n.Values {
			out.Items = append(out.Items, f.convert(v, problems))
		}
	case *ast.InfinityNode, *ast.NanNode:
	default:
		*problems = append(*problems, &Problem{Rule: "plain-yaml", Line: out.Line, Column: out.Column,
			What: fmt.Sprintf("a YAML %v is not allowed in %s", n.Type(), f.Noun), Do: "write plain objects, lists, strings and numbers"})
	}
	return out
}

func (f *Format) convertField(v *ast.MappingValueNode, problems *[]*Problem) Field {
	out := Field{}
	if t := v.Key.GetToken(); t != nil && t.Position != nil {
		out.Line, out.Column = t.Position.Line, t.Position.Column
	}
	if key, ok := v.Key.(*ast.StringNode); ok {
		out.Name = key.Value
	} else {
		*problems = append(*problems, &Problem{Rule: "wrong-type", Line: out.Line, Column: out.Column,
			What: "a field name is not a string", Do: "field names are words"})
	}
	if v.Value == nil {
		out.Value = &Node{Kind: Null, Line: out.Line, Column: out.Column}
		return out
	}
	out.Value = f.convert(v.Value, problems)
	if out.Value.Kind == Null {
		// A value that is not there has no place of its own.
		out.Value.Line, out.Value.Column = out.Line, out.Column
	}
	return out
}

// isDecimal reports whether s is a decimal number as JSON writes it, so that
// 0x10, 010 and 1_000 do not mean one thing to a reader and another to us.
func isDecimal(s string) bool {
	digits := strings.TrimPrefix(s, "-")
	if digits == "" || len(digits) > 1 && digits[0] == '0' {
		return false
	}
	return strings.Trim(digits, "0123456789") == ""
}
