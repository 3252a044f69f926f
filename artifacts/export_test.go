package artifacts

// WithChunks returns a service that seals chunks of another size, in other
// groups, as measurements and tests of the edges need.
func (s *Service) WithChunks(size, group int) *Service {
	c := *s
	c.chunk, c.group = size, group
	return &c
}

// The numbers that tests go by.
const (
	ChunkBytes   = chunkBytes
	DeleteChunks = deleteChunks
)
