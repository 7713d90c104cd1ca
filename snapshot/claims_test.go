package snapshot

import (
	"errors"
	"github.com/fealty-io/fealty/internal/snapshot"
	"slices"
	"testing"
)

// An envelope says of itself what was put into it, whoever signed it.
func TestReadClaims(t *testing.T) {
	f := newFleet(t)
	bundle := f.signedBundle(t)
	c, err := bundle.Claims()
	if err != nil || c.Record != nil || c.Header.ScopeType != ScopeTrustBundle || c.Header.ConfigVersion != 7 {
		t.Errorf("claims of a trust bundle: %+v, %v", c, err)
	}
	s := f.signedBootstrap(t)
	s.Publication.Signatures[0].Bytes[0] ^= 1
	c, err = s.Claims()
	if err != nil || c.Record == nil || c.Record.ClusterID != testCluster || c.Header.ScopeType != ScopeNodeBootstrap {
		t.Errorf("claims of a bootstrap with a wrong signature: %+v, %v", c, err)
	}
	for name, bend := range map[string]func(*Signed){
		"no header":           func(s *Signed) { s.Header = nil },
		"header is not JSON":  func(s *Signed) { s.Header = []byte("x") },
		"header has a space":  func(s *Signed) { s.Header = append(slices.Clone(s.Header), ' ') },
		"record is not JSON":  func(s *Signed) { s.Publication.Record = []byte("{") },
		"too many signatures": func(s *Signed) { s.Publication.Signatures = make([]Signature, snapshot.MaxSignatures+1) },
	} {
		s := f.signedBootstrap(t)
		bend(s)
		if c, err := s.Claims(); !errors.Is(err, ErrMalformed) || c.Record != nil || c.Header.ClusterID != "" {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	if _, err := (*Signed)(nil).Claims(); !errors.Is(err, ErrMalformed) {
		t.Errorf("claims of nothing: %v", err)
	}
}

// Every check of docs/explanation/snapshots.md#the-twelve-checks is a rule, in the order in which Verify makes them.
func TestRules(t *testing.T) {
	var got []int
	for _, r := range checks {
		if r.rule == "" || r.source == "" {
			t.Errorf("rule of check %d says nothing", r.number)
		}
		got = append(got, r.number)
	}
	if want := []int{0, 5, 1, 0, 2, 3, 4, 8, 9, 7, 6, 10, 11, 12}; !slices.Equal(got, want) {
		t.Errorf("checks %v, want %v", got, want)
	}
}
