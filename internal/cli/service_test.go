package cli_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/program"
)

// systemd hears of each process that goes on that it serves, that it reads its files again, and that it stops.
func TestServiceIsTold(t *testing.T) {
	profiles := filepath.Join(t.TempDir(), "profiles.yaml")
	if err := os.WriteFile(profiles, []byte("profiles: [{name: web, slots: 1, command: [sleep, \"60\"]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args   []string
		status string
	}{
		"coordinator": {[]string{"coordinator", "--listen", "127.0.0.1:0"}, "uninitialized: "},
		"shard":       {[]string{"shard", "--listen", "127.0.0.1:0", "--insecure", "--provider", "local=127.0.0.1:1", "--enrol"}, "decides, with 0 sessions"},
		"provider": {[]string{"provider", "process", "--listen", "127.0.0.1:0", "--insecure", "--believe-epochs",
			"--profiles", profiles}, "serves "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "fs") // short, because a unix socket's path is
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			socket := filepath.Join(dir, "notify")
			conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			var out, errs bytes.Buffer
			hangups := make(chan os.Signal, 1)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan int, 1)
			go func() {
				ended <- cli.Run(ctx, program.Env{Args: append(tt.args, "--data", filepath.Join(dir, "data")), Stdout: &out, Stderr: &errs,
					Environ: []string{"NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=100000"}, Hangups: hangups})
			}()
			until := func(prefix string) {
				t.Helper()
				buf := make([]byte, 4096)
				for {
					if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
						t.Fatal(err)
					}
					n, err := conn.Read(buf)
					if err != nil {
						stop()
						<-ended
						t.Fatalf("%v before %s:\n%s", err, prefix, errs.String())
					}
					if slices.ContainsFunc(strings.Split(string(buf[:n]), "\n"), func(line string) bool { return strings.HasPrefix(line, prefix) }) {
						return
					}
				}
			}
			until("STATUS=" + tt.status)
			until("WATCHDOG=1")
			hangups <- syscall.SIGHUP
			until("RELOADING=1")
			until("READY=1")
			stop()
			until("STOPPING=1")
			if exit := <-ended; exit != 0 {
				t.Errorf("exit status %d:\n%s", exit, errs.String())
			}
		})
	}
}
