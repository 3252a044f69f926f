package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// traceOfKept is how many rows of each table of sessions and artifacts are about
// a subject.
type traceOfKept struct {
	Conversations, Events, State, UserState, AppState, Files, Chunks int64
}

func (t traceOfKept) total() int64 {
	return t.Conversations + t.Events + t.State + t.UserState + t.AppState + t.Files + t.Chunks
}

func (t traceOfKept) String() string {
	return fmt.Sprintf("session_heads %d, session_events %d, session_state %d, user_state %d, app_state of hers %d, artifacts %d, artifact_chunks %d",
		t.Conversations, t.Events, t.State, t.UserState, t.AppState, t.Files, t.Chunks)
}

const sqlTraceKept = `
SELECT
  (SELECT count(*) FROM memd.session_heads WHERE tenant_no = $1 AND subject_no = $2),
  (SELECT count(*) FROM memd.session_events WHERE tenant_no = $1 AND subject_no = $2),
  (SELECT count(*) FROM memd.session_state WHERE tenant_no = $1 AND subject_no = $2),
  (SELECT count(*) FROM memd.user_state WHERE tenant_no = $1 AND subject_no = $2),
  (SELECT count(*) FROM memd.app_state WHERE tenant_no = $1 AND contributor_no = $2),
  (SELECT count(*) FROM memd.artifacts WHERE tenant_no = $1 AND subject_no = $2),
  (SELECT count(*) FROM memd.artifact_chunks WHERE tenant_no = $1 AND subject_no = $2)`

func (w *witness) traceKept(ctx context.Context, tenant memd.TenantNo, subject memd.Number) (traceOfKept, error) {
	var t traceOfKept
	err := w.conn.QueryRow(ctx, sqlTraceKept, tenant, subject).
		Scan(&t.Conversations, &t.Events, &t.State, &t.UserState, &t.AppState, &t.Files, &t.Chunks)
	if err != nil {
		return t, fmt.Errorf("counting what was kept of a subject: %w", err)
	}
	return t, nil
}

// sealedContent is a sealed column of a session's or an artifact's, as a
// database, live or restored, holds it.
type sealedContent struct {
	kind string
	// of is whose it is: of app state, the app's own scope.
	of memd.Contribution
	// writer is who wrote an entry of app state last.
	writer   memd.Number
	month    memd.Month
	digest   []byte
	artifact uuid.UUID
	save     uuid.UUID
	number   int64
	last     bool
	sealed   []byte
}

const sqlContent = `
SELECT 'event', subject_no, session_no, 0::bigint, month, event_digest, NULL::uuid, NULL::uuid, 0::bigint, false, sealed
FROM memd.session_events WHERE tenant_no = $1
UNION ALL SELECT 'state', subject_no, session_no, 0, month, key_digest, NULL, NULL, 0, false, sealed
FROM memd.session_state WHERE tenant_no = $1
UNION ALL SELECT 'user state', subject_no, 0, 0, 0, key_digest, NULL, NULL, 0, false, sealed
FROM memd.user_state WHERE tenant_no = $1
UNION ALL SELECT 'app state', app_no, 0, coalesce(contributor_no, 0), 0, key_digest, NULL, NULL, 0, false, sealed
FROM memd.app_state WHERE tenant_no = $1
UNION ALL SELECT 'file name', subject_no, session_no, 0, month, NULL, artifact_id, NULL, 0, false, sealed_name
FROM memd.artifacts WHERE tenant_no = $1
UNION ALL SELECT 'file', subject_no, session_no, 0, month, NULL, artifact_id, version_id, version, false, sealed_info
FROM memd.artifact_versions WHERE tenant_no = $1
UNION ALL SELECT 'bytes', c.subject_no, c.session_no, 0, v.month, NULL, NULL, c.version_id, c.chunk_no, c.chunk_no = v.chunks - 1, c.sealed
FROM memd.artifact_chunks c JOIN memd.artifact_versions v USING (tenant_no, subject_no, session_no, version_id) WHERE c.tenant_no = $1`

// content returns all that is sealed of a tenant's sessions and artifacts.
func (w *witness) content(ctx context.Context, tenant memd.TenantNo) ([]sealedContent, error) {
	rows, err := w.conn.Query(ctx, sqlContent, tenant)
	if err != nil {
		return nil, fmt.Errorf("reading what was kept: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c sealedContent, err error) {
		var artifact, save *uuid.UUID
		err = row.Scan(&c.kind, &c.of.Subject, &c.of.Session, &c.writer, &c.month, &c.digest, &artifact, &save, &c.number, &c.last, &c.sealed)
		if artifact != nil {
			c.artifact = *artifact
		}
		if save != nil {
			c.save = *save
		}
		if c.of.Session == 0 {
			c.of.Session = memd.OwnScope
		}
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading what was kept: %w", err)
	}
	return out, nil
}

// has reports whether it is a subject's, or says their words.
func (c *sealedContent) has(subject memd.Number) bool {
	return c.of.Subject == subject || c.writer == subject
}

// open opens it as a thief with the keys would.
func (c *sealedContent) open(k *shred.Keys) ([]byte, error) {
	t, digest := k.Tenant(), [16]byte{}
	copy(digest[:], c.digest)
	var s *shred.Sealer
	var err error
	var aad []byte
	switch c.kind {
	case "event":
		s, err = k.Content(c.month, c.of.Subject, c.of.Session)
		aad = shred.AADEvent(t, c.of.Subject, c.of.Session, digest)
	case "state":
		s, err = k.Content(c.month, c.of.Subject, c.of.Session)
		aad = shred.AADSessionState(t, c.of.Subject, c.of.Session, digest)
	case "user state":
		s, err = k.State(c.of)
		aad = shred.AADUserState(t, c.of.Subject, digest)
	case "app state":
		of := []memd.Contribution{c.of}
		if c.writer != 0 {
			of = append(of, memd.Contribution{Subject: c.writer, Session: memd.OwnScope})
		}
		s, err = k.State(of...)
		aad = shred.AADAppState(t, c.of.Subject, c.writer, digest)
	case "file name":
		s, err = k.Content(c.month, c.of.Subject, c.of.Session)
		aad = shred.AADArtifactName(t, c.of, c.artifact)
	case "file":
		s, err = k.Content(c.month, c.of.Subject, c.of.Session)
		aad = shred.AADArtifactInfo(t, c.of, c.artifact, c.number, c.save)
	default:
		s, err = k.Content(c.month, c.of.Subject, c.of.Session)
		aad = shred.AADArtifactChunk(t, c.of, c.save, int32(c.number), c.last)
	}
	if err != nil {
		return nil, err
	}
	return s.Open(c.sealed, aad)
}

// readKept tries to open what was kept and looks for what was said in it.
func readKept(k *shred.Keys, kept []sealedContent, said []string) reading {
	var out reading
	for i := range kept {
		plain, err := kept[i].open(k)
		switch {
		case err == nil && sayAny(string(plain), said):
			out.opened++
		case err == nil:
			out.wrong++
		case errors.Is(err, memd.ErrShredded):
			out.shredded++
		default:
			out.other++
		}
	}
	return out
}

func sayAny(plain string, said []string) bool {
	for _, s := range said {
		if strings.Contains(plain, s) {
			return true
		}
	}
	return false
}

// splitKept reads from a copy what was kept of Mara, and of the rest.
func (d *demo) splitKept(ctx context.Context, copied *witness) (hers, rest []sealedContent, err error) {
	all, err := copied.content(ctx, d.acme.tenant)
	for _, c := range all {
		if c.has(d.mara.number) {
			hers = append(hers, c)
		} else {
			rest = append(rest, c)
		}
	}
	return hers, rest, err
}

// What a program without memd's erasure does: it deletes rows.
const (
	sqlDeleteEvents    = `DELETE FROM memd.session_events WHERE tenant_no = $1 AND subject_no = $2`
	sqlDeleteState     = `DELETE FROM memd.session_state WHERE tenant_no = $1 AND subject_no = $2`
	sqlDeleteHeads     = `DELETE FROM memd.session_heads WHERE tenant_no = $1 AND subject_no = $2`
	sqlDeleteUserState = `DELETE FROM memd.user_state WHERE tenant_no = $1 AND subject_no = $2`
	sqlDeleteAppState  = `DELETE FROM memd.app_state WHERE tenant_no = $1 AND contributor_no = $2`
)

// deleteKept deletes a subject's conversations and state, and nothing else.
func (w *witness) deleteKept(ctx context.Context, tenant memd.TenantNo, subject memd.Number) (n int64, err error) {
	for _, sql := range []string{sqlDeleteEvents, sqlDeleteState, sqlDeleteHeads, sqlDeleteUserState, sqlDeleteAppState} {
		tag, err := w.conn.Exec(ctx, sql, tenant, subject)
		if err != nil {
			return n, fmt.Errorf("deleting rows: %w", err)
		}
		n += tag.RowsAffected()
	}
	return n, nil
}
