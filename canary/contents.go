package canary

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

const sqlEvents = `
SELECT e.subject_no, e.session_no, e.month, e.seq, e.event_digest, e.sealed
FROM memd.session_events e
WHERE e.tenant_no = @tenant AND e.subject_no BETWEEN @lo AND @hi AND e.session_no BETWEEN @from AND @to
  AND (e.subject_no, e.session_no, e.month, e.seq) > (@subject::bigint, @session::bigint, @month::integer, @seq::bigint)
ORDER BY e.subject_no, e.session_no, e.month, e.seq LIMIT @limit`

const sqlSessionState = `
SELECT s.subject_no, s.session_no, s.month, s.key_digest, s.sealed
FROM memd.session_state s
WHERE s.tenant_no = @tenant AND s.subject_no BETWEEN @lo AND @hi AND s.session_no BETWEEN @from AND @to
  AND (s.subject_no, s.session_no, s.key_digest) > (@subject::bigint, @session::bigint, @digest::bytea)
ORDER BY s.subject_no, s.session_no, s.key_digest LIMIT @limit`

const sqlUserState = `
SELECT s.subject_no, s.key_digest, s.sealed
FROM memd.user_state s
WHERE s.tenant_no = @tenant AND s.subject_no BETWEEN @lo AND @hi AND @from::bigint = 0 AND @to::bigint > 0
  AND (s.subject_no, s.key_digest) > (@subject::bigint, @digest::bytea)
ORDER BY s.subject_no, s.key_digest LIMIT @limit`

// An app's state is its last writer's too. What nobody has to answer for is the
// shared scope's alone.
const sqlAppState = `
SELECT s.app_no, coalesce(s.contributor_no, 0), s.key_digest, s.sealed
FROM memd.app_state s
WHERE s.tenant_no = @tenant AND @from::bigint = 0 AND @to::bigint > 0
  AND (coalesce(s.contributor_no, 0) BETWEEN @lo AND @hi OR s.app_no BETWEEN @lo AND @hi)
  AND (s.app_no, s.key_digest) > (@subject::bigint, @digest::bytea)
ORDER BY s.app_no, s.key_digest LIMIT @limit`

const sqlArtifactNames = `
SELECT a.subject_no, a.session_no, a.artifact_id, a.month, a.sealed_name
FROM memd.artifacts a
WHERE a.tenant_no = @tenant AND a.subject_no BETWEEN @lo AND @hi AND a.session_no BETWEEN @from AND @to
  AND (a.subject_no, a.session_no, a.artifact_id) > (@subject::bigint, @session::bigint, @id::uuid)
ORDER BY a.subject_no, a.session_no, a.artifact_id LIMIT @limit`

const sqlVersions = `
SELECT v.subject_no, v.session_no, v.version_id, v.month, v.artifact_id, v.version, v.sealed_info
FROM memd.artifact_versions v
WHERE v.tenant_no = @tenant AND v.subject_no BETWEEN @lo AND @hi AND v.session_no BETWEEN @from AND @to
  AND (v.subject_no, v.session_no, v.version_id) > (@subject::bigint, @session::bigint, @id::uuid)
ORDER BY v.subject_no, v.session_no, v.version_id LIMIT @limit`

const sqlChunks = `
SELECT c.subject_no, c.session_no, c.version_id, c.chunk_no, v.month, c.sealed
FROM memd.artifact_chunks c
JOIN memd.artifact_versions v ON v.tenant_no = c.tenant_no AND v.subject_no = c.subject_no
  AND v.session_no = c.session_no AND v.version_id = c.version_id
WHERE c.tenant_no = @tenant AND c.subject_no BETWEEN @lo AND @hi AND c.session_no BETWEEN @from AND @to
  AND (c.subject_no, c.session_no, c.version_id, c.chunk_no) > (@subject::bigint, @session::bigint, @id::uuid, @chunk::integer)
ORDER BY c.subject_no, c.session_no, c.version_id, c.chunk_no LIMIT @limit`

// Pages are small where rows can be large: an event has a mebibyte at most, a
// chunk a quarter of one.
const (
	eventPage = 64
	statePage = 64
	namePage  = 512
	chunkPage = 32
)

// contents are the readers of what a subject has besides memories.
func contents(s span) []reader {
	own := s
	if s.from == memd.OwnScope && s.to == memd.OwnScope {
		own.from, own.to = 0, math.MaxInt64 // state that is the subject's own has no session
	}
	none := []byte{}
	return []reader{
		{table: "user_state", sql: sqlUserState, args: own.args(), page: statePage, scan: scanUserState,
			start: pg.Args{"subject": 0, "digest": none}},
		{table: "app_state", sql: sqlAppState, args: own.args(), page: statePage, scan: scanAppState,
			start: pg.Args{"subject": 0, "digest": none}},
		{table: "session_state", sql: sqlSessionState, args: s.args(), page: statePage, scan: scanSessionState,
			start: pg.Args{"subject": 0, "session": 0, "digest": none}},
		{table: "artifacts", sql: sqlArtifactNames, args: s.args(), page: namePage, scan: scanArtifact,
			start: pg.Args{"subject": 0, "session": 0, "id": uuid.Nil}},
		{table: "artifact_versions", sql: sqlVersions, args: s.args(), page: namePage, scan: scanVersion,
			start: pg.Args{"subject": 0, "session": 0, "id": uuid.Nil}},
		{table: "session_events", sql: sqlEvents, args: s.args(), page: eventPage, scan: scanEvent,
			start: pg.Args{"subject": 0, "session": 0, "month": 0, "seq": 0}},
		{table: "artifact_chunks", sql: sqlChunks, args: s.args(), page: chunkPage, scan: scanChunk,
			start: pg.Args{"subject": 0, "session": 0, "id": uuid.Nil, "chunk": 0}},
	}
}

// content is a row of a session, or of a subject's own scope.
func content(table, id string, c memd.Contribution, sealed []byte, key pg.Args, open func(k *shred.Keys) (opened, error)) row {
	return row{name: memd.RowRef{Table: table, ID: id}, of: []memd.Contribution{c}, owner: c.Subject, sealed: [][]byte{sealed}, key: key, open: open}
}

func scanEvent(c pgx.CollectableRow) (row, error) {
	var of memd.Contribution
	var month memd.Month
	var seq int64
	var digest, sealed []byte
	if err := c.Scan(&of.Subject, &of.Session, &month, &seq, &digest, &sealed); err != nil {
		return row{}, err
	}
	id := fmt.Sprintf("%d/%d/%d", of.Subject, of.Session, seq)
	key := pg.Args{"subject": of.Subject, "session": of.Session, "month": month, "seq": seq}
	return content("session_events", id, of, sealed, key, func(k *shred.Keys) (o opened, err error) {
		s, err := k.Content(month, of.Subject, of.Session)
		if err != nil {
			return o, err
		}
		b, err := s.Open(sealed, shred.AADEvent(k.Tenant(), of.Subject, of.Session, digestOf(digest)))
		if err != nil || len(b) == 0 {
			return o, err
		}
		o.event(b[1:]) // after the version of the encoding
		return o, nil
	}), nil
}

// The texts of an event come in this order: id, author, invocation, branch, then
// content, actions and the rest, then the changes of state.
const eventNames = 4

func (o *opened) event(b []byte) {
	n := 0
	eachText(b, func(t []byte) {
		if n < eventNames {
			o.other = append(o.other, t)
		} else {
			o.said = append(o.said, jsonTexts(t)...)
		}
		n++
	})
}

// state is an entry: its key behind its length, then its value, which is JSON.
func (o *opened) state(b []byte) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return
	}
	o.other = append(o.other, b[used:used+int(n)])
	o.said = append(o.said, jsonTexts(b[used+int(n):])...)
}

func scanSessionState(c pgx.CollectableRow) (row, error) {
	var of memd.Contribution
	var month memd.Month
	var digest, sealed []byte
	if err := c.Scan(&of.Subject, &of.Session, &month, &digest, &sealed); err != nil {
		return row{}, err
	}
	id := fmt.Sprintf("%d/%d/%s", of.Subject, of.Session, hex.EncodeToString(digest))
	key := pg.Args{"subject": of.Subject, "session": of.Session, "digest": digest}
	return content("session_state", id, of, sealed, key, func(k *shred.Keys) (o opened, err error) {
		s, err := k.Content(month, of.Subject, of.Session)
		if err != nil {
			return o, err
		}
		b, err := s.Open(sealed, shred.AADSessionState(k.Tenant(), of.Subject, of.Session, digestOf(digest)))
		o.state(b)
		return o, err
	}), nil
}

func scanUserState(c pgx.CollectableRow) (row, error) {
	of := memd.Contribution{Session: memd.OwnScope}
	var digest, sealed []byte
	if err := c.Scan(&of.Subject, &digest, &sealed); err != nil {
		return row{}, err
	}
	id := fmt.Sprintf("%d/%s", of.Subject, hex.EncodeToString(digest))
	key := pg.Args{"subject": of.Subject, "digest": digest}
	return content("user_state", id, of, sealed, key, func(k *shred.Keys) (o opened, err error) {
		s, err := k.State(of)
		if err != nil {
			return o, err
		}
		b, err := s.Open(sealed, shred.AADUserState(k.Tenant(), of.Subject, digestOf(digest)))
		o.state(b)
		return o, err
	}), nil
}

func scanAppState(c pgx.CollectableRow) (row, error) {
	var app, writer memd.Number
	var digest, sealed []byte
	if err := c.Scan(&app, &writer, &digest, &sealed); err != nil {
		return row{}, err
	}
	of := []memd.Contribution{{Subject: app, Session: memd.OwnScope}}
	if writer != 0 {
		of = append(of, memd.Contribution{Subject: writer, Session: memd.OwnScope})
	}
	return row{
		name: memd.RowRef{Table: "app_state", ID: fmt.Sprintf("%d/%s", app, hex.EncodeToString(digest))}, of: of, owner: app,
		sealed: [][]byte{sealed}, key: pg.Args{"subject": app, "digest": digest},
		open: func(k *shred.Keys) (o opened, err error) {
			s, err := k.State(of...)
			if err != nil {
				return o, err
			}
			b, err := s.Open(sealed, shred.AADAppState(k.Tenant(), app, writer, digestOf(digest)))
			o.state(b)
			return o, err
		},
	}, nil
}

func scanArtifact(c pgx.CollectableRow) (row, error) {
	var of memd.Contribution
	var id uuid.UUID
	var month memd.Month
	var sealed []byte
	if err := c.Scan(&of.Subject, &of.Session, &id, &month, &sealed); err != nil {
		return row{}, err
	}
	key := pg.Args{"subject": of.Subject, "session": of.Session, "id": id}
	return content("artifacts", id.String(), of, sealed, key, func(k *shred.Keys) (o opened, err error) {
		s, err := k.Content(month, of.Subject, of.Session)
		if err != nil {
			return o, err
		}
		b, err := s.Open(sealed, shred.AADArtifactName(k.Tenant(), of, id))
		o.said = [][]byte{b}
		return o, err
	}), nil
}

func scanVersion(c pgx.CollectableRow) (row, error) {
	var of memd.Contribution
	var save uuid.UUID
	var artifact *uuid.UUID
	var month memd.Month
	var version *int64
	var sealed []byte
	if err := c.Scan(&of.Subject, &of.Session, &save, &month, &artifact, &version, &sealed); err != nil {
		return row{}, err
	}
	key := pg.Args{"subject": of.Subject, "session": of.Session, "id": save}
	return content("artifact_versions", save.String(), of, sealed, key, func(k *shred.Keys) (o opened, err error) {
		if artifact == nil || version == nil {
			return o, nil // a save that is not over says nothing yet
		}
		s, err := k.Content(month, of.Subject, of.Session)
		if err != nil {
			return o, err
		}
		b, err := s.Open(sealed, shred.AADArtifactInfo(k.Tenant(), of, *artifact, *version, save))
		if err == nil {
			o.other = jsonTexts(b)
		}
		return o, err
	}), nil
}

func scanChunk(c pgx.CollectableRow) (row, error) {
	var of memd.Contribution
	var save uuid.UUID
	var chunk int32
	var month memd.Month
	var sealed []byte
	if err := c.Scan(&of.Subject, &of.Session, &save, &chunk, &month, &sealed); err != nil {
		return row{}, err
	}
	key := pg.Args{"subject": of.Subject, "session": of.Session, "id": save, "chunk": chunk}
	return content("artifact_chunks", fmt.Sprintf("%s/%d", save, chunk), of, sealed, key, func(k *shred.Keys) (o opened, err error) {
		s, err := k.Content(month, of.Subject, of.Session)
		if err != nil {
			return o, err
		}
		// Whether a chunk is the last is sealed with it, and not known while a
		// save is under way.
		b, err := s.Open(sealed, shred.AADArtifactChunk(k.Tenant(), of, save, chunk, true))
		if err != nil {
			b, err = s.Open(sealed, shred.AADArtifactChunk(k.Tenant(), of, save, chunk, false))
		}
		if err == nil && readable(b) {
			o.said = [][]byte{b}
		}
		return o, err
	}), nil
}

// digestOf is a stored digest; one of another length opens nothing.
func digestOf(b []byte) (d [16]byte) {
	copy(d[:], b)
	return d
}
