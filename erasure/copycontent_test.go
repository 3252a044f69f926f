package erasure_test

import (
	"context"
	"regexp"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// marked are the words of tests in what is sealed together with other things.
var marked = regexp.MustCompile(`\[[a-z0-9 ]+\]`)

// copiedContent is a sealed value of a session, a state or an artifact: what
// opens it with a tree's keys.
type copiedContent func(k *shred.Keys) ([]byte, error)

// copyContents copies events, states and artifacts.
func copyContents(ctx context.Context, tx pgx.Tx, tenant memd.TenantNo) ([]copiedContent, error) {
	var all []copiedContent
	for _, part := range []struct {
		sql  string
		scan pgx.RowToFunc[copiedContent]
	}{
		{`SELECT subject_no, session_no, month, event_digest, sealed FROM memd.session_events WHERE tenant_no = $1`,
			ofSession(shred.AADEvent)},
		{`SELECT subject_no, session_no, month, key_digest, sealed FROM memd.session_state WHERE tenant_no = $1`,
			ofSession(shred.AADSessionState)},
		{`SELECT subject_no, key_digest, sealed FROM memd.user_state WHERE tenant_no = $1`, ofUserState},
		{`SELECT app_no, coalesce(contributor_no, 0), key_digest, sealed FROM memd.app_state WHERE tenant_no = $1`, ofAppState},
		{`SELECT subject_no, session_no, artifact_id, month, sealed_name FROM memd.artifacts WHERE tenant_no = $1`, ofName},
		{`SELECT c.subject_no, c.session_no, v.month, c.version_id, c.chunk_no, c.chunk_no = v.chunks - 1, c.sealed
		  FROM memd.artifact_chunks c JOIN memd.artifact_versions v USING (tenant_no, subject_no, session_no, version_id)
		  WHERE tenant_no = $1`, ofChunk},
	} {
		found, err := collect(ctx, tx, part.sql, tenant, part.scan)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func ofSession(aad func(memd.TenantNo, memd.Number, memd.Number, [16]byte) []byte) pgx.RowToFunc[copiedContent] {
	return func(r pgx.CollectableRow) (copiedContent, error) {
		var subject, session memd.Number
		var month memd.Month
		var digest, sealed []byte
		err := r.Scan(&subject, &session, &month, &digest, &sealed)
		return func(k *shred.Keys) ([]byte, error) {
			s, err := k.Content(month, subject, session)
			if err != nil {
				return nil, err
			}
			return s.Open(sealed, aad(k.Tenant(), subject, session, [16]byte(digest)))
		}, err
	}
}

func ofUserState(r pgx.CollectableRow) (copiedContent, error) {
	var subject memd.Number
	var digest, sealed []byte
	err := r.Scan(&subject, &digest, &sealed)
	return func(k *shred.Keys) ([]byte, error) {
		s, err := k.State(own(subject))
		if err != nil {
			return nil, err
		}
		return s.Open(sealed, shred.AADUserState(k.Tenant(), subject, [16]byte(digest)))
	}, err
}

func ofAppState(r pgx.CollectableRow) (copiedContent, error) {
	var app, contributor memd.Number
	var digest, sealed []byte
	err := r.Scan(&app, &contributor, &digest, &sealed)
	return func(k *shred.Keys) ([]byte, error) {
		of := []memd.Contribution{own(app)}
		if contributor != 0 {
			of = append(of, own(contributor))
		}
		s, err := k.State(of...)
		if err != nil {
			return nil, err
		}
		return s.Open(sealed, shred.AADAppState(k.Tenant(), app, contributor, [16]byte(digest)))
	}, err
}

func own(subject memd.Number) memd.Contribution {
	return memd.Contribution{Subject: subject, Session: memd.OwnScope}
}

func ofName(r pgx.CollectableRow) (copiedContent, error) {
	var of memd.Contribution
	var artifact uuid.UUID
	var month memd.Month
	var sealed []byte
	err := r.Scan(&of.Subject, &of.Session, &artifact, &month, &sealed)
	return func(k *shred.Keys) ([]byte, error) {
		s, err := k.Content(month, of.Subject, of.Session)
		if err != nil {
			return nil, err
		}
		return s.Open(sealed, shred.AADArtifactName(k.Tenant(), of, artifact))
	}, err
}

func ofChunk(r pgx.CollectableRow) (copiedContent, error) {
	var of memd.Contribution
	var month memd.Month
	var save uuid.UUID
	var no int32
	var last bool
	var sealed []byte
	err := r.Scan(&of.Subject, &of.Session, &month, &save, &no, &last, &sealed)
	return func(k *shred.Keys) ([]byte, error) {
		s, err := k.Content(month, of.Subject, of.Session)
		if err != nil {
			return nil, err
		}
		return s.Open(sealed, shred.AADArtifactChunk(k.Tenant(), of, save, no, last))
	}, err
}
