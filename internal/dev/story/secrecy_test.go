package story

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/keygen"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/logs"
)

// secrecy watches a story (I8): after each step it collects the secrets that exist, and
// all that others than coordinators and owners can see. In the end none of the former
// is in the latter, in whatever form.
//
// Which secrets: the seed and all that derives from it (root CA key, transaction key,
// config root and signing keys, record MAC, store seal), each mesh CA key that a head
// named, shares, owners' keys, the keeper's, the signer's, coordinators' enrolment keys,
// members' keys, keys of the operator's PKI, join and setup tokens with what derives
// from these. Not known to it is what lives in the memory of a coordinator alone and is
// never handed to anything that writes: keys of its own certificates, and the key that
// shares are encrypted to on their way. There are no bearer tokens: people have
// certificates.
//
// Where: the store as it is listed, its changes, a dump, and every byte of its files on
// the disk; the log down to debug, that of gRPC included; metrics and probes; answers and
// errors of coordinators and agents; what is published; backups; and every file of the
// cluster's folder. The few that hold a secret are in mayHold, and each holds its own
// alone. There are no traces: nothing imports a tracer, gRPC's own is off, and left out
// of the binary by the tag grpcnotrace; and no listener has profiles or dumps. The story
// runs no commands: those of its commands that show secrets are tested in cmd/fealty.
//
// That all of this looks somewhere is shown by a canary: it is no secret, was put where
// everybody sees it, and has to be found in each place.
type secrecy struct {
	t *testing.T
	c *cluster.Cluster

	dir, published string // the cluster's folder, and that in which it publishes
	program        string // the path of fealty

	log     logs.Text
	canary  []byte
	secrets map[string][]byte // by what they are and where they were found
	homes   map[string]string // by secret: the one folder whose files may hold it
	meshes  map[identity.KeyID]bool
	named   map[identity.KeyID]bool    // mesh CA keys that a status named
	keepers map[string]bool            // contents of key files that the keeper had
	probed  map[string]bool            // addresses of metrics that were asked for what nobody may serve
	opened  map[[sha256.Size]byte]bool // what a keeper was tried on, as a hash: it would open the same again

	read map[string]lookedAt // files of the cluster's folder as they were, by path

	mu   sync.Mutex
	seen map[string][]byte // by where: entries of the store, metrics, answers; guarded by mu
}

// lookedAt is a file when it was read.
type lookedAt struct {
	info fs.FileInfo
	at   time.Time
}

// same reports whether a file is as it was when it was read. A write within the second after
// another one may leave no trace in the times of a file.
func (l lookedAt) same(info fs.FileInfo) bool {
	return l.info != nil && os.SameFile(l.info, info) && l.info.Size() == info.Size() && l.info.ModTime().Equal(info.ModTime()) &&
		l.at.Sub(info.ModTime()) > time.Second
}

// mayHold are the files of the cluster's folder that hold secrets, and of which kind.
// Everything else there holds none. A file that is being written has another name for a
// while.
func mayHold() map[string]*regexp.Regexp {
	of := func(file string) *regexp.Regexp {
		dir, name := path.Split(file)
		return regexp.MustCompile(`^` + dir + `\.?` + name + `(\.tmp-[0-9a-f]+)?$`)
	}
	return map[string]*regexp.Regexp{
		"keeper's key":   of(`keeper\.key`),
		"signer":         of(`signer\.key`),
		"owner's key":    of(`owners/[a-z]+\.key`),
		"enrolment":      of(`coordinator-[1-3]/enrolment\.key`),
		"setup secret":   of(`coordinator-[1-3]/setup-token`),
		"member's key":   of(`members/[a-z0-9-]+/identity/(svid\.pem|next\.key)`),
		"operator's key": of(`pki/[a-z-]+/tls\.key`),
	}
}

func newSecrecy(t *testing.T) *secrecy {
	canary := make([]byte, 16)
	rand.Read(canary)
	return &secrecy{
		t: t, canary: canary, secrets: make(map[string][]byte), homes: make(map[string]string), seen: make(map[string][]byte), keepers: make(map[string]bool), probed: make(map[string]bool), opened: make(map[[sha256.Size]byte]bool),
		meshes: make(map[identity.KeyID]bool), named: make(map[identity.KeyID]bool), read: make(map[string]lookedAt),
	}
}

// release is the canary as everybody sees it: in answers, metrics, logs, records.
func (s *secrecy) release() string { return "test-" + hex.EncodeToString(s.canary) }

// see notes something that others can see. Its place is the first word of where.
func (s *secrecy) see(where string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fmt.Sprintf("%s #%x", where, sha256.Sum256(data))[:len(where)+10]
	if _, ok := s.seen[name]; !ok { // most is as it was after the step before
		s.seen[name] = bytes.Clone(data)
	}
}

// secret notes a secret. Less than 16 bytes are none.
func (s *secrecy) secret(what string, b []byte) string {
	if len(b) < 16 {
		s.t.Errorf("%s has %d bytes", what, len(b))
		return ""
	}
	name := fmt.Sprintf("%s/%x", what, sha256.Sum256(b))[:len(what)+9]
	s.secrets[name] = bytes.Clone(b)
	return name
}

// token notes the secret in the line of a token, and the key that derives from it.
func (s *secrecy) tokenLine(what, line, info string) string {
	line = strings.TrimSpace(line)
	for i := range len(line) { // the prefix has characters of the encoding
		raw, err := base64.RawURLEncoding.DecodeString(line[i:])
		if err == nil && len(raw) > 36 {
			secret := raw[len(raw)-36 : len(raw)-4] // before the checksum
			key, err := hkdf.Key(sha256.New, secret, nil, info, ed25519.SeedSize)
			if err != nil {
				s.t.Fatal(err)
			}
			s.secret(what+" key", key)
			return s.secret(what, secret)
		}
	}
	s.t.Errorf("%s: no secret in its line", what)
	return ""
}

// privateKey notes a private key, and its number apart: another encoding holds that too.
func (s *secrecy) privateKey(what string, key any) string {
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		d, err := k.Bytes()
		if err != nil {
			s.t.Error(err)
			return ""
		}
		return s.secret(what, d)
	case ed25519.PrivateKey:
		return s.secret(what, k.Seed())
	}
	s.t.Errorf("%s is a %T", what, key)
	return ""
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
		s.homes[s.privateKey(what, key)] = filepath.Dir(path)
	}
}

// identity notes the key of an owner, which age writes in Bech32: five bits in each
// character, the last six of which are a checksum.
func (s *secrecy) identity(what, path string) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return
	}
	text := strings.ToLower(strings.TrimSpace(string(raw)))
	text = text[strings.LastIndexByte(text, '1')+1:]
	var out []byte
	bits, n := 0, 0
	for _, c := range text[:len(text)-6] {
		bits, n = bits<<5|strings.IndexRune("qpzry9x8gf2tvdw0s3jn54khce6mua7l", c), n+5
		if n >= 8 {
			n -= 8
			out = append(out, byte(bits>>n))
			bits &= 1<<n - 1
		}
	}
	s.homes[s.secret(what, out)] = filepath.Dir(path)
	s.homes[s.secret(what, []byte(strings.ToUpper(text)))] = filepath.Dir(path)
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
	// Secrets that only some may know.
	if raw, err := os.ReadFile(c.KeeperFile()); err == nil {
		s.keepers[string(raw)] = true
		key, err := base64.StdEncoding.DecodeString(string(bytes.Fields(raw)[1]))
		if err != nil {
			s.t.Error(err)
		}
		s.homes[s.secret("keeper's key", key)] = s.dir
	}
	s.keyFile("signer", filepath.Join(s.dir, "signer.key"))
	for _, name := range cluster.Owners() {
		s.identity("owner's key", c.OwnerKey(name))
		if f, err := c.OpenShare(name); err == nil {
			s.secret("share", f.Share.Reveal())
		}
	}
	for _, name := range c.CoordinatorNames() {
		folder := c.CoordinatorDir(name)
		s.keyFile("enrolment", filepath.Join(folder, "enrolment.key"))
		if raw, err := os.ReadFile(filepath.Join(folder, "setup-token")); err == nil {
			if tok, err := proof.ParseSetupToken(string(raw)); err != nil {
				s.t.Error(err)
			} else {
				s.homes[s.tokenLine("setup secret", string(raw), "fealty-setup-token-v1/"+tok.KeyHash.String())] = folder
			}
		}
	}
	members, _ := filepath.Glob(filepath.Join(s.dir, "members", "*", "identity", "*"))
	for _, file := range members {
		s.keyFile("member's key", file)
	}
	hosts, _ := filepath.Glob(filepath.Join(s.dir, "pki", "*", "tls.key"))
	for _, file := range hosts {
		s.keyFile("operator's key", file)
	}
	// Everything that a reader can see of the store, the metrics, or an answer.
	l, err := c.Store().List(ctx, "")
	if err != nil {
		s.t.Errorf("list the store: %v", err)
	}
	for _, e := range l.Entries {
		s.see("store "+e.Key, e.Value)
		s.unseal(ctx, e.Key, e.Value)
	}
	s.folder()
	s.agents(ctx)
	for _, addr := range s.metrics() {
		for _, path := range []string{"/metrics", "/probe/startup", "/probe/readiness", "/probe/liveness"} {
			s.get(addr, path)
		}
		if s.probed[addr] {
			continue // what a listener serves is settled when it begins
		}
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=2", "/debug/requests", "/debug/events", "/debug/vars", "/trace"} {
			if resp, err := http.Get("http://" + addr + path); err == nil {
				if resp.Body.Close(); resp.StatusCode != http.StatusNotFound {
					s.t.Errorf("%s answers at %s", addr, path)
				}
				s.probed[addr] = true
			}
		}
	}
	for _, name := range c.RunningCoordinators() {
		// One that was killed meanwhile has nothing to say.
		_ = c.WithAdminOf(name, func(conn *grpc.ClientConn) error {
			s.answers(ctx, name, conn)
			return nil
		})
	}
}

// metrics returns where what runs shows its metrics.
func (s *secrecy) metrics() []string {
	out := s.c.CoordinatorMetrics()
	for _, name := range s.c.RunningMembers() {
		if at, err := s.c.MemberMetrics(name); err == nil {
			out = append(out, at)
		}
	}
	return out
}

// uncompressed asks without having the answer compressed on its way, which costs more than the answer.
var uncompressed = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableCompression: true}}

func (s *secrecy) get(addr, path string) {
	if addr == "" {
		return
	}
	resp, err := uncompressed.Get("http://" + addr + path)
	if err != nil {
		return // it is on its way out
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil {
		place, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		s.see(place+" "+path+" of "+addr, body)
	}
}

// answers collects what a coordinator tells people.
func (s *secrecy) answers(ctx context.Context, name string, conn *grpc.ClientConn) {
	keep := func(what string, m interface{ String() string }, err error) {
		s.see(what+" of "+name, fmt.Append(nil, m.String(), err))
	}
	st, err := fealtyv1.NewStatusServiceClient(conn).GetStatus(ctx, &fealtyv1.GetStatusRequest{})
	keep("status", st, err)
	if raw, err := protojson.Marshal(st); err == nil {
		s.see("status in JSON of "+name, raw)
	}
	if key := st.GetMeshCaKey(); len(key) == len(identity.KeyID{}) {
		s.named[identity.KeyID(key)] = true
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
	sealedBy, of, ok := sealed.Parse(store.Entry{Key: key, Value: value})
	if !ok {
		return
	}
	for content := range s.keepers {
		tried := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s", s.c.ID(), content, key, value))
		if s.opened[tried] {
			continue
		}
		s.opened[tried] = true
		file := filepath.Join(s.t.TempDir(), "keeper.key")
		if err := durable.OS().WriteFile(file, []byte(content)); err != nil {
			s.t.Fatal(err)
		}
		k, err := keyring.KeeperOf(keyring.Owner{Name: sealedBy.Keeper, Keeper: "file:" + file}, durable.OS())
		if err != nil {
			s.t.Fatal(err)
		}
		place := keyring.Place{Cluster: s.c.ID(), Owner: sealedBy.Keeper, SeedEpoch: of.SeedEpoch, Head: of.Head}
		if of.SeedEpoch != 0 {
			if seed, err := keyring.OpenSeed(ctx, k, place, value); err == nil {
				s.seed(seed.Reveal(), of.Salt[:])
			}
			continue
		}
		for place.SeedEpoch = 1; place.SeedEpoch < 4; place.SeedEpoch++ {
			if key, _, err := keyring.OpenMesh(ctx, k, place, value); err == nil {
				s.privateKey("mesh CA key", key)
				spki, err := x509.MarshalPKIXPublicKey(key.Public())
				if err != nil {
					s.t.Fatal(err)
				}
				s.meshes[identity.KeyID(sha256.Sum256(spki))] = true
			}
		}
	}
}

// folder collects every file of the cluster's folder but the store's. Most are as they were
// after the step before, and what is in them was seen then.
func (s *secrecy) folder() {
	for dir, place := range map[string]string{s.dir: "file", s.published: "published"} {
		s.walk(dir, func(rel string, info fs.FileInfo) bool {
			path := filepath.Join(dir, filepath.FromSlash(rel))
			if rel == "store" || !info.IsDir() && s.read[path].same(info) {
				return false
			}
			s.read[path] = lookedAt{info, time.Now()}
			return true
		}, func(rel string, raw []byte) {
			if !s.isProgram(raw) {
				s.see(place+" "+rel, raw)
			}
		})
	}
}

// isProgram reports whether a file is a copy of the program, which is larger than all else
// together: it was built before there was a secret.
func (s *secrecy) isProgram(raw []byte) bool {
	info, err := os.Stat(s.program)
	if err != nil || info.Size() != int64(len(raw)) {
		return false
	}
	program, err := os.ReadFile(s.program)
	return err == nil && bytes.Equal(program, raw)
}

// walk calls f with every file below dir that is to be read, and goes into every folder that is.
func (s *secrecy) walk(dir string, toRead func(rel string, info fs.FileInfo) bool, f func(rel string, raw []byte)) {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !d.Type().IsRegular() {
			return nil
		}
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was there a moment ago
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if !toRead(rel, info) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return nil
		}
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			f(rel, raw)
		}
		return err
	})
	if err != nil {
		s.t.Error(err)
	}
}

// agents collects what agents tell people and services of their machine.
func (s *secrecy) agents(ctx context.Context) {
	for _, name := range s.c.RunningMembers() {
		if n, err := s.c.Node(ctx, name); err == nil {
			s.see("node "+name, []byte(n.String()))
		}
		// A call that is refused, or not answered, is heard as an error.
		_ = local(s.c, name, func(l fealtyv1.LocalConfigServiceClient) error {
			for _, scope := range snapshot.Scopes() {
				got, err := l.GetScope(ctx, &fealtyv1.GetScopeRequest{Scope: string(scope)})
				if s.c.Tell(err) == nil {
					s.see("local "+name+" "+string(scope), fmt.Appendf(nil, "%v %s", got, got.GetContent()))
				}
			}
			return nil
		})
	}
}

// plant puts the canary where nothing shows the release.
func (s *secrecy) plant(ctx context.Context) {
	for _, file := range []string{filepath.Join(s.dir, "coordinator-1", "canary"), filepath.Join(s.published, "canary")} {
		if err := os.WriteFile(file, fmt.Appendf(nil, "%v", s.canary), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	// A value that was replaced is in the files and among the changes alone.
	version, err := s.c.Store().CompareAndSwap(ctx, "audit/canary", 0, s.canary)
	if err == nil {
		_, err = s.c.Store().Commit(ctx, store.Tx{If: []store.Condition{{Key: "audit/canary", Version: version}}, Delete: []string{"audit/canary"}})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: hex.EncodeToString(s.canary)}); err == nil {
		s.t.Error("an entry of the name of the canary")
	}
	s.see("step canary", fmt.Appendf(nil, "%q", s.canary))
}

// files adds the files of an embedded store, its log of writes included.
func (s *secrecy) files() {
	s.walk(filepath.Join(s.dir, "store"), func(string, fs.FileInfo) bool { return true }, func(rel string, raw []byte) { s.see("disk "+rel, raw) })
}

// changes adds every commit that the store still tells of: values that were replaced.
func (s *secrecy) changes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	l, err := s.c.Store().List(ctx, "")
	if err != nil {
		s.t.Error(err)
		return
	}
	for ch, err := range s.c.Store().Changes(ctx, "", 0) {
		if errors.Is(err, store.ErrCompacted) {
			return // what is there still was listed after each step
		}
		if err != nil {
			s.t.Errorf("the changes of the store: %v", err)
			return
		}
		for _, e := range ch.Put {
			s.see("change "+e.Key, e.Value)
		}
		if ch.Revision >= l.Revision {
			return
		}
	}
}

// joinToken notes the secret of a join token that was made.
func (s *secrecy) joinToken(tok proof.JoinToken) {
	s.tokenLine("join token", tok.Line(), "fealty-join-token-v1/"+tok.ID)
}

// check fails for every secret that is in something that was seen.
func (s *secrecy) check(engine ...string) {
	s.t.Helper()
	s.see("log", s.log.Bytes())
	kinds := make(map[string]int)
	for what := range s.secrets {
		kinds[kindOf(what)]++
	}
	for kind, least := range map[string]int{
		"seed": 1, "prk": 1, "root-ca": 1, "transaction": 1, "config-root": 1, "record-mac": 1, "store-seal": 1, "config-signing": 4, "root CA key": 1, "workload-secret": 1,
		"mesh CA key": 2, "share": 2, "owner's key": 6, "keeper's key": 2, "signer": 1, "enrolment": 3, "setup secret": 1, "setup secret key": 1, "member's key": 8,
		"join token": 4, "join token key": 4, "operator's key": 2,
	} {
		if kinds[kind] < least {
			s.t.Errorf("%d secrets of kind %s were found, want %d: this shows nothing of them", kinds[kind], kind, least)
		}
	}
	for key := range s.named {
		if !s.meshes[key] {
			s.t.Errorf("mesh CA key %s was in force, and this does not know it", key)
		}
	}
	s.secrets["canary"] = s.canary
	scan, allowed := newScanner(s.secrets), mayHold()
	size, began := 0, time.Now()
	places, held, sung := make(map[string]int), make(map[string]bool), make(map[string]bool)
	for where, data := range s.seen {
		place, rest, _ := strings.Cut(where[:strings.LastIndex(where, " #")], " ")
		places[place]++
		size += len(data)
		for what, form := range scan.find(data) {
			if what == "canary" {
				sung[place] = true
				continue
			}
			if file := allowed[kindOf(what)]; place == "file" && file != nil && file.MatchString(rest) && s.homes[what] == filepath.Dir(filepath.Join(s.dir, rest)) {
				held[kindOf(what)] = true
				continue
			}
			s.t.Errorf("%s is in %s, as %s", what, where, form)
		}
	}
	for kind, file := range allowed {
		if !held[kind] {
			s.t.Errorf("no file had what %s may hold, %s", file, kind)
		}
	}
	for _, place := range append([]string{"store", "change", "disk", "log", "status", "node", "file", "published", "error", "step"}, engine...) {
		if !sung[place] {
			s.t.Errorf("the canary is not found in %s: a secret would not be either", place)
		}
	}
	// In the other places nothing shows the release: what is found there is shown by
	// putting each secret beside what was seen.
	for where, data := range s.seen {
		place, _, _ := strings.Cut(where, " ")
		if places[place] == 0 {
			continue
		}
		places[place] = 0 // once each
		data = data[:min(len(data), 1<<10)]
		for what, secret := range s.secrets {
			for form, text := range map[string][]byte{"raw": secret, "hex": hex.AppendEncode(nil, secret), "Base64": base64.StdEncoding.AppendEncode(nil, secret), "PEM": pem.EncodeToMemory(&pem.Block{Type: "SECRET", Bytes: secret})} {
				if scan.find(slices.Concat(data, []byte(" "), text))[what] == "" {
					s.t.Errorf("%s as %s would not be seen in %s", what, form, where)
				}
			}
		}
	}
	for _, place := range []string{"metrics", "probe", "trust", "members", "tokens", "manifest", "local", "backup"} {
		if _, ok := places[place]; !ok {
			s.t.Errorf("nothing was seen of %s", place)
		}
	}
	s.t.Logf("looked for %d secrets in %d things of %d MiB in all, %d of them the log, in %v", len(s.secrets), len(s.seen), size>>20, s.log.Len()>>20, time.Since(began))
	if len(s.seen) < 100 || s.log.Len() < 10_000 {
		s.t.Errorf("%d things were seen, and %d bytes of the log: this looks at nothing", len(s.seen), s.log.Len())
	}
}

// kindOf returns the kind of a secret.
func kindOf(what string) string { return strings.SplitN(what, "/", 2)[0] }
