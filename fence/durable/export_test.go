// Inside the package: tests cut the power of a disk in memory, and the type of that is
// internal, so that no public name may show it.
package durable

// Functions that end in On are on a disk of a test, OpenTermOn with true is [EnrolTerm];
// EncodeEpoch makes a file of a life that takes long to reach.
var (
	OpenEpochOn  = openEpoch
	EnrolEpochOn = enrolEpoch
	OpenTermOn   = openTerm
	EncodeEpoch  = encodeEpoch
)
