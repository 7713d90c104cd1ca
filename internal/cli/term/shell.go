package term

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// CalledAs returns the name under which somebody can run this program again from
// where it was called: as it was typed, or alone where the PATH finds the same file.
func CalledAs(argv0, otherwise string) string {
	if argv0 == "" {
		return otherwise
	}
	if filepath.IsAbs(argv0) && found(filepath.Base(argv0), argv0) {
		argv0 = filepath.Base(argv0)
	}
	return ShellWord(argv0)
}

// ShellWord returns text as one word of a shell's command line.
func ShellWord(text string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' ||
			strings.ContainsRune("_./+@%:,=-", r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// found reports whether the PATH leads from name to file.
func found(name, file string) bool {
	path, err := exec.LookPath(name)
	if err != nil {
		return false
	}
	a, err := os.Stat(path)
	if err != nil {
		return false
	}
	b, err := os.Stat(file)
	return err == nil && os.SameFile(a, b)
}
