// Command machine is what a machine of make conformance-machines runs: it prints for which tenant
// it runs, and ends on SIGTERM. The first process of a container has to listen to SIGTERM itself.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	fmt.Println(os.Getenv("FEALTY_MACHINE"), "works for", os.Getenv("FEALTY_TENANT"))
	<-end
}
