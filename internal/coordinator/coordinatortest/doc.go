// Package coordinatortest runs real coordinators for tests of their rooms. A [Desk] has no loops
// and no listeners, its store and disk are in memory, and its time stands still. A [Fleet] serves
// on real listeners over a real store.
package coordinatortest
