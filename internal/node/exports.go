package node

import (
	"context"
	"fmt"

	"forgettable.dev/memd/export"
)

// openExports opens the place of archives, or returns nil when none is set.
func (c *Common) openExports(ctx context.Context, later func(func(context.Context) error)) (export.Store, error) {
	if c.Exports == "" {
		return nil, nil
	}
	store, err := export.OpenStore(ctx, c.Exports)
	if err != nil {
		return nil, fmt.Errorf("opening the place of exports: %w", err)
	}
	later(func(context.Context) error { return store.Close() })
	return store, nil
}
