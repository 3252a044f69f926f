package pg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// The roles and their settings, as the first migration makes them. They are the
// cluster's, and no dump carries them.
const sqlEnsureRoles = `
DO $$
DECLARE
  r text;
BEGIN
  FOREACH r IN ARRAY ARRAY['memd_app', 'memd_worker', 'memd_maintain'] LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I LOGIN', r);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;
    END;
    BEGIN
      EXECUTE format('ALTER ROLE %I SET log_min_messages = ''log''', r);
      EXECUTE format('ALTER ROLE %I SET log_min_error_statement = ''panic''', r);
    EXCEPTION WHEN insufficient_privilege THEN
      NULL;
    END;
  END LOOP;
  ALTER ROLE memd_app SET statement_timeout = '30s';
  ALTER ROLE memd_app SET idle_in_transaction_session_timeout = '10s';
  ALTER ROLE memd_worker SET idle_in_transaction_session_timeout = '60s';
END $$`

// EnsureRoles makes memd's roles where a dump is to be restored. Safe to repeat.
func EnsureRoles(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, sqlEnsureRoles); err != nil {
		return Classify(fmt.Errorf("making the roles: %w", err))
	}
	return nil
}
