package cli

import (
	"context"
	"io"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/fealty-io/fealty/internal/platform/logging"
)

// flushWithin bounds how long a process that was told to end waits for who reads its streams.
const flushWithin = time.Second

// surroundings are the signals and streams of a process. Until a command is found that ends by itself they are
// those of one that goes on: a hang-up and a pipe that nobody reads end nothing, and no stream is waited for. Whoever
// makes them does so before anything else, as a signal may come at once.
type surroundings struct {
	hangups        chan os.Signal
	stdout, stderr *logging.Writer
	goesOn         atomic.Bool // the command does not end by itself
}

func takeSurroundings() *surroundings {
	s := &surroundings{hangups: make(chan os.Signal, 1)}
	signal.Notify(s.hangups, syscall.SIGHUP)
	// The write that raises it fails too, which is told by its writer: nobody waits for the signal itself. Were it
	// ignored, programs that this one starts would ignore it as well.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	s.stderr = logging.Start(os.Stderr)
	if s.stdout = s.stderr; !sameStream(os.Stdout, os.Stderr) {
		s.stdout = logging.Start(os.Stdout)
	}
	// Libraries write to standard error by themselves.
	log.SetOutput(s.stderr)
	grpclog.SetLoggerV2(grpcLog(s.stderr))
	return s
}

// sameStream reports whether two streams lead to one place, such as a terminal: what is written to both keeps its
// order there, so they need one writer.
func sameStream(a, b *os.File) bool {
	first, err1 := a.Stat()
	second, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(first, second)
}

// grpcLog has gRPC log to w what it would log to standard error by its environment; see package grpclog.
func grpcLog(w io.Writer) grpclog.LoggerV2 {
	infos, warnings, errors := io.Discard, io.Discard, io.Discard
	switch strings.ToLower(os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL")) {
	case "info":
		infos = w // what is worse is in it too
	case "warning":
		warnings = w
	case "error", "":
		errors = w
	}
	verbosity, _ := strconv.Atoi(os.Getenv("GRPC_GO_LOG_VERBOSITY_LEVEL")) // what is no number is none
	return grpclog.NewLoggerV2WithVerbosity(infos, warnings, errors, verbosity)
}

// begins is told which kind of command runs now. One that ends by itself has the signals and streams that are usual
// for such.
func (s *surroundings) begins(goesOn bool) {
	if goesOn {
		s.goesOn.Store(true)
		return
	}
	s.stdout.Direct()
	s.stderr.Direct()
	signal.Reset(syscall.SIGHUP, syscall.SIGPIPE)
	select {
	case <-s.hangups: // it came before
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Signal(syscall.SIGHUP)
		}
	default:
	}
}

// close writes what there is to write. It waits for who reads it until told ends; in a process that goes on for no longer
// than flushWithin, however it ended.
func (s *surroundings) close(told context.Context) {
	ctx, cancel := told, context.CancelFunc(func() {})
	if s.goesOn.Load() {
		ctx, cancel = context.WithTimeout(context.Background(), flushWithin)
	}
	defer cancel()
	s.stdout.Close(ctx)
	s.stderr.Close(ctx)
}
