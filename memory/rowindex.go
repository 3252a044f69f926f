package memory

import (
	"encoding/binary"
	"math/bits"

	"github.com/google/uuid"
)

// rowIndex finds the rows of a coded scope by their ids, in seven bytes a row
// where Go's map takes forty: the ids are in the rows already. It is a hash table
// with linear probing; a slot has a byte of the hash, by which nearly all others
// are passed over, and the number of the row.
type rowIndex struct {
	tags []uint8 // 0: empty
	rows []uint32
	n    int
}

// indexBytes is what a row takes in an index, on average.
const indexBytes = 7

func (x *rowIndex) bytes() int64 { return int64(len(x.tags)) * 5 }

// home returns where a row would be if there were no others, and its tag.
func (x *rowIndex) home(id *uuid.UUID) (slot int, tag uint8) {
	high, low := bits.Mul64(binary.LittleEndian.Uint64(id[:8])^0x9e3779b97f4a7c15, binary.LittleEndian.Uint64(id[8:])^0xd1b54a32d192ed03)
	h := high ^ low
	at, _ := bits.Mul64(h*0x9e3779b97f4a7c15, uint64(len(x.tags)))
	return int(at), uint8(h)%255 + 1
}

func (x *rowIndex) next(slot int) int {
	if slot++; slot == len(x.tags) {
		return 0
	}
	return slot
}

// find returns a row's slot and number.
func (x *rowIndex) find(id uuid.UUID, c *codedRows) (slot, row int, ok bool) {
	if x.n == 0 {
		return 0, 0, false
	}
	slot, tag := x.home(&id)
	for ; x.tags[slot] != 0; slot = x.next(slot) {
		if x.tags[slot] == tag {
			row := int(x.rows[slot])
			if b, i := c.at(row); b.ids[i] == id {
				return slot, row, true
			}
		}
	}
	return 0, 0, false
}

// add enters a row that is not there.
func (x *rowIndex) add(row int, c *codedRows) {
	if 5*(x.n+1) > 4*len(x.tags) {
		size := max(16, len(x.tags)+len(x.tags)/4)
		x.tags, x.rows = make([]uint8, size), make([]uint32, size)
		for other := range row {
			x.put(other, c)
		}
	}
	x.put(row, c)
	x.n++
}

func (x *rowIndex) put(row int, c *codedRows) {
	b, i := c.at(row)
	slot, tag := x.home(&b.ids[i])
	for x.tags[slot] != 0 {
		slot = x.next(slot)
	}
	x.tags[slot], x.rows[slot] = tag, uint32(row)
}

// renumber gives a row that is there another number.
func (x *rowIndex) renumber(id uuid.UUID, row int, c *codedRows) {
	if slot, _, ok := x.find(id, c); ok {
		x.rows[slot] = uint32(row)
	}
}

// remove takes a row out, and moves those up that were pushed past its slot.
func (x *rowIndex) remove(id uuid.UUID, c *codedRows) {
	free, _, ok := x.find(id, c)
	if !ok {
		return
	}
	distance := func(from, to int) int { return (to - from + len(x.tags)) % len(x.tags) }
	for slot := x.next(free); x.tags[slot] != 0; slot = x.next(slot) {
		b, i := c.at(int(x.rows[slot]))
		home, _ := x.home(&b.ids[i])
		if distance(home, slot) >= distance(free, slot) {
			x.tags[free], x.rows[free] = x.tags[slot], x.rows[slot]
			free = slot
		}
	}
	x.tags[free] = 0
	x.n--
}
