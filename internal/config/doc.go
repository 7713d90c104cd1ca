// Package config defines the desired configuration of a cluster: the records that operators put,
// from which snapshots are compiled.
//
// It consists of records of ten kinds. A record has a kind and a name, which are its
// [Key]; an organization, unless it is the whole cluster's; and fields of its kind.
// [Decode] reads records as people write them and explains all that is wrong with
// them at once, each problem with its line, its column and a way to mend it.
// [Encode] gives a record its one canonical form, and [DecodeCanonical] takes
// nothing but that.
//
// A [Set] is all records at one time. It never changes: [Set.With] makes another one,
// and only if every record in it is valid, everything that a record refers to is
// there, and nothing crosses from one organization to another. So whoever holds a
// Set can follow its references without asking whether they lead anywhere.
//
// No field takes a raw secret: a secret is a record that says where to ask for it.
// A value that looks like one elsewhere is refused, and never shown: FindSecret of package
// internal/snapshot looks for them, since nodes refuse them too.
//
// Package document reads the text and knows lines and columns; what a field of a kind may hold stands
// here (field.go, kinds.go).
//
// The package does no I/O and reads no clock.
package config
