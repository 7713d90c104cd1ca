package recovery

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
)

// MaxMarkBytes bounds a mark on disk.
const MaxMarkBytes = 16 << 10

// A Mark is the newest that a tool saw of a cluster. It is kept on disk: a history
// that does not lead through it went back, or is another one.
type Mark struct {
	Cluster string `json:"cluster"`
	history.SeenHead
	// TransactionKey signed that head, or one before it. Empty: nobody said.
	TransactionKey []byte `json:"transaction_key,omitempty"`
	// Root is the hash of the root CA's key. Zero: nobody said.
	Root identity.KeyID `json:"root,omitzero"`
}

// ParseMark reads a mark of cluster strictly.
func ParseMark(raw []byte, cluster string) (Mark, error) {
	var m Mark
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return Mark{}, fmt.Errorf("it does not decode: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Mark{}, errors.New("something follows it")
	}
	switch {
	case m.Cluster != cluster:
		return Mark{}, fmt.Errorf("it is of cluster %s, not of %s", clip(m.Cluster), cluster)
	case m.Index == 0 || m.Hash.IsZero():
		return Mark{}, errors.New("it names no head")
	case m.Signers != nil && (m.Signers.Threshold < 1 || len(m.Signers.Keys) < m.Signers.Threshold):
		return Mark{}, errors.New("its signers are none")
	case len(m.TransactionKey) != 0 && len(m.TransactionKey) != ed25519.PublicKeySize:
		return Mark{}, errors.New("its transaction key is none")
	}
	return m, nil
}

// IsZero reports whether m has seen nothing.
func (m Mark) IsZero() bool { return m.Mark == (history.Mark{}) }

// Check reports whether v leads through the head of m, or through a restore that the
// signers of m's head signed: those of a backup may be others, who were dismissed since.
// Errors, of package errcode:
// HistoryWentBack, HistoryForked.
func (m Mark) Check(v *history.Verified, endpoint string) (restored bool, err error) {
	restored, err = m.Accepts(v)
	return restored, m.refused(err, v.Mark(), endpoint)
}

// checkOutline is Check for who is shown no manifests.
func (m Mark) checkOutline(o *history.Outline, endpoint string) (restored bool, err error) {
	restored, err = o.Accepts(m.SeenHead)
	return restored, m.refused(err, o.Mark(), endpoint)
}

// refused words err, by which the head that was shown does not take the place of m.
func (m Mark) refused(err error, shown history.Mark, endpoint string) error {
	if err == nil {
		return nil
	}
	pairs := []any{
		"endpoint", endpoint, "cluster", m.Cluster,
		"seen", fmt.Sprintf("index %d of authority epoch %d, %.16s", m.Index, m.AuthorityEpoch, m.Hash.String()),
		"shown", fmt.Sprintf("index %d of authority epoch %d, %.16s", shown.Index, shown.AuthorityEpoch, shown.Hash.String()),
	}
	if errors.Is(err, history.ErrRollback) {
		return errcode.Wrap(err, errcode.HistoryWentBack, pairs...)
	}
	return errcode.Wrap(err, errcode.HistoryForked, pairs...)
}

// Expected is what a data owner expects of a cluster.
type Expected struct {
	// Manifest is what has to be in force, to the byte. Required.
	Manifest *manifest.Manifest
	// Pin is the hash of the root key; zero expects none.
	Pin identity.KeyID
	// Seen is the mark of that cluster; zero: it was never seen.
	Seen Mark
}

// Cluster is what was verified of one.
type Cluster struct {
	Coordinator string // the name that the expected manifest gives to who proved itself
	Key         string // its enrolment key, "ed25519:<base64>"
	// History is what the coordinator showed without a login: its links. The manifest in
	// force is the expected one.
	History  *history.Outline
	Root     *x509.Certificate
	MeshCA   *x509.Certificate
	Restored bool // a restore link stands for the head that was seen

	// Manifest is the one that was expected, and is in force.
	Manifest *manifest.Manifest
}

// Mark returns the mark to keep.
func (c *Cluster) Mark() Mark {
	return Mark{Cluster: c.Manifest.Cluster, SeenHead: c.History.Seen(), TransactionKey: c.History.TransactionKey(), Root: identity.KeyOf(c.Root)}
}

// Verify asks the coordinator at conn, whom nobody vouches for yet
// (pinned.Unproven), to prove itself and to show its history, and checks both
// against what is expected. endpoint names it in errors.
//
// The first look at a cluster takes from its coordinators the key that signs the
// history, and the root: those are shown by a machine that proved to be a
// coordinator of the expected manifest. Later ones have to go on from there.
//
// Errors of package errcode: those of verifyChecks, JoinNoBinding; those of the
// coordinator and of the connection.
func Verify(ctx context.Context, conn grpc.ClientConnInterface, want Expected, endpoint string, now time.Time) (*Cluster, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &verifying{want: want, endpoint: endpoint, now: now, nonce: make([]byte, proof.NonceBytes)}
	rand.Read(c.nonce)
	stream, err := fealtyv1.NewVerifyServiceClient(conn).Verify(ctx, &fealtyv1.VerifyRequest{Nonce: c.nonce})
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	cs, ok := proof.ConnectionState(stream.Context())
	if !ok {
		return nil, errcode.New(errcode.JoinNoBinding)
	}
	if c.binding, err = proof.Binding(cs); err != nil {
		return nil, errcode.Wrap(err, errcode.JoinNoBinding, "problem", err.Error())
	}
	c.claim = first.GetClaim()
	for _, check := range verifyChecks {
		if check.history && c.history == nil {
			c.history, err = receiveHistory(func() (*fealtyv1.RecoveryHistory, error) {
				msg, err := stream.Recv()
				return msg.GetHistory(), err
			})
			switch {
			case errors.Is(err, errBadHistory):
				return nil, c.badHistory(err)
			case err != nil:
				return nil, err
			}
			// The caller has what is known of the manifests: a coordinator shows none to
			// who has not logged in.
			c.history.Manifests[want.Manifest.Hash()] = want.Manifest.Bytes()
		}
		if err := check.find(c); err != nil {
			return nil, err
		}
	}
	return &c.found, nil
}

// verifying is what the checks of a data owner's tool look at, and what they find.
type verifying struct {
	want     Expected
	endpoint string
	now      time.Time
	nonce    []byte
	binding  []byte
	claim    *fealtyv1.VerifyClaim
	history  *history.History

	found Cluster
}

// VerifyChecks returns what [Verify] checks, in order.
func VerifyChecks() []Check {
	out := make([]Check, len(verifyChecks))
	for i, c := range verifyChecks {
		out[i] = c.Check
	}
	return out
}

// verifyChecks are made in order; each may use what those before it found. Those
// from the first with history on see the history.
var verifyChecks = [...]struct {
	Check
	history bool
	find    func(c *verifying) error
}{
	{Check{"coordinator", "somebody in between, or a machine that the manifest does not name, would be believed"}, false, func(c *verifying) error {
		o := c.claim
		switch named := clip(o.GetCluster()); o.GetCluster() {
		case c.want.Manifest.Cluster:
		case "":
			return c.unproven(nil, "it names no cluster")
		default:
			return errcode.New(errcode.PeerOtherCluster, "endpoint", c.endpoint, "cluster", named, "expected", c.want.Manifest.Cluster,
				"problem", "it says so itself, the expected manifest is of "+c.want.Manifest.Cluster+", and nothing else that it says was "+
					"looked at", "do", "name a coordinator of "+c.want.Manifest.Cluster+" with --coordinator, or give the manifest of "+named)
		}
		t := proof.VerifyTranscript{
			Cluster: o.GetCluster(), Nonce: c.nonce, Binding: c.binding, Head: o.GetHead(), Ready: o.GetReady(),
			Root: o.GetRoot(), MeshCA: o.GetMeshCa(), TransactionKey: o.GetTransactionKey(),
		}
		selector, err := proof.CheckVerify(t, o.GetKey(), o.GetEvidence())
		if err != nil {
			return c.unproven(err, err.Error())
		}
		shown, err := shownBy(t, selector, o.GetX509())
		if err != nil {
			return c.unproven(err, err.Error())
		}
		found, err := shown.Match(c.want.Manifest, c.now)
		if err != nil {
			return c.unproven(err, fmt.Sprintf("%v that is expected", err))
		}
		c.found.Coordinator, c.found.Key = found.Name, o.GetKey()
		return nil
	}},
	{Check{"signing key", "a history can be replayed only under a key that somebody vouches for"}, false, func(c *verifying) error {
		if !c.claim.GetReady() && len(c.want.Seen.TransactionKey) == 0 {
			return errcode.New(errcode.RecoveryMode, "method", "the proof of its history", "reason", "without its seed it cannot say which key signs the history, and this machine has not seen the cluster before")
		}
		return nil
	}},
	{Check{"history", "whoever controls the store could make up what led here"}, true, func(c *verifying) error {
		key := ed25519.PublicKey(c.want.Seen.TransactionKey)
		if len(key) == 0 {
			key = c.claim.GetTransactionKey()
		}
		v, err := history.VerifyOutline(c.history, key, c.want.Seen.SeenHead)
		switch {
		case err != nil:
			return c.badHistory(err)
		case !bytes.Equal(c.claim.GetHead(), v.Current().Hash[:]):
			return c.badHistory(errors.New("its head is not the one that the coordinator proved"))
		case c.claim.GetReady() && !bytes.Equal(c.claim.GetTransactionKey(), v.TransactionKey()):
			return c.badHistory(errors.New("the key that signs its head is not the one that the coordinator proved"))
		}
		c.found.History = v
		return nil
	}},
	{Check{"mark", "an older head is signed as well as the newest, and so is one of two that follow the same"}, true, func(c *verifying) (err error) {
		c.found.Restored, err = c.want.Seen.checkOutline(c.found.History, c.endpoint)
		return err
	}},
	{Check{"manifest", "another policy than the one that was agreed on would be in force"}, true, func(c *verifying) error {
		v := c.found.History
		if v.Current().Manifest == c.want.Manifest.Hash() { // of the exact bytes
			c.found.Manifest = c.want.Manifest
			return nil
		}
		when := "it was never in force"
		links := v.Links()
		for i := range slices.Backward(links) {
			if links[i].Manifest == c.want.Manifest.Hash() {
				when = fmt.Sprintf("it was in force until index %d, by %s", links[i+1].Index, links[i+1].Kind)
				break
			}
		}
		return errcode.New(errcode.VerifyManifest, "endpoint", c.endpoint, "cluster", c.want.Manifest.Cluster, "expected", c.want.Manifest.Hash(),
			"found", v.Current().Manifest, "index", v.Current().Index, "when", when)
	}},
	{Check{"ready", "without its secrets a coordinator has no authority to show"}, true, func(c *verifying) error {
		if !c.claim.GetReady() {
			return errcode.New(errcode.RecoveryMode, "method", "root and mesh CA", "reason", "its history and its manifest are as expected, and its secrets are not back yet")
		}
		return nil
	}},
	{Check{"root", "who signs with another root would be believed"}, true, func(c *verifying) error {
		root, err := x509.ParseCertificate(c.claim.GetRoot())
		if err == nil {
			if r := internalidentity.CheckRoot(root, c.now); r != nil {
				err = (*identity.ChainError)(r)
			}
		}
		if err != nil {
			return c.badAuthority("its root: " + err.Error())
		}
		got := identity.KeyOf(root)
		want, why := c.want.Seen.Root, "seen before"
		if reseeds := c.found.History.Reseeds(); len(reseeds) > 0 {
			want, why = reseeds[len(reseeds)-1].Reseed.Root, "of the last reseed"
		}
		if !want.IsZero() && got != want {
			return c.badAuthority(fmt.Sprintf("its root key is %v, and the one %s is %v", got, why, want))
		}
		if pin := c.want.Pin; !pin.IsZero() && got != pin {
			return c.badAuthority(fmt.Sprintf("its root key is %v, and the pinned one is %v", got, pin))
		}
		c.found.Root = root
		return nil
	}},
	{Check{"mesh CA", "a key that the head does not name could certify anybody (I9)"}, true, func(c *verifying) error {
		cert, err := x509.ParseCertificate(c.claim.GetMeshCa())
		if err == nil {
			if r := internalidentity.CheckMeshCA(cert, c.now); r != nil {
				err = (*identity.ChainError)(r)
			}
		}
		if err == nil {
			err = cert.CheckSignatureFrom(c.found.Root)
		}
		if err != nil {
			return c.badAuthority("its mesh CA: " + err.Error())
		}
		if got, want := identity.KeyOf(cert), c.found.History.Current().MeshCAKey; got != want {
			return c.badAuthority(fmt.Sprintf("its mesh CA key is %v, and the head at index %d names %v", got, c.found.History.Current().Index, want))
		}
		c.found.MeshCA = cert
		return nil
	}},
}

func (c *verifying) unproven(cause error, problem string) error {
	return errcode.Wrap(cause, errcode.VerifyUnproven, "endpoint", c.endpoint, "cluster", c.want.Manifest.Cluster, "problem", problem)
}

func (c *verifying) badHistory(err error) error {
	return errcode.Wrap(err, errcode.VerifyHistory, "endpoint", c.endpoint, "problem", strings.TrimPrefix(err.Error(), "history: "))
}

func (c *verifying) badAuthority(problem string) error {
	return errcode.New(errcode.VerifyAuthority, "endpoint", c.endpoint, "problem", problem)
}
