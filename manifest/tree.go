package manifest

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// A node is a value of the document with its place. It is what is left of YAML
// and JSON once everything that a manifest does not need (anchors, tags, merge
// keys, further documents) has been refused.
type node struct {
	kind      nodeKind
	line, col int
	text      string  // of a scalar
	fields    []field // of an object, in document order, duplicates included
	items     []*node // of a list
}

type field struct {
	name      string
	line, col int
	value     *node
}

type nodeKind int

const (
	nullNode nodeKind = iota
	stringNode
	intNode // decimal, without sign tricks: text is what was written
	boolNode
	otherNode // a float, a timestamp: nothing that a manifest holds
	objectNode
	listNode
)

func (k nodeKind) String() string {
	return [...]string{"nothing", "a string", "a number", "true or false", "a number of another form", "an object", "a list"}[k]
}

// readTree reads data into nodes. It returns a root or problems, never both.
func readTree(data []byte) (*node, []*Problem) {
	if p := checkBytes(data); p != nil {
		return nil, []*Problem{p}
	}
	tokens, p := tokenize(string(data))
	if p != nil {
		return nil, []*Problem{p}
	}
	// Before the parser, which recurses for each level and copies what an alias
	// names, so that neither a deep nor a self-multiplying document reaches it.
	if problems := checkTokens(tokens); problems != nil {
		return nil, problems
	}
	file, p := parseTokens(tokens)
	if p != nil {
		return nil, []*Problem{p}
	}
	if len(file.Docs) > 1 {
		line, col := 0, 0
		if start := file.Docs[1].Start; start != nil {
			line, col = start.Position.Line, start.Position.Column
		}
		return nil, []*Problem{{Rule: "one-document", Line: line, Column: col,
			What: "a second document begins", Do: "keep one document in the file"}}
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return nil, []*Problem{emptyProblem()}
	}
	var problems []*Problem
	root := convert(file.Docs[0].Body, &problems)
	if problems != nil {
		return nil, problems
	}
	if root.kind == nullNode {
		return nil, []*Problem{emptyProblem()}
	}
	return root, nil
}

func emptyProblem() *Problem {
	return &Problem{Rule: "syntax", What: "the document is empty", Do: "start from the output of: fealty manifest init"}
}

func checkBytes(data []byte) *Problem {
	if len(data) > MaxBytes {
		return &Problem{Rule: "size", What: fmt.Sprintf("the document has %d bytes", len(data)),
			Do: fmt.Sprintf("keep it to %d bytes, for example with patterns in place of single entries", MaxBytes)}
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

// tokenize and parseTokens turn a panic of the YAML library into a problem: a
// document that breaks it is not a manifest, and must not end a coordinator.
func tokenize(data string) (tokens token.Tokens, problem *Problem) {
	defer brokenLibrary(&problem)
	return lexer.Tokenize(data), nil
}

func parseTokens(tokens token.Tokens) (file *ast.File, problem *Problem) {
	defer brokenLibrary(&problem)
	// Duplicates are found in decode, all of them and with both places.
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, syntaxProblem(err)
	}
	return file, nil
}

func brokenLibrary(problem **Problem) {
	if recover() != nil {
		*problem = &Problem{Rule: "syntax", What: "this is neither YAML nor JSON", Do: "start from the output of: fealty manifest init"}
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
		if t := located.GetToken(); t != nil && t.Position != nil {
			p.Line, p.Column = t.Position.Line, t.Position.Column
		}
	}
	return p
}

// refusedTokens are the parts of YAML that a manifest does without. An alias
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

// checkTokens refuses what a manifest does without, nesting beyond MaxDepth, and
// objects and lists longer than any has: the parser's time grows with the square
// of their length.
func checkTokens(tokens token.Tokens) []*Problem {
	var problems []*Problem
	var blocks []level // block levels that are open
	var flows []level  // brackets that are open
	chained, lastLine := 0, 0
	for i, t := range tokens {
		if what, refused := refusedTokens[t.Type]; refused {
			problems = append(problems, &Problem{Rule: "plain-yaml", Line: t.Position.Line, Column: t.Position.Column,
				What: what + " is not allowed in a manifest", Do: "write the value out; quote it if the character belongs to it"})
			if len(problems) >= MaxProblems {
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
		if fields > maxFields {
			return append(problems, &Problem{Rule: "too-many", Line: t.Position.Line, Column: t.Position.Column,
				What: fmt.Sprintf("an object with more than %d fields", maxFields), Do: "no object of a manifest has as many: check indentation"})
		}
		if items > MaxEntries {
			return append(problems, &Problem{Rule: "too-many", Line: t.Position.Line, Column: t.Position.Column,
				What: fmt.Sprintf("a list with more than %d items", MaxEntries), Do: "use patterns in place of single entries"})
		}
		if len(blocks)+len(flows)+chained > MaxDepth {
			return append(problems, &Problem{Rule: "depth", Line: t.Position.Line, Column: t.Position.Column,
				What: fmt.Sprintf("nested deeper than %d levels", MaxDepth), Do: "a manifest is flat: check indentation and brackets"})
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
func convert(n ast.Node, problems *[]*Problem) *node {
	out := &node{kind: otherNode}
	if t := n.GetToken(); t != nil && t.Position != nil {
		out.line, out.col = t.Position.Line, t.Position.Column
	}
	switch n := n.(type) {
	case *ast.NullNode:
		out.kind = nullNode
	case *ast.StringNode:
		out.kind, out.text = stringNode, n.Value
	case *ast.LiteralNode:
		out.kind, out.text = stringNode, n.Value.Value
	case *ast.BoolNode:
		out.kind, out.text = boolNode, "false"
		if n.Value {
			out.text = "true"
		}
	case *ast.IntegerNode:
		out.text = n.Token.Value
		if isDecimal(out.text) {
			out.kind = intNode
		}
	case *ast.FloatNode:
		out.text = n.Token.Value
	case *ast.MappingNode:
		out.kind = objectNode
		for _, v := range n.Values {
			out.fields = append(out.fields, convertField(v, problems))
		}
		if len(out.fields) > 0 && !n.IsFlowStyle {
			out.line, out.col = out.fields[0].line, out.fields[0].col
		}
	case *ast.MappingValueNode:
		out.kind = objectNode
		out.fields = []field{convertField(n, problems)}
		out.line, out.col = out.fields[0].line, out.fields[0].col
	case *ast.SequenceNode:
		out.kind = listNode
		for _, v := range n.Values {
			out.items = append(out.items, convert(v, problems))
		}
	case *ast.InfinityNode, *ast.NanNode:
	default:
		*problems = append(*problems, &Problem{Rule: "plain-yaml", Line: out.line, Column: out.col,
			What: fmt.Sprintf("a YAML %v is not allowed in a manifest", n.Type()), Do: "write plain objects, lists, strings and numbers"})
	}
	return out
}

func convertField(v *ast.MappingValueNode, problems *[]*Problem) field {
	f := field{}
	if t := v.Key.GetToken(); t != nil && t.Position != nil {
		f.line, f.col = t.Position.Line, t.Position.Column
	}
	if key, ok := v.Key.(*ast.StringNode); ok {
		f.name = key.Value
	} else {
		*problems = append(*problems, &Problem{Rule: "wrong-type", Line: f.line, Column: f.col,
			What: "a field name is not a string", Do: "field names are words"})
	}
	if v.Value == nil {
		f.value = &node{kind: nullNode, line: f.line, col: f.col}
		return f
	}
	f.value = convert(v.Value, problems)
	if f.value.kind == nullNode {
		// A value that is not there has no place of its own.
		f.value.line, f.value.col = f.line, f.col
	}
	return f
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
