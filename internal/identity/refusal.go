package identity

import (
	"errors"
	"fmt"
	"time"
)

// What package identity exports under the same names: the reasons of a refusal, by what to do about them.
var (
	ErrUntrusted = errors.New("certificate chain is not trusted")
	ErrExpired   = errors.New("certificate is out of date")
	ErrProfile   = errors.New("certificate is not of the profile")
)

// Refusal says which rule refused a certificate. It is no error by itself: it has the fields of ChainError of the
// public package, and callers return (*identity.ChainError)(refusal).
type Refusal struct {
	Certificate, Rule, Section, Detail string

	Reason error

	// A profile knows of no cluster, and leaves these blank.
	Presented, Cluster string

	// For ErrExpired.
	NotBefore, NotAfter, Now time.Time
}

// Clip quotes s for an error, shortened: what a peer sends must not fill a log.
func Clip(s string) string {
	const most = 96
	if len(s) <= most {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q and %d bytes more", s[:most], len(s)-most)
}
