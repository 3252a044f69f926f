package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// memoryText is a memory's text, for the last column of a table.
func memoryText(m *memdv1.Memory) string {
	if m.GetText() == "" {
		return "(vector only)"
	}
	return m.GetText()
}

// fitMemories cuts the texts of a table of memories to the terminal.
func fitMemories(t *table, con *console, full bool) {
	if !full {
		t.fit(con.width())
	}
}

// printMemory shows all of one memory, a field a line.
func printMemory(con *console, m *memdv1.Memory) error {
	t := newTable(con.Stdout)
	t.row("memory", m.GetMemoryId())
	t.row("version", fmt.Sprint(m.GetVersion()))
	t.row("scope", scopeName(m.GetScope()))
	t.row("kind", kindName(m.GetKind()))
	t.row("spoken", formatTime(m.GetSourceTime()))
	t.row("stored", formatTime(m.GetCreatedAt()))
	t.row("changed", formatTime(m.GetUpdatedAt()))
	t.row("expires", formatTime(m.GetExpiresAt()))
	t.row("sessions", orDash(strings.Join(m.GetSessionIds(), " ")))
	t.row("contributions", fmt.Sprint(m.GetContributionCount()))
	for _, k := range slices.Sorted(maps.Keys(m.GetMetadata())) {
		t.row("metadata "+k, m.GetMetadata()[k])
	}
	t.row("text", orDash(m.GetText()))
	return t.close()
}
