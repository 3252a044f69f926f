package restore_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/purge"
)

// files are bob's artifacts, and the stores outside memd that another tenant has.
type files struct {
	w      *world
	of     artifacts.Tenant
	by     artifacts.Owner
	stores memd.TenantNo
}

func newFiles(w *world) *files {
	w.t.Helper()
	return &files{
		w: w, of: artifacts.Tenant{No: w.tenant.No, Epoch: w.tenant.Epoch}, by: artifacts.Owner{App: app, UserID: "bob", SessionID: "b1"},
		stores: w.Tenant("stores", memdtest.Policy()).No,
	}
}

func (f *files) save(names ...string) {
	f.w.t.Helper()
	for _, name := range names {
		if _, err := f.w.srv.Artifacts.Save(f.w.t.Context(), f.of, f.by, name, artifacts.File{}, strings.NewReader(name)); err != nil {
			f.w.t.Fatal(err)
		}
	}
}

func (f *files) delete(name string, version int64) {
	f.w.t.Helper()
	if n, err := f.w.srv.Artifacts.Delete(f.w.t.Context(), f.of, f.by, name, version); err != nil || n == 0 {
		f.w.t.Fatalf("%d versions deleted, %v", n, err)
	}
}

// wants checks which names there are, with the only version of each, and that all of
// them can be read.
func (f *files) wants(want ...string) {
	f.w.t.Helper()
	ctx := f.w.t.Context()
	page, err := f.w.srv.Artifacts.List(ctx, f.of, f.by, 100, "")
	if err != nil {
		f.w.t.Fatal(err)
	}
	var got []string
	for _, n := range page.Names {
		name := n.Name
		versions, err := f.w.srv.Artifacts.ListVersions(ctx, f.of, f.by, name, 100, -1)
		if err != nil || len(versions) != 1 {
			f.w.t.Errorf("%s: %+v, %v", name, versions, err)
			continue
		}
		got = append(got, fmt.Sprint(name, " ", versions[0].Number))
		if _, err := f.w.srv.Artifacts.Load(ctx, f.of, f.by, name, artifacts.Latest, 0, 0); err != nil {
			f.w.t.Errorf("loading %s: %v", name, err)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		f.w.t.Errorf("artifacts (-want +got):\n%s", diff)
	}
	if n := f.w.number(`SELECT count(*) FROM memd.artifact_chunks`); n != int64(len(want)) {
		f.w.t.Errorf("%d chunks of %d files", n, len(want))
	}
}

func (f *files) register(name string) {
	f.w.t.Helper()
	err := f.w.srv.Pool.With(f.w.t.Context(), func(db pg.DB) error {
		_, _, err := f.w.srv.Purge.Create(f.w.t.Context(), db, purge.New{
			Tenant: f.stores, Name: name, Kind: purge.KindConnect, Order: purge.AfterMemory, URL: "https://sessions.example/" + name, BestEffort: true,
		})
		return err
	})
	if err != nil {
		f.w.t.Fatal(err)
	}
}

func (f *files) unregister(name string) {
	f.w.t.Helper()
	err := f.w.srv.Pool.With(f.w.t.Context(), func(db pg.DB) error {
		return purge.Delete(f.w.t.Context(), db, f.stores, name)
	})
	if err != nil {
		f.w.t.Fatal(err)
	}
}

// registered checks which targets there are, with a secret that opens.
func (f *files) registered(want ...string) {
	f.w.t.Helper()
	var got []string
	err := f.w.srv.Pool.With(f.w.t.Context(), func(db pg.DB) error {
		all, err := purge.Targets(f.w.t.Context(), db, f.stores)
		for _, t := range all {
			got = append(got, t.Name)
		}
		return err
	})
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		f.w.t.Errorf("targets (-want +got):\n%s%v", diff, err)
	}
	if n := f.w.number(`SELECT count(*) FROM memd.purge_targets WHERE octet_length(secret) > 40`); n != int64(len(want)) {
		f.w.t.Errorf("%d secrets", n)
	}
}
