package process

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/fealty-io/fealty/internal/document"
)

// MaxProfilesFile bounds a file of profiles, in bytes.
const MaxProfilesFile = 256 << 10

// maxArguments bounds the words of one command.
const maxArguments = 256

var profilesFormat = document.Format{
	Noun: "a file of profiles", Start: "begin it with profiles:", TooLong: "shorten it", Bytes: MaxProfilesFile,
	Documents: 1,
	Depth:     6, Fields: 16, Items: MaxSlots, Marks: 64 << 10, Problems: 20,
}

// ReadProfiles reads the profiles of a YAML text. Its words are checked by [Open]; the
// errors are of what it cannot say, each with its line.
//
//	profiles:
//	  - name: web
//	    slots: 2
//	    command: [python3, -m, http.server]
//	    domain: rack-1                  # default: in no domain
//	    price_per_hour: 0.25            # default: 0
//	    interruption_probability: 0.01  # default: 0
//	    max_file_bytes: 1073741824      # of each file that it writes; default: no bound
func ReadProfiles(text []byte) ([]Profile, error) {
	roots, problems := profilesFormat.Read(text)
	if problems != nil {
		return nil, faults(problems)
	}
	d := document.NewDecoder(profilesFormat.Problems)
	var profiles []Profile
	d.Object(roots[0], "", document.Part{Name: "profiles", Required: true, Read: func(n *document.Node, path string) {
		d.List(n, path, MaxSlots, func(n *document.Node, path string) {
			profiles = append(profiles, readProfile(d, n, path))
		})
	}})
	if d.Problems != nil {
		return nil, faults(d.Problems)
	}
	return profiles, nil
}

func readProfile(d *document.Decoder, n *document.Node, path string) (p Profile) {
	text := func(into *string) func(*document.Node, string) {
		return func(n *document.Node, path string) { *into, _ = d.Text(n, path) }
	}
	number := func(into *float64) func(*document.Node, string) {
		return func(n *document.Node, path string) {
			if n.Kind != document.Int && n.Kind != document.Other {
				d.Expect(n, path, document.Int)
				return
			}
			v, err := strconv.ParseFloat(n.Text, 64)
			if err != nil {
				d.Report("number", document.Place{Line: n.Line, Column: n.Column}, path,
					document.Shown(n.Text)+" is no number",
					"write one such as 0.25")
			}
			*into = v
		}
	}
	d.Object(n, path,
		document.Part{Name: "name", Required: true, Read: text(&p.Name)},
		document.Part{Name: "slots", Required: true, Read: func(n *document.Node, path string) {
			p.Slots = d.Number(n, path, 1, MaxSlots)
		}},
		document.Part{Name: "command", Required: true, Read: func(n *document.Node, path string) {
			d.List(n, path, maxArguments, func(n *document.Node, path string) {
				word, _ := d.Text(n, path)
				p.Command = append(p.Command, word)
			})
		}},
		document.Part{Name: "domain", Read: text(&p.Domain)},
		document.Part{Name: "price_per_hour", Read: number(&p.PricePerHour)},
		document.Part{Name: "max_file_bytes", Read: func(n *document.Node, path string) {
			p.MaxFileBytes = int64(d.Number(n, path, LeastFile, math.MaxInt))
		}},
		document.Part{Name: "interruption_probability", Read: number(&p.InterruptionProbability)},
	)
	return p
}

func faults(problems []*document.Problem) error {
	var all []string
	for _, p := range problems {
		field := ""
		if p.Field != "" {
			field = p.Field + ": "
		}
		all = append(all, fmt.Sprintf("line %d: %s%s: %s", p.Line, field, p.What, p.Do))
	}
	return errors.New(strings.Join(all, "; "))
}
