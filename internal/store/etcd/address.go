package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/pki/pemfile"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
)

const (
	// Form is what a URL looks like.
	Form = "etcd://[USER@]HOST:PORT[,HOST:PORT…]/PREFIX"

	// PasswordVariable is the environment variable from which whoever opens a store
	// takes Options.Password. The engine itself reads no environment.
	PasswordVariable = "FEALTY_ETCD_PASSWORD"

	defaultPrefix = "/fealty"
	maxEndpoints  = 16
	maxPrefix     = 256
	maxSecretFile = 64 << 10
)

// AddressError says what is wrong with the URL of an etcd store, or with a file
// or a variable that it leads to. It shows nothing that could be a password.
type AddressError struct {
	Problem string // continues "the URL"
}

func (e *AddressError) Error() string {
	return "the URL of the etcd store " + e.Problem + ": want " + Form
}

func badAddress(format string, args ...any) error {
	return &AddressError{fmt.Sprintf(format, args...)}
}

// address is a URL in its parts.
type address struct {
	endpoints []string // HOST:PORT
	prefix    string   // begins and ends with a slash
	user      string

	plain          bool // no TLS
	ca, cert, key  string
	serverName     string
	passwordFile   string
	given          string // password, where there is no file
	compact        bool   // compact all of etcd
	onlyThisDevice bool   // all endpoints are this machine's

	socket bool   // the one endpoint is the path of a unix socket
	named  string // what the store is called; "": after its endpoints
}

// CheckURL returns an *[AddressError] if raw is not the URL of a store. It looks
// at the text alone: whether files and hosts are there shows in [Open].
func CheckURL(raw string) error {
	_, err := parse(raw)
	return err
}

func parse(raw string) (address, error) {
	var a address
	// By hand: several hosts with ports are no host to package url.
	rest, ok := strings.CutPrefix(raw, "etcd://")
	if !ok {
		return a, badAddress("does not begin with etcd://")
	}
	if strings.Contains(rest, "#") {
		return a, badAddress("holds a #")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if user, hosts, ok := cutLast(authority, "@"); ok {
		if strings.Contains(user, ":") {
			return a, badAddress("holds a password: name its file with password-file=FILE, or put it into %s",
				PasswordVariable)
		}
		name, err := url.PathUnescape(user)
		if err != nil || name == "" || strings.Contains(user, "@") {
			return a, badAddress("has a user that cannot be read " +
				"(the characters @ : / ? # %% stand in percent form, as in %%40)")
		}
		a.user, authority = name, hosts
	}
	a.onlyThisDevice = true
	for endpoint := range strings.SplitSeq(authority, ",") {
		host, port, err := net.SplitHostPort(endpoint)
		if err != nil || host == "" {
			return a, badAddress("has %q where a HOST:PORT should be", endpoint)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return a, badAddress("has %q where a port should be", port)
		}
		if slices.Contains(a.endpoints, endpoint) {
			return a, badAddress("names %s twice", endpoint)
		}
		a.endpoints = append(a.endpoints, endpoint)
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			a.onlyThisDevice = false
		}
	}
	if len(a.endpoints) > maxEndpoints {
		return a, badAddress("names %d endpoints, at most %d allowed", len(a.endpoints), maxEndpoints)
	}
	if path = strings.Trim(path, "/"); path == "" {
		path = strings.Trim(defaultPrefix, "/")
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || store.CheckKey(part) != nil || strings.ContainsAny(part, " %\\\"") {
			return a, badAddress("has a prefix that is not made of plain names between slashes")
		}
	}
	if a.prefix = "/" + path + "/"; len(a.prefix) > maxPrefix {
		return a, badAddress("has a prefix of %d bytes, at most %d allowed", len(a.prefix), maxPrefix)
	}
	return a, a.parameters(query)
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func (a *address) parameters(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return badAddress("has a query that cannot be read")
	}
	files := map[string]*string{"ca": &a.ca, "cert": &a.cert, "key": &a.key,
		"server-name": &a.serverName, "password-file": &a.passwordFile}
	for name, all := range values {
		if len(all) != 1 || all[0] == "" {
			return badAddress("wants one value for %q", name)
		}
		switch name {
		case "tls":
			if all[0] != "on" && all[0] != "off" {
				return badAddress("wants tls=on or tls=off")
			}
			a.plain = all[0] == "off"
		case "compaction":
			if all[0] != "none" && all[0] != "everything" {
				return badAddress("wants compaction=none or compaction=everything")
			}
			a.compact = all[0] == "everything"
		default:
			into := files[name]
			if into == nil {
				return badAddress("has a parameter that is not known here: " +
					"ca, cert, compaction, key, password-file, server-name and tls are")
			}
			*into = all[0]
		}
	}
	switch {
	case a.plain && (a.ca != "" || a.cert != "" || a.key != "" || a.serverName != ""):
		return badAddress("says tls=off, and names what TLS needs")
	case (a.cert == "") != (a.key == ""):
		return badAddress("names one of cert and key: a client certificate takes both")
	case a.passwordFile != "" && a.user == "":
		return badAddress("names the file of a password and no user")
	}
	return nil
}

// name names the store for people.
func (a *address) name() string {
	if a.named != "" {
		return a.named
	}
	return "etcd://" + strings.Join(a.endpoints, ",") + strings.TrimSuffix(a.prefix, "/")
}

// roots reads those that verify the servers; nil means the system's.
func (a *address) roots() (*x509.CertPool, error) {
	if a.ca == "" {
		return nil, nil
	}
	text, err := durable.OS().ReadFile(a.ca, maxPEMBytes)
	if err != nil {
		return nil, badAddress("names with ca= a file that cannot be read (%v)", err)
	}
	roots, _, err := pemfile.Certificates(text, pemLimits, pemfile.Nothing)
	if err != nil {
		return nil, badAddress("names with ca= the file %s, which cannot be used: %v", a.ca, err)
	}
	pool := x509.NewCertPool()
	for _, root := range roots {
		pool.AddCert(root)
	}
	return pool, nil
}

// certificates reads the client's, with its key; nil means none.
func (a *address) certificates() ([]tls.Certificate, error) {
	if a.cert == "" {
		return nil, nil
	}
	pair, err := keyPair(a.cert, a.key)
	if err != nil {
		return nil, badAddress("names with cert= and key= what cannot be used (%v)", err)
	}
	return []tls.Certificate{pair}, nil
}

// maxPEMBytes bounds a file of certificates or a key.
const maxPEMBytes = 512 << 10

var pemLimits = pemfile.Limits{Bytes: maxPEMBytes, Blocks: 256}

// keyPair reads a chain and its key.
func keyPair(cert, key string) (tls.Certificate, error) {
	chain, err := durable.OS().ReadFile(cert, maxPEMBytes)
	if err != nil {
		return tls.Certificate{}, err
	}
	private, err := durable.OS().ReadFile(key, maxPEMBytes)
	if err != nil {
		return tls.Certificate{}, err
	}
	defer clear(private)
	pair, ofKey, err := pemfile.KeyPair(chain, private, pemLimits)
	switch {
	case ofKey:
		return pair, fmt.Errorf("%s: %w", key, err)
	case err != nil:
		return pair, fmt.Errorf("%s: %w", cert, err)
	}
	return pair, nil
}

// password returns that of the user; "" if there is no user.
func (a *address) password() (string, error) {
	if a.user == "" {
		return "", nil
	}
	if a.passwordFile == "" {
		if a.given != "" {
			return a.given, nil
		}
		return "", badAddress("names a user, and there is no password: "+
			"name its file with password-file=FILE, or set %s",
			PasswordVariable)
	}
	text, err := durable.OS().ReadFile(a.passwordFile, maxSecretFile)
	if err != nil {
		return "", badAddress("names with password-file= a file that cannot be read (%v)", err)
	}
	p := strings.TrimRight(string(text), "\r\n")
	if p == "" {
		return "", badAddress("names with password-file= the file %s, which holds no password", a.passwordFile)
	}
	return p, nil
}

// loginCheck is what may be wrong where etcd does not let the user in.
const loginCheck = "user, password, client certificate, and the roles of the user"

// typed returns err with the type that says what to do about it.
func typed(err error) error {
	if refused, ok := errors.AsType[*certificateError](err); ok && refused.told {
		return &engine.LoginError{Problem: "it takes no connection with this client's certificate, or without one (" + refused.Error() + ")", Check: loginCheck}
	}
	switch st := status.Convert(err); {
	case isAnswer(err, errAuthFailed), isAnswer(err, errUserEmpty), isAnswer(err, errInvalidToken):
		return &engine.LoginError{Problem: st.Message(), Check: loginCheck}
	case isAnswer(err, errAuthNotEnabled):
		return &engine.ServerError{Problem: "has authentication switched off, and the URL names a user",
			Do: "enable it there, or leave the user out"}
	case isAnswer(err, errPermissionDenied):
		return &engine.LoginError{Problem: st.Message() + " (a store needs to read and write all keys under its prefix)", Check: loginCheck}
	case isAnswer(err, errTooManyOps):
		return &engine.ServerError{Problem: fmt.Sprintf("takes fewer than %d operations in a transaction", maxOps),
			Do: "set --max-txn-ops=128 there, which is etcd's default, or higher"}
	case isAnswer(err, errTooLarge),
		status.Code(err) == codes.ResourceExhausted && strings.Contains(st.Message(), "larger than max"):
		return &engine.ServerError{Problem: fmt.Sprintf("takes no requests of %d bytes", maxRequest+requestSlack),
			Do: "set --max-request-bytes=1572864 there, which is etcd's default, or higher"}
	case isAnswer(err, errCorrupt):
		return &engine.ServerError{Problem: "has found its data corrupt", Do: "see etcdctl alarm list, and restore the member"}
	case status.Code(err) == codes.Unimplemented:
		return &engine.ServerError{Problem: "does not speak etcd's API, version 3",
			Do: "name an etcd server, 3.4 or later, and its port for clients"}
	}
	return err
}
