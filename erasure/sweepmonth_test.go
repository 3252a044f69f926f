package erasure_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/tenants"
)

// age adds to a tenant what was said and kept in September 2025, sets a policy by
// which that has expired of one class and nothing else has, and begins the expiry.
func (w *sweep) age(p *people, class memd.Class) erasure.Job {
	w.t.Helper()
	if w.past == nil {
		w.past, _ = w.ServerWith(func(c *node.ServerConfig) { c.Clock = &calendar{now: middleOf[september]} })
	}
	present := w.a
	w.a = w.past
	w.converseAt(p.tenant, "alice", september, middleOf[september])
	w.a = present
	row := w.addTo(p.tenant, at(said("alice", september, "alice in september"), middleOf[september]))[0].String()
	k := w.Keys(w.a, p.tenant)
	ref := k.SessionRef(k.UserRef(app, "alice"), september)
	p.labels = append(p.labels, row, "old row", strings.ReplaceAll(row, "-", ""), "old row", fmt.Sprintf("%x", ref[:]), "alice's september")
	p.old = w.copyOf(p.tenant)

	now := time.Now()
	kept, err := memd.MonthOf(spoken)
	if err != nil {
		w.t.Fatal(err)
	}
	current, err := memd.MonthOf(now)
	if err != nil {
		w.t.Fatal(err)
	}
	change := tenants.Change{SessionMonths: new(int(current-kept) + 1)}
	if class == memd.ClassMemory {
		change = tenants.Change{MemoryMonths: change.SessionMonths}
	}
	var t tenants.Tenant
	err = w.app.InTx(w.t.Context(), func(tx pgx.Tx) (err error) {
		t, err = tenants.SetPolicy(w.t.Context(), tx, now, p.name, change)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	plan, err := erasure.RunRetention(w.t.Context(), w.app, t, uuid.New(), now)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range plan {
		if e.State != erasure.StateUnknown {
			return w.job(erasure.Job{Tenant: t.No, ID: e.Request})
		}
	}
	w.t.Fatalf("nothing expires: %+v", plan)
	return erasure.Job{}
}
