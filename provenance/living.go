package provenance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlLiving = `
SELECT s.subject_no, s.user_ref, s.app, s.kind, s.sealed_user_id, s.admitted_at
FROM memd.subjects s JOIN memd.readable_subjects r ON r.tenant_no = s.tenant_no AND r.subject_no = s.subject_no
WHERE s.tenant_no = @tenant AND s.subject_no > @after AND s.subject_no <= @through AND (@ref::bytea IS NULL OR s.user_ref = @ref)
ORDER BY s.subject_no LIMIT @limit`

const sqlCountLiving = `
SELECT count(*) FROM memd.readable_subjects WHERE tenant_no = @tenant AND (@ref::bytea IS NULL OR user_ref = @ref)`

const sqlLivingSessions = `
SELECT session_no, sealed_id FROM memd.sessions WHERE tenant_no = @tenant AND subject_no = @subject AND state = 1`

// Subject is one living subject of the directory, by name.
type Subject struct {
	Known
	Scope      memd.Scope
	AdmittedAt time.Time
}

// Living returns up to limit subjects of a tenant that live and are not being
// erased, with a number above after and up to through; with a ref, that one alone.
func Living(ctx context.Context, db pg.DB, k Keys, ref *memd.Ref, after, through memd.Number, limit int) ([]Subject, error) {
	rows, err := db.Query(ctx, sqlLiving, pg.Args{
		"tenant": k.Tenant(), "ref": optionalRef(ref), "after": after, "through": through, "limit": limit,
	})
	if err != nil {
		return nil, fmt.Errorf("listing living subjects: %w", err)
	}
	var out []Subject
	var s Subject
	var digest, sealed []byte
	var kind int16
	_, err = pgx.ForEachRow(rows, []any{&s.Number, &digest, &s.Scope.App, &kind, &sealed, &s.AdmittedAt}, func() error {
		one := s
		one.Ref, one.AdmittedAt = memd.Ref(digest), s.AdmittedAt.UTC()
		if kind == kindUser {
			id, err := k.OpenUserID(s.Number, sealed)
			if errors.Is(err, memd.ErrShredded) {
				return nil // Erased since it was read.
			} else if err != nil {
				return err
			}
			one.Scope.UserID = id
		}
		out = append(out, one)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing living subjects: %w", err)
	}
	return out, nil
}

// CountLiving counts whom Living returns.
func CountLiving(ctx context.Context, db pg.DB, tenant memd.TenantNo, ref *memd.Ref) (n int64, err error) {
	if err := db.QueryRow(ctx, sqlCountLiving, pg.Args{"tenant": tenant, "ref": optionalRef(ref)}).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting living subjects: %w", err)
	}
	return n, nil
}

// LivingSessions returns the ids of a subject's sessions, by number.
func LivingSessions(ctx context.Context, db pg.DB, k Keys, subject memd.Number) (map[memd.Number]string, error) {
	rows, err := db.Query(ctx, sqlLivingSessions, pg.Args{"tenant": k.Tenant(), "subject": subject})
	if err != nil {
		return nil, fmt.Errorf("naming sessions: %w", err)
	}
	out := map[memd.Number]string{}
	var no memd.Number
	var sealed []byte
	_, err = pgx.ForEachRow(rows, []any{&no, &sealed}, func() error {
		id, err := k.OpenSessionID(subject, no, sealed)
		if errors.Is(err, memd.ErrShredded) {
			return nil
		}
		out[no] = id
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("naming sessions: %w", err)
	}
	return out, nil
}

func optionalRef(ref *memd.Ref) []byte {
	if ref == nil {
		return nil
	}
	return ref[:]
}
