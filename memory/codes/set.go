package codes

// blockRows is how many codes lie in one piece of memory: growing moves none.
const blockRows = 1 << 12

// Set is the codes of many rows, numbered from 0. It is not safe for concurrent
// use while it is changed.
type Set struct {
	words  int
	blocks []block
	n      int
}

type block struct {
	bits    []uint64
	factors []float32
}

// NewSet returns an empty set for vectors of the dimension.
func NewSet(dimension int) *Set { return &Set{words: Bits(dimension) / 64} }

// Len returns the number of codes.
func (s *Set) Len() int { return s.n }

// Size returns the bytes that the codes take.
func (s *Set) Size() int64 { return int64(len(s.blocks)) * blockRows * int64(8*s.words+4) }

// Append adds an encoded code. Its row is Len before.
func (s *Set) Append(code []byte) error {
	if s.n == len(s.blocks)*blockRows {
		s.grow()
	}
	s.n++
	if err := s.Put(s.n-1, code); err != nil {
		s.n--
		return err
	}
	return nil
}

// Put replaces the code of a row.
func (s *Set) Put(row int, code []byte) error {
	words, factor := s.at(row)
	f, err := decode(words, code)
	if err == nil {
		*factor = f
	}
	return err
}

// Take puts a code of another set for the same dimension in the place of a row, or
// behind the last.
func (s *Set) Take(row int, from *Set, at int) {
	if row == s.n {
		if s.n == len(s.blocks)*blockRows {
			s.grow()
		}
		s.n++
	}
	words, factor := s.at(row)
	theirs, f := from.at(at)
	copy(words, theirs)
	*factor = *f
}

func (s *Set) grow() {
	s.blocks = append(s.blocks, block{make([]uint64, blockRows*s.words), make([]float32, blockRows)})
}

// Move puts the last row in the place of a row, and drops the last.
func (s *Set) Move(row int) {
	s.n--
	last, factor := s.at(s.n)
	if row != s.n {
		words, f := s.at(row)
		copy(words, last)
		*f = *factor
	}
	clear(last)
	*factor = 0
	if b := (s.n + blockRows - 1) / blockRows; b < len(s.blocks)-1 { // one is kept in reserve
		s.blocks = s.blocks[:b+1]
	}
}

// Zero overwrites all codes and empties the set.
func (s *Set) Zero() {
	for _, b := range s.blocks {
		clear(b.bits)
		clear(b.factors)
	}
	s.blocks, s.n = nil, 0
}

func (s *Set) at(row int) ([]uint64, *float32) {
	b, i := &s.blocks[row/blockRows], row%blockRows
	return b.bits[i*s.words : (i+1)*s.words : (i+1)*s.words], &b.factors[i]
}
