package canary

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// A purged tenant's line ends with an epoch that has no tree.
const sqlHead = `
SELECT k.kms_key, t.epoch, t.kms_version, t.sealed
FROM memd.tenant_keys k JOIN memd.key_trees t ON t.tenant_no = k.tenant_no AND t.epoch <= k.epoch
WHERE k.tenant_no = @tenant ORDER BY t.epoch DESC LIMIT 1`

// A purged tenant has no head: its last states are those before the epoch.
const sqlLine = `SELECT k.kms_key, k.epoch FROM memd.tenant_keys k WHERE k.tenant_no = @tenant`

const sqlOldTrees = `
SELECT t.epoch, t.kms_version, t.sealed FROM memd.key_trees t
WHERE t.tenant_no = @tenant AND t.epoch < @before ORDER BY t.epoch DESC LIMIT @limit`

const sqlPunctured = `
SELECT max(p.epoch) FROM memd.punctures p WHERE p.tenant_no = @tenant AND p.path = ANY (@paths::text[])`

// oldTrees is how many states before the puncture are tried, newest first, in
// the database and in each ledger. That no version older than theirs is usable
// either, the list of all versions says.
const oldTrees = 4

// state is a key tree as the database or a ledger has it, sealed.
type state struct {
	key, version string
	epoch        int64
	sealed       []byte
}

// head reads the tenant's current state from the database.
func (v *Verifier) head(ctx context.Context, tenant memd.TenantNo) (s state, err error) {
	err = v.c.Pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, sqlHead, pg.Args{"tenant": tenant}).Scan(&s.key, &s.epoch, &s.version, &s.sealed)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = memd.ErrNotFound
	}
	if err != nil {
		return s, fmt.Errorf("reading the key tree: %w", err)
	}
	return s, nil
}

// line reads the name of the tenant's key, and the epoch that it has come to.
func (v *Verifier) line(ctx context.Context, tenant memd.TenantNo) (key string, epoch int64, err error) {
	err = v.c.Pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, sqlLine, pg.Args{"tenant": tenant}).Scan(&key, &epoch)
	})
	if err != nil {
		return "", 0, fmt.Errorf("reading the tenant's key: %w", err)
	}
	return key, epoch, nil
}

// paths are the nodes of the tree that must be gone.
func (e *exam) paths() []shred.Path {
	var out []shred.Path
	if e.Month > 0 {
		return []shred.Path{shred.MonthPath(e.Class, e.Month)}
	}
	for _, t := range e.Target {
		switch {
		case t.Session == 0:
			out = append(out, shred.SubjectPath(t.Subject))
		case e.Content:
			out = append(out, shred.SessionPath(t.Subject, memd.ClassContent, t.Session))
		default:
			out = append(out, shred.SessionPath(t.Subject, memd.ClassContent, t.Session),
				shred.SessionPath(t.Subject, memd.ClassMemory, t.Session))
		}
	}
	return out
}

// derivable counts the paths that a state still covers.
func derivable(t *shred.Tree, paths []shred.Path) (n int64) {
	for _, p := range paths {
		if !t.Erased(p) {
			n++
		}
	}
	return n
}

// open unwraps a state now: nothing is cached here, so that what the KMS says is
// what it says at this moment. The caller zeroes the tree.
func (v *Verifier) open(ctx context.Context, s state) (*shred.Tree, error) {
	t, _, err := shred.OpenTree(ctx, v.c.KMS, s.key, s.sealed)
	return t, err
}

// treePrefix is where a ledger keeps a tenant's states, by epoch in twenty digits.
func treePrefix(tenant memd.TenantNo) string { return fmt.Sprintf("trees/%d/", tenant) }

// ledgerStates reads the newest states of one ledger, newest first.
func (v *Verifier) ledgerStates(ctx context.Context, i int, tenant memd.TenantNo, key string, before int64, limit int) ([]state, error) {
	names, err := v.c.Ledgers[i].List(ctx, treePrefix(tenant))
	if err != nil {
		return nil, err
	}
	var out []state
	for n := len(names) - 1; n >= 0 && len(out) < limit; n-- {
		epoch, err := strconv.ParseInt(strings.TrimPrefix(names[n], treePrefix(tenant)), 10, 64)
		if err != nil || before > 0 && epoch >= before {
			continue
		}
		s := state{key: key, epoch: epoch}
		if s.sealed, err = v.c.Ledgers[i].Get(ctx, names[n]); err != nil {
			return nil, err
		}
		if _, _, s.version, err = shred.ParseTreeHeader(s.sealed); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// drawKeys notes, before the erasure, what must not be possible after it: the
// head opens and derives, in the database and in every ledger.
func (v *Verifier) drawKeys(ctx context.Context, e *exam, d *drawn, before map[string]int64) error {
	head, err := v.head(ctx, e.Tenant)
	if err != nil {
		return err
	}
	tree, err := v.open(ctx, head)
	if err != nil {
		return fmt.Errorf("opening the key tree: %w", err)
	}
	defer tree.Zero()
	d.Epoch = head.epoch
	paths := e.paths()
	before[CheckDerivation] = derivable(tree, paths)
	if before[CheckDerivation] > 0 || e.Whole {
		before[CheckOldEpochs] = 1
	}
	version, err := v.c.KMS.Get(ctx, head.version)
	if err != nil {
		return fmt.Errorf("asking for the key version: %w", err)
	}
	if version.State == shred.VersionEnabled && before[CheckOldEpochs] > 0 {
		before[CheckVersions] = 1
	}
	for i := range v.c.Ledgers {
		newest, err := v.ledgerStates(ctx, i, e.Tenant, head.key, 0, 1)
		if err != nil {
			return fmt.Errorf("reading ledger %d: %w", i, err)
		}
		for _, s := range newest {
			t, err := v.open(ctx, s)
			if err != nil {
				continue // The worker may be writing a state just now.
			}
			before[CheckLedger] += derivable(t, paths)
			t.Zero()
		}
	}
	if e.Whole {
		return nil
	}
	if e.Month > 0 {
		for _, m := range e.neighbourMonths() {
			before[CheckNeighbour] += derivable(tree, []shred.Path{shred.MonthPath(m.class, m.month)})
		}
		return nil
	}
	d.Neighbours, err = v.neighbours(ctx, e)
	if err != nil {
		return err
	}
	for _, c := range d.Neighbours {
		if _, err := tree.Derive(shred.SessionPath(c.Subject, memd.ClassMemory, c.Session)); err == nil {
			before[CheckNeighbour]++
		}
	}
	return nil
}

// maxNeighbours is how many others are asked whether their keys derive.
const maxNeighbours = 8

// Others of the tenant, and, of a session, the rest of its user.
const sqlNeighbours = `
SELECT s.subject_no FROM memd.subjects s
WHERE s.tenant_no = @tenant AND s.retired_at IS NULL AND s.subject_no <> ALL (@subjects::bigint[])
  AND NOT EXISTS (SELECT FROM memd.fences f WHERE f.tenant_no = s.tenant_no AND f.user_ref = s.user_ref AND f.state IN (1, 2))
ORDER BY s.subject_no DESC LIMIT @limit`

const sqlStillThere = `
SELECT s.subject_no FROM memd.subjects s
WHERE s.tenant_no = @tenant AND s.retired_at IS NULL AND s.subject_no = ANY (@subjects::bigint[])
  AND NOT EXISTS (SELECT FROM memd.fences f WHERE f.tenant_no = s.tenant_no AND f.user_ref = s.user_ref AND f.state IN (1, 2))`

func (v *Verifier) neighbours(ctx context.Context, e *exam) ([]memd.Contribution, error) {
	var wholly []memd.Number // subjects that go as a whole
	for _, t := range e.Target {
		if t.Session == 0 {
			wholly = append(wholly, t.Subject)
		}
	}
	if wholly == nil {
		wholly = []memd.Number{}
	}
	return v.ownScopes(ctx, sqlNeighbours, pg.Args{"tenant": e.Tenant, "subjects": wholly, "limit": maxNeighbours})
}

func (v *Verifier) ownScopes(ctx context.Context, sql string, args pg.Args) ([]memd.Contribution, error) {
	var out []memd.Contribution
	err := v.c.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sql, args)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (memd.Contribution, error) {
			c := memd.Contribution{Session: memd.OwnScope}
			return c, r.Scan(&c.Subject)
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("finding subjects: %w", err)
	}
	return out, nil
}

// checkKeys asks database, ledgers and KMS for the keys of what went.
func (v *Verifier) checkKeys(ctx context.Context, e *exam, before map[string]int64, d *drawn) ([]memd.Check, error) {
	names := []string{CheckDerivation, CheckLedger, CheckNeighbour, CheckOldEpochs, CheckVersions}
	all := func(reason string) []memd.Check {
		out := make([]memd.Check, len(names))
		for i, name := range names {
			out[i] = notRun(name, reason, before[name])
		}
		return out
	}
	if e.KeysLater {
		return all(reasonPolicy), nil
	}
	if e.Whole {
		return v.checkLastKey(ctx, e, before)
	}
	head, err := v.head(ctx, e.Tenant)
	if errors.Is(err, memd.ErrNotFound) {
		return all(reasonUnavailable), nil
	}
	if err != nil {
		return nil, err
	}
	began := time.Now()
	tree, err := v.open(ctx, head)
	if err != nil {
		v.c.Logger.WarnContext(ctx, "the key tree could not be opened for verification", "tenant_no", e.Tenant, "epoch", head.epoch, "error", err)
		return all(reasonKMS), nil
	}
	defer tree.Zero()
	paths := e.paths()
	punctured, err := v.punctured(ctx, e, d, head)
	if err != nil {
		return nil, err
	}
	derivation := judge(CheckDerivation, before[CheckDerivation], derivable(tree, paths), reasonDerives)
	neighbour, err := v.checkNeighbours(ctx, e, before, d, tree)
	if err != nil {
		return nil, err
	}
	derivation.Duration = time.Since(began)
	return []memd.Check{
		derivation, v.checkLedgers(ctx, e, before, head, paths), neighbour,
		v.checkOldEpochs(ctx, e, before, head, punctured), v.checkVersions(ctx, e, before, head, punctured),
	}, nil
}

// punctured returns the first epoch in which everything of the target is gone,
// as the journal has it. Later ones may be in the making, for somebody else, and
// are not judged here.
func (v *Verifier) punctured(ctx context.Context, e *exam, d *drawn, head state) (int64, error) {
	paths := make([]string, 0, len(e.Target))
	for _, p := range e.paths() {
		paths = append(paths, string(p))
	}
	var epoch *int64
	err := v.c.Pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, sqlPunctured, pg.Args{"tenant": e.Tenant, "paths": paths}).Scan(&epoch)
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("reading punctures: %w", err)
	case epoch != nil:
		return *epoch, nil
	case d != nil:
		return d.Epoch + 1, nil
	}
	return head.epoch, nil
}

func (v *Verifier) checkNeighbours(ctx context.Context, e *exam, before map[string]int64, d *drawn, tree *shred.Tree) (memd.Check, error) {
	if e.Month > 0 {
		return v.checkMonths(ctx, e, before, tree)
	}
	if d == nil || len(d.Neighbours) == 0 {
		return notRun(CheckNeighbour, reasonNoNeighbour, before[CheckNeighbour]), nil
	}
	subjects := make([]memd.Number, len(d.Neighbours))
	for i, c := range d.Neighbours {
		subjects[i] = c.Subject
	}
	now, err := v.ownScopes(ctx, sqlStillThere, pg.Args{"tenant": e.Tenant, "subjects": subjects})
	if err != nil {
		return memd.Check{}, err
	}
	var harmed int64
	for _, c := range now {
		if _, err := tree.Derive(shred.SessionPath(c.Subject, memd.ClassMemory, c.Session)); err != nil {
			harmed++
		}
	}
	c := judge(CheckNeighbour, before[CheckNeighbour], harmed, reasonHarmed)
	if len(now) == 0 {
		c = notRun(CheckNeighbour, reasonNoNeighbour, before[CheckNeighbour])
	}
	return c, nil
}
