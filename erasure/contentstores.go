package erasure

import (
	"context"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/sessions"
)

// AllStores are all that memd itself keeps of what people said, in the order in
// which they are emptied.
func AllStores() []Store { return []Store{ArtifactStore{}, SessionStore{}, MemoryStore{}} }

// SessionStore is events and the state of sessions, users and apps.
type SessionStore struct{}

var (
	_ Store      = SessionStore{}
	_ rowDeleter = SessionStore{}
)

// Stage implements Store.
func (SessionStore) Stage() Stage { return StageContent }

func sessionCounts(c sessions.Counts) Counts {
	return Counts{
		"session_events": c.Events, "session_state": c.SessionState, "user_state": c.UserState, "app_state": c.AppState,
		storeHeads: c.Sessions,
	}
}

// storeHeads counts sessions that the session service keeps; the directory knows
// those besides that memory alone has heard of.
const storeHeads = "kept_sessions"

// Count implements Store.
func (SessionStore) Count(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution) (Counts, error) {
	c, err := sessions.Count(ctx, db, tenant, t)
	return sessionCounts(c), err
}

// DeleteBatch implements Store.
func (SessionStore) DeleteBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution, limit int) (int64, error) {
	return sessions.DeleteBatch(ctx, db, tenant, t, limit)
}

// CountTenant implements Store.
func (SessionStore) CountTenant(ctx context.Context, db pg.DB, tenant memd.TenantNo) (Counts, error) {
	c, err := sessions.CountTenant(ctx, db, tenant)
	return sessionCounts(c), err
}

// DeleteTenantBatch implements Store.
func (SessionStore) DeleteTenantBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, limit int) (int64, error) {
	return sessions.DeleteTenantBatch(ctx, db, tenant, limit)
}

// DeleteRow implements rowDeleter.
func (SessionStore) DeleteRow(ctx context.Context, db pg.DB, tenant memd.TenantNo, table, id string) (bool, error) {
	return sessions.DeleteRow(ctx, db, tenant, table, id)
}

// CountMonth implements Store.
func (SessionStore) CountMonth(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month) (Counts, error) {
	c, err := sessions.CountMonth(ctx, db, tenant, month)
	return sessionCounts(c), err
}

// DeleteMonthBatch implements Store.
func (SessionStore) DeleteMonthBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month, limit int) (int64, error) {
	return sessions.DeleteMonthBatch(ctx, db, tenant, month, limit)
}

// Months implements Store.
func (SessionStore) Months(ctx context.Context, db pg.DB, tenant memd.TenantNo, before memd.Month) ([]memd.MonthSize, error) {
	return sessions.Months(ctx, db, tenant, before)
}

// ArtifactStore is artifacts, all versions and their chunks.
type ArtifactStore struct{}

var (
	_ Store      = ArtifactStore{}
	_ purger     = ArtifactStore{}
	_ rowDeleter = ArtifactStore{}
)

// Stage implements Store.
func (ArtifactStore) Stage() Stage { return StageArtifacts }

func artifactCounts(c artifacts.Counts) Counts {
	return Counts{"artifacts": c.Artifacts, "artifact_versions": c.ArtifactVersions, "artifact_chunks": c.ArtifactChunks}
}

// Count implements Store.
func (ArtifactStore) Count(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution) (Counts, error) {
	c, err := artifacts.Count(ctx, db, tenant, t)
	return artifactCounts(c), err
}

// DeleteBatch implements Store.
func (ArtifactStore) DeleteBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, t []memd.Contribution, limit int) (int64, error) {
	return artifacts.DeleteBatch(ctx, db, tenant, t, limit)
}

// PurgeBatch implements purger.
func (ArtifactStore) PurgeBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, subjects []memd.Number, limit int) (int64, error) {
	return artifacts.PurgeBatch(ctx, db, tenant, subjects, limit)
}

// CountTenant implements Store.
func (ArtifactStore) CountTenant(ctx context.Context, db pg.DB, tenant memd.TenantNo) (Counts, error) {
	c, err := artifacts.CountTenant(ctx, db, tenant)
	return artifactCounts(c), err
}

// DeleteTenantBatch implements Store.
func (ArtifactStore) DeleteTenantBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, limit int) (int64, error) {
	return artifacts.DeleteTenantBatch(ctx, db, tenant, limit)
}

// DeleteRow implements rowDeleter.
func (ArtifactStore) DeleteRow(ctx context.Context, db pg.DB, tenant memd.TenantNo, table, id string) (bool, error) {
	return artifacts.DeleteRow(ctx, db, tenant, table, id)
}

// CountMonth implements Store.
func (ArtifactStore) CountMonth(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month) (Counts, error) {
	c, err := artifacts.CountMonth(ctx, db, tenant, month)
	return artifactCounts(c), err
}

// DeleteMonthBatch implements Store.
func (ArtifactStore) DeleteMonthBatch(ctx context.Context, db pg.DB, tenant memd.TenantNo, month memd.Month, limit int) (int64, error) {
	return artifacts.DeleteMonthBatch(ctx, db, tenant, month, limit)
}

// Months implements Store.
func (ArtifactStore) Months(ctx context.Context, db pg.DB, tenant memd.TenantNo, before memd.Month) ([]memd.MonthSize, error) {
	return artifacts.Months(ctx, db, tenant, before)
}
