package client

import (
	"context"
	"crypto/sha256"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
)

// WholeHistory asks for the history, page by page.
func WholeHistory(ctx context.Context, s *Services) (*fealtyv1.GetHistoryResponse, error) {
	var out *fealtyv1.GetHistoryResponse
	from := uint64(0)
	for {
		resp, err := s.Manifest.GetHistory(ctx, &fealtyv1.GetHistoryRequest{From: from})
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = resp
		} else {
			out.Transitions = append(out.Transitions, resp.GetTransitions()...)
			out.Manifests = append(out.Manifests, resp.GetManifests()...)
			out.Head, out.TransactionKey = resp.GetHead(), resp.GetTransactionKey()
		}
		last := resp.GetTransitions()
		head, err := history.DecodeRecord(resp.GetHead())
		if err != nil || len(last) == 0 || sha256.Sum256(last[len(last)-1].GetRecord()) == head.Hash ||
			last[len(last)-1].GetIndex() < from {
			return out, nil // what is wrong with it shows when it is verified
		}
		from = last[len(last)-1].GetIndex() + 1
	}
}

// HistoryOf returns what is signed of a history.
func HistoryOf(resp *fealtyv1.GetHistoryResponse) *history.History {
	h := &history.History{Head: resp.GetHead(), Manifests: make(map[manifest.Hash][]byte)}
	for _, t := range resp.GetTransitions() {
		h.Links = append(h.Links, t.GetRecord())
	}
	for _, m := range resp.GetManifests() {
		h.Manifests[sha256.Sum256(m)] = m
	}
	return h
}
