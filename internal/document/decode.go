package document

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Decoder turns nodes into values and collects what is wrong with them. Make it
// with NewDecoder.
type Decoder struct {
	Problems []*Problem // in the order in which they were found

	at   map[string]Place // of each field read, by its path
	most int              // problems worth keeping
}

// NewDecoder returns a decoder that keeps at most so many problems.
func NewDecoder(problems int) *Decoder { return &Decoder{at: make(map[string]Place), most: problems} }

// At returns the place of the field at path, as far as it was read.
func (d *Decoder) At(path string) Place { return d.at[path] }

// A Place is a line and a column of a text, from 1.
type Place struct{ Line, Column int }

// A Part is a field that an object may have.
type Part struct {
	Name     string
	Required bool
	Read     func(n *Node, path string)
}

// Full reports that enough problems are known for an answer.
func (d *Decoder) Full() bool { return len(d.Problems) >= d.most }

// Report notes a problem, unless enough are known.
func (d *Decoder) Report(rule string, at Place, path, what, do string) {
	if !d.Full() {
		d.Problems = append(d.Problems, &Problem{Rule: rule, Line: at.Line, Column: at.Column, Field: path, What: what, Do: do})
	}
}

// Fault reports a problem of a field that was read.
func (d *Decoder) Fault(rule, path, what, do string) { d.Report(rule, d.at[path], path, what, do) }

// Faulty reports whether a problem was found at path or within it.
func (d *Decoder) Faulty(path string) bool {
	return slices.ContainsFunc(d.Problems, func(p *Problem) bool {
		rest, ok := strings.CutPrefix(p.Field, path)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Join appends the name of a field to the path of its object.
func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// Expect notes the place of the field at path, and a problem unless it is of kind
// want.
func (d *Decoder) Expect(n *Node, path string, want Kind) bool {
	d.at[path] = Place{n.Line, n.Column}
	if n.Kind == want {
		return true
	}
	found := n.Kind.String()
	if n.Text != "" {
		found += " " + Shown(n.Text)
	}
	do := "write " + want.String()
	if want == Object && n.Kind == String {
		do += ": KEY: VALUE on each line, with a space after the colon"
	}
	if want == String && (n.Kind == Int || n.Kind == Bool || n.Kind == Other) {
		do = "put it in quotes"
	}
	if n.Kind == Null {
		do += ", or remove the field"
	}
	d.Fault("wrong-type", path, fmt.Sprintf("this is %s, want %s", found, want), do)
	return false
}

// Object reads an object that has parts and nothing else.
func (d *Decoder) Object(n *Node, path string, parts ...Part) {
	if !d.Expect(n, path, Object) {
		return
	}
	first := make(map[string]int, len(n.Fields)) // line of each field seen
	for _, f := range n.Fields {
		at := Place{f.Line, f.Column}
		i := slices.IndexFunc(parts, func(p Part) bool { return p.Name == f.Name })
		if i < 0 {
			names := make([]string, len(parts))
			for j, p := range parts {
				names[j] = p.Name
			}
			d.Report("unknown-field", at, Join(path, f.Name), "no such field", Suggest(f.Name, names))
			continue
		}
		if line, twice := first[f.Name]; twice {
			d.Report("duplicate-field", at, Join(path, f.Name), fmt.Sprintf("the field stands in line %d already", line), "keep one of them")
			continue
		}
		first[f.Name] = f.Line
		parts[i].Read(f.Value, Join(path, f.Name))
	}
	for _, p := range parts {
		if _, ok := first[p.Name]; p.Required && !ok {
			d.Report("missing-field", Place{n.Line, n.Column}, Join(path, p.Name), "the field is missing", "add it")
		}
	}
}

// List reads each item of a list of at most so many.
func (d *Decoder) List(n *Node, path string, most int, read func(n *Node, path string)) {
	if !d.Expect(n, path, List) {
		return
	}
	if len(n.Items) > most {
		d.Fault("too-many", path, fmt.Sprintf("%d items", len(n.Items)), fmt.Sprintf("at most %d are allowed", most))
		return
	}
	for i, item := range n.Items {
		read(item, fmt.Sprintf("%s[%d]", path, i))
	}
}

// Text reads a string.
func (d *Decoder) Text(n *Node, path string) (string, bool) {
	if !d.Expect(n, path, String) {
		return "", false
	}
	return n.Text, true
}

// Number reads a decimal number.
func (d *Decoder) Number(n *Node, path string, least, most int) int {
	if !d.Expect(n, path, Int) {
		return 0
	}
	v, err := strconv.Atoi(n.Text)
	if err != nil || v < least || v > most {
		d.Fault("number-range", path, fmt.Sprintf("%s is out of bounds", Shown(n.Text)), fmt.Sprintf("write a number from %d to %d", least, most))
		return 0
	}
	return v
}

// Yes reads true or false.
func (d *Decoder) Yes(n *Node, path string) bool {
	return d.Expect(n, path, Bool) && n.Text == "true"
}

// Duration reads 36h, 7d or 1h30m. A bare 0 is the only number without a unit.
func (d *Decoder) Duration(n *Node, path string, least, most time.Duration) time.Duration {
	if n.Kind == Int && n.Text != "0" {
		d.at[path] = Place{n.Line, n.Column}
		d.Fault("duration", path, Shown(n.Text)+" has no unit", "write a unit after it: d, h, m or s, as in 36h")
		return 0
	}
	if n.Kind != Int && !d.Expect(n, path, String) {
		return 0
	}
	d.at[path] = Place{n.Line, n.Column}
	v, ok := ParseDuration(n.Text)
	switch {
	case !ok:
		d.Fault("duration", path, Shown(n.Text)+" is not a duration", "write whole days, hours, minutes and seconds, as in 7d, 36h or 1h30m")
	case v < least || v > most:
		d.Fault("duration", path, Shown(n.Text)+" is out of bounds", fmt.Sprintf("write from %s to %s", FormatDuration(least), FormatDuration(most)))
	default:
		return v
	}
	return 0
}

// ParseDuration reads whole units in falling order: [n d] [n h] [n m] [n s].
func ParseDuration(s string) (time.Duration, bool) {
	if s == "0" {
		return 0, true
	}
	var total time.Duration
	units := [...]struct {
		name byte
		size time.Duration
	}{{'d', 24 * time.Hour}, {'h', time.Hour}, {'m', time.Minute}, {'s', time.Second}}
	next := 0
	for s != "" {
		digits := 0
		for digits < len(s) && s[digits] >= '0' && s[digits] <= '9' {
			digits++
		}
		if digits == 0 || digits > 6 || digits == len(s) {
			return 0, false
		}
		n, _ := strconv.Atoi(s[:digits])
		for next < len(units) && units[next].name != s[digits] {
			next++
		}
		if next == len(units) || time.Duration(n) > (1<<62)/units[next].size {
			return 0, false
		}
		total += time.Duration(n) * units[next].size
		if total < 0 {
			return 0, false
		}
		next++
		s = s[digits+1:]
	}
	return total, next > 0
}

// FormatDuration prints v in the units that ParseDuration reads.
func FormatDuration(v time.Duration) string {
	if v == 0 {
		return "0"
	}
	var b strings.Builder
	for _, u := range [...]struct {
		name string
		size time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if u.name == "d" && v < 72*time.Hour {
			continue // 25h says more than 1d1h
		}
		if n := v / u.size; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			v -= n * u.size
		}
	}
	return b.String()
}

// Word reads one of a closed set of words.
func Word[W ~string](d *Decoder, n *Node, path, rule string, known []W) W {
	s, ok := d.Text(n, path)
	if ok && !slices.Contains(known, W(s)) {
		names := make([]string, len(known))
		for i, k := range known {
			names[i] = string(k)
		}
		d.Fault(rule, path, Shown(s)+" is not known here", Suggest(s, names))
		return ""
	}
	return W(s)
}

// Unique reads items of a list and refuses one that stands there already.
func Unique[T comparable](d *Decoder, n *Node, path string, most int, read func(n *Node, path string) T) []T {
	out := []T{}
	d.List(n, path, most, func(n *Node, path string) {
		v := read(n, path)
		if d.Faulty(path) {
			return
		}
		if slices.Contains(out, v) {
			d.Fault("duplicate-item", path, fmt.Sprintf("%v stands in the list already", v), "remove it")
			return
		}
		out = append(out, v)
	})
	return out
}
