package fencegrpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/signed"
)

// Client stamps the mutating calls of one process, each attempt with a token of its own.
// Dial with [Client.Options], which also switches off the retries of gRPC itself: those
// would send a token twice, and tell a live sender that it is a zombie.
type Client struct {
	// Sender numbers the attempts. Required.
	Sender *fence.Sender

	// Rules are those of the server: methods with a Resource are stamped, and a call of a
	// method that has no rule fails. Required.
	Rules map[string]Rule

	// Ownership returns the ownership epoch under which a request acts. Nil: 0, as nobody
	// assigns what it acts on.
	Ownership func(method string, request any) uint64
}

// Options are what a connection to a fenced service is dialed with.
func (c *Client) Options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithDisableRetry()}
}

// Unary is a [grpc.UnaryClientInterceptor]. Once the process is fenced it fails without a
// call, and its error matches [fence.ErrFenced].
func (c *Client) Unary(ctx context.Context, method string, request, response any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	rule, ok := c.Rules[method]
	if !ok {
		return fmt.Errorf("fence: %s was not called: %w for it", method, ErrNoRule)
	}
	if rule.Resource == nil {
		return invoke(ctx, method, request, response, conn, options...)
	}
	message, ok := request.(proto.Message)
	if !ok {
		return fmt.Errorf("fence: %s was not called: its request is a %T, and no protobuf message", method, request)
	}
	// The bytes need not be those on the wire, only different for another request.
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return fmt.Errorf("fence: %s was not called: %w", method, err)
	}
	ownership := uint64(0)
	if c.Ownership != nil {
		ownership = c.Ownership(method, request)
	}
	token, err := c.Sender.Next(ownership, append([]byte(method+"\n"), bytes...))
	if err != nil {
		return err
	}
	life := c.Sender.Life()
	// In place of what was there: a service may pass on what came to itself.
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	for key, value := range map[string]string{signed.TokenKey: token.String(), signed.LineageKey: life.Lineage.String(), signed.GrantKey: life.Grant} {
		md.Delete(key)
		if value != "" {
			md.Set(key, value)
		}
	}
	return c.Sender.Heard(heard(invoke(metadata.NewOutgoingContext(ctx, md), method, request, response, conn, options...)))
}
