package snapshot

import "github.com/fealty-io/fealty/internal/canonical"

// codec writes and reads one value.
type codec = canonical.Codec

// walker is a value with a canonical form.
type walker interface{ walk(*codec) }

// encode returns the canonical bytes of v.
func encode(v walker) ([]byte, error) {
	out, c := canonical.Write(v.walk)
	return out, c.Err()
}

// decode reads v from in, all of it. Strings in v share in's memory. The codec
// is returned for what it noticed on the way.
func decode(in string, v walker) (*codec, error) {
	c := canonical.NewReader(in)
	v.walk(c)
	return c, c.Finish()
}

// keyed is a record that stands under its name.
type keyed[T any] interface {
	*T
	walker
	key() *string
}

// dict is an object of at most limit records by name, in the order of the names.
func dict[T any, P keyed[T]](c *codec, v *[]T, limit int, valid func(string) bool) {
	canonical.Dict(c, v, limit, valid,
		func(record *T) *string { return P(record).key() },
		func(record *T, c *codec) { P(record).walk(c) })
}
