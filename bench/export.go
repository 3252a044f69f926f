package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"filippo.io/age"
	"github.com/google/uuid"

	"forgettable.dev/memd/export"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/tenants"
)

// exportedUsers is a tenth of the users of the second seed's sizing, each with all
// of its sessions and artifacts: what is measured is a rate.
const exportedUsers = purgedUsers / 10

// exports measures how fast a tenant's archive is made, from the request until it
// is ready, and after each how fast the disk takes as many bytes.
func exports(ctx context.Context, l *lab) ([]Figure, error) {
	t, err := l.tenant(ctx, "exported", purgeDimension)
	if err != nil {
		return nil, err
	}
	for range exportedUsers {
		user := l.newUser()
		if err := l.converse(ctx, t, user, purgedSessions, eraseEvents/eraseSessions, purgedArtifacts, eraseBytes); err != nil {
			return nil, err
		}
		if err := l.fill(ctx, t, user, purgedSessions); err != nil {
			return nil, err
		}
	}
	for _, state := range []tenants.State{tenants.StateSuspended, tenants.StateExporting} {
		err := l.d.Server.Pool.With(ctx, func(db pg.DB) error {
			_, err := tenants.Move(ctx, db, time.Now(), "exported", state, uuid.New(), "measured", unsealed)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	var rates, disk []float64
	var size int64
	for range l.c.Runs {
		e, took, err := l.archive(ctx, t)
		if err != nil {
			return nil, err
		}
		size = e.Bytes
		wrote, err := l.diskWrites(size)
		if err != nil {
			return nil, err
		}
		rates, disk = append(rates, float64(size)/1e6/took.Seconds()), append(disk, float64(size)/1e6/wrote.Seconds())
	}
	rate, most := median(rates), median(disk)
	must := min(50, most/2)
	return []Figure{{
		Name: fmt.Sprintf("export a tenant of %d users, %d sessions, %d artifacts: %.0f MB", exportedUsers,
			exportedUsers*purgedSessions, exportedUsers*purgedSessions*purgedArtifacts, float64(size)/1e6),
		Unit: "MB/s", Ours: rate, Peer: most, PeerName: "the disk, as many bytes, synced", Ratio: rate / most,
		Must: fmt.Sprintf("at least 50 MB/s or half the disk's, %.0f MB/s", must), Met: rate >= must,
	}}, nil
}

// unsealed is the reason of a move, which is nobody's.
func unsealed(_ time.Time, reason string) ([]byte, error) { return []byte(reason), nil }

// archive makes an archive of a tenant, and ends it again.
func (l *lab) archive(ctx context.Context, t *tenant) (e export.Export, took time.Duration, err error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return e, 0, err
	}
	id, server := uuid.New(), l.d.Server
	began := time.Now()
	err = server.Keyring.Do(ctx, t.No, 0, func(k *shred.Keys) error {
		return server.Pool.With(ctx, func(db pg.DB) error {
			_, err := export.Start(ctx, db, k, began, export.Request{ID: id, Recipients: []string{identity.Recipient().String()}})
			return err
		})
	})
	until := func(s export.State) error {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for err == nil && e.State != s {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
				err = server.Pool.With(ctx, func(db pg.DB) (err error) {
					e, err = export.Get(ctx, db, t.No, id)
					return err
				})
			}
		}
		return err
	}
	if err := until(export.StateReady); err != nil {
		return e, 0, err
	}
	took = e.ReadyAt.Sub(began)
	whole := e
	err = server.Pool.With(ctx, func(db pg.DB) error {
		_, err := export.End(ctx, db, t.No, id, time.Now())
		return err
	})
	if err == nil {
		err = until(export.StateDeleted)
	}
	return whole, took, err
}

// diskWrites writes a file of a size beside the archive, as an archive is written:
// in one stream, synced at the end.
func (l *lab) diskWrites(size int64) (time.Duration, error) {
	name := filepath.Join(l.c.Dir, "disk")
	f, err := os.Create(name)
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(name) }()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(l.rng.Uint32())
	}
	began := time.Now()
	for left := size; left > 0; left -= int64(len(block)) {
		if _, err := f.Write(block[:min(left, int64(len(block)))]); err != nil {
			return 0, err
		}
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	return time.Since(began), f.Close()
}
