package receipts_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/kmstest"
	"forgettable.dev/memd/shred/ledger"
)

// world is an installation: database, key service, two ledgers.
type world struct {
	t            *testing.T
	db           *pgtest.DB
	pool         *pg.Pool // as the worker
	kms          shred.KMS
	emulator     *kmstest.Emulator
	places       []ledger.Ledger
	installation uuid.UUID
	clock        *kmstest.Clock
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.Database(t), clock: kmstest.NewClock(noon.Add(time.Hour))}
	w.pool = w.db.Pool("memd_worker")
	w.emulator = kmstest.StartEmulator(t, "")
	w.kms = w.emulator.Client(t, kmsemu.Worker)
	w.places = twoFolders(t)
	err := w.pool.With(t.Context(), func(db pg.DB) (err error) {
		w.installation, err = provenance.Installation(t.Context(), db)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func twoFolders(t *testing.T) (places []ledger.Ledger) {
	t.Helper()
	for range 2 {
		f, err := ledger.OpenFolder(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
		places = append(places, f)
	}
	return places
}

func (w *world) in(t *testing.T) *world {
	in := *w
	in.t = t
	return &in
}

func (w *world) signerConfig() receipts.SignerConfig {
	return receipts.SignerConfig{
		Pool: w.pool, KMS: w.kms, Ledger: ledger.Mirror(w.places), Installation: w.installation, Clock: w.clock,
	}
}

func (w *world) signer() *receipts.Signer {
	w.t.Helper()
	s, err := receipts.OpenSigner(w.t.Context(), w.signerConfig())
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) issuer() *receipts.Issuer {
	w.t.Helper()
	return &receipts.Issuer{Pool: w.pool, Signer: w.signer(), Ledger: ledger.Mirror(w.places), Clock: w.clock}
}

func (w *world) issue(i *receipts.Issuer, tenant memd.TenantNo, r receipts.Receipt) receipts.Bundle {
	w.t.Helper()
	b, err := i.Issue(w.t.Context(), tenant, r)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *world) keys() (keys *receipts.Keys) {
	w.t.Helper()
	err := w.db.Pool("memd_app").With(w.t.Context(), func(db pg.DB) (err error) {
		keys, err = receipts.PublicKeys(w.t.Context(), db)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return keys
}

func (w *world) log(tenant memd.TenantNo) (all []receipts.Bundle) {
	w.t.Helper()
	err := w.pool.With(w.t.Context(), func(db pg.DB) (err error) {
		all, err = receipts.ReadLog(w.t.Context(), db, tenant, 0)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// check sees that database and both ledgers hold one whole log of n entries
// that verifies, and returns it.
func (w *world) check(tenant memd.TenantNo, n int) []receipts.Bundle {
	w.t.Helper()
	all := w.log(tenant)
	if len(all) != n {
		w.t.Fatalf("the log has %d entries, want %d", len(all), n)
	}
	if n > 0 {
		if _, err := receipts.VerifyChain(all, w.keys()); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, b := range all {
		for i, l := range w.places {
			got, err := l.Get(w.t.Context(), receipts.EntryName(tenant, b.Entry.Index))
			if err != nil || string(got) != string(data(w.t, b)) {
				w.t.Errorf("ledger %d, entry %d: %v", i+1, b.Entry.Index, err)
			}
		}
	}
	for i, l := range w.places {
		names, err := l.List(w.t.Context(), receipts.EntryName(tenant, 0)[:len("receipts/1/")])
		if err != nil {
			w.t.Fatal(err)
		}
		if tenant < 10 && len(names) != n {
			w.t.Errorf("ledger %d has %d entries, want %d", i+1, len(names), n)
		}
	}
	return all
}

func (w *world) superuser(sql string, args ...any) error {
	return w.db.Pool("").With(w.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(w.t.Context(), sql, args...)
		return err
	})
}
