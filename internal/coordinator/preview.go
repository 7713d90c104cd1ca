package coordinator

import (
	"context"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/manifest"
)

// maxPreview bounds the members and the tokens that one preview names.
const maxPreview = 1000

// PreviewManifest says which members and tokens a manifest would cut off, by the
// rule that decides renewals.
func (m manifestServer) PreviewManifest(ctx context.Context,
	req *fealtyv1.PreviewManifestRequest) (*fealtyv1.PreviewManifestResponse, error) {
	c := m.c
	s, err := c.cfg.Head.AtHead(ctx)
	if err != nil {
		return nil, err
	}
	next, err := c.proposed(s, req.GetManifest())
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.PreviewManifestResponse{Manifest: s.Manifest.Bytes(), Transition: transitionMessage(s.Head)}
	recs, err := record.List[record.Member](ctx, s.Records, record.MemberPrefix)
	if err != nil {
		return nil, c.cfg.Head.StoreError("read the members", err)
	}
	for _, r := range recs {
		rec := r.Value
		if record.IsSession(rec.Kind) || rec.State != record.Active {
			continue // a session is not renewed, and who waits to be replaced is not either
		}
		if _, was := coveredBy(s.Manifest, rec); was.why != "" {
			continue // lost already
		}
		_, lost := coveredBy(next, rec)
		if lost.why == "" {
			continue
		}
		if out.MembersTotal++; out.MembersTotal <= maxPreview {
			out.Members = append(out.Members,
				&fealtyv1.LosingMember{Kind: string(rec.Kind), Name: rec.Name, Entry: rec.Entry, Why: lost.why})
		}
	}
	tokens, err := record.List[tokenRecord](ctx, s.Records, tokenPrefix)
	if err != nil {
		return nil, c.cfg.Head.StoreError("read the tokens", err)
	}
	now := c.cfg.Now()
	for _, t := range tokens {
		admits := func(m *manifest.Manifest) bool {
			e, ok := m.EntryByName(t.Value.Entry)
			return ok && e.AdmitsTokens()
		}
		if tokenFault(t.Value, now) != nil || !admits(s.Manifest) || admits(next) {
			continue
		}
		if out.TokensTotal++; out.TokensTotal <= maxPreview {
			out.Tokens = append(out.Tokens, &fealtyv1.LosingToken{Id: t.Value.ID, Entry: t.Value.Entry})
		}
	}
	return out, nil
}
