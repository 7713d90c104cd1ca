package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// row is one comparison: what each round cost on both sides. Less is better in every row.
type row struct {
	what   string
	unit   string
	peer   string
	ours   []float64
	theirs []float64
}

// against makes a row for each peer, of what turns returned: the first side is ours.
func against(what, unit string, sides []side, cost [][]float64) []row {
	var out []row
	for i := 1; i < len(sides); i++ {
		out = append(out, row{what, unit, sides[i].name, cost[0], cost[i]})
	}
	return out
}

// ratios returns the median of the ratios of the rounds, and the quarters below and above which a quarter of
// them are.
func (r row) ratios() (lower, middle, upper float64) {
	var all []float64
	for i := range min(len(r.ours), len(r.theirs)) {
		all = append(all, r.ours[i]/r.theirs[i])
	}
	slices.Sort(all)
	return quantile(all, 0.25), quantile(all, 0.5), quantile(all, 0.75)
}

// verdict says whether Fealty needs less than the peer in at least three quarters of the rounds, or more.
func (r row) verdict() string {
	switch lower, _, upper := r.ratios(); {
	case upper < 1:
		return "better"
	case lower > 1:
		return "worse"
	}
	return "level"
}

// report is what one run found out.
type report struct {
	rows    []row
	machine string
	commit  string
	began   time.Time
	load    string // what else the machine did
	rounds  int
	streams int
	peers   string // with their versions
}

// table returns the report as it stands in docs/reference/benchmarks.md.
func (r report) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; commit %s, %s; %d rounds, %d streams; %s. Peers: %s.\n\n", r.machine, r.commit, r.began.UTC().Format("2006-01-02"), r.rounds, r.streams, r.load, r.peers)
	b.WriteString("![Each ratio of the table below as a bar: to the left of the line Fealty needs less than the peer, to the right of it more](benchmarks.svg)\n\n")
	return b.String() + r.lines()
}

// lines returns the table alone.
func (r report) lines() string {
	var b strings.Builder
	b.WriteString("| what | peer | Fealty | peer's | unit | ratio | middle half | |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, row := range r.rows {
		lower, middle, upper := row.ratios()
		half := figure(lower) + " to " + figure(upper)
		if len(row.ours) == 1 {
			half = "measured once"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", row.what, row.peer, figure(median(row.ours)), figure(median(row.theirs)),
			row.unit, figure(middle), half, row.verdict())
	}
	return b.String()
}

// summary returns some rows as the README has them.
func (r report) summary(what, peer []string) (string, error) {
	var parts []string
	for i := range what {
		at := slices.IndexFunc(r.rows, func(row row) bool { return row.what == what[i] && row.peer == peer[i] })
		if at < 0 {
			return "", fmt.Errorf("no row is %q against %q", what[i], peer[i])
		}
		_, middle, _ := r.rows[at].ratios()
		parts = append(parts, fmt.Sprintf("- %s: **%s** × %s\n", what[i], figure(middle), peer[i]))
	}
	return strings.Join(parts, ""), nil
}

// figure has three digits that count, or all before the point.
func figure(v float64) string {
	if v == 0 {
		return "0"
	}
	digits := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	out := fmt.Sprintf("%.*f", digits, v)
	if before, rest, ok := strings.Cut(out, "."); !ok && len(before) > 3 {
		n := len(before) - 3
		return before[:n] + "," + before[n:] + rest
	}
	return out
}

// picture draws the ratios as an SVG image that needs nothing else and has a background of its own, so that it
// looks the same on a dark page and on a light one.
func (r report) picture() []byte {
	const (
		width, left, right, rowHeight, top = 860, 430, 60, 26, 64
		reach                              = 16.0 // the least and the greatest ratio with a place of its own
	)
	height := top + rowHeight*len(r.rows) + 24
	span := float64(width - left - right)
	x := func(ratio float64) float64 {
		ratio = min(max(ratio, 1/reach), reach)
		return left + span*(math.Log2(ratio)+math.Log2(reach))/(2*math.Log2(reach))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" font-family="sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>What Fealty needs, as a multiple of what a peer needs for the same</title>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#ffffff" stroke="#8a8f98"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="16" y="24" fill="#1f2328" font-size="14" font-weight="bold">What Fealty needs, as a multiple of what the peer needs</text>`+"\n")
	for _, mark := range []float64{1.0 / 16, 0.25, 0.5, 1, 2, 4, 16} {
		color, label := "#d0d5dc", figure(mark)
		if mark == 1 {
			color = "#1f2328"
		}
		if mark < 0.1 {
			label = "≤ 1/16"
		} else if mark == 16 {
			label = "≥ 16"
		} else {
			label = strings.TrimRight(strings.TrimRight(label, "0"), ".")
		}
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s"/><text x="%.1f" y="%d" fill="#57606a" text-anchor="middle">%s</text>`+"\n",
			x(mark), top-10, x(mark), height-16, color, x(mark), top-16, label)
	}
	colors := map[string]string{"better": "#1a7f5a", "worse": "#b35900", "level": "#6e7781"}
	for i, row := range r.rows {
		y := top + rowHeight*i
		lower, middle, upper := row.ratios()
		from, to := min(x(1), x(middle)), max(x(1), x(middle))
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#1f2328" text-anchor="end">%s</text>`, left-12, y+15, html.EscapeString(row.what+", "+row.peer))
		fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="14" fill="%s"/>`, from, y+4, max(to-from, 1.5), colors[row.verdict()])
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#1f2328" stroke-width="1.5"/>`, x(lower), y+11, x(upper), y+11)
		at, anchor := max(x(upper), to)+6, "start"
		if middle < 1 {
			at, anchor = min(x(lower), from)-6, "end"
			if at-40 < left {
				at, anchor = x(1)+6, "start"
			}
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" fill="#1f2328" text-anchor="%s">%s</text>`+"\n", at, y+15, anchor, figure(middle))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// Between these marks a file is the tool's; what stands around them is written by people.
const (
	beginMark = "<!-- make bench-compare writes from here -->"
	endMark   = "<!-- to here -->"
)

// replaceIn puts text between the marks of a file.
func replaceIn(path, text string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(data, []byte(beginMark))
	_, after, ended := bytes.Cut(rest, []byte(endMark))
	if !ok || !ended {
		return fmt.Errorf("%s has no line %q with a line %q below it", path, beginMark, endMark)
	}
	out := slices.Concat(before, []byte(beginMark+"\n"+text+endMark), after)
	return os.WriteFile(path, out, 0o644)
}
