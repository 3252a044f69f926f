package sessions

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlDeleteEvent = `
DELETE FROM memd.session_events WHERE tenant_no = @tenant AND subject_no = @subject AND session_no = @session AND seq = @seq`

const sqlDeleteSessionState = `
DELETE FROM memd.session_state WHERE tenant_no = @tenant AND subject_no = @subject AND session_no = @session AND key_digest = @digest`

const sqlDeleteUserState = `
DELETE FROM memd.user_state WHERE tenant_no = @tenant AND subject_no = @subject AND key_digest = @digest`

const sqlDeleteAppState = `
DELETE FROM memd.app_state WHERE tenant_no = @tenant AND app_no = @subject AND key_digest = @digest`

const sqlDeleteHead = `
DELETE FROM memd.session_heads WHERE tenant_no = @tenant AND subject_no = @subject AND session_no = @session`

// DeleteRow deletes a row by the name that a verifier has for it: of an event its
// subject, session and place, of state its subject, in a session that too, and the
// digest of its key, of a session's head its subject and session, with slashes in
// between. What belongs to a head is named by itself. It reports whether the table is one
// of this package's. A row that is gone is no error.
func DeleteRow(ctx context.Context, db pg.DB, tenant memd.TenantNo, table, id string) (bool, error) {
	sql, names := "", []string{"subject", "session", "seq"}
	switch table {
	case "session_events":
		sql = sqlDeleteEvent
	case "session_state":
		sql, names = sqlDeleteSessionState, []string{"subject", "session", "digest"}
	case "user_state":
		sql, names = sqlDeleteUserState, []string{"subject", "digest"}
	case "session_heads":
		sql, names = sqlDeleteHead, []string{"subject", "session"}
	case "app_state":
		sql, names = sqlDeleteAppState, []string{"subject", "digest"}
	default:
		return false, nil
	}
	parts := strings.Split(id, "/")
	if len(parts) != len(names) {
		return true, fmt.Errorf("%q names no row of %s: %w", id, table, memd.ErrCorrupt)
	}
	args := pg.Args{"tenant": tenant}
	for i, name := range names {
		var value any
		var err error
		if name == "digest" {
			value, err = hex.DecodeString(parts[i])
		} else {
			value, err = strconv.ParseInt(parts[i], 10, 64)
		}
		if err != nil {
			return true, fmt.Errorf("%q names no row of %s: %w", id, table, memd.ErrCorrupt)
		}
		args[name] = value
	}
	if _, err := db.Exec(ctx, sql, args); err != nil {
		return true, fmt.Errorf("deleting a row of %s: %w", table, err)
	}
	return true, nil
}
