package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/shred"
)

// forget forgets Mara of acme, over the API, or does what is asked for instead.
func (d *demo) forget(ctx context.Context) error {
	switch d.c.Instead {
	case DoNothing:
		d.section("Mara of acme asks to be forgotten, and nobody does anything")
		return nil
	case DeleteRows:
		d.section("Mara of acme asks to be forgotten, and her rows are deleted one by one")
		return d.deleteRows(ctx)
	}
	d.section("Mara of acme asks to be forgotten")
	began := time.Now()
	resp, err := d.acme.api.Erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{
		App: d.acme.app, UserId: mara, RequestId: uuid.NewString(),
	})
	if err != nil {
		return fmt.Errorf("forgetting: %w", err)
	}
	d.report = resp.GetReport()
	d.show("ForgetUser returned after %s", time.Since(began).Round(10*time.Millisecond))
	for _, s := range d.report.GetCounts() {
		d.show("%-17s %3d before, %d after", s.GetStore(), s.GetBefore(), s.GetAfter())
	}
	d.check(d.report.GetState() == memdv1.ErasureState_ERASURE_STATE_DONE && d.report.GetKey().GetKmsVersion() != "",
		"The report says done", "key epoch %d; destroyed: %s", d.report.GetKeyEpoch(), d.report.GetKey().GetKmsVersion())
	return nil
}

// deleteRows deletes what a program without memd's erasure would.
func (d *demo) deleteRows(ctx context.Context) error {
	rows, err := d.acme.list(ctx, mara)
	if err != nil {
		return err
	}
	for _, m := range rows {
		_, err := d.acme.api.Memory.Delete(ctx, &memdv1.DeleteRequest{
			Scope: d.acme.scope(mara), MemoryId: m.GetMemoryId(), DeleteDerived: true,
		})
		if err != nil {
			return fmt.Errorf("deleting a row: %w", err)
		}
	}
	d.show("%d rows, and what was derived from them", len(rows))
	return nil
}

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
	d.section("Counts")
	d.show("%d rows of acme and %d of globex stored; %d forgotten, %d of them derived rows in other scopes; acme's key tree is at epoch %d.",
		len(d.acme.texts), len(d.globex.texts), d.forgotten(), d.report.GetFallenTotal(), tree.epoch)
	return nil
}

// forgotten is how many rows the report counts.
func (d *demo) forgotten() int64 {
	for _, s := range d.report.GetCounts() {
		if s.GetStore() == "memories" {
			return s.GetBefore() - s.GetAfter()
		}
	}
	return 0
}
