package shred_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/gcpkms"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/kmstest"
	"forgettable.dev/memd/shred/ledger"
)

// world is a database, an emulator over gRPC and two ledgers, which the tests of
// provisioning, rotation and the keyring share the shape of.
type world struct {
	t            *testing.T
	db           *pgtest.DB
	workerPool   *pg.Pool
	appPool      *pg.Pool
	emulator     *kmsemu.Server
	address      string
	clock        *kmstest.Clock // the emulator's
	app          shred.KMS
	worker       shred.KMS
	shredder     shred.KMS
	admin        *kmsAdmin
	ledgers      []ledger.Ledger
	installation uuid.UUID
	log          *slog.Logger
	tenants      *atomic.Int64
	asOwner      *pg.Pool // see owner
}

// owner is a pool of the database's owner, one for all calls.
func (w *world) owner() *pg.Pool {
	if w.asOwner == nil {
		w.asOwner = w.db.Pool("")
	}
	return w.asOwner
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.Database(t), installation: uuid.New(), log: slog.New(slog.DiscardHandler), tenants: new(atomic.Int64)}
	w.clock = kmstest.NewClock(time.Now())
	w.workerPool = w.db.Pool("memd_worker")
	w.appPool = w.db.Pool("memd_app")
	emulator, err := kmsemu.Open(kmsemu.Config{Dir: t.TempDir(), Clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	w.emulator = emulator
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- emulator.Serve(listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(emulator.Stop(ctx), <-served); err != nil {
			t.Error(err)
		}
	})
	w.address = listener.Addr().String()
	url := "emulator:" + w.address
	w.app = w.identity(url, kmsemu.App)
	w.worker = w.identity(url, kmsemu.Worker)
	w.shredder = w.identity(url, kmsemu.Shredder)
	w.admin = newKMSAdmin(t, listener.Addr().String(), emulator.Tokens()[kmsemu.Admin])
	for _, name := range []string{"first", "second"} {
		l, err := ledger.OpenFolder(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		w.ledgers = append(w.ledgers, l)
	}
	return w
}

// in is the same world for a subtest, whose failures and cleanups are its own.
func (w *world) in(t *testing.T) *world {
	c := *w
	c.t, c.admin = t, &kmsAdmin{t: t, api: w.admin.api, token: w.admin.token}
	return &c
}

func (w *world) identity(url string, who kmsemu.Identity) shred.KMS {
	w.t.Helper()
	c, err := gcpkms.Open(w.t.Context(), gcpkms.Config{URL: url, Token: w.emulator.Tokens()[who]})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return c
}

func (w *world) provisionConfig() shred.ProvisionConfig {
	return shred.ProvisionConfig{
		Pool: w.workerPool, KMS: w.worker, Ledgers: w.ledgers, Installation: w.installation,
		DestroyDelay: 24 * time.Hour, Clock: memd.SystemClock{},
	}
}

// tenant provisions the next tenant.
func (w *world) tenant() memd.TenantNo {
	w.t.Helper()
	tenant := memd.TenantNo(w.tenants.Add(1))
	if err := shred.Provision(w.t.Context(), w.provisionConfig(), tenant); err != nil {
		w.t.Fatal(err)
	}
	return tenant
}

func (w *world) rotatorConfig() shred.RotatorConfig {
	return shred.RotatorConfig{
		Pool: w.workerPool, Worker: w.worker, Shredder: w.shredder, Ledgers: w.ledgers,
		Clock: memd.SystemClock{}, Logger: w.log,
	}
}

func (w *world) rotator(change ...func(*shred.RotatorConfig)) *shred.Rotator {
	w.t.Helper()
	c := w.rotatorConfig()
	for _, f := range change {
		f(&c)
	}
	r, err := shred.NewRotator(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) puncture(tenant memd.TenantNo, paths ...shred.Path) {
	w.t.Helper()
	err := w.workerPool.With(w.t.Context(), func(db pg.DB) error {
		return shred.RequestPuncture(w.t.Context(), db, tenant, paths, uuid.New(), memd.SystemClock{}.Now())
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) rotate(r *shred.Rotator, tenant memd.TenantNo) shred.Rotation {
	w.t.Helper()
	done, err := r.Rotate(w.t.Context(), tenant)
	if err != nil {
		w.t.Fatal(err)
	}
	return done
}

// sql runs a statement as the database's owner, as an operator or a rollback
// would.
func (w *world) sql(statement string, args ...any) {
	w.t.Helper()
	err := w.db.Pool("").With(w.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(w.t.Context(), statement, args...)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// stored returns the key, the sealed state of an epoch and its version.
func (w *world) stored(tenant memd.TenantNo, epoch int64) (key, version string, sealed []byte) {
	w.t.Helper()
	err := w.workerPool.With(w.t.Context(), func(db pg.DB) error {
		return db.QueryRow(w.t.Context(), `SELECT k.kms_key, t.kms_version, t.sealed FROM memd.tenant_keys k
			JOIN memd.key_trees t USING (tenant_no) WHERE tenant_no = $1 AND t.epoch = $2`, tenant, epoch).
			Scan(&key, &version, &sealed)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return key, version, sealed
}

func (w *world) head(tenant memd.TenantNo) int64 {
	w.t.Helper()
	var epoch int64
	err := w.workerPool.With(w.t.Context(), func(db pg.DB) error {
		return db.QueryRow(w.t.Context(), `SELECT epoch FROM memd.tenant_keys WHERE tenant_no = $1`, tenant).Scan(&epoch)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return epoch
}

func (w *world) states(tenant memd.TenantNo) (key string, enabled []string) {
	w.t.Helper()
	key, _, _ = w.stored(tenant, w.head(tenant))
	versions, err := w.worker.List(w.t.Context(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, v := range versions {
		if !v.State.Doomed() {
			enabled = append(enabled, v.Name)
		}
	}
	return key, enabled
}

// checkLine checks what must hold whenever a rotation was finished: database and
// ledgers hold one head, which derives the living and not the dead, no older
// state opens, and the head's key version is the only one.
func (w *world) checkLine(tenant memd.TenantNo, living, dead []shred.Path) {
	w.t.Helper()
	head := w.head(tenant)
	key, version, sealed := w.stored(tenant, head)
	copies := [][]byte{sealed}
	for i, l := range w.ledgers {
		data, err := l.Get(w.t.Context(), shred.LedgerName(tenant, head))
		if err != nil {
			w.t.Fatalf("ledger %d: %v", i, err)
		}
		copies = append(copies, data)
		if _, err := l.Get(w.t.Context(), shred.LedgerName(tenant, head+1)); !errors.Is(err, memd.ErrNotFound) {
			w.t.Errorf("ledger %d is ahead of the database: %v", i, err)
		}
	}
	for i, data := range copies {
		tree, _, err := shred.OpenTree(w.t.Context(), w.app, key, data)
		if err != nil {
			w.t.Fatalf("copy %d of the head: %v", i, err)
		}
		for _, p := range living {
			if _, err := tree.Derive(p); err != nil {
				w.t.Errorf("copy %d of epoch %d: a living path does not derive: %v", i, head, err)
			}
		}
		for _, p := range dead {
			if !tree.Erased(p) {
				w.t.Errorf("copy %d of epoch %d: a punctured path is still there", i, head)
			}
		}
		tree.Zero()
	}
	for epoch := int64(1); epoch < head; epoch++ {
		_, _, old := w.stored(tenant, epoch)
		if _, _, err := shred.OpenTree(w.t.Context(), w.worker, key, old); !errors.Is(err, memd.ErrShredded) {
			w.t.Errorf("epoch %d opens, or is not known to be shredded: %v", epoch, err)
		}
	}
	if _, enabled := w.states(tenant); len(enabled) != 1 || enabled[0] != version {
		w.t.Errorf("usable versions are %v, want the head's alone: %s", enabled, version)
	}
}

// leaf is the memory leaf of a subject's own scope.
func leaf(t *testing.T, subject int64) shred.Path {
	t.Helper()
	return shred.SessionPath(number(t, 1, subject), memd.ClassMemory, memd.OwnScope)
}

func subject(t *testing.T, n int64) shred.Path {
	t.Helper()
	return shred.SubjectPath(number(t, 1, n))
}
