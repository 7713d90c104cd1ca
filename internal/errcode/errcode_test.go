package errcode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var codeForm = regexp.MustCompile(`^FE-[A-Z][1-9][0-9]{2}$`)

// commands are the first words after "fealty" that the product has; a page that
// tells people to type another one is wrong.
var commands = strings.Fields(`dev coordinator agent shard provider join login dashboard leave status check explain
	manifest recover token member domain quota instruction demand config snapshot trust cert verify authz audit leader backup debug
	conformance completion version --help COMMAND`)

func TestEveryCodeHasAPage(t *testing.T) {
	areas := make(map[byte]bool)
	for _, a := range Areas() {
		areas[a.Letter] = true
	}
	command := regexp.MustCompile(`fealty ([A-Za-z-]+)`)
	for _, e := range registry() {
		if !codeForm.MatchString(string(e.Code)) || !areas[e.Code[len("FE-")]] {
			t.Errorf("%s: not FE-, the letter of an area, and three digits", e.Code)
		}
		for name, text := range map[string]string{"what": e.What, "why": e.Why, "do": e.Do} {
			if strings.ContainsAny(text, "\n\t") || strings.HasSuffix(text, ".") || len(text) > 200 {
				t.Errorf("%s: %s is not one sentence without a full stop of at most 200 bytes: %q", e.Code, name, text)
			}
		}
		for _, m := range command.FindAllStringSubmatch(e.Do+" "+e.Page, -1) {
			if !strings.Contains(" "+strings.Join(commands, " ")+" ", " "+m[1]+" ") {
				t.Errorf("%s: names the command %q, which does not exist", e.Code, m[0])
			}
		}
		for _, other := range regexp.MustCompile(`FE-[A-Z][0-9]+`).FindAllString(e.Page+e.Do, -1) {
			if _, ok := Lookup(Code(other)); !ok {
				t.Errorf("%s: its page refers to %s, which is not in the registry", e.Code, other)
			}
		}
		page := e.Text()
		if !strings.Contains(page, string(e.Code)) || !strings.Contains(page, e.Title) {
			t.Errorf("%s: page without code or title", e.Code)
		}
	}
}

// Every text must read well with all values and with none.
func TestTextsFill(t *testing.T) {
	for _, entry := range registry() {
		var pairs []any
		for _, name := range entry.fieldNames() {
			pairs = append(pairs, name, "<"+name+">")
		}
		for _, e := range []*Error{New(entry.Code), New(entry.Code, pairs...)} {
			for _, line := range e.Lines() {
				// "unknown" stands for a value without words in its place.
				if strings.ContainsAny(line, "{}|\n") || strings.Contains(line, "unknown") {
					t.Errorf("%s: %q", entry.Code, line)
				}
			}
		}
		for _, name := range entry.fieldNames() {
			e := New(entry.Code, pairs...)
			if all := strings.Join([]string{e.What, e.Why, e.Do}, "\n"); !strings.Contains(all, "<"+name+">") {
				t.Errorf("%s: the value of %s is not in its lines", entry.Code, name)
			}
		}
	}
}

// An unknown token and a wrong secret must not be told apart, so that the answer
// cannot have a value in it.
func TestTokenUnknownIsFixed(t *testing.T) {
	e, _ := Lookup(TokenUnknown)
	if names := e.fieldNames(); len(names) > 0 {
		t.Fatalf("the texts of %s show %v", TokenUnknown, names)
	}
}

func TestErrorText(t *testing.T) {
	cause := errors.New("disk on fire")
	for _, tt := range []struct {
		name string
		err  *Error
		want [3]string
	}{
		{
			"values", New(JoinEntryFull, "entry", "edge-pool", "max", 1000),
			[3]string{
				"error FE-J106: the join was refused: entry edge-pool is full",
				"  why: it allows at most 1000 members and has that many",
				"  do:  remove members that are gone with fealty member remove, or raise max_members with fealty manifest set",
			},
		},
		{
			"words for what is not known", New(TokenExpired, "now", time.Date(2026, 11, 21, 1, 2, 3, 0, time.FixedZone("", 3600))),
			[3]string{
				"error FE-T103: the join token given was refused: it has expired",
				"  why: it was good until a time that has passed, and it is 2026-11-21T00:02:03Z",
				"  do:  ask an admin for a new one: fealty token create, with --ttl if an hour is too short",
			},
		},
		{
			"cause", Wrap(cause, StoreUnreachable, "what", "listing members"),
			[3]string{
				"error FE-S103: listing members failed: the store cannot be reached",
				"  why: disk on fire",
				"  do:  check it and the way to it with fealty check store; coordinators that run go on by themselves when it is back",
			},
		},
		{
			"hostile value", New(JoinWrongCluster, "presented", "a\nerror FE-X\x1b[2J\u202e{cluster}"),
			[3]string{
				`error FE-J101: the join was refused: it names cluster a error FE-X\u001b[2J\u202e{cluster}`,
				"  why: this coordinator serves another cluster",
				"  do:  check address and cluster id; a token that was made for that cluster holds both",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.err.Lines(); got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			if s := tt.err.Error(); !strings.HasPrefix(s, string(tt.err.Code)+": ") || strings.Contains(s, "\n") {
				t.Errorf("Error() = %q", s)
			}
		})
	}
}

type keyHolder struct{ secret string }

func TestValuesOfOtherTypesAreNotShown(t *testing.T) {
	e := New(NotFound, "what", keyHolder{"hunter2"}, "name", &keyHolder{"hunter2"}, "more", []byte("hunter2"))
	if strings.Contains(fmt.Sprint(e.Fields, e), "hunter2") {
		t.Fatalf("shown: %v", e)
	}
}

func TestSlipsInCalls(t *testing.T) {
	for name, e := range map[string]*Error{
		"odd":            New(NotFound, "what"),
		"name no string": New(NotFound, 7, "x"),
		"unknown code":   New("FE-Z999", "a", "b"),
	} {
		if e.Error() == "" || len(e.Fields) != 1 {
			t.Errorf("%s: %v with fields %v", name, e, e.Fields)
		}
	}
}

func TestMatching(t *testing.T) {
	cause := io.ErrUnexpectedEOF
	err := fmt.Errorf("joining: %w", Wrap(cause, TokenSpent, "token", "t1"))
	if !errors.Is(err, TokenSpent) || errors.Is(err, TokenExpired) {
		t.Error("does not match its code alone")
	}
	if !errors.Is(err, New(TokenSpent)) || errors.Is(err, New(TokenExpired)) {
		t.Error("does not match an Error of its code alone")
	}
	if !errors.Is(err, cause) {
		t.Error("does not match its cause")
	}
	if e, ok := errors.AsType[*Error](err); !ok || e.Fields["token"] != "t1" {
		t.Errorf("AsType = %v, %v", e, ok)
	}
	if got := CodeOf(err); got != TokenSpent.String() {
		t.Errorf("CodeOf = %q", got)
	}
	if got := CodeOf(cause); got != "" {
		t.Errorf("CodeOf of another error = %q", got)
	}
}

func TestRedact(t *testing.T) {
	for secret, want := range map[string]string{
		"":                    "…",
		"abc":                 "…",
		"abcdefgh":            "…", // four would be half of it
		"abcdefghi":           "abcd…",
		"fealty1_AAECAwQFBgc": "feal…",
		"äöüßabcdefgh":        "äöüß…",
		"a\nb\x1bcdefghijkl":  `a b\u001b…`,
	} {
		if got := Redact(secret); got != want {
			t.Errorf("Redact(%q) = %q, want %q", secret, got, want)
		}
	}
}

// Exit statuses are a promise to scripts: a change here breaks them.
func TestExitStatusesAreFixed(t *testing.T) {
	want := map[Exit]string{
		0: "ok", 1: "failed", 2: "usage", 3: "config", 4: "unreachable", 5: "denied", 6: "refused by a safety rule",
		7: "conflict", 8: "not found", 9: "degraded", 10: "unhealthy", 11: "outcome unknown", 12: "wait ran out",
		130: "interrupted",
	}
	if len(Exits()) != len(want) {
		t.Errorf("%d exit statuses, want %d", len(Exits()), len(want))
	}
	for _, row := range Exits() {
		if want[row.Exit] != row.Words {
			t.Errorf("exit status %d is %q, want %q", int(row.Exit), row.Words, want[row.Exit])
		}
	}
}

func TestExitCode(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want Exit
		code Code
	}{
		{"nil", nil, 0, ""},
		{"coded", New(UnknownFlag), 2, UnknownFlag},
		{"wrapped", fmt.Errorf("x: %w", New(NoCoordinatorConfigured)), 3, NoCoordinatorConfigured},
		{"from a peer", New(JoinUnauthorized).GRPCStatus().Err(), 5, JoinUnauthorized},
		{"peer, wrapped", fmt.Errorf("x: %w", New(JoinEntryFull).GRPCStatus().Err()), 6, JoinEntryFull},
		{"code of a newer peer", New("FE-J999").GRPCStatus().Err(), 1, "FE-J999"},
		{"refusal with a code of a newer peer", newerRefusal(t), 5, "FE-J999"},
		{"plain error", io.EOF, 1, Internal},
		{"context cancelled", context.Canceled, 130, Interrupted},
		{"context ran out", fmt.Errorf("x: %w", context.DeadlineExceeded), 12, WaitRanOut},
		{"status Canceled", status.Error(codes.Canceled, ""), 130, Interrupted},
		{"status DeadlineExceeded", status.Error(codes.DeadlineExceeded, ""), 11, OutcomeUnknown},
		{"status Unavailable", status.Error(codes.Unavailable, "dial"), 4, Unreachable},
		{"status Unauthenticated", status.Error(codes.Unauthenticated, ""), 5, Unauthenticated},
		{"status PermissionDenied", status.Error(codes.PermissionDenied, ""), 5, Denied},
		{"status NotFound", status.Error(codes.NotFound, ""), 8, NotFound},
		{"status AlreadyExists", status.Error(codes.AlreadyExists, ""), 7, Conflict},
		{"status Aborted", status.Error(codes.Aborted, ""), 7, Conflict},
		{"status InvalidArgument", status.Error(codes.InvalidArgument, "x"), 2, RequestField},
		{"status Internal", status.Error(codes.Internal, "x"), 1, Internal},
	} {
		if got := ExitCode(tt.err); got != tt.want {
			t.Errorf("%s: ExitCode = %d, want %d", tt.name, got, tt.want)
		}
		if tt.err == nil {
			if Of(nil) != nil {
				t.Error("Of(nil) is not nil")
			}
		} else if got := Of(tt.err).Code; got != tt.code {
			t.Errorf("%s: Of = %s, want %s", tt.name, got, tt.code)
		}
	}
}

// newerRefusal is a refusal with a code that this release does not have.
func newerRefusal(t *testing.T) error {
	s, err := status.New(codes.PermissionDenied, "not today").WithDetails(&errdetails.ErrorInfo{Domain: Domain, Reason: "FE-J999"})
	if err != nil {
		t.Fatal(err)
	}
	return s.Err()
}

func TestStatusRoundTrip(t *testing.T) {
	for _, entry := range registry() {
		var pairs []any
		for _, name := range entry.fieldNames() {
			pairs = append(pairs, name, "a value of "+name)
		}
		sent := New(entry.Code, pairs...)
		err := sent.GRPCStatus().Err()
		if got := status.Code(err); got != entry.GRPC {
			t.Errorf("%s: gRPC code %v, want %v", entry.Code, got, entry.GRPC)
		}
		got, ok := FromStatus(err)
		if !ok {
			t.Errorf("%s: lost on the way", entry.Code)
			continue
		}
		if got.Lines() != sent.Lines() || got.Code != sent.Code {
			t.Errorf("got  %q\nsent %q", got.Lines(), sent.Lines())
		}
		if status.Code(got) != entry.GRPC {
			t.Errorf("%s: passed on as %v", entry.Code, status.Code(got))
		}
	}
}

func TestCauseStaysHere(t *testing.T) {
	e := Wrap(&net.OpError{Op: "dial", Err: errors.New("10.9.8.7 hunter2")}, StoreUnreachable)
	if !strings.Contains(e.Why, "hunter2") {
		t.Fatalf("the cause is not shown here: %s", e.Why)
	}
	if s := fmt.Sprint(e.GRPCStatus().Proto()); strings.Contains(s, "hunter2") || strings.Contains(s, "10.9.8.7") {
		t.Fatalf("the cause is sent: %s", s)
	}
}

func TestStatusIsBounded(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	fields := map[string]string{"presented": long, "cluster": long, "cause": long}
	for i := range 1000 {
		fields[fmt.Sprintf("%s%d", long[:i], i)] = long
	}
	// Set by hand, past New's own bounds.
	s := (&Error{Code: JoinWrongCluster, Fields: fields}).GRPCStatus()
	if n := len(s.Message()); n > 2*maxValueBytes {
		t.Errorf("message of %d bytes", n)
	}
	size := 0
	for _, d := range s.Details() {
		info := d.(*errdetails.ErrorInfo)
		if len(info.Metadata) > maxFields {
			t.Errorf("%d fields", len(info.Metadata))
		}
		for k, v := range info.Metadata {
			size += len(k) + len(v)
		}
	}
	if size > maxAllBytes {
		t.Errorf("%d bytes of fields", size)
	}

	var pairs []any
	for i := range 1000 {
		pairs = append(pairs, fmt.Sprint(i), long)
	}
	if e := New(JoinWrongCluster, pairs...); len(e.Fields) != maxFields || len(e.Fields["1"]) > maxValueBytes {
		t.Errorf("New kept %d fields, one of %d bytes", len(e.Fields), len(e.Fields["1"]))
	}
}

// A peer's message is as hostile as any other input.
func TestStatusFromHostilePeer(t *testing.T) {
	send := func(info *errdetails.ErrorInfo) error {
		s, err := status.New(codes.Unknown, "message\x1b[2J").WithDetails(info)
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	e, ok := FromStatus(send(&errdetails.ErrorInfo{Domain: Domain, Reason: "FE-Z9\n99\x1b", Metadata: map[string]string{"a\n": strings.Repeat("\u202e", 10_000)}}))
	if !ok {
		t.Fatal("not read")
	}
	lines := e.Lines()
	if s := strings.Join(lines[:], "") + fmt.Sprint(e.Fields); strings.ContainsAny(s, "\n\x1b\u202e") || len(s) > 4096 {
		t.Errorf("shown as it came: %q", s)
	}
	// The advice names the code of a peer, and is a template.
	for _, reason := range []string{"FE-{", "FE-}", "{message}", "{a|b}{"} {
		e, ok := FromStatus(send(&errdetails.ErrorInfo{Domain: Domain, Reason: reason}))
		if !ok || !strings.HasSuffix(e.Do, "fealty explain "+strings.Map(func(r rune) rune {
			if r == '{' || r == '}' {
				return '?'
			}
			return r
		}, reason)) {
			t.Errorf("code %q: the advice is %q, %v", reason, e.Do, ok)
		}
	}
	for name, err := range map[string]error{
		"foreign domain": send(&errdetails.ErrorInfo{Domain: "example.com", Reason: "FE-J101"}),
		"no reason":      send(&errdetails.ErrorInfo{Domain: Domain}),
		"no details":     status.Error(codes.Unknown, "x"),
		"no status":      io.EOF,
		"nil":            nil,
	} {
		if e, ok := FromStatus(err); ok {
			t.Errorf("%s: read as %v", name, e)
		}
	}
}

func FuzzFill(f *testing.F) {
	f.Add("a value", "{cluster}\x1b\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		e := New(JoinWrongCluster, "presented", a, b, a)
		for _, line := range e.Lines() {
			if strings.ContainsAny(line, "\n\r\x1b\u202e") || len(line) > 2*maxValueBytes {
				t.Fatalf("%q", line)
			}
		}
		back, ok := FromStatus(e.GRPCStatus().Err())
		if !ok || back.What != e.What {
			t.Fatalf("%v became %v", e, back)
		}
	})
}

// Texts about numbers are sentences whatever the number is: "1 problem", and never "1 problems".
func TestTextsOfNumbers(t *testing.T) {
	t.Parallel()
	one, many := regexp.MustCompile(`\b1 ((data )?\w\w+s|(\w+ ){0,2}(are|were))\b`), regexp.MustCompile(`\b2 (\w+ ){0,2}(is|was)\b`)
	seen := 0
	for _, e := range registry() {
		for _, text := range []string{e.What, e.Why, e.Do} {
			for _, p := range Parse(text) {
				if !slices.Contains([]string{"count", "have", "need", "lines"}, p.Name) {
					continue
				}
				seen++
				for _, n := range []string{"1", "2"} {
					got := Fill(text, map[string]string{p.Name: n})
					if n == "1" && one.MatchString(got) || n == "2" && p.Many != "" && many.MatchString(got) {
						t.Errorf("%s: %q", e.Code, got)
					}
				}
			}
		}
	}
	if seen < 6 {
		t.Errorf("%d texts have a number", seen)
	}
}
