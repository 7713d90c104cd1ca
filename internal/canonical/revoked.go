package canonical

import "github.com/fealty-io/fealty/internal/snapshot"

const maxKind = 128 // bytes of a kind of what is revoked by name

// Revoked walks what is revoked by name, snapshot.Revoked. It is an optional member: it is there if the list is not
// empty, so that one content has one form.
func Revoked[T ~struct{ Kind, Name string }](c *Codec, v *[]T) {
	if !c.Has("revoked", len(*v) > 0) {
		return
	}
	c.Member("revoked")
	List(c, v, snapshot.MaxRevoked, func(c *Codec, r *T) {
		one := struct{ Kind, Name string }(*r)
		c.Begin()
		c.Member("kind")
		c.Text(&one.Kind, maxKind)
		c.Member("name")
		c.Text(&one.Name, snapshot.MaxRevokedName)
		c.End()
		*r = T(one)
	})
	if c.Err() == nil && len(*v) == 0 {
		c.Fail("revoked is empty: it is left out then")
	}
}
