package erasure_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/shred"
	"forgettable.dev/memd/shred/kmsemu"
	"forgettable.dev/memd/shred/ledger"
)

// tables is what a dump of a tenant holds, taken at one time.
type tables struct {
	tenant   memd.TenantNo
	key      string
	rows     []copiedRow
	sessions []copiedSession
	subjects []copiedSubject
	contents []copiedContent
	trees    [][]byte
}

type copiedRow struct {
	id            uuid.UUID
	owner         memd.Number
	month         memd.Month
	contributions []memd.Contribution
	text, vector  []byte
}

type copiedSession struct {
	subject, session memd.Number
	sealed           []byte
}

type copiedSubject struct {
	subject memd.Number
	sealed  []byte
}

// copyOf copies every sealed value of a tenant, as a backup does.
func (w *world) copyOf(t memory.Tenant) tables {
	w.t.Helper()
	ctx := w.t.Context()
	c := tables{tenant: t.No}
	err := w.owner.InTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT kms_key FROM memd.tenant_keys WHERE tenant_no = $1`, t.No).Scan(&c.key); err != nil {
			return err
		}
		var err error
		if c.rows, err = copyRows(ctx, tx, t.No); err != nil {
			return err
		}
		if c.sessions, err = collect(ctx, tx, `SELECT subject_no, session_no, sealed_id FROM memd.sessions WHERE tenant_no = $1 AND sealed_id <> ''`, t.No,
			func(r pgx.CollectableRow) (s copiedSession, err error) {
				return s, r.Scan(&s.subject, &s.session, &s.sealed)
			}); err != nil {
			return err
		}
		if c.subjects, err = collect(ctx, tx, `SELECT subject_no, sealed_user_id FROM memd.subjects WHERE tenant_no = $1 AND kind = 1`, t.No,
			func(r pgx.CollectableRow) (s copiedSubject, err error) { return s, r.Scan(&s.subject, &s.sealed) }); err != nil {
			return err
		}
		if c.contents, err = copyContents(ctx, tx, t.No); err != nil {
			return err
		}
		c.trees, err = collect(ctx, tx, `SELECT sealed FROM memd.key_trees WHERE tenant_no = $1 ORDER BY epoch`, t.No, pgx.RowTo[[]byte])
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func copyRows(ctx context.Context, db pg.DB, tenant memd.TenantNo) ([]copiedRow, error) {
	return collect(ctx, db, `SELECT m.memory_id, m.owner_no, m.month, m.sealed_text, m.sealed_vector,
	    ARRAY[m.contributor_no, m.contributor_session] || ARRAY(
	      SELECT unnest(ARRAY[c.contributor_no, c.contributor_session]) FROM memd.memory_contributions c
	      WHERE c.tenant_no = m.tenant_no AND c.memory_id = m.memory_id)
	  FROM memd.memories m WHERE m.tenant_no = $1 ORDER BY m.memory_id`, tenant,
		func(r pgx.CollectableRow) (c copiedRow, err error) {
			var flat []memd.Number
			if err := r.Scan(&c.id, &c.owner, &c.month, &c.text, &c.vector, &flat); err != nil {
				return c, err
			}
			for i := 0; i < len(flat); i += 2 {
				c.contributions = append(c.contributions, memd.Contribution{Subject: flat[i], Session: flat[i+1]})
			}
			return c, nil
		})
}

func collect[T any](ctx context.Context, db pg.DB, sql string, tenant memd.TenantNo, scan pgx.RowToFunc[T]) ([]T, error) {
	rows, err := db.Query(ctx, sql, tenant)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// read opens a copied row's text and vector with a tree's keys.
func (c *copiedRow) read(k *shred.Keys) (string, error) {
	s, err := k.Row(c.month, c.contributions)
	if err != nil {
		return "", err
	}
	text, err := s.Open(c.text, shred.AADMemoryText(k.Tenant(), c.owner, c.id))
	if err != nil {
		return "", err
	}
	_, err = s.Open(c.vector, shred.AADMemoryVector(k.Tenant(), c.owner, c.id))
	return string(text), err
}

// everyTree returns every sealed tree that anybody could still have: those of
// the copies, of the database now, and of the ledger.
func (w *world) everyTree(copies ...tables) [][]byte {
	w.t.Helper()
	var all [][]byte
	for _, c := range copies {
		all = append(all, c.trees...)
	}
	folder, err := ledger.OpenFolder(w.Ledger)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = folder.Close() }()
	names, err := folder.List(w.t.Context(), fmt.Sprintf("trees/%s/", copies[0].tenant))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range names {
		sealed, err := folder.Get(w.t.Context(), name)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, sealed)
	}
	return all
}

// readable is what can be read of a copy with all that there is: every sealed
// tree, by every identity of the KMS. It returns texts, user and session ids,
// and the number of trees that opened.
func (w *world) readable(old tables) (found map[string]bool, opened int) {
	w.t.Helper()
	found = map[string]bool{}
	trees := w.everyTree(old, w.copyOf(memory.Tenant{No: old.tenant}))
	for _, id := range []kmsemu.Identity{kmsemu.App, kmsemu.Worker, kmsemu.Shredder, kmsemu.Admin} {
		opened += w.readWith(id, trees, old, found)
	}
	return found, opened
}

// readableAs is readable by one identity.
func (w *world) readableAs(id kmsemu.Identity, old tables) map[string]bool {
	w.t.Helper()
	found := map[string]bool{}
	w.readWith(id, w.everyTree(old, w.copyOf(memory.Tenant{No: old.tenant})), old, found)
	return found
}

func (w *world) readWith(id kmsemu.Identity, trees [][]byte, old tables, found map[string]bool) (opened int) {
	w.t.Helper()
	for _, sealed := range trees {
		tree, _, err := shred.OpenTree(w.t.Context(), w.identity(id), old.key, sealed)
		if err != nil {
			if !errors.Is(err, memd.ErrShredded) && !errors.Is(err, memd.ErrPermissionDenied) {
				w.t.Errorf("opening a tree as %s: %v", id, err)
			}
			continue
		}
		opened++
		k := shred.NewKeys(tree)
		for i := range old.rows {
			if text, err := old.rows[i].read(k); err == nil {
				found[text] = true
			} else if !errors.Is(err, memd.ErrShredded) {
				w.t.Errorf("opening a copied row: %v", err)
			}
		}
		for _, open := range old.contents {
			plain, err := open(k)
			for _, words := range marked.FindAllString(string(plain), -1) {
				found[words] = true
			}
			if err != nil && !errors.Is(err, memd.ErrShredded) {
				w.t.Errorf("opening copied content: %v", err)
			}
		}
		for _, s := range old.sessions {
			if name, err := k.OpenSessionID(s.subject, s.session, s.sealed); err == nil {
				found["session "+name] = true
			}
		}
		for _, s := range old.subjects {
			if name, err := k.OpenUserID(s.subject, s.sealed); err == nil {
				found["user "+name] = true
			}
		}
		k.Drop()
	}
	return opened
}

// identity is the KMS as one caller; clients are made once.
func (w *world) identity(id kmsemu.Identity) shred.KMS {
	if w.clients == nil {
		w.clients = map[kmsemu.Identity]shred.KMS{}
	}
	if w.clients[id] == nil {
		w.clients[id] = w.KMS.Client(w.t, id)
	}
	return w.clients[id]
}

// openHead opens the tree at the head, as the application would. The caller
// zeroes it.
func (w *world) openHead(t memory.Tenant) *shred.Tree {
	w.t.Helper()
	c := w.copyOf(t)
	tree, _, err := shred.OpenTree(w.t.Context(), w.identity(kmsemu.App), c.key, c.trees[len(c.trees)-1])
	if err != nil {
		w.t.Fatal(err)
	}
	return tree
}
