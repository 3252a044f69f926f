package auth_test

import (
	"crypto/sha256"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/pgtest"
	"forgettable.dev/memd/tenants"
)

// clock is a clock that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

type bundle struct {
	t     *testing.T
	db    *pgtest.DB
	pool  *pg.Pool
	clock *clock
	auth  *auth.Authenticator
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, db: pgtest.Database(t), clock: &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}}
	b.pool = b.db.Pool("memd_app")
	b.auth = b.replica()
	return b
}

// replica is an Authenticator of another process.
func (b *bundle) replica() *auth.Authenticator {
	b.t.Helper()
	a, err := auth.New(auth.Config{Pool: b.db.Pool("memd_app"), Clock: b.clock, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

func (b *bundle) with(f func(db pg.DB) error) {
	b.t.Helper()
	if err := b.pool.With(b.t.Context(), f); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) create(n auth.NewKey) (k auth.Key, secret string) {
	b.t.Helper()
	b.with(func(db pg.DB) (err error) {
		k, secret, err = auth.Create(b.t.Context(), db, b.clock.Now(), n)
		return err
	})
	return k, secret
}

func (b *bundle) list(tenant memd.TenantNo) (keys []auth.Key) {
	b.t.Helper()
	b.with(func(db pg.DB) (err error) {
		keys, err = auth.List(b.t.Context(), db, tenant, auth.Cursor{}, 100)
		return err
	})
	return keys
}

func (b *bundle) revoke(caller memd.TenantNo, id uuid.UUID) (k auth.Key, err error) {
	err = b.pool.With(b.t.Context(), func(db pg.DB) (err error) {
		k, err = auth.Revoke(b.t.Context(), db, b.clock.Now(), caller, id)
		return err
	})
	return k, err
}

func (b *bundle) tenant(name string) (t tenants.Tenant) {
	b.t.Helper()
	b.with(func(db pg.DB) (err error) {
		t, err = tenants.Create(b.t.Context(), db, b.clock.Now(), name, "", tenants.DefaultPolicy())
		return err
	})
	return t
}

func TestCreate_StoresAHashAndNothingElse(t *testing.T) {
	b := setup(t)
	key, secret := b.create(auth.NewKey{Name: "first", Roles: auth.Operator})
	if !regexp.MustCompile(`^memd_[a-z2-7]{52}$`).MatchString(secret) {
		t.Errorf("secret has the form of %q", secret)
	}
	var row string
	var hash []byte
	b.with(func(db pg.DB) error {
		return db.QueryRow(t.Context(), `SELECT p::text, secret_hash FROM memd.principals p`).Scan(&row, &hash)
	})
	if strings.Contains(row, secret) || strings.Contains(row, strings.TrimPrefix(secret, "memd_")) {
		t.Error("the secret is in the table")
	}
	if want := sha256.Sum256([]byte(secret)); string(hash) != string(want[:]) {
		t.Error("the hash is not the secret's SHA-256")
	}
	if diff := cmp.Diff(key, b.list(auth.Installation)[0]); diff != "" {
		t.Error(diff)
	}
	if _, other := b.create(auth.NewKey{Name: "first", Roles: auth.Operator}); other == secret {
		t.Error("two keys have one secret")
	}
}

func TestCreate_Refuses(t *testing.T) {
	b := setup(t)
	for name, n := range map[string]auth.NewKey{
		"no name":                         {Roles: auth.Operator},
		"a long name":                     {Name: strings.Repeat("n", auth.MaxName+1), Roles: auth.Operator},
		"no role":                         {Name: "n"},
		"an unknown role":                 {Name: "n", Roles: 1 << 10},
		"an agent of the installation":    {Name: "n", Roles: auth.Agent},
		"an eraser among other roles":     {Name: "n", Roles: auth.Operator | auth.Eraser},
		"bytes that are not UTF-8 (name)": {Name: "\xff", Roles: auth.Operator},
	} {
		err := b.pool.With(t.Context(), func(db pg.DB) error {
			_, _, err := auth.Create(t.Context(), db, b.clock.Now(), n)
			return err
		})
		if !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAuthenticate_ReturnsKeyAndTenant(t *testing.T) {
	b := setup(t)
	acme := b.tenant("acme")
	key, secret := b.create(auth.NewKey{Tenant: acme.No, Name: "a", Roles: auth.Agent | auth.Eraser})
	want := auth.Principal{
		Key: key.ID, Roles: auth.Agent | auth.Eraser, Tenant: acme.No, TenantName: "acme",
		State: tenants.StateCreating, Policy: tenants.DefaultPolicy(),
	}
	got, err := b.auth.Authenticate(t.Context(), secret)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, difference %s", err, diff)
	}
	owner := b.db.Pool("")
	if err := owner.With(t.Context(), func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `WITH k AS (INSERT INTO memd.tenant_keys VALUES ($1, 'k', 4)) UPDATE memd.tenants SET state = 2`, acme.No)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want.State, want.Epoch = tenants.StateActive, 4
	got, err = b.auth.Authenticate(t.Context(), secret)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("what changed is not seen by the next call: error %v, difference %s", err, diff)
	}
	key, secret = b.create(auth.NewKey{Name: "o", Roles: auth.Operator})
	got, err = b.auth.Authenticate(t.Context(), secret)
	if diff := cmp.Diff(auth.Principal{Key: key.ID, Roles: auth.Operator}, got); diff != "" || err != nil {
		t.Errorf("of the installation: error %v, difference %s", err, diff)
	}
}

func TestAuthenticate_RefusesWhatIsNoKey(t *testing.T) {
	b := setup(t)
	_, secret := b.create(auth.NewKey{Name: "n", Roles: auth.Operator})
	last := "a"
	if strings.HasSuffix(secret, "a") {
		last = "q"
	}
	for name, s := range map[string]string{
		"nothing":           "",
		"without prefix":    strings.TrimPrefix(secret, "memd_"),
		"cut":               secret[:len(secret)-1],
		"longer":            secret + "a",
		"another":           secret[:len(secret)-1] + last,
		"in upper case":     "memd_" + strings.ToUpper(strings.TrimPrefix(secret, "memd_")),
		"with a space":      " " + secret,
		"its hash":          "memd_" + strings.Repeat("0", 52),
		"a quote and a NUL": "memd_'\x00" + strings.Repeat("a", 50),
	} {
		if _, err := b.auth.Authenticate(t.Context(), s); !errors.Is(err, memd.ErrUnauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRevoke_IsSeenByEveryReplicaAtOnce(t *testing.T) {
	b := setup(t)
	other := b.replica()
	key, secret := b.create(auth.NewKey{Name: "n", Roles: auth.Operator})
	for _, a := range []*auth.Authenticator{b.auth, other} {
		if _, err := a.Authenticate(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	revoked, err := b.revoke(auth.Installation, key.ID)
	if err != nil || !revoked.RevokedAt.Equal(b.clock.Now()) {
		t.Fatalf("revoked %v, %v", revoked.RevokedAt, err)
	}
	for name, a := range map[string]*auth.Authenticator{"the same": b.auth, "another": other} {
		if _, err := a.Authenticate(t.Context(), secret); !errors.Is(err, memd.ErrUnauthenticated) {
			t.Errorf("%s replica: %v", name, err)
		}
	}
	b.clock.advance(time.Hour)
	again, err := b.revoke(auth.Installation, key.ID)
	if err != nil || !again.RevokedAt.Equal(revoked.RevokedAt) {
		t.Errorf("again: %v, %v", again.RevokedAt, err)
	}
	// Nor does the application's own role bring it back.
	b.with(func(db pg.DB) error {
		_, err := db.Exec(t.Context(), `UPDATE memd.principals SET revoked_at = NULL`)
		return err
	})
	if _, err := b.auth.Authenticate(t.Context(), secret); !errors.Is(err, memd.ErrUnauthenticated) {
		t.Errorf("unrevoked: %v", err)
	}
}

func TestRevoke_LeavesOtherTenantsAlone(t *testing.T) {
	b := setup(t)
	acme, globex := b.tenant("acme"), b.tenant("globex")
	key, _ := b.create(auth.NewKey{Tenant: acme.No, Name: "n", Roles: auth.Agent})
	root, _ := b.create(auth.NewKey{Name: "root", Roles: auth.Operator})
	for name, c := range map[string]struct {
		caller memd.TenantNo
		id     uuid.UUID
		want   error
	}{
		"another tenant's":       {globex.No, key.ID, memd.ErrNotFound},
		"the installation's":     {globex.No, root.ID, memd.ErrNotFound},
		"nobody's":               {auth.Installation, uuid.New(), memd.ErrNotFound},
		"its own":                {acme.No, key.ID, nil},
		"by the installation":    {auth.Installation, key.ID, nil},
		"of the installation by": {auth.Installation, root.ID, nil},
	} {
		if _, err := b.revoke(c.caller, c.id); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestList_PagesByAge(t *testing.T) {
	b := setup(t)
	acme, globex := b.tenant("acme"), b.tenant("globex")
	var want []uuid.UUID
	for range 5 {
		// Two of the same instant each: the id decides.
		for range 2 {
			k, _ := b.create(auth.NewKey{Tenant: acme.No, Name: "n", Roles: auth.Agent})
			want = append(want, k.ID)
		}
		b.clock.advance(time.Second)
	}
	b.create(auth.NewKey{Tenant: globex.No, Name: "n", Roles: auth.Agent})
	b.create(auth.NewKey{Name: "n", Roles: auth.Operator})

	seen := map[uuid.UUID]int{}
	for after, pages := (auth.Cursor{}), 0; ; pages++ {
		var page []auth.Key
		b.with(func(db pg.DB) (err error) {
			page, err = auth.List(t.Context(), db, acme.No, after, 3)
			return err
		})
		if len(page) == 0 {
			break
		}
		for _, k := range page {
			seen[k.ID]++
		}
		after = page[len(page)-1].Cursor()
	}
	if len(seen) != len(want) {
		t.Errorf("saw %d keys of %d", len(seen), len(want))
	}
	for _, id := range want {
		if seen[id] != 1 {
			t.Errorf("a key was returned %d times", seen[id])
		}
	}
}

func TestFlush_WritesTheTimeOfLastUse(t *testing.T) {
	b := setup(t)
	key, secret := b.create(auth.NewKey{Name: "used", Roles: auth.Operator})
	b.create(auth.NewKey{Name: "unused", Roles: auth.Operator})
	use := func(a *auth.Authenticator) {
		t.Helper()
		if _, err := a.Authenticate(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	other := b.replica()
	b.clock.advance(time.Minute)
	use(other)
	b.clock.advance(time.Minute)
	use(b.auth)
	latest := b.clock.Now()
	// The replica with the older time comes last.
	for _, a := range []*auth.Authenticator{b.auth, other, other} {
		if err := a.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range b.list(auth.Installation) {
		if want := k.ID == key.ID; want != k.LastUsedAt.Equal(latest) {
			t.Errorf("%s was last used at %v", k.Name, k.LastUsedAt)
		}
	}
}

func TestFlush_KeepsTimesThatCouldNotBeWritten(t *testing.T) {
	b := setup(t)
	_, secret := b.create(auth.NewKey{Name: "used", Roles: auth.Operator})
	if _, err := b.auth.Authenticate(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	owner := b.db.Pool("")
	grant := func(sql string) {
		t.Helper()
		if err := owner.With(t.Context(), func(db pg.DB) error { _, err := db.Exec(t.Context(), sql); return err }); err != nil {
			t.Fatal(err)
		}
	}
	grant(`REVOKE UPDATE (last_used_at) ON memd.principals FROM memd_app`)
	if err := b.auth.Flush(t.Context()); err == nil {
		t.Fatal("written without the right to")
	}
	grant(`GRANT UPDATE (last_used_at) ON memd.principals TO memd_app`)
	if err := b.auth.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if used := b.list(auth.Installation)[0].LastUsedAt; !used.Equal(b.clock.Now()) {
		t.Errorf("last used at %v", used)
	}
}
