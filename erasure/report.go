package erasure

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/purge"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
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
	// Found is what the second sweep found and deleted: nothing, unless somebody
	// wrote past the guard. Nil before.
	Found Counts
	Steps []StepReport
	// Strangers, of a tenant, had something although the directory did not know
	// them: they came by a way past admission, and were purged too.
	Strangers []tenants.Stranger
	// Checks are the verifier's, of the last time that it looked.
	Checks []memd.Check
	// Acks are what the purge targets answered.
	Acks []purge.Ack
	// Fallen are derived rows of others that had to go because of whom they
	// were drawn from, with the sources that remain: at most MaxFallen.
	Fallen      []FallenRow
	FallenTotal int64
	// Salt opens the commitment of the receipts: it proves to whoever holds it
	// whom they are about. Only who asks for the erasure is given it, and only
	// until the erasure is final. Zero otherwise.
	Salt receipts.Salt
	// Key is zero until the rotation is done, and when there was nobody's key
	// to destroy.
	Key Destruction
}

// StepReport says where a step stands.
type StepReport struct {
	Step              Step
	Done              bool
	Started, Finished time.Time
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

// Report returns the report of an erasure of the caller's tenant as far as it
// got, or memd.ErrNotFound.
func (s *Service) Report(ctx context.Context, c Caller, id uuid.UUID) (Report, error) {
	var r Report
	var fallen []memory.Fallen
	err := s.Pool.With(ctx, func(db pg.DB) (err error) {
		if r, err = readReport(ctx, db, c.Tenant, id); err == nil {
			fallen, r.FallenTotal, err = readFallen(ctx, db, r.Job)
		}
		return err
	})
	if err != nil || len(fallen) == 0 || r.Kind == KindTenant {
		return r, err // A purged tenant has no keys to read a name with.
	}
	return r, s.withKeys(ctx, c, func(k *shred.Keys) error {
		r.Fallen = nil
		return s.Pool.With(ctx, func(db pg.DB) error { return nameFallen(ctx, db, s.Directory, k, fallen, &r) })
	})
}

func readReport(ctx context.Context, db pg.DB, tenant memd.TenantNo, id uuid.UUID) (Report, error) {
	var r Report
	var err error
	if r.Job, err = Read(ctx, db, tenant, id); err != nil {
		return r, err
	}
	steps, err := readSteps(ctx, db, tenant, id)
	if err != nil {
		return r, err
	}
	r.Stores, r.Key, r.Found = storeCounts(r.Job, steps), destructionOf(steps), steps[StepSweep].Notes.Found
	r.Strangers = steps[StepPurge].Notes.Strangers
	for _, s := range r.Kind.Steps() {
		n, ok := steps[s]
		if !ok {
			continue
		}
		r.Steps = append(r.Steps, StepReport{Step: s, Done: n.Done, Started: n.Started, Finished: timeOf(n.Finished)})
		if s == StepVerify || s == StepCheck || s == StepRecheck {
			r.Checks = n.Notes.Checks // The last ones count.
		}
	}
	r.Acks, err = purge.Acks(ctx, db, tenant, id)
	return r, err
}

func destructionOf(steps map[Step]stepRow) Destruction {
	for _, s := range []Step{StepRotate, StepDestroy} {
		if rot := steps[s].Notes.Rotation; rot != nil {
			return Destruction{
				Epoch: rot.Epoch, Version: rot.OldVersion, Unreadable: rot.DestroyedAt,
				DestroyedForGood: rot.DestroyDue, Purged: rot.DestroyDue.Add(PurgeAfter),
			}
		}
	}
	return Destruction{}
}

func storeCounts(j Job, steps map[Step]stepRow) []StoreCount {
	before, after := steps[j.Kind.first()].Notes.Before, steps[StepVerify].Notes.After
	if before == nil {
		before = Counts{"memories": 0, "memories_derived": 0, "vectors": 0}
	}
	var out []StoreCount
	for _, name := range before.Stores() {
		c := StoreCount{Store: name, Before: before[name], After: -1}
		if after != nil {
			c.After = after[name]
		}
		out = append(out, c)
	}
	// Memories first, because they are what most people have.
	slices.SortStableFunc(out, func(a, b StoreCount) int { return cmp.Compare(rankOf(a.Store), rankOf(b.Store)) })
	exports, _ := exportsOf(steps)
	out = append(out, exports...)
	if j.Kind == KindUser || j.Kind == KindSession {
		sessions := int64(-1)
		if v := steps[StepVerify]; v.Done {
			sessions = v.Notes.Sessions
		}
		out = append(out, StoreCount{"sessions", steps[StepBury].Notes.Sessions, sessions})
	}
	return out
}

func rankOf(store string) int {
	if i := slices.Index([]string{"memories", "memories_derived", "vectors"}, store); i >= 0 {
		return i
	}
	return 3
}

func readFallen(ctx context.Context, db pg.DB, j Job) (fallen []memory.Fallen, total int64, err error) {
	rows, err := db.Query(ctx, sqlReadFallen, pg.Args{"tenant": j.Tenant, "id": j.ID, "limit": MaxFallen})
	if err != nil {
		return nil, 0, fmt.Errorf("reading fallen rows: %w", err)
	}
	var f memory.Fallen
	var sources []byte
	_, err = pgx.ForEachRow(rows, []any{&f.ID, &f.Owner, &f.Kind, &sources, &total}, func() error {
		f.Sources = nil
		if err := json.Unmarshal(sources, &f.Sources); err != nil {
			return err
		}
		fallen = append(fallen, f)
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("reading fallen rows: %w", err)
	}
	return fallen, total, nil
}

// nameFallen gives the fallen rows and their sources the names of now.
func nameFallen(ctx context.Context, db pg.DB, d *provenance.Directory, k provenance.Keys, fallen []memory.Fallen, r *Report) error {
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
