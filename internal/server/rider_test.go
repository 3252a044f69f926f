package server_test

import (
	"testing"

	"connectrpc.com/connect/v2"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/auth"
	"forgettable.dev/memd/internal/pg"
)

// A search of a key that is known rides on its own statement. Whatever changed
// meanwhile counts all the same, for results and errors alike, on a replica that
// heard nothing of it.
func TestServer_Search_ridesAndIsNeverBehind(t *testing.T) {
	for name, c := range map[string]struct {
		change string
		code   connect.Code
		reason string
	}{
		"the key is revoked":      {`UPDATE memd.principals SET revoked_at = now() WHERE key_id = $1`, connect.CodeUnauthenticated, ""},
		"the key is gone":         {`DELETE FROM memd.principals WHERE key_id = $1`, connect.CodeUnauthenticated, ""},
		"the key loses its role":  {`UPDATE memd.principals SET roles = 2 WHERE key_id = $1`, connect.CodePermissionDenied, ""},
		"the tenant is suspended": {`UPDATE memd.tenants SET state = 3 WHERE tenant_no = (SELECT tenant_no FROM memd.principals WHERE key_id = $1)`, 0, "TENANT_INACTIVE"},
	} {
		t.Run(name, func(t *testing.T) {
			in := setup(t)
			s := in.serve()
			key, secret := in.key(in.tenant("acme").No, auth.Agent)
			client := s.memory(secret)
			if _, err := client.Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{raw(user("chat", "alice"), "tea")}}); err != nil {
				t.Fatal(err)
			}
			requests := map[string]*memdv1.SearchRequest{
				"a user with rows":    {Scope: user("chat", "alice"), Text: "tea"},
				"nobody's scope":      {Scope: user("chat", "nobody"), Text: "tea"},
				"two scopes":          {Scope: user("chat", "alice"), Text: "tea", IncludeShared: true},
				"a malformed request": {Scope: user("chat", "alice"), TopK: -1},
				"a wrong vector":      {Scope: user("chat", "alice"), Vector: []float32{1}},
			}
			search := func(r *memdv1.SearchRequest) error {
				_, err := client.Search(t.Context(), r)
				return err
			}
			for range 2 {
				for name, r := range requests {
					want := connect.Code(0)
					if r.TopK < 0 || r.Vector != nil {
						want = connect.CodeInvalidArgument
					}
					if err := search(r); (err != nil || want != 0) && connect.CodeOf(err) != want {
						t.Fatalf("before, %s: %v", name, err)
					}
				}
			}
			in.exec(c.change, key.ID)
			for name, r := range requests {
				got := answerOf(t, search(r))
				if c.code != 0 && got.code != c.code || c.reason != "" && got.reason != c.reason {
					t.Errorf("%s is answered: %v", name, got)
				}
			}
		})
	}
}

// Without the function that authenticates only a search that rides can succeed.
func TestServer_Search_asksNothingButItsOwnStatement(t *testing.T) {
	in := setup(t)
	s := in.serve()
	key, secret := in.key(in.tenant("acme").No, auth.Agent)
	client := s.memory(secret)
	search := func(text string) error {
		_, err := client.Search(t.Context(), &memdv1.SearchRequest{Scope: user("chat", "alice"), Text: text})
		return err
	}
	if _, err := client.Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{raw(user("chat", "alice"), "tea")}}); err != nil {
		t.Fatal(err)
	}
	in.exec(`REVOKE EXECUTE ON FUNCTION memd.authenticate(bytea) FROM memd_app`)
	for range 3 { // cold, then in memory
		if err := search("tea"); err != nil {
			t.Fatal(err)
		}
	}
	in.exec(`UPDATE memd.principals SET revoked_at = now() WHERE key_id = $1`, key.ID)
	if got := answerOf(t, search("tea")); got.code != connect.CodeInternal {
		t.Errorf("nobody could authenticate it, and it is answered: %v", got)
	}
}

// A policy that changed counts at once, and the call is made again under it.
func TestServer_Search_followsThePolicy(t *testing.T) {
	in := setup(t)
	s := in.serve()
	acme := in.tenant("acme")
	_, secret := in.key(acme.No, auth.Agent)
	search := func(dimension int) error {
		v := make([]float32, dimension)
		v[0] = 1
		_, err := s.memory(secret).Search(t.Context(), &memdv1.SearchRequest{Scope: user("chat", "alice"), Vector: v})
		return err
	}
	was := acme.Policy.Dimension
	for range 2 {
		if err := search(was); err != nil {
			t.Fatal(err)
		}
	}
	in.exec(`UPDATE memd.tenants SET policy = jsonb_set(policy, '{dimension}', to_jsonb($2::int)) WHERE tenant_no = $1`, int64(acme.No), was+1)
	if err := search(was + 1); err != nil {
		t.Errorf("a vector of the new dimension: %v", err)
	}
	if got := answerOf(t, search(was)); got.code != connect.CodeInvalidArgument {
		t.Errorf("a vector of the old dimension: %v", got)
	}
}

// exec runs a statement as the owner of the database.
func (in *installation) exec(sql string, args ...any) {
	in.t.Helper()
	err := in.db.Pool("").With(in.t.Context(), func(db pg.DB) error {
		_, err := db.Exec(in.t.Context(), sql, args...)
		return err
	})
	if err != nil {
		in.t.Fatal(err)
	}
}
