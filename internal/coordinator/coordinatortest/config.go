package coordinatortest

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/record"
)

// ConfigAt is the service of the config.
func ConfigAt(d *Desk) fealtyv1.ConfigServiceServer {
	return Served[fealtyv1.ConfigServiceServer](d.C.Parts().Desired.RegisterServices)
}

// PutAt puts records, which are documents of one text.
func PutAt(d *Desk, text string) (*fealtyv1.PutConfigResponse, error) {
	return ConfigAt(d).PutConfig(context.Background(), PutRequest(text))
}

// PutRequest is the request for [PutAt].
func PutRequest(text string) *fealtyv1.PutConfigRequest {
	req := &fealtyv1.PutConfigRequest{}
	for doc := range strings.SplitSeq(text, "\n---\n") {
		req.Records = append(req.Records, []byte(doc))
	}
	return req
}

// MustPut is [PutAt] of records that are in order.
func MustPut(d *Desk, text string) *fealtyv1.PutConfigResponse {
	d.T.Helper()
	resp, err := PutAt(d, text)
	if err != nil {
		d.T.Fatalf("put: %v", err)
	}
	return resp
}

// QosRecord is a record that everybody gets.
const QosRecord = "kind: qos\nname: gold\npriority: 7\n"

// Audits returns what the audit log says of an action, in order.
func Audits(d *Desk, action string) (out []record.AuditEntry, text string) {
	d.T.Helper()
	for _, e := range d.Store.Snapshot() {
		if !strings.HasPrefix(e.Key, auditlog.Prefix) {
			continue
		}
		var a record.AuditEntry
		if err := json.Unmarshal(e.Value, &a); err != nil {
			d.T.Fatal(err)
		}
		if a.Action == action {
			out = append(out, a)
			text += string(e.Value)
		}
	}
	slices.SortFunc(out, func(a, b record.AuditEntry) int { return strings.Compare(a.Target, b.Target) })
	return out, text
}
