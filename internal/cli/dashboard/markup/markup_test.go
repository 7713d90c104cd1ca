package markup_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/cli/dashboard/markup"
)

func written(p markup.Part) string {
	var b bytes.Buffer
	markup.Write(&b, p)
	return b.String()
}

// Whatever a text says, it is text, in an element and in the value of an attribute.
func TestTextStaysText(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"element":             {"<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"},
		"end of an attribute": {`" onload="x`, "&#34; onload=&#34;x"},
		"other quotes":        {`' autofocus`, "&#39; autofocus"},
		"entity":              {"&lt;", "&amp;lt;"},
		"line end":            {"a\nb", "a b"},
		"direction":           {"a\u202eb", `a\u202eb`},
		"nul":                 {"a\x00b", `a\u0000b`},
		"not UTF-8":           {"a\xffb", `a\xffb`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := written(markup.El("em", markup.Text(c.text))); got != "<em>"+c.want+"</em>" {
				t.Errorf("as text it is %s", got)
			}
			if got := written(markup.El("em", markup.Attr("title", c.text))); got != `<em title="`+c.want+`"></em>` {
				t.Errorf("as an attribute it is %s", got)
			}
		})
	}
	if got := written(markup.El("pre", markup.Lines("<a>\n\tb\x1b[0m\r\n"))); got != "<pre>&lt;a&gt;\n    b\\u001b[0m \n</pre>" {
		t.Errorf("lines are %q", got)
	}
}

// An address leads nowhere but to this server.
func TestAddressesLeadHere(t *testing.T) {
	for address, ok := range map[string]bool{
		"/t/members": true, "?q=a%3Ab": true, "#main": true, "/": true,
		"javascript:alert(1)": false, "https://example.org/": false, "//example.org/": false, `/\example.org`: false, "data:text/html,x": false,
		" javascript:x": false, "members": false, "/a\n/b": false, "": false, "/\t/example.org": false,
	} {
		got := written(markup.El("a", markup.Attr("href", address)))
		if kept := !strings.Contains(got, `href="#"`) || address == "#"; kept != ok {
			t.Errorf("%q is written as %s", address, got)
		}
	}
}

// What runs or is drawn by a page's own word cannot be written.
func TestNothingThatRuns(t *testing.T) {
	for name, f := range map[string]func(){
		"handler":            func() { markup.Attr("onclick", "x") },
		"style":              func() { markup.Attr("style", "x") },
		"document of a page": func() { markup.Attr("srcdoc", "x") },
		"frame":              func() { markup.El("iframe") },
		"style sheet":        func() { markup.El("style") },
		"name with an end":   func() { markup.El("p><script") },
		"script in a page":   func() { markup.El("script", markup.Text("x")) },
		"use in a picture":   func() { markup.El("use") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: it was written", name)
				}
			}()
			f()
		}()
	}
}
