// Command http serves on one member, "http FOLDER ADDRESS", and asks it from another one each
// second, "http FOLDER ADDRESS ID".
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/node"
)

func hello(w http.ResponseWriter, r *http.Request) {
	if identity.FromContext(r.Context()).ID.Kind() != identity.Data {
		http.Error(w, "this is for data members", http.StatusForbidden)
		return
	}
	fmt.Fprintf(w, "hello, %s", identity.FromContext(r.Context()).ID)
}

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: http FOLDER ADDRESS [ID]")
	}
	n, err := node.Open(os.Args[1], node.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if len(os.Args) == 3 {
		l, err := net.Listen("tcp", os.Args[2])
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("serving on", l.Addr())
		log.Fatal(n.ServeHTTP(context.Background(), l, &http.Server{Handler: http.HandlerFunc(hello)}))
	}
	id, err1 := identity.Parse(os.Args[3])
	transport, err2 := n.NewHTTPTransport(credential.ExactID(id))
	if err1 != nil || err2 != nil {
		log.Fatal(err1, err2)
	}
	client := http.Client{Transport: transport}
	for range time.Tick(time.Second) {
		answer, err := client.Get("https://" + os.Args[2])
		if err != nil {
			fmt.Println(id, err)
			continue
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		fmt.Println(id, answer.Status, string(text), err)
	}
}
