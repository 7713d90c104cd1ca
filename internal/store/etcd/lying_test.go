package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

// script is a server that gives these answers to reads, in turns.
type script struct {
	pb.KVClient
	answers []*pb.TxnResponse
	asked   int
}

// asksEnough is more than any call has to ask.
const asksEnough = 1000

func (s *script) Txn(context.Context, *pb.TxnRequest, ...grpc.CallOption) (*pb.TxnResponse, error) {
	if s.asked++; s.asked > asksEnough || len(s.answers) == 0 {
		return nil, status.Error(codes.ResourceExhausted, "asked too often")
	}
	return s.answers[(s.asked-1)%len(s.answers)], nil
}

func (s *script) Range(ctx context.Context, _ *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	a, err := s.Txn(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, r := range a.Responses {
		if found := r.GetResponseRange(); found != nil {
			return found, nil
		}
	}
	return &pb.RangeResponse{}, nil
}

const scriptStore = "STORE"

// scripted returns a store whose server is a script.
func scripted(t testing.TB, answers ...*pb.TxnResponse) (*database, *script) {
	t.Helper()
	opts, err := Options{}.filled()
	if err != nil {
		t.Fatal(err)
	}
	s, err := prepare("etcd://127.0.0.1:1/f?tls=off", opts)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	kv := &script{answers: answers}
	s.id = scriptStore
	s.dialer.current = &session{endpoint: "127.0.0.1:1", timeout: opts.Timeout, conn: conn, kv: kv}
	return s, kv
}

// record is one of a server's.
func (s *database) record(name string, value []byte) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: s.key(name), ModRevision: 30, Value: value}
}

// answer is one to reads: of a head, and others.
func (s *database) answer(p *pending, found ...*pb.RangeResponse) *pb.TxnResponse {
	h := s.record(headKey, encodeHead(head{Schema: schema, Store: scriptStore, Revision: 9, By: "BY", Pending: p}))
	return answerOf(append([]*pb.RangeResponse{{Kvs: []*mvccpb.KeyValue{h}}}, found...)...)
}

func answerOf(found ...*pb.RangeResponse) *pb.TxnResponse {
	a := &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 50}}
	for _, f := range found {
		a.Responses = append(a.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: f}})
	}
	return a
}

func page(more bool, kvs ...*mvccpb.KeyValue) *pb.RangeResponse {
	return &pb.RangeResponse{More: more, Kvs: kvs}
}

func (s *database) logged(r store.Revision, last bool) *mvccpb.KeyValue {
	return s.record(logKey(r, 0), line(part{Revision: r, By: "BY", Last: last, Delete: []string{"p/k"}}))
}

// TestLyingServer gives answers that no etcd server gives. They are refused by name: who
// reads neither crashes nor asks for ever, and nobody is told of what cannot be.
func TestLyingServer(t *testing.T) {
	s, _ := scripted(t)
	entry := func(key string, version store.Revision) *mvccpb.KeyValue {
		return s.record(entryPrefix+key, encodeEntry(version, 0, []byte("v")))
	}
	found := func(more bool, kvs ...*mvccpb.KeyValue) *pb.TxnResponse { return s.answer(nil, page(more, kvs...)) }
	list := func(s *database) error { _, err := s.Entries(t.Context(), "p/"); return err }
	get := func(s *database) error { _, err := s.Entry(t.Context(), "p/k"); return err }
	changes := func(s *database) error { _, err := s.Page(t.Context(), "p/", 0); return err }
	var many []*mvccpb.KeyValue
	for range entriesPerRead + 1 {
		many = append(many, entry("p/k", 3))
	}
	noHeader, negative, future, few, empty := found(false), found(false), found(false), found(false), found(false)
	noHeader.Header = nil
	negative.Header.Revision = -1
	future.Responses[0].GetResponseRange().Kvs[0].ModRevision = 51
	few.Responses = few.Responses[:1]
	empty.Responses[1].Response = nil
	for _, c := range []struct {
		name    string
		do      func(*database) error
		says    string // empty: it is no lie
		answers []*pb.TxnResponse
	}{
		{"the truth", list, "", []*pb.TxnResponse{found(false, entry("p/a", 3), entry("p/b", 9))}},
		{"the truth of changes", changes, "", []*pb.TxnResponse{found(false, s.logged(3, true), s.logged(9, true))}},
		{"no header", get, "no revision", []*pb.TxnResponse{noHeader}},
		{"a negative revision", list, "no revision", []*pb.TxnResponse{negative}},
		{"a head of the future", get, "of revision 51, read at 50", []*pb.TxnResponse{future}},
		{"too few answers", get, "1 of 2 reads", []*pb.TxnResponse{few}},
		{"an answer to something else", get, "something else", []*pb.TxnResponse{empty}},
		{"more than nothing", list, "more than nothing", []*pb.TxnResponse{found(true)}},
		{"too many", list, "201 records where 200", []*pb.TxnResponse{found(false, many...)}},
		{"the same page for ever", list, "not asked for", []*pb.TxnResponse{found(true, entry("p/a", 3)), answerOf(page(true, entry("p/a", 3)))}},
		{"another key", get, "not asked for", []*pb.TxnResponse{found(false, entry("p/other", 3))}},
		{"another prefix", list, "not asked for", []*pb.TxnResponse{found(false, entry("q/a", 3))}},
		{"out of order", list, "out of order", []*pb.TxnResponse{found(false, entry("p/b", 3), entry("p/a", 3))}},
		{"twice", list, "out of order", []*pb.TxnResponse{found(false, entry("p/a", 3), entry("p/a", 3))}},
		{"a listed entry of the future", list, "newer than the head", []*pb.TxnResponse{found(false, entry("p/a", 10))}},
		{"an entry of the future", get, "newer than the head", []*pb.TxnResponse{found(false, entry("p/k", 10))}},
		{"a change of the future", changes, "newer than the head", []*pb.TxnResponse{found(false, s.logged(10, true))}},
		{"a change of another revision", changes, "another revision", []*pb.TxnResponse{found(false, s.record(logKey(4, 0), s.logged(3, true).Value))}},
		{"changes out of order", changes, "out of order", []*pb.TxnResponse{found(false, s.logged(4, true), s.logged(3, true))}},
		{"a commit without an end", changes, "no end", []*pb.TxnResponse{found(true, s.logged(3, false))}},
		{"a chunk too long", list, "too long", []*pb.TxnResponse{s.answer(&pending{Stage: "AAAA", Chunks: 1}, page(false)), answerOf(page(false, s.record(stageKey("AAAA", 0), make([]byte, chunkBytes+1))))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, kv := scripted(t, c.answers...)
			err := c.do(s)
			lie, refused := errors.AsType[*engine.ServerError](err)
			switch {
			case kv.asked > asksEnough:
				t.Fatal("it asks for ever")
			case c.says == "" && err != nil:
				t.Fatal(err)
			case c.says != "" && (!refused || !strings.Contains(lie.Error(), c.says)):
				t.Errorf("%v, want that it says %q", err, c.says)
			}
		})
	}
}

// FuzzAnswers reads from a server that answers anything. Nothing crashes or asks for
// ever, and what is told is of the prefix that was asked for, and not of the future.
func FuzzAnswers(f *testing.F) {
	s, _ := scripted(f)
	seed := func(answers ...*pb.TxnResponse) {
		var data []byte
		for _, a := range answers {
			raw, err := proto.Marshal(a)
			if err != nil {
				f.Fatal(err)
			}
			data = append(binary.BigEndian.AppendUint16(data, uint16(len(raw))), raw...)
		}
		f.Add(data)
	}
	short := s.record(entryPrefix+"p/a", encodeEntry(3, 0, []byte("v")))
	apart := s.record(entryPrefix+"p/b", encodeEntry(3, 0, make([]byte, maxInline+1)))
	blob := s.record(blobKey(3, 0, 0), make([]byte, maxInline+1))
	stage := encodeStage("BY", store.Tx{ID: "ID", Put: []store.Write{{Key: "p/k", Value: []byte("v")}}, Delete: []string{"p/a"}}, []byte{1})
	seed(s.answer(nil, page(false, short)))
	seed(s.answer(nil, page(false, short, apart)), answerOf(page(false, blob)))
	seed(s.answer(nil, page(true, short)), answerOf(page(false, apart)), answerOf(page(false, blob)))
	seed(s.answer(nil, page(false, s.logged(3, true), s.logged(9, true))))
	seed(s.answer(nil, page(true, s.logged(3, true))), s.answer(nil, page(false, s.logged(9, true))))
	seed(s.answer(&pending{Stage: "AAAA", Chunks: 1}, page(false)), answerOf(page(false, s.record(stageKey("AAAA", 0), stage[0]))))
	f.Fuzz(func(t *testing.T, data []byte) {
		var answers []*pb.TxnResponse
		for len(data) >= 2 && len(answers) < 16 {
			n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
			a := new(pb.TxnResponse)
			if proto.Unmarshal(data[2:2+n], a) == nil {
				answers = append(answers, a)
			}
			data = data[2+n:]
		}
		try := func(do func(*database) error) {
			s, kv := scripted(t, answers...)
			_ = do(s)
			if kv.asked > asksEnough {
				t.Fatal("it asks for ever")
			}
		}
		try(func(s *database) error {
			l, err := s.Entries(t.Context(), "p/")
			for _, e := range l.Entries {
				if !strings.HasPrefix(e.Key, "p/") || e.Version < 1 || e.Version > l.Revision {
					t.Errorf("at %d it lists %q of %d", l.Revision, e.Key, e.Version)
				}
			}
			return err
		})
		try(func(s *database) error {
			e, err := s.Entry(t.Context(), "p/a")
			if err == nil && (e.Key != "p/a" || e.Version < 1 && len(e.Value) > 0) {
				t.Errorf("it gets %q of %d", e.Key, e.Version)
			}
			return err
		})
		try(func(s *database) error {
			const after = 2
			page, err := s.Page(t.Context(), "p/", after)
			if page.More && page.Seen <= after {
				t.Error("it would read the same changes for ever")
			}
			last := store.Revision(after)
			for _, c := range page.Changes {
				if c.Revision <= last {
					t.Errorf("a change of %d comes after one of %d", c.Revision, last)
				}
				last = c.Revision
				for _, e := range c.Put {
					if !strings.HasPrefix(e.Key, "p/") {
						t.Errorf("it tells of %q", e.Key)
					}
				}
			}
			return err
		})
		try(func(s *database) error {
			_, _, err := s.touched(t.Context(), s.dialer.current, 2, 9)
			return err
		})
		try(func(s *database) error {
			_, _, err := (&writer{db: s}).read(t.Context(), engine.Ask{Puts: []string{"p/a"}})
			return err
		})
	})
}
