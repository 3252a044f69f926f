package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// checkLive looks at the service that everybody uses.
func (d *demo) checkLive(ctx context.Context) error {
	d.section("In the live service")
	hits := 0
	for _, q := range maraQueries {
		found, err := d.acme.search(ctx, mara, q, false)
		if err != nil {
			return err
		}
		hits += len(found)
	}
	rows, err := d.acme.list(ctx, mara)
	if err != nil {
		return err
	}
	d.check(hits == 0 && len(rows) == 0, "Search finds nothing of Mara's",
		"the same %d searches: %d hits before, %d now; listed: %d rows", len(maraQueries), d.before.hits, hits, len(rows))
	left, err := d.live.trace(ctx, d.acme.tenant, d.mara.number, d.mara.memories)
	if err != nil {
		return err
	}
	d.check(left.total() == 0, "The tables hold no memory of hers, nor one with her words in it",
		"by SQL, as superuser: %s; before: %d in all. Stubs in the directory stay, sealed", left, d.before.trace.total())
	if err := d.checkKept(ctx); err != nil {
		return err
	}
	d.checkOutside()
	if err := d.checkShared(ctx); err != nil {
		return err
	}
	now, err := d.others(ctx)
	if err != nil {
		return err
	}
	same, rowsSeen, keptSeen := 0, 0, 0
	for name, v := range now {
		rowsSeen += len(v.rows)
		keptSeen += v.kept.total()
		if v.equal(d.before.others[name].without(d.derived.falls())) {
			same++
		}
	}
	d.check(same == len(now) && len(now) == len(d.before.others), "Everybody else sees what they saw, scores included",
		"%d of %d scopes of acme and globex with %d memories and %d events, notes and files, one of globex's the same user id as Mara's", same, len(now), rowsSeen, keptSeen)
	return nil
}

// checkKept looks for Mara's conversations, state and files, as her agent would
// and by SQL.
func (d *demo) checkKept(ctx context.Context) error {
	now, err := d.kept(ctx, d.acme, mara)
	if err != nil {
		return err
	}
	left, err := d.live.traceKept(ctx, d.acme.tenant, d.mara.number)
	if err != nil {
		return err
	}
	d.check(now.total() == 0 && left.total() == 0 && now.missing == len(d.mara.sessions),
		"Her conversations, what was noted about her, and her files are gone",
		"by API: %d conversations NOT_FOUND, %s; by SQL: %d rows, %d before", now.missing, now, left.total(), d.before.traceKept.total())
	return nil
}

// checkShared looks for what was drawn from Mara's words and shared.
func (d *demo) checkShared(ctx context.Context) error {
	gone, said := 0, []string{}
	for id, user := range map[string]string{d.derived.household: jonas, d.derived.notice: ""} {
		_, err := d.acme.api.Memory.Get(ctx, &memdv1.GetRequest{Scope: d.acme.scope(user), MemoryId: id})
		reason := memdv1.Reason_REASON_UNSPECIFIED
		if err != nil {
			reason = d.c.Reason(err)
		}
		if reason == memdv1.Reason_REASON_NOT_FOUND {
			gone++
		}
		said = append(said, name(reason))
	}
	var fell []string
	surviving := 0
	for _, f := range d.report.GetFallen() {
		fell = append(fell, f.GetMemoryId())
		surviving += len(f.GetSurvivingSources())
	}
	d.check(gone == 2 && slices.Contains(fell, d.derived.household) && slices.Contains(fell, d.derived.notice),
		"The summary that Jonas shared with Mara is gone, and so is the notice that was drawn from it",
		"both asked for by id: %s; the report names %d fallen rows, with %d sources left to derive from again",
		strings.Join(said, ", "), len(fell), surviving)
	rows, err := d.acme.list(ctx, jonas)
	if err != nil {
		return err
	}
	own := 0
	for _, m := range rows {
		if m.GetText() == d.acme.texts[m.GetMemoryId()] && !slices.Contains(d.derived.falls(), m.GetMemoryId()) {
			own++
		}
	}
	d.check(own == d.before.jonasRows && own > 0, "Jonas's own rows are not",
		"%d of %d, word for word", own, d.before.jonasRows)
	return nil
}

// checkBackup restores the old dump into a second database and tries to read it
// with everything that there is: the worker's identity at the key service, the
// tree in the dump, and the current one.
func (d *demo) checkBackup(ctx context.Context) error {
	d.section("In the backup that was taken before, restored beside")
	copied, err := d.restore(ctx, restoredAfter)
	if err != nil {
		return err
	}
	defer func() { _ = copied.close() }()
	current, err := d.keysOf(ctx, d.live, d.acme.tenant)
	if err != nil {
		return err
	}
	defer current.Drop()
	hers, rest, err := d.split(ctx, copied)
	if err != nil {
		return err
	}
	blob, err := copied.tree(ctx, d.acme.tenant)
	if err != nil {
		return err
	}
	old, oldErr := d.keys.open(ctx, blob)
	withOld, refusal := reading{}, "the tree in the dump opens"
	if oldErr == nil {
		withOld = read(old, hers, d.acme.texts)
		old.Drop()
	} else if shredded(oldErr) {
		refusal = "the key service refuses the tree in the dump (" + blob.version[strings.LastIndex(blob.version, "/")+1:] + " is destroyed)"
	} else {
		return fmt.Errorf("asking for the tree in the dump: %w", oldErr)
	}
	kept, keptRest, err := d.splitKept(ctx, copied)
	if err != nil {
		return err
	}
	keptNew := readKept(current, kept, d.acme.said)
	withNew := read(current, hers, d.acme.texts)
	d.check(withOld.total() == 0 && withNew.shredded == len(hers) && len(hers) == d.before.backup.opened,
		"Mara's rows are all there, and none can be read, with the key service at hand",
		"%d rows; %s; with the current tree %d open and %d have no key", len(hers), refusal, withNew.opened, withNew.shredded)

	d.check(keptNew.shredded == len(kept) && len(kept) == d.before.inDump.opened && shredded(oldErr),
		"Nor can an event, an entry of state or a file of hers, with its name",
		"%d of them; with the current tree %d open and %d have no key", len(kept), keptNew.opened, keptNew.shredded)

	userID, sessions, err := copied.directory(ctx, d.acme.tenant, d.mara.number)
	if err != nil {
		return err
	}
	names := 0
	if _, err := current.OpenUserID(d.mara.number, userID); shredded(err) {
		names++
	}
	for n, sealed := range sessions {
		if _, err := current.OpenSessionID(d.mara.number, n, sealed); shredded(err) {
			names++
		}
	}
	d.check(names == 1+len(sessions) && len(sessions) > 0, "Nor can her name in the directory, nor those of her conversations",
		"%d of %d sealed ids have no key", names, 1+len(sessions))

	others, othersKept := read(current, rest, d.acme.texts), readKept(current, keptRest, d.acme.said)
	d.check(others.opened == len(rest) && len(rest) > 0 && othersKept.opened == len(keptRest) && len(keptRest) > 0,
		"Everybody else's rows in the same dump open with acme's current tree",
		"%d of %d memories and %d of %d of what was kept, word for word", others.opened, len(rest), othersKept.opened, len(keptRest))
	return d.checkGlobex(ctx, copied)
}

// checkGlobex makes sure that another tenant's keys were not so much as touched.
func (d *demo) checkGlobex(ctx context.Context, copied *witness) error {
	rows, err := copied.rows(ctx, d.globex.tenant)
	if err != nil {
		return err
	}
	was, err := copied.tree(ctx, d.globex.tenant)
	if err != nil {
		return err
	}
	is, err := d.live.tree(ctx, d.globex.tenant)
	if err != nil {
		return err
	}
	k, err := d.keys.open(ctx, was)
	if err != nil {
		return fmt.Errorf("opening globex's tree: %w", err)
	}
	defer k.Drop()
	r := read(k, rows, d.globex.texts)
	d.check(r.opened == len(rows) && len(rows) > 0 && was.version == is.version && was.epoch == is.epoch, "Globex was not touched",
		"%d of %d rows of the dump open; key epoch %d then and now, under the same key version", r.opened, len(rows), is.epoch)
	return nil
}

// name is a reason as the API spells it.
func name(r memdv1.Reason) string {
	if r == memdv1.Reason_REASON_UNSPECIFIED {
		return "no error"
	}
	return strings.TrimPrefix(r.String(), "REASON_")
}
