package erasure

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
)

// MaxFallen bounds Report.Fallen; FallenTotal counts all.
const MaxFallen = 1000

// PurgeAfter is how long after a key version was destroyed for good the
// provider may keep its material in backups of its own: 45 days, says
// cloud.google.com/kms/docs/destroy-restore.
const PurgeAfter = 45 * 24 * time.Hour

// Report tells what an erasure did. It names nobody who was forgotten.
type Report struct {
	Job
	Stores []StoreCount
	// Fallen are derived rows of others that had to go because of whom they
	// were drawn from, with the sources that remain: at most MaxFallen.
	Fallen      []FallenRow
	FallenTotal int64
	// Key is zero until the rotation is done, and when there was nobody's key
	// to destroy.
	Key Destruction
}

// StoreCount is how many things a store held before and holds after. After is
// -1 while it was not counted.
type StoreCount struct {
	Store         string
	Before, After int64
}

// FallenRow is a Fallen with its names. Scope is empty when its owner has been
// forgotten since.
type FallenRow struct {
	ID      uuid.UUID
	Scope   memd.Scope
	Kind    memory.Kind
	Sources []memory.Source
}

// Destruction says which KMS key version an erasure destroyed, and the three
// dates of "deleted": from Unreadable on nothing sealed under it can be read,
// at DestroyedForGood it cannot be restored any more, by Purged the provider has
// removed it from its own backups.
type Destruction struct {
	Epoch                                int64
	Version                              string
	Unreadable, DestroyedForGood, Purged time.Time
}

const sqlReadFallen = `
SELECT memory_id, owner_no, kind, sources, count(*) OVER () FROM memd.erasure_fallen
WHERE tenant_no = @tenant AND request_id = @id ORDER BY memory_id LIMIT @limit`

// ReadReport returns the report of an erasure as far as it got.
func ReadReport(ctx context.Context, db pg.DB, d *provenance.Directory, k provenance.Keys, id uuid.UUID) (Report, error) {
	var r Report
	var err error
	if r.Job, err = Read(ctx, db, k.Tenant(), id); err != nil {
		return r, err
	}
	steps, err := readSteps(ctx, db, k.Tenant(), id)
	if err != nil {
		return r, err
	}
	r.Stores = storeCounts(r.Job, steps)
	if rot := steps[StepRotate].Notes.Rotation; rot != nil {
		r.Key = Destruction{
			Epoch: rot.Epoch, Version: rot.OldVersion, Unreadable: rot.DestroyedAt,
			DestroyedForGood: rot.DestroyDue, Purged: rot.DestroyDue.Add(PurgeAfter),
		}
	}
	return r, readFallen(ctx, db, d, k, &r)
}

func storeCounts(j Job, steps map[Step]stepRow) []StoreCount {
	before, after := memory.Counts{}, memory.Counts{Memories: -1, Vectors: -1, Derived: -1}
	if n := steps[first(j.Kind)].Notes.Before; n != nil {
		before = *n
	}
	if n := steps[StepVerify].Notes.After; n != nil {
		after = *n
	}
	sessions := int64(-1)
	if v := steps[StepVerify]; v.Done {
		sessions = v.Notes.Sessions
	}
	return []StoreCount{
		{"memories", before.Memories, after.Memories},
		{"memories_derived", before.Derived, after.Derived},
		{"vectors", before.Vectors, after.Vectors},
		{"sessions", steps[StepBury].Notes.Sessions, sessions},
	}
}

func readFallen(ctx context.Context, db pg.DB, d *provenance.Directory, k provenance.Keys, r *Report) error {
	rows, err := db.Query(ctx, sqlReadFallen, pg.Args{"tenant": k.Tenant(), "id": r.ID, "limit": MaxFallen})
	if err != nil {
		return fmt.Errorf("reading fallen rows: %w", err)
	}
	var f memory.Fallen
	var sources []byte
	var fallen []memory.Fallen
	_, err = pgx.ForEachRow(rows, []any{&f.ID, &f.Owner, &f.Kind, &sources, &r.FallenTotal}, func() error {
		f.Sources = nil
		if err := json.Unmarshal(sources, &f.Sources); err != nil {
			return err
		}
		fallen = append(fallen, f)
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading fallen rows: %w", err)
	}
	var subjects []memd.Number
	var sessions []memd.Contribution
	for _, f := range fallen {
		subjects = append(subjects, f.Owner)
		for _, s := range f.Sources {
			if s.Memory == uuid.Nil {
				subjects = append(subjects, s.Session.Subject)
				sessions = append(sessions, s.Session)
			}
		}
	}
	scopes, err := d.Scopes(ctx, db, k, subjects)
	if err != nil {
		return err
	}
	ids, err := d.SessionIDs(ctx, db, k, sessions)
	if err != nil {
		return err
	}
	for _, f := range fallen {
		row := FallenRow{ID: f.ID, Scope: scopes[f.Owner], Kind: f.Kind}
		for _, s := range f.Sources {
			if s.Memory != uuid.Nil {
				row.Sources = append(row.Sources, memory.Source{MemoryID: s.Memory})
			} else if id, ok := ids[s.Session]; ok {
				row.Sources = append(row.Sources, memory.Source{UserID: scopes[s.Session.Subject].UserID, SessionID: id})
			}
		}
		r.Fallen = append(r.Fallen, row)
	}
	return nil
}
