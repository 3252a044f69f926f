package erasure_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
)

// Invariants 6 and 7: of a copy of the database from before, nothing of whom was
// forgotten opens, by anybody, with any tree that exists anywhere; and all that
// is everybody else's does.
func TestInvariant6And7_OldCopies(t *testing.T) {
	w := newWorld(t)
	a := w.add(
		said("alice", "s1", "alice one"), said("alice", "s2", "alice two"), said("alice", "", "alice outside"), contributed("alice", "s1", "alice shared"),
		said("bob", "b1", "bob one"), said("bob", "b2", "bob two"), contributed("bob", "b1", "bob shared"), said("carol", "c1", "carol"),
	)
	w.add(
		drawn(memory.KindSummary, shared, "alice and bob", from(a[0]), from(a[4])),
		drawn(memory.KindFact, user("bob"), "bob on carol", from(a[4]), from(a[7])),
		drawn(memory.KindFact, user("bob"), "bob on bob two", fromSession("bob", "b2")),
	)
	first := w.copyOf(w.tenant)
	everything := []string{
		"alice and bob", "alice one", "alice outside", "alice shared", "alice two", "bob on bob two", "bob on carol", "bob one", "bob shared", "bob two", "carol",
		"session b1", "session b2", "session c1", "session s1", "session s2", "user alice", "user bob", "user carol",
	}
	check := func(c tables, want []string, trees int) {
		t.Helper()
		found, opened := w.readable(c)
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(found))); diff != "" {
			t.Errorf("readable (-want +got):\n%s", diff)
		}
		if opened != trees {
			t.Errorf("%d trees opened, want %d", opened, trees)
		}
	}
	// App, worker and admin may decrypt; the tree is in the copy, the database
	// and the ledger. Nothing would be shown below if this did not hit.
	check(first, everything, 3*3)

	without := func(gone ...string) []string {
		return slices.DeleteFunc(slices.Clone(everything), func(s string) bool { return slices.Contains(gone, s) })
	}
	alices := []string{"alice and bob", "alice one", "alice outside", "alice shared", "alice two", "session s1", "session s2", "user alice"}
	w.forgetUser("alice")
	check(first, without(alices...), 3*2)

	second := w.copyOf(w.tenant)
	w.forgetSession("bob", "b2")
	check(first, without(append(alices, "bob two", "bob on bob two", "session b2")...), 3*2)
	check(second, without(append(alices, "bob two", "bob on bob two", "session b2")...), 3*2)

	w.forgetUser("carol")
	rest := []string{"bob one", "bob shared", "session b1", "user bob"}
	check(first, rest, 3*2)
	check(second, rest, 3*2)
	w.wants(user("bob"), "bob one")
	w.wants(shared, "bob shared")
}

// What an operator could undo inside the delay is the KMS's business, and the
// three dates of the report say so: restored, the version reads again.
func TestReport_DestroyedVersionIsScheduledAndOnlyAnAdminRestoresIt(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"))
	old := w.copyOf(w.tenant)
	r := w.forgetUser("alice")
	version, err := w.identity(kmsemu.Shredder).Get(t.Context(), r.Key.Version)
	if err != nil || version.State != shred.VersionDestroyScheduled || !version.DestroyAt.Equal(r.Key.DestroyedForGood) {
		t.Fatalf("%+v, %v; the report says %v", version, err, r.Key.DestroyedForGood)
	}
	versions, err := w.identity(kmsemu.Shredder).List(t.Context(), old.key)
	if err != nil || len(versions) != 2 {
		t.Fatalf("versions %+v, %v", versions, err)
	}
	for _, v := range versions {
		if (v.State == shred.VersionEnabled) == (v.Name == r.Key.Version) {
			t.Errorf("%s is %v", v.Name, v.State)
		}
	}
	for _, id := range []kmsemu.Identity{kmsemu.App, kmsemu.Worker, kmsemu.Shredder} {
		ctx, raw := w.KMS.Raw(t, id)
		if _, err := raw.RestoreCryptoKeyVersion(ctx, &kmspb.RestoreCryptoKeyVersionRequest{Name: r.Key.Version}); err == nil {
			t.Errorf("%s may restore", id)
		}
	}
	if found, _ := w.readable(old); len(found) != 0 {
		t.Errorf("readable: %v", found)
	}
	ctx, raw := w.KMS.Raw(t, kmsemu.Admin)
	if _, err := raw.RestoreCryptoKeyVersion(ctx, &kmspb.RestoreCryptoKeyVersionRequest{Name: r.Key.Version}); err != nil {
		t.Fatal(err)
	}
	if found, _ := w.readable(old); len(found) != 0 {
		t.Errorf("readable with a restored version, which is disabled: %v", found)
	}
	enable := &kmspb.UpdateCryptoKeyVersionRequest{
		CryptoKeyVersion: &kmspb.CryptoKeyVersion{Name: r.Key.Version, State: kmspb.CryptoKeyVersion_ENABLED},
		UpdateMask:       &fieldmaskpb.FieldMask{Paths: []string{"state"}},
	}
	if _, err := raw.UpdateCryptoKeyVersion(ctx, enable); err != nil {
		t.Fatal(err)
	}
	found, _ := w.readable(old)
	if !found["alice"] {
		t.Error("undoing does not undo: the copy never was readable, and the tests above show nothing")
	}
	// Memd's next rotation takes the version for what a crash left behind.
	w.add(said("bob", "b1", "bob"))
	w.forgetUser("bob")
	if found, _ := w.readable(old); len(found) != 0 {
		t.Errorf("readable after the next erasure: %v", found)
	}
}

// Invariant 8: keys go last. While anything is left in the tables no key is
// touched, and the erasure does not claim to be done.
func TestInvariant8_ASurvivorKeepsTheKeys(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"), said("bob", "b1", "bob"))
	w.StopWorker()
	j := w.accept(w.tenant, "alice", "")
	r := w.runner()
	for _, s := range []erasure.Step{erasure.StepFence, erasure.StepBury} {
		if err := erasure.RunStep(t.Context(), r, j, s); err != nil {
			t.Fatal(err)
		}
	}
	w.exec(`CREATE TABLE public.survivors AS SELECT * FROM memd.memories WHERE owner_no = (SELECT min(subject_no) FROM memd.subjects)`)
	// It comes back behind the deletion, twice.
	w.exec(`CREATE FUNCTION public.revive() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
		  IF NEW.step = 3 AND NEW.done THEN
		    PERFORM set_config('session_replication_role', 'replica', true);
		    INSERT INTO memd.memories SELECT * FROM public.survivors ON CONFLICT DO NOTHING;
		    PERFORM set_config('session_replication_role', 'origin', true);
		  END IF;
		  RETURN NULL;
		END $$`)
	w.exec(`CREATE TRIGGER revive AFTER UPDATE ON memd.erasure_steps FOR EACH ROW EXECUTE FUNCTION public.revive()`)
	keys := func() []string {
		return w.strings(`SELECT 'epoch ' || epoch FROM memd.tenant_keys UNION ALL SELECT path FROM memd.punctures ORDER BY 1`)
	}
	before, destroyed := keys(), w.KMS.Server.Calls("DestroyCryptoKeyVersion")
	for range 2 {
		_, err := r.Run(t.Context(), j)
		if err == nil || !strings.Contains(err.Error(), "verify") {
			t.Fatalf("with a survivor: %v", err)
		}
		if diff := cmp.Diff(before, keys()); diff != "" || w.KMS.Server.Calls("DestroyCryptoKeyVersion") != destroyed {
			t.Errorf("keys were touched: %s", diff)
		}
		if got := w.job(j); got.State != erasure.StateRunning {
			t.Errorf("state %v", got.State)
		}
		w.wants(user("alice")) // Behind the fence all the same.
	}
	w.exec(`DROP TRIGGER revive ON memd.erasure_steps`)
	if _, err := r.Run(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	if got := w.job(j); got.State != erasure.StateDone || w.count(`SELECT count(*) FROM memd.memories`) != 1 {
		t.Errorf("state %v", got.State)
	}
	tree := w.openHead(w.tenant)
	defer tree.Zero()
	if _, err := tree.Derive(shred.SubjectPath(1<<40 | 1)); !errors.Is(err, memd.ErrShredded) {
		t.Errorf("alice's key: %v", err)
	}
}

// The same for a session that is not a stub.
func TestInvariant8_ALiveSessionKeepsTheKeys(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "alice"))
	w.StopWorker()
	j := w.accept(w.tenant, "alice", "s1")
	r := w.runner()
	for _, s := range []erasure.Step{erasure.StepBury, erasure.StepDelete} {
		if err := erasure.RunStep(t.Context(), r, j, s); err != nil {
			t.Fatal(err)
		}
	}
	w.exec(`UPDATE memd.sessions SET state = 1`)
	if _, err := r.Run(t.Context(), j); err == nil || !strings.Contains(err.Error(), "1 sessions are left") {
		t.Fatalf("with a live session: %v", err)
	}
	if n := w.count(`SELECT count(*) FROM memd.punctures`); n != 0 {
		t.Error("keys were touched")
	}
	if _, err := r.Run(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	if n := w.count(`SELECT count(*) FROM memd.sessions WHERE state = 1`); n != 0 {
		t.Errorf("%d live sessions", n)
	}
}

// The sample of live rows, the last look before a version is destroyed, must
// reach into scopes that once hid somebody's rows.
func TestSample_SeesScopesThatHidSomebody(t *testing.T) {
	w := newWorld(t)
	w.add(contributed("alice", "s1", "alice shared"), contributed("bob", "b1", "bob shared"))
	w.forgetUser("alice")
	bob := memd.Number(w.count(`SELECT contributor_no FROM memd.memories`))
	head := w.openHead(w.tenant)
	defer head.Zero()
	wrong, err := head.Next([]shred.Path{shred.SubjectPath(bob)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tree *shred.Tree
		want error
	}{{w.openHead(w.tenant), nil}, {wrong, memd.ErrShredded}} {
		k := shred.NewKeys(c.tree)
		err := w.owner.With(t.Context(), func(db pg.DB) error { return memory.Sample(t.Context(), db, k) })
		k.Drop()
		if !errors.Is(err, c.want) {
			t.Errorf("sampling: %v, want %v", err, c.want)
		}
	}
}
