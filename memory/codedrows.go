package memory

import (
	"encoding/binary"
	"slices"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/memory/codes"
)

// codedRows is the rows of a coded scope, numbered from 0: each one's code and,
// column by column, what filters look at and by what its vector is found in the
// database and opened. What only a hit needs is read with the hit. It is not safe
// for concurrent use while it is changed.
type codedRows struct {
	codes    *codes.Set
	rotation *codes.Rotation
	blocks   []*rowBlock
	n        int
	index    rowIndex

	groups  []group
	numbers map[string]uint32 // of groups
	shared  int64             // bytes of groups
	last    uint32            // group that was asked for
	// expiry is when the first row expires, or earlier; 0: never.
	expiry int64
}

// group is what many rows of a scope have in common: those of one conversation.
type group struct {
	kind          Kind
	month         memd.Month
	contributions []memd.Contribution
}

// rowBlock is the columns of some rows. Growing moves none.
type rowBlock struct {
	ids      [blockRows]uuid.UUID
	spoken   [blockRows]int64
	versions [blockRows]uint32 // the lower half, which is all of any row that there will be
	groups   [blockRows]uint32
	expires  *[blockRows]int64 // nil as long as none does
}

const (
	blockRows  = 1 << 12
	blockBytes = blockRows * (16 + 8 + 4 + 4)
	groupBytes = 128
)

// codedBytes is what a row takes: code, columns and its part of the index.
func codedBytes(dim int) int { return codes.Bytes(dim) + blockBytes/blockRows + indexBytes }

func newCodedRows(dim int, rotation *codes.Rotation) *codedRows {
	return &codedRows{codes: codes.NewSet(dim), rotation: rotation, numbers: map[string]uint32{}}
}

// bytes is what all rows take.
func (c *codedRows) bytes() int64 {
	b := c.codes.Size() + int64(len(c.blocks)*blockBytes) + c.index.bytes() + c.shared
	for _, block := range c.blocks {
		if block.expires != nil {
			b += blockRows * 8
		}
	}
	return b
}

// zero wipes the codes and their rotation, and empties the rows.
func (c *codedRows) zero() {
	c.codes.Zero()
	if c.rotation != nil {
		c.rotation.Zero()
	}
	*c = codedRows{codes: c.codes, numbers: map[string]uint32{}}
}

func (c *codedRows) at(row int) (b *rowBlock, i int) { return c.blocks[row/blockRows], row % blockRows }

func (c *codedRows) id(row int) uuid.UUID {
	b, i := c.at(row)
	return b.ids[i]
}

func (c *codedRows) group(row int) *group {
	b, i := c.at(row)
	return &c.groups[b.groups[i]]
}

// expires returns when a row does; 0: never.
func (c *codedRows) expires(row int) int64 {
	b, i := c.at(row)
	if b.expires == nil {
		return 0
	}
	return b.expires[i]
}

// find returns the number of a row.
func (c *codedRows) find(id uuid.UUID) (row int, ok bool) {
	_, row, ok = c.index.find(id, c)
	return row, ok
}

func (c *codedRows) versionAt(row int) int64 {
	b, i := c.at(row)
	return int64(b.versions[i])
}

// version returns that of a row.
func (c *codedRows) version(id uuid.UUID) (version int64, ok bool) {
	row, ok := c.find(id)
	if !ok {
		return 0, false
	}
	return c.versionAt(row), true
}

// append adds a row that is not there yet.
func (c *codedRows) append(m *fetched, cs []memd.Contribution, code []byte) error {
	if err := c.codes.Append(code); err != nil {
		return err
	}
	row := c.grow(m.id)
	b, i := c.at(row)
	b.spoken[i], b.versions[i], b.groups[i] = m.spoken().UnixMicro(), uint32(m.version), c.number(m.kind, m.month, cs)
	if !m.expiresAt.IsZero() {
		c.expire(row, m.expiresAt.UnixMicro())
	}
	return nil
}

// take adds or replaces a row by one of others.
func (c *codedRows) take(from *codedRows, at int) {
	theirs, j := from.at(at)
	g := &from.groups[theirs.groups[j]]
	row, known := c.find(theirs.ids[j])
	if !known {
		row = c.grow(theirs.ids[j])
	}
	c.codes.Take(row, from.codes, at)
	b, i := c.at(row)
	b.spoken[i], b.versions[i], b.groups[i] = theirs.spoken[j], theirs.versions[j], c.number(g.kind, g.month, g.contributions)
	c.expire(row, from.expires(at))
}

// grow makes room for a row and returns its number.
func (c *codedRows) grow(id uuid.UUID) int {
	if c.n == len(c.blocks)*blockRows {
		c.blocks = append(c.blocks, new(rowBlock))
	}
	row := c.n
	c.n++
	b, i := c.at(row)
	b.ids[i] = id
	c.index.add(row, c)
	return row
}

func (c *codedRows) expire(row int, when int64) {
	b, i := c.at(row)
	if b.expires == nil {
		if when == 0 {
			return
		}
		b.expires = new([blockRows]int64)
	}
	b.expires[i] = when
	c.expiry = sooner(c.expiry, when)
}

// expireNext finds out when the first row expires.
func (c *codedRows) expireNext() {
	c.expiry = 0
	for row := 0; row < c.n; row += blockRows {
		if b, _ := c.at(row); b.expires != nil {
			for _, when := range b.expires {
				c.expiry = sooner(c.expiry, when)
			}
		}
	}
}

// remove takes a row out. The last one gets its number.
func (c *codedRows) remove(row int) {
	last := c.n - 1
	b, i := c.at(row)
	from, j := c.at(last)
	c.index.remove(b.ids[i], c)
	if row != last {
		c.index.renumber(from.ids[j], row, c)
		b.ids[i], b.spoken[i], b.versions[i], b.groups[i] = from.ids[j], from.spoken[j], from.versions[j], from.groups[j]
		c.expire(row, c.expires(last))
	}
	c.codes.Move(row)
	c.expire(last, 0)
	c.n--
	if n := (c.n + blockRows - 1) / blockRows; n < len(c.blocks)-1 { // one is kept in reserve
		clear(c.blocks[n+1:])
		c.blocks = c.blocks[:n+1]
	}
}

// number returns a group's. Contributions that are kept are copied.
func (c *codedRows) number(kind Kind, month memd.Month, cs []memd.Contribution) uint32 {
	if int(c.last) < len(c.groups) {
		if g := &c.groups[c.last]; g.kind == kind && g.month == month && slices.Equal(g.contributions, cs) {
			return c.last
		}
	}
	var room [4*16 + 6]byte
	key := binary.BigEndian.AppendUint16(room[:0], uint16(kind))
	key = binary.BigEndian.AppendUint32(key, uint32(month))
	for _, x := range cs {
		key = binary.BigEndian.AppendUint64(key, uint64(x.Subject))
		key = binary.BigEndian.AppendUint64(key, uint64(x.Session))
	}
	n, ok := c.numbers[string(key)]
	if !ok {
		n = uint32(len(c.groups))
		c.numbers[string(key)] = n
		c.groups = append(c.groups, group{kind, month, slices.Clone(cs)})
		c.shared += int64(groupBytes + contributionBytes*len(cs))
	}
	c.last = n
	return n
}

// admits returns which rows pass a selection, its metadata aside, or nil when all do.
func (c *codedRows) admits(sel *selection) func(row int) bool {
	if !sel.narrows() {
		return nil
	}
	passes := make([]bool, len(c.groups))
	for i := range c.groups {
		passes[i] = sel.passes(c.groups[i].kind, c.groups[i].contributions)
	}
	return func(row int) bool {
		b, i := c.at(row)
		return passes[b.groups[i]] && sel.within(b.spoken[i])
	}
}
