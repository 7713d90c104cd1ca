package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/command"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/reference"
	"github.com/fealty-io/fealty/internal/settings"
	"github.com/fealty-io/fealty/internal/slip"
	"github.com/fealty-io/fealty/internal/term"
)

func (c *CLI) explainCommand() *cobra.Command {
	words := []string{}
	for _, t := range reference.Topics() {
		words = append(words, t.Name)
	}
	for _, code := range explain.Codes() {
		words = append(words, string(code))
	}
	return c.command(spec{
		use: "explain [CODE|NOUN[.FIELD]]", short: "explain an error code, a setting, or a word",
		long: "Print the page of an error code, of a setting (config.KEY), of a field of the manifest (manifest.FIELD), or of a word. Without an argument it lists them.",
		sample: `  fealty explain FE-J106
  fealty explain config.listen
  fealty explain manifest.admit`,
		args: command.AtMostOne("CODE|NOUN[.FIELD]"), words: words,
		run: func(_ context.Context, _ *settings.Values, args []string) error {
			if len(args) == 0 {
				return c.print(explainAll())
			}
			r, err := explainOne(args[0])
			if err != nil {
				return err
			}
			return c.print(r)
		},
	})
}

// explainOne finds what a word names.
func explainOne(word string) (result, error) {
	if code := explain.Code(strings.ToUpper(word)); strings.HasPrefix(string(code), "FE-") {
		e, ok := explain.Lookup(code)
		if !ok {
			return result{}, noPage("code", word, codeTexts())
		}
		return pageOf(object{
			{"code", string(e.Code)}, {"title", e.Title}, {"what", e.What}, {"why", e.Why}, {"do", e.Do},
			{"exit", int(e.Exit)}, {"exit_words", e.Exit.String()}, {"grpc", e.GRPC.String()}, {"page", strings.TrimSpace(e.Page)},
		}, e.Text()), nil
	}
	noun, field, dotted := strings.Cut(strings.ToLower(word), ".")
	switch noun {
	case "config":
		return explainSetting(field)
	case "check":
		return explainCheck(field)
	}
	i := slices.IndexFunc(reference.Topics(), func(t reference.Topic) bool { return t.Name == noun })
	if i < 0 {
		var names []string
		for _, t := range reference.Topics() {
			names = append(names, t.Name)
		}
		return result{}, noPage("word", word, append(names, "config", "check"))
	}
	t := reference.Topics()[i]
	if !dotted {
		return pageOf(object{{"word", t.Name}, {"text", t.Text}, {"fields", fieldList(t)}}, t.Page()), nil
	}
	for _, f := range t.Fields {
		if f.Name == field {
			text := fmt.Sprintf("# %s.%s\n\n%s\n", t.Name, f.Name, f.Text)
			return pageOf(object{{"word", t.Name + "." + f.Name}, {"text", f.Text}, {"fields", list{}}}, text), nil
		}
	}
	var names []string
	for _, f := range t.Fields {
		names = append(names, t.Name+"."+f.Name)
	}
	return result{}, noPage("field", word, names)
}

// explainSetting explains one setting, or all of them.
func explainSetting(key string) (result, error) {
	var b strings.Builder
	items := list{}
	key = strings.ReplaceAll(key, "-", "_")
	for _, s := range settings.All() {
		if key != "" && s.Key != key {
			continue
		}
		if key == "" {
			fmt.Fprintf(&b, "config.%-14s %s (%s)\n", s.Key, s.Help, s.Groups[0])
		} else {
			b.WriteString(s.Page())
		}
		items = append(items, settingData(s))
	}
	if len(items) == 0 {
		var keys []string
		for _, k := range settings.FileKeys() {
			keys = append(keys, "config."+k)
		}
		return result{}, noPage("setting", "config."+key, keys)
	}
	return pageOf(object{{"settings", items}}, b.String()), nil
}

func settingData(s *settings.Setting) object {
	flag, key := "", ""
	if s.HasFlag() {
		flag = "--" + s.Flag()
	}
	if s.InFile() {
		key = s.Key
	}
	return object{
		{"key", s.Key}, {"for", string(s.Groups[0])}, {"flag", flag}, {"environment", s.Env()}, {"file", key}, {"takes", s.Want()},
		{"default", s.Init}, {"not_set", s.Zero}, {"help", s.Help}, {"more", s.More},
	}
}

func noPage(what, name string, names []string) error {
	name = command.ShownArg(name)
	e := explain.New(explain.NotFound, "what", what+" to explain called", "name", name)
	if g := slip.Guess(strings.ToUpper(name), names); g != "" {
		e.Do = strings.TrimSuffix(g, "?") + "? fealty explain lists all there is"
	} else {
		e.Do = "fealty explain lists all there is"
	}
	return e
}

func codeTexts() []string {
	var out []string
	for _, code := range explain.Codes() {
		out = append(out, string(code))
	}
	return out
}

// pageOf shows Markdown as it is: it is made to be read.
func pageOf(data object, text string) result {
	return result{data, func(p *term.Page) error {
		for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
			p.Advise("%s", line)
		}
		return nil
	}}
}

// explainAll lists what can be explained.
func explainAll() result {
	codes, words := list{}, list{}
	t := &term.Table{Columns: []term.Column{{Title: "WORD"}, {Title: "WHAT IT IS", Least: 30}}}
	for _, x := range reference.Topics() {
		first, _, _ := strings.Cut(x.Text, "\n")
		t.Add(term.Txt(x.Name), term.Txt(first))
		words = append(words, x.Name)
	}
	words = append(words, "config", "check")
	for _, code := range explain.Codes() {
		e, _ := explain.Lookup(code)
		codes = append(codes, object{{"code", string(code)}, {"title", e.Title}, {"exit", int(e.Exit)}})
	}
	return result{object{{"words", words}, {"codes", codes}}, func(p *term.Page) error {
		t.Add(term.Txt("config"), term.Txt(p.Called("The settings: fealty explain config lists them.")))
		t.Add(term.Txt("check"), term.Txt(p.Called("What fealty check looks at: fealty explain check lists it.")))
		if err := p.Table(t); err != nil {
			return err
		}
		for _, area := range explain.Areas() {
			p.Heading(area.Title)
			rows := &term.Table{Columns: []term.Column{{Title: "CODE"}, {Title: "TITLE", Least: 30}, {Title: "EXIT",
				Right: true}}}
			for _, code := range explain.Codes() {
				if e, _ := explain.Lookup(code); code[len("FE-")] == area.Letter {
					rows.Add(term.Txt(string(code)), term.Txt(e.Title), term.Txt(itoa(int64(e.Exit))))
				}
			}
			if err := p.Table(rows); err != nil {
				return err
			}
		}
		return nil
	}}
}

func fieldList(t reference.Topic) list {
	out := list{}
	for _, f := range t.Fields {
		out = append(out, object{{"name", f.Name}, {"text", f.Text}})
	}
	return out
}
