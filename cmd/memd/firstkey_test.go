package main

import (
	"strings"
	"testing"

	"forgettable.dev/memd/internal/pgtest"
)

func TestFirstKey_IsMadeOnce(t *testing.T) {
	db := pgtest.Database(t)
	for _, c := range []struct {
		args   []string
		status int
	}{
		{nil, exitOK},
		{nil, exitFailure},
		{[]string{"--another"}, exitOK},
	} {
		args := append([]string{"first-key", "--database-url=" + db.URL("")}, c.args...)
		status, stdout, stderr := invoke(t, "", "", args...)
		if status != c.status || (status == exitOK) != strings.HasPrefix(stdout, "memd_") || strings.Contains(stderr, "memd_") {
			t.Errorf("%v: status %d, %q, %q", c.args, status, stdout, stderr)
		}
	}
}
