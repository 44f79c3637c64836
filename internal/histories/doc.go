// Package histories has no code of its own. Its test records every command by
// which attempts take, extend, use and give back a lease, while replies are lost,
// processes freeze, locks are evicted and Redis restarts, and asks whether some
// order of those commands explains all the answers: linearizability, with respect
// to a register of holder, token and snapshot that one program could hold.
//
// The same test must refuse leases that are broken on purpose.
package histories
