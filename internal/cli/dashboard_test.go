package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/cli/program"
)

// Pages are served in the clear on loopback alone.
func TestDashboardListens(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"every address":      {[]string{"--listen", ":0"}, "it is no address of loopback"},
		"another address":    {[]string{"--listen", "192.0.2.1:0"}, "it is no address of loopback"},
		"a name":             {[]string{"--listen", "localhost:0"}, "it is no address of loopback"},
		"an address of IPv6": {[]string{"--listen", "[2001:db8::1]:0"}, "it is no address of loopback"},
		"no port":            {[]string{"--listen", "127.0.0.1"}, "it is no HOST:PORT"},
		"certificate alone":  {[]string{"--cert", "x.pem"}, "--cert and --key go together"},
		"key alone":          {[]string{"--key", "x.pem"}, "--cert and --key go together"},
	} {
		t.Run(name, func(t *testing.T) {
			clitest.Run(t, append([]string{"dashboard", "--socket", "nobody"}, c.args...)...).Want(t, 2, c.says)
		})
	}
	clitest.Fixture{Dir: t.TempDir()}.Run(t.Context(), "dashboard", "--socket", "nobody", "--listen", "0.0.0.0:0", "--cert", "x.pem", "--key", "x.pem").
		Want(t, 3, "x.pem")
}

// The command prints the address, serves until it is told to end, and ends well then.
func TestDashboardServes(t *testing.T) {
	server := &clitest.Answering{Status: &fealtyv1.GetStatusResponse{ClusterId: "prod.example", Phase: "uninitialized"}}
	socket := server.Listen(t)
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out, in := io.Pipe()
		var errs bytes.Buffer
		ended := make(chan int, 1)
		goesOn := false
		go func() {
			ended <- cli.Run(ctx, program.Env{Stdout: in, Stderr: &errs, Args: []string{"dashboard", "--socket", socket, "--listen", listen, "-o", "json"},
				Begins: func(on bool) { goesOn = on }})
			in.Close()
		}()
		var printed struct{ URL string }
		if err := json.NewDecoder(bufio.NewReader(out)).Decode(&printed); err != nil {
			t.Fatal(err, errs.String())
		}
		resp, err := http.Get(printed.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(body), "This coordinator has no cluster yet") {
			t.Errorf("%s %v: %s", printed.URL, err, body)
		}
		cancel()
		_, _ = io.Copy(io.Discard, out)
		if exit := <-ended; exit != 0 || !goesOn {
			t.Errorf("it ended with %d, goes on %t: %s", exit, goesOn, errs.String())
		}
	}
}
