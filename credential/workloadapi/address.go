package workloadapi

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// socketEnv names the address where nobody gives one (Workload Endpoint §4).
const socketEnv = "SPIFFE_ENDPOINT_SOCKET"

// addressOf returns the address to use for the one that was given, which may be blank.
func addressOf(given string) (string, error) {
	from := "Config.Address"
	if given == "" {
		given, from = os.Getenv(socketEnv), socketEnv
	}
	if given == "" {
		return "", fmt.Errorf("workloadapi: there is no address of an agent: set %s, or Config.Address, "+
			"to unix:///PATH", socketEnv)
	}
	if _, _, err := target(given); err != nil {
		return "", fmt.Errorf("workloadapi: %s is %q: %w", from, given, err)
	}
	return given, nil
}

// target returns what is dialed (Workload Endpoint §4).
func target(address string) (network, at string, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", "", fmt.Errorf("want unix:///PATH or tcp://IP:PORT")
	}
	plain := u.User == nil && u.RawQuery == "" && u.Fragment == "" && u.Opaque == ""
	switch {
	case u.Scheme == "unix" && plain && u.Host == "" && strings.HasPrefix(u.Path, "/"):
		return "unix", u.Path, nil
	case u.Scheme == "unix":
		return "", "", fmt.Errorf("want unix:///PATH, with the whole path of a socket")
	case u.Scheme != "tcp":
		return "", "", fmt.Errorf("want unix:///PATH or tcp://IP:PORT")
	}
	to, err := netip.ParseAddrPort(u.Host)
	if err != nil || !plain || u.Path != "" {
		return "", "", fmt.Errorf("want tcp://IP:PORT")
	}
	if !to.Addr().Unmap().IsLoopback() {
		return "", "", fmt.Errorf("%s is no address of this machine alone: an agent hands out private keys in "+
			"plaintext; use unix:///PATH", to.Addr())
	}
	return "tcp", to.String(), nil
}

const (
	// maxAnswerBytes bounds an answer, as other clients of the API do.
	maxAnswerBytes = 4 << 20
	maxHeaderBytes = 64 << 10
	// dialEvery bounds the pause between attempts to connect: an agent that was restarted is
	// found at once.
	dialEvery = 5 * time.Second
)

// dial returns a connection to an address that target accepts. It connects on the first call.
func dial(address string) (*grpc.ClientConn, error) {
	network, at, err := target(address)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///workload-api",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // Workload Endpoint §3.1
		grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: dialEvery, Backoff: backoff.Config{
			BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: dialEvery}}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, at)
		}))
}
