package canary

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// Kinds and states of an erasure, as the journal has them.
const (
	kindUser    = 1
	kindSession = 2
	kindContent = 3
	kindTenant  = 4

	stateDone = 3
)

const sqlErasure = `
SELECT e.kind, e.state, coalesce(e.user_ref, ''), coalesce(e.session_ref, ''), e.accepted_at
FROM memd.erasures e WHERE e.tenant_no = @tenant AND e.job_no = @job`

// A fence is up until the erasure is done; down, it leaves erased_before.
const sqlUnfenced = `
SELECT count(*) FROM unnest(@refs::bytea[]) AS u (ref)
LEFT JOIN memd.fences f ON f.tenant_no = @tenant AND f.user_ref = u.ref
WHERE f.state IS NULL OR f.erased_before < @accepted OR f.state NOT IN (1, 2) AND NOT @done`

const sqlUnburied = `
SELECT count(*) FROM unnest(@refs::bytea[]) AS u (ref)
WHERE NOT EXISTS (SELECT FROM memd.tombstones d WHERE d.tenant_no = @tenant AND d.kind = ANY (@kinds::smallint[]) AND d.ref = u.ref)`

const sqlTenantState = `SELECT t.state FROM memd.tenants t WHERE t.tenant_no = @tenant`

// checkFence demands what keeps writers out: of a user the fence, until the
// erasure is done, and for good the moment before which nothing is taken back;
// of a session its tombstone; of a tenant its state. The control is the same
// question about somebody who does not exist, and must be called unfenced.
func (v *Verifier) checkFence(ctx context.Context, e *exam) (memd.Check, error) {
	began := time.Now()
	var kind, state int16
	var user, session []byte
	var accepted time.Time
	err := v.c.Pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, sqlErasure, pg.Args{"tenant": e.Tenant, "job": e.Job}).Scan(&kind, &state, &user, &session, &accepted)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return notRun(CheckFence, reasonNoControl, 0), nil
	}
	if err != nil {
		return memd.Check{}, fmt.Errorf("reading the journal: %w", err)
	}
	nobody := make([]byte, len(memd.Ref{}))
	if _, err := rand.Read(nobody); err != nil {
		return memd.Check{}, fmt.Errorf("drawing a reference: %w", err)
	}
	missing := func(ref []byte) (n int64, err error) {
		args := pg.Args{"tenant": e.Tenant, "refs": [][]byte{ref}}
		sql := sqlUnfenced
		switch kind {
		case kindUser:
			args["accepted"], args["done"] = accepted, state >= stateDone
		case kindSession:
			sql, args["kinds"] = sqlUnburied, []int16{1}
		case kindContent:
			sql, args["kinds"] = sqlUnburied, []int16{1, 2}
		}
		err = v.c.Pool.With(ctx, func(db pg.DB) error { return db.QueryRow(ctx, sql, args).Scan(&n) })
		return n, err
	}
	var control, left int64
	if kind == kindTenant {
		var now int16
		err = v.c.Pool.With(ctx, func(db pg.DB) error {
			return db.QueryRow(ctx, sqlTenantState, pg.Args{"tenant": e.Tenant}).Scan(&now)
		})
		const purging, purged = 6, 7
		control = 1
		if now != purging && now != purged {
			left = 1
		}
	} else {
		ref := user
		if kind != kindUser {
			ref = session
		}
		if control, err = missing(nobody); err == nil {
			left, err = missing(ref)
		}
	}
	if err != nil {
		return memd.Check{}, fmt.Errorf("reading fences: %w", err)
	}
	c := judge(CheckFence, control, left, reasonNotFenced)
	c.Duration = time.Since(began)
	return c, nil
}
