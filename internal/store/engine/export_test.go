package engine

import "github.com/fealty-io/fealty/internal/store"

// Job is a job that nobody waits for.
type Job = job

// CommitJob, OutcomeJob and RaiseJob make one.
func CommitJob(tx store.Tx) (*Job, error) { return commitJob(tx) }

func OutcomeJob(id string) *Job { return &job{kind: outcome, id: id} }

func RaiseJob(floor store.Revision) *Job { return &job{kind: raise, floor: floor} }

// Result is what a job came to.
type Result struct {
	Revision store.Revision
	Err      error
	Certain  bool
}

// Decide decides jobs.
func Decide(s State, jobs ...*Job) (*Plan, []Result) {
	p := decide(s, jobs, &Config{Name: "db", Anew: "elsewhere"})
	var all []Result
	for _, r := range p.results {
		all = append(all, Result{r.revision, r.err, r.certain})
	}
	return p, all
}
