package canary

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/viterin/vek/vek32"
	"github.com/x448/float16"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

const sqlMemories = `
SELECT m.memory_id, m.owner_no, m.month, m.contributor_no, m.contributor_session, m.dimension, m.vector_format,
  ARRAY(SELECT unnest(ARRAY[c.contributor_no, c.contributor_session]) FROM memd.memory_contributions c
        WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id),
  m.sealed_text, m.sealed_vector, m.sealed_metadata, m.sealed_code
FROM memd.memories m WHERE m.tenant_no = @tenant AND m.memory_id > @after`

const (
	sqlMemoriesPage   = sqlMemories + ` ORDER BY m.memory_id LIMIT @limit`
	sqlMemoriesOfPage = sqlMemories + ` AND m.memory_id = ANY (@ids) ORDER BY m.memory_id LIMIT @limit`
)

// Each part has its own limit, or all of a million would be compared first.
const sqlTargetMemories = `
SELECT u.memory_id FROM ((SELECT m.memory_id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
 JOIN memd.memories m ON m.tenant_no = @tenant AND m.owner_no = t.subject_no WHERE t.session_no = 0 LIMIT @limit)
UNION (SELECT m.memory_id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
 JOIN memd.memories m ON m.tenant_no = @tenant AND m.contributor_no = t.subject_no AND t.session_no IN (0, m.contributor_session) LIMIT @limit)
UNION (SELECT c.memory_id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
 JOIN memd.memory_contributions c ON c.tenant_no = @tenant AND c.contributor_no = t.subject_no AND t.session_no IN (0, c.contributor_session) LIMIT @limit)) u
ORDER BY u.memory_id LIMIT @limit`

const memoryPage = 256

func memories() reader {
	return reader{
		table: "memories", sql: sqlMemoriesPage, page: memoryPage, scan: scanMemory,
		start: pg.Args{"after": uuid.Nil},
	}
}

func memoriesOf(ids []uuid.UUID) reader {
	r := memories()
	r.sql, r.args = sqlMemoriesOfPage, pg.Args{"ids": ids}
	return r
}

// targetMemories returns the ids of the memories that must go, as many as a
// budget may look at.
func (v *Verifier) targetMemories(ctx context.Context, e *exam) ([]uuid.UUID, error) {
	args := e.args()
	args["limit"] = v.c.Budget.Rows
	var ids []uuid.UUID
	err := v.c.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sqlTargetMemories, args)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("finding memories: %w", err)
	}
	return ids, nil
}

func scanMemory(c pgx.CollectableRow) (row, error) {
	var (
		id                       uuid.UUID
		owner                    memd.Number
		month                    memd.Month
		first                    memd.Contribution
		dimension, format        int
		more                     []int64
		text, vector, meta, code []byte
	)
	err := c.Scan(&id, &owner, &month, &first.Subject, &first.Session, &dimension, &format, &more, &text, &vector, &meta, &code)
	if err != nil {
		return row{}, err
	}
	of := []memd.Contribution{first}
	for i := 0; i+1 < len(more); i += 2 {
		of = append(of, memd.Contribution{Subject: memd.Number(more[i]), Session: memd.Number(more[i+1])})
	}
	return row{
		name: memd.RowRef{Table: "memories", ID: id.String()}, of: of, owner: owner, memory: true,
		sealed: [][]byte{text, vector, meta, code}, key: pg.Args{"after": id},
		open: func(k *shred.Keys) (o opened, err error) {
			s, err := k.Row(month, of)
			if err != nil {
				return o, err
			}
			if text != nil {
				b, err := s.Open(text, shred.AADMemoryText(k.Tenant(), owner, id))
				if err != nil {
					return o, err
				}
				o.said = append(o.said, b)
			}
			if meta != nil {
				b, err := s.Open(meta, shred.AADMemoryMetadata(k.Tenant(), owner, id))
				if err != nil {
					return o, err
				}
				name := true // of an entry; its value follows
				eachText(b, func(t []byte) {
					if name {
						o.other = append(o.other, t)
					} else {
						o.said = append(o.said, t)
					}
					name = !name
				})
			}
			if vector != nil {
				b, err := s.Open(vector, shred.AADMemoryVector(k.Tenant(), owner, id))
				if err != nil {
					return o, err
				}
				o.unit = decodeVector(b, dimension, format)
				clear(b)
			}
			return o, nil
		},
	}, nil
}

// Formats of a stored vector: its norm in four bytes, then the components.
const (
	formatFloat32 = 1
	formatFloat16 = 2
)

// decodeVector returns the components, of length one, or nil for what is none.
func decodeVector(b []byte, dimension, format int) []float32 {
	width := map[int]int{formatFloat32: 4, formatFloat16: 2}[format]
	if width == 0 || len(b) != 4+width*dimension {
		return nil
	}
	out := make([]float32, dimension)
	for i := range out {
		if format == formatFloat16 {
			out[i] = float16.Frombits(binary.LittleEndian.Uint16(b[4+2*i:])).Float32()
		} else {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4+4*i:]))
		}
	}
	return out
}

// alike reports whether two vectors are of one text, as far as vectors tell:
// rounding to half precision changes a score by less than a thousandth.
func alike(a, b []float32) bool {
	if len(a) != len(b) || len(a) == 0 {
		return false
	}
	return vek32.Dot(a, b) > 0.995
}
