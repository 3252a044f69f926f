// Package cluster runs a private PostgreSQL for memd dev and for tests: its own
// data folder, a unix socket that only its owner can reach, no network.
//
// The server is a child of this process and does not outlive it: Close stops
// it, on Linux the kernel stops it when the process is killed, and elsewhere
// the next Start does. A lock on the folder keeps a second process out.
//
// PostgreSQL refuses to run as root, so that for root the server runs as
// another user (MEMD_PG_USER, or postgres). When that user cannot reach the
// folder, the data is kept in a folder of its own below /var/lib, and the given
// folder holds a link to it.
package cluster
