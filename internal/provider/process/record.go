package process

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/fealty-io/fealty/provider"
)

// maxRecord bounds what is read of a machine's file, in bytes.
const maxRecord = 8 << 10

// record is a machine as its file has it.
type record struct {
	Version   int            `json:"version"`
	Machine   string         `json:"machine"`
	Profile   string         `json:"profile"`
	State     provider.State `json:"state"`
	Tenant    string         `json:"tenant,omitempty"`
	Priority  int32          `json:"priority,omitempty"`
	Operation string         `json:"operation,omitempty"`
	LastError string         `json:"last_error,omitempty"`
	Process   running        `json:"process,omitzero"`
}

// running is a process, told from every other one that has or had its pid.
type running struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after the boot: proc_pid_stat(5), field 22
	Boot  string `json:"boot"`  // which boot: random(4), boot_id
}

func (r record) encode() []byte {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		panic("process: a record cannot be written: " + err.Error()) // it has strings and numbers
	}
	return append(text, '\n')
}

// decode reads the file of a machine. A text that is not exactly a record is an error: a machine
// whose state is guessed would be started twice, or its process forgotten.
func decode(text []byte) (record, error) {
	var r record
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return record{}, err
	}
	if !bytes.Equal(r.encode(), text) {
		return record{}, fmt.Errorf("it has another spelling than its own")
	}
	if r.Version != 1 {
		return record{}, fmt.Errorf("it is of version %d, want 1: another release wrote it", r.Version)
	}
	return r, r.machine(Profile{}).Validate()
}

// machine is what others see.
func (r record) machine(p Profile) provider.Machine {
	return provider.Machine{ID: r.Machine, Profile: r.Profile, Domain: p.Domain, State: r.State, Tenant: r.Tenant,
		Priority:  r.Priority,
		Operation: r.Operation, LastError: r.LastError, PricePerHour: p.PricePerHour,
		InterruptionProbability: p.InterruptionProbability}
}
