// Package markup writes HTML in which text from elsewhere stays text.
//
// A page is a tree of elements, attributes and text. Names of elements and attributes come from two short lists, which
// hold nothing that runs or loads: no script that is written in the page, no style, no event handler. Text and values of
// attributes are escaped as they are written, and addresses have to lead to this server. There is no way to add markup
// that is already written.
//
// Package html/template would escape by context too. It finds methods by their names at run time, and a program that
// has it keeps every exported method of every type: 4.4 MB in fealty.
package markup

import (
	"bytes"
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/cli/term"
)

// Part is what an element is made of: an [Attribute], a [Text], [Lines], an element made by [El], or a [List].
type Part interface{ part() }

// Text is text on one line. What does not print, such as marks of direction, is written as an escape.
type Text string

// Lines is text of several lines, for an element pre. Each line is as [Text].
type Lines string

// List is parts after one another.
type List []Part

// Attribute is one of an element. Make it with [Attr].
type Attribute struct{ name, value string }

type element struct {
	name  string
	parts []Part
}

func (Text) part()      {}
func (Lines) part()     {}
func (List) part()      {}
func (Attribute) part() {}
func (element) part()   {}

// elements are those that pages are made of: void ones have no end.
var elements = map[string]struct{ void bool }{
	"html": {}, "head": {}, "title": {}, "meta": {true}, "link": {true}, "script": {}, "body": {}, "header": {}, "nav": {},
	"main": {}, "footer": {}, "section": {}, "article": {}, "h1": {}, "h2": {}, "h3": {}, "p": {}, "a": {}, "span": {}, "strong": {}, "em": {},
	"code": {}, "pre": {}, "ul": {}, "ol": {}, "li": {}, "dl": {}, "dt": {}, "dd": {}, "div": {}, "time": {}, "br": {true},
	"table": {}, "caption": {}, "thead": {}, "tbody": {}, "tr": {}, "th": {}, "td": {}, "details": {}, "summary": {},
	"form": {}, "label": {}, "input": {true}, "select": {}, "option": {}, "button": {}, "figure": {}, "figcaption": {},
	"svg": {}, "g": {}, "rect": {}, "circle": {}, "line": {}, "text": {}, "desc": {},
}

// attributes are those that an element may have. Of those that are addresses the value is looked at.
var attributes = map[string]struct{ address bool }{
	"href": {true}, "src": {true}, "action": {true},
	"class": {}, "id": {}, "lang": {}, "charset": {}, "name": {}, "content": {}, "rel": {}, "type": {}, "media": {}, "defer": {},
	"title": {}, "scope": {}, "colspan": {}, "datetime": {}, "for": {}, "value": {}, "method": {}, "selected": {}, "open": {},
	"placeholder": {}, "maxlength": {}, "role": {}, "tabindex": {}, "hidden": {}, "autocomplete": {},
	"aria-label": {}, "aria-labelledby": {}, "aria-live": {}, "aria-current": {}, "aria-hidden": {}, "aria-describedby": {},
	"data-show": {}, "data-events": {}, "data-live": {},
	"viewBox": {}, "preserveAspectRatio": {}, "x": {}, "y": {}, "x1": {}, "x2": {}, "y1": {}, "y2": {}, "cx": {}, "cy": {},
	"r": {}, "rx": {}, "width": {}, "height": {}, "text-anchor": {}, "focusable": {},
}

// El returns an element. It panics if there is none of the name, and if it is a script with text: both are slips in this program.
func El(name string, parts ...Part) Part {
	if _, ok := elements[name]; !ok {
		panic("markup: no element " + name)
	}
	if name == "script" && slices.ContainsFunc(parts, func(p Part) bool { _, ok := p.(Attribute); return !ok }) {
		panic("markup: a script that is written in the page")
	}
	return element{name, parts}
}

// Attr returns an attribute. It panics if there is none of the name. An address that does not lead to this server is
// written as "#".
func Attr(name, value string) Part {
	a, ok := attributes[name]
	if !ok {
		panic("markup: no attribute " + name)
	}
	if a.address && !local(value) {
		value = "#"
	}
	return Attribute{name, value}
}

// local reports whether an address is a path on this server, a query or a place in the page.
func local(address string) bool {
	if strings.ContainsFunc(address, func(r rune) bool { return r < ' ' || r == '\\' || r == 0x7f }) {
		return false
	}
	return strings.HasPrefix(address, "/") && !strings.HasPrefix(address, "//") ||
		strings.HasPrefix(address, "?") || strings.HasPrefix(address, "#")
}

// Write appends a page: a document if its first element is html.
func Write(to *bytes.Buffer, page Part) {
	if e, ok := page.(element); ok && e.name == "html" {
		to.WriteString("<!doctype html>\n")
	}
	write(to, page)
}

func write(to *bytes.Buffer, p Part) {
	switch p := p.(type) {
	case nil:
	case Text:
		escape(to, term.Sanitize(string(p)))
	case Lines:
		for line := range strings.Lines(string(p)) {
			text, ended := strings.CutSuffix(line, "\n")
			escape(to, term.Sanitize(strings.ReplaceAll(text, "\t", "    ")))
			if ended {
				to.WriteByte('\n')
			}
		}
	case List:
		for _, one := range p {
			write(to, one)
		}
	case element:
		p.write(to)
	case Attribute:
		panic(fmt.Sprintf("markup: attribute %s stands outside of an element", p.name))
	}
}

func (e element) write(to *bytes.Buffer) {
	to.WriteString("<" + e.name)
	for _, p := range e.parts {
		if a, ok := p.(Attribute); ok {
			to.WriteString(" " + a.name + `="`)
			escape(to, term.Sanitize(a.value))
			to.WriteByte('"')
		}
	}
	to.WriteByte('>')
	if elements[e.name].void {
		return
	}
	for _, p := range e.parts {
		if _, ok := p.(Attribute); !ok {
			write(to, p)
		}
	}
	to.WriteString("</" + e.name + ">")
	if slices.Contains([]string{"tr", "section", "p", "li", "dd"}, e.name) {
		to.WriteByte('\n')
	}
}

func escape(to *bytes.Buffer, s string) { to.WriteString(html.EscapeString(s)) }
