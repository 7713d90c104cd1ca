package publication

// StoredAs reports whether p and another publication store the same contents, each in the same way.
func (p *View) StoredAs(other *View) bool { return p.storesAs(other) }
