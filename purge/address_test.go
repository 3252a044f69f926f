package purge_test

import (
	"net/netip"
	"testing"

	"forgettable.dev/memd/purge"
)

func TestAddresses(t *testing.T) {
	const nobody, insiders, everybody = 0, 1, 2
	for text, want := range map[string]int{
		"93.184.216.34": everybody, "2606:2800:220:1::1": everybody, "::ffff:93.184.216.34": everybody,
		"64:ff9b::93.184.216.34": everybody,

		"127.0.0.1": insiders, "127.8.8.8": insiders, "::1": insiders, "::ffff:127.0.0.1": insiders,
		"10.0.0.1": insiders, "10.255.255.255": insiders, "172.16.0.1": insiders, "172.31.255.255": insiders, "192.168.1.1": insiders,
		"::ffff:10.0.0.1": insiders, "fd00::1": insiders, "fc00::1": insiders, "fec0::1": insiders, "100.64.0.1": insiders,
		"64:ff9b::10.0.0.1": insiders, "64:ff9b:1::10.0.0.1": insiders, "::10.0.0.1": insiders,
		"64:ff9b:1:a00:0:100:808:808": insiders, "::ffff:0:10.0.0.1": insiders, // 10.0.0.1 behind 48 bits, and translated without state
		"2002:0a00:0001::1": insiders, "2001:0:0a00:1::1": insiders, "198.18.0.1": insiders, "192.0.2.1": insiders,
		"203.0.113.5": insiders, "2001:db8::1": insiders, "fd00::1%eth0": insiders,

		"169.254.169.254": nobody, "169.254.0.1": nobody, "::ffff:169.254.169.254": nobody, "64:ff9b::169.254.169.254": nobody,
		"::ffff:0:169.254.169.254": nobody, "64:ff9b:1::169.254.169.254": nobody,
		"fe80::1": nobody, "fe80::1%eth0": nobody, "fd00:ec2::254": nobody, "fd20:ce::254": nobody, "100.100.100.200": nobody, "168.63.129.16": nobody,
		"192.0.0.192": nobody, "0.0.0.0": nobody, "0.1.2.3": nobody, "::": nobody, "224.0.0.1": nobody, "ff02::1": nobody,
		"255.255.255.255": nobody, "240.0.0.1": nobody, "::ffff:0.0.0.0": nobody,
	} {
		a := netip.MustParseAddr(text)
		if got := purge.Permits(false, false, a); got != (want == everybody) {
			t.Errorf("%s for everybody: %v", text, got)
		}
		if got := purge.Permits(true, false, a); got != (want >= insiders) {
			t.Errorf("%s inside: %v", text, got)
		}
		if got := purge.Permits(true, true, a); got != (want == insiders && a.Unmap().IsLoopback()) {
			t.Errorf("%s without TLS: %v", text, got)
		}
	}
}

// What the dialer asks is what will be connected to, whatever a name said before.
func TestControl(t *testing.T) {
	for address, want := range map[string]bool{
		"93.184.216.34:443": true, "[2606:2800:220:1::1]:443": true,
		"169.254.169.254:80": false, "[::1]:443": false, "10.1.2.3:443": false, "[fd00::8]:443": false, "[::ffff:10.0.0.1]:443": false,
		"[fe80::1%lo]:443": false, "nonsense": false, "example.com:443": false, "": false,
	} {
		for _, network := range []string{"tcp4", "tcp6"} {
			if err := purge.Control(false, network, address); (err == nil) != want {
				t.Errorf("%s %q: %v", network, address, err)
			}
		}
	}
	if purge.Control(false, "unix", "93.184.216.34:443") == nil {
		t.Error("another network than TCP")
	}
}
