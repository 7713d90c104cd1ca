package recovery_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/test/wait"
)

// maxPassphraseBytes is how long a passphrase may be.
const maxPassphraseBytes = 1024

const passphrase = "correct horse battery staple"

// encryptedShare is a folder with alice's share, and the two kinds of private
// keys that open it, both encrypted.
func encryptedShare(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	put := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shares, err := keyring.Split(keyring.NewSeed(), 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	seal := func(name, recipient string) {
		data, err := keyring.SealShare(recipient, keyring.ShareFile{
			Cluster: "test.example", Owner: "alice", SeedEpoch: 1, Threshold: 1,
			TransactionKey: public, RootPin: [32]byte{1}, Share: shares[0],
		})
		if err != nil {
			t.Fatal(err)
		}
		put(name, data)
	}

	of, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKeyWithPassphrase(private, "alice", []byte(passphrase))
	if err != nil {
		t.Fatal(err)
	}
	put("ssh.key", pem.EncodeToMemory(block))
	seal("ssh.share", strings.TrimSpace(string(ssh.MarshalAuthorizedKey(of))))

	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	lock, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		t.Fatal(err)
	}
	lock.SetWorkFactor(10)
	var locked bytes.Buffer
	w, err := age.Encrypt(&locked, lock)
	if err == nil {
		_, err = fmt.Fprintln(w, id)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	put("age.key", locked.Bytes())
	seal("age.share", id.Recipient().String())
	put("history.json", []byte("{}"))
	return dir
}

// drillOf is the command that opens the share. The history is looked at after
// that: its code says that the share was opened.
func drillOf(kind string, more ...string) []string {
	return append([]string{"recover", "--drill", "--history", "history.json", "--share", kind + ".share", "--share-key", kind + ".key"}, more...)
}

const shareOpened = "FE-H107"

// pty is a terminal: what its user sees and types.
type pty struct {
	user, tty *os.File

	mu     sync.Mutex
	screen bytes.Buffer
	more   chan struct{} // something was shown
}

func newPTY(t *testing.T) *pty {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := user.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	var ioctl error
	if err := raw.Control(func(fd uintptr) {
		if ioctl = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); ioctl == nil {
			n, ioctl = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); err != nil || ioctl != nil {
		t.Fatal(err, ioctl)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &pty{user: user, tty: tty, more: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1024)
		for {
			n, err := user.Read(buf)
			p.mu.Lock()
			p.screen.Write(buf[:n])
			p.mu.Unlock()
			select {
			case p.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		tty.Close()
		user.Close()
		<-done
	})
	return p
}

func (p *pty) shown() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.screen.String()
}

// await waits until text is shown.
func (p *pty) await(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(p.shown(), text) {
		select {
		case <-p.more:
		case <-time.After(2 * time.Minute):
			t.Fatalf("%q is not shown:\n%s", text, p.shown())
		}
	}
}

func (p *pty) echoes(t *testing.T) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return state.Lflag&unix.ECHO != 0
}

// awaitSilence waits until the terminal shows nothing of what is typed.
func (p *pty) awaitSilence(t *testing.T) {
	t.Helper()
	wait.Until(t, "the terminal shows nothing of what is typed", func() bool { return !p.echoes(t) })
}

// command runs a command on the terminal. It returns its exit status and stdout.
func (p *pty) command(ctx context.Context, dir string, args []string) (int, string) {
	var out bytes.Buffer
	exit := cli.Run(ctx, program.Env{
		Stdin: p.tty, Stdout: &out, Stderr: p.tty, Args: args, Dir: dir, Now: func() time.Time { return clitest.Now },
		IsTerminal: func(stream any) bool {
			f, ok := stream.(*os.File)
			return ok && term.IsTerminal(int(f.Fd()))
		},
	})
	return exit, out.String()
}

func TestPassphraseOnTerminal(t *testing.T) {
	dir := encryptedShare(t)
	for _, kind := range []string{"ssh", "age"} {
		for _, tt := range []struct{ name, typed, code, says string }{
			{"right", passphrase, shareOpened, ""},
			{"wrong", "incorrect horse", "FE-K105", "the passphrase does not open the private key file\r\n"},
			{"blank", "", "FE-K105", "the passphrase is empty\r\n"},
		} {
			t.Run(kind+"/"+tt.name, func(t *testing.T) {
				p := newPTY(t)
				type end struct {
					exit int
					out  string
				}
				ended := make(chan end, 1)
				go func() {
					exit, out := p.command(t.Context(), dir, drillOf(kind))
					ended <- end{exit, out}
				}()
				p.await(t, "fealty: passphrase of "+kind+".key: ")
				p.awaitSilence(t)
				if _, err := p.user.WriteString(tt.typed + "\n"); err != nil {
					t.Fatal(err)
				}
				got := <-ended
				p.await(t, "error "+tt.code)
				p.await(t, tt.says)
				if got.exit == 0 {
					t.Error("exit status 0")
				}
				if seen := p.shown() + got.out; tt.typed != "" && strings.Contains(seen, tt.typed) {
					t.Errorf("the passphrase is shown:\n%s", seen)
				}
				if !p.echoes(t) {
					t.Error("the terminal was left without echo")
				}
			})
		}
	}
}

// A person who gives up at the prompt gets the terminal back as it was.
func TestPassphraseInterrupted(t *testing.T) {
	dir := encryptedShare(t)
	p := newPTY(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan int, 1)
	go func() {
		exit, _ := p.command(ctx, dir, drillOf("ssh"))
		ended <- exit
	}()
	p.await(t, "passphrase of ssh.key: ")
	p.awaitSilence(t)
	cancel()
	select {
	case exit := <-ended:
		if exit != 130 {
			t.Errorf("exit status %d, want 130:\n%s", exit, p.shown())
		}
	case <-time.After(2 * time.Minute):
		t.Error("the prompt goes on waiting")
	}
	if !p.echoes(t) {
		t.Error("the terminal was left without echo")
	}
	// The read that nobody waits for ends with its line.
	if _, err := p.user.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
}

func TestPassphraseWithoutTerminal(t *testing.T) {
	dir := encryptedShare(t)
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, f := range map[string]clitest.Fixture{
		"stdin is a pipe":         {Dir: dir, Stdin: strings.NewReader(passphrase + "\n")},
		"stdin is no terminal":    {Dir: dir, Stdin: file},
		"there is no stdin":       {Dir: dir},
		"terminal without a file": {Dir: dir, Stdin: strings.NewReader(passphrase + "\n"), Terminals: []any{"stdin"}},
	} {
		t.Run(name, func(t *testing.T) {
			f.Run(t.Context(), drillOf("ssh")...).Want(t, 3, "FE-K105", "ssh.key", "there is no terminal to ask for its passphrase on", "--passphrase-file FILE")
		})
	}
}

func TestPassphraseFile(t *testing.T) {
	dir := encryptedShare(t)
	for _, tt := range []struct {
		name, content string
		mode          os.FileMode
		code          string
		says          []string
	}{
		{"right", passphrase, 0o600, shareOpened, nil},
		{"read only", passphrase, 0o400, shareOpened, nil},
		{"line end", passphrase + "\n", 0o600, shareOpened, nil},
		{"line end of Windows", passphrase + "\r\n", 0o600, shareOpened, nil},
		{"blank at the end is part of it", passphrase + " \n", 0o600, "FE-K105", []string{"the passphrase does not open the private key file"}},
		{"wrong", "incorrect horse\n", 0o600, "FE-K105", []string{"the passphrase does not open the private key file\n"}},
		{"empty", "", 0o600, "FE-K105", []string{"the passphrase is empty\n"}},
		{"blank", "\n\n", 0o600, "FE-K105", []string{"the passphrase is empty\n"}},
		{"group reads", passphrase, 0o640, "FE-K105", []string{"others can read the passphrase file secret", "chmod 600 secret"}},
		{"all read", passphrase, 0o644, "FE-K105", []string{"others can read the passphrase file secret", "chmod 600 secret"}},
		{"all write", passphrase, 0o602, "FE-K105", []string{"others can read the passphrase file secret", "chmod 600 secret"}},
		{"largest", passphrase + strings.Repeat("\n", maxPassphraseBytes-len(passphrase)), 0o600, shareOpened, nil},
		{"too large", passphrase + strings.Repeat("\n", maxPassphraseBytes+1-len(passphrase)), 0o600, "FE-K105", []string{"the passphrase file secret has more than 1024 bytes"}},
		{"missing", "", 0, "FE-U", []string{"passphrase file secret"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(dir, "secret")
			if tt.mode != 0 {
				if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
					t.Fatal(err)
				}
				defer os.Remove(path)
				if err := os.Chmod(path, tt.mode); err != nil {
					t.Fatal(err)
				}
			}
			got := clitest.Fixture{Dir: dir}.Run(t.Context(), drillOf("age", "--passphrase-file", "secret")...)
			if got.Exit == 0 || !strings.Contains(got.Stderr, "error "+tt.code) {
				t.Errorf("exit status %d, want %s:\n%s", got.Exit, tt.code, got.Stderr)
			}
			for _, s := range tt.says {
				if !strings.Contains(got.Stderr, s) {
					t.Errorf("stderr does not say %q:\n%s", s, got.Stderr)
				}
			}
			if word := strings.TrimSpace(tt.content); word != "" && strings.Contains(got.Stdout+got.Stderr, word) {
				t.Errorf("the passphrase is shown:\n%s%s", got.Stdout, got.Stderr)
			}
		})
	}
}

// A pipe, as of /dev/fd/N, has no mode that counts; its size does.
func TestPassphraseFromPipe(t *testing.T) {
	dir := encryptedShare(t)
	for content, want := range map[string]string{
		passphrase + "\n": shareOpened,
		"incorrect\n":     "FE-K105",
		strings.Repeat("x", maxPassphraseBytes+1): "has more than 1024 bytes",
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteString(content); err != nil {
			t.Fatal(err)
		}
		w.Close()
		got := clitest.Fixture{Dir: dir}.Run(t.Context(), drillOf("age", "--passphrase-file", fmt.Sprintf("/dev/fd/%d", r.Fd()))...)
		r.Close()
		if got.Exit == 0 || !strings.Contains(got.Stderr, want) {
			t.Errorf("exit status %d, want %s:\n%s", got.Exit, want, got.Stderr)
		}
	}
}
