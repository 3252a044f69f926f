package demo

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"forgettable.dev/memd/shred"
)

// ending tells the dates and what it costs.
func (d *demo) ending(ctx context.Context) error {
	d.section("When is it deleted? There are three dates")
	if k := d.report.GetKey(); k != nil {
		d.show("%s  unreadable, here and in every backup", date(k.GetUnreadableAt()))
		d.show("%s  destroyed for good; until then an operator of the key service could restore the version", date(k.GetDestroyedAt()))
		d.show("%s  purged from the provider's own backups", date(k.GetPurgedAt()))
	} else {
		d.show("None: no key was destroyed.")
	}
	d.section("What it costs")
	tree, err := d.live.tree(ctx, d.acme.tenant)
	if err != nil {
		return err
	}
	versions, err := d.keys.worker.List(ctx, tree.key)
	if err != nil {
		return fmt.Errorf("listing acme's key versions: %w", err)
	}
	var enabled, scheduled int
	for _, v := range versions {
		switch v.State {
		case shred.VersionEnabled:
			enabled++
		case shred.VersionDestroyScheduled:
			scheduled++
		}
	}
	d.show("acme has %d enabled key version and %d waiting to be destroyed: %s a month at most, for %d users or for %s.",
		enabled, scheduled, perMonth(enabled+scheduled), len(d.acme.users()), thousands(manyUsers))
	d.show("A key version for each of %s users would be %s a month (%s a version: cloud.google.com/kms/pricing).",
		thousands(manyUsers), perMonth(manyUsers), activeVersionMonth)
	return nil
}

func date(t *timestamppb.Timestamp) string {
	return t.AsTime().UTC().Format("2 January 2006, 15:04 UTC")
}

// short is the end of a key version's name, from its key on.
func short(version string) string {
	if i := strings.LastIndex(version, "cryptoKeys/"); i >= 0 {
		return version[i+len("cryptoKeys/"):]
	}
	return "none"
}
