package node

import "context"

// EndLease ends the lease for good, with the database there.
func (s *Server) EndLease(ctx context.Context) error { return s.instance.Close(ctx) }
