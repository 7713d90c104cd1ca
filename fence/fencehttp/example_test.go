package fencehttp_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/fencehttp"
)

// A process hangs and is replaced; its request that comes late reaches no machine. In a
// real service both ends keep their state on disk, with package fence/durable, and the
// holder's name comes from the client's certificate.
func Example() {
	fenced := &fencehttp.Server{
		Gate:     fence.NewGate(fence.InMemory(fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})), 0),
		Holder:   func(*http.Request) (string, error) { return "shard-a", nil },
		Resource: func(r *http.Request) (string, string) { return r.URL.Path, "" },
	}
	server := httptest.NewServer(fenced.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path)
	})))
	defer server.Close()

	send := func(s *fence.Sender, method, path string) error {
		client := &http.Client{
			Transport: &fencehttp.Transport{Sender: s, Host: strings.TrimPrefix(server.URL, "http://")}}
		r, err := http.NewRequest(method, server.URL+path, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(r)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	first := fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()}
	zombie, _ := fence.NewSender(first)
	successor, _ := fence.NewSender(fence.Life{Epoch: fence.NewEpoch(0, 2), Incarnation: fence.NewIncarnation(),
		Lineage: fence.Lineage{first.Incarnation}})

	fmt.Println(send(successor, http.MethodPut, "/m-1"))
	refused, _ := errors.AsType[*fencehttp.RefusedError](send(zombie, http.MethodDelete, "/m-1"))
	fmt.Println(refused.Status, refused.Reason, errors.Is(refused, fence.ErrFenced))
	// Output:
	// PUT /m-1
	// <nil>
	// 412 Precondition Failed stale true
}
