package journal_test

import (
	"fmt"
	"regexp"
	"testing"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/journal"
)

// Everything that has to know of a kind of facts does: see the package comment.
func TestJournal_EveryKind(t *testing.T) {
	w := newWorld(t)
	text := func(sql string) (text string) {
		t.Helper()
		err := w.owner.With(t.Context(), func(db pg.DB) error { return db.QueryRow(t.Context(), sql).Scan(&text) })
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	places := []struct{ what, text, pattern string }{
		{"a trigger", text(`SELECT string_agg(pg_get_triggerdef(oid), ' ') FROM pg_trigger`), `note_facts?\('%d'`},
		{"replay_fact", text(`SELECT prosrc FROM pg_proc WHERE proname = 'replay_fact'`), `WHEN %d THEN`},
		{"note_all", text(`SELECT prosrc FROM pg_proc WHERE proname = 'note_all'`), `SELECT %d\b`},
	}
	kinds := 0
	for k := journal.Kind(1); k.String() != journal.KindUnknown.String(); k++ {
		kinds++
		for _, p := range places {
			if !regexp.MustCompile(fmt.Sprintf(p.pattern, k)).MatchString(p.text) {
				t.Errorf("%s does not know of kind %d, %s", p.what, int(k), k)
			}
		}
	}
	if n := w.number(`SELECT substring(pg_get_constraintdef(oid) FROM '<= (\d+)')::int FROM pg_constraint
		WHERE conrelid = 'memd.ledger_outbox'::regclass AND contype = 'c'`); n != kinds {
		t.Errorf("the outbox takes %d kinds of %d", n, kinds)
	}
}
