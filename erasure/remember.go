package erasure

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred"
)

// What a job remembers sealed, by its name in the associated data.
const (
	fieldUser    = "user_id"
	fieldSession = "session_id"
	fieldReason  = "reason"
	fieldSalt    = "salt"
)

// rememberer seals what a request remembers of whom it is about: the ids, for
// stores outside memd that know people by them, and the salt of its receipts.
func rememberer(k *shred.Keys, tenant, app, userID, sessionID string) seals {
	return func(no memd.Number) (m remembering, err error) {
		salt, err := receipts.NewSalt()
		if err != nil {
			return m, err
		}
		c := receipts.Commit(salt, tenant, app, userID, sessionID)
		m.commitment = c[:]
		if m.salt, err = sealUnder(k, no, fieldSalt, salt[:]); err == nil && userID != "" {
			m.userID, err = sealUnder(k, no, fieldUser, []byte(userID))
		}
		if err == nil && sessionID != "" {
			m.sessionID, err = sealUnder(k, no, fieldSession, []byte(sessionID))
		}
		return m, err
	}
}

func sealUnder(k *shred.Keys, no memd.Number, field string, value []byte) ([]byte, error) {
	s, err := k.Job(no)
	if err != nil {
		return nil, err
	}
	return s.Seal(value, shred.AADJob(k.Tenant(), no, field))
}

func openUnder(k *shred.Keys, no memd.Number, field string, sealed []byte) ([]byte, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	s, err := k.Job(no)
	if err != nil {
		return nil, err
	}
	return s.Open(sealed, shred.AADJob(k.Tenant(), no, field))
}

const sqlReadSalt = `
SELECT sealed_salt FROM memd.erasures
WHERE tenant_no = @tenant AND request_id = @id AND requested_by IS NOT DISTINCT FROM @by`

// salt opens the salt of a request's receipts, for the requester: the API key that
// the request came with. It is zero for any other, and once the job, or its
// tenant's keys, have ended.
func (s *Service) salt(ctx context.Context, c Caller, j Job) (salt receipts.Salt, err error) {
	var sealed []byte
	err = s.Pool.With(ctx, func(db pg.DB) error {
		return db.QueryRow(ctx, sqlReadSalt, pg.Args{"tenant": j.Tenant, "id": j.ID, "by": c.KeyID}).Scan(&sealed)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return salt, nil
	}
	if err != nil || len(sealed) == 0 {
		return salt, err
	}
	err = s.withKeys(ctx, c, func(k *shred.Keys) error {
		opened, err := openUnder(k, j.No, fieldSalt, sealed)
		if err == nil && len(opened) != len(salt) {
			err = fmt.Errorf("opening a salt: %w", memd.ErrCorrupt)
		}
		if err == nil {
			salt = receipts.Salt(opened)
		}
		return err
	})
	if errors.Is(err, memd.ErrShredded) || errors.Is(err, memd.ErrNotFound) {
		return receipts.Salt{}, nil
	}
	return salt, err
}
