package manifest

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// MaxIssuerBytes bounds the issuer of tokens: it stands in each of them.
const MaxIssuerBytes = 256

const (
	issuerLetters = "abcdefghijklmnopqrstuvwxyz0123456789"
	issuerSegment = issuerLetters + "ABCDEFGHIJKLMNOPQRSTUVWXYZ-._~" // unreserved (RFC 3986 §2.3)
)

// issuerFault says what is wrong with an issuer of tokens; "": nothing. It is a URL of scheme https
// without query and fragment (OpenID Connect Discovery 1.0 §3, RFC 8414 §2). Verifiers compare it
// byte by byte, so each is refused that has another spelling: an upper case host, an empty path, a
// slash at the end, an escape. Its path is that of files below a web server's root.
func issuerFault(s string) string {
	rest, secure := strings.CutPrefix(s, "https://")
	authority, path, deeper := strings.Cut(rest, "/")
	switch {
	case s == "":
		return "it is empty"
	case len(s) > MaxIssuerBytes:
		return fmt.Sprintf("it has %d bytes, at most %d are allowed", len(s), MaxIssuerBytes)
	case !secure:
		return "it does not begin with https://"
	case strings.Contains(s, "?"):
		return "it has a query"
	case strings.Contains(s, "#"):
		return "it has a fragment"
	case strings.Contains(authority, "@"):
		return "it names a user"
	}
	host, port, hasPort := authority, "", false
	if i := strings.LastIndexByte(authority, ':'); i > strings.LastIndexByte(authority, ']') {
		host, port, hasPort = authority[:i], authority[i+1:], true
	}
	if !isHost(host) {
		return "its host is no name in lower case, and no address"
	}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || port != strconv.FormatUint(n, 10) {
			return "its port is no number from 1 to 65535"
		}
	}
	if !deeper {
		return ""
	}
	for segment := range strings.SplitSeq(path, "/") {
		switch {
		case segment == "":
			return "its path has an empty segment, such as one after a slash at the end"
		case strings.Trim(segment, ".") == "":
			return "its path has a segment of dots"
		case strings.Trim(segment, issuerSegment) != "":
			return "its path has other characters than letters, digits and -._~"
		}
	}
	return ""
}

// isHost reports whether s is a host name (RFC 1123 §2.1) or an address, as they stand in a URL.
func isHost(s string) bool {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		a, err := netip.ParseAddr(inner)
		return ok && err == nil && a.Is6() && a.Zone() == "" && a.String() == inner
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Is4()
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, issuerLetters+"-") != "" {
			return false
		}
	}
	return len(s) <= 253
}
