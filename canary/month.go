package canary

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// Of a month that expires words are not looked for: they were anybody's, and who
// said them may say them still. What can be shown is that no row of the month is
// left, that nobody can write one, and that its key derives nowhere, while those of
// its neighbours do.

const (
	sqlMonthMemories = `
SELECT 'memories' AS name, m.memory_id::text AS id FROM memd.memories m WHERE m.tenant_no = @tenant AND m.month = @month`
	sqlMonthHeads = `
SELECT 'session_heads' AS name, h.subject_no || '/' || h.session_no AS id FROM memd.session_heads h WHERE h.tenant_no = @tenant AND h.month = @month`
	sqlMonthEvents = `
SELECT 'session_events' AS name, e.subject_no || '/' || e.session_no || '/' || e.seq AS id
FROM memd.session_events e WHERE e.tenant_no = @tenant AND e.month = @month`
	sqlMonthState = `
SELECT 'session_state' AS name, s.subject_no || '/' || s.session_no AS id FROM memd.session_state s WHERE s.tenant_no = @tenant AND s.month = @month`
	sqlMonthVersions = `
SELECT 'artifact_versions' AS name, v.version_id::text AS id FROM memd.artifact_versions v
WHERE v.tenant_no = @tenant AND v.month = @month AND v.session_no <> 1099511627777`
	sqlMonthChunks = `
SELECT 'artifact_chunks' AS name, c.version_id || '/' || c.chunk_no AS id FROM memd.artifact_versions v
JOIN memd.artifact_chunks c ON c.tenant_no = v.tenant_no AND c.subject_no = v.subject_no AND c.session_no = v.session_no AND c.version_id = v.version_id
WHERE v.tenant_no = @tenant AND v.month = @month AND v.session_no <> 1099511627777`
)

func (e *exam) monthCounts() []count {
	if e.Class == memd.ClassMemory {
		return []count{{"memories", sqlMonthMemories}}
	}
	return []count{
		{"sessions", sqlMonthHeads}, {"session_events", sqlMonthEvents}, {"session_state", sqlMonthState},
		{"artifact_versions", sqlMonthVersions}, {"artifact_chunks", sqlMonthChunks},
	}
}

// neighbourMonths are the months whose keys are asked for: the next two of the class,
// and the same month of the other.
func (e *exam) neighbourMonths() []monthOf {
	return []monthOf{{e.Class, e.Month + 1}, {e.Class, e.Month + 2}, {1 - e.Class, e.Month}}
}

type monthOf struct {
	class memd.Class
	month memd.Month
}

const sqlExpiredMonths = `
SELECT x.class, x.month FROM memd.expired_months x WHERE x.tenant_no = @tenant`

// living leaves out months that have expired as well.
func (v *Verifier) living(ctx context.Context, e *exam) ([]monthOf, error) {
	gone := map[monthOf]bool{}
	err := v.c.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sqlExpiredMonths, pg.Args{"tenant": e.Tenant})
		if err != nil {
			return err
		}
		var m monthOf
		_, err = pgx.ForEachRow(rows, []any{&m.class, &m.month}, func() error { gone[m] = true; return nil })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading expired months: %w", err)
	}
	var out []monthOf
	for _, m := range e.neighbourMonths() {
		if !gone[m] {
			out = append(out, m)
		}
	}
	return out, nil
}

// checkMonths demands that the neighbours' keys derive, those of months and those of
// subjects.
func (v *Verifier) checkMonths(ctx context.Context, e *exam, before map[string]int64, tree *shred.Tree) (memd.Check, error) {
	began := time.Now()
	months, err := v.living(ctx, e)
	if err != nil {
		return memd.Check{}, err
	}
	var harmed int64
	for _, m := range months {
		if tree.Erased(shred.MonthPath(m.class, m.month)) {
			harmed++
		}
	}
	c := judge(CheckNeighbour, before[CheckNeighbour], harmed, reasonHarmed)
	if len(months) == 0 {
		c = notRun(CheckNeighbour, reasonNoNeighbour, before[CheckNeighbour])
	}
	c.Duration = time.Since(began)
	return c, nil
}

// The control is a month that no tenant has expired: it must be called open.
const sqlOpenMonths = `
SELECT count(*) FROM unnest(@months::integer[]) AS u (month)
WHERE NOT EXISTS (SELECT FROM memd.expired_months x WHERE x.tenant_no = @tenant AND x.class = @class AND x.month = u.month)`

// checkClosed demands the tombstone that keeps writers out of the month.
func (v *Verifier) checkClosed(ctx context.Context, e *exam) (memd.Check, error) {
	began := time.Now()
	open := func(m memd.Month) (n int64, err error) {
		err = v.c.Pool.With(ctx, func(db pg.DB) error {
			return db.QueryRow(ctx, sqlOpenMonths, pg.Args{"tenant": e.Tenant, "class": e.Class, "months": []memd.Month{m}}).Scan(&n)
		})
		return n, err
	}
	const never memd.Month = 1<<31 - 1
	control, err := open(never)
	if err != nil {
		return memd.Check{}, fmt.Errorf("reading expired months: %w", err)
	}
	left, err := open(e.Month)
	if err != nil {
		return memd.Check{}, fmt.Errorf("reading expired months: %w", err)
	}
	c := judge(CheckFence, control, left, reasonNotFenced)
	c.Duration = time.Since(began)
	return c, nil
}

// verifyMonth is Verify for a month.
func (v *Verifier) verifyMonth(ctx context.Context, e *exam, p memd.Probes) ([]memd.Check, error) {
	checks, err := v.checkCounts(ctx, e, p.Before)
	if err != nil {
		return nil, err
	}
	d, err := v.unseal(ctx, e, p.Sealed)
	if err != nil {
		return nil, err
	}
	closed, err := v.checkClosed(ctx, e)
	if err != nil {
		return nil, err
	}
	keys, err := v.checkKeys(ctx, e, p.Before, d)
	if err != nil {
		return nil, err
	}
	instances, err := v.checkInstances(ctx, e, p.Before, d)
	if err != nil {
		return nil, err
	}
	return append(append(append(checks, closed), keys...), instances), nil
}
