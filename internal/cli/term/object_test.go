package term_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/cli/term"
)

// refused is what has no JSON.
type refused struct{}

var errRefused = errors.New("it has no JSON")

func (refused) MarshalJSON() ([]byte, error) { return nil, errRefused }

// An object in objects and lists is written as encoding/json writes the same values in structs.
func TestObject(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 30, 8, 0, 0, 5e6, time.FixedZone("", 3600))
	text := "a<b>&\u2028 \"q\" \\ \n\x01\x7f é 😀 \xff\xfe \xc3"
	type inner struct {
		Text  string      `json:"text"`
		At    term.Moment `json:"at"`
		Never term.Moment `json:"never"`
		Some  []any       `json:"some"`
		None  []any       `json:"none"`
	}
	type outer struct {
		First  inner             `json:"first"`
		Empty  struct{}          `json:"empty"`
		N      int64             `json:"n"`
		U      uint64            `json:"u"`
		Number any               `json:"number"`
		Yes    bool              `json:"yes"`
		Nil    any               `json:"nil"`
		Map    map[string]string `json:"map"`
		Texts  term.Texts        `json:"texts"`
	}
	some := []any{"x", int64(-1), true, nil, []any{}, 1.5}
	want, err := json.Marshal(outer{First: inner{text, term.Moment(at), term.Moment{}, some, nil}, N: math.MinInt64, U: math.MaxUint64,
		Number: term.Number(0.1), Yes: true, Map: map[string]string{"k": text}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(term.Object{
		{Name: "first", Value: term.Object{{Name: "text", Value: text}, {Name: "at", Value: term.Moment(at)}, {Name: "never", Value: term.Moment{}},
			{Name: "some", Value: some}, {Name: "none", Value: []any(nil)}}},
		{Name: "empty", Value: term.Object{}}, {Name: "n", Value: int64(math.MinInt64)}, {Name: "u", Value: uint64(math.MaxUint64)},
		{Name: "number", Value: term.Number(0.1)}, {Name: "yes", Value: true}, {Name: "nil", Value: nil},
		{Name: "map", Value: map[string]string{"k": text}}, {Name: "texts", Value: term.Texts(nil)},
	})
	if err != nil || string(got) != string(want) {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	_, err = json.Marshal(term.Object{{Name: "a", Value: []any{term.Object{{Name: "b", Value: refused{}}}}}})
	if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "a: b: ") {
		t.Errorf("%v", err)
	}
}
