package export_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/export"
	"forgettable.dev/memd/internal/pg"
)

// A link leads to its archive until it expires or is revoked, each use is counted,
// and a guess leads nowhere.
func TestLinks(t *testing.T) {
	b := setup(t)
	e := b.start(memd.Scope{App: app, UserID: "anna"})
	if _, _, err := b.link(e); !errors.Is(err, memd.ErrExportNotReady) {
		t.Errorf("a link to what is not ready: %v", err)
	}
	b.make(b.worker(b.store), e)
	l, secret, err := b.link(e)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, c := range map[string]struct {
		secret string
		at     time.Time
	}{
		"guessed": {"A" + secret[1:] + "A", now}, "empty": {"", now}, "its id": {l.ID.String(), now},
		"expired": {secret, l.ExpiresAt},
	} {
		if err := b.follow(c.secret, c.at); !errors.Is(err, memd.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 2 {
		if err := b.follow(secret, now); err != nil {
			t.Fatal(err)
		}
	}
	err = b.srv.Pool.With(t.Context(), func(db pg.DB) error {
		links, err := export.Links(t.Context(), db, e.Tenant, e.ID)
		if err == nil && (len(links) != 1 || links[0].Uses != 2) {
			t.Errorf("links: %+v", links)
		}
		if err == nil {
			err = export.RevokeLink(t.Context(), db, e.Tenant, l.ID, now)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.follow(secret, now); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("revoked: %v", err)
	}
	for _, life := range []time.Duration{time.Second, export.MaxLinkLife + 1} {
		err := b.srv.Pool.With(t.Context(), func(db pg.DB) error {
			_, _, err := export.MakeLink(t.Context(), db, e.Tenant, e.ID, uuid.New(), now, life)
			return err
		})
		if !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("a link of %v: %v", life, err)
		}
	}
}

// An archive can be read from any place on, and no file of it is begun once its
// link is dead.
func TestArchive_SeeksAndStops(t *testing.T) {
	b := setup(t)
	e := b.exported(b.worker(b.store))
	whole := b.download(e)
	dead := errors.New("the link is dead")
	err := b.srv.Pool.With(t.Context(), func(db pg.DB) error {
		alive := 100
		a, err := export.OpenArchive(t.Context(), db, b.store, e.Tenant, e.ID, func() error {
			if alive--; alive < 0 {
				return dead
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, at := range []int64{0, 1, 511, 512, 700, a.Size / 2, a.Size - 1, a.Size} {
			if _, err := a.Seek(at, io.SeekStart); err != nil {
				return err
			}
			rest, err := io.ReadAll(a)
			if err != nil || !bytes.Equal(rest, whole[at:]) {
				t.Errorf("from %d on: %d bytes, %v", at, len(rest), err)
			}
		}
		alive = 1
		if _, err := a.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if n, err := io.Copy(io.Discard, a); !errors.Is(err, dead) || n == 0 || n >= a.Size {
			t.Errorf("with a dead link %d bytes, %v", n, err)
		}
		return a.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}
