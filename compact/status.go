package compact

import (
	"context"
	"fmt"
	"time"

	"forgettable.dev/memd/internal/pg"
)

// Alive is for how long a worker that compacts counts as being there.
const Alive = 2 * time.Minute

// Status is where compaction stands.
type Status struct {
	Settings
	// Compactions are the newest, the newest first, each with its tables.
	Compactions []Compaction
	WAL         WAL
}

// WAL says what of the write-ahead log still holds the bytes that the last
// compaction took out of the tables. It had them written into it when the rows were
// made, and again when they were deleted.
type WAL struct {
	// Checkpointed: a checkpoint has passed since, so that the server no longer needs
	// the log from before. What it no longer needs it writes over, in its own time.
	Checkpointed bool
	// Slots counts replication slots that keep the log from before.
	Slots int64
	// Archived: the log is archived, and the archive keeps it for as long as it keeps
	// anything.
	Archived bool
}

const sqlWAL = `
SELECT coalesce((SELECT redo_lsn FROM pg_control_checkpoint()) >= @end::text::pg_lsn, false),
  (SELECT count(*) FROM pg_replication_slots WHERE restart_lsn < @end::text::pg_lsn), current_setting('archive_mode') <> 'off'`

// ReadStatus returns where compaction stands.
func ReadStatus(ctx context.Context, db pg.DB, limit int) (s Status, err error) {
	if s.Settings, err = ReadSettings(ctx, db); err != nil {
		return s, err
	}
	if s.Compactions, err = Last(ctx, db, limit); err != nil {
		return s, err
	}
	for i := range s.Compactions {
		c := &s.Compactions[i]
		if c.Tables, err = readTables(ctx, db, c.No); err != nil {
			return s, err
		}
	}
	for _, c := range s.Compactions {
		if c.WALEnd == "" {
			continue
		}
		if err := db.QueryRow(ctx, sqlWAL, pg.Args{"end": c.WALEnd}).Scan(&s.WAL.Checkpointed, &s.WAL.Slots, &s.WAL.Archived); err != nil {
			return s, fmt.Errorf("looking at the write-ahead log: %w", err)
		}
		break
	}
	return s, nil
}
