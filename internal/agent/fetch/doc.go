// Package fetch gets what is signed for a member from coordinators, mirrors and other members, and
// verifies each answer.
//
// Coordinators are asked first, one after the other, until one answers or decides about the member
// ([Coordinators]). Then come mirrors, and then other members, for what is not for this node alone.
// Every answer is verified in the same way: nothing is believed because of where it came from.
// Content is pulled exactly, by its signed size and hash. A source that fails is no news about the
// member, and the next one is asked.
//
// Most calls present the member's identity. Those that fetch changes of the root and links of the
// history are made without an identity on either side, since what they bring is signed
// ([Somewhere]).
package fetch
