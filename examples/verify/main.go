// Command verify shows signed content, "verify FOLDER FILE", if the member whose folder it is accepts its signature.
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/fealty-io/fealty/node"
)

func main() {
	n, err1 := node.Open(os.Args[1], node.Options{})
	raw, err2 := os.ReadFile(os.Args[2])
	if err1 != nil || err2 != nil {
		log.Fatal(err1, err2)
	}
	v, err := n.Verify(raw) // nobody is asked
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(v.Header().ScopeType, v.SignerKeyIDs(), v.ContentJSON())
}
