// Command fealty-store is the server of an embedded store: `fealty coordinator --store embedded` starts it, gives it its settings
// and ends it. Package internal/store/embedded says what the two tell each other, and what is in the server's folder.
package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"go.etcd.io/etcd/api/v3/version"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/fealty-io/fealty/internal/store/embedded"
)

const usage = `fealty-store keeps the store of one coordinator, and is started and ended by it:

  fealty coordinator --store embedded

It has no settings of its own. With --version it prints what it is made of.
`

// The release of the program, set by the linker.
var releaseVersion = "devel" // of a build that no release made

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run returns the exit status: 0 once it was told to end, 1 if the server failed, 2 for a command line that means nothing.
func run(args []string, in io.Reader, out, errs io.Writer) int {
	switch {
	case len(args) == 1 && args[0] == "--version":
		fmt.Fprintf(out, "fealty-store %s, etcd %s, %s\n", releaseVersion, version.Version, goVersion())
		return 0
	case len(args) == 1 && (args[0] == "--help" || args[0] == "-h"):
		fmt.Fprint(out, usage)
		return 0
	case len(args) > 0:
		fmt.Fprint(errs, usage)
		return 2
	}
	// It ends when its standard input does, and the coordinator writes to it until then: what a terminal or a service
	// manager sends to both would end it too early.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.Lock(zapcore.AddSync(errs)),
		zap.WarnLevel))
	settings, err := embedded.ReadSettings(in)
	if err != nil {
		log.Error(err.Error())
		return 1
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		_, _ = io.Copy(io.Discard, in) // until it ends, however
	}()
	if err := serve(settings, told, out, log); err != nil {
		log.Error(err.Error())
		return 1
	}
	return 0
}

func goVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.GoVersion
	}
	return "Go of an unknown version"
}
