package agent

import (
	"log/slog"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/agent/contact"
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/state"
)

// renewal keeps a member certified.
type renewal struct {
	node     *accept.Node
	log      *slog.Logger
	contact  *contact.Coordinators
	operator *credential.Files            // of an operator's PKI; nil: there are none
	ended    func(action, outcome string) // counts a renewal

	// the key that may be certified without our knowing, or in use and not on disk otherwise; owned by keepCertified
	next *state.PendingKey
	// why the disk took no key, or no certificate, of late; nil: it did; owned by keepCertified
	unkept  error
	unsaved bool // the certificate in use is not on disk, and its key is; owned by keepCertified

	renewAsk  chan chan<- error // a person asks for a renewal
	renewNow  chan string       // a coordinator does
	renewKick chan struct{}     // something changed that may make a failed one succeed
	rejected  chan struct{}     // a coordinator does not accept our certificate
	strange   chan struct{}     // no coordinator is under a root that we know
}

// follower holds a stream to some coordinator.
type follower struct {
	node       *accept.Node
	log        *slog.Logger
	contact    *contact.Coordinators
	renewal    *renewal
	fetcher    *fetch.Fetcher
	release    string
	run        string        // which process this is: see ConnectRequest.run
	reportKick chan struct{} // there is something to report
}
