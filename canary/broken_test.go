package canary_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"forgettable.dev/memd"
	"forgettable.dev/memd/canary"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred/kmsemu"
)

// population is Mara, who goes, and Jonas.
func population(t *testing.T) *scene {
	t.Helper()
	s := setup(t)
	ids := s.add(said("mara", "s1", "My daughter has asthma, send the inhaler to 14 Tannery Lane."),
		said("mara", "s2", "The order was QX-4471 from Millbrook."), said("jonas", "j1", "I like plain weather."))
	s.add(memory.Row{
		Scope: user("jonas"), Kind: memory.KindSummary, Text: "Weather and an order, QX-4471.",
		Sources: []memory.Source{{MemoryID: ids[1]}, {MemoryID: ids[2]}},
	})
	return s
}

// Every way to break an erasure is seen, by the check that is for it, and by no
// other that has nothing to do with it.
func TestVerifier_SeesWhatIsBroken(t *testing.T) {
	cases := []struct {
		name  string
		erase func(x *erasure)
		red   []string
		named string // a check that has to name rows
	}{
		{"rows are left", func(x *erasure) { x.delete("memories"); x.puncture(); x.rotate() },
			[]string{"rows_by_contribution", "rows_by_owner", "unique_probes"}, "rows_by_owner"},
		{"sessions are left", func(x *erasure) { x.delete("sessions"); x.puncture(); x.rotate() }, []string{"sessions"}, "sessions"},
		{"the user's number lives on", func(x *erasure) { x.delete("subjects"); x.puncture(); x.rotate() }, []string{"subjects"}, "subjects"},
		{"the fence is lifted too early", func(x *erasure) { x.whole(); x.lift() }, []string{"fence"}, ""},
		{"the tree is not punctured", func(x *erasure) {
			x.delete()
			if _, err := x.s.rotator.ForceRotate(x.s.t.Context(), x.e.Tenant); err != nil {
				x.s.t.Fatal(err)
			}
		}, []string{"derivation_refused", "ledger_state"}, ""},
		{"nothing is rotated", func(x *erasure) { x.delete(); x.puncture() },
			[]string{"derivation_refused", "instances", "key_versions", "ledger_state", "old_epochs"}, ""},
		{"the key is restored", func(x *erasure) { x.whole(); x.restoreKey() }, []string{"key_versions", "old_epochs"}, ""},
		{"a ledger has only the old state", func(x *erasure) { x.whole(); x.forgetInLedger() }, []string{"ledger_state"}, ""},
		{"a process keeps the old state", func(x *erasure) { x.whole(); x.hang() }, []string{"instances"}, "instances"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := population(t)
			x := s.accept("mara")
			c.erase(x)
			got := x.verify()
			if d := cmp.Diff(c.red, got.failed()); d != "" {
				t.Errorf("failed (-want +got):\n%s", d)
			}
			if c.named != "" && len(got[c.named].Rows) == 0 {
				t.Errorf("%s names nothing", c.named)
			}
		})
	}
}

// restoreKey is what an operator can do within the delay: the version that was
// destroyed is restored and enabled.
func (x *erasure) restoreKey() {
	x.s.t.Helper()
	version := ask[string](x.s, `SELECT kms_version FROM memd.key_trees WHERE epoch = 1`)
	ctx, raw := x.s.KMS.Raw(x.s.t, kmsemu.Admin)
	if _, err := raw.RestoreCryptoKeyVersion(ctx, &kmspb.RestoreCryptoKeyVersionRequest{Name: version}); err != nil {
		x.s.t.Fatal(err)
	}
	_, err := raw.UpdateCryptoKeyVersion(ctx, &kmspb.UpdateCryptoKeyVersionRequest{
		CryptoKeyVersion: &kmspb.CryptoKeyVersion{Name: version, State: kmspb.CryptoKeyVersion_ENABLED},
		UpdateMask:       &fieldmaskpb.FieldMask{Paths: []string{"state"}},
	})
	if err != nil {
		x.s.t.Fatal(err)
	}
}

// forgetInLedger takes the newest state out of the ledger, past memd.
func (x *erasure) forgetInLedger() {
	x.s.t.Helper()
	names, err := filepath.Glob(filepath.Join(x.s.Ledger, "trees", x.e.Tenant.String(), "*"))
	if err != nil || len(names) < 2 {
		x.s.t.Fatalf("ledger: %v, %v", names, err)
	}
	if err := os.Remove(names[len(names)-1]); err != nil {
		x.s.t.Fatal(err)
	}
}

// hang lists a process that never dropped the first state.
func (x *erasure) hang() {
	x.s.t.Helper()
	id := uuid.New()
	x.s.exec(`INSERT INTO memd.instances (instance_id, kind, started_at, lease_until) VALUES ($1, 'serve', now(), now() + interval '1 hour')`, id)
	x.s.exec(`INSERT INTO memd.instance_epochs (tenant_no, instance_id, epoch) VALUES ($1, $2, 1)`, x.e.Tenant, id)
}

func TestVerifier_HarmedNeighbour(t *testing.T) {
	s := population(t)
	x := s.accept("mara")
	x.whole()
	// Jonas is punctured by mistake; nobody erased him.
	ref := s.Keys(s.srv, s.tenant).UserRef(app, "jonas")
	y := &erasure{s: s, request: uuid.New(), e: memd.Examination{Tenant: s.tenant.No}}
	for _, n := range s.numbers(ref) {
		y.e.Target = append(y.e.Target, memd.Contribution{Subject: n})
	}
	y.puncture()
	y.rotate()
	got := x.verify()
	got.want(t, "neighbour_derives fail neighbour_harmed")
}

// What cannot be asked is not run, and never passes.
func TestVerifier_WhatCouldNotBeAsked(t *testing.T) {
	s := population(t)
	x := s.accept("mara", func(c *canary.Config) {
		c.Pages = s.DB.Pool("memd_worker")
		c.LogFiles = []string{filepath.Join(t.TempDir(), "missing.log")}
	})
	x.whole()
	s.add(said("jonas", "j2", "And I like plain walks."))
	got := x.verify()
	got.want(t, "residue not_run no_permission", "logs not_run unavailable")
	x.v = s.verifier(func(c *canary.Config) {
		c.Budget, c.Ledgers, c.Pages = canary.Budget{Rows: 1, Time: time.Hour}, nil, nil
	})
	got = x.verify()
	got.want(t, "unique_probes not_run budget_exhausted", "ledger_state not_run not_configured", "residue not_run not_configured")
	if c := got["unique_probes"]; c.Scanned != 1 || c.Unscanned != 1 {
		t.Errorf("scanned: %+v", c)
	}
	s.KMS.Stop()
	x.v = s.verifier()
	x.verify().want(t, "derivation_refused not_run kms_unavailable", "ledger_state not_run kms_unavailable", "old_epochs not_run kms_unavailable",
		"key_versions not_run kms_unavailable", "neighbour_derives not_run kms_unavailable", "rows_by_owner pass")
}

func TestVerifier_Logs(t *testing.T) {
	s := setup(t)
	s.add(said("mara", "session-1", "My daughter has asthma."), said("ida", "session-2", "I like plain weather."))
	name := filepath.Join(t.TempDir(), "agent.log")
	write := func(text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("request for \"mara\" in session-1\nanswered\n")
	with := func(c *canary.Config) { c.LogFiles = []string{name} }
	x := s.accept("mara", with)
	x.whole()
	got := x.verify()
	got.want(t, "logs fail log_hit")
	if want := []memd.RowRef{{Table: "log", ID: "0"}}; !cmp.Equal(got["logs"].Rows, want) {
		t.Errorf("named %v", got["logs"].Rows)
	}
	write("request for somebody else, tamarama\nanswered\n")
	x.verify().want(t, "logs pass")
	write("")
	x.verify().want(t, "logs not_run nothing_before")

	// An id that is too short to be looked for, and a session's that is not.
	short := s.accept("ida", with)
	short.whole()
	write("request for ida\nanswered\n")
	short.verify().want(t, "logs not_run partial")
	write("request in session-2\nanswered\n")
	short.verify().want(t, "logs fail log_hit")
}

func TestVerifier_Residue(t *testing.T) {
	s := population(t)
	s.exec(`CREATE EXTENSION pageinspect SCHEMA pg_catalog`)
	for _, table := range []string{"memories", "memory_contributions", "memory_sources"} {
		s.exec(`ALTER TABLE memd.` + table + ` SET (autovacuum_enabled = off)`) // It may come between.
	}
	for _, id := range []string{"mara", "jonas"} {
		x := s.accept(id)
		if x.p.Before["residue"] == 0 {
			t.Fatalf("%s: the nonces are not in the pages while the rows are there", id)
		}
		x.whole()
		left := x.verify()["residue"]
		if left.Result != memd.ResultReview || left.CountAfter == 0 || len(left.Rows) == 0 {
			t.Errorf("%s, before the rewrite: %+v", id, left)
		}
		for _, table := range []string{"memories", "memory_contributions", "memory_sources"} {
			s.exec(`VACUUM FULL memd.` + table)
		}
		x.verify().want(t, "residue pass")
		// The second time by the files, as where the extension is not to be had.
		s.exec(`DROP EXTENSION IF EXISTS pageinspect`)
	}
}

func TestDraw_NamesNobody(t *testing.T) {
	s := population(t)
	x := s.accept("mara")
	s.add(said("jonas", "j2", "Deliveries: an inhaler goes to Tannery Lane, QX-4471."))
	x.delete("memories")
	log := s.Logs.String()
	text := fmt.Sprintf("%+v %+v %s", x.verify(), x.p.Before, log)
	for _, secret := range []string{"mara", "asthma", "daughter", "Tannery", "tannery", "4471", "Millbrook"} {
		if strings.Contains(text, secret) || strings.Contains(string(x.p.Sealed), secret) {
			t.Errorf("%q is in what was drawn or found", secret)
		}
	}
}
