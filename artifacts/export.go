package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// Complete versions with their chunks, in the order of their keys, which needs no
// sorting: what is readable and not of a month that has expired, or is to.
const sqlExport = sqlVersionColumns + `, a.sealed_name, a.month, c.chunk_no, c.sealed
FROM memd.artifact_versions v
JOIN memd.artifacts a ON a.tenant_no = v.tenant_no AND a.subject_no = v.subject_no AND a.session_no = v.session_no
  AND a.artifact_id = v.artifact_id
JOIN memd.artifact_chunks c ON c.tenant_no = v.tenant_no AND c.subject_no = v.subject_no AND c.session_no = v.session_no
  AND c.version_id = v.version_id
WHERE v.tenant_no = @tenant AND v.subject_no = @subject AND v.version IS NOT NULL
  AND EXISTS (SELECT FROM memd.artifact_owners o
              WHERE o.tenant_no = v.tenant_no AND o.subject_no = v.subject_no AND o.session_no = v.session_no)
  AND (v.session_no = 1099511627777 OR (v.month > @cutoff AND NOT EXISTS (
    SELECT FROM memd.expired_months x WHERE x.tenant_no = v.tenant_no AND x.class = 0 AND x.month IN (v.month, a.month))))
ORDER BY v.session_no, v.version_id, c.chunk_no`

// Export hands out every version of every artifact that a subject has. What is
// being erased, and what is of months up to cutoff or expired, is left out.
// save is given the version's session, memd.OwnScope for the user's own, and its
// content, which it may leave unread and may not keep: one chunk is in memory.
// Content that does not verify, or is missing, reads as memd.ErrCorrupt; unreadable
// counts versions of which not even the description verifies.
func Export(ctx context.Context, db pg.DB, k *shred.Keys, subject memd.Number, cutoff memd.Month,
	save func(v Version, session memd.Number, content io.Reader) error,
) (unreadable int64, err error) {
	rows, err := db.Query(ctx, sqlExport, pg.Args{"tenant": k.Tenant(), "subject": subject, "cutoff": cutoff})
	if err != nil {
		return 0, fmt.Errorf("handing out artifacts: %w", err)
	}
	defer rows.Close()
	x := &exporting{rows: rows, k: k}
	for x.next(); x.more; {
		c, name := x.content()
		v, info, err := c.stored.open(k, name)
		switch {
		case errors.Is(err, memd.ErrCorrupt):
			unreadable++
		case errors.Is(err, memd.ErrShredded): // It is about to fall.
		case err != nil:
			return unreadable, err
		default:
			c.Version, c.info = v, info
			if err := save(v, c.stored.Session, c); err != nil {
				return unreadable, err
			}
		}
		for x.more && x.row.save == c.stored.save {
			x.next() // What was not read.
		}
	}
	if x.err == nil {
		x.err = rows.Err()
	}
	if x.err != nil {
		return unreadable, fmt.Errorf("handing out artifacts: %w", x.err)
	}
	return unreadable, nil
}

// exporting is where an export has got to: the row that is next.
type exporting struct {
	rows  pgx.Rows
	k     *shred.Keys
	row   stored
	name  []byte
	named memd.Month
	no    int32
	chunk []byte
	more  bool
	err   error
}

func (x *exporting) next() {
	x.chunk, x.name = nil, nil
	if x.more = x.rows.Next(); !x.more {
		return
	}
	x.row = stored{}
	if x.err = x.rows.Scan(append(x.row.columns(), &x.name, &x.named, &x.no, &x.chunk)...); x.err != nil {
		x.more = false
	}
}

// content is the version that begins at the row. A name that does not open makes
// a version that does not: both are under one key.
func (x *exporting) content() (*exported, string) {
	name, err := openName(x.k, place{x.row.Contribution, x.named}, x.row.artifact, x.name)
	c := &exported{x: x}
	c.stored = x.row
	if err != nil && !errors.Is(err, memd.ErrShredded) {
		c.stored.sealed = nil
	}
	return c, name
}

// exported is the content of one version on its way out.
type exported struct {
	Content
	x     *exporting
	at    int32
	ready []byte
}

// Read implements io.Reader.
func (c *exported) Read(p []byte) (int, error) {
	for len(c.ready) == 0 {
		if c.at == c.info.Chunks {
			return 0, io.EOF
		}
		if !c.x.more || c.x.row.save != c.stored.save || c.x.no != c.at {
			if c.x.err != nil {
				return 0, c.x.err
			}
			return 0, fmt.Errorf("chunks are missing: %w", memd.ErrCorrupt)
		}
		sealer, err := c.stored.content(c.x.k)
		if err != nil {
			return 0, fmt.Errorf("deriving an artifact's key: %w", err)
		}
		if c.ready, err = c.open(sealer, c.at, c.x.chunk); err != nil {
			return 0, err
		}
		c.at++
		c.x.next()
	}
	n := copy(p, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

func (c *exported) open(sealer *shred.Sealer, no int32, sealed []byte) ([]byte, error) {
	c.t.No = c.x.k.Tenant()
	return c.openChunk(sealer, no, sealed)
}
