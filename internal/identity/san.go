package identity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
)

// The alternatives of GeneralName that a leaf may use (RFC 5280 §4.2.1.6).
const (
	nameDNS = 2
	NameURI = 6
	nameIP  = 7
)

// AltNames returns the GeneralNames of c's subject alternative name extension, none if
// it has no such extension, and false if the extension is not a sequence of
// context-specific values.
func AltNames(c *x509.Certificate) ([]asn1.RawValue, bool) {
	ext := extensionOf(c, oidSubjectAltName)
	if ext == nil {
		return nil, true
	}
	var outer asn1.RawValue
	if rest, err := asn1.Unmarshal(ext.Value, &outer); err != nil || len(rest) != 0 ||
		outer.Class != asn1.ClassUniversal || outer.Tag != asn1.TagSequence || !outer.IsCompound {
		return nil, false
	}
	var names []asn1.RawValue
	for rest := outer.Bytes; len(rest) > 0; {
		var name asn1.RawValue
		var err error
		if rest, err = asn1.Unmarshal(rest, &name); err != nil || name.Class != asn1.ClassContextSpecific {
			return nil, false
		}
		names = append(names, name)
	}
	return names, true
}

// extensionOf returns the extension of c with this id, or nil. There is at most one: the
// parser refuses duplicates.
func extensionOf(c *x509.Certificate, id asn1.ObjectIdentifier) *pkix.Extension {
	for i := range c.Extensions {
		if c.Extensions[i].Id.Equal(id) {
			return &c.Extensions[i]
		}
	}
	return nil
}
