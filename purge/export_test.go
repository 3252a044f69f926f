package purge

import "net/netip"

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
