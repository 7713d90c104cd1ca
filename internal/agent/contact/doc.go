// Package contact calls the coordinators that a member knows, one after the other, until
// one answers or decides about the member.
//
// Some calls present the member's identity. Others are made without an identity on either
// side, and bring what is signed: changes of root, and links of the history.
package contact
