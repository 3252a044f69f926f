package memory

import (
	"context"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// refreshBatch is how many scopes one statement of Refresh brings up to date.
const refreshBatch = 200

// Refresh brings every resident scope of a tenant up to date: whoever was
// forgotten, and every month that has expired, leaves this process's memory, whether or not anybody searches the
// scope again. It is called when the tenant's key tree has changed. When it
// cannot be done, all of the tenant's scopes are dropped instead, and the error
// says why.
func (s *Service) Refresh(ctx context.Context, tenant memd.TenantNo) error {
	s.Directory.Drop(tenant)
	scopes := s.residents.of(tenant)
	if len(scopes) == 0 {
		return nil
	}
	err := s.refreshScopes(ctx, tenant, scopes)
	if err != nil {
		for k := range scopes {
			s.residents.drop(k)
		}
	}
	return err
}

func (s *Service) refreshScopes(ctx context.Context, tenant memd.TenantNo, scopes map[residentKey]*resident) error {
	k, err := s.Keyring.Keys(ctx, tenant, 0)
	if err != nil {
		return err
	}
	var ask []asked
	var fillers []*filler
	flush := func() error {
		sinks := make([]sink, len(fillers))
		for i := range fillers {
			sinks[i] = fillers[i]
		}
		err := s.Pool.With(ctx, func(db pg.DB) error { return sync(ctx, db, tenant, nil, ask, sinks) })
		for i, f := range fillers {
			if err == nil {
				f.apply()
				s.residents.resized(residentKey{tenant, ask[i].ref}, f.r)
			}
			f.release()
		}
		ask, fillers = nil, nil
		return err
	}
	for key, r := range scopes {
		r.forget()
		r.removeMonths(k)
		r.mu.RLock()
		loaded, in := r.loaded, r.spaces
		r.mu.RUnlock()
		if !loaded {
			continue
		}
		f, a := s.filler(r, key.ref, k, in)
		ask, fillers = append(ask, a), append(fillers, f)
		if len(ask) == refreshBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(ask) == 0 {
		return nil
	}
	return flush()
}
