// Package tenants is the directory of tenants: who they are, which state of
// their life they are in, and what they decided about their memory.
//
// It owns the table memd.tenants. Making a tenant takes two processes: the
// server announces it in state Creating (Create), the worker makes its key and
// key tree and then activates it (Creating, Activate), and the server waits
// (WaitActive). A worker that dies in between leaves a tenant in Creating, which
// the next worker finds and finishes.
package tenants
