package coordinatortest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
)

// WantOnly fails unless err is of code, or nil for "".
func WantOnly(t *testing.T, what string, err error, code errcode.Code) {
	t.Helper()
	switch {
	case code == "" && err != nil:
		t.Fatalf("%s: %v, want success", what, err)
	case code != "" && !errors.Is(err, code):
		t.Fatalf("%s: %v, want %s", what, err, code)
	}
}

// LeadPatience is how long tests wait for what is to happen, on a machine as busy as it
// may be.
const LeadPatience = 2 * time.Minute

// FormOf returns the form in which text holds secret, or "".
func FormOf(text, secret []byte) string {
	lower := bytes.ToLower(text)
	switch {
	case bytes.Contains(text, secret):
		return "raw"
	case bytes.Contains(lower, []byte(hex.EncodeToString(secret))):
		return "hex"
	case bytes.Contains(text, []byte(fmt.Sprint(secret))):
		return "decimal"
	}
	// In base64 at any of the three alignments; the characters at the ends depend on
	// the neighbours.
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for pad := range 3 {
			coded := enc.EncodeToString(append(make([]byte, pad), secret...))
			if bytes.Contains(text, []byte(coded[(pad*4+2)/3:len(coded)-1])) {
				return "base64"
			}
		}
	}
	return ""
}

// ErrCrash is what a fault point fails with where a test plays a crash.
var ErrCrash = errors.New("crash")

// WantOnlyNil fails unless err is nil.
func WantOnlyNil(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Verified is the history in the store that c reads, as the seed of its head vouches for it.
func Verified(t TB, c *coordinator.Coordinator) *history.Verified {
	t.Helper()
	head := c.Parts().Head
	h, err := head.History().Load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	v, err := history.Verify(h, head.State().Secrets.TransactionKey())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// MustHead is the head of the history in the store of d.
func MustHead(t TB, d *Desk) history.Record {
	t.Helper()
	head, _, err := d.C.Parts().Head.History().Head(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return head
}

// KeeperFinding is summary and remedy of the finding with this code, or "".
func KeeperFinding(findings []*fealtyv1.Finding, code errcode.Code) string {
	for _, f := range findings {
		if f.GetCode() == string(code) {
			return f.GetSummary() + " | " + f.GetRemedy()
		}
	}
	return ""
}

// KeyIDs returns the ids of the keys under which the keeper host has the seed in force.
func KeyIDs(t testing.TB, c *coordinator.Coordinator, st store.Store) []keyring.KeyID {
	t.Helper()
	copies, err := sealed.Copies(context.Background(), st,
		sealed.Seed(&c.Parts().Head.State().Head.Transition), "host")
	if err != nil {
		t.Fatal(err)
	}
	return sealed.IDs(copies)
}

// WantOrigins shows from audit entries and history alone that every coordinator with a
// name made the seed, or received it from owners or a keeper of the manifest, or from a
// coordinator that held it (docs/explanation/threat-model.md); that each mesh CA
// key in the history was made once, by one that held the seed of its head; and that each
// coordinator with a name made that of the newest head, or received it.
func WantOrigins(t *testing.T, f *Fleet, names ...string) {
	t.Helper()
	s := f.State()
	v := Verified(t, f.C)
	seedOf := make(map[string]history.Salt) // by head
	for _, l := range v.Links() {
		seedOf[l.Hash.String()] = l.Salt
	}
	people, keepers := make(map[string]bool), make(map[string]bool)
	for _, o := range s.Manifest.Seed.People() {
		people[o.Name] = true
	}
	for _, o := range s.Manifest.Seed.Keepers() {
		keepers[o.Name] = true
	}
	nameOf := func(key string) string {
		found, _ := s.Manifest.Match(identity.Coordinator, []string{"key:" + key})
		return found.Name
	}
	by := func(e record.AuditEntry) string { return e.Actor[strings.LastIndexByte(e.Actor, '/')+1:] }
	type held struct {
		name string
		seed history.Salt
	}
	holds := make(map[held]bool)
	created := make(map[history.Salt]bool)
	// A coordinator that made a seed says so once its head is in force: a keeper may have opened it for
	// another one by then.
	for _, e := range Audited(f, transition.ActionSeedCreated) {
		h := held{by(e), seedOf[e.Fields["head"]]}
		if created[h.seed] {
			t.Errorf("a seed was made twice: %+v", e)
		}
		created[h.seed], holds[h] = true, true
	}
	for _, e := range Audited(f, transition.ActionSeedReceived) {
		h := held{by(e), seedOf[e.Fields["head"]]}
		if !created[h.seed] {
			t.Errorf("a seed was received that nobody made, or at no head of the history: %+v", e)
		}
		switch via := e.Fields["via"]; {
		case via == "owners":
			from := strings.Split(e.Fields["from"], ", ")
			if len(from) < s.Manifest.Seed.Threshold || slices.ContainsFunc(from,
				func(o string) bool { return !people[o] }) {
				t.Errorf("%s received the seed from %v", h.name, from)
			}
		case via == "peer":
			if giver := nameOf(e.Fields["key"]); !holds[held{giver, h.seed}] {
				t.Errorf("%s received the seed from %q, who did not hold it: %+v", h.name, giver, e)
			}
		case via == "keeper" && keepers[e.Fields["from"]]:
		default:
			t.Errorf("an origin that is none: %+v", e)
		}
		holds[h] = true
	}
	for _, name := range names {
		if !holds[held{name, s.Head.Salt}] {
			t.Errorf("nothing shows where %s has the seed from", name)
		}
	}
	made, has := make(map[string]int), make(map[string]bool)
	for _, e := range Audited(f, transition.ActionMeshMade, transition.ActionMeshReceived,
		"mesh.prepared") {
		key := e.Fields["mesh_ca_key"]
		if e.Action == transition.ActionMeshMade {
			if made[key]++; !holds[held{by(e), seedOf[e.Fields["head"]]}] {
				t.Errorf("a mesh CA key by who did not hold the seed: %+v", e)
			}
		}
		if giver := nameOf(e.Fields["key"]); e.Fields["via"] == "peer" && giver == "" {
			t.Errorf("a mesh CA key from who is no coordinator: %+v", e)
		}
		if key == s.MeshKey.String() {
			has[by(e)] = true
		}
	}
	for _, k := range v.MeshCAKeys() {
		if made[k.Key.String()] != 1 {
			t.Errorf("the mesh CA key of epoch %d was made %d times", k.AuthorityEpoch, made[k.Key.String()])
		}
	}
	for _, name := range names {
		if !has[name] {
			t.Errorf("nothing shows where %s has the mesh CA key from", name)
		}
	}
}

// Epoch0 is a time that tests count from where they have no clock.
var Epoch0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// WantNamed fails unless the refusal err names owner.
func WantNamed(t testing.TB, err error, owner string) {
	t.Helper()
	if e := errcode.Of(err); e.Fields["owner"] != owner && !strings.Contains(e.Error(), owner) {
		t.Errorf("the refusal does not name %s: %v", owner, e)
	}
}

// WantOneKeyPerEpoch verifies the history, and that each authority epoch has one
// mesh CA key of its own.
func WantOneKeyPerEpoch(t testing.TB, d *Desk) {
	t.Helper()
	v := Verified(t, d.C)
	keys := make(map[uint64]string)
	for _, k := range v.MeshCAKeys() {
		if before, ok := keys[k.AuthorityEpoch]; ok && before != k.Key.String() {
			t.Errorf("epoch %d has two mesh CA keys", k.AuthorityEpoch)
		}
		keys[k.AuthorityEpoch] = k.Key.String()
	}
	if got := d.State().MeshCA().KeyID(); got != d.State().Head.MeshCAKey {
		t.Errorf("it signs with %v, and the head names %v", got, d.State().Head.MeshCAKey)
	}
}

// WantPhase fails unless the coordinator is in the phase, for a reason that holds
// the text.
func WantPhase(d *Desk, phase, reason string) {
	d.T.Helper()
	got, why := d.C.Phase()
	if got != phase || !strings.Contains(why, reason) {
		d.T.Fatalf("phase %s (%s), want %s (… %s …)", got, why, phase, reason)
	}
}

// CoordinatorEntry is an entry for another coordinator: setting it moves authority.
func CoordinatorEntry(t TB, n int) string {
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := manifest.NewKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("  - {name: coordinator-%d, kind: coordinator, match: [\"key:%s\"]}\n", n, key)
}

// GetStatus is what the coordinator of f says of itself on its machine.
func GetStatus(f *Fleet) *fealtyv1.GetStatusResponse {
	f.T.Helper()
	st, err := f.Local().Status.GetStatus(f.Context(), &fealtyv1.GetStatusRequest{})
	if err != nil {
		f.T.Fatal(err)
	}
	return st
}

// KeyNumber is the n-th of keys that nobody has.
func KeyNumber(n int) identity.KeyID {
	return identity.KeyID(sha256.Sum256(fmt.Appendf(nil, "key %d", n)))
}

// ForgedRecords is how many records c refused because their MAC failed.
func ForgedRecords(c *coordinator.Coordinator) float64 {
	return CounterOf(c.Registry(), "fealty_store_forged_records_total")
}
