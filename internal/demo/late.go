package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/dev"
)

// checkLateWrites plays a job that read Mara's conversation before she was
// forgotten, and stores it now.
func (d *demo) checkLateWrites(ctx context.Context) error {
	d.section("A job that read her conversation yesterday stores it now")
	talk := d.talk("mara-2025-01-inhaler")
	again, redated, renamed, undated := d.acme.rows(talk), d.acme.rows(talk), d.acme.rows(talk), d.acme.rows(talk)
	for i := range again {
		redated[i].SourceTime = timestamppb.New(time.Now())
		renamed[i].SessionId, undated[i].SessionId = "mara-imported", "mara-imported"
		undated[i].SourceTime = nil
	}
	for _, x := range []struct {
		claim string
		rows  []*memdv1.Row
		want  memdv1.Reason
	}{
		{"As it was: refused", again, memdv1.Reason_REASON_ERASED_BEFORE},
		{"Under the old session id, as if it were said today: refused", redated, memdv1.Reason_REASON_SESSION_FORGOTTEN},
		{"Under a new session id, with the time when it was said: refused", renamed, memdv1.Reason_REASON_ERASED_BEFORE},
		{"Without a time: refused", undated, memdv1.Reason_REASON_SOURCE_TIME_REQUIRED},
	} {
		_, err := d.acme.api.Memory.Add(ctx, &memdv1.AddRequest{Rows: x.rows})
		got := memdv1.Reason_REASON_UNSPECIFIED
		if err != nil {
			got = d.c.Reason(err)
		}
		d.check(err != nil && got == x.want, x.claim, "Add of %d rows: %s", len(x.rows), name(got))
	}
	if err := d.checkLateEvents(ctx); err != nil {
		return err
	}
	if err := d.checkByHand(ctx); err != nil {
		return err
	}
	neighbour := d.acme.rows(d.talk("owen-2025-01-pressure"))
	resp, err := d.acme.api.Memory.Add(ctx, &memdv1.AddRequest{Rows: neighbour})
	if err != nil {
		return fmt.Errorf("storing a neighbour's conversation again: %w", err)
	}
	unchanged := 0
	for _, r := range resp.GetResults() {
		if r.GetStatus() == memdv1.AddStatus_ADD_STATUS_UNCHANGED {
			unchanged++
		}
	}
	d.check(unchanged == len(neighbour), "A neighbour's conversation that comes again is accepted, and stored once",
		"Owen's %d rows: %d unchanged", len(neighbour), unchanged)
	return nil
}

// checkLateEvents appends to an old conversation of Mara's, and to its files.
func (d *demo) checkLateEvents(ctx context.Context) error {
	talk := d.talk("mara-2025-01-inhaler")
	_, appended := d.acme.api.Session.AppendEvents(ctx, &memdv1.AppendEventsRequest{
		App: d.acme.app, UserId: mara, SessionId: talk.Session,
		Events: []*memdv1.Event{{Id: "late", Author: "user", Content: content("user", "One more thing."), Timestamp: timestamppb.New(time.Now())}},
	})
	_, created := d.acme.api.Session.CreateSession(ctx, &memdv1.CreateSessionRequest{App: d.acme.app, UserId: mara, SessionId: talk.Session})
	file, text := talk.transcript()
	saved := d.acme.save(ctx, d.acme.api, &memdv1.ArtifactOwner{App: d.acme.app, UserId: mara, SessionId: talk.Session}, file, text)
	ok, said := true, []string{}
	for i, err := range []error{appended, created, saved} {
		reason := memdv1.Reason_REASON_UNSPECIFIED
		if err != nil {
			reason = d.c.Reason(err)
		}
		switch reason {
		case memdv1.Reason_REASON_NOT_FOUND, memdv1.Reason_REASON_SESSION_FORGOTTEN, memdv1.Reason_REASON_SOURCE_TIME_REQUIRED:
		default:
			ok = false
		}
		said = append(said, []string{"AppendEvents", "CreateSession", "SaveArtifact"}[i]+" "+name(reason))
	}
	d.check(ok, "As an event, a conversation of that id, or a file of it: refused", "%s", strings.Join(said, ", "))
	return nil
}

// checkByHand takes a row of Mara's from the restored copy and puts it into the
// live table, past all of memd's code, as the application's role.
func (d *demo) checkByHand(ctx context.Context) error {
	copied, err := openWitness(ctx, d.dev.Cluster.URL(restoredBefore, ""))
	if err != nil {
		return err
	}
	defer func() { _ = copied.close() }()
	row, err := copied.wholeRow(ctx, d.acme.tenant, uuid.MustParse(d.acme.added["mara-2025-01-inhaler"][0]))
	if err != nil {
		return err
	}
	app, err := openWitness(ctx, d.dev.Cluster.URL(dev.Database, "memd_app"))
	if err != nil {
		return err
	}
	defer func() { _ = app.close() }()
	err = app.putBack(ctx, row)
	var refused *pgconn.PgError
	state := "accepted"
	if errors.As(err, &refused) {
		state = "SQLSTATE " + refused.Code
	} else if err != nil {
		return fmt.Errorf("inserting by hand: %w", err)
	}
	// The guard's codes. Which comes first is the guard's business.
	d.check(refused != nil && strings.HasPrefix(refused.Code, "MD"), "Copied by hand from the backup into the live table, as memd's own role: refused",
		"INSERT by SQL: %s, from the guard in the database", state)
	return nil
}

func (d *demo) talk(session string) *conversation {
	for i := range d.acme.talks {
		if d.acme.talks[i].Session == session {
			return &d.acme.talks[i]
		}
	}
	panic("the demo's conversations have no session " + session)
}

// checkReturn plays Mara, who comes back as a customer a minute later.
func (d *demo) checkReturn(ctx context.Context) error {
	d.section("Mara comes back")
	words := "Hello, I would like sunscreen, factor 50."
	id, err := d.acme.add(ctx, &memdv1.Row{
		Scope: d.acme.scope(mara), SessionId: "mara-new", Kind: memdv1.Kind_KIND_RAW, Text: words,
		SourceTime: timestamppb.New(time.Now()),
	})
	if err != nil {
		return err
	}
	rows, err := d.acme.list(ctx, mara)
	if err != nil {
		return err
	}
	hits, err := d.acme.search(ctx, mara, maraQueries[0], false)
	if err != nil {
		return err
	}
	number, err := d.live.owner(ctx, d.acme.tenant, id)
	if err != nil {
		return err
	}
	made, err := d.acme.api.Session.CreateSession(ctx, &memdv1.CreateSessionRequest{App: d.acme.app, UserId: mara, SessionId: "mara-new"})
	if err != nil {
		return fmt.Errorf("beginning a conversation: %w", err)
	}
	files, err := d.acme.api.Artifacts.ListArtifacts(ctx, &memdv1.ListArtifactsRequest{Owner: &memdv1.ArtifactOwner{App: d.acme.app, UserId: mara}})
	if err != nil {
		return fmt.Errorf("listing her files: %w", err)
	}
	state := len(made.GetSession().GetState())
	if number != d.mara.number {
		d.again = number
	}
	d.check(len(rows) == 1 && rows[0].GetText() == words && len(hits) <= 1 && number != d.mara.number && state == 0 && len(files.GetArtifacts()) == 0,
		"She starts empty, under a new number",
		"1 row stored; listed %d, found by her old question %d; noted about her %d, files %d; her number %s was %s",
		len(rows), len(hits), state, len(files.GetArtifacts()), number, d.mara.number)
	return nil
}
