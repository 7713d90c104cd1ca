package dashboard

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/fealty-io/fealty/internal/cli/dashboard/markup"
)

// group is a row of a picture: how many there are of a sort, and how many of those are well.
type group struct {
	name      string
	all, well int
}

// bars is a picture of groups, the largest first, and the table of what it shows. Those that there is no room for are the
// last row.
func bars(what string, groups map[string]*group) markup.Part {
	list := make([]*group, 0, len(groups))
	for _, g := range groups {
		list = append(list, g)
	}
	slices.SortFunc(list, func(a, b *group) int {
		return cmp.Or(cmp.Compare(b.all, a.all), cmp.Compare(a.name, b.name))
	})
	if len(list) > shownGroups {
		rest := &group{name: fmt.Sprintf("%d others", len(list)-shownGroups+1)}
		for _, g := range list[shownGroups-1:] {
			rest.all, rest.well = rest.all+g.all, rest.well+g.well
		}
		list = append(list[:shownGroups-1:shownGroups-1], rest)
	}
	if len(list) == 0 {
		return el("p", text("There is none."))
	}
	const width, row, bar = 400, 16, 10
	most := 1
	for _, g := range list {
		most = max(most, g.all)
	}
	picture := parts{attr("viewBox", fmt.Sprintf("0 0 %d %d", width, row*len(list))), attr("role", "img"), attr("aria-label", what+": the table has the numbers"),
		attr("focusable", "false")}
	at := func(n int) string { return fmt.Sprint(n) }
	for i, g := range list {
		y := at(i*row + (row-bar)/2)
		picture = append(picture,
			el("rect", class("bar2"), attr("x", "0"), attr("y", y), attr("width", at(max(2, width*g.all/most))), attr("height", at(bar)), attr("rx", "3")),
			el("rect", class("bar"), attr("x", "0"), attr("y", y), attr("width", at(width*g.well/most)), attr("height", at(bar)), attr("rx", "3")))
	}
	var rows [][]markup.Part
	for _, g := range list {
		rows = append(rows, []markup.Part{text(g.name), text(at(g.all)), text(at(g.well))})
	}
	return el("figure", el("svg", picture...), table(what, []string{"Which", "Members", "Connected"}, rows))
}
