package pg_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd/internal/pg"
)

func TestArgs_RewriteQuery(t *testing.T) {
	const sql = `SELECT @a, @b::int, '@c', @a`
	for range 2 { // the second time from what the first read
		got, args, err := pg.Args{"a": 1, "b": "two"}.RewriteQuery(t.Context(), nil, sql, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]any{1, "two"}, args); diff != "" || got != `SELECT $1, $2::int, '@c', $1` {
			t.Errorf("%s\n%s", got, diff)
		}
		for name, wrong := range map[string]pg.Args{
			"a missing argument":      {"a": 1},
			"an argument too many":    {"a": 1, "b": 2, "c": 3},
			"another name in a place": {"a": 1, "c": 2},
		} {
			if _, _, err := wrong.RewriteQuery(t.Context(), nil, sql, nil); err == nil {
				t.Errorf("%s is accepted", name)
			}
		}
	}
	if _, _, err := (pg.Args{"a": 1}).RewriteQuery(t.Context(), nil, `SELECT @a, @z`, nil); err == nil {
		t.Error("a new statement with a missing argument is accepted")
	}
}
