package main

import (
	"runtime/debug"

	"forgettable.dev/memd/memory"
)

// Settings of the garbage collector in a process that searches, unless GOGC or
// GOMEMLIMIT say otherwise.
const (
	// garbagePercent of what is in use may be garbage before it is collected.
	// Go's 100 has a process with little in use, which is every process until
	// many people have been searched for, collect with each scope that it loads:
	// a third of the time that loading takes.
	garbagePercent = 400
	// besides is what a process takes beside the scopes in memory, and what
	// garbage may always take.
	besides = 256 << 20
)

// tuneGarbage trades memory for time as long as there is memory: what a process
// full of resident bytes would take with Go's own setting is what it may take at
// most, and near that it collects as often as need be.
func tuneGarbage(getenv func(string) string, resident int64) {
	if getenv("GOGC") != "" || getenv("GOMEMLIMIT") != "" {
		return
	}
	if resident == 0 {
		resident = memory.DefaultMaxResidentBytes
	}
	debug.SetGCPercent(garbagePercent)
	debug.SetMemoryLimit(2*resident + besides)
}
