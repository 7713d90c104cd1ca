package desired_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/config"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// A record that an earlier release took, and that holds what this one knows as a secret, stays in force: the coordinator
// starts, compiles, and a node takes the snapshot. It is told, and cannot be put again.
func TestStoredSecretsAreToldAndStay(t *testing.T) {
	const harmless, secret = "mode fast and plain", "sshpass -p hunter" + "2"
	if snapshot.CheckedIn("", secret) != "" || snapshot.SecretIn("", secret) == "" {
		t.Fatal("this form is not one that nodes let pass, and that is not put any more")
	}
	d := coordinatortest.PoolDesk(t)
	text := "kind: service\nname: web\ntype: container\nparameters: {run: " + harmless + "}\n"
	coordinatortest.MustPut(d, text)
	if found := coordinatortest.FindingsAt(d, t, errcode.ConfigExposed); len(found) != 0 {
		t.Errorf("told without a reason: %v", found)
	}
	// What an earlier release would have left in the store.
	set, _, _ := d.C.Parts().Desired.Configured()
	key := config.Key{Kind: "service", Name: "web"}
	canonical, _, ok := set.Canonical(key)
	if !ok {
		t.Fatal("the record is not there")
	}
	canonical = bytes.Replace(canonical, []byte(harmless), []byte(secret), 1)
	reading := new(config.Set).Reading()
	if err := reading.Add(canonical); err != nil {
		t.Fatalf("a stored record is not read: %v", err)
	}
	earlier, err := reading.Set()
	if err != nil {
		t.Fatal(err)
	}
	records := d.State().Records
	for at, value := range map[string]any{
		desired.KeyOf(key): json.RawMessage(canonical),
		desired.StateKey:   desired.State{Change: 7, Count: earlier.Len(), Digest: earlier.Digest().String()},
	} {
		w, err := records.Seal(at, value)
		if err != nil {
			t.Fatal(err)
		}
		d.Store.Write(w.Key, w.Value)
	}
	d.Restart()
	if d.State().Phase != authority.Ready {
		t.Fatalf("it did not come back: %s", d.State().Reason)
	}
	if now, _, ok := d.C.Parts().Desired.Configured(); !ok || now.Digest() != earlier.Digest() {
		t.Fatal("the config in force is another one")
	}
	found := coordinatortest.FindingsAt(d, t, errcode.ConfigExposed)
	if len(found) != 1 || !strings.Contains(found[0].GetSummary(), "service/web") ||
		!strings.Contains(found[0].GetSummary(), "parameters.run") || strings.Contains(found[0].String(), "hunter") {
		t.Errorf("found %v, want the record and its field, and not the secret", found)
	}
	coordinatortest.MustPublish(d, publication.NewPublisher())
	if found := coordinatortest.FindingsAt(d, t, errcode.SnapshotUncompiled); len(found) != 0 {
		t.Errorf("it is not compiled: %v", found)
	}
	if _, err := coordinatortest.PutAt(d, strings.Replace(text, harmless, secret, 1)); err == nil {
		t.Error("it was put again")
	} else {
		coordinatortest.WantOnly(t, "put", err, errcode.ConfigInvalid)
	}
	coordinatortest.MustPut(d, text)
	if found := coordinatortest.FindingsAt(d, t, errcode.ConfigExposed); len(found) != 0 {
		t.Errorf("told after it was mended: %v", found)
	}
}
