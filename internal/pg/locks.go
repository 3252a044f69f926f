package pg

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
)

// LockID names an advisory lock in PostgreSQL's bigint space. All of memd's are
// listed here; the (int, int) space belongs to the fences. The highest sixteen
// bits are "md", then eight bits of purpose, then forty of tenant, so that
// pg_locks can be read by eye.
type LockID int64

const lockSpace LockID = 0x6d64 << 48

// The purposes, append-only.
const (
	// LockMigrate is held while the schema is changed.
	LockMigrate = lockSpace | 1<<40
	// LockRotate is held, per tenant, while its key tree is rotated.
	LockRotate = lockSpace | 3<<40
	// LockProvision is held, per tenant, while its keys are set up.
	LockProvision = lockSpace | 4<<40
	// LockErasure is held, per request, while an erasure is run.
	LockErasure = lockSpace | 6<<40
	// LockHolds is taken, per tenant, by whoever sets a hold, and shared by
	// whoever begins a step. The database takes it: memd.hold_lock.
	LockHolds = lockSpace | 7<<40
	// LockState is held, per user or app, by whoever writes its state, so that its
	// bound holds. The database takes it: memd.state_lock.
	LockState = lockSpace | 8<<40
	// LockSweep is held by the one process that sweeps expired rows.
	LockSweep = lockSpace | 5<<40
	// LockShip is held while facts are shipped to the ledgers, or the database is
	// compared with them.
	LockShip = lockSpace | 9<<40
	// LockRestore is held while a restore is under way.
	LockRestore = lockSpace | 10<<40
	// LockExport is held, per export, while its archive is made.
	LockExport = lockSpace | 11<<40
	// LockCompact is held by whoever compacts, on the connection that does.
	LockCompact = lockSpace | 12<<40
	// LockSketches is held by whoever builds sketches, on the connection that does.
	LockSketches = lockSpace | 13<<40
	// LockReembed is held, per tenant, while its rows are embedded anew.
	LockReembed = lockSpace | 14<<40
)

// ForTenant is the lock of this purpose for one tenant.
func (id LockID) ForTenant(t memd.TenantNo) LockID { return id | LockID(t)&(1<<40-1) }

// ForID is the lock of this purpose for one thing with a random id.
func (id LockID) ForID(u [16]byte) LockID {
	return id | LockID(binary.BigEndian.Uint64(u[8:]))&(1<<40-1)
}

// TryLock takes a session advisory lock when it is free and reports whether it
// did. The lock is held until Unlock or until the connection ends, whichever
// comes first, so a connection that goes back to a pool must be unlocked.
func TryLock(ctx context.Context, conn *pgx.Conn, id LockID) (bool, error) {
	var held bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(id)).Scan(&held); err != nil {
		return false, classify(ctx, fmt.Errorf("taking lock %x: %w", int64(id), err))
	}
	return held, nil
}

// Unlock gives up a session advisory lock, even when ctx has ended. When that
// does not work it closes the connection, which gives the lock up too.
func Unlock(ctx context.Context, conn *pgx.Conn, id LockID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	var held bool
	err := conn.QueryRow(ctx, `SELECT pg_advisory_unlock($1)`, int64(id)).Scan(&held)
	if err != nil {
		_ = conn.Close(ctx) // The error that counts is the one before it.
		return Classify(fmt.Errorf("giving up lock %x: %w", int64(id), err))
	}
	if !held {
		return fmt.Errorf("lock %x was not held", int64(id))
	}
	return nil
}
