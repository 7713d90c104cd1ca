package document

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Hidden returns a problem for each character of data, and of the names and values
// that were read from it, that a reader cannot see: whoever signs a document must see
// all of it, and two names that look alike must be one. A character written as an
// escape ("\u3164") is seen in the text and nowhere that its value is shown later,
// so that both are looked at.
//
// Refused are format characters (Unicode category Cf) that are not drawn,
// Default_Ignorable_Code_Point (UAX #44 §5.7.1: tags, variation selectors, Hangul
// fillers), and the blank Braille pattern.
func (f *Format) Hidden(data []byte, roots []*Node) []*Problem {
	var problems []*Problem
	line, col := 1, 1
	for i := 0; i < len(data) && len(problems) < f.Problems; {
		r, size := rune(data[i]), 1
		if r >= utf8.RuneSelf {
			if r, size = utf8.DecodeRune(data[i:]); invisible(r) {
				problems = append(problems, hiddenProblem(r, line, col, "remove it"))
			}
		}
		if r == '\n' {
			line, col = line+1, 1
		} else {
			col++
		}
		i += size
	}
	if problems != nil {
		return problems
	}
	for _, root := range roots {
		f.hiddenValues(root, &problems)
	}
	return problems
}

// hiddenValues looks at what escapes of n stand for. ReadAccepted has bounded its depth.
func (f *Format) hiddenValues(n *Node, problems *[]*Problem) {
	look := func(s string, line, col int) {
		for _, r := range s {
			if len(*problems) >= f.Problems {
				return
			}
			if hidesText(r) || invisible(r) || control(r) {
				*problems = append(*problems, hiddenProblem(r, line, col, "write it without this escape"))
				return
			}
		}
	}
	look(n.Text, n.Line, n.Column)
	for _, x := range n.Items {
		f.hiddenValues(x, problems)
	}
	for _, x := range n.Fields {
		look(x.Name, x.Line, x.Column)
		f.hiddenValues(x.Value, problems)
	}
}

func hiddenProblem(r rune, line, col int, do string) *Problem {
	return &Problem{Rule: "characters", Line: line, Column: col, What: fmt.Sprintf("character %U, which nobody sees", r), Do: do}
}

// Invisible reports whether s holds a character that its reader does not see.
func Invisible(s string) bool {
	for _, r := range s {
		if hidesText(r) || invisible(r) {
			return true
		}
	}
	return false
}

// invisible reports whether r is drawn as nothing. [hidesText] is the older and shorter
// list of what moves or ends the text around it.
func invisible(r rune) bool {
	if r < 0xad {
		return false // the first one is the soft hyphen
	}
	// These are of category Cf, and drawn: Arabic and Kaithi number signs.
	if unicode.Is(unicode.Prepended_Concatenation_Mark, r) {
		return false
	}
	return unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) || r == 0x2800
}

// control reports whether r is a control character that no value of a document needs:
// those of a text's lines are not among them.
func control(r rune) bool {
	return r < 0x20 && r != '\n' && r != '\r' && r != '\t' || r >= 0x7f && r <= 0x9f
}
