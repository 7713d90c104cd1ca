package part

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// Records is how many records the config has that streams are told of: their content is about 4 KiB.
const Records = 36

// MatchOf is the text of a record.
func MatchOf(i int) string { return fmt.Sprintf("host=r-%04d.shop.example", i) }

// NameOf is the name of a record.
func NameOf(i int) string { return fmt.Sprintf("r-%04d", i) }

// AsCoordinators are the options of a coordinator's server that say what a connection costs.
func AsCoordinators(config *tls.Config) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config)), grpc.ReadBufferSize(0), grpc.WriteBufferSize(4096),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second})}
}

// Certified are agents that have a certificate each of the peers' issuer.
type Certified struct {
	target string
	issuer *Issuer
	certs  []tls.Certificate
}

// Prepare certifies agents.
func (c *Certified) Prepare(_ context.Context, o Order) (err error) {
	if c.issuer, err = LoadIssuer(o.Dir); err != nil {
		return err
	}
	c.target, c.certs = o.Target, make([]tls.Certificate, o.N)
	for i := range c.certs {
		if c.certs[i], err = c.issuer.Issue(fmt.Sprint("agent-", i)); err != nil {
			return err
		}
	}
	return nil
}

// Dial connects as agent i.
func (c *Certified) Dial(i int) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+c.target, grpc.WithTransportCredentials(credentials.NewTLS(c.issuer.ClientTLS(c.certs[i]))))
}
