package provenance

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

const sqlSubjectNames = `
SELECT subject_no, app, kind, sealed_user_id FROM memd.subjects
WHERE tenant_no = @tenant AND subject_no = ANY (@subjects)`

const sqlSessionNames = `
SELECT x.subject_no, x.session_no, x.sealed_id, x.state
FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS w (subject_no, session_no)
JOIN memd.sessions x
  ON x.tenant_no = @tenant AND x.subject_no = w.subject_no AND x.session_no = w.session_no`

// Scopes returns the scope behind each subject number. A subject that was
// forgotten, or never was, is missing from the answer.
func (d *Directory) Scopes(ctx context.Context, db pg.DB, k Keys, subjects []memd.Number) (map[memd.Number]memd.Scope, error) {
	out := make(map[memd.Number]memd.Scope, len(subjects))
	var ask []memd.Number
	for _, s := range subjects {
		if n, ok := d.name(nameKey{k.Tenant(), s, 0}); ok {
			out[s] = memd.Scope{App: n.app, UserID: n.id}
		} else {
			ask = append(ask, s)
		}
	}
	if len(ask) == 0 {
		return out, nil
	}
	drops := d.drops.Load()
	rows, err := db.Query(ctx, sqlSubjectNames, pg.Args{"tenant": k.Tenant(), "subjects": ask})
	if err != nil {
		return nil, fmt.Errorf("naming subjects: %w", err)
	}
	var no memd.Number
	var app string
	var kind int16
	var sealed []byte
	_, err = pgx.ForEachRow(rows, []any{&no, &app, &kind, &sealed}, func() error {
		n := name{app: app}
		if kind == kindUser {
			id, err := k.OpenUserID(no, sealed)
			if errors.Is(err, memd.ErrShredded) {
				return nil
			} else if err != nil {
				return err
			}
			n.id = id
		}
		d.setName(drops, nameKey{k.Tenant(), no, 0}, n)
		out[no] = memd.Scope{App: n.app, UserID: n.id}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("naming subjects: %w", err)
	}
	return out, nil
}

// KnownSessionIDs is SessionIDs of what this process has in memory, and says
// whether that is all.
func (d *Directory) KnownSessionIDs(k Keys, cs []memd.Contribution) (ids map[memd.Contribution]string, complete bool) {
	ids = make(map[memd.Contribution]string, 1)
	for _, c := range cs {
		if _, ok := ids[c]; ok || c.Session == memd.OwnScope {
			continue
		}
		n, ok := d.name(nameKey{k.Tenant(), c.Subject, c.Session})
		if !ok {
			return nil, false
		}
		ids[c] = n.id
	}
	return ids, true
}

// SessionIDs returns the session id behind each contribution. Own scopes and
// forgotten sessions are missing from the answer.
func (d *Directory) SessionIDs(ctx context.Context, db pg.DB, k Keys, cs []memd.Contribution) (map[memd.Contribution]string, error) {
	out := make(map[memd.Contribution]string, len(cs))
	var subjects, sessions []memd.Number
	asked := map[memd.Contribution]bool{}
	for _, c := range cs {
		if c.Session == memd.OwnScope || asked[c] {
			continue
		}
		asked[c] = true
		if n, ok := d.name(nameKey{k.Tenant(), c.Subject, c.Session}); ok {
			out[c] = n.id
			continue
		}
		subjects, sessions = append(subjects, c.Subject), append(sessions, c.Session)
	}
	if len(subjects) == 0 {
		return out, nil
	}
	drops := d.drops.Load()
	rows, err := db.Query(ctx, sqlSessionNames, pg.Args{"tenant": k.Tenant(), "subjects": subjects, "sessions": sessions})
	if err != nil {
		return nil, fmt.Errorf("naming sessions: %w", err)
	}
	var c memd.Contribution
	var sealed []byte
	var state int16
	_, err = pgx.ForEachRow(rows, []any{&c.Subject, &c.Session, &sealed, &state}, func() error {
		if state != stateLive {
			return nil
		}
		id, err := k.OpenSessionID(c.Subject, c.Session, sealed)
		if errors.Is(err, memd.ErrShredded) {
			return nil
		} else if err != nil {
			return err
		}
		d.setName(drops, nameKey{k.Tenant(), c.Subject, c.Session}, name{id: id})
		out[c] = id
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("naming sessions: %w", err)
	}
	return out, nil
}

func (d *Directory) name(k nameKey) (name, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names.Get(k)
}

// setName keeps a name, unless something was dropped since drops was read: it
// may have been this one, read before it was forgotten.
func (d *Directory) setName(drops uint64, k nameKey, n name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.drops.Load() == drops {
		d.names.Add(k, n)
	}
}
