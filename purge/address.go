package purge

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// policy says which addresses may be dialled.
type policy struct {
	// private admits private and loopback addresses.
	private bool
	// plain: there is no TLS, so that only loopback will do.
	plain bool
}

// never are addresses that no setting admits: what answers there is the
// machine's own metadata, with its credentials, or nobody in particular.
var never = prefixes(
	"0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", // "this", link-local with metadata, multicast, reserved
	"100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", // metadata at Alibaba, Azure, Oracle
	"::/128", "fe80::/10", "ff00::/8", // unspecified, link-local, multicast
	"fd00:ec2::254/128", "fd20:ce::254/128", // metadata at AWS, Google
)

// inner are addresses that lead nowhere on the public network, or into the
// installation's own.
var inner = prefixes(
	"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8",
	"192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "192.88.99.0/24",
	"::1/128", "fc00::/7", "fec0::/10", "2001:db8::/32", "100::/64",
	"2001::/32", "2002::/16", // Teredo and 6to4 lead to an IPv4 address that is inside
)

// translated is where IPv6 hides an IPv4 address in its last four bytes.
var translated = prefixes("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96")

// local are prefixes that translate inside the installation's own network, where
// the hidden address may stand elsewhere than at the end (RFC 8215, RFC 6052).
var local = prefixes("64:ff9b:1::/48")

func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, t := range texts {
		ps = append(ps, netip.MustParsePrefix(t))
	}
	return ps
}

func within(ps []netip.Prefix, a netip.Addr) bool {
	for _, p := range ps {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// permits decides about one address. An IPv4 address in an IPv6 one counts as
// what it is.
func (p policy) permits(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if !a.IsValid() || within(never, a) {
		return false
	}
	if a.IsLoopback() {
		return p.private
	}
	if within(local, a) && !p.private {
		return false
	}
	if within(translated, a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
		if within(never, a) {
			return false
		}
	}
	return !p.plain && (p.private || !within(inner, a))
}

var errAddress = errors.New("address is not allowed")

// control is a net.Dialer's: it is called with the address that is about to be
// connected to, after the name was resolved.
func (p policy) control(network, address string, _ syscall.RawConn) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return errAddress
	}
	a, err := netip.ParseAddr(host)
	if err != nil || (network != "tcp4" && network != "tcp6") || !p.permits(a) {
		return errAddress
	}
	return nil
}
