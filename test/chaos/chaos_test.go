package chaos_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/test/chaos"
)

// at is a time of these tests, in seconds.
func at(s float64) time.Time {
	return time.Unix(1_700_000_000, 0).Add(time.Duration(s * float64(time.Second))).UTC()
}

func write(value string, call, end float64, o chaos.Outcome) chaos.Write {
	return chaos.Write{Key: "k", Value: value, Call: at(call), Return: at(end), Outcome: o}
}

// Each loss that is planted here is found, and nothing else is.
func TestKept(t *testing.T) {
	const acked, refused, unknown = chaos.Acknowledged, chaos.Refused, chaos.Unknown
	for name, tt := range map[string]struct {
		writes []chaos.Write
		shown  string
		want   string // part of what is wrong; empty: nothing
	}{
		"it is there":                        {[]chaos.Write{write("a", 1, 2, acked)}, "a", ""},
		"it is gone":                         {[]chaos.Write{write("a", 1, 2, acked)}, "", "lost is"},
		"another is there":                   {[]chaos.Write{write("a", 1, 2, acked)}, "b", "nobody wrote that"},
		"nothing was written":                {nil, "b", "nobody wrote that"},
		"overwritten later":                  {[]chaos.Write{write("a", 1, 2, acked), write("b", 3, 4, acked)}, "b", ""},
		"the later one is lost":              {[]chaos.Write{write("a", 1, 2, acked), write("b", 3, 4, acked)}, "a", "k = b"},
		"at once, the one":                   {[]chaos.Write{write("a", 1, 4, acked), write("b", 2, 3, acked)}, "a", ""},
		"at once, the other":                 {[]chaos.Write{write("a", 1, 4, acked), write("b", 2, 3, acked)}, "b", ""},
		"at once, both gone":                 {[]chaos.Write{write("a", 1, 4, acked), write("b", 2, 3, acked)}, "", "lost is"},
		"refused, and not there":             {[]chaos.Write{write("a", 1, 2, refused)}, "", ""},
		"refused, and there":                 {[]chaos.Write{write("a", 1, 2, refused)}, "a", "it was refused"},
		"refused once, and then not":         {[]chaos.Write{write("a", 1, 2, refused), write("a", 3, 4, acked)}, "a", ""},
		"refused after it was written":       {[]chaos.Write{write("a", 1, 2, acked), write("b", 3, 4, refused)}, "a", ""},
		"unknown, and there":                 {[]chaos.Write{write("a", 1, 2, unknown)}, "a", ""},
		"unknown, and not there":             {[]chaos.Write{write("a", 1, 2, unknown)}, "", ""},
		"unknown, and later than the next":   {[]chaos.Write{write("a", 1, 2, unknown), write("b", 3, 4, acked)}, "a", ""},
		"unknown, and not instead of that":   {[]chaos.Write{write("a", 1, 2, acked), write("b", 3, 4, unknown)}, "", "k = a"},
		"taken away":                         {[]chaos.Write{write("a", 1, 2, acked), write("", 3, 4, acked)}, "", ""},
		"taken away, and there":              {[]chaos.Write{write("a", 1, 2, acked), write("", 3, 4, acked)}, "a", "k = nothing"},
		"taken away, and there again":        {[]chaos.Write{write("a", 1, 2, acked), write("", 3, 4, acked), write("a", 5, 6, acked)}, "a", ""},
		"taken away, maybe":                  {[]chaos.Write{write("a", 1, 2, acked), write("", 3, 4, unknown)}, "", ""},
		"taken away before it was there":     {[]chaos.Write{write("", 1, 2, acked), write("a", 3, 4, acked)}, "", "k = a"},
		"the last of three is lost":          {[]chaos.Write{write("a", 1, 2, acked), write("b", 3, 4, acked), write("c", 5, 6, acked)}, "b", "k = c"},
		"the same value again after another": {[]chaos.Write{write("a", 1, 2, acked), write("b", 3, 4, acked), write("a", 5, 6, acked)}, "a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			shown := map[string]string{}
			if tt.shown != "" {
				shown["k"] = tt.shown
			}
			wrong := chaos.Kept(tt.writes, shown)
			if tt.want == "" && len(wrong) > 0 || tt.want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], tt.want)) {
				t.Errorf("found %q, want %q", wrong, tt.want)
			}
		})
	}
}

// The person who put a store back knows what it held, and bans stay all the same.
func TestGoneBack(t *testing.T) {
	writes := []chaos.Write{
		{Key: "config", Value: "1", Call: at(1), Return: at(2), Outcome: chaos.Acknowledged},
		{Key: "config", Value: "2", Call: at(11), Return: at(12), Outcome: chaos.Acknowledged},
		{Key: "early", Value: "1", Call: at(1), Return: at(2), Outcome: chaos.Acknowledged},
		{Key: "late", Value: "1", Call: at(9), Return: at(11), Outcome: chaos.Acknowledged},
		{Key: "refused", Value: "1", Call: at(11), Return: at(12), Outcome: chaos.Refused},
		{Key: "ban", Value: "1", Call: at(13), Return: at(14), Outcome: chaos.Acknowledged},
		{Key: "next", Value: "1", Call: at(21), Return: at(22), Outcome: chaos.Acknowledged},
	}
	count := chaos.GoneBack(writes, at(10), at(20), func(w chaos.Write) bool { return w.Key == "ban" })
	right := map[string]string{"config": "1", "early": "1", "ban": "1", "next": "1"}
	if wrong := chaos.Kept(count, right); len(wrong) > 0 {
		t.Errorf("what the copy did not hold is missed: %q", wrong)
	}
	if wrong := chaos.Kept(writes, right); len(wrong) != 2 {
		t.Errorf("of a store that did not go back, %q are missed", wrong)
	}
	for _, gone := range []string{"early", "ban", "next"} {
		left := map[string]string{"config": "2", "late": "1", "early": "1", "ban": "1", "next": "1"}
		delete(left, gone)
		if wrong := chaos.Kept(count, left); len(wrong) != 1 || !strings.HasPrefix(wrong[0], gone+" is not there") {
			t.Errorf("without %s, %q is missed", gone, wrong)
		}
	}
}

func TestLeaders(t *testing.T) {
	said := func(by string, when float64, leader string, term uint64) chaos.Sight {
		return chaos.Sight{By: by, At: at(when), Leader: leader, Term: term}
	}
	good := []chaos.Sight{said("b", 1, "a", 1), said("a", 1, "a", 1), said("a", 2, "", 0), said("a", 3, "b", 5), said("b", 4, "a", 1), said("b", 5, "b", 5)}
	if wrong := chaos.Leaders(good); len(wrong) > 0 {
		t.Errorf("wrong is %q", wrong)
	}
	if n := chaos.Terms(good); n != 2 {
		t.Errorf("%d terms were seen", n)
	}
	for name, bad := range map[string]chaos.Sight{"term 5 is of": said("c", 6, "c", 5), "b saw term 5": said("b", 6, "a", 1)} {
		if wrong := chaos.Leaders(append(slices.Clone(good), bad)); len(wrong) != 1 || !strings.HasPrefix(wrong[0], name) {
			t.Errorf("found %q, want %q", wrong, name)
		}
	}
}

// After a store was put back the term of the copy is seen again, and a new one is above all of before.
func TestLeadersGoneBack(t *testing.T) {
	said := func(when float64, leader string, term uint64) chaos.Sight {
		return chaos.Sight{By: "b", At: at(when), Leader: leader, Term: term}
	}
	good := []chaos.Sight{said(1, "a", 1), said(2, "b", 5), said(4, "a", 1), said(5, "", 0), said(6, "a", 9)}
	if wrong := chaos.LeadersGoneBack(good, at(3)); len(wrong) > 0 {
		t.Errorf("wrong is %q", wrong)
	}
	for name, bad := range map[string]chaos.Sight{
		"b saw term 9":  said(7, "a", 1),
		"b saw term 5":  said(2.5, "a", 1),
		"term 9 is of":  said(8, "b", 9),
		"b saw term 3 ": said(4.5, "a", 3),
	} {
		if wrong := chaos.LeadersGoneBack(append(slices.Clone(good), bad), at(3)); len(wrong) != 1 || !strings.HasPrefix(wrong[0], name) {
			t.Errorf("found %q, want %q", wrong, name)
		}
	}
	if wrong := chaos.Leaders(good); len(wrong) == 0 {
		t.Error("without the store going back it is right too")
	}
}

func TestWithout(t *testing.T) {
	span := func(from, to float64) chaos.Span { return chaos.Span{From: at(from), To: at(to)} }
	for name, tt := range map[string]struct {
		others, want []chaos.Span
	}{
		"nothing":       {nil, []chaos.Span{span(0, 10)}},
		"one":           {[]chaos.Span{span(2, 3)}, []chaos.Span{span(0, 2), span(3, 10)}},
		"unsorted":      {[]chaos.Span{span(5, 6), span(2, 3)}, []chaos.Span{span(0, 2), span(3, 5), span(6, 10)}},
		"over another":  {[]chaos.Span{span(2, 7), span(3, 4)}, []chaos.Span{span(0, 2), span(7, 10)}},
		"over the ends": {[]chaos.Span{span(-1, 1), span(9, 11)}, []chaos.Span{span(1, 9)}},
		"all":           {[]chaos.Span{span(-1, 11)}, nil},
		"later":         {[]chaos.Span{span(12, 13)}, []chaos.Span{span(0, 10)}},
	} {
		if got := chaos.Without(span(0, 10), tt.others...); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestCertified(t *testing.T) {
	promise := chaos.Promise{Renewed: 10 * time.Second, Back: 20 * time.Second}
	look := func(when, from, to float64) chaos.Look {
		return chaos.Look{At: at(when), NotBefore: at(from), NotAfter: at(to)}
	}
	up := func(times ...float64) (spans []chaos.Span) {
		for i := 0; i < len(times); i += 2 {
			spans = append(spans, chaos.Span{From: at(times[i]), To: at(times[i+1])})
		}
		return spans
	}
	for name, tt := range map[string]struct {
		looks []chaos.Look
		up    [][]chaos.Span
		want  []string
	}{
		"renewed":                      {[]chaos.Look{look(1, 0, 60), look(31, 30, 90), look(61, 60, 120)}, [][]chaos.Span{up(0, 100)}, nil},
		"ran out while nothing was up": {[]chaos.Look{look(1, 0, 60), look(70, 0, 60)}, [][]chaos.Span{up(0, 49)}, nil},
		"ran out, and was due":         {[]chaos.Look{look(1, 0, 60), look(70, 0, 60)}, [][]chaos.Span{up(0, 51)}, []string{"ran out"}},
		"up before it was due":         {[]chaos.Look{look(1, 0, 60), look(70, 0, 60)}, [][]chaos.Span{up(0, 30, 45, 54)}, nil},
		"up, one after the other":      {[]chaos.Look{look(1, 0, 60), look(70, 0, 60)}, [][]chaos.Span{up(40, 48), up(48, 56)}, nil},
		"up, the second":               {[]chaos.Look{look(1, 0, 60), look(70, 0, 60)}, [][]chaos.Span{up(40, 48), up(48, 59)}, []string{"ran out"}},
		"back":                         {[]chaos.Look{look(1, 0, 60), look(89, 0, 60), look(91, 90, 150)}, [][]chaos.Span{up(70, 200)}, nil},
		"not back":                     {[]chaos.Look{look(1, 0, 60), look(92, 0, 60), look(93, 0, 60)}, [][]chaos.Span{up(70, 200)}, []string{"was not back"}},
		"not back, and nothing up":     {[]chaos.Look{look(1, 0, 60), look(200, 0, 60)}, [][]chaos.Span{up(70, 89)}, nil},
		// A node that could not keep the newer one has an older one again.
		"an older one": {[]chaos.Look{look(1, 0, 60), look(40, 30, 90), look(62, 0, 60), look(64, 63, 120)}, [][]chaos.Span{up(0, 200)}, nil},
	} {
		wrong := chaos.Certified("node", tt.looks, promise, tt.up...)
		if !slices.EqualFunc(wrong, tt.want, strings.Contains) {
			t.Errorf("%s: found %q, want %q", name, wrong, tt.want)
		}
	}
	if n := chaos.Changes([]chaos.Look{look(1, 0, 60), look(2, 0, 60), look(30, 30, 90), look(40, 30, 90)}); n != 2 {
		t.Errorf("two certificates are %d", n)
	}
	times, longest := chaos.RanOut([]chaos.Look{look(1, 0, 60), look(61, 0, 60), look(65, 0, 60), look(70, 69, 129), look(130, 69, 129)})
	if times != 2 || longest != 4*time.Second {
		t.Errorf("it ran out %d times, for %v", times, longest)
	}
}
