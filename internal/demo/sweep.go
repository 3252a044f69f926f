package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/dev"
)

// putBack puts a row of Mara's from the restored copy into the live table as a
// superuser with triggers off, past every guard. The second sweep has to find it.
func (d *demo) putBack(ctx context.Context) (err error) {
	copied, err := openWitness(ctx, d.dev.Cluster.URL(restoredBefore, ""))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, copied.close()) }()
	id := uuid.MustParse(d.acme.added["mara-2025-03-night"][0])
	row, err := copied.wholeRow(ctx, d.acme.tenant, id)
	if err != nil {
		return err
	}
	past, err := openWitness(ctx, d.dev.Cluster.URL(dev.Database, ""))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, past.close()) }()
	if err := past.withoutTriggers(ctx); err != nil {
		return err
	}
	if err := past.putBack(ctx, row); err != nil {
		return fmt.Errorf("putting a row back: %w", err)
	}
	d.planted = id
	return nil
}

// checkSweep waits for the second sweep of the erasure and looks for what it had
// to find.
func (d *demo) checkSweep(ctx context.Context) error {
	d.section("The second sweep, after acme's ingestion delay of %s", ingestionDelay)
	there, looked := true, "nobody was forgotten, so there is none"
	if d.request != "" {
		d.show("a superuser has put a row of hers back meanwhile, from the backup, with triggers off")
		if err := d.watch(ctx, memdv1.ErasureState_ERASURE_STATE_FINAL); err != nil {
			return err
		}
		var err error
		if there, err = d.live.isThere(ctx, d.acme.tenant, d.planted); err != nil {
			return err
		}
		swept, results := map[string]int64{}, map[string]int64{}
		for _, c := range d.report.GetSwept() {
			swept[c.GetStore()] = c.GetBefore()
		}
		for _, c := range d.report.GetChecks() {
			results[c.GetResult()]++
		}
		looked = fmt.Sprintf("state %s; by SQL the row is there: %t; the sweep found: %s; verified again: %s",
			strings.TrimPrefix(d.report.GetState().String(), "ERASURE_STATE_"), there, countsText(swept), countsText(results))
		there = there || swept["memories"] != 1 || results["fail"] > 0 || results["pass"] == 0
	}
	d.check(!there && d.report.GetState() == memdv1.ErasureState_ERASURE_STATE_FINAL,
		"It found the row, erased it, looked everywhere again, and the erasure is final", "%s", looked)
	return nil
}
