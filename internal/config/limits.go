package config

import (
	"time"

	"github.com/fealty-io/fealty/internal/snapshot"
)

// Limits of the config. The ones of a record are those of the snapshots that it
// goes into.
const (
	MaxText      = 1 << 20 // bytes that Decode reads at a time
	MaxBatch     = 256     // records written at a time
	MaxRecord    = 64 << 10
	MaxRecords   = 1 << 14 // of all kinds together
	MaxOfKind    = snapshot.MaxRecords
	MaxBytes     = 16 << 20 // of all records in their canonical form
	MaxProblems  = 100      // that one error reports
	MaxName      = 63
	MaxLongName  = 128                    // of types, protocols, resolvers, connectors, parameters and the like
	MaxItems     = snapshot.MaxReferences // of a list or an object of a record
	MaxValue     = snapshot.MaxText       // bytes of a text
	MaxAddress   = 300
	MaxPublicKey = 1 << 10 // bytes of its DER

	maxDepth  = 12
	maxFields = 128
	maxMarks  = 200_000 // characters that begin or end a token, in one text: it costs under a second to read
)

// Bounds of what a number or a duration can be.
const (
	MaxPriority = 1_000_000
	MaxKbps     = 1_000_000_000_000
	MaxSessions = 1_000_000_000
	MaxTTL      = 365 * 24 * time.Hour
	MaxTrial    = snapshot.MaxTrial
)
