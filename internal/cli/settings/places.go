package settings

import (
	"errors"
	"regexp"
	"strings"

	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/postgres"
)

// How the addresses of stores begin that are no PostgreSQL.
const (
	SqliteScheme = "sqlite:"
	EtcdScheme   = "etcd:"

	// EmbeddedStore is the address of the store that a coordinator brings along, in its data folder; EmbeddedScheme
	// begins that of one in a folder of its own.
	EmbeddedStore  = "embedded"
	EmbeddedScheme = "embedded:"
)

// EmbeddedFolder returns the folder that the address of an embedded store names, or "" for the one in the data folder;
// false if it is that of another store.
func EmbeddedFolder(text string) (folder string, ok bool) {
	if text == EmbeddedStore {
		return "", true
	}
	return strings.CutPrefix(text, EmbeddedScheme)
}

// CheckStore says what is wrong with the address of a store, or "".
func CheckStore(text string) string {
	if path, ok := strings.CutPrefix(text, SqliteScheme); ok {
		if path == "" {
			return "it names no file"
		}
		return ""
	}
	if folder, ok := EmbeddedFolder(text); ok {
		if folder == "" && text != EmbeddedStore {
			return "it names no folder"
		}
		return ""
	}
	if strings.HasPrefix(text, EtcdScheme) {
		if e, ok := errors.AsType[*etcd.AddressError](etcd.CheckURL(text)); ok {
			return "the URL " + e.Problem
		}
		return ""
	}
	scheme, _, _ := strings.Cut(text, ":")
	if scheme != "postgres" && scheme != "postgresql" {
		if strings.Contains(text, "dbname=") || strings.Contains(text, "host=") {
			return "a database is named by a URL here, not by keywords"
		}
		return "this release knows the stores sqlite, postgres, etcd and embedded"
	}
	if e, ok := errors.AsType[*postgres.AddressError](postgres.CheckURL(text)); ok {
		return "the URL " + e.Problem
	}
	return ""
}

// ShownStore is the address of a store without passwords.
func ShownStore(text string) string {
	if strings.HasPrefix(text, SqliteScheme) || strings.HasPrefix(text, EmbeddedScheme) || !strings.ContainsAny(text, ":=@") {
		return text
	}
	if strings.HasPrefix(text, EtcdScheme) && etcd.CheckURL(text) == nil {
		return text // no password stands in one
	}
	if shown := postgres.HidePassword(text); shown != hidden {
		return shown
	}
	// What is no URL of a store: its scheme says which one was meant, and the rest may hold a password.
	if scheme, _, ok := strings.Cut(text, ":"); ok && schemeForm.MatchString(scheme) {
		return scheme + ":" + hidden
	}
	return "the text given, which is not shown as it may hold a password"
}

// hidden stands for what is not shown.
const hidden = "…"

// schemeForm is a scheme (RFC 3986, section 3.1).
var schemeForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`)

// CheckMirror says what is wrong with the place of a mirror, or "".
func CheckMirror(text string) string {
	if IsURL(text) {
		if problem := mirror.CheckURL(text); problem != "" {
			return command.ShownArg(text) + ": " + problem
		}
		return ""
	}
	if text == "" {
		return "one of them is blank"
	}
	return ""
}

// IsURL tells a URL from a path, and a mistyped URL too.
func IsURL(text string) bool { return strings.Contains(text, "://") }
