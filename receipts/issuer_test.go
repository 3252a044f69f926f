package receipts_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/fault"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/receipts"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
)

func TestIssuer_Issue(t *testing.T) {
	w := newWorld(t)
	i := w.issuer()
	first := w.issue(i, 7, provisional(id(1)))
	w.clock.Advance(time.Hour)
	// The request again, later, with other contents: what was issued is issued.
	other := provisional(id(1))
	other.Fallen = 99
	if diff := cmp.Diff(data(t, first), data(t, w.issue(i, 7, other))); diff != "" {
		t.Errorf("issuing again gave other bytes:\n%s", diff)
	}
	last := w.issue(i, 7, final(id(1)))
	leaf, err := first.Entry.Leaf()
	if err != nil {
		t.Fatal(err)
	}
	if *last.Entry.Receipt.Prior != leaf || last.Entry.Receipt.Times.Issued != w.clock.Now() {
		t.Errorf("final receipt: %+v", last.Entry.Receipt)
	}
	w.issue(i, 8, provisional(id(1))) // The same request of another tenant is another.
	w.check(7, 2)
	w.check(8, 1)

	var read []receipts.Bundle
	err = w.db.Pool("memd_app").With(t.Context(), func(db pg.DB) (err error) {
		read, err = receipts.Read(t.Context(), db, 7, id(1))
		return err
	})
	if err != nil || len(read) != 2 || !bytes.Equal(data(t, read[0]), data(t, first)) || !bytes.Equal(data(t, read[1]), data(t, last)) {
		t.Errorf("read %d receipts: %v", len(read), err)
	}
	err = w.pool.With(t.Context(), func(db pg.DB) error {
		_, err := receipts.Read(t.Context(), db, 9, id(1))
		return err
	})
	if !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("another tenant's request: %v", err)
	}
}

func TestIssuer_RefusesFinalFirst(t *testing.T) {
	w := newWorld(t)
	i := w.issuer()
	if _, err := i.Issue(t.Context(), 7, final(id(1))); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("final without provisional: %v", err)
	}
	bad := provisional(id(1))
	bad.Tenant = "Not A Name"
	if _, err := i.Issue(t.Context(), 7, bad); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("no tenant: %v", err)
	}
	w.check(7, 0)
}

// Any number of issuers, each with its own connections, one log.
func TestIssuer_Concurrent(t *testing.T) {
	w := newWorld(t)
	const issuers, requests = 4, 6
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[uuid.UUID]map[string]bool{}
	for n := range issuers {
		i := &receipts.Issuer{Pool: w.db.Pool("memd_worker"), Signer: w.signer(), Ledger: ledger.Mirror(w.places), Clock: w.clock}
		wg.Go(func() {
			for r := range requests {
				// Half of the requests are all issuers', half are one's own.
				request := id(byte(r))
				if r%2 == 1 {
					request = id(byte(100 + 10*n + r))
				}
				b, err := i.Issue(t.Context(), 7, provisional(request))
				if err != nil {
					t.Error(err)
					return
				}
				file, err := b.Encode()
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if got[request] == nil {
					got[request] = map[string]bool{}
				}
				got[request][string(file)] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	w.check(7, requests/2+issuers*requests/2)
	for request, files := range got {
		if len(files) != 1 {
			t.Errorf("request %s has %d different receipts", request, len(files))
		}
	}
}

// The ledger has what the database lost: a restore, a failover that lost
// commits. The log goes on where it was, and is not forked.
func TestIssuer_TakesOverWhatTheDatabaseLost(t *testing.T) {
	w := newWorld(t)
	i := w.issuer()
	for n := range 5 {
		w.issue(i, 7, provisional(id(byte(n+1))))
	}
	before := w.check(7, 5)
	if err := w.superuser("DELETE FROM memd.receipts WHERE log_index >= 2"); err != nil {
		t.Fatal(err)
	}
	// The last of the lost ones again: the same bytes.
	if again := w.issue(i, 7, provisional(id(5))); !bytes.Equal(data(t, again), data(t, before[4])) {
		t.Error("a receipt that the database lost was issued again as another")
	}
	w.issue(i, 7, provisional(id(6)))
	after := w.check(7, 6)
	for n := range before {
		if !bytes.Equal(data(t, before[n]), data(t, after[n])) {
			t.Errorf("entry %d changed", n)
		}
	}
}

// A ledger with something else at the next place is an error, not the end of
// one log or the beginning of another.
func TestIssuer_RefusesForeignLedgerEntry(t *testing.T) {
	w := newWorld(t)
	i := w.issuer()
	w.issue(i, 7, provisional(id(1)))
	elsewhere := w.issue(i, 8, provisional(id(1)))
	w.issue(i, 8, provisional(id(2)))
	second := w.log(8)[1]
	for name, content := range map[string][]byte{"garbage": []byte("x"), "another log's": data(t, second), "another place's": data(t, elsewhere)} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			place := t.TempDir()
			folder, err := ledger.OpenFolder(place)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = folder.Close() }() // Nothing depends on it.
			if err := folder.Put(t.Context(), receipts.EntryName(7, 1), content); err != nil {
				t.Fatal(err)
			}
			broken := &receipts.Issuer{Pool: w.pool, Signer: i.Signer, Ledger: folder, Clock: w.clock}
			if _, err := broken.Issue(t.Context(), 7, provisional(id(9))); !errors.Is(err, memd.ErrCorrupt) {
				t.Errorf("issued over it: %v", err)
			}
			if n := len(w.log(7)); n != 1 {
				t.Errorf("the log has %d entries", n)
			}
		})
	}
}

// Design §2, invariant 5: killed after any SQL statement or ledger operation,
// or with its answer lost, and started again by the same issuer or another one,
// it ends in the same log.
func TestIssuer_CrashSweep(t *testing.T) {
	w := newWorld(t)
	fuse := new(fault.Fuse)
	wire, err := fault.OpenWire(fuse, w.db.URL("memd_worker"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Close)
	signer := w.signer()
	whole := &receipts.Issuer{Pool: w.pool, Signer: signer, Ledger: ledger.Mirror(w.places), Clock: w.clock}
	broken := &receipts.Issuer{Signer: signer, Ledger: ledger.Mirror(fault.Ledgers(fuse, w.places)), Clock: w.clock}
	points, tenant := 0, memd.TenantNo(0)
	for _, mode := range fault.Modes {
		for _, resumer := range []string{"same request", "another request first"} {
			for k := 1; ; k++ {
				tenant++
				w.issue(whole, tenant, provisional(id(1)))
				var err error
				if broken.Pool, err = pg.Open(t.Context(), pg.Config{URL: wire.URL}); err != nil {
					t.Fatal(err)
				}
				fuse.Arm(k, mode)
				b, err := broken.Issue(t.Context(), tenant, provisional(id(2)))
				_, blown := fuse.Blown()
				fuse.Disarm()
				broken.Pool.Close()
				if !blown && err != nil {
					t.Fatalf("%s at %d was not reached, and yet: %v", mode, k, err)
				}
				if err == nil {
					// It was said to be issued: everything has it, now.
					w.check(tenant, 2)
				}
				n := 2
				if resumer != "same request" {
					w.issue(whole, tenant, provisional(id(3)))
					n++
				}
				w.clock.Advance(time.Second)
				again := w.issue(whole, tenant, provisional(id(2)))
				if err == nil && !bytes.Equal(data(t, b), data(t, again)) {
					t.Fatalf("%s at %d: issued twice", mode, k)
				}
				w.check(tenant, n)
				if t.Failed() {
					t.Fatalf("%s at %d, then %s", mode, k, resumer)
				}
				if !blown {
					break
				}
				points++
			}
		}
	}
	t.Logf("broke off at %d points", points)
	if points < 40 {
		t.Errorf("only %d points were found", points)
	}
}

// The same for the installation's first signing key: whatever the crash left
// behind, there is one, and it is in every ledger.
func TestOpenSigner_CrashSweep(t *testing.T) {
	world := newWorld(t)
	fuse := new(fault.Fuse)
	wire, err := fault.OpenWire(fuse, world.db.URL("memd_worker"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Close)
	points := 0
	for _, mode := range fault.Modes {
		for k := 1; ; k++ {
			blown := false
			t.Run(fmt.Sprintf("%s %d", mode, k), func(t *testing.T) {
				w := world.in(t)
				if w.places = twoFolders(t); w.superuser("TRUNCATE memd.receipt_keys") != nil {
					t.Fatal("emptying the table")
				}
				pool, err := pg.Open(t.Context(), pg.Config{URL: wire.URL})
				if err != nil {
					t.Fatal(err)
				}
				defer pool.Close()
				c := w.signerConfig()
				c.Pool, c.KMS, c.Ledger = pool, fault.KMS(fuse, w.kms), ledger.Mirror(fault.Ledgers(fuse, w.places))
				fuse.Arm(k, mode)
				made, err := receipts.OpenSigner(t.Context(), c)
				_, blown = fuse.Blown()
				fuse.Disarm()
				if !blown && err != nil {
					t.Fatal(err)
				}
				s := w.signer()
				if err == nil && made.Key() != s.Key() {
					t.Error("two first keys")
				}
				if ids := w.keys().IDs(); len(ids) != 1 || ids[0] != s.Key() {
					t.Errorf("keys are %v", ids)
				}
				for _, l := range w.places {
					if names, err := l.List(t.Context(), "receipts/keys/"); err != nil || len(names) != 1 {
						t.Errorf("a ledger has keys %v: %v", names, err)
					}
				}
			})
			if t.Failed() || !blown {
				break
			}
			points++
		}
	}
	t.Logf("broke off at %d points", points)
}

func TestRotateKey(t *testing.T) {
	w := newWorld(t)
	i := w.issuer()
	w.issue(i, 7, provisional(id(1)))
	second, err := receipts.RotateKey(t.Context(), w.signerConfig())
	if err != nil {
		t.Fatal(err)
	}
	if second.Key() == i.Signer.Key() {
		t.Fatal("the key is the same")
	}
	for name, have := range map[string]*receipts.Signer{"of a process that runs": i.Signer, "of one that starts": nil, "the newest": second} {
		if got, err := receipts.Renew(t.Context(), w.signerConfig(), have); err != nil || got.Key() != second.Key() || have == second && got != second {
			t.Errorf("%s: not renewed, %v", name, err)
		}
	}
	// A process that is about to sign with the old key as the new one is made is
	// no harm.
	w.issue(i, 7, provisional(id(2)))
	w.issue(w.issuer(), 7, provisional(id(3)))
	w.issue(i, 7, final(id(1)))
	log := w.check(7, 4)
	if log[2].Entry.Key != second.Key() || log[3].Entry.Key != i.Signer.Key() {
		t.Errorf("signed with %s and %s", log[2].Entry.Key, log[3].Entry.Key)
	}
	public, err := w.keys().JSON()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := receipts.ParseKeys(public)
	if err != nil || len(keys.IDs()) != 2 || bytes.Contains(public, []byte("privateKey")) {
		t.Errorf("public keyset: %v\n%s", err, public)
	}
	// With the version destroyed that wraps it, the newest key cannot be opened
	// any more, and another one can be made.
	versions, err := w.emulator.Client(t, kmsemu.Shredder).List(t.Context(), wrappingKey(w))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		if _, err := w.emulator.Client(t, kmsemu.Shredder).Destroy(t.Context(), v.Name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := receipts.OpenSigner(t.Context(), w.signerConfig()); !errors.Is(err, memd.ErrShredded) {
		t.Errorf("opened a key whose version is destroyed: %v", err)
	}
	third, err := receipts.RotateKey(t.Context(), w.signerConfig())
	if err != nil {
		t.Fatal(err)
	}
	w.issue(w.issuer(), 7, final(id(2)))
	if log := w.check(7, 5); log[4].Entry.Key != third.Key() {
		t.Error("not signed with the third key")
	}
}

// wrappingKey is the name of the KMS key in the database's record.
func wrappingKey(w *world) (name string) {
	w.t.Helper()
	err := w.pool.With(w.t.Context(), func(db pg.DB) error {
		return db.QueryRow(w.t.Context(), `SELECT convert_from(record, 'UTF8')::jsonb ->> 'kms_key' FROM memd.receipt_keys LIMIT 1`).Scan(&name)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return name
}

// Nobody changes or deletes a receipt or a key, and the application, which can
// unwrap, reads no private key.
func TestTables_AreAppendOnly(t *testing.T) {
	w := newWorld(t)
	w.issue(w.issuer(), 7, provisional(id(1)))
	for _, c := range []struct {
		role, sql string
		allowed   bool
	}{
		{"memd_worker", "SELECT bundle FROM memd.receipts", true},
		{"memd_worker", "SELECT record FROM memd.receipt_keys", true},
		{"memd_worker", "UPDATE memd.receipts SET bundle = ''", false},
		{"memd_worker", "DELETE FROM memd.receipts", false},
		{"memd_worker", "TRUNCATE memd.receipts", false},
		{"memd_worker", "UPDATE memd.receipt_keys SET record = ''", false},
		{"memd_worker", "DELETE FROM memd.receipt_keys", false},
		{"memd_app", "SELECT bundle FROM memd.receipts", true},
		{"memd_app", "SELECT public_key FROM memd.receipt_keys", true},
		{"memd_app", "SELECT record FROM memd.receipt_keys", false},
		{"memd_app", "INSERT INTO memd.receipts SELECT * FROM memd.receipts", false},
		{"memd_app", "DELETE FROM memd.receipts", false},
	} {
		err := w.db.Pool(c.role).With(t.Context(), func(db pg.DB) error {
			_, err := db.Exec(t.Context(), c.sql, pgx.QueryExecModeSimpleProtocol)
			return err
		})
		if c.allowed != (err == nil) || !c.allowed && pg.SQLState(err) != "42501" {
			t.Errorf("%s: %s: %v", c.role, c.sql, err)
		}
	}
}

// failures.md: a receipt that leaks what was erased. Ids and salts full of
// canaries are fed through commitments, errors and every place that a receipt
// is kept in; no byte of any says them.
func TestIssuer_KeepsNothingPersonal(t *testing.T) {
	w := newWorld(t)
	i := w.issuer()
	salt, err := receipts.NewSalt()
	if err != nil {
		t.Fatal(err)
	}
	canaries := []string{"Maria.Gomez@example.org", "kanarienvogel-app", "sitzung-Zolpidem", salt.Reveal()}
	for n, stage := range []receipts.Receipt{provisional(id(1)), final(id(1))} {
		stage.Commitment = receipts.Commit(salt, "pharmacy", canaries[1], canaries[0], canaries[2])
		b := w.issue(i, 7, stage)
		if !b.Entry.Receipt.Proves(salt, canaries[1], canaries[0], canaries[2]) {
			t.Errorf("receipt %d is not about its subject", n)
		}
	}
	bad := provisional(id(2))
	bad.Checks[0].Name, bad.Stores[0].Name = receipts.CheckName(canaries[0]), receipts.StoreName(canaries[2])
	_, failure := i.Issue(t.Context(), 7, bad)
	if failure == nil {
		t.Fatal("canaries were issued")
	}
	haystack := []string{failure.Error()}
	for _, b := range w.log(7) {
		haystack = append(haystack, string(data(t, b)))
	}
	for _, l := range w.places {
		names, err := l.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			content, err := l.Get(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			haystack = append(haystack, name, string(content))
		}
	}
	var rows []string
	err = w.pool.With(t.Context(), func(db pg.DB) error {
		r, err := db.Query(t.Context(), `SELECT r::text || convert_from(bundle, 'UTF8') FROM memd.receipts r`)
		if err != nil {
			return err
		}
		rows, err = pgx.CollectRows(r, pgx.RowTo[string])
		return err
	})
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d rows: %v", len(rows), err)
	}
	haystack = append(haystack, rows...)
	if len(haystack) < 8 {
		t.Fatalf("only %d things were looked at", len(haystack))
	}
	for _, canary := range canaries {
		for _, form := range []string{canary, strings.ToLower(canary), hex.EncodeToString([]byte(canary)), base64.StdEncoding.EncodeToString([]byte(canary))} {
			for _, hay := range haystack {
				if strings.Contains(hay, form) {
					t.Errorf("%q is in %.200s", form, hay)
				}
			}
		}
	}
}

// A call that was given up leaves the log whole.
func TestIssuer_CancelledCall(t *testing.T) {
	w := newWorld(t)
	i := w.issuer()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := i.Issue(ctx, 7, provisional(id(1))); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	w.issue(i, 7, provisional(id(1)))
	w.check(7, 1)
}

// Loss of one ledger location is visible, and the log goes on when another,
// empty one takes its place.
func TestIssuer_LedgerAway(t *testing.T) {
	w := newWorld(t)
	i := w.issuer()
	w.issue(i, 7, provisional(id(1)))
	fuse := new(fault.Fuse)
	away := &receipts.Issuer{Pool: w.pool, Signer: i.Signer, Clock: w.clock,
		Ledger: ledger.Mirror([]ledger.Ledger{w.places[0], fault.Ledgers(fuse, w.places[1:])[0]})}
	fuse.Arm(1, fault.CrashBefore)
	if _, err := away.Issue(t.Context(), 7, provisional(id(2))); err == nil {
		t.Error("issued with one ledger location away")
	}
	fuse.Disarm()
	w.issue(i, 7, provisional(id(2)))
	w.check(7, 2)
}
