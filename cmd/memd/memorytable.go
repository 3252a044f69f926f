package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// idWidth is the length of a memory's id and the gap after it.
const idWidth = 36 + 2

// leastText is how much of a text is shown however narrow the terminal is.
const leastText = 20

// textColumn is the last column of a table of memories, which gets what the
// others leave of the terminal.
type textColumn struct {
	con  *console
	full bool
	used int // by the other columns
}

func (c textColumn) cell(m *memdv1.Memory) string {
	text := m.GetText()
	if text == "" {
		text = "(vector only)"
	}
	width := c.con.width()
	if width == 0 || c.full {
		return oneLine(text)
	}
	return shorten(text, max(width-c.used, leastText))
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
