package demo

import (
	"context"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// ending tells the dates and what it costs.
func (d *demo) ending(ctx context.Context) error {
	d.section("When is it deleted? There are three dates")
	d.show("%-18s%-24s%-24s%s", "", "unreadable everywhere", "destroyed for good", "purged by the provider")
	ordered := true
	for _, x := range []struct {
		who    string
		report *memdv1.Report
	}{{"Mara of acme", d.report}, {d.expired().String() + " of acme", d.month}, {"globex", d.purged}} {
		k := x.report.GetKey()
		if k == nil {
			d.show("%-18snever: no key was destroyed", x.who)
			ordered = false
			continue
		}
		unreadable, destroyed, purged := k.GetUnreadableAt().AsTime(), k.GetDestroyedAt().AsTime(), k.GetPurgedAt().AsTime()
		ordered = ordered && unreadable.Before(destroyed) && purged.Sub(destroyed) == providersDelay
		d.show("%-18s%-24s%-24s%s", x.who, date(k.GetUnreadableAt()), date(k.GetDestroyedAt()), date(k.GetPurgedAt()))
	}
	d.check(ordered, "Each who went has its own three, and nothing else decides when it is gone",
		"between the first two an operator of the key service could restore the version; the third is 45 days after the second")
	return d.cost(ctx)
}

// providersDelay is how long Google takes to purge what was destroyed from its own
// backups: https://cloud.google.com/kms/docs/destroy-restore.
const providersDelay = 45 * day

// cost makes the bill of a larger installation from what was counted here.
func (d *demo) cost(ctx context.Context) error {
	i := installation{tenants: 1_000, users: 100_000, months: 12}
	d.section("What keys cost, with %s tenants and %s users, of whom %d months are kept", thousands(i.tenants), thousands(i.users), i.months)
	versions, err := d.versions(ctx, d.acme)
	if err != nil {
		return err
	}
	enabled, scheduled := active(versions)
	k := d.report.GetKey()
	counted := batch{enabled: int64(enabled), operations: int64(d.operations), delay: k.GetDestroyedAt().AsTime().Sub(k.GetUnreadableAt().AsTime()).Round(day)}
	d.show("Counted here: acme has %d enabled key version, whatever its users and months, and %d waiting to be destroyed;", enabled, scheduled)
	d.show("forgetting took one new version and %d encryptions and decryptions. Reading takes one for each process and version.", d.operations)
	d.show("")
	d.show("%-80s %12s %12s", "", "key versions", "a month")
	ours := i.ours(counted)
	slow := counted
	slow.delay = 30 * day
	for _, x := range append([]design{ours, i.ours(slow)}, i.others()...) {
		one := "one user cannot leave a backup"
		if x.forgetsOne {
			one = ""
		}
		d.show("%-80s %12s %12s  %s", x.name, thousands(x.versions), x.month(), one)
	}
	d.show("")
	d.show("List prices: $0.06 a month for a version that is active or waiting, $0.03 for 10,000 operations (cloud.google.com/kms/pricing).")
	others := i.others()
	d.check(d.operations > 0 && enabled == 1 && ours.month() < others[0].month() && ours.month() < others[1].month(),
		"One enabled version for each tenant is less than either, and one user can leave every backup",
		"%s a month beside %s and %s; %s a month for each tenant with erasures every day",
		ours.month(), others[0].month(), others[1].month(), (ours.month()-versionMonth)/money(i.tenants))
	return nil
}

func date(t *timestamppb.Timestamp) string {
	return t.AsTime().UTC().Format("2 Jan 2006, 15:04 UTC")
}

// short is the end of a key version's name, from its key on.
func short(version string) string {
	if i := strings.LastIndex(version, "cryptoKeys/"); i >= 0 {
		return version[i+len("cryptoKeys/"):]
	}
	return "none"
}
