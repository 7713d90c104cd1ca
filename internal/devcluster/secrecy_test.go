package devcluster

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/keygen"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/mesh"
)

// secrecy watches a story (I8): after each step it collects the secrets that exist, and
// all that others than coordinators and owners can see. In the end none of the former
// is in the latter, in whatever form.
type secrecy struct {
	t       *testing.T
	c       *Cluster
	log     lockedBuffer
	secrets map[string][]byte // by what they are and where they were found
	seen    map[string][]byte // by where: entries of the store, metrics, answers
	keepers map[string]bool   // contents of key files that the keeper had
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buf.Bytes())
}

func newSecrecy(t *testing.T) *secrecy {
	return &secrecy{t: t, secrets: make(map[string][]byte), seen: make(map[string][]byte), keepers: make(map[string]bool)}
}

// secret notes a secret. Less than 16 bytes are none.
func (s *secrecy) secret(what string, b []byte) {
	if len(b) < 16 {
		s.t.Errorf("%s has %d bytes", what, len(b))
		return
	}
	s.secrets[fmt.Sprintf("%s/%x", what, sha256.Sum256(b))[:len(what)+9]] = bytes.Clone(b)
}

// tokenLine notes the secret in the line of a token.
func (s *secrecy) tokenLine(what, line string) {
	line = strings.TrimSpace(line)
	for i := range len(line) { // the prefix has characters of the encoding
		raw, err := base64.RawURLEncoding.DecodeString(line[i:])
		if err == nil && len(raw) > 36 {
			s.secret(what, raw[len(raw)-36:len(raw)-4]) // before the checksum
			return
		}
	}
	s.t.Errorf("%s: no secret in its line", what)
}

// privateKey notes a private key, and its number apart: another encoding holds that too.
func (s *secrecy) privateKey(what string, key any) {
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		d, err := k.Bytes()
		if err != nil {
			s.t.Error(err)
			return
		}
		s.secret(what, d)
	case ed25519.PrivateKey:
		s.secret(what, k.Seed())
	default:
		s.t.Errorf("%s is a %T", what, key)
	}
}

// keyFile notes the private keys of a PEM file, if it is there.
func (s *secrecy) keyFile(what, path string) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return
	}
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			s.t.Errorf("%s: %v", path, err)
			continue
		}
		s.privateKey(what, key)
	}
}

// seed notes a seed, and all that derives from it, as package keyring documents that.
func (s *secrecy) seed(seed, salt []byte) {
	s.secret("seed", seed)
	prk, err := hkdf.Extract(sha256.New, seed, salt)
	if err != nil {
		s.t.Fatal(err)
	}
	s.secret("prk", prk)
	purposes := []string{"root-ca", "transaction", "config-root", "record-mac", "store-seal", "workload-secret/x"}
	for n := 1; n <= 4; n++ {
		purposes = append(purposes, "config-signing/"+strconv.Itoa(n))
	}
	for _, p := range purposes {
		derived, err := hkdf.Expand(sha256.New, prk, "fealty/v1/"+p, 32)
		if err != nil {
			s.t.Fatal(err)
		}
		s.secret(p, derived)
		if p == "root-ca" {
			key, err := keygen.ECDSA(elliptic.P256(), derived)
			if err != nil {
				s.t.Fatal(err)
			}
			s.privateKey("root CA key", key)
		}
	}
}

// look collects what there is now.
func (s *secrecy) look(ctx context.Context) {
	c := s.c
	// What only some may know.
	if raw, err := os.ReadFile(filepath.Join(c.dir, keeperFile)); err == nil {
		s.keepers[string(raw)] = true
	}
	s.keyFile("signer", filepath.Join(c.dir, signerFile))
	for _, name := range owners() {
		if raw, err := os.ReadFile(c.OwnerKey(name)); err == nil {
			s.secret("owner's key", bytes.TrimSpace(raw))
		}
		if f, err := c.OpenShare(name); err == nil {
			s.secret("share", f.Share.Reveal())
		}
	}
	for _, r := range c.coordinators {
		s.keyFile("enrolment", filepath.Join(c.coordinatorDir(r), "enrolment.key"))
		if raw, err := os.ReadFile(filepath.Join(c.coordinatorDir(r), "setup-token")); err == nil {
			s.tokenLine("setup secret", string(raw))
		}
	}
	members, _ := filepath.Glob(filepath.Join(c.dir, membersDir, "*", "identity", "*"))
	for _, file := range members {
		s.keyFile("member's key", file)
	}
	// What everybody can see who reads the store, the metrics, or an answer.
	l, err := c.store.List(ctx, "")
	if err != nil {
		s.t.Errorf("list the store: %v", err)
	}
	for _, e := range l.Entries {
		s.seen[fmt.Sprintf("store %s at %d", e.Key, e.Version)] = e.Value
		s.unseal(ctx, e.Key, e.Value)
	}
	for _, r := range c.running() {
		c.mu.Lock()
		addresses := []string{r.metrics}
		for _, m := range c.members {
			addresses = append(addresses, m.metrics)
		}
		c.mu.Unlock()
		for _, addr := range addresses {
			for _, path := range []string{"/metrics", "/probe/startup", "/probe/readiness", "/probe/liveness"} {
				s.get(addr, path)
			}
		}
		conn, err := mesh.DialLocal(filepath.Join(c.coordinatorDir(r), "admin.sock"))
		if err != nil {
			continue
		}
		s.answers(ctx, r.name, conn)
		conn.Close()
	}
}

func (s *secrecy) get(addr, path string) {
	if addr == "" {
		return
	}
	resp, err := (&http.Client{Timeout: 5 * time.Second}).Get("http://" + addr + path)
	if err != nil {
		return // it is on its way out
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil {
		s.seen[fmt.Sprintf("%s%s %d", addr, path, len(s.seen))] = body
	}
}

// answers collects what a coordinator tells people.
func (s *secrecy) answers(ctx context.Context, name string, conn *grpc.ClientConn) {
	keep := func(what string, m interface{ String() string }, err error) {
		s.seen[fmt.Sprintf("%s of %s %d", what, name, len(s.seen))] = fmt.Append(nil, m.String(), err)
	}
	st, err := fealtyv1.NewStatusServiceClient(conn).GetStatus(ctx, &fealtyv1.GetStatusRequest{})
	keep("status", st, err)
	if raw, err := protojson.Marshal(st); err == nil {
		s.seen[fmt.Sprintf("status in JSON of %s %d", name, len(s.seen))] = raw
	}
	trust, err := fealtyv1.NewTrustServiceClient(conn).GetTrust(ctx, &fealtyv1.GetTrustRequest{})
	keep("trust", trust, err)
	list, err := fealtyv1.NewMemberServiceClient(conn).ListMembers(ctx, &fealtyv1.ListMembersRequest{})
	keep("members", list, err)
	tokens, err := fealtyv1.NewTokenServiceClient(conn).ListTokens(ctx, &fealtyv1.ListTokensRequest{})
	keep("tokens", tokens, err)
	m, err := fealtyv1.NewManifestServiceClient(conn).GetManifest(ctx, &fealtyv1.GetManifestRequest{})
	keep("manifest", m, err)
}

// unseal opens what a keeper sealed, and notes what was in it.
func (s *secrecy) unseal(ctx context.Context, key string, value []byte) {
	parts := strings.Split(key, "/")
	if parts[0] != "sealed" || len(parts) < 4 {
		return
	}
	for content := range s.keepers {
		file := filepath.Join(s.t.TempDir(), "keeper.key")
		if err := durable.OS().WriteFile(file, []byte(content)); err != nil {
			s.t.Fatal(err)
		}
		k, err := keyring.KeeperOf(keyring.Owner{Name: parts[len(parts)-1], Keeper: "file:" + file}, durable.OS())
		if err != nil {
			s.t.Fatal(err)
		}
		place := keyring.Place{Cluster: s.c.ID(), Owner: parts[len(parts)-1]}
		switch parts[1] {
		case "seed":
			place.SeedEpoch, _ = strconv.ParseUint(parts[2], 10, 64)
			salt, _ := hex.DecodeString(parts[3])
			if seed, err := keyring.OpenSeed(ctx, k, place, value); err == nil {
				s.seed(seed.Reveal(), salt)
			}
		case "mesh":
			head, _ := hex.DecodeString(parts[2])
			copy(place.Head[:], head)
			for place.SeedEpoch = 1; place.SeedEpoch < 4; place.SeedEpoch++ {
				if key, _, err := keyring.OpenMesh(ctx, k, place, value); err == nil {
					s.privateKey("mesh CA key", key)
				}
			}
		}
	}
}

// check fails for every secret that is in something that was seen.
func (s *secrecy) check() {
	s.t.Helper()
	s.seen["log"] = s.log.bytes()
	kinds := make(map[string]int)
	for what := range s.secrets {
		kinds[strings.SplitN(what, "/", 2)[0]]++
	}
	for kind, least := range map[string]int{
		"seed": 1, "prk": 1, "root-ca": 1, "transaction": 1, "config-root": 1, "record-mac": 1, "store-seal": 1, "config-signing": 4, "root CA key": 1,
		"mesh CA key": 2, "share": 2, "owner's key": 3, "signer": 1, "enrolment": 3, "setup secret": 1, "member's key": 8, "join token": 4,
	} {
		if kinds[kind] < least {
			s.t.Errorf("%d secrets of kind %s were found, want %d: this shows nothing of them", kinds[kind], kind, least)
		}
	}
	if len(s.seen) < 100 || len(s.seen["log"]) < 10_000 {
		s.t.Errorf("%d things were seen, and %d bytes of the log: this looks at nothing", len(s.seen), len(s.seen["log"]))
	}
	for _, leak := range leaks(s.secrets, s.seen) {
		s.t.Error(leak)
	}
}

// leaks returns which secrets are in what was seen, in which form: raw, in hex, in
// Base64 of both alphabets at each of three alignments, and in PEM, which is the same
// with line ends in between.
func leaks(secrets, seen map[string][]byte) []string {
	type pattern struct {
		what, form string
		text       []byte
	}
	byStart := make(map[uint64][]pattern) // by the first eight bytes
	for what, secret := range secrets {
		add := func(form string, text []byte) {
			k := binary.BigEndian.Uint64(text)
			byStart[k] = append(byStart[k], pattern{what, form, text})
		}
		add("raw", secret)
		add("hex", []byte(hex.EncodeToString(secret)))
		add("upper hex", bytes.ToUpper([]byte(hex.EncodeToString(secret))))
		for align := range 3 {
			// Characters at the ends hold bits of what stands beside the secret too.
			padded := append(make([]byte, align), secret...)
			for form, enc := range map[string]*base64.Encoding{"Base64": base64.RawStdEncoding, "URL Base64": base64.RawURLEncoding} {
				text := enc.EncodeToString(padded)
				from, to := (align*8+5)/6, len(padded)*8/6
				add(form, []byte(text[from:to]))
			}
		}
	}
	var out []string
	for where, data := range seen {
		for _, form := range [][]byte{data, unfolded(data)} {
			var k uint64
			for i, b := range form {
				if k = k<<8 | uint64(b); i < 7 {
					continue
				}
				for _, p := range byStart[k] {
					if bytes.HasPrefix(form[i-7:], p.text) {
						out = append(out, fmt.Sprintf("%s is in %s, as %s", p.what, where, p.form))
					}
				}
			}
		}
	}
	return out
}

// unfolded returns data without line ends, as they are and as logs and JSON write them.
func unfolded(data []byte) []byte {
	return []byte(strings.NewReplacer("\r", "", "\n", "", `\r`, "", `\n`, "").Replace(string(data)))
}

// The scan finds a secret in every form that it says it looks for.
func TestLeaksAreSeen(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	secret := key.Seed()
	block := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: append(der, make([]byte, 64)...)})
	for name, text := range map[string]string{
		"raw": string(secret), "hex": hex.EncodeToString(secret), "upper hex": strings.ToUpper(hex.EncodeToString(secret)),
		"Base64": base64.StdEncoding.EncodeToString(secret), "unpadded": base64.RawStdEncoding.EncodeToString(secret),
		"URL": base64.URLEncoding.EncodeToString(secret), "after one byte": base64.StdEncoding.EncodeToString(append([]byte{7}, append(secret, 9)...)),
		"after two": base64.RawURLEncoding.EncodeToString(append([]byte{7, 8}, append(secret, 9)...)),
		"PEM":       string(block), "PEM in a log": fmt.Sprintf("%q", block), "DER": string(der), "%v": strings.Trim(fmt.Sprintf("%x", secret), "[]"),
	} {
		if got := leaks(map[string][]byte{"it": secret}, map[string][]byte{"there": []byte("before " + text + " after")}); len(got) == 0 {
			t.Errorf("%s is not seen", name)
		}
	}
	if got := leaks(map[string][]byte{"it": secret}, map[string][]byte{"there": key.Public().(ed25519.PublicKey)}); len(got) != 0 {
		t.Errorf("the public key is a leak: %v", got)
	}
}

// files adds the files of an embedded store, its log of writes included.
func (s *secrecy) files() {
	err := filepath.WalkDir(filepath.Join(s.c.dir, "store"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		s.seen["file "+path] = raw
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		s.t.Error(err)
	}
}

// changes adds every commit that the store still tells of: values that were replaced.
func (s *secrecy) changes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	l, err := s.c.store.List(ctx, "")
	if err != nil {
		s.t.Error(err)
		return
	}
	for ch, err := range s.c.store.Changes(ctx, "", 0) {
		if errors.Is(err, store.ErrCompacted) {
			return // what is there still was listed after each step
		}
		if err != nil {
			s.t.Errorf("the changes of the store: %v", err)
			return
		}
		for _, e := range ch.Put {
			s.seen[fmt.Sprintf("store %s at %d", e.Key, e.Version)] = e.Value
		}
		if ch.Revision >= l.Revision {
			return
		}
	}
}

// token notes the secret of a join token that was made.
func (s *secrecy) token(tok proof.JoinToken) { s.tokenLine("join token", tok.Line()) }
