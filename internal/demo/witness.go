package demo

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
)

// witness asks the tables of one database, as its superuser: what it says is
// neither filtered by memd's code nor by memd's roles.
type witness struct{ conn *pgx.Conn }

func openWitness(ctx context.Context, url string) (*witness, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connecting as a witness: %w", err)
	}
	return &witness{conn}, nil
}

func (w *witness) close() error { return w.conn.Close(context.Background()) }

const sqlTenant = `SELECT tenant_no FROM memd.tenants WHERE name = $1`

func (w *witness) tenant(ctx context.Context, name string) (memd.TenantNo, error) {
	var no memd.TenantNo
	if err := w.conn.QueryRow(ctx, sqlTenant, name).Scan(&no); err != nil {
		return 0, fmt.Errorf("looking up tenant %s: %w", name, err)
	}
	return no, nil
}

const sqlOwner = `SELECT owner_no FROM memd.memories WHERE tenant_no = $1 AND memory_id = $2`

// owner returns the number of the subject in whose scope a row is. Numbers are
// in clear; whose they are is not.
func (w *witness) owner(ctx context.Context, tenant memd.TenantNo, memory string) (memd.Number, error) {
	var n memd.Number
	if err := w.conn.QueryRow(ctx, sqlOwner, tenant, memory).Scan(&n); err != nil {
		return 0, fmt.Errorf("looking up the owner of a row: %w", err)
	}
	return n, nil
}

// trace is how many rows of each table are about a subject.
type trace struct {
	Owned, Contributed, Further, Sources, Sessions int64
}

func (t trace) total() int64 { return t.Owned + t.Contributed + t.Further + t.Sources + t.Sessions }

func (t trace) String() string {
	return fmt.Sprintf("memories %d owned and %d with her words first, memory_contributions %d, memory_sources %d, live sessions %d",
		t.Owned, t.Contributed, t.Further, t.Sources, t.Sessions)
}

const sqlTrace = `
SELECT
  (SELECT count(*) FROM memd.memories WHERE tenant_no = $1 AND owner_no = $2),
  (SELECT count(*) FROM memd.memories WHERE tenant_no = $1 AND contributor_no = $2),
  (SELECT count(*) FROM memd.memory_contributions WHERE tenant_no = $1 AND contributor_no = $2),
  (SELECT count(*) FROM memd.memory_sources WHERE tenant_no = $1 AND (source_subject = $2 OR source_memory = ANY ($3::uuid[]))),
  (SELECT count(*) FROM memd.sessions WHERE tenant_no = $1 AND subject_no = $2 AND state = 1)`

// trace counts what is left of a subject, whose rows once were memories.
func (w *witness) trace(ctx context.Context, tenant memd.TenantNo, subject memd.Number, memories []string) (trace, error) {
	var t trace
	err := w.conn.QueryRow(ctx, sqlTrace, tenant, subject, memories).
		Scan(&t.Owned, &t.Contributed, &t.Further, &t.Sources, &t.Sessions)
	if err != nil {
		return t, fmt.Errorf("counting a subject's rows: %w", err)
	}
	return t, nil
}

const sqlRows = `
SELECT m.memory_id, m.owner_no, m.month, m.contributor_no, m.contributor_session,
  ARRAY(SELECT unnest(ARRAY[c.contributor_no, c.contributor_session]) FROM memd.memory_contributions c
        WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id),
  m.sealed_text, m.sealed_vector, m.sealed_metadata
FROM memd.memories m WHERE m.tenant_no = $1 ORDER BY m.memory_id`

// rows returns every stored row of a tenant, sealed as it is.
func (w *witness) rows(ctx context.Context, tenant memd.TenantNo) ([]sealedRow, error) {
	rows, err := w.conn.Query(ctx, sqlRows, tenant)
	if err != nil {
		return nil, fmt.Errorf("reading rows: %w", err)
	}
	var out []sealedRow
	var r sealedRow
	var first memd.Contribution
	var more []int64
	dst := []any{&r.id, &r.owner, &r.month, &first.Subject, &first.Session, &more, &r.text, &r.vector, &r.metadata}
	_, err = pgx.ForEachRow(rows, dst, func() error {
		r.contributions = []memd.Contribution{first}
		for i := 0; i+1 < len(more); i += 2 {
			r.contributions = append(r.contributions, memd.Contribution{Subject: memd.Number(more[i]), Session: memd.Number(more[i+1])})
		}
		out = append(out, r)
		r, more = sealedRow{}, nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading rows: %w", err)
	}
	return out, nil
}

const (
	sqlUserID     = `SELECT sealed_user_id FROM memd.subjects WHERE tenant_no = $1 AND subject_no = $2`
	sqlSessionIDs = `SELECT session_no, sealed_id FROM memd.sessions WHERE tenant_no = $1 AND subject_no = $2`
)

// directory returns a subject's sealed user id and session ids.
func (w *witness) directory(ctx context.Context, tenant memd.TenantNo, subject memd.Number) (userID []byte, sessions map[memd.Number][]byte, err error) {
	if err := w.conn.QueryRow(ctx, sqlUserID, tenant, subject).Scan(&userID); err != nil {
		return nil, nil, fmt.Errorf("reading the directory: %w", err)
	}
	rows, err := w.conn.Query(ctx, sqlSessionIDs, tenant, subject)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the directory: %w", err)
	}
	sessions = map[memd.Number][]byte{}
	var n memd.Number
	var sealed []byte
	_, err = pgx.ForEachRow(rows, []any{&n, &sealed}, func() error {
		sessions[n] = sealed
		sealed = nil
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("reading the directory: %w", err)
	}
	return userID, sessions, nil
}

const sqlTree = `
SELECT k.kms_key, t.kms_version, t.epoch, t.sealed
FROM memd.tenant_keys k JOIN memd.key_trees t USING (tenant_no, epoch) WHERE k.tenant_no = $1`

// tree returns the tenant's key tree as this database has it.
func (w *witness) tree(ctx context.Context, tenant memd.TenantNo) (sealedTree, error) {
	var t sealedTree
	if err := w.conn.QueryRow(ctx, sqlTree, tenant).Scan(&t.key, &t.version, &t.epoch, &t.sealed); err != nil {
		return t, fmt.Errorf("reading a key tree: %w", err)
	}
	return t, nil
}

const sqlRowAsJSON = `SELECT to_jsonb(m) FROM memd.memories m WHERE m.tenant_no = $1 AND m.memory_id = $2`

// wholeRow returns all columns of a row as they are stored.
func (w *witness) wholeRow(ctx context.Context, tenant memd.TenantNo, id uuid.UUID) ([]byte, error) {
	var row []byte
	if err := w.conn.QueryRow(ctx, sqlRowAsJSON, tenant, id).Scan(&row); err != nil {
		return nil, fmt.Errorf("reading a whole row: %w", err)
	}
	return row, nil
}

const sqlPutBack = `INSERT INTO memd.memories SELECT (jsonb_populate_record(NULL::memd.memories, $1)).*`

// putBack inserts a row by hand, as whoever the witness is connected.
func (w *witness) putBack(ctx context.Context, row []byte) error {
	_, err := w.conn.Exec(ctx, sqlPutBack, row)
	return err
}

const sqlMemoriesOf = `
SELECT count(*) FROM memd.memories m WHERE m.tenant_no = $1 AND (m.owner_no = $2 OR m.contributor_no = $2 OR EXISTS (
  SELECT FROM memd.memory_contributions c WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id AND c.contributor_no = $2))`

// memoriesOf counts the memories that are a subject's or have their words in
// them.
func (w *witness) memoriesOf(ctx context.Context, tenant memd.TenantNo, subject memd.Number) (n int64, err error) {
	if err := w.conn.QueryRow(ctx, sqlMemoriesOf, tenant, subject).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting memories: %w", err)
	}
	return n, nil
}

const sqlIsThere = `SELECT EXISTS (SELECT FROM memd.memories WHERE tenant_no = $1 AND memory_id = $2)`

func (w *witness) isThere(ctx context.Context, tenant memd.TenantNo, id uuid.UUID) (there bool, err error) {
	if err := w.conn.QueryRow(ctx, sqlIsThere, tenant, id).Scan(&there); err != nil {
		return false, fmt.Errorf("looking for a row: %w", err)
	}
	return there, nil
}

// withoutTriggers takes the guards out of the way, for this connection.
func (w *witness) withoutTriggers(ctx context.Context) error {
	if _, err := w.conn.Exec(ctx, `SET session_replication_role = replica`); err != nil {
		return fmt.Errorf("turning triggers off: %w", err)
	}
	return nil
}
