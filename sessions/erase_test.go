package sessions_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/tombstones"
)

// What an erasure does, step by step and by hand: these tests are about what is
// in the tables between the steps.

func noScopes(context.Context, pg.DB) ([]tombstones.Hide, error) { return nil, nil }

func anyway(context.Context, pg.DB) error { return nil }

func (b *bundle) ref(user string) memd.Ref {
	b.t.Helper()
	k, err := b.srv.Keyring.Keys(b.ctx(), b.tenant.No, b.tenant.Epoch)
	b.must(err)
	return k.UserRef("app", user)
}

func (b *bundle) sessionRef(id sessions.ID) memd.Ref {
	b.t.Helper()
	k, err := b.srv.Keyring.Keys(b.ctx(), b.tenant.No, b.tenant.Epoch)
	b.must(err)
	return k.SessionRef(k.UserRef(id.App, id.UserID), id.SessionID)
}

// fence raises a user's fence and returns what lifts it.
func (b *bundle) fence(user string) (lift func()) {
	b.t.Helper()
	ref, request := b.ref(user), uuid.New()
	b.must(tombstones.Raise(b.ctx(), b.worker, b.tenant.No, ref, request, b.clock.Now(), anyway, noScopes))
	return func() {
		b.t.Helper()
		b.must(b.worker.With(b.ctx(), func(db pg.DB) error {
			return tombstones.Lift(b.ctx(), db, b.tenant.No, ref, request, b.clock.Now())
		}))
	}
}

// buryContent marks a session's content dead, as deleting it does.
func (b *bundle) buryContent(id sessions.ID) {
	b.t.Helper()
	b.must(tombstones.BuryContent(b.ctx(), b.worker, b.tenant.No, b.ref(id.UserID), b.sessionRef(id), uuid.New(), b.clock.Now(), noScopes))
}

// deleteAll deletes a target in batches of two rows, and returns how many.
func (b *bundle) deleteAll(t ...memd.Contribution) (total int64) {
	b.t.Helper()
	b.must(b.worker.With(b.ctx(), func(db pg.DB) error {
		for {
			n, err := sessions.DeleteBatch(b.ctx(), db, b.tenant.No, t, 2)
			if total += n; err != nil || n == 0 {
				return err
			}
		}
	}))
	return total
}

func (b *bundle) counts(t ...memd.Contribution) (c sessions.Counts) {
	b.t.Helper()
	b.must(b.worker.With(b.ctx(), func(db pg.DB) (err error) {
		c, err = sessions.Count(b.ctx(), db, b.tenant.No, t)
		return err
	}))
	return c
}

func (b *bundle) kmsCalls() int { return b.KMS.Server.Calls("Decrypt") }

// full has two users of two sessions each, with everything in them.
func full(t *testing.T) *bundle {
	t.Helper()
	b := setup(t)
	for _, user := range []string{"ada", "bob"} {
		for _, session := range []string{"s1", "s2"} {
			b.create(id(user, session), map[string]string{"k": `1`, "user:" + session: `1`, "app:" + user: `1`})
			b.append(id(user, session), b.event("a", "x"), b.event("b", "y"), b.event("c", "z"))
		}
	}
	return b
}
