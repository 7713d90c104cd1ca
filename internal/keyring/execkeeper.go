package keyring

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
)

const (
	// ExecKeeperTimeout is how long the program of a keeper may take for one answer.
	ExecKeeperTimeout = 30 * time.Second

	// MaxWrappedKeyBytes bounds what the program of a keeper makes of a data key.
	MaxWrappedKeyBytes = 4 << 10

	// maxProgramWords bounds what of a program's standard error is read.
	maxProgramWords = 4 << 10
)

// ErrKeeperProgram is matched when the program of a keeper cannot be run, fails,
// or answers with what cannot be right.
var ErrKeeperProgram = errors.New("keeper's program cannot be used")

// ExecKeeper seals under a key that a program guards: one in a TPM, an HSM or a
// cloud. For each secret it makes a random data key of 32 bytes and seals the
// secret under it with the place; the program gets the data key alone. So a
// program that only encrypts is enough: that a secret is whole, and in its place,
// is checked here.
//
// The program is run without a shell as
//
//	PROGRAM seal    the data key on stdin, any 1 to [MaxWrappedKeyBytes] bytes on stdout
//	PROGRAM open    those bytes on stdin, the data key on stdout
//	PROGRAM id      nothing on stdin, the [KeyID] of its key and a line break on stdout
//
// and succeeds by the exit status 0. One that knows no id fails, or writes nothing:
// its key is called [ProgramKey] then, on every machine. Its environment is PATH=/usr/local/sbin:…:/bin,
// LANG=C, FEALTY_KEEPER_VERSION=1, and the place as FEALTY_KEEPER_CLUSTER, _PURPOSE
// (seed or mesh-ca), _OWNER, _SEED_EPOCH and _HEAD (hexadecimal; empty for a
// seed); its folder is /. It has [ExecKeeperTimeout]. Then it is killed. Processes that it started
// in its group are killed too, unless it succeeded.
//
// A sealed secret is
//
//	version (1 byte: 2) | n (2) | wrapped data key (n) | nonce (12) | AES-256-GCM ciphertext and tag
//
// with place, version and wrapped key as additional data.
type ExecKeeper struct {
	name    string
	timeout time.Duration
}

const sealedExecVersion = 2

// Name returns the path of the program.
func (k *ExecKeeper) Name() string { return k.name }

// KeyID implements [Keeper]: it is what the program prints, or [ProgramKey].
//
// Errors match [ErrKeeperProgram]: it cannot be run, or does not end.
func (k *ExecKeeper) KeyID(ctx context.Context, place Place) (KeyID, error) {
	if err := place.check(); err != nil {
		return "", err
	}
	out, err := k.run(ctx, "id", place, nil, maxProgramWords)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		return ProgramKey, nil
	case err != nil:
		return "", err
	}
	if id := KeyID(strings.TrimSuffix(string(out), "\n")); id.Valid() {
		return id, nil
	}
	return ProgramKey, nil
}

// MakeKey implements [Keeper]. It does nothing: a program has its key.
func (k *ExecKeeper) MakeKey(context.Context) (bool, error) { return false, nil }

// Seal implements [Keeper]. The program must open at once what it made of the data
// key: one that seals and cannot open would be found when the seed is lost.
//
// Errors match [ErrKeeperProgram], or say that place or plaintext is wrong.
func (k *ExecKeeper) Seal(ctx context.Context, place Place, plaintext []byte) ([]byte, error) {
	if err := place.check(); err != nil {
		return nil, err
	}
	if len(plaintext) > MaxPlaintextBytes {
		return nil, fmt.Errorf("keyring: a secret of %d bytes is too large to seal, the limit is %d", len(plaintext), MaxPlaintextBytes)
	}
	key := make([]byte, 32)
	rand.Read(key)
	defer Wipe(key)
	wrapped, err := k.run(ctx, "seal", place, key, MaxWrappedKeyBytes)
	if err != nil {
		return nil, err
	}
	if len(wrapped) == 0 {
		return nil, k.failed("seal", "it succeeded and wrote nothing")
	}
	if holds(wrapped, key) {
		return nil, k.failed("seal", "what it wrote holds the key that it was to encrypt")
	}
	again, err := k.run(ctx, "open", place, wrapped, len(key))
	if err != nil {
		return nil, err
	}
	defer Wipe(again)
	if subtle.ConstantTimeCompare(again, key) != 1 {
		return nil, k.failed("open", "it does not give back what it had sealed")
	}
	head := binary.BigEndian.AppendUint16([]byte{sealedExecVersion}, uint16(len(wrapped)))
	head = append(head, wrapped...)
	return newGCM(key).Seal(head, nil, plaintext, append(place.encode(), head...)), nil
}

// Open implements [Keeper]. Beyond its errors there are those that match
// [ErrKeeperProgram].
func (k *ExecKeeper) Open(ctx context.Context, place Place, sealed []byte) ([]byte, error) {
	if err := place.check(); err != nil {
		return nil, err
	}
	const fixed = 1 + 2
	if len(sealed) < fixed || sealed[0] != sealedExecVersion {
		return nil, fmt.Errorf("keyring: the secret was not sealed by the program of a keeper, or by a newer release: %w", ErrNotOpened)
	}
	end := fixed + int(binary.BigEndian.Uint16(sealed[1:fixed]))
	if end == fixed || end > fixed+MaxWrappedKeyBytes || len(sealed) < end+12+16 || len(sealed) > end+12+16+MaxPlaintextBytes {
		return nil, fmt.Errorf("keyring: %d bytes are no secret sealed by the program of a keeper: %w", len(sealed), ErrNotOpened)
	}
	head, body := sealed[:end], sealed[end:]
	key, err := k.run(ctx, "open", place, head[fixed:], 32)
	defer Wipe(key)
	switch {
	case err != nil:
		return nil, err
	case len(key) != 32:
		return nil, k.failed("open", fmt.Sprintf("it wrote %d bytes, and the key that it had sealed has 32", len(key)))
	}
	plaintext, err := newGCM(key).Open(nil, nil, body, append(place.encode(), head...))
	if err != nil {
		return nil, fmt.Errorf("keyring: the sealed %s of owner %q in cluster %q was damaged, forged, sealed for another place, or %s gave another key than it had sealed: %w", place.Purpose, place.Owner, place.Cluster, k.name, ErrNotOpened)
	}
	return plaintext, nil
}

// holds reports whether data shows key, as it is or in the usual spellings.
func holds(data, key []byte) bool {
	if bytes.Contains(data, key) {
		return true
	}
	// Up to what the length does to the last characters, which "=" or others follow.
	spelled := hex.AppendEncode(nil, key)
	defer Wipe(spelled)
	text := base64.StdEncoding.AppendEncode(nil, key[:30])
	defer Wipe(text)
	return bytes.Contains(bytes.ToLower(data), spelled) || bytes.Contains(data, text)
}

func (k *ExecKeeper) failed(verb, problem string) error {
	return fmt.Errorf("keyring: %s %s: %s: %w", k.name, verb, problem, ErrKeeperProgram)
}

// run runs the program and returns what it writes, at most limit bytes. The caller
// wipes it.
func (k *ExecKeeper) run(ctx context.Context, verb string, place Place, stdin []byte, limit int) ([]byte, error) {
	program, err := k.check()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, k.timeout, errProgramTime)
	defer cancel()
	answer := &boundedBuffer{data: make([]byte, 0, limit+1), full: cancel}
	words := &boundedBuffer{data: make([]byte, 0, maxProgramWords+1)}
	cmd := exec.CommandContext(ctx, program, verb)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C", "FEALTY_KEEPER_VERSION=1",
		"FEALTY_KEEPER_CLUSTER=" + place.Cluster, "FEALTY_KEEPER_PURPOSE=" + string(place.Purpose),
		"FEALTY_KEEPER_OWNER=" + place.Owner, "FEALTY_KEEPER_SEED_EPOCH=" + strconv.FormatUint(place.SeedEpoch, 10),
		"FEALTY_KEEPER_HEAD=" + headText(place.Head),
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), answer, words
	// A group of its own, so that what it started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// Processes that it left behind may hold its pipes open for ever.
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	if err == nil && !answer.over {
		return answer.data, nil
	}
	Wipe(answer.data[:cap(answer.data)])
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left behind
	}
	var exit *exec.ExitError
	switch {
	case answer.over:
		return nil, k.failed(verb, fmt.Sprintf("it wrote more than the %d bytes that are allowed", limit))
	case context.Cause(ctx) == errProgramTime:
		return nil, k.failed(verb, fmt.Sprintf("it did not end within %v, and was killed", k.timeout))
	case ctx.Err() != nil:
		return nil, fmt.Errorf("keyring: %s %s: %w", k.name, verb, ctx.Err())
	case errors.Is(err, exec.ErrWaitDelay):
		return nil, k.failed(verb, "it ended, and something that it started kept its output open")
	case errors.As(err, &exit):
		return nil, &programExit{k.failed(verb, fmt.Sprintf("it ended with %v%s", exit, firstLine(words.data))), exit}
	}
	return nil, fmt.Errorf("keyring: %s %s: %w: %w", k.name, verb, ErrKeeperProgram, err)
}

// programExit is an error whose text says already what exit says.
type programExit struct {
	error
	exit *exec.ExitError
}

func (e *programExit) Unwrap() []error { return []error{e.error, e.exit} }

var errProgramTime = errors.New("the program took too long")

// boundedBuffer keeps what fits into data without growing it, since growing
// leaves copies. Beyond that it calls full, if there is one, and drops.
type boundedBuffer struct {
	data []byte
	over bool
	full func()
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	room := min(cap(b.data)-1-len(b.data), len(p))
	b.data = append(b.data, p[:room]...)
	if room < len(p) && b.full != nil {
		b.over = true
		b.full()
	}
	return len(p), nil
}

// firstLine words what a program said, as far as it is one line to print.
func firstLine(words []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(words)), "\n")
	line = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, line)
	if line == "" {
		return ""
	}
	const most = 200
	if runes := []rune(line); len(runes) > most {
		line = string(runes[:most]) + "…"
	}
	return fmt.Sprintf(" and said %q", line)
}

// check returns the program's path without links, if nobody but root and this
// user can put another program there: who can gets the seed.
func (k *ExecKeeper) check() (string, error) {
	program, err := k.resolve()
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("keyring: %s is not there: install the program, or set a manifest with another keeper: %w: %w", k.name, ErrKeeperProgram, fs.ErrNotExist)
	}
	if err != nil {
		return "", err
	}
	info, err := os.Lstat(program)
	switch {
	case err != nil:
		return "", fmt.Errorf("keyring: %s: %w: %w", k.name, ErrKeeperProgram, err)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return "", fmt.Errorf("keyring: %s is no program: chmod 0755 it, if it is meant to be: %w", program, ErrKeeperProgram)
	}
	if problem := exposed(info); problem != "" {
		return "", fmt.Errorf("keyring: %s %s, who could put another program there: chown root:root and chmod 0755 it: %w", program, problem, ErrKeeperProgram)
	}
	return program, nil
}

// maxLinks is how many links may lead to a program, as on Linux.
const maxLinks = 40

// resolve follows the links to the program. Every folder and every link on the way
// is looked at, those between two links too.
func (k *ExecKeeper) resolve() (string, error) {
	at, rest := "/", k.name
	for links := 0; rest != ""; {
		info, err := os.Lstat(at)
		if err != nil {
			return "", fmt.Errorf("keyring: %s: %w: %w", k.name, ErrKeeperProgram, err)
		}
		if problem := exposed(info); problem != "" && info.IsDir() {
			return "", fmt.Errorf("keyring: the folder %s %s, who could put another program there: move the program to a folder of root's, such as /usr/local/bin: %w", at, problem, ErrKeeperProgram)
		}
		var next string
		next, rest, _ = strings.Cut(rest, "/")
		next = filepath.Join(at, next)
		if info, err = os.Lstat(next); err != nil {
			return "", fmt.Errorf("keyring: %s: %w: %w", k.name, ErrKeeperProgram, err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if problem := exposed(info); problem != "" {
			return "", fmt.Errorf("keyring: the link %s %s, who could have it lead to another program: chown -h root:root it: %w", next, problem, ErrKeeperProgram)
		}
		target, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return "", fmt.Errorf("keyring: %s: cannot follow the link %s, or too many lead on: %w", k.name, next, ErrKeeperProgram)
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = target + "/" + rest
	}
	return at, nil
}

// exposed says who else can change what info describes.
func exposed(info fs.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return "belongs to another user"
	case info.Mode()&fs.ModeSymlink != 0:
		return "" // its mode means nothing
	case info.IsDir() && info.Mode()&fs.ModeSticky != 0:
		return "" // nobody but its owner moves there what is another's
	case info.Mode().Perm()&0o002 != 0:
		return "can be written by everybody"
	case info.Mode().Perm()&0o020 != 0:
		return "can be written by its group"
	}
	return ""
}
