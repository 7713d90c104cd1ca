package humanize

import "strings"

// most is how many changes a name of so many letters can have and still be a slip: one in
// three letters, and never more than three.
func most(letters int) int { return min(max(letters/3, 1), 3) }

// Suggest says which of names was probably meant by name, or "". Where none is close it says nothing:
// a guess that is far off sends people on a wrong way.
func Suggest(name string, names []string) string {
	best, least := "", 2*(most(len([]rune(name)))+1)
	for _, n := range names {
		// Twice the distance, so that the same first letter, which people rarely get
		// wrong, decides between equals.
		d := 2 * Distance(strings.ToLower(name), strings.ToLower(n))
		if n == "" || name == "" || !strings.EqualFold(n[:1], name[:1]) {
			d++
		}
		if d < least {
			best, least = n, d
		}
	}
	if best == "" {
		for _, n := range names {
			if len(name) >= 3 && strings.HasPrefix(n, name) {
				best = n
				break
			}
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + best + "?"
}

// Distance is how many letters have to be changed, added, taken out or swapped
// with a neighbour (Damerau and Levenshtein, without overlaps). Long texts are not
// slips of a short name: beyond 64 letters it is their length.
func Distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	if len(x) > 64 || len(y) > 64 {
		return max(len(x), len(y))
	}
	d := make([][]int, len(x)+1)
	for i := range d {
		d[i] = make([]int, len(y)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			same := d[i-1][j-1]
			if x[i-1] != y[j-1] {
				same++
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, same)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(x)][len(y)]
}
