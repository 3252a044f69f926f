package memory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// One statement, so one snapshot: the fence, the subject's number, the key
// epoch and whatever changed since the reader's last snapshot. Each scope has
// one row that is its head, with what is hidden and what was deleted, and then
// one for each memory. A sort would carry every sealed column along; the order
// is that of the branches, and sync refuses a memory that comes before its head.
//
// The subqueries and OFFSET 0 leave the planner no choice but to look each
// scope up by its keys, whatever it believes of how many rows there are.
const sqlSync = `
WITH w AS MATERIALIZED (
  SELECT s.ord, s.epoch, s.state, s.subject_no, s.known = s.subject_no AS same,
    CASE WHEN s.known = s.subject_no THEN s.since ELSE 0 END AS since, s.coded, s.most
  FROM (
    SELECT u.ord, u.known, u.since, u.coded, u.most,
      coalesce((SELECT e.epoch FROM memd.key_epochs e WHERE e.tenant_no = @tenant), 0) AS epoch,
      coalesce((SELECT f.state FROM memd.fence_states f WHERE f.tenant_no = @tenant AND f.user_ref = u.ref), 0::smallint) AS state,
      coalesce((SELECT l.subject_no FROM memd.live_subjects l WHERE l.tenant_no = @tenant AND l.user_ref = u.ref), 0) AS subject_no
    FROM unnest(@refs::bytea[], @known::bigint[], @since::bigint[], @coded::boolean[], @most::bigint[])
      WITH ORDINALITY AS u (ref, known, since, coded, most, ord)
    OFFSET 0) s)
SELECT w.ord, true AS head, w.epoch, w.state, w.subject_no,
  pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
  (SELECT count(*) FROM pg_snapshot_xip(pg_current_snapshot())),
  ARRAY(SELECT unnest(ARRAY[h.contributor_no, h.contributor_session]) FROM memd.hidden_contributions h
        WHERE h.tenant_no = @tenant AND h.owner_no = w.subject_no AND h.changed_xid >= w.since),
  ARRAY(SELECT x.memory_id FROM memd.deleted_memories x
        WHERE w.same AND x.tenant_no = @tenant AND x.owner_no = w.subject_no AND x.changed_xid >= w.since),
  (SELECT p.revision FROM memd.premises p WHERE p.premise = @premise::bytea) = @revision::xid[],
  w.since = 0 AND w.most > 0 AND EXISTS (
    SELECT FROM memd.memories m WHERE m.tenant_no = @tenant AND m.owner_no = w.subject_no AND m.changed_xid >= 0 OFFSET w.most),
  NULL::bigint, NULL::uuid, NULL::bigint, NULL::bigint, NULL::bigint[], NULL::smallint, NULL::int, NULL::timestamptz, NULL::timestamptz,
  NULL::timestamptz, NULL::timestamptz, NULL::bigint, NULL::smallint, NULL::smallint, NULL::smallint, NULL::bytea, NULL::bytea, NULL::bytea, NULL::bytea
FROM w
UNION ALL
SELECT w.ord, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, w.subject_no,
  m.memory_id, m.contributor_no, m.contributor_session, m.more, m.kind, m.month, m.source_time, m.created_at, m.updated_at,
  m.expires_at, m.version, m.space, m.dimension, m.vector_format,
  CASE WHEN NOT w.coded THEN m.sealed_text END, CASE WHEN NOT w.coded OR m.sealed_code IS NULL THEN m.sealed_vector END,
  CASE WHEN NOT w.coded THEN m.sealed_metadata END, CASE WHEN w.coded THEN m.sealed_code END
FROM w CROSS JOIN LATERAL (
  SELECT m.*, CASE WHEN m.more_contributions > 0 THEN ARRAY(
      SELECT unnest(ARRAY[c.contributor_no, c.contributor_session]) FROM memd.memory_contributions c
      WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id) END AS more
  FROM memd.memories m
  WHERE m.tenant_no = @tenant AND m.owner_no = w.subject_no AND m.changed_xid >= w.since
  OFFSET 0) m
WHERE w.state NOT IN (1, 2)`

// snapshot is a PostgreSQL snapshot, reduced to what orders two of them: a
// later one has a larger xmax, or the same and fewer transactions in flight.
type snapshot struct {
	xmin, xmax, running int64
}

func (a snapshot) before(b snapshot) bool {
	return a.xmax < b.xmax || a.xmax == b.xmax && a.running > b.running
}

// header is what a sync says of a scope besides its rows.
type header struct {
	epoch   int64
	fence   int16
	subject memd.Number // zero: nobody is known by this ref
	snap    snapshot
	tooMany bool // rows, for who asked whether there are
}

func (h header) fenced() bool { return h.fence == 1 || h.fence == 2 }

// fetched is one memory as sync reads it.
type fetched struct {
	stored
	sourceTime, expiresAt time.Time // zero: none
	createdAt, updatedAt  time.Time
	version               int64
}

// spoken is the time that time filters look at.
func (f *fetched) spoken() time.Time {
	if !f.sourceTime.IsZero() {
		return f.sourceTime
	}
	return f.createdAt
}

// asked is a scope to be synced: whose subject the reader knows, since which
// transaction it wants to hear, whether it wants codes instead of what they are of,
// and, unless zero, how many rows are too many for one who knows none: that is told
// before any of them is read.
type asked struct {
	ref   memd.Ref
	known memd.Number
	since int64
	coded bool
	most  int
}

// sink takes what a sync found about one scope. begin comes first, with what is
// hidden from the scope and what was deleted from it, and says whether the rows
// are wanted. A row is the sink's only until it returns: its sealed columns and
// its contributions are memory that the next row overwrites.
type sink interface {
	begin(h header, hides []memd.Contribution, deleted []uuid.UUID) (wanted bool, err error)
	row(f *fetched) error
}

// sync reads what changed in the scopes and gives it to their sinks. It stops
// with pg.ErrPremise when the premise, if there is one, does not hold.
func sync(ctx context.Context, db pg.DB, tenant memd.TenantNo, premise *pg.Premise, scopes []asked, sinks []sink) error {
	refs, known, since := make([][]byte, len(scopes)), make([]memd.Number, len(scopes)), make([]int64, len(scopes))
	coded, most := make([]bool, len(scopes)), make([]int, len(scopes))
	for i := range scopes {
		refs[i], known[i], since[i] = scopes[i].ref[:], scopes[i].known, scopes[i].since
		coded[i], most[i] = scopes[i].coded, scopes[i].most
	}
	args := pg.Args{"tenant": tenant, "refs": refs, "known": known, "since": since, "coded": coded, "most": most}
	premise.Args(args)
	rows, err := db.Query(ctx, sqlSync, args)
	if err != nil {
		return fmt.Errorf("reading a scope: %w", err)
	}
	defer rows.Close()
	if err := checkFormat(rows); err != nil {
		return err
	}
	begun, wanted := make([]bool, len(scopes)), make([]bool, len(scopes))
	var r syncRow
	for rows.Next() {
		if err := r.read(rows); err != nil {
			return err
		}
		i := r.ord - 1
		switch {
		case r.head:
			if err := premise.Settle(r.held); err != nil {
				return err
			}
			begun[i] = true
			wanted[i], err = sinks[i].begin(r.header, r.hides, r.deleted)
		case !begun[i]:
			err = errOrder
		case wanted[i]:
			err = sinks[i].row(&r.fetched)
		}
		if err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("reading a scope: %w", err)
	}
	return nil
}

// checkFormat makes sure that columns can be read by hand. Text is the same in
// both formats.
func checkFormat(rows pgx.Rows) error {
	for _, f := range rows.FieldDescriptions() {
		if f.Format != pgx.BinaryFormatCode && f.DataTypeOID != pgtype.TextOID {
			return errFormat
		}
	}
	return nil
}

var errFormat = errors.New("reading a scope: the connection does not answer in the binary format")

var errOrder = errors.New("reading a scope: the database gave a memory before the head of its scope")
