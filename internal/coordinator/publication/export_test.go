package publication

// StoredAs reports whether p and another publication of the same headers store the same contents, and each header and
// content in the same way.
func (p *View) StoredAs(other *View) bool { return p.storesAs(other) }
