package memory_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/node"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/internal/server"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/tenants"
)

// change changes the tenant's policy, and the bundle's calls go by the new one.
func (b *bundle) change(c tenants.Change) {
	b.t.Helper()
	err := b.DB.Pool(node.AppRole).InTx(b.ctx(), func(tx pgx.Tx) error {
		t, err := tenants.SetPolicy(b.ctx(), tx, b.clock.Now(), "acme", c)
		b.tenant = server.MemoryTenant(t.No, t.Epoch, t.Policy)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// reembed takes the tenant through what is left of a pass.
func (b *bundle) reembed() {
	b.t.Helper()
	if err := b.srv.Reembedder.Round(b.ctx()); err != nil {
		b.t.Fatalf("embedding anew: %v", err)
	}
}

// settleSpace takes the tenant into its new space, and says how that went.
func (b *bundle) settleSpace() memory.Reembedding {
	b.t.Helper()
	b.reembed()
	b.clock.advance(2 * memory.Grace)
	b.reembed() // ends a pass that began before the grace was over
	b.reembed()
	b.change(tenants.Change{})
	if b.tenant.Former.Number != 0 {
		b.t.Error("the tenant is still between spaces")
	}
	return b.reembedding()
}

func (b *bundle) reembedding() (out memory.Reembedding) {
	b.t.Helper()
	err := b.DB.Pool(node.AppRole).With(b.ctx(), func(db pg.DB) (err error) {
		out, _, err = memory.ReembeddingOf(b.ctx(), db, b.tenant)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// spoken is a text that no other row is like.
func spoken(n int) string { return fmt.Sprintf("remember the number %d%d", n*7919, n) }

// finds fails the test unless each of the texts is the first that is found by it.
func (b *bundle) finds(when string, m *memory.Service, who memd.Scope, texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		hits := b.search(m, memory.Query{Scope: who, Text: text, TopK: 2}).Hits
		found := false
		for _, h := range hits {
			found = found || h.Memory.Text == text && h.Score > 0.999
		}
		if !found {
			b.t.Errorf("%s, %q is not found", when, text)
		}
	}
}

// A tenant changes its dimension: while rows are embedded anew, by somebody who is
// killed and by another, every text is found; what comes meanwhile too; and in the end
// by new vectors alone.
func TestReembedder(t *testing.T) {
	b := setup(t, lexical)
	large := b.coded()
	var all []string
	add := func(n int) {
		t.Helper()
		rows := make([]memory.Row, n)
		for i := range rows {
			rows[i] = memory.Row{Scope: user("ada"), SessionID: "s1", Kind: memory.KindRaw, Text: spoken(len(all)), EventID: fmt.Sprint("e", len(all))}
			all = append(all, rows[i].Text)
		}
		b.add(rows...)
	}
	add(130)
	mute := memory.Row{Scope: user("ada"), SessionID: "s1", Kind: memory.KindRaw, Vector: make([]float32, 64)}
	mute.Vector[3] = 1
	silent := b.addOne(mute)
	some := func() []string { return []string{all[0], all[77], all[len(all)-1]} }
	b.finds("before", b.m, user("ada"), some()...)
	b.finds("before", large, user("ada"), some()...)

	old := b.tenant
	b.change(tenants.Change{Dimension: new(128)})
	_, err := b.m.Add(t.Context(), old, []memory.Row{{Scope: user("ada"), SessionID: "s1", Kind: memory.KindRaw, Text: "late"}})
	wantErr(t, err, memd.ErrStale)
	add(3)
	b.finds("after the change", b.m, user("ada"), some()...)
	b.finds("after the change", large, user("ada"), some()...)
	if hits := b.search(b.m, memory.Query{Scope: user("ada"), Vector: mute.Vector, TopK: 1}).Hits; len(hits) != 1 || hits[0].Memory.ID != silent.ID {
		t.Error("a vector of before is not found by such a vector")
	}

	killed, kill := context.WithCancel(t.Context())
	batches := 0
	b.srv.Reembedder.OnBatch = func() {
		if batches++; batches == 2 {
			kill()
		}
	}
	if err := b.srv.Reembedder.Round(killed); !errors.Is(err, context.Canceled) {
		t.Fatalf("%d batches, then %v", batches, err)
	}
	b.srv.Reembedder.OnBatch = nil
	if r := b.reembedding(); r.Done != 64 || r.Left != 66 || r.Textless != 1 {
		t.Errorf("half-way it is told as %+v", r)
	}
	add(2)
	b.finds("half-way", b.m, user("ada"), all...)
	b.finds("half-way", large, user("ada"), some()...)

	other := b.Deaf().Reembedder
	if err := other.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.finds("after a pass", b.m, user("ada"), some()...)
	r := b.settleSpace()
	if r.Done != 130 || r.Left != 0 || r.Textless != 1 || r.FinishedAt.IsZero() {
		t.Errorf("in the end it is told as %+v", r)
	}
	b.finds("in the end", b.m, user("ada"), all...)
	b.finds("in the end", large, user("ada"), some()...)
	for _, h := range b.search(b.m, memory.Query{Scope: user("ada"), Text: all[0]}).Hits {
		if h.Memory.ID == silent.ID {
			t.Error("a vector without a text, which could not be embedded anew, is compared with others")
		}
	}
	if m := b.get(user("ada"), silent.ID); m.Vector == nil {
		t.Error("what could not be embedded anew is gone")
	}
	// The content is what it was: a restore has nothing to delete, and what comes again
	// changes nothing.
	if n := b.count(`SELECT count(*) FROM memd.tombstones WHERE kind = 3`); n != 0 {
		t.Errorf("%d rows were buried", n)
	}
	again := b.addOne(memory.Row{Scope: user("ada"), SessionID: "s1", Kind: memory.KindRaw, Text: all[5], EventID: "e5"})
	if again.Status != memory.StatusUnchanged {
		t.Errorf("an event that came again is %v", again.Status)
	}
}

// Somebody is forgotten between the reading of their rows and the writing of the new
// vectors: nothing of them comes back, and their neighbours are embedded all the same.
func TestReembedder_forgottenMeanwhile(t *testing.T) {
	b := setup(t, lexical)
	var first memory.Added
	for i := range 4 {
		first = b.addOne(memory.Row{Scope: user("ada"), SessionID: "s1", Kind: memory.KindRaw, Text: spoken(i)})
		b.addOne(memory.Row{Scope: user("bob"), SessionID: "s1", Kind: memory.KindRaw, Text: spoken(10 + i)})
	}
	row := memory.Row{Scope: shared(), Kind: memory.KindRaw, Text: spoken(20), Contributor: &memory.Contributor{UserID: "ada", SessionID: "s1"}}
	b.addOne(row)
	b.change(tenants.Change{Dimension: new(128)})
	// A fence, of which the guard tells only who writes: the others are written alone.
	b.srv.Reembedder.OnBatch = func() {
		b.sql(`INSERT INTO memd.fences SELECT s.tenant_no, s.user_ref, 2, now(), gen_random_uuid(), now() FROM memd.subjects s
			JOIN memd.memories m ON m.tenant_no = s.tenant_no AND m.owner_no = s.subject_no AND m.memory_id = '` + first.ID.String() + `' RETURNING 1`)
	}
	b.reembed()
	if r := b.reembedding(); r.Done != 4 || r.Left != 5 {
		t.Errorf("behind a fence: %+v", r)
	}
	b.sql(`DELETE FROM memd.fences RETURNING 1`)
	b.srv.Reembedder.OnBatch = func() {
		b.srv.Reembedder.OnBatch = nil
		b.ForgetUser(b.srv, b.tenant, "app", "ada")
	}
	b.reembed()
	if r := b.settleSpace(); r.Done != 4 || r.Left != 0 {
		t.Errorf("%+v", r)
	}
	if n := b.count(`SELECT count(*) FROM memd.memories`); n != 4 {
		t.Errorf("%d rows are there", n)
	}
	b.finds("in the end", b.m, user("bob"), spoken(10), spoken(13))
	if hits := b.search(b.m, memory.Query{Scope: shared(), Text: spoken(20)}).Hits; len(hits) != 0 {
		t.Error("words of somebody who was forgotten are found")
	}
}

// Vectors of two embedders are never compared, not even where their dimensions are the
// same, and rows of both are found where both can be asked.
func TestService_Search_twoSpaces(t *testing.T) {
	b := setup(t, func(p *tenants.Policy) { p.Embedder, p.Dimension = tenants.EmbedderNone, 64 })
	row := memory.Row{Scope: user("ada"), SessionID: "s1", Kind: memory.KindRaw, Text: spoken(1), Vector: make([]float32, 64)}
	row.Vector[0] = 1
	before := b.addOne(row)
	b.change(tenants.Change{Embedder: new(tenants.EmbedderLexical)})
	if hits := b.search(b.m, memory.Query{Scope: user("ada"), Text: spoken(1)}).Hits; len(hits) != 0 {
		t.Errorf("a text is compared with a vector of nobody knows what: %g", hits[0].Score)
	}
	after := b.addOne(memory.Row{Scope: user("ada"), SessionID: "s1", Kind: memory.KindRaw, Text: spoken(2)})
	for _, h := range b.search(b.m, memory.Query{Scope: user("ada"), Vector: row.Vector}).Hits {
		if h.Memory.ID != after.ID {
			t.Error("a vector of now is compared with one of before")
		}
	}
	// A change of something else leaves the vector where it is.
	if m := b.update(user("ada"), before.ID, memory.Change{Expected: 1, Metadata: &map[string]string{"a": "b"}}); m.Version != 2 {
		t.Error(m.Version)
	}
	if n := b.count(`SELECT count(*) FROM memd.memories WHERE space = 1`); n != 1 {
		t.Errorf("%d rows are in the former space", n)
	}
	b.settleSpace()
	b.finds("in the end", b.m, user("ada"), spoken(1), spoken(2))
}
