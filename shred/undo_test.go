package shred_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
)

func (w *world) punctureFor(request uuid.UUID, tenant memd.TenantNo, paths ...shred.Path) {
	w.t.Helper()
	err := w.workerPool.With(w.t.Context(), func(db pg.DB) error {
		return shred.RequestPuncture(w.t.Context(), db, tenant, paths, request, time.Now())
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) restorer() shred.Restorer {
	w.t.Helper()
	return w.identity("emulator:"+w.address, kmsemu.Admin).(shred.Restorer)
}

// approved has one person ask and another one approve.
func (w *world) approved(tenant memd.TenantNo, request uuid.UUID) {
	w.t.Helper()
	asker := uuid.New()
	err := w.owner().With(w.t.Context(), func(db pg.DB) error {
		if err := shred.RequestUndo(w.t.Context(), db, w.identity("emulator:"+w.address, kmsemu.Worker), tenant, request, asker, "the wrong one", time.Now()); err != nil {
			return err
		}
		if err := shred.ApproveUndo(w.t.Context(), db, tenant, request, asker, time.Now()); !errors.Is(err, memd.ErrPermissionDenied) {
			w.t.Errorf("approved by who asked: %v", err)
		}
		return shred.ApproveUndo(w.t.Context(), db, tenant, request, uuid.New(), time.Now())
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// Of a batch of three, one was wrong: its keys come back, also for its sessions
// but for the one that was erased on its own account, and nobody else's; every
// version but the head's is destroyed, the restored one again.
func TestRotator_Undo(t *testing.T) {
	w := newWorld(t)
	tenant := w.tenant()
	r := w.rotator(func(c *shred.RotatorConfig) { c.Pool = w.owner() })
	wrong := uuid.New()
	session := shred.SessionPath(number(t, 1, 2), memd.ClassMemory, number(t, 1, 3))
	w.punctureFor(wrong, tenant, subject(t, 2), shred.JobPath(number(t, 1, 9)))
	w.punctureFor(uuid.New(), tenant, subject(t, 1))
	w.punctureFor(uuid.New(), tenant, subject(t, 3))
	w.rotate(r, tenant)
	w.punctureFor(uuid.New(), tenant, session, subject(t, 4))
	w.rotate(r, tenant)

	if _, err := r.Undo(t.Context(), tenant, wrong, w.restorer()); !errors.Is(err, memd.ErrPermissionDenied) {
		t.Errorf("without an approval: %v", err)
	}
	w.approved(tenant, wrong)
	undone, err := r.Undo(t.Context(), tenant, wrong, w.restorer())
	if err != nil {
		t.Fatal(err)
	}
	if undone.Epoch != 4 || undone.Source != 1 || len(undone.Paths) != 1 || undone.Version.State != shred.VersionDestroyScheduled {
		t.Errorf("%+v", undone)
	}
	living := []shred.Path{leaf(t, 2), leaf(t, 5)}
	dead := []shred.Path{subject(t, 1), subject(t, 3), subject(t, 4), session, shred.JobPath(number(t, 1, 9))}
	w.checkLine(tenant, living, dead)

	again, err := r.Undo(t.Context(), tenant, wrong, w.restorer())
	if err != nil || again.Epoch != undone.Epoch {
		t.Errorf("again: %+v, %v", again, err)
	}
	// The line goes on from there.
	w.punctureFor(uuid.New(), tenant, subject(t, 2))
	w.rotate(r, tenant)
	w.checkLine(tenant, living[1:], append(dead, subject(t, 2)))
}

// After the destroy delay nothing comes back, and the error says what is lost.
func TestRotator_UndoTooLate(t *testing.T) {
	w := newWorld(t)
	tenant := w.tenant()
	r := w.rotator(func(c *shred.RotatorConfig) { c.Pool = w.owner() })
	wrong := uuid.New()
	w.punctureFor(wrong, tenant, subject(t, 2))
	w.rotate(r, tenant)
	w.approved(tenant, wrong)
	w.clock.Advance(25 * time.Hour)
	_, err := r.Undo(t.Context(), tenant, wrong, w.restorer())
	var lost *shred.LostKeysError
	if !errors.As(err, &lost) || lost.Version.State != shred.VersionDestroyed {
		t.Errorf("after the delay: %v", err)
	}
	w.checkLine(tenant, []shred.Path{leaf(t, 5)}, []shred.Path{subject(t, 2)})
	if _, err := r.Undo(t.Context(), tenant, uuid.New(), w.restorer()); !errors.Is(err, memd.ErrPermissionDenied) {
		t.Errorf("one that nobody asked for: %v", err)
	}
}
