package purge_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/eraser"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/purge"
)

func TestCreate_RefusesWhatCouldNotBeCalled(t *testing.T) {
	b := setup(t, public)
	inside := setup(t)
	ok := purge.New{Name: "ok", Kind: purge.KindWebhook, URL: "https://hooks.example/memd"}
	for name, c := range map[string]struct {
		field  string
		change func(*purge.New)
		inside bool
	}{
		"name":                {"name", func(n *purge.New) { n.Name = "No" }, false},
		"kind":                {"kind", func(n *purge.New) { n.Kind = 9 }, false},
		"order":               {"order", func(n *purge.New) { n.Order = 9 }, false},
		"timeout":             {"timeout", func(n *purge.New) { n.Timeout = time.Hour }, false},
		"retention":           {"retention", func(n *purge.New) { n.Retention = -1 }, false},
		"no url":              {"url", func(n *purge.New) { n.URL = "" }, false},
		"ftp":                 {"url", func(n *purge.New) { n.URL = "ftp://hooks.example" }, false},
		"http":                {"url", func(n *purge.New) { n.URL = "http://hooks.example" }, false},
		"http inside":         {"url", func(n *purge.New) { n.URL, n.AllowPrivate = "http://10.0.0.1", true }, true},
		"user":                {"url", func(n *purge.New) { n.URL = "https://u:p@hooks.example" }, false},
		"query":               {"url", func(n *purge.New) { n.URL = "https://hooks.example/?token=x" }, false},
		"empty query":         {"url", func(n *purge.New) { n.URL = "https://hooks.example/?" }, false},
		"fragment":            {"url", func(n *purge.New) { n.URL = "https://hooks.example/#" }, false},
		"loopback":            {"url", func(n *purge.New) { n.URL = "https://127.0.0.1" }, false},
		"localhost":           {"url", func(n *purge.New) { n.URL = "https://localhost" }, false},
		"metadata":            {"url", func(n *purge.New) { n.URL, n.AllowPrivate = "https://169.254.169.254", true }, true},
		"private":             {"allow_private", func(n *purge.New) { n.AllowPrivate = true }, false},
		"path of a webhook":   {"path", func(n *purge.New) { n.Path = "/x" }, false},
		"key":                 {"secret", func(n *purge.New) { n.Secret = "whsec_c2hvcnQ=" }, false},
		"token":               {"secret", func(n *purge.New) { n.Kind, n.Secret = purge.KindConnect, "with a space 1234567890" }, false},
		"short token":         {"secret", func(n *purge.New) { n.Kind, n.Secret = purge.KindConnect, "short" }, false},
		"log without a path":  {"path", func(n *purge.New) { *n = purge.New{Name: "ok", Kind: purge.KindLogFile} }, false},
		"log with dots":       {"path", func(n *purge.New) { *n = purge.New{Name: "ok", Kind: purge.KindLogFile, Path: "/var/../etc/x"} }, false},
		"relative log":        {"path", func(n *purge.New) { *n = purge.New{Name: "ok", Kind: purge.KindLogFile, Path: "x.log"} }, false},
		"pattern in a folder": {"path", func(n *purge.New) { *n = purge.New{Name: "ok", Kind: purge.KindLogFile, Path: "/var/*/x.log"} }, false},
		"log with a url": {"url", func(n *purge.New) {
			*n = purge.New{Name: "ok", Kind: purge.KindLogFile, Path: "/x", URL: "https://x.example"}
		}, false},
		"log with a secret": {"secret", func(n *purge.New) { *n = purge.New{Name: "ok", Kind: purge.KindLogFile, Path: "/x", Secret: "x"} }, false},
		"session alone": {"log_fields", func(n *purge.New) {
			*n = purge.New{Name: "ok", Kind: purge.KindLogFile, Path: "/x", Fields: purge.LogFields{Session: "s"}}
		}, false},
		"long retention": {"retention", func(n *purge.New) {
			*n = purge.New{Name: "ok", Kind: purge.KindRetention, Retention: 31 * 24 * time.Hour}
		}, false},
		"no retention": {"retention", func(n *purge.New) { *n = purge.New{Name: "ok", Kind: purge.KindRetention} }, false},
	} {
		n, caller := ok, b.caller
		n.Tenant = tenant
		c.change(&n)
		n.Tenant = tenant
		if c.inside {
			caller = inside.caller
		}
		_, _, err := caller.Prepare(t.Context(), n)
		var invalid *memd.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, secret := b.make(ok); secret == "" {
		t.Error("a good one has no secret")
	}
}

func TestRegistry(t *testing.T) {
	b := setup(t).database()
	ctx := t.Context()
	by := uuid.New()
	all := []purge.New{
		{Name: "z-first", Kind: purge.KindConnect, Order: purge.BeforeSessions, URL: "https://a.example", CreatedBy: by},
		{Name: "b-log", Kind: purge.KindLogFile, Path: "/var/log/x*", Fields: purge.LogFields{User: "user", Session: "s", App: "app"}, BestEffort: true},
		{Name: "a-hook", Kind: purge.KindWebhook, URL: "https://b.example/x", Timeout: time.Second, Retention: 48 * time.Hour},
		{Name: "m-keeps", Kind: purge.KindRetention, Order: purge.WithSessions, Retention: 24 * time.Hour},
	}
	for _, n := range all {
		b.add(n)
	}
	var got []purge.Target
	list := func() {
		t.Helper()
		err := b.worker.With(ctx, func(db pg.DB) (err error) {
			got, err = purge.Targets(ctx, db, tenant)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	list()
	now := b.clock.Now()
	want := []purge.Target{
		{Tenant: tenant, Name: "z-first", Kind: purge.KindConnect, Order: purge.BeforeSessions, Required: true, URL: "https://a.example", Timeout: purge.DefaultTimeout, CreatedBy: by, CreatedAt: now},
		{Tenant: tenant, Name: "m-keeps", Kind: purge.KindRetention, Order: purge.WithSessions, Required: true, Timeout: purge.DefaultTimeout, Retention: 24 * time.Hour, CreatedAt: now},
		{Tenant: tenant, Name: "a-hook", Kind: purge.KindWebhook, Order: purge.AfterMemory, Required: true, URL: "https://b.example/x", Timeout: time.Second, Retention: 48 * time.Hour, CreatedAt: now},
		{Tenant: tenant, Name: "b-log", Kind: purge.KindLogFile, Order: purge.AfterMemory, Path: "/var/log/x*", Timeout: purge.DefaultTimeout, Fields: purge.LogFields{User: "user", Session: "s", App: "app"}, CreatedAt: now},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(purge.Target{}), cmpopts.IgnoreFields(purge.Target{}, "ID")); diff != "" {
		t.Error(diff)
	}
	// A name is taken; another tenant's list is empty and theirs to delete nothing.
	err := b.app.With(ctx, func(db pg.DB) error {
		n := all[0]
		n.Tenant = tenant
		_, _, err := b.caller.Create(ctx, db, n)
		return err
	})
	if !errors.Is(err, memd.ErrExists) {
		t.Errorf("again: %v", err)
	}
	for name, err := range map[string]error{
		"another tenant's": b.app.With(ctx, func(db pg.DB) error { return purge.Delete(ctx, db, tenant+1, "a-hook") }),
		"nobody's":         b.app.With(ctx, func(db pg.DB) error { return purge.Delete(ctx, db, tenant, "nobody") }),
		"the empty name's": b.app.With(ctx, func(db pg.DB) error { return purge.Delete(ctx, db, tenant, "") }),
	} {
		if !errors.Is(err, memd.ErrNotFound) {
			t.Errorf("deleting %s: %v", name, err)
		}
	}
	if err := b.app.With(ctx, func(db pg.DB) error { return purge.Delete(ctx, db, tenant, "a-hook") }); err != nil {
		t.Error(err)
	}
	// Nobody may move a target's address.
	err = b.app.With(ctx, func(db pg.DB) error {
		_, err := db.Exec(ctx, `UPDATE memd.purge_targets SET url = 'https://thief.example'`)
		return err
	})
	if pg.SQLState(err) != "42501" {
		t.Errorf("the server's role may move a target: %v", err)
	}
	var n int64
	for _, want := range []int64{3, 0} {
		err = b.worker.With(ctx, func(db pg.DB) (err error) { n, err = purge.DeleteTenant(ctx, db, tenant); return err })
		if err != nil || n != want {
			t.Errorf("deleted %d, %v; want %d", n, err, want)
		}
	}
}

func TestRegistry_HoldsAtMost64(t *testing.T) {
	b := setup(t).database()
	for i := range purge.MaxTargets {
		b.add(purge.New{Name: fmt.Sprintf("t%d", i), Kind: purge.KindRetention, Retention: time.Hour})
	}
	err := b.app.With(t.Context(), func(db pg.DB) error {
		_, _, err := b.caller.Create(t.Context(), db, purge.New{Tenant: tenant, Name: "one-more", Kind: purge.KindRetention, Retention: time.Hour})
		return err
	})
	if !errors.Is(err, memd.ErrInvalid) {
		t.Error(err)
	}
}

// No column of the table has a secret, whoever made it.
func TestRegistry_KeepsSecretsSealed(t *testing.T) {
	b := setup(t).database()
	given := "given-token-0123456789-abcdef"
	key := eraser.NewKey().Secret()
	secrets := []string{given, key}
	for i, n := range []purge.New{
		{Kind: purge.KindConnect, URL: "https://a.example"},
		{Kind: purge.KindConnect, URL: "https://a.example", Secret: given},
		{Kind: purge.KindWebhook, URL: "https://a.example"},
		{Kind: purge.KindWebhook, URL: "https://a.example", Secret: key},
	} {
		n.Name = fmt.Sprintf("t%d", i)
		target, secret := b.add(n)
		if (secret == "") != (n.Secret != "") {
			t.Errorf("%s: secret %q was shown", n.Name, secret)
		}
		if secret != "" {
			secrets = append(secrets, secret)
		}
		for _, printed := range []string{fmt.Sprintf("%v", target), fmt.Sprintf("%+v", target)} {
			if strings.Contains(printed, given) || secret != "" && strings.Contains(printed, secret) {
				t.Errorf("%s prints its secret", n.Name)
			}
		}
	}
	var dump []byte
	var sealed [][]byte
	err := b.db.Pool("").With(t.Context(), func(db pg.DB) error {
		if err := db.QueryRow(t.Context(), `SELECT string_agg(t::text, E'\n')::bytea FROM memd.purge_targets t`).Scan(&dump); err != nil {
			return err
		}
		return db.QueryRow(t.Context(), `SELECT array_agg(secret) FROM memd.purge_targets`).Scan(&sealed)
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(dump, []byte("https://a.example")) || len(sealed) != 4 {
		t.Fatalf("the scan sees nothing: %s", dump)
	}
	for _, s := range secrets {
		text := strings.TrimPrefix(strings.TrimPrefix(s, "memdt_"), "whsec_")
		for _, haystack := range append(sealed, dump) {
			if bytes.Contains(haystack, []byte(text)) || bytes.Contains(haystack, fmt.Appendf(nil, "%x", text)) {
				t.Error("a secret is in the table")
			}
		}
	}
}

func TestAcks(t *testing.T) {
	b := setup(t).database()
	ctx := t.Context()
	id, target := uuid.New(), uuid.New()
	three := int64(3)
	ack := purge.Ack{
		Target: target, Name: "store", Kind: purge.KindConnect, Order: purge.AfterMemory, Required: true, Op: purge.OpErase, Round: 1,
		Code: purge.CodeBusy, Tries: 3, At: b.clock.Now(),
	}
	record := func(a purge.Ack) {
		t.Helper()
		if err := b.worker.With(ctx, func(db pg.DB) error { return purge.RecordAck(ctx, db, tenant, id, a) }); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (as []purge.Ack) {
		t.Helper()
		if err := b.app.With(ctx, func(db pg.DB) (err error) { as, err = purge.Acks(ctx, db, tenant, id); return err }); err != nil {
			t.Fatal(err)
		}
		return as
	}
	record(ack)
	done := ack
	done.Acknowledged, done.Code, done.Erased, done.Tries, done.ResidualUntil = true, purge.CodeOK, &three, 1, b.clock.Now().Add(time.Hour)
	record(done)
	record(ack) // What failed later undoes nothing.
	second := done
	second.Round = 2
	record(second)
	done.Tries = 4
	if diff := cmp.Diff([]purge.Ack{done, second}, read()); diff != "" {
		t.Error(diff)
	}
	look := ack
	look.Op, look.Acknowledged, look.Code, look.After = purge.OpVerify, true, purge.CodeOK, new(int64)
	record(look)
	look.Acknowledged, look.Code, look.After = false, purge.CodeRemaining, &three
	record(look) // A later look counts.
	if got := read(); len(got) != 3 || got[1].Op != purge.OpVerify || got[1].Acknowledged {
		t.Errorf("%+v", got)
	}
}
