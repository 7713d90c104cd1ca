package dashboard

import (
	"strings"

	"github.com/fealty-io/fealty/internal/cli/dashboard/markup"
	"github.com/fealty-io/fealty/internal/errcode"
)

// help is the page of a code: what fealty explain prints of it.
func (v *view) help() page {
	code := errcode.Code(strings.ToUpper(v.r.PathValue("code")))
	e, ok := errcode.Lookup(code)
	if !ok {
		return missing("There is no code of this name: fealty explain lists all there are.")
	}
	return page{title: string(e.Code), active: "-", body: parts{el("article", attr("id", "help"), v.prose(e.Text()))}}
}

// prose shows Markdown as the pages of codes have it: a heading, paragraphs, lists, and blocks and words of code.
func (v *view) prose(s string) markup.Part {
	var out, items parts
	var paragraph []string
	var block strings.Builder
	code := false
	end := func() {
		switch joined := strings.Join(paragraph, " "); {
		case joined == "":
		case strings.HasPrefix(joined, "# "):
			out = append(out, el("h1", v.inline(joined[2:])))
		case strings.HasPrefix(joined, "- "):
			items = append(items, el("li", v.inline(joined[2:])))
		default:
			out = append(out, el("p", v.inline(joined)))
		}
		paragraph = nil
	}
	endList := func() {
		if len(items) > 0 {
			out, items = append(out, el("ul", items...)), nil
		}
	}
	for line := range strings.SplitSeq(s, "\n") {
		switch {
		case strings.HasPrefix(line, "```"):
			end()
			endList()
			if code {
				out = append(out, el("pre", el("code", markup.Lines(v.cfg.Called(block.String())))))
				block.Reset()
			}
			code = !code
		case code:
			block.WriteString(line + "\n")
		case strings.TrimSpace(line) == "":
			end()
			endList()
		case strings.HasPrefix(line, "- "):
			end()
			paragraph = []string{line}
		default:
			paragraph = append(paragraph, strings.TrimSpace(line))
		}
	}
	end()
	endList()
	return out
}

// inline shows the words of code in a line of Markdown.
func (v *view) inline(s string) markup.Part {
	var out parts
	for i, piece := range strings.Split(v.cfg.Called(s), "`") {
		if i%2 == 1 {
			out = append(out, el("code", text(piece)))
		} else {
			out = append(out, text(piece))
		}
	}
	return out
}
