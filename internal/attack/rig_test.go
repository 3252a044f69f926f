package attack_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"forgettable.dev/memd"
	"forgettable.dev/memd/compact"
	"forgettable.dev/memd/internal/cluster"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/kmstest"
	"forgettable.dev/memd/tenants"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// length is how long an attack lasts.
func length(short time.Duration) time.Duration {
	if minutes, err := strconv.ParseFloat(os.Getenv("MEMD_ATTACK"), 64); err == nil && minutes > 0 {
		return time.Duration(minutes * float64(time.Minute))
	}
	return short
}

// seed is MEMD_SEED, or the time; it is logged.
func seed(t *testing.T) uint64 {
	t.Helper()
	s, err := strconv.ParseUint(os.Getenv("MEMD_SEED"), 10, 64)
	if err != nil {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d (MEMD_SEED)", s)
	return s
}

// rig is a memd whose PostgreSQL is the test's own, to be killed.
type rig struct {
	t       *testing.T
	dir     string
	pgMu    sync.Mutex
	pg      *cluster.Cluster
	kms     *kmstest.Emulator
	servers []*node.Server
	tenant  memory.Tenant
	logs    *memdtest.Logs
	stop    func() // ends the attack
}

const maxConns = 12

func build(t *testing.T, servers int) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), kms: kmstest.StartEmulator(t, ""), logs: &memdtest.Logs{}}
	for p := r.dir; strings.HasPrefix(p, os.TempDir()) && p != os.TempDir(); p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil { // PostgreSQL's user must get through.
			t.Fatal(err)
		}
	}
	r.startPostgres()
	t.Cleanup(func() {
		if err := r.pg.Close(); err != nil {
			t.Errorf("stopping PostgreSQL: %v", err)
		}
	})
	if err := r.pg.CreateDatabase(t.Context(), "memd"); err != nil {
		t.Fatal(err)
	}
	if err := pg.Migrate(t.Context(), r.pg.URL("memd", "")); err != nil {
		t.Fatal(err)
	}
	// Its owner may vacuum.
	if err := r.exec(`ALTER DATABASE memd OWNER TO ` + compact.Role); err != nil {
		t.Fatal(err)
	}
	w, err := node.OpenWorker(t.Context(), node.WorkerConfig{
		Common: r.common(node.WorkerRole, kmsemu.Worker), Shredder: r.identity(kmsemu.Shredder),
		Compaction: node.Compaction{URL: r.pg.URL("memd", compact.Role), Disk: compact.Disk{DataDir: r.pg.Data()}, ErasureInterval: time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.run(func(ctx context.Context) error { return w.Run(ctx) }, w.Close)
	for range servers {
		s, err := node.OpenServer(t.Context(), node.ServerConfig{Common: r.common(node.AppRole, kmsemu.App), MaxResidentBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		r.run(func(ctx context.Context) error { return s.Run(ctx, l) }, s.Close)
		r.servers = append(r.servers, s)
	}
	r.makeTenant()
	return r
}

func (r *rig) exec(sql string) error {
	conn, err := pgx.Connect(r.t.Context(), r.pg.URL("memd", ""))
	if err != nil {
		return err
	}
	_, err = conn.Exec(r.t.Context(), sql)
	return errors.Join(err, conn.Close(r.t.Context()))
}

// run runs a process's loop until the test ends.
func (r *rig) run(loop func(ctx context.Context) error, closing func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- loop(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, closing(context.Background())); err != nil {
			r.t.Errorf("ending a process: %v", err)
		}
	})
}

func (r *rig) common(role string, id kmsemu.Identity) node.Common {
	metrics, err := node.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		r.t.Fatal(err)
	}
	return node.Common{
		DatabaseURL: r.pg.URL("memd", role), MaxConns: maxConns, KMS: r.identity(id), Metrics: metrics, Ledgers: []string{filepath.Join(r.dir, "ledger")}, Exports: filepath.Join(r.dir, "exports"),
		Logger: slog.New(slog.NewJSONHandler(r.logs, nil)),
	}
}

func (r *rig) identity(id kmsemu.Identity) node.KMS {
	return node.KMS{URL: "emulator:" + r.kms.Address, Token: r.kms.Server.Tokens()[id]}
}

func (r *rig) startPostgres() {
	c, err := cluster.Start(context.Background(), cluster.Config{Dir: filepath.Join(r.dir, "pg")})
	if err != nil {
		r.t.Error(err)
		return
	}
	r.pgMu.Lock()
	r.pg = c
	r.pgMu.Unlock()
}

// restartPostgres stops it in good order, or with kill -9, and starts it again.
func (r *rig) restartPostgres(kill bool) {
	if kill {
		if err := syscall.Kill(r.pg.PID(), syscall.SIGKILL); err != nil {
			r.t.Error(err)
		}
		<-r.pg.Done()
	}
	if err := r.pg.Close(); err != nil && !kill {
		r.t.Errorf("stopping PostgreSQL: %v", err)
	}
	r.startPostgres()
}

func (r *rig) makeTenant() {
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	var t tenants.Tenant
	p := memdtest.Policy()
	err := r.servers[0].Pool.With(ctx, func(db pg.DB) (err error) {
		t, err = tenants.Create(ctx, db, memd.SystemClock{}.Now(), "attacked", "", p)
		return err
	})
	if err == nil {
		t, err = tenants.WaitActive(ctx, r.servers[0].Pool, t.No)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.tenant = memory.Tenant{No: t.No, Epoch: t.Epoch, Dimension: p.Dimension, Embedder: p.Embedder, Format: memory.FormatFloat32}
}
