//go:build unix

package cluster

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const defaultMaxConnections = 100

// configure writes the server's settings. They are written at every start, so
// that they are this binary's.
func (p place) configure(c Config) error {
	if c.MaxConnections == 0 {
		c.MaxConnections = defaultMaxConnections
	}
	settings := [][2]string{
		{"listen_addresses", ""}, // No network at all.
		{"unix_socket_directories", p.socket},
		{"unix_socket_permissions", "0700"},
		{"max_connections", fmt.Sprint(c.MaxConnections)},
		{"shared_buffers", "128MB"},
		{"wal_level", "replica"}, // Backups can be taken.
		{"timezone", "UTC"},
		{"log_timezone", "UTC"},
		{"jit", "off"}, // Never pays for queries of milliseconds.

		// What people said must not get into the log: no statement text, no
		// parameter, no DETAIL, which quotes the failing row, and no message of a
		// failed statement either, which quotes what it could not read ("log" is
		// above ERROR here). The caller is told the error; memd logs its code.
		{"logging_collector", "off"},
		{"log_destination", "stderr"},
		{"log_line_prefix", "%m [%p] "},
		{"log_min_messages", "log"},
		{"log_min_error_statement", "panic"},
		{"log_error_verbosity", "terse"},
		{"log_parameter_max_length", "0"},
		{"log_parameter_max_length_on_error", "0"},
		{"log_statement", "none"},
		{"log_min_duration_statement", "-1"},
	}
	if c.InsecureNoSync {
		settings = append(settings, [][2]string{
			{"fsync", "off"}, {"synchronous_commit", "off"}, {"full_page_writes", "off"},
		}...)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Settings)) {
		settings = append(settings, [2]string{name, c.Settings[name]})
	}
	var b strings.Builder
	b.WriteString("# Written by memd at every start.\n")
	for _, s := range settings {
		fmt.Fprintf(&b, "%s = '%s'\n", s[0], strings.ReplaceAll(s[1], "'", "''"))
	}
	file := filepath.Join(p.data, "postgresql.conf")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("writing the server's settings: %w", err)
	}
	if p.account != nil {
		if err := os.Chown(file, int(p.account.uid), int(p.account.gid)); err != nil {
			return fmt.Errorf("writing the server's settings: %w", err)
		}
	}
	return p.rotateLog()
}

// rotateLog keeps one older log.
func (p place) rotateLog() error {
	info, err := os.Stat(p.log)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() < maxLogBytes {
		return nil
	}
	if err == nil {
		err = os.Rename(p.log, p.log+".1")
	}
	if err != nil {
		return fmt.Errorf("rotating the server's log: %w", err)
	}
	return nil
}
