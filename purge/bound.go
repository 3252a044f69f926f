package purge

import (
	"errors"
	"sync"

	"forgettable.dev/memd"
)

// How many erasures of this process may be calling targets at once: targets that
// are slow keep their callers waiting, and must keep nobody else waiting.
const (
	DefaultErasures          = 3
	DefaultErasuresPerTenant = 2
)

// ErrBusy says that as many erasures are calling targets as may at once. That is
// no failure: the caller does something else and comes back.
var ErrBusy = errors.New("as many erasures are calling purge targets as may at once")

// bound counts the erasures that are calling targets.
type bound struct {
	mu      sync.Mutex
	all     int
	tenants map[memd.TenantNo]int
}

// enter counts one more, unless it is one too many. Whoever is let in leaves.
func (b *bound) enter(t memd.TenantNo, all, perTenant int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all >= all || b.tenants[t] >= perTenant {
		return false
	}
	if b.tenants == nil {
		b.tenants = map[memd.TenantNo]int{}
	}
	b.all++
	b.tenants[t]++
	return true
}

func (b *bound) leave(t memd.TenantNo) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all--
	if b.tenants[t]--; b.tenants[t] == 0 {
		delete(b.tenants, t)
	}
}
