package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/shred"
)

// Kind says whose data an export is of. As stored; append only.
type Kind int16

const (
	KindUnknown Kind = 0
	// KindTenant is made in state exporting, one at a time.
	KindTenant Kind = 1
	// KindUser is made in every state before the purge: the right of access.
	KindUser Kind = 2
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case KindTenant:
		return "tenant"
	case KindUser:
		return "user"
	}
	return fmt.Sprintf("Kind(%d)", int16(k))
}

// State is how far an export is. As stored; append only.
type State int16

const (
	StateUnknown State = 0
	// StateMaking: parts are written, or written anew.
	StateMaking State = 1
	// StateReady: it is whole, and links to it can be made.
	StateReady State = 2
	// StateEnded: its window is over, no link leads to it, and its files are being
	// deleted.
	StateEnded State = 3
	// StateDeleted: its files are gone, and were seen to be.
	StateDeleted State = 4
)

var stateNames = [...]string{"unknown", "making", "ready", "ended", "deleted"}

// String returns the state's name.
func (s State) String() string {
	if s >= 0 && int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", int16(s))
}

// Limits of an export.
const (
	// DefaultLife and MaxLife are how long an archive is kept.
	DefaultLife = 14 * 24 * time.Hour
	MaxLife     = 90 * 24 * time.Hour
	// MaxRecipients is how many keys one archive can be sealed to.
	MaxRecipients = 8
	// MaxOpen is how many archives of a tenant's users there are at once.
	MaxOpen = 100
)

// Export is one archive and how it fares.
type Export struct {
	Tenant     memd.TenantNo
	ID         uuid.UUID
	Kind       Kind
	User       *memd.Ref // of KindUser
	Recipients []string
	State      State
	By         uuid.UUID
	// ExpiresAt is when it is deleted at the latest.
	RequestedAt, ExpiresAt time.Time
	// Subjects is how many there are to write, Written how many are.
	Subjects, Written int64
	Counts            Counts
	Parts             int64
	Bytes             int64
	// Rebuilt is how many parts were made anew because of somebody who was erased.
	Rebuilt        int64
	ManifestSHA256 []byte // when ready
	ReadyAt        time.Time
	EndedAt        time.Time
	// EndReason is asked, expired, left, erased, purged or restored.
	EndReason string
	// FilesDeleted is how many files of it were deleted and seen to be gone.
	FilesDeleted int64
	DeletedAt    time.Time
	// Tries is how often making it failed since it last got on, and Failure why.
	Tries   int
	Failure string

	disturbed int64
	manifest  uuid.UUID
	size      int64
}

const sqlExports = `
SELECT e.export_id, e.kind, e.user_ref, e.recipients, e.state, coalesce(e.requested_by, '00000000-0000-0000-0000-000000000000'),
  e.requested_at, e.expires_at, e.subjects, e.disturbed, e.rebuilt, coalesce(e.manifest, '00000000-0000-0000-0000-000000000000'),
  e.manifest_sha256, coalesce(e.manifest_size, 0), e.ready_at, e.ended_at, e.end_reason, e.objects_deleted, e.deleted_at, e.tries, e.failure,
  p.n, p.bytes, p.subjects, p.sessions, p.events, p.state, p.artifacts, p.artifact_bytes, p.memories, p.unreadable
FROM memd.exports e CROSS JOIN LATERAL (
  SELECT count(*) AS n, coalesce(sum(x.size), 0)::bigint AS bytes,
    coalesce(sum((x.counts->>'subjects')::bigint), 0)::bigint AS subjects, coalesce(sum((x.counts->>'sessions')::bigint), 0)::bigint AS sessions,
    coalesce(sum((x.counts->>'events')::bigint), 0)::bigint AS events, coalesce(sum((x.counts->>'state')::bigint), 0)::bigint AS state,
    coalesce(sum((x.counts->>'artifacts')::bigint), 0)::bigint AS artifacts,
    coalesce(sum((x.counts->>'artifact_bytes')::bigint), 0)::bigint AS artifact_bytes,
    coalesce(sum((x.counts->>'memories')::bigint), 0)::bigint AS memories,
    coalesce(sum((x.counts->>'unreadable')::bigint), 0)::bigint AS unreadable
  FROM memd.export_parts x WHERE x.tenant_no = e.tenant_no AND x.export_id = e.export_id AND x.object IS NOT NULL) p
WHERE e.tenant_no = @tenant`

const sqlGet = sqlExports + ` AND e.export_id = @id`

const sqlList = sqlExports + ` ORDER BY e.requested_at DESC, e.export_id LIMIT @limit`

func scan(tenant memd.TenantNo) func(pgx.CollectableRow) (Export, error) {
	return func(row pgx.CollectableRow) (Export, error) {
		e := Export{Tenant: tenant}
		var ref []byte
		var ready, ended, deleted *time.Time
		c := &e.Counts
		err := row.Scan(&e.ID, &e.Kind, &ref, &e.Recipients, &e.State, &e.By, &e.RequestedAt, &e.ExpiresAt, &e.Subjects, &e.disturbed,
			&e.Rebuilt, &e.manifest, &e.ManifestSHA256, &e.size, &ready, &ended, &e.EndReason, &e.FilesDeleted, &deleted, &e.Tries, &e.Failure,
			&e.Parts, &e.Bytes, &c.Subjects, &c.Sessions, &c.Events, &c.State, &c.Artifacts, &c.ArtifactBytes, &c.Memories, &c.Unreadable)
		if len(ref) == len(memd.Ref{}) {
			r := memd.Ref(ref)
			e.User = &r
		}
		e.Written = c.Subjects
		e.RequestedAt, e.ExpiresAt = e.RequestedAt.UTC(), e.ExpiresAt.UTC()
		e.ReadyAt, e.EndedAt, e.DeletedAt = timeOf(ready), timeOf(ended), timeOf(deleted)
		return e, err
	}
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// Get returns an export of a tenant, or memd.ErrNotFound.
func Get(ctx context.Context, db pg.DB, tenant memd.TenantNo, id uuid.UUID) (Export, error) {
	rows, err := db.Query(ctx, sqlGet, pg.Args{"tenant": tenant, "id": id})
	var e Export
	if err == nil {
		e, err = pgx.CollectExactlyOneRow(rows, scan(tenant))
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return e, memd.ErrNotFound
	case err != nil:
		return e, fmt.Errorf("reading an export: %w", err)
	}
	return e, nil
}

// List returns a tenant's newest exports, the newest first, at most memd.MaxPageSize.
func List(ctx context.Context, db pg.DB, tenant memd.TenantNo) ([]Export, error) {
	rows, err := db.Query(ctx, sqlList, pg.Args{"tenant": tenant, "limit": memd.MaxPageSize})
	var all []Export
	if err == nil {
		all, err = pgx.CollectRows(rows, scan(tenant))
	}
	if err != nil {
		return nil, fmt.Errorf("listing exports: %w", err)
	}
	return all, nil
}

// Request asks for an export.
type Request struct {
	// ID makes it safe to repeat.
	ID uuid.UUID
	// Scope is the user whose data it is to be of; zero for the whole tenant.
	Scope memd.Scope
	// Recipients are age public keys, age1… or age1pq1…, not both kinds.
	Recipients []string
	// Life is how long the archive is kept, DefaultLife if zero.
	Life time.Duration
	By   uuid.UUID
}

const sqlStart = `SELECT memd.start_export(@tenant, @id, @kind, @ref, @recipients, @by, @now, @expires)`

const sqlCountOpen = `SELECT count(*) FROM memd.exports WHERE tenant_no = @tenant AND kind = 2 AND state < 4`

// Start has an archive made, by the worker. A user who is not known, or is being
// erased, is memd.ErrNotFound; a tenant that is not in the right state
// memd.ErrTenantInactive; a second archive of a tenant memd.ErrExists; another
// request under one id memd.ErrRequestReused. k is the tenant's keys.
func Start(ctx context.Context, db pg.DB, k *shred.Keys, now time.Time, r Request) (Export, error) {
	if err := r.validate(); err != nil {
		return Export{}, err
	}
	args := pg.Args{
		"tenant": k.Tenant(), "id": r.ID, "kind": KindTenant, "ref": nil, "recipients": r.Recipients, "by": r.By,
		"now": now, "expires": now.Add(r.Life),
	}
	var user *memd.Ref
	if r.Scope != (memd.Scope{}) {
		ref := provenance.RefOf(k, r.Scope)
		user, args["kind"], args["ref"] = &ref, KindUser, ref[:]
		n, err := provenance.CountLiving(ctx, db, k.Tenant(), user)
		if err != nil {
			return Export{}, err
		}
		if n == 0 {
			return Export{}, memd.ErrNotFound
		}
		var open int
		if err := db.QueryRow(ctx, sqlCountOpen, pg.Args{"tenant": k.Tenant()}).Scan(&open); err != nil {
			return Export{}, fmt.Errorf("counting exports: %w", err)
		}
		if open >= MaxOpen {
			return Export{}, &memd.InvalidError{Field: "export", Problem: fmt.Sprintf("would be one of more than %d: delete one first", MaxOpen)}
		}
	}
	if _, err := db.Exec(ctx, sqlStart, args); err != nil {
		var refused *pg.Error
		if errors.As(pg.Classify(err), &refused) && refused.Constraint == "exports_tenant" {
			return Export{}, fmt.Errorf("starting an export: %w", memd.ErrExists)
		}
		return Export{}, fmt.Errorf("starting an export: %w", err)
	}
	e, err := Get(ctx, db, k.Tenant(), r.ID)
	if err == nil && (!sameRef(e.User, user) || strings.Join(e.Recipients, " ") != strings.Join(r.Recipients, " ")) {
		return Export{}, memd.ErrRequestReused
	}
	return e, err
}

func sameRef(a, b *memd.Ref) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

func (r *Request) validate() error {
	switch {
	case r.ID == uuid.Nil:
		return &memd.InvalidError{Field: "export_id", Problem: "is required: a UUID of your own"}
	case (r.Scope.App == "") != (r.Scope.UserID == ""):
		return &memd.InvalidError{Field: "user_id", Problem: "and app belong together: without both the export is of the tenant"}
	case r.Life < 0 || r.Life > MaxLife:
		return &memd.InvalidError{Field: "life", Problem: fmt.Sprintf("must be at most %d days", MaxLife/(24*time.Hour))}
	case r.Life == 0:
		r.Life = DefaultLife
	}
	_, err := parseRecipients(r.Recipients)
	return err
}

// parseRecipients reads public keys, and sees whether age can seal to all of them
// at once.
func parseRecipients(keys []string) ([]age.Recipient, error) {
	bad := func(problem string) error { return &memd.InvalidError{Field: "recipients", Problem: problem} }
	if len(keys) == 0 || len(keys) > MaxRecipients {
		return nil, bad(fmt.Sprintf("are 1 to %d age public keys, age1… or age1pq1…", MaxRecipients))
	}
	var out []age.Recipient
	for _, k := range keys {
		var r age.Recipient
		var err error
		if strings.HasPrefix(k, "age1pq1") {
			r, err = age.ParseHybridRecipient(k)
		} else {
			r, err = age.ParseX25519Recipient(k)
		}
		if err != nil {
			return nil, bad("have one that is no age public key (age1… or age1pq1…)")
		}
		out = append(out, r)
	}
	w, err := age.Encrypt(io.Discard, out...)
	if err != nil {
		return nil, bad("cannot be used together: all must be post-quantum keys (age1pq1…), or none")
	}
	return out, w.Close()
}

const sqlEnd = `SELECT memd.end_export(@tenant, @id, @reason, @now)`

// End ends an export before its time: from its commit on no link leads to it, and
// the worker deletes its files. Safe to repeat.
func End(ctx context.Context, db pg.DB, tenant memd.TenantNo, id uuid.UUID, now time.Time) (Export, error) {
	if _, err := Get(ctx, db, tenant, id); err != nil {
		return Export{}, err
	}
	if _, err := db.Exec(ctx, sqlEnd, pg.Args{"tenant": tenant, "id": id, "reason": "asked", "now": now}); err != nil {
		return Export{}, fmt.Errorf("ending an export: %w", err)
	}
	return Get(ctx, db, tenant, id)
}
