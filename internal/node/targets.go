package node

import (
	"context"
	"fmt"

	"forgettable.dev/memd"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/shred"
)

// Targets is the installation's word on what purge targets may be. Server and
// worker must have the same: the server tests targets, and the worker calls them.
type Targets struct {
	// AllowPrivate admits targets at private and loopback addresses.
	AllowPrivate bool
	// LogDirs are the folders in which files may be targets.
	LogDirs []string
}

// openPurge makes the caller of purge targets of a process that has keys.
func (c *Common) openPurge(keys *shred.Keyring) (*purge.Caller, error) {
	caller, err := purge.NewCaller(purge.Config{
		Keys: func(ctx context.Context, tenant memd.TenantNo, use func(*shred.Keys) error) error {
			return keys.Do(ctx, tenant, 0, use)
		},
		AllowPrivate: c.Targets.AllowPrivate, LogDirs: c.Targets.LogDirs, OnCall: c.Metrics.purged, Clock: c.Clock,
	})
	if err != nil {
		return nil, fmt.Errorf("setting up purge targets: %w", err)
	}
	return caller, nil
}
