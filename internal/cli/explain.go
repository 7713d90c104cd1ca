package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/doctor"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/reference"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

func explainCommand(c *program.CLI) *cobra.Command {
	words := []string{}
	for _, t := range reference.Topics() {
		words = append(words, t.Name)
	}
	for _, code := range errcode.Codes() {
		words = append(words, string(code))
	}
	return c.Command(program.Command{
		Use: "explain [CODE|NOUN[.FIELD]]", Short: "explain an error code, a setting, or a word",
		Long: "Print the page of an error code, of a setting (config.KEY), of a field of the manifest " +
			"(manifest.FIELD), or of a word. Without an argument it lists them.",
		Sample: `  fealty explain FE-J106
  fealty explain config.listen
  fealty explain manifest.admit`,
		Args: command.AtMostOne("CODE|NOUN[.FIELD]"), Words: words,
		Run: func(_ context.Context, _ *settings.Values, args []string) error {
			if len(args) == 0 {
				return c.Print(explainAll())
			}
			r, err := explainOne(args[0])
			if err != nil {
				return err
			}
			return c.Print(r)
		},
	})
}

// codePage explains an error code.
type codePage struct {
	Code      string `json:"code"`
	Title     string `json:"title"`
	What      string `json:"what"`
	Why       string `json:"why"`
	Do        string `json:"do"`
	Exit      int    `json:"exit"`
	ExitWords string `json:"exit_words"`
	GRPC      string `json:"grpc"`
	Page      string `json:"page"`
}

// wordPage explains a word, or a field of one.
type wordPage struct {
	Word   string      `json:"word"`
	Text   string      `json:"text"`
	Fields []wordField `json:"fields"`
}

// explainOne finds what a word names.
func explainOne(word string) (program.Result, error) {
	if code := errcode.Code(strings.ToUpper(word)); strings.HasPrefix(string(code), "FE-") {
		e, ok := errcode.Lookup(code)
		if !ok {
			return program.Result{}, noCode(string(code))
		}
		return pageOf(codePage{
			Code: string(e.Code), Title: e.Title, What: e.What, Why: e.Why, Do: e.Do,
			Exit: int(e.Exit), ExitWords: e.Exit.String(), GRPC: e.GRPC.String(), Page: strings.TrimSpace(e.Page),
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
		return program.Result{}, noPage("word", word, append(names, "config", "check"))
	}
	t := reference.Topics()[i]
	if !dotted {
		return pageOf(wordPage{Word: t.Name, Text: t.Text, Fields: fieldList(t)}, t.Page()), nil
	}
	for _, f := range t.Fields {
		if f.Name == field {
			text := fmt.Sprintf("# %s.%s\n\n%s\n", t.Name, f.Name, f.Text)
			return pageOf(wordPage{Word: t.Name + "." + f.Name, Text: f.Text, Fields: []wordField{}}, text), nil
		}
	}
	var names []string
	for _, f := range t.Fields {
		names = append(names, t.Name+"."+f.Name)
	}
	return program.Result{}, noPage("field", word, names)
}

// settingPages explains settings.
type settingPages struct {
	Settings []settingPage `json:"settings"`
}

// explainSetting explains one setting, or all of them.
func explainSetting(key string) (program.Result, error) {
	var b strings.Builder
	items := []settingPage{}
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
		return program.Result{}, noPage("setting", "config."+key, keys)
	}
	return pageOf(settingPages{Settings: items}, b.String()), nil
}

// settingPage explains one setting.
type settingPage struct {
	Key         string `json:"key"`
	For         string `json:"for"`
	Flag        string `json:"flag"`
	Environment string `json:"environment"`
	File        string `json:"file"`
	Takes       string `json:"takes"`
	Default     string `json:"default"`
	NotSet      string `json:"not_set"`
	Help        string `json:"help"`
	More        string `json:"more"`
}

func settingData(s *settings.Setting) settingPage {
	flag, key := "", ""
	if s.HasFlag() {
		flag = "--" + s.Flag()
	}
	if s.InFile() {
		key = s.Key
	}
	return settingPage{
		Key: s.Key, For: string(s.Groups[0]), Flag: flag, Environment: s.Env(), File: key, Takes: s.Want(),
		Default: s.Init, NotSet: s.Zero, Help: s.Help, More: s.More,
	}
}

func noPage(what, name string, names []string) error {
	name = command.ShownArg(name)
	e := errcode.New(errcode.NotFound, "what", what+" to explain called", "name", name)
	// What stands before the last dot is right already where names have it too: it is no reason to take two
	// fields for each other.
	noun := name[:strings.LastIndexByte(name, '.')+1]
	var rest []string
	for _, n := range names {
		if after, ok := strings.CutPrefix(n, noun); ok {
			rest = append(rest, after)
		}
	}
	list := "fealty explain lists all there is"
	if noun != "" && len(rest) > 0 {
		list = "fealty explain " + strings.TrimSuffix(noun, ".") + " lists what there is"
	}
	guess := humanize.Suggest(strings.TrimPrefix(name, noun), rest)
	if len(rest) == 0 {
		guess, noun = humanize.Suggest(name, names), ""
	}
	if guess != "" {
		list = "did you mean " + noun + strings.TrimPrefix(guess, "did you mean ") + " " + list
	}
	e.Do = list
	return e
}

// noCode says that there is no such code. Each digit of one counts, so that none is a slip of another: those of
// its area are shown instead.
func noCode(name string) error {
	e := errcode.New(errcode.NotFound, "what", "code to explain called", "name", command.ShownArg(name))
	var same []string
	for _, code := range errcode.Codes() {
		if len(name) > len("FE-") && strings.HasPrefix(string(code), name[:len("FE-")+1]) {
			same = append(same, string(code))
		}
	}
	e.Do = "fealty explain lists all there is"
	if len(same) > 0 {
		e.Do = "those of this area are " + same[0] + " to " + same[len(same)-1] + "; " + e.Do
	}
	return e
}

// pageOf shows Markdown as it is: it is made to be read. On a terminal its paragraphs and the items of its lists are as
// wide as that, and what is to be pasted is not broken.
func pageOf(data any, text string) program.Result {
	return program.ResultOf(data, func(p *term.Page) error {
		var part []string // of a paragraph or an item
		end := func() {
			text, lead, hang := strings.Join(part, " "), "", ""
			if item, ok := strings.CutPrefix(text, "- "); ok {
				text, lead, hang = item, "- ", "  "
			}
			for _, line := range term.WrapCommands(term.Sanitize(p.Called(text)), p.Program, p.Width-len(hang)) {
				fmt.Fprintln(p.W, lead+line)
				lead = hang
			}
			part = nil
		}
		code := false
		for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
			fence := strings.HasPrefix(line, "```")
			goesOn := len(part) > 0 && strings.HasPrefix(line, "  ") && strings.HasPrefix(part[0], "- ")
			begins := line != "" && (strings.HasPrefix(line, "- ") || !strings.ContainsAny(line[:1], " \t#*|>-0123456789"))
			switch {
			case p.Width == 0, code, fence, !goesOn && !begins:
				if len(part) > 0 {
					end()
				}
				fmt.Fprintln(p.W, term.Sanitize(p.Called(line)))
			case strings.HasPrefix(line, "- ") && len(part) > 0:
				end()
				part = []string{line}
			default:
				part = append(part, strings.TrimLeft(line, " "))
			}
			code = code != fence
		}
		if len(part) > 0 {
			end()
		}
		return nil
	})
}

// listedCode is an error code in the list of all.
type listedCode struct {
	Code  string `json:"code"`
	Title string `json:"title"`
	Exit  int    `json:"exit"`
}

// explainable is all that can be explained.
type explainable struct {
	Words term.Texts   `json:"words"`
	Codes []listedCode `json:"codes"`
}

// explainAll lists what can be explained.
func explainAll() program.Result {
	codes, words := []listedCode{}, term.Texts{}
	t := &term.Table{Columns: []term.Column{{Title: "WORD"}, {Title: "WHAT IT IS", Least: 30}}}
	for _, x := range reference.Topics() {
		first, _, _ := strings.Cut(x.Text, "\n")
		t.Add(term.Txt(x.Name), term.Txt(first))
		words = append(words, x.Name)
	}
	words = append(words, "config", "check")
	for _, code := range errcode.Codes() {
		e, _ := errcode.Lookup(code)
		codes = append(codes, listedCode{Code: string(code), Title: e.Title, Exit: int(e.Exit)})
	}
	return program.ResultOf(explainable{Words: words, Codes: codes}, func(p *term.Page) error {
		t.Add(term.Txt("config"), term.Txt(p.Called("The settings: fealty explain config lists them.")))
		t.Add(term.Txt("check"), term.Txt(p.Called("The checks of fealty check: fealty explain check lists them.")))
		if err := p.Table(t); err != nil {
			return err
		}
		for _, area := range errcode.Areas() {
			p.Heading(area.Title)
			rows := &term.Table{Columns: []term.Column{{Title: "CODE"}, {Title: "TITLE", Least: 30}, {Title: "EXIT",
				Right: true}}}
			for _, code := range errcode.Codes() {
				if e, _ := errcode.Lookup(code); code[len("FE-")] == area.Letter {
					rows.Add(term.Txt(string(code)), term.Txt(e.Title), term.Txt(command.Itoa(int64(e.Exit))))
				}
			}
			if err := p.Table(rows); err != nil {
				return err
			}
		}
		return nil
	})
}

// wordField is a field of what a word names.
type wordField struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

func fieldList(t reference.Topic) []wordField {
	out := []wordField{}
	for _, f := range t.Fields {
		out = append(out, wordField{Name: f.Name, Text: f.Text})
	}
	return out
}

// explainedCheck is what one check looks at.
type explainedCheck struct {
	ID    string     `json:"id"`
	Title string     `json:"title"`
	About string     `json:"about"`
	Needs term.Texts `json:"needs"`
}

// explainedChecks is what fealty explain check prints.
type explainedChecks struct {
	Checks []explainedCheck `json:"checks"`
}

// explainCheck explains one check, or lists all of them.
func explainCheck(id string) (program.Result, error) {
	var b strings.Builder
	items := []explainedCheck{}
	for _, k := range doctor.All() {
		if id != "" && k.ID != id {
			continue
		}
		if id == "" {
			fmt.Fprintf(&b, "check.%-22s %s\n", k.ID, k.Title)
		} else {
			b.WriteString(k.Page())
		}
		items = append(items, explainedCheck{ID: k.ID, Title: k.Title, About: k.About, Needs: k.Needs})
	}
	if len(items) == 0 {
		var ids []string
		for _, k := range doctor.All() {
			ids = append(ids, "check."+k.ID)
		}
		return program.Result{}, noPage("check", "check."+id, ids)
	}
	return pageOf(explainedChecks{Checks: items}, b.String()), nil
}
