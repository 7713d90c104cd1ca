package attest

// Limit sets how many connections may be open, in all and of one user.
func (c *Callers) Limit(all, ofUser int) { c.most, c.mostOfUser = all, ofUser }

// Limits returns them.
func (c *Callers) Limits() (all, ofUser int) { return c.most, c.mostOfUser }
