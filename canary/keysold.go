package canary

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// checkLedgers demands that every ledger has the head that the database has, and
// that the newest state of each derives nothing of what went.
func (v *Verifier) checkLedgers(ctx context.Context, e *exam, before map[string]int64, head state, paths []shred.Path) memd.Check {
	began := time.Now()
	if len(v.c.Ledgers) == 0 {
		return notRun(CheckLedger, reasonNotSet, before[CheckLedger])
	}
	var derives, behind int64
	for i := range v.c.Ledgers {
		newest, err := v.ledgerStates(ctx, i, e.Tenant, head.key, 0, 1)
		if err != nil {
			v.c.Logger.WarnContext(ctx, "a ledger could not be read for verification", "tenant_no", e.Tenant, "ledger", i, "error", err)
			return notRun(CheckLedger, reasonLedger, before[CheckLedger])
		}
		if len(newest) == 0 || newest[0].epoch < head.epoch ||
			newest[0].epoch == head.epoch && !bytes.Equal(newest[0].sealed, head.sealed) {
			behind++
			continue
		}
		t, err := v.open(ctx, newest[0])
		if err != nil {
			return notRun(CheckLedger, reasonKMS, before[CheckLedger])
		}
		derives += derivable(t, paths)
		t.Zero()
	}
	c := judge(CheckLedger, before[CheckLedger], derives, reasonDerives)
	if derives == 0 && behind > 0 {
		c.Result, c.Reason, c.CountAfter = memd.ResultFail, reasonIncomplete, behind
	}
	c.Duration = time.Since(began)
	return c
}

// checkOldEpochs tries to unwrap the states from before the puncture, as they
// are in the database and in the ledgers. Only the KMS's word that the version
// may not be used counts as refused.
func (v *Verifier) checkOldEpochs(ctx context.Context, e *exam, before map[string]int64, head state, punctured int64) memd.Check {
	began := time.Now()
	var old []state
	err := v.c.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sqlOldTrees, pg.Args{"tenant": e.Tenant, "before": punctured, "limit": oldTrees})
		if err != nil {
			return err
		}
		old, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (state, error) {
			s := state{key: head.key}
			return s, r.Scan(&s.epoch, &s.version, &s.sealed)
		})
		return err
	})
	if err != nil {
		return notRun(CheckOldEpochs, reasonUnavailable, before[CheckOldEpochs])
	}
	for i := range v.c.Ledgers {
		more, err := v.ledgerStates(ctx, i, e.Tenant, head.key, punctured, oldTrees)
		if err != nil {
			return notRun(CheckOldEpochs, reasonLedger, before[CheckOldEpochs])
		}
		old = append(old, more...)
	}
	var usable, refused int64
	for _, s := range old {
		t, err := v.open(ctx, s)
		switch {
		case err == nil:
			t.Zero()
			usable++
		case errors.Is(err, memd.ErrShredded):
			refused++
		default: // An outage refuses too, and proves nothing.
			return notRun(CheckOldEpochs, reasonKMS, before[CheckOldEpochs])
		}
	}
	if head.epoch < punctured {
		usable++ // The head is from before: nothing was rotated.
	}
	c := judge(CheckOldEpochs, before[CheckOldEpochs], usable, reasonUsable)
	if c.Result == memd.ResultPass && refused == 0 {
		c = notRun(CheckOldEpochs, reasonNothing, before[CheckOldEpochs])
	}
	if before[CheckOldEpochs] == 0 && e.nothing(before) {
		c = notRun(CheckOldEpochs, reasonNothing, 0)
	}
	c.Scanned, c.Duration = int64(len(old)), time.Since(began)
	return c
}

// nothing reports that no key of the target was there to be destroyed.
func (e *exam) nothing(before map[string]int64) bool {
	return !e.Whole && (len(e.paths()) == 0 || before != nil && before[CheckDerivation] == 0)
}

// checkVersions lists every version of the key: none that is older than the one
// under which the target is gone may be usable, or made usable again by anybody
// but an operator who restores it.
func (v *Verifier) checkVersions(ctx context.Context, e *exam, before map[string]int64, head state, punctured int64) memd.Check {
	began := time.Now()
	if e.nothing(before) {
		return notRun(CheckVersions, reasonNothing, 0)
	}
	bound := number(head.version)
	if punctured < head.epoch {
		// Between the two, somebody else's rotation may be under way.
		for i := range v.c.Ledgers {
			states, err := v.ledgerStates(ctx, i, e.Tenant, head.key, punctured+1, 1)
			if err != nil {
				return notRun(CheckVersions, reasonLedger, before[CheckVersions])
			}
			if len(states) > 0 && states[0].epoch == punctured {
				bound = number(states[0].version)
			}
		}
	}
	versions, err := v.c.KMS.List(ctx, head.key)
	if err != nil {
		return notRun(CheckVersions, reasonKMS, before[CheckVersions])
	}
	var usable, dead int64
	for _, version := range versions {
		switch n := number(version.Name); {
		case n >= bound && punctured <= head.epoch:
		case version.State.Doomed():
			dead++
		default:
			usable++
		}
	}
	c := judge(CheckVersions, before[CheckVersions], usable, reasonUsable)
	if c.Result == memd.ResultPass && dead == 0 {
		c = notRun(CheckVersions, reasonNothing, before[CheckVersions])
	}
	c.Scanned, c.Duration = int64(len(versions)), time.Since(began)
	return c
}

// checkLastKey is checkKeys for a whole tenant: no state opens, and no version
// is left.
func (v *Verifier) checkLastKey(ctx context.Context, e *exam, before map[string]int64) ([]memd.Check, error) {
	key, epoch, err := v.line(ctx, e.Tenant)
	if err != nil {
		return nil, err
	}
	after := epoch + 1
	return []memd.Check{
		notRun(CheckDerivation, reasonNotMeant, 0), notRun(CheckLedger, reasonNotMeant, 0), notRun(CheckNeighbour, reasonNotMeant, 0),
		v.checkOldEpochs(ctx, e, before, state{key: key, epoch: after}, after),
		v.checkVersions(ctx, e, before, state{key: key, epoch: epoch}, after),
	}, nil
}

// number returns the number of a version, the last part of its name.
func number(version string) int64 {
	n, err := strconv.ParseInt(version[strings.LastIndexByte(version, '/')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
