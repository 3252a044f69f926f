package auth_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
)

// holds asks the database about a premise as a call's statement does.
func (b *bundle) holds(p *pg.Premise) bool {
	b.t.Helper()
	args := pg.Args{}
	p.Args(args)
	var held *bool
	b.with(func(db pg.DB) error {
		return db.QueryRow(b.t.Context(), `
SELECT (SELECT p.revision FROM memd.premises p WHERE p.premise = @premise::bytea) = @revision::xid[]`, args).Scan(&held)
	})
	return held != nil && *held
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	err := b.db.Pool("").With(b.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(b.t.Context(), sql, args...)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func TestAuthenticator_Recall(t *testing.T) {
	for name, c := range map[string]struct {
		change string
		want   bool
	}{
		"nothing":                  {`SELECT $1::uuid`, true},
		"another key":              {`UPDATE memd.principals SET revoked_at = now() WHERE key_id <> $1`, true},
		"another tenant":           {`UPDATE memd.tenants SET state = 3 WHERE tenant_no <> (SELECT tenant_no FROM memd.principals WHERE key_id = $1)`, true},
		"the key is revoked":       {`UPDATE memd.principals SET revoked_at = now() WHERE key_id = $1`, false},
		"the key has other roles":  {`UPDATE memd.principals SET roles = 3 WHERE key_id = $1`, false},
		"the key is gone":          {`DELETE FROM memd.principals WHERE key_id = $1`, false},
		"the tenant's state":       {`UPDATE memd.tenants SET state = 3 WHERE tenant_no = (SELECT tenant_no FROM memd.principals WHERE key_id = $1)`, false},
		"the tenant's policy":      {`UPDATE memd.tenants SET policy = policy || '{"dimension": 7}' WHERE tenant_no = (SELECT tenant_no FROM memd.principals WHERE key_id = $1)`, false},
		"the tenant, and back":     {`UPDATE memd.tenants SET state = state WHERE tenant_no = (SELECT tenant_no FROM memd.principals WHERE key_id = $1)`, false},
		"the time of its last use": {`UPDATE memd.principals SET last_used_at = now() WHERE key_id = $1`, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			key, secret := b.create(auth.NewKey{Tenant: b.tenant("acme").No, Name: "k", Roles: auth.Agent})
			b.create(auth.NewKey{Tenant: b.tenant("other").No, Name: "k", Roles: auth.Agent})
			if _, _, ok := b.auth.Recall(secret); ok {
				t.Fatal("a key is recalled that was never authenticated")
			}
			want, err := b.auth.Authenticate(t.Context(), secret)
			if err != nil {
				t.Fatal(err)
			}
			got, premise, ok := b.auth.Recall(secret)
			if diff := cmp.Diff(want, got); !ok || diff != "" {
				t.Fatalf("recalled %v\n%s", ok, diff)
			}
			b.exec(c.change, key.ID)
			if held := b.holds(premise); held != c.want {
				t.Errorf("the premise holds: %v", held)
			}
		})
	}
}

func TestAuthenticator_Recall_onlyWhatIsFresh(t *testing.T) {
	b := setup(t)
	_, secret := b.create(auth.NewKey{Tenant: b.tenant("acme").No, Name: "k", Roles: auth.Agent})
	_, installation := b.create(auth.NewKey{Name: "k", Roles: auth.Operator})
	for _, s := range []string{secret, installation} {
		if _, err := b.auth.Authenticate(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, ok := b.auth.Recall(installation); ok {
		t.Error("a key of the installation is recalled")
	}
	if _, _, ok := b.replica().Recall(secret); ok {
		t.Error("a key is recalled by a process that has not met it")
	}
	for _, s := range []string{"", "memd_", secret[:len(secret)-1], secret + "a"} {
		if _, _, ok := b.auth.Recall(s); ok {
			t.Errorf("%q is recalled", s)
		}
	}
	b.clock.advance(auth.RecallFor)
	if _, _, ok := b.auth.Recall(secret); !ok {
		t.Error("a key is not recalled for as long as it is said")
	}
	b.clock.advance(1)
	if _, _, ok := b.auth.Recall(secret); ok {
		t.Error("a key is recalled for longer than it is said")
	}
}
