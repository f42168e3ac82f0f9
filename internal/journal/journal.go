// Package journal is where facts are kept: it appends to the ledger, reads
// current states, claims jobs, schedules wake-ups, leases work and fences
// projectors.
package journal
