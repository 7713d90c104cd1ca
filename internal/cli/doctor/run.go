package doctor

import (
	"slices"

	"github.com/fealty-io/fealty/internal/errcode"
)

// Checked is a check with what it found.
type Checked struct {
	Check
	Result
	Root string // of one that was not made: the check at the root of that
}

// Run makes the checks of groups, and those that they need.
func Run(all []Check, groups []string, s *Environment) []Checked {
	wanted := make(map[string]bool)
	for _, k := range slices.Backward(all) { // what is needed comes before who needs it
		if wanted[k.ID] = wanted[k.ID] || slices.Contains(groups, k.Group()); wanted[k.ID] {
			for _, n := range k.Needs {
				wanted[n] = true
			}
		}
	}
	var out []Checked
	done := make(map[string]Checked)
	for _, k := range all {
		if !wanted[k.ID] {
			continue
		}
		r := Checked{Check: k}
		for _, n := range k.Needs {
			d := done[n]
			if d.Outcome == OK || d.Outcome == Warning {
				continue
			}
			if r.Root = d.Root; r.Root == "" {
				r.Root = n
			}
			r.Result = Result{NotChecked, "depends on " + r.Root, ""}
			break
		}
		if r.Root == "" {
			r.Result = k.look(s)
		}
		done[k.ID] = r
		out = append(out, r)
	}
	return out
}

// Exit says by the exit status how things are.
func Exit(results []Checked) errcode.Exit {
	exit := errcode.ExitOK
	for _, r := range results {
		switch r.Outcome {
		case Failed:
			return errcode.ExitUnhealthy
		case Warning, Unknown:
			exit = errcode.ExitDegraded
		}
	}
	return exit
}
