package command

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// When returns a time of a message for a person, or "".
func When(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}
