// Command operator has a tenant want as many machines as a number in a file says, "operator FOLDER SHARD PROFILE FILE".
// FOLDER is that of an agent that joined as an operator. Beside FILE the program keeps a folder of its own.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fealty-io/fealty/node"
	"github.com/fealty-io/fealty/operator"
)

func main() {
	folder, shard, profile, file := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	n, err := node.Open(folder, node.Options{})
	if err != nil {
		log.Fatal(err)
	}
	o, err := operator.Open(operator.Config{Target: shard, Source: n.Source(), Dir: file + ".runs",
		Notice: func(_ context.Context, n operator.Notice) { // a real one empties the machine, and then releases it
			fmt.Println("notice:", n.Machine, "goes at", n.Until, "preempted:", n.Preempted)
		}})
	if err != nil {
		log.Fatal(err)
	}
	go follow(ctx, o, profile, file)
	if err := o.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// follow states what the file says, each time that it says something else. A number that cannot be read changes nothing.
func follow(ctx context.Context, o *operator.Operator, profile, file string) {
	for last := ""; ctx.Err() == nil; time.Sleep(time.Second) {
		text, err := os.ReadFile(file)
		number, wrong := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || wrong != nil || string(text) == last {
			continue
		}
		var rows []operator.Row // none for 0
		if number != 0 {
			rows = []operator.Row{{Profile: profile, Priority: 1, Count: number}}
		}
		if err = o.Set(ctx, rows); err == nil {
			last = string(text)
		} // also what is held is stated again, until it is believed
		fmt.Println(o.Tenant(), "wants", number, "of", profile, err)
	}
}
