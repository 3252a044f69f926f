package journal

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Position is how far a database has come, by its own word.
type Position struct {
	Installation uuid.UUID
	Generation   int64
	// Seq and Digest are those of the last record that it knows; zero and empty
	// before the first.
	Seq    int64
	Digest []byte
	// Known is the server on which database and ledger were last compared, and
	// Server the one that answers now.
	Known, Server string
	// Restores counts restores; Restoring says that one is under way or broke
	// off; Held that what cannot be undone waits for the operator's release.
	Restores        int64
	Restoring, Held bool
}

const sqlPosition = `
SELECT installation, generation, seq, digest, known, server, restores, restoring, held FROM memd.ledger_position()`

// ReadPosition asks a database.
func ReadPosition(ctx context.Context, db pg.DB) (Position, error) {
	var p Position
	err := db.QueryRow(ctx, sqlPosition).Scan(&p.Installation, &p.Generation, &p.Seq, &p.Digest, &p.Known, &p.Server,
		&p.Restores, &p.Restoring, &p.Held)
	if err != nil {
		return p, pg.Classify(fmt.Errorf("reading the position in the journal: %w", err))
	}
	if strings.Contains(p.Server, "/standby/") {
		return p, fmt.Errorf("the database is a standby: %w", memd.ErrDatabaseUnavailable)
	}
	return p, nil
}
