package fencehttp_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/fencehttp"
)

// machines notes what acted, and answers what it is told to.
type machines struct {
	mu      sync.Mutex
	effects []string
	status  int
}

func (m *machines) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	m.effects = append(m.effects, r.Method+" "+r.URL.Path+string(body))
	w.Header().Set(fencehttp.ReasonHeader, "stale") // which is not for it to say
	if m.status != 0 {
		w.WriteHeader(m.status)
	}
	fmt.Fprint(w, "done")
}

func (m *machines) seen() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.effects)
}

// serve serves machines behind a fence, and returns its address and what was refused.
func serve(t *testing.T, m http.Handler, alter func(*fencehttp.Server)) (string, func() []fence.Reason) {
	t.Helper()
	var mu sync.Mutex
	var refused []fence.Reason
	s := &fencehttp.Server{Gate: fence.NewGate(fence.InMemory(fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})), 0),
		Holder:   func(*http.Request) (string, error) { return "shard-a", nil },
		Resource: func(r *http.Request) (string, string) { return r.URL.Path, "" },
		Refused: func(_ *http.Request, err *fence.RefusedError) {
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, err.Reason)
		}}
	if alter != nil {
		alter(s)
	}
	server := httptest.NewServer(s.Handler(m))
	t.Cleanup(server.Close)
	return server.URL, func() []fence.Reason {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(refused)
	}
}

func holder(t *testing.T, at string, life fence.Life) (*http.Client, *fence.Sender) {
	t.Helper()
	s, err := fence.NewSender(life)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: &fencehttp.Transport{Sender: s, Host: strings.TrimPrefix(at, "http://")}}, s
}

// send returns the status and the header with the reason, if the request was answered.
func send(t *testing.T, c *http.Client, method, url, body string, headers ...string) (int, string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	response, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Error(err)
	}
	return response.StatusCode, response.Header.Get(fencehttp.ReasonHeader), nil
}

func TestZombie(t *testing.T) {
	m := new(machines)
	url, refused := serve(t, m, nil)
	first := fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()}
	zombie, sender := holder(t, url, first)
	successor, _ := holder(t, url, fence.Life{Epoch: fence.NewEpoch(0, 2), Incarnation: fence.NewIncarnation(), Lineage: fence.Lineage{first.Incarnation}})
	for _, c := range []*http.Client{zombie, zombie, successor} {
		if code, reason, err := send(t, c, "POST", url+"/m-1", "body"); err != nil || code != 200 || reason != "" {
			t.Fatal(code, reason, err)
		}
	}
	before := m.seen()
	if !slices.Equal(before, []string{"POST /m-1body", "POST /m-1body", "POST /m-1body"}) {
		t.Errorf("effects %v", before)
	}
	_, _, err := send(t, zombie, "DELETE", url+"/m-1", "")
	if r, ok := errors.AsType[*fencehttp.RefusedError](err); !errors.Is(err, fence.ErrFenced) || !ok || r.Reason != fence.ReasonStale {
		t.Errorf("the zombie: %v", err)
	}
	<-sender.Fenced()
	if _, _, err := send(t, zombie, "DELETE", url+"/m-9", ""); !errors.Is(err, fence.ErrFenced) {
		t.Errorf("the zombie elsewhere: %v", err)
	}
	if r := refused(); !slices.Equal(r, []fence.Reason{fence.ReasonStale}) {
		t.Errorf("the receiver was told of %v", r)
	}
	if after := m.seen(); !slices.Equal(before, after) {
		t.Errorf("effects %v", after)
	}
	if code, _, err := send(t, zombie, "GET", url+"/m-1", ""); err != nil || code != 200 {
		t.Errorf("the zombie reads: %d, %v", code, err)
	}
}

// A redirect that repeats the request is another attempt, with a token of its own.
func TestRedirect(t *testing.T) {
	m := new(machines)
	url, refused := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/old" {
			http.Redirect(w, r, "/new", http.StatusPermanentRedirect)
			return
		}
		m.ServeHTTP(w, r)
	}), func(s *fencehttp.Server) { s.Resource = func(*http.Request) (string, string) { return "m", "" } })
	c, sender := holder(t, url, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	if code, _, err := send(t, c, "POST", url+"/old", "x"); err != nil || code != 200 || len(refused()) != 0 || sender.Err() != nil {
		t.Errorf("%d, %v, refused %v", code, err, refused())
	}
	if seen := m.seen(); !slices.Equal(seen, []string{"POST /newx"}) {
		t.Errorf("effects %v", seen)
	}
}

func TestWhatIsNoClaim(t *testing.T) {
	m := new(machines)
	url, refused := serve(t, m, nil)
	token := fence.Token{Epoch: 1, Sequence: 1, Incarnation: fence.NewIncarnation()}.String()
	for name, headers := range map[string][]string{
		"no token":      nil,
		"two tokens":    {fencehttp.TokenHeader, token, fencehttp.TokenHeader, token},
		"a bad token":   {fencehttp.TokenHeader, token + ":"},
		"a bad lineage": {fencehttp.TokenHeader, token, fencehttp.LineageHeader, "x"},
		"two lineages":  {fencehttp.TokenHeader, token, fencehttp.LineageHeader, "", fencehttp.LineageHeader, ""},
		"two grants":    {fencehttp.TokenHeader, token, fencehttp.GrantHeader, "a", fencehttp.GrantHeader, "b"},
	} {
		for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "CONNECTED"} {
			if code, reason, err := send(t, http.DefaultClient, method, url+"/m", "", headers...); err != nil || code != 400 || reason != "malformed" {
				t.Errorf("%s, %s: %d %s, %v", method, name, code, reason, err)
			}
		}
	}
	if len(m.seen()) != 0 || len(refused()) != 30 {
		t.Errorf("%d effects, %d refusals", len(m.seen()), len(refused()))
	}
	if code, _, err := send(t, http.DefaultClient, "POST", url+"/m", "", fencehttp.TokenHeader, token); err != nil || code != 200 {
		t.Errorf("the same token alone: %d, %v", code, err)
	}
}

type brokenMarks struct{ err error }

func (b brokenMarks) Check(fence.Claim) error                  { return nil }
func (b brokenMarks) Admit(context.Context, fence.Claim) error { return b.err }
func (b brokenMarks) Forget(context.Context, string) error     { return b.err }
func (b brokenMarks) Promise(context.Context, fence.Verified[fence.Assignment]) error {
	return b.err
}
func (b brokenMarks) DomainOf(string) string { return "" }

// Each reason has its status, and the one of fencing is for nothing else.
func TestStatus(t *testing.T) {
	for reason, want := range map[fence.Reason]int{
		fence.ReasonStale: 412, fence.ReasonClone: 412, fence.ReasonOwner: 412, fence.ReasonDuplicate: 412, fence.ReasonUngranted: 403,
		fence.ReasonMoved: 412, fence.ReasonLate: 409, fence.ReasonUnpromised: 409, fence.ReasonDomain: 400, fence.ReasonMalformed: 400, fence.ReasonFull: 507,
	} {
		url, _ := serve(t, new(machines), func(s *fencehttp.Server) {
			s.Gate = fence.NewGate(brokenMarks{&fence.RefusedError{Reason: reason}}, 0)
		})
		token := fence.Token{Epoch: 1, Sequence: 1, Incarnation: fence.NewIncarnation()}.String()
		if code, got, err := send(t, http.DefaultClient, "POST", url, "", fencehttp.TokenHeader, token); err != nil || code != want || got != string(reason) {
			t.Errorf("%s: %d %s, %v", reason, code, got, err)
		}
		c, sender := holder(t, url, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
		_, _, err := send(t, c, "POST", url, "")
		if !errors.Is(err, fence.ErrRefused) || errors.Is(err, fence.ErrFenced) != reason.Fenced() || (sender.Err() != nil) != reason.Ends() {
			t.Errorf("%s: %v, the sender: %v", reason, err, sender.Err())
		}
	}
	m := new(machines)
	url, _ := serve(t, m, func(s *fencehttp.Server) { s.Gate = fence.NewGate(brokenMarks{errors.New("disk")}, 0) })
	c, sender := holder(t, url, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	if code, _, err := send(t, c, "POST", url, ""); err != nil || code != 503 || len(m.seen()) != 0 || sender.Err() != nil {
		t.Errorf("marks that cannot be saved: %d, %v", code, err)
	}
	url, _ = serve(t, m, func(s *fencehttp.Server) {
		s.Holder = func(*http.Request) (string, error) { return "", errors.New("no certificate") }
	})
	if code, _, err := send(t, c, "POST", url, ""); err != nil || code != 401 || len(m.seen()) != 0 {
		t.Errorf("nobody: %d, %v", code, err)
	}
	// A service that uses the status for something else stops nobody.
	url, _ = serve(t, &machines{status: 412}, nil)
	c, sender = holder(t, url, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	if code, _, err := send(t, c, "POST", url, ""); err != nil || code != 500 || sender.Err() != nil {
		t.Errorf("a service that answers 412: %d, %v, %v", code, err, sender.Err())
	}
	// And who answers with it, and is no server of ours, has fenced its caller.
	bare := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(412) }))
	defer bare.Close()
	if code, _, err := send(t, c, "POST", bare.URL, ""); err != nil || code != 412 || sender.Err() != nil {
		t.Errorf("412 of another host: %d, %v, %v", code, err, sender.Err())
	}
	// A reason beside another status is not the fence's own.
	spoof := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(fencehttp.ReasonHeader, "stale")
	}))
	defer spoof.Close()
	c, sender = holder(t, spoof.URL, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	if code, _, err := send(t, c, "POST", spoof.URL, ""); err != nil || code != 200 || sender.Err() != nil {
		t.Errorf("a reason beside 200: %d, %v", code, err)
	}
	c, sender = holder(t, bare.URL, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	if _, _, err := send(t, c, "POST", bare.URL, ""); !errors.Is(err, fence.ErrFenced) || sender.Err() == nil {
		t.Errorf("412 without a reason: %v", err)
	}
}

// A request that the transport cannot send once, or stamp, is not sent.
func TestNotSent(t *testing.T) {
	m := new(machines)
	url, _ := serve(t, m, nil)
	c, _ := holder(t, url, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if _, _, err := send(t, c, "POST", url, "", name, "1"); err == nil {
			t.Errorf("with %s", name)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), "POST", url, io.MultiReader(strings.NewReader("x")))
	if err != nil {
		t.Fatal(err)
	}
	if response, err := c.Do(r); err == nil {
		response.Body.Close()
		t.Error("a body that can be read once alone")
	}
	s, err := fence.NewSender(fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := send(t, &http.Client{Transport: &fencehttp.Transport{Sender: s}}, "POST", url, ""); err == nil {
		t.Error("to no host")
	}
	if n := len(m.seen()); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// A sender that stands still in the middle of its request, or of the answer, has no turn.
func TestWhoStandsStillHoldsUpNobody(t *testing.T) {
	m := new(machines)
	url, _ := serve(t, m, func(s *fencehttp.Server) { s.MaxBody = 8 })
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	token := fence.Token{Epoch: 1, Sequence: 1, Incarnation: fence.Incarnation{1}}.String()
	if _, err := fmt.Fprintf(conn, "POST /m HTTP/1.1\r\nHost: x\r\nFealty-Fence-Token: %s\r\nContent-Length: 5\r\n\r\nha", token); err != nil {
		t.Fatal(err)
	}
	c, _ := holder(t, url, fence.Life{Epoch: 2, Incarnation: fence.NewIncarnation(), Lineage: fence.Lineage{{1}}})
	if code, _, err := send(t, c, "POST", url+"/m", "12345678"); err != nil || code != 200 {
		t.Errorf("another one: %d, %v", code, err)
	}
	if code, _, err := send(t, c, "POST", url+"/m", "123456789"); err != nil || code != 413 {
		t.Errorf("a body above the bound: %d, %v", code, err)
	}
	// The one that stood still goes on, and is overtaken.
	if _, err := conn.Write([]byte("lf!")); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != 412 || !slices.Equal(m.seen(), []string{"POST /m12345678"}) {
		t.Errorf("it: %s, effects %v", response.Status, m.seen())
	}
}

// A resource is forgotten when its removal succeeded.
func TestRemoves(t *testing.T) {
	ledger := fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})
	m := &machines{status: 500}
	url, _ := serve(t, m, func(s *fencehttp.Server) {
		s.Gate = fence.NewGate(fence.InMemory(ledger), 0)
		s.Removes = func(r *http.Request) bool { return r.Method == "DELETE" }
	})
	c, _ := holder(t, url, fence.Life{Epoch: 1, Incarnation: fence.NewIncarnation()})
	for i, step := range []struct {
		method string
		status int
		left   uint64
	}{{"POST", 200, 1}, {"DELETE", 500, 2}, {"DELETE", 204, 0}} {
		m.status = step.status
		if code, _, err := send(t, c, step.method, url+"/m", ""); err != nil || code != step.status {
			t.Errorf("step %d: %d, %v", i, code, err)
		}
		if n := ledger.Mark(fence.Pair{Holder: "shard-a", Resource: "/m"}).Sequence; n != step.left {
			t.Errorf("step %d: the mark is at %d, want %d", i, n, step.left)
		}
	}
}

// A grant travels with the requests, and counts if the authority signed it.
func TestGrants(t *testing.T) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	m := new(machines)
	url, _ := serve(t, m, func(s *fencehttp.Server) {
		s.Gate = fence.NewGate(fence.InMemory(fence.NewLedger(fence.LedgerOptions{Cluster: "test.example"})), 0)
		s.Authority = fence.Authority{Cluster: "test.example", Key: func(id string) (ed25519.PublicKey, bool) {
			return public, id == fence.KeyID(public)
		}}
	})
	life := fence.Life{Epoch: fence.NewEpoch(4, 1), Incarnation: fence.NewIncarnation()}
	c, _ := holder(t, url, life)
	if _, _, err := send(t, c, "POST", url+"/m", ""); !errors.Is(err, fence.ErrRefused) || len(m.seen()) != 0 {
		t.Errorf("without a grant: %v", err)
	}
	if life.Grant, err = (fence.Grant{Cluster: "test.example", Holder: "shard-a", Number: 4, AuthorityEpoch: 1}).Sign(key); err != nil {
		t.Fatal(err)
	}
	c, _ = holder(t, url, life)
	if code, _, err := send(t, c, "POST", url+"/m", ""); err != nil || code != 200 {
		t.Errorf("with it: %d, %v", code, err)
	}
}
