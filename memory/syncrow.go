package memory

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
)

// syncRow is a row of sqlSync: the head of a scope or a memory. It is read from
// the driver's bytes by hand, because a cold scope has a thousand rows, and
// scanning their columns took longer than opening their vectors.
type syncRow struct {
	ord    int64
	head   bool
	header header

	hides   []memd.Contribution
	deleted []uuid.UUID
	held    bool // the premise

	fetched
	single [1]memd.Contribution
}

// read takes the current row apart. Sealed columns and, where there is but one,
// the contribution are good until the next row.
func (r *syncRow) read(rows pgx.Rows) error {
	c := columns{values: rows.RawValues()}
	r.ord, r.head = c.int64(), c.bool()
	if r.head {
		r.header = header{epoch: c.int64(), fence: c.int16(), subject: memd.Number(c.int64())}
		r.header.snap = snapshot{xmin: c.int64(), xmax: c.int64(), running: c.int64()}
		r.hides = contributionPairs(c.int64s())
		r.deleted = c.uuids()
		r.held = c.bool()
		r.header.tooMany = c.bool()
		return c.err
	}
	c.at += headColumns
	return r.memory(&c)
}

// memory reads the columns of a memory.
func (r *syncRow) memory(c *columns) error {
	m := &r.fetched
	m.owner, m.id = memd.Number(c.int64()), c.uuid()
	r.single[0] = memd.Contribution{Subject: memd.Number(c.int64()), Session: memd.Number(c.int64())}
	m.contributions = r.single[:]
	if more := c.int64s(); more != nil {
		m.contributions = contributionsOf(r.single[0], more)
	}
	m.kind, m.month = Kind(c.int16()), memd.Month(c.int32())
	m.sourceTime, m.createdAt, m.updatedAt, m.expiresAt = c.time(), c.time(), c.time(), c.time()
	m.version, m.space, m.dimension, m.format = c.int64(), c.int16(), int(c.int16()), VectorFormat(c.int16())
	m.text, m.vector, m.metadata, m.code = c.next(-1), c.next(-1), c.next(-1), c.next(-1)
	return c.err
}

// headColumns are those that only a head has.
const headColumns = 10

// columns reads the columns of a row, one after the other, in PostgreSQL's
// binary format, which is what a prepared statement answers in for these types.
// NULL reads as zero.
type columns struct {
	values [][]byte
	at     int
	err    error
}

// next returns the next column, which must have the size, unless that is -1.
func (c *columns) next(size int) []byte {
	if c.at >= len(c.values) {
		c.err = fmt.Errorf("reading a scope: column %d is missing", c.at)
		return nil
	}
	v := c.values[c.at]
	if v != nil && size >= 0 && len(v) != size {
		c.err = fmt.Errorf("reading a scope: column %d has %d bytes instead of %d", c.at, len(v), size)
		v = nil
	}
	c.at++
	return v
}

func (c *columns) int64() int64 {
	if v := c.next(8); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

func (c *columns) int32() int32 {
	if v := c.next(4); v != nil {
		return int32(binary.BigEndian.Uint32(v))
	}
	return 0
}

func (c *columns) int16() int16 {
	if v := c.next(2); v != nil {
		return int16(binary.BigEndian.Uint16(v))
	}
	return 0
}

func (c *columns) bool() bool {
	v := c.next(1)
	return v != nil && v[0] == 1
}

func (c *columns) uuid() (id uuid.UUID) {
	copy(id[:], c.next(16))
	return id
}

// postgresEpoch is 2000-01-01, from which PostgreSQL counts microseconds.
const postgresEpoch = 946_684_800_000_000

// time is zero for NULL.
func (c *columns) time() time.Time {
	if v := c.next(8); v != nil {
		return time.UnixMicro(int64(binary.BigEndian.Uint64(v)) + postgresEpoch).UTC()
	}
	return time.Time{}
}

// array returns the elements of an array of one dimension, all of the size:
// behind a header of dimensions, flags, type, length and lower bound, each
// element behind its length. Nil for NULL and for an empty array.
func (c *columns) array(size int) (elements [][]byte) {
	v := c.next(-1)
	if len(v) < 20 {
		return nil
	}
	for b := v[20:]; len(b) > 0; b = b[4+size:] {
		if len(b) < 4+size || binary.BigEndian.Uint32(b) != uint32(size) {
			c.err = fmt.Errorf("reading a scope: column %d is not an array of elements of %d bytes", c.at-1, size)
			return nil
		}
		elements = append(elements, b[4:4+size])
	}
	return elements
}

func (c *columns) int64s() (out []int64) {
	for _, e := range c.array(8) {
		out = append(out, int64(binary.BigEndian.Uint64(e)))
	}
	return out
}

func (c *columns) uuids() (out []uuid.UUID) {
	for _, e := range c.array(16) {
		out = append(out, uuid.UUID(e))
	}
	return out
}

// kept returns a row's sealed text and metadata as the caller's own.
func (f *fetched) kept() (text, metadata []byte) {
	return slices.Clone(f.text), slices.Clone(f.metadata)
}

// contributionPairs reads an array of subject, session, subject, session.
func contributionPairs(flat []int64) []memd.Contribution {
	out := make([]memd.Contribution, 0, len(flat)/2)
	for i := 0; i+1 < len(flat); i += 2 {
		out = append(out, memd.Contribution{Subject: memd.Number(flat[i]), Session: memd.Number(flat[i+1])})
	}
	return out
}
