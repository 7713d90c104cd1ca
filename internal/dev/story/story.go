// Package story tells what a cluster does, as `fealty dev --story` does and a test: it runs the steps one after another on
// a dev cluster (package cluster), and says of each what was expected, what was seen, and what was done in the process in
// place of what happens to machines. It has a small PKI for the steps in which an operator brings one ([PKI]).
package story

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/internal/errcode"
)

// Result is what one step of the story showed.
type Result struct {
	Step     string  `json:"step"`
	Expected string  `json:"expected"`
	Seen     string  `json:"seen"`
	How      string  `json:"how"` // what was done in the process in place of what happens to machines
	OK       bool    `json:"ok"`
	Seconds  float64 `json:"seconds"`
}

// step is one thing that the story shows. run returns what was seen; it is as
// expected if err is nil.
type step struct {
	id       string
	expected string
	run      func(ctx context.Context, c *cluster.Cluster) (seen string, err error)
}

// Steps returns the ids of the story's steps, in order.
func Steps() []string {
	var ids []string
	for _, s := range steps() {
		ids = append(ids, s.id)
	}
	return ids
}

// dataMembers are the members of the story: the last one is banned in it.
func dataMembers() []string { return []string{"node-a", "node-b", "node-c", "node-d"} }

// Tell runs every step on a cluster, which [cluster.Prepare] made without members, and reports each as it ends. It goes on
// after a step that failed, and returns whether all were as expected.
func Tell(ctx context.Context, c *cluster.Cluster, report func(Result)) bool {
	all := true
	for _, s := range steps() {
		started := time.Now()
		c.Means().Take() // what was done before is not of this step
		stepCtx, cancel := context.WithTimeout(ctx, stepLimit)
		seen, err := s.run(stepCtx, c)
		cancel()
		r := Result{Step: s.id, Expected: s.expected, Seen: seen, How: c.Means().Take(), OK: err == nil, Seconds: time.Since(started).Seconds()}
		if err != nil {
			r.Seen = err.Error()
			all = false
		}
		report(r)
	}
	return all
}

// stepLimit bounds one step, which waits several times: each wait has its own bound.
const stepLimit = 4 * cluster.AwaitLimit

// steps are those of the story. Those of programs come while all coordinators are as they were.
func steps() []step { return slices.Concat(firstSteps(), shardSteps(), edgeSteps(), laterSteps()) }

// programStep is a step that programs show, which are processes of their own.
type programStep[P any] struct {
	id, expected string
	run          func(P, context.Context) (seen string, err error)
}

// byPrograms returns steps that share programs: begin starts them before the first, and they end after the last and after
// one that failed.
func byPrograms[P interface{ close() error }](begin func(context.Context, *cluster.Cluster) (P, error), all []programStep[P]) []step {
	var out []step
	var programs P
	begun := false
	for i, s := range all {
		out = append(out, step{s.id, s.expected, func(ctx context.Context, c *cluster.Cluster) (seen string, err error) {
			switch {
			case !process.Supported:
				return "not shown: " + process.Unsupported, nil
			case c.Programs().Program == "":
				return "", errors.New("story: cluster.Options.Program is missing, and what is shown are programs")
			case !begun:
				if programs, err = begin(ctx, c); err != nil {
					return "", err
				}
				begun = true
			}
			seen, err = s.run(programs, ctx)
			if err != nil || i == len(all)-1 {
				begun, err = false, errors.Join(err, programs.close())
			}
			return seen, err
		}})
	}
	return out
}

func firstSteps() []step {
	return []step{
		{"first-set", "the first manifest creates the cluster: ready, authority epoch 1", firstSet},
		{"join", "members with tokens are ADMITTED, own nothing, and meet the baseline of three", join},
		{"x509-join", "a member joins by a certificate of the operator's own PKI; one of a foreign CA is refused with " + string(errcode.JoinCertificateForeign), x509Join},
		{"rejoin", "a member that comes back is ALREADY_MEMBER, and nothing else changes", rejoin},
		{"wrong-cluster", "a join that names another cluster is refused with " + string(errcode.JoinWrongCluster), wrongCluster},
		{"stranger", "a stranger with a key of its own is refused with " + string(errcode.JoinUnauthorized), stranger},
		{"kind-mismatch", "a token for data does not make a witness: " + string(errcode.JoinKindMismatch), kindMismatch},
		{"name-taken", "a token does not take over a name that exists: " + string(errcode.JoinNameTaken), nameTaken},
		{"spent-token", "a token of one use does not admit a second machine: " + string(errcode.TokenSpent), spentToken},
		{"relay", "a valid proof that is relayed over another TLS session is refused with " + string(errcode.TokenUnknown), relay},
		{"renewal", "a member renews under a new key; same identity, same epoch, its stream stays", renewal},
		{"drain", "a drained member works on, the baseline does without it, undrain brings it back; a drained one can be removed, one at work cannot: " + string(errcode.MemberInContact), drain},
		{"route-change", "a route changes, and the nodes in its scope use it; one of another organization sees nothing", routeChange},
		{"increment", "one route of many comes as a patch, and what it makes is what the whole would be", increment},
		{"config-key-rotation", "a new config key signs beside the old one until every member confirmed it; no node loses config", configKeyRotation},
		{"stolen-key", "a stolen config key is revoked, and what it signed is refused", stolenKey},
		{"ban", "a banned member's connection ends, and it does not come back", ban},
	}
}

func laterSteps() []step {
	return []step{
		{"leader-killed", "the leader is killed; another coordinator leads, in a later term, and what it publishes is used", leaderKilled},
		{"late-write", "what a killed leader had sent arrives late, and fails in the store by name: " + leaderKey, lateWrite},
		{"peer-recovery", "a coordinator that lost everything but its enrolment key becomes ready from a peer, without a human and without a keeper", peerRecovery},
		{"mesh-epoch", "under trust: mesh the mesh CA key changes with every set, and with the epoch; members renew by themselves, and no epoch has two keys", meshEpoch},
		{"restore", "the cluster goes back to a backup while its members run: they follow by themselves, every clock is above those of before, a ban that they know of is in force again, tokens are void", restore},
		{"restart", "all coordinators stop and come back as the same cluster at the same epoch, and members return by themselves", restart},
		{"owner-recovery", "all coordinators stop and lose their keeper; two of three shares, brought to different ones, bring all back; a wrong one is refused by its owner's name; members renew by themselves", ownerRecovery},
		{"degraded", "all coordinators stop, and the nodes go on by their snapshots and the policy", degraded},
		{"forbidden-in-degraded", "what is not a node's to decide is refused by name: " + string(errcode.ActionNeedsContact), forbidden},
		{"expiry-stops", "when a bound of the policy is over, so is what it bounds: " + string(errcode.ActionBoundOver), expiryStops},
		{"reconnect", "the coordinator comes back; members are fresh again and report their time alone", reconnect},
	}
}
