package provider_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/durable"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/provider"
)

// A provider implements Machines; Serve does the rest. The marks are on disk: without them a
// provider that is started again obeys a zombie.
func ExampleServe() {
	var machines provider.Machines // yours
	source, err := credential.NewFiles(credential.FilesConfig{
		Paths: credential.FilePaths{Cert: "tls.crt", Key: "tls.key", CA: "ca.crt"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	// EnrolLedger, once, when the provider is made.
	marks, err := durable.OpenLedger("/var/lib/provider/fence", fence.LedgerOptions{Cluster: "prod.example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer marks.Close()
	l, err := net.Listen("tcp", ":7460")
	if err != nil {
		fmt.Println(err)
		return
	}
	err = provider.Serve(context.Background(), l, provider.Config{
		Machines: machines, Marks: marks, Source: source,
		Refused: func(err error) {
			if errors.Is(err, fence.ErrFenced) {
				slog.Error("a zombie was refused", "err", err)
			}
		},
	})
	fmt.Println(err)
}

// A shard stops when it is fenced: it raises an incident, and sends nothing any more.
func ExampleClient() {
	var source credential.Source // such as what an agent was issued
	epoch, err := durable.OpenEpoch("/var/lib/shard/epoch", durable.EpochOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer epoch.Close()
	client, err := provider.Dial(provider.ClientConfig{Target: "p1.example:7460", Sender: epoch.Sender(),
		Source: source, Expect: credential.AnyOfKind(identity.Provider)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	operation, err := client.Configure(context.Background(), provider.Order{Machine: "web-1", Tenant: "acme"})
	switch {
	case errors.Is(err, provider.ErrFenced):
		slog.Error("somebody else is in charge: this process acts no more", "err", err)
	case errors.Is(err, provider.ErrUnavailable):
		// Again in a while: that is safe.
	case err == nil:
		fmt.Println("accepted as", operation)
	}
}
