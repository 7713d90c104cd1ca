package auditlog

import (
	"cmp"
	"fmt"
	"slices"
)

// Rule names a check of the audit log.
type Rule string

// The checks, in the order of what they look at.
const (
	RuleCheckpoint   Rule = "checkpoint"         // a checkpoint that cannot be read
	RuleCluster      Rule = "cluster"            // it is of another cluster
	RuleSignature    Rule = "signature"          // its signature is forged
	RuleKey          Rule = "key"                // the newest one is under no key of the trust bundle that may sign
	RuleOrder        Rule = "checkpoint-order"   // checkpoints are missing, twice there, or out of order
	RuleLink         Rule = "checkpoint-link"    // a checkpoint does not name the one before it
	RuleKnown        Rule = "known-checkpoint"   // the one that the reader knows is not there
	RuleFirst        Rule = "first-kept"         // the log begins later than it says
	RuleLine         Rule = "line"               // a checkpoint goes on elsewhere than the one before ended
	RuleEntry        Rule = "entry"              // an entry that cannot be read, or stands elsewhere than it says
	RuleDuplicate    Rule = "duplicate"          // an entry is there twice
	RuleMissing      Rule = "missing"            // an entry behind a checkpoint is not there
	RuleAltered      Rule = "altered"            // an entry is not the one that the log vouches for
	RuleStray        Rule = "stray"              // an entry that no checkpoint tells of stands among those behind one
	RuleBreak        Rule = "break"              // whoever made a checkpoint found something wrong
	RuleNoCheckpoint Rule = "without-checkpoint" // there are chains, and nothing vouches for them
)

// Problem is one thing that is wrong with a log.
type Problem struct {
	Rule       Rule
	Checkpoint uint64 // 0: after the last one
	Chain      string // of an entry
	Number     uint64
	Problem    string
}

func (p Problem) String() string {
	where := "after the last checkpoint"
	if p.Checkpoint != 0 {
		where = fmt.Sprintf("checkpoint %d", p.Checkpoint)
	}
	switch {
	case p.Chain != "" && p.Number == 0:
		where += fmt.Sprintf(", chain %s", p.Chain)
	case p.Chain != "":
		where += fmt.Sprintf(", entry %d of chain %s", p.Number, p.Chain)
	}
	return where + ": " + p.Problem
}

// MaxProblems bounds the problems that are told one by one.
const MaxProblems = 100

// maxTail bounds the entries behind no checkpoint that are looked at, and maxChains the
// chains of a log.
const (
	maxTail   = 100_000
	maxChains = 1_000_000
)

// Known is a checkpoint that the reader knows from before: it must still be there.
type Known struct {
	Number uint64
	Hash   Hash
}

// Report is what a [Verifier] found.
type Report struct {
	Cluster string
	// First and Last are the checkpoints that were read. Last.Number is 0 if there are none.
	First uint64
	Last  Known
	// Covered are the entries behind a checkpoint that vouches for them, Uncovered those that
	// are chained and behind none yet, and Unchained those of releases before chains, which
	// nothing vouches for.
	Covered, Uncovered, Unchained uint64
	Problems                      []Problem // at most MaxProblems
	Wrong                         uint64    // how many there are
}

// Verifier reads a log in the order of its checkpoints: each checkpoint, then the entries that
// it covers in any order, and at last the entries behind no checkpoint. Entries that are in no
// chain may stand anywhere. It holds one checkpoint's entries, and for each chain its end.
type Verifier struct {
	cluster string
	keys    Keys
	known   []Known
	report  Report

	last    *Claim // the checkpoint that was read last; nil: none
	open    bool   // its lines are not compared yet
	skips   bool   // what comes is behind a checkpoint that cannot be read
	entries map[string]map[uint64]found
	size    int
	ends    map[string]Head // of the chains, as far as they are behind a checkpoint
	lost    map[string]bool // chains of which a break was told
	seen    map[uint64]Hash // of the checkpoints in known
}

// found is what is kept of an entry until all of its checkpoint are there.
type found struct {
	hash, previous Hash
	twice          bool
}

// NewVerifier returns a verifier of the log of cluster. keys are those of its trust bundle.
func NewVerifier(cluster string, keys Keys, known ...Known) *Verifier {
	return &Verifier{
		cluster: cluster, keys: keys, known: known, report: Report{Cluster: cluster},
		entries: make(map[string]map[uint64]found), ends: make(map[string]Head), lost: make(map[string]bool), seen: make(map[uint64]Hash),
	}
}

func (v *Verifier) wrong(rule Rule, checkpoint uint64, chain string, number uint64, format string, args ...any) {
	v.report.Wrong++
	if len(v.report.Problems) < MaxProblems {
		v.report.Problems = append(v.report.Problems, Problem{rule, checkpoint, chain, number, fmt.Sprintf(format, args...)})
	}
}

func (v *Verifier) at() uint64 {
	if v.last == nil {
		return 0
	}
	return v.last.Number
}

// Add reads what stands at key. Anything that is no part of the log is passed over.
func (v *Verifier) Add(key string, value []byte) {
	if number, ok := ParseCheckpointKey(key); ok {
		v.checkpoint(number, value)
		return
	}
	if len(key) <= len(Prefix) || key[:len(Prefix)] != Prefix {
		return
	}
	e, err := Decode(key, value)
	chain, number, chained := ParseKey(key)
	switch {
	case err != nil && chained:
		v.wrong(RuleEntry, v.at(), chain, number, "%v", err)
		return
	case err != nil:
		v.wrong(RuleEntry, v.at(), "", 0, "the entry at %.120q: %v", key, err)
		return
	case !chained:
		v.report.Unchained++
		return
	}
	if v.entries[chain] == nil {
		v.entries[chain] = make(map[uint64]found)
	}
	f, twice := v.entries[chain][number]
	if twice || number <= v.ends[chain].Number {
		f.twice = true
		v.wrong(RuleDuplicate, v.at(), chain, number, "it is there twice")
		return
	}
	if v.size++; v.size > maxTail {
		if v.size == maxTail+1 {
			v.wrong(RuleStray, v.at(), "", 0, "more than %d entries are behind no checkpoint", maxTail)
		}
		return
	}
	v.entries[chain][number] = found{hash: HashOf(key, value), previous: e.Previous}
}

// checkpoint reads one more checkpoint, after the entries of the one before it.
func (v *Verifier) checkpoint(number uint64, value []byte) {
	v.settle(false)
	v.skips = true
	c, err := DecodeCheckpoint(value)
	switch {
	case err != nil:
		v.wrong(RuleCheckpoint, number, "", 0, "%v", err)
		return
	case c.Number != number:
		v.wrong(RuleCheckpoint, number, "", 0, "it says that it is number %d", c.Number)
		return
	case c.Cluster != v.cluster:
		v.wrong(RuleCluster, number, "", 0, "it is of cluster %.80q, not %q", c.Cluster, v.cluster)
		return
	}
	// One under a key that may sign no more is vouched for by the next, which names its hash.
	if is, problem := v.keys.signedBy(c); is == forged {
		v.wrong(RuleSignature, number, "", 0, "%s", problem)
	}
	switch was := v.last; {
	case was == nil:
		v.report.First = number
	case number != was.Number+1:
		v.wrong(RuleOrder, number, "", 0, "it comes after checkpoint %d", was.Number)
	case c.Previous != was.Hash:
		v.wrong(RuleLink, number, "", 0, "it names another checkpoint %d than the one that is there", was.Number)
	case c.First < was.First:
		v.wrong(RuleFirst, number, "", 0, "it says that checkpoint %d is kept, and the one before it that %d is the first", c.First, was.First)
	}
	for _, k := range v.known {
		if k.Number == number {
			v.seen[number] = c.Hash
		}
	}
	for _, b := range c.Breaks {
		v.wrong(RuleBreak, number, b.Chain, b.Number, "whoever made the checkpoint found that %s", b.Problem)
		if b.Chain != "" && b.Number > 0 {
			v.lost[b.Chain] = true
		}
	}
	v.last, v.open, v.skips = c, true, false
}

// settle compares the entries that were read with the checkpoint that covers them.
func (v *Verifier) settle(end bool) {
	if v.open {
		for _, line := range v.last.Lines {
			v.line(line)
		}
		v.open = false
	}
	if !end {
		if !v.skips && len(v.entries) > 0 {
			v.strays(v.at())
		}
		v.entries, v.size = make(map[string]map[uint64]found), 0
	}
}

// line checks one chain of a checkpoint.
func (v *Verifier) line(l Line) {
	at := v.last.Number
	was, begun := v.ends[l.Chain]
	// A chain that is not known began behind a checkpoint that is kept no longer.
	switch {
	case begun && was.Number != l.From:
		v.wrong(RuleLine, at, l.Chain, l.From+1, "the chain ended at %d behind the checkpoints before", was.Number)
	case !begun && l.From > 0 && v.report.First == 1:
		v.wrong(RuleLine, at, l.Chain, l.From+1, "no checkpoint tells of the entries before it")
	case !begun && len(v.ends) >= maxChains:
		v.wrong(RuleLine, at, l.Chain, l.From+1, "the log has more than %d chains", maxChains)
		return
	}
	entries := v.entries[l.Chain]
	// From the last one back, each names the hash of the one before. Nothing vouches for what
	// stands before one that is not the one that was written.
	want, vouched := l.Hash, true
	for n := l.To; n > l.From; n-- {
		e, ok := entries[n]
		delete(entries, n)
		switch {
		case !ok:
			v.wrong(RuleMissing, at, l.Chain, n, "it is not there")
			vouched = false
		case vouched && e.hash != want:
			v.wrong(RuleAltered, at, l.Chain, n, "it is not what was written")
			vouched = false
		case vouched:
			v.report.Covered++
		}
		want = e.previous
	}
	if vouched && begun && want != was.Hash {
		v.wrong(RuleAltered, at, l.Chain, l.From+1, "it does not follow the entry before it")
	}
	v.ends[l.Chain] = Head{Number: l.To, Hash: l.Hash}
	if len(entries) == 0 {
		delete(v.entries, l.Chain)
	}
}

// strays tells of entries that stand behind a checkpoint which does not cover them.
func (v *Verifier) strays(at uint64) {
	for _, chain := range sortedKeys(v.entries) {
		for _, n := range sortedKeys(v.entries[chain]) {
			if !v.lost[chain] {
				v.wrong(RuleStray, at, chain, n, "no checkpoint tells of it, and it stands among those that one tells of")
			}
		}
	}
}

// Close ends the log, and returns what was found.
func (v *Verifier) Close() *Report {
	v.settle(true)
	if v.last != nil {
		v.report.Last = Known{v.last.Number, v.last.Hash}
		if is, problem := v.keys.signedBy(v.last); is == unknown || is == untrusted {
			v.wrong(RuleKey, v.last.Number, "", 0, "it is the last one, and %s", problem)
		}
		if v.report.First > v.last.First {
			v.wrong(RuleFirst, v.report.First, "", 0, "it is the first that is there, and the last one says that checkpoint %d is kept", v.last.First)
		}
	}
	for _, k := range v.known {
		if got, ok := v.seen[k.Number]; !ok && k.Number >= v.firstKept() || ok && got != k.Hash {
			v.wrong(RuleKnown, k.Number, "", 0, "it was there before with hash %s, and is not", k.Hash)
		}
	}
	v.tail()
	return &v.report
}

func (v *Verifier) firstKept() uint64 {
	if v.last == nil {
		return 0
	}
	return v.last.First
}

// tail looks at what no checkpoint covers yet: that it follows what one covers, without gaps.
func (v *Verifier) tail() {
	for _, chain := range sortedKeys(v.entries) {
		if v.lost[chain] {
			continue
		}
		was := v.ends[chain]
		for _, n := range sortedKeys(v.entries[chain]) {
			e := v.entries[chain][n]
			switch {
			case n != was.Number+1:
				v.wrong(RuleMissing, 0, chain, was.Number+1, "it is not there, and entry %d is", n)
			case e.previous != was.Hash:
				v.wrong(RuleAltered, 0, chain, n, "it does not follow the entry before it")
			default:
				v.report.Uncovered++
			}
			was = Head{Number: n, Hash: e.hash}
		}
	}
	if v.last == nil && len(v.entries) > 0 && !v.skips {
		v.wrong(RuleNoCheckpoint, 0, "", 0, "there are chains, and no checkpoint vouches for any: the leader makes one a minute")
	}
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
