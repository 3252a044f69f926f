package export

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// DefaultLinkLife and MaxLinkLife are how long a link leads to its archive. It
// never outlives the archive.
const (
	DefaultLinkLife = 24 * time.Hour
	MaxLinkLife     = 7 * 24 * time.Hour
)

// secretBytes of randomness make a link.
const secretBytes = 32

// Link is a way to an archive, without its secret.
type Link struct {
	ID, Export           uuid.UUID
	By                   uuid.UUID
	CreatedAt, ExpiresAt time.Time
	RevokedAt            time.Time
	// Uses is how often it was followed, each request of a download counted.
	Uses       int64
	LastUsedAt time.Time
}

const sqlMakeLink = `SELECT memd.make_link(@tenant, @export, @id, @secret, @by, @now, @expires)`

// MakeLink makes a link to a ready archive that ends after life (DefaultLinkLife if
// zero), and returns its secret, which is nowhere else. An archive that is not
// ready is memd.ErrExportNotReady.
func MakeLink(ctx context.Context, db pg.DB, tenant memd.TenantNo, export uuid.UUID, by uuid.UUID, now time.Time, life time.Duration) (Link, string, error) {
	if life == 0 {
		life = DefaultLinkLife
	}
	if life < time.Minute || life > MaxLinkLife {
		return Link{}, "", &memd.InvalidError{Field: "life", Problem: fmt.Sprintf("must be a minute to %d hours", MaxLinkLife/time.Hour)}
	}
	if _, err := Get(ctx, db, tenant, export); err != nil {
		return Link{}, "", err
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return Link{}, "", fmt.Errorf("naming a link: %w", err)
	}
	random := make([]byte, secretBytes)
	_, _ = rand.Read(random) // It never fails.
	secret := base64.RawURLEncoding.EncodeToString(random)
	digest := sha256.Sum256([]byte(secret))
	_, err = db.Exec(ctx, sqlMakeLink, pg.Args{
		"tenant": tenant, "export": export, "id": id, "secret": digest[:], "by": by, "now": now, "expires": now.Add(life),
	})
	if err != nil {
		return Link{}, "", fmt.Errorf("making a link: %w", err)
	}
	links, err := Links(ctx, db, tenant, export)
	for _, l := range links {
		if l.ID == id {
			return l, secret, err
		}
	}
	return Link{}, "", errors.Join(memd.ErrNotFound, err)
}

const sqlLinks = `
SELECT link_id, export_id, coalesce(created_by, '00000000-0000-0000-0000-000000000000'), created_at, expires_at, revoked_at, uses, last_used_at
FROM memd.export_links WHERE tenant_no = @tenant AND export_id = @export ORDER BY created_at DESC, link_id LIMIT @limit`

// Links returns the newest links to an archive, at most memd.MaxPageSize.
func Links(ctx context.Context, db pg.DB, tenant memd.TenantNo, export uuid.UUID) ([]Link, error) {
	rows, err := db.Query(ctx, sqlLinks, pg.Args{"tenant": tenant, "export": export, "limit": memd.MaxPageSize})
	var all []Link
	if err == nil {
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Link, err error) {
			var revoked, used *time.Time
			err = row.Scan(&l.ID, &l.Export, &l.By, &l.CreatedAt, &l.ExpiresAt, &revoked, &l.Uses, &used)
			l.CreatedAt, l.ExpiresAt, l.RevokedAt, l.LastUsedAt = l.CreatedAt.UTC(), l.ExpiresAt.UTC(), timeOf(revoked), timeOf(used)
			return l, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	return all, nil
}

const sqlRevokeLink = `SELECT memd.revoke_link(@tenant, @id, @now)`

// RevokeLink takes a link back, also under a download: no further file is begun.
// Safe to repeat.
func RevokeLink(ctx context.Context, db pg.DB, tenant memd.TenantNo, id uuid.UUID, now time.Time) error {
	var found bool
	if err := db.QueryRow(ctx, sqlRevokeLink, pg.Args{"tenant": tenant, "id": id, "now": now}).Scan(&found); err != nil {
		return fmt.Errorf("revoking a link: %w", err)
	}
	if !found {
		return memd.ErrNotFound
	}
	return nil
}

const sqlFollow = `SELECT tenant_no, export_id, link_id FROM memd.follow_link(@secret, @now, @count)`

// Followed is where a link leads.
type Followed struct {
	Tenant       memd.TenantNo
	Export, Link uuid.UUID
}

// Follow says where a secret leads, and counts the use if asked. One that was
// guessed, revoked or has expired, and one whose archive has ended or is being made
// anew, is memd.ErrNotFound, all alike.
func Follow(ctx context.Context, db pg.DB, secret string, now time.Time, count bool) (Followed, error) {
	var f Followed
	digest := sha256.Sum256([]byte(secret))
	err := db.QueryRow(ctx, sqlFollow, pg.Args{"secret": digest[:], "now": now, "count": count}).Scan(&f.Tenant, &f.Export, &f.Link)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return f, memd.ErrNotFound
	case err != nil:
		return f, fmt.Errorf("following a link: %w", err)
	}
	return f, nil
}
