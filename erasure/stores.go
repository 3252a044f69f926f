package erasure

import (
	"context"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
)

// Counts are numbers of things by their names, for example "memories". Each
// store has names of its own.
type Counts map[string]int64

// total is how many things there are in all.
func (c Counts) total() int64 {
	var n int64
	for _, v := range c {
		n += v
	}
	return n
}

func (c Counts) add(more Counts) {
	for k, v := range more {
		c[k] += v
	}
}

// Stage says when a store is emptied.
type Stage int16

// The stages, in their order: artifacts go while their session still lists them,
// and what was drawn from sessions goes last.
const (
	StageArtifacts Stage = 1
	StageContent   Stage = 2
	StageMemory    Stage = 3
)

// Store is one place where memd itself keeps what people said. A target with
// session 0 is all of a subject: every session and the own scope. All methods
// ask and change the tables directly, as the worker; deleting what is gone
// succeeds.
type Store interface {
	Stage() Stage
	Count(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution) (Counts, error)
	// DeleteBatch deletes up to about limit rows and returns how many; it is
	// repeated until there are none. An empty target deletes nothing.
	DeleteBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution, limit int) (int64, error)
	CountTenant(ctx context.Context, db pg.DB, tenant memd.TenantNo) (Counts, error)
	DeleteTenantBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, limit int) (int64, error)
	// CountMonth and DeleteMonthBatch are of the class that the stage belongs to.
	CountMonth(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month) (Counts, error)
	DeleteMonthBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month, limit int) (int64, error)
	// Months measures the months before one.
	Months(ctx context.Context, db pg.DB, tenant memd.TenantNo, before memd.Month) ([]memd.MonthSize, error)
}

// class returns the class of which a stage empties the stores.
func (s Stage) class() memd.Class {
	if s == StageMemory {
		return memd.ClassMemory
	}
	return memd.ClassContent
}

// deriver is a store with derived rows: what falls because of its sources is
// recorded, so that it can be derived again.
type deriver interface {
	DeleteFalling(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution, limit int) (int64, []memory.Fallen, error)
}

// purger is a store with a cheaper way to empty whole subjects, for a tenant that
// is being purged.
type purger interface {
	PurgeBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, subjects []memd.Number, limit int) (int64, error)
}

// MemoryStore is the memories, their vectors and what was derived.
type MemoryStore struct{}

var (
	_ Store      = MemoryStore{}
	_ deriver    = MemoryStore{}
	_ rowDeleter = MemoryStore{}
)

// Stage implements Store.
func (MemoryStore) Stage() Stage { return StageMemory }

func memoryCounts(c memory.Counts) Counts {
	return Counts{"memories": c.Memories, "vectors": c.Vectors, "memories_derived": c.Derived}
}

// Count implements Store.
func (MemoryStore) Count(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution) (Counts, error) {
	c, err := memory.Count(ctx, db, tenant, t)
	return memoryCounts(c), err
}

// DeleteBatch implements Store.
func (MemoryStore) DeleteBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution, limit int) (int64, error) {
	n, _, err := memory.DeleteBatch(ctx, db, tenant, t, limit)
	return n, err
}

// DeleteFalling implements deriver.
func (MemoryStore) DeleteFalling(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution, limit int) (int64, []memory.Fallen, error) {
	return memory.DeleteBatch(ctx, db, tenant, t, limit)
}

// CountTenant implements Store.
func (MemoryStore) CountTenant(ctx context.Context, db pg.DB, tenant memd.TenantNo) (Counts, error) {
	c, err := memory.CountTenant(ctx, db, tenant)
	return memoryCounts(c), err
}

// DeleteTenantBatch implements Store.
func (MemoryStore) DeleteTenantBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, limit int) (int64, error) {
	return memory.DeleteTenantBatch(ctx, db, tenant, limit)
}

// DeleteRow implements rowDeleter.
func (MemoryStore) DeleteRow(ctx context.Context, db pg.DB, tenant memd.TenantNo, table, id string) (bool, error) {
	if table != "memories" {
		return false, nil
	}
	return true, memory.DeleteRow(ctx, db, tenant, id)
}

// CountMonth implements Store.
func (MemoryStore) CountMonth(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month) (Counts, error) {
	c, err := memory.CountMonth(ctx, db, tenant, month)
	return memoryCounts(c), err
}

// DeleteMonthBatch implements Store.
func (MemoryStore) DeleteMonthBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month, limit int) (int64, error) {
	return memory.DeleteMonthBatch(ctx, db, tenant, month, limit)
}

// Months implements Store.
func (MemoryStore) Months(ctx context.Context, db pg.DB, tenant memd.TenantNo, before memd.Month) ([]memd.MonthSize, error) {
	return memory.Months(ctx, db, tenant, before)
}

// reaches reports whether the erasure empties the stores of a stage.
func (j Job) reaches(s Stage) bool {
	switch j.Kind {
	case KindContent:
		return s != StageMemory // What memory drew from the session stays.
	case KindMonth:
		return s.class() == j.Class
	}
	return true
}

// countAll counts a target in the stores of the kind.
func countAll(ctx context.Context, db pg.DB, stores []Store, j Job, t []memd.Contribution) (Counts, error) {
	all := Counts{}
	for _, s := range stores {
		if !j.reaches(s.Stage()) {
			continue
		}
		var c Counts
		var err error
		switch j.Kind {
		case KindTenant:
			c, err = s.CountTenant(ctx, db, j.Tenant)
		case KindMonth:
			c, err = s.CountMonth(ctx, db, j.Tenant, j.Month)
		default:
			c, err = s.Count(ctx, db, j.Tenant, t)
		}
		if err != nil {
			return nil, err
		}
		all.add(c)
	}
	return all, nil
}
