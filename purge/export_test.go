package purge

import (
	"context"
	"net/netip"
)

// Fault has every step on a file ask first.
func (c *Caller) Fault(f func(step string) error) { c.fault = f }

// Permits is the policy of addresses alone.
func Permits(private, plain bool, a netip.Addr) bool {
	return policy{private: private, plain: plain}.permits(a)
}

// Control is what a dialer asks before it connects.
func Control(private bool, network, address string) error {
	return policy{private: private}.control(network, address, nil)
}

// Secret is the sealed secret of a target.
func (t Target) Secret() []byte { return t.secret }

// Prepare makes a target without a database.
func (c *Caller) Prepare(ctx context.Context, n New) (Target, string, error) {
	return c.prepare(ctx, n)
}
