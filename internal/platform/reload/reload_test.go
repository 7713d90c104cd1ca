package reload_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/platform/reload"
)

// Each signal is one line, which says what changed and what was not used; a part that hangs holds up the others
// for a while, and not the end.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var parts reload.Parts
		level, broken := "", error(nil)
		hang := make(chan struct{})
		hangs := false
		parts.Add(reload.Part{Name: "the level", Read: func(context.Context) (string, error) {
			return level, nil
		}})
		parts.Add(reload.Part{Name: "the disk", Read: func(context.Context) (string, error) {
			if hangs {
				<-hang
			}
			return "", nil
		}})
		parts.Add(reload.Part{Name: "the key", Read: func(context.Context) (string, error) {
			return "", broken
		}})
		ctx, cancel := context.WithCancel(t.Context())
		told := make(chan os.Signal)
		ended := make(chan struct{})
		go func() {
			parts.Run(ctx, told, slog.New(slog.NewTextHandler(&log, nil)), func() func() { return func() {} })
			close(ended)
		}()
		tell := func(want string) {
			t.Helper()
			log.Reset()
			told <- syscall.SIGHUP
			time.Sleep(2 * reload.MaxRead)
			synctest.Wait()
			if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
				t.Errorf("it logs %q, want one line with %q", got, want)
			}
		}
		tell(`level=INFO msg="files were read again" changed=nothing parts=3`)
		level = "debug"
		tell(`changed="the level: debug"`)
		level, broken = "", errors.New("it is cut short")
		tell(`not_used="the key: it is cut short"`)
		broken, hangs = nil, true
		tell(`not_used="the disk: it was not read within 10s"`)

		told <- syscall.SIGHUP
		synctest.Wait()
		cancel()
		<-ended
		close(hang)
	})
}
