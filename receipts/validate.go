package receipts

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
)

// maxNumber is the largest integer that every reader of JSON keeps exactly.
const maxNumber = 1<<53 - 1

// maxItems bounds each list of a receipt.
const maxItems = 10_000

var (
	monthPattern  = regexp.MustCompile(`^[0-9]{4}-(0[1-9]|1[0-2])$`)
	tenantPattern = regexp.MustCompile(`^[a-z][a-z0-9-]{1,62}$`)
	// versionPattern is the name of a version of a tenant's key, the key id being
	// memd's own. Project, location and ring are the operator's.
	versionPattern = regexp.MustCompile(`^projects/[a-z][a-z0-9.:-]{0,61}/locations/[a-z0-9-]{1,40}/keyRings/[a-zA-Z0-9_-]{1,63}` +
		`/cryptoKeys/memd-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-[0-9]{1,19}/cryptoKeyVersions/[1-9][0-9]{0,18}$`)
)

// New returns r in its canonical form: lists sorted and never nil, times in UTC
// to the microsecond, Format, Key.PurgedAt and the checks' and purges' part of
// NotRun filled in. It returns a memd.InvalidError that names the first field
// that is wrong, without its value. r is not changed. New of its own result
// changes nothing.
func New(r Receipt) (Receipt, error) {
	r = canonical(r)
	v := &validator{}
	v.receipt(r)
	return r, v.err
}

func canonical(r Receipt) Receipt {
	r.Format = Format
	r.Approvals = sorted(r.Approvals, func(a, b Approval) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Principal.String(), b.Principal.String()))
	})
	for i := range r.Approvals {
		instant(&r.Approvals[i].At)
	}
	if r.Compaction != nil {
		c := *r.Compaction
		instant(&c.Started, &c.Finished)
		c.ResidueAfter, c.ResidueBefore = copied(c.ResidueAfter), copied(c.ResidueBefore)
		r.Compaction = &c
	}
	r.Checks = sorted(r.Checks, func(a, b Check) int { return cmp.Compare(a.Name, b.Name) })
	r.Holds = sorted(r.Holds, func(a, b Hold) int { return cmp.Compare(a.ID.String(), b.ID.String()) })
	for i := range r.Holds {
		instant(&r.Holds[i].PlacedAt, &r.Holds[i].ReleasedAt)
	}
	if r.Key != nil {
		key := *r.Key
		instant(&key.UnreadableAt, &key.DestroyedAt)
		if !key.DestroyedAt.IsZero() {
			key.PurgedAt = key.DestroyedAt.Add(PurgeAfter)
		}
		r.Key = &key
	}
	r.Purges = sorted(r.Purges, func(a, b Purge) int { return cmp.Compare(a.Target.String(), b.Target.String()) })
	for i := range r.Purges {
		p := &r.Purges[i]
		instant(&p.AcknowledgedAt, &p.ResidualUntil)
		p.After, p.Before, p.Erased = copied(p.After), copied(p.Before), copied(p.Erased)
	}
	r.NotRun = notRun(r)
	r.Residuals = sorted(r.Residuals, func(a, b Residual) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Provider, b.Provider), a.Until.Compare(b.Until),
			cmp.Compare(a.RetentionDays, b.RetentionDays), cmp.Compare(a.Count, b.Count))
	})
	for i := range r.Residuals {
		instant(&r.Residuals[i].Until)
	}
	r.Stores = sorted(r.Stores, func(a, b Store) int { return cmp.Compare(a.Name, b.Name) })
	instant(&r.Sweep.PlannedAt, &r.Times.Accepted, &r.Times.Erased, &r.Times.Fenced, &r.Times.Issued, &r.Times.Swept)
	if r.Expired != nil {
		expired := *r.Expired
		r.Expired = &expired
	}
	if r.Prior != nil {
		prior := *r.Prior
		r.Prior = &prior
	}
	if r.Tree != nil {
		tree := *r.Tree
		r.Tree = &tree
	}
	return r
}

// notRun joins what the caller lists with what the checks and purges say.
func notRun(r Receipt) []NotRun {
	all := slices.Clone(r.NotRun)
	for _, c := range r.Checks {
		if c.Result == CheckNotRun {
			all = append(all, NotRun{Reason: c.Reason, What: string(c.Name)})
		}
	}
	for _, p := range r.Purges {
		if p.Result == PurgeNotRun {
			all = append(all, NotRun{Reason: p.Reason, What: string(OmittedPurge)})
		}
	}
	all = sorted(all, func(a, b NotRun) int {
		return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Reason, b.Reason))
	})
	return slices.Compact(all)
}

// sorted returns a copy that is never nil.
func sorted[T any](s []T, compare func(a, b T) int) []T {
	s = append(make([]T, 0, len(s)), s...)
	slices.SortStableFunc(s, compare)
	return s
}

func copied(n *int64) *int64 {
	if n == nil {
		return nil
	}
	return new(*n)
}

func instant(times ...*time.Time) {
	for _, t := range times {
		if !t.IsZero() {
			*t = t.UTC().Truncate(time.Microsecond)
		}
	}
}

// validator keeps the first error.
type validator struct{ err error }

func (v *validator) refuse(field, problem string) {
	if v.err == nil {
		v.err = &memd.InvalidError{Field: field, Problem: problem}
	}
}

// word refuses what is not in the set, without repeating it.
func word[T ~string](v *validator, field string, w T, set []T) {
	if !slices.Contains(set, w) {
		v.refuse(field, "is not in the vocabulary of receipts")
	}
}

func (v *validator) number(field string, n, least int64) {
	if n < least || n > maxNumber {
		v.refuse(field, fmt.Sprintf("must be from %d to 2^53-1", least))
	}
}

func (v *validator) time(field string, t time.Time, required bool) {
	switch {
	case t.IsZero() && !required:
	case t.Year() < 2000 || t.Year() > 9999:
		v.refuse(field, "must be set and be in the years 2000 to 9999")
	}
}

func (v *validator) id(field string, id uuid.UUID) {
	if id == uuid.Nil {
		v.refuse(field, "must be set")
	}
}

func (v *validator) few(field string, n int) {
	if n > maxItems {
		v.refuse(field, fmt.Sprintf("must have at most %d items", maxItems))
	}
}

func (v *validator) receipt(r Receipt) {
	if r.Format != Format {
		v.refuse("format", "must be "+Format)
	}
	word(v, "kind", r.Kind, kinds)
	word(v, "stage", r.Stage, stages)
	if !tenantPattern.MatchString(r.Tenant) {
		v.refuse("tenant", "must be a tenant's name")
	}
	if r.Commitment.IsZero() {
		v.refuse("commitment", "must be set")
	}
	v.id("request_id", r.RequestID)
	v.number("fallen", r.Fallen, 0)
	v.expired(r)
	v.stage(r)
	v.checks(r.Checks)
	v.purges(r.Purges)
	v.rest(r)
	v.keys(r)
}

func (v *validator) expired(r Receipt) {
	switch x := r.Expired; {
	case (x != nil) != (r.Kind == Month):
		v.refuse("expired", "must be given of a month, and of nothing else")
	case x != nil:
		word(v, "expired.class", x.Class, retentionClasses)
		if !monthPattern.MatchString(x.Month) {
			v.refuse("expired.month", "must be a year and a month, as 2025-09")
		}
	}
}

func (v *validator) stage(r Receipt) {
	final := r.Stage == Final
	v.time("times.accepted", r.Times.Accepted, true)
	v.time("times.erased", r.Times.Erased, true)
	v.time("times.fenced", r.Times.Fenced, false)
	v.time("times.issued", r.Times.Issued, true)
	v.time("times.swept", r.Times.Swept, final)
	word(v, "sweep.state", r.Sweep.State, sweepStates)
	v.time("sweep.planned_at", r.Sweep.PlannedAt, !final)
	v.number("sweep.rows_found", r.Sweep.RowsFound, 0)
	switch {
	case final && (r.Prior == nil || r.Prior.IsZero()):
		v.refuse("prior", "must be set in a final receipt")
	case final && r.Sweep.State != SweepDone:
		v.refuse("sweep.state", "must be done in a final receipt")
	case !final && (r.Prior != nil || !r.Times.Swept.IsZero() || r.Sweep.State != SweepPlanned || r.Sweep.RowsFound != 0):
		v.refuse("stage", "must be final when the sweep is done")
	}
}

func (v *validator) checks(all []Check) {
	v.few("checks", len(all))
	for i, c := range all {
		field := func(name string) string { return fmt.Sprintf("checks[%d].%s", i, name) }
		word(v, field("name"), c.Name, checkNames)
		word(v, field("result"), c.Result, results)
		v.number(field("control_before"), c.ControlBefore, 0)
		v.number(field("count"), c.Count, 0)
		v.number(field("duration_us"), c.DurationMicros, 0)
		v.number(field("scanned"), c.Scanned, 0)
		v.number(field("unscanned"), c.Unscanned, 0)
		if c.Result != Pass || c.Reason != "" {
			word(v, field("reason"), c.Reason, reasons)
		}
		switch {
		case c.Result == Pass && c.Reason != "":
			v.refuse(field("reason"), "must be empty for a pass")
		case c.Result == Pass && c.ControlBefore == 0:
			v.refuse(field("control_before"), "must be at least 1 for a pass; without a control the result is not_run")
		case i > 0 && all[i-1].Name == c.Name:
			v.refuse(field("name"), "must be given once")
		}
	}
}

func (v *validator) purges(all []Purge) {
	v.few("purges", len(all))
	for i, p := range all {
		field := func(name string) string { return fmt.Sprintf("purges[%d].%s", i, name) }
		v.id(field("target"), p.Target)
		word(v, field("class"), p.Class, classes)
		word(v, field("result"), p.Result, purgeResults)
		v.number(field("attempts"), p.Attempts, 0)
		for name, n := range map[string]*int64{"after": p.After, "before": p.Before, "erased": p.Erased} {
			if n != nil {
				v.number(field(name), *n, 0)
			}
		}
		v.time(field("acknowledged_at"), p.AcknowledgedAt, p.Result == Acknowledged)
		v.time(field("residual_until"), p.ResidualUntil, false)
		if p.Result == PurgeNotRun {
			word(v, field("reason"), p.Reason, reasons)
		} else {
			word(v, field("code"), p.Code, purgeCodes)
		}
		switch {
		case p.Result == PurgeNotRun && (p.Code != "" || p.Attempts > 0):
			v.refuse(field("code"), "must be empty for a target that was not called")
		case p.Result != PurgeNotRun && p.Reason != "":
			v.refuse(field("reason"), "must be empty for a target that was called")
		case (p.Result == Acknowledged) != slices.Contains(acknowledging, p.Code):
			v.refuse(field("code"), "must be ok, uncounted or residual for an acknowledgement, and for nothing else")
		case p.Result != Acknowledged && !p.AcknowledgedAt.IsZero():
			v.refuse(field("acknowledged_at"), "must be empty unless the target acknowledged")
		case i > 0 && all[i-1].Target == p.Target:
			v.refuse(field("target"), "must be given once")
		}
	}
}

func (v *validator) rest(r Receipt) {
	v.few("approvals", len(r.Approvals))
	for i, a := range r.Approvals {
		v.time(fmt.Sprintf("approvals[%d].at", i), a.At, true)
		v.id(fmt.Sprintf("approvals[%d].principal", i), a.Principal)
	}
	v.compaction(r.Compaction)
	v.few("holds", len(r.Holds))
	for i, h := range r.Holds {
		v.id(fmt.Sprintf("holds[%d].id", i), h.ID)
		v.time(fmt.Sprintf("holds[%d].placed_at", i), h.PlacedAt, true)
		v.time(fmt.Sprintf("holds[%d].released_at", i), h.ReleasedAt, false)
	}
	v.few("residuals", len(r.Residuals))
	for i, d := range r.Residuals {
		word(v, fmt.Sprintf("residuals[%d].kind", i), d.Kind, residualKinds)
		word(v, fmt.Sprintf("residuals[%d].provider", i), d.Provider, providers)
		v.number(fmt.Sprintf("residuals[%d].count", i), d.Count, 0)
		v.number(fmt.Sprintf("residuals[%d].retention_days", i), d.RetentionDays, -1)
		v.time(fmt.Sprintf("residuals[%d].until", i), d.Until, false)
	}
	v.few("stores", len(r.Stores))
	for i, s := range r.Stores {
		word(v, fmt.Sprintf("stores[%d].name", i), s.Name, storeNames)
		v.number(fmt.Sprintf("stores[%d].after", i), s.After, 0)
		v.number(fmt.Sprintf("stores[%d].before", i), s.Before, 0)
		if i > 0 && r.Stores[i-1].Name == s.Name {
			v.refuse(fmt.Sprintf("stores[%d].name", i), "must be given once")
		}
	}
	v.few("not_run", len(r.NotRun))
	for i, n := range r.NotRun {
		if !slices.Contains(omissions, Omission(n.What)) {
			word(v, fmt.Sprintf("not_run[%d].what", i), CheckName(n.What), checkNames)
		}
		word(v, fmt.Sprintf("not_run[%d].reason", i), n.Reason, reasons)
	}
}

func (v *validator) compaction(c *Compaction) {
	if c == nil {
		return
	}
	word(v, "compaction.mode", c.Mode, compactionModes)
	v.time("compaction.started", c.Started, true)
	v.time("compaction.finished", c.Finished, true)
	numbers := map[string]*int64{
		"blocked_us": &c.BlockedMicros, "bytes_after": &c.BytesAfter, "bytes_before": &c.BytesBefore, "tables": &c.Tables,
		"residue_after": c.ResidueAfter, "residue_before": c.ResidueBefore,
	}
	for name, n := range numbers {
		if n != nil {
			v.number("compaction."+name, *n, 0)
		}
	}
}

func (v *validator) keys(r Receipt) {
	if r.Key == nil || r.Tree == nil {
		if !slices.ContainsFunc(r.NotRun, func(n NotRun) bool { return n.What == string(OmittedRotation) }) {
			v.refuse("not_run", "must name key_rotation where no key or no tree is given")
		}
	}
	if k := r.Key; k != nil {
		if !versionPattern.MatchString(k.Version) {
			v.refuse("key.version", "must be the name of a version of a tenant's key")
		}
		word(v, "key.state", k.State, keyStates)
		v.time("key.unreadable_at", k.UnreadableAt, true)
		v.time("key.destroyed_at", k.DestroyedAt, true)
		if k.DestroyedAt.Before(k.UnreadableAt) {
			v.refuse("key.destroyed_at", "must not be before unreadable_at")
		}
	}
	if t := r.Tree; t != nil {
		v.number("tree.before.epoch", t.Before.Epoch, 1)
		v.number("tree.after.epoch", t.After.Epoch, 1)
		switch {
		case t.Before.Digest.IsZero() || t.After.Digest.IsZero():
			v.refuse("tree", "must have both digests")
		case t.After.Epoch <= t.Before.Epoch:
			v.refuse("tree.after.epoch", "must be above that before")
		}
	}
}
