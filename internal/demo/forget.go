package demo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// countFirst asks what an erasure of Mara would take.
func (d *demo) countFirst(ctx context.Context) error {
	d.section("Mara of acme asks to be forgotten: first a dry run")
	counts, err := d.dryRun(ctx)
	if err != nil {
		return err
	}
	again, err := d.dryRun(ctx)
	if err != nil {
		return err
	}
	memories, err := d.live.memoriesOf(ctx, d.acme.tenant, d.mara.number)
	if err != nil {
		return err
	}
	kept, err := d.live.traceKept(ctx, d.acme.tenant, d.mara.number)
	if err != nil {
		return err
	}
	d.check(memories > 0 && counts["memories"] == memories && kept == d.before.traceKept && maps.Equal(counts, again) &&
		counts["session_events"] == kept.Events && counts["user_state"] == kept.UserState && counts["session_state"] == kept.State &&
		counts["app_state"] == kept.AppState && counts["artifacts"] == kept.Files && counts["artifact_chunks"] == kept.Chunks,
		"It counts what would go, as SQL counts it, and changes nothing",
		"%s", countsText(counts))
	d.dry = counts
	return nil
}

func (d *demo) dryRun(ctx context.Context) (map[string]int64, error) {
	resp, err := d.acme.api.Erasure.DryRun(ctx, &memdv1.DryRunRequest{App: d.acme.app, UserId: mara})
	if err != nil {
		return nil, fmt.Errorf("counting: %w", err)
	}
	counts := map[string]int64{}
	for _, c := range resp.GetCounts() {
		counts[c.GetStore()] = c.GetBefore()
	}
	return counts, nil
}

// countsText lists what is not 0.
func countsText(counts map[string]int64) string {
	var out []string
	for _, store := range slices.Sorted(maps.Keys(counts)) {
		if counts[store] != 0 {
			out = append(out, fmt.Sprintf("%s %d", store, counts[store]))
		}
	}
	return orNothing(out)
}

func orNothing(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}

// forget forgets Mara of acme, over the API, or does what is asked for instead.
// A late writer tries its luck meanwhile.
func (d *demo) forget(ctx context.Context) error {
	switch d.c.Instead {
	case DoNothing:
		d.section("And nobody does anything")
	case DeleteRows:
		d.section("And her rows are deleted one by one")
		if err := d.deleteRows(ctx); err != nil {
			return err
		}
	default:
		d.section("She is forgotten: a job, step by step, each with its time since the request")
		d.request = uuid.NewString()
		d.operations = -d.cryptographic()
		resp, err := d.acme.api.Erasure.ForgetUser(ctx, &memdv1.ForgetUserRequest{
			App: d.acme.app, UserId: mara, RequestId: d.request, Wait: durationpb.New(0),
		})
		if err != nil {
			return fmt.Errorf("forgetting: %w", err)
		}
		d.salt = resp.GetReport().GetSalt()
	}
	late, took, err := d.addLate(ctx)
	if err != nil {
		return err
	}
	if d.request != "" {
		if err := d.watch(ctx, memdv1.ErasureState_ERASURE_STATE_DONE); err != nil {
			return err
		}
		d.operations += d.cryptographic()
		if err := d.putBack(ctx); err != nil {
			return err
		}
	}
	d.check(late != memdv1.Reason_REASON_UNSPECIFIED, "A conversation of hers that is taken into memory while this runs is refused",
		"AddSession of its events: %s%s", name(late), took)
	d.checkReport()
	return nil
}

// cryptographic counts the key service's operations that are billed.
func (d *demo) cryptographic() int { return d.dev.KMS.Calls("Encrypt") + d.dev.KMS.Calls("Decrypt") }

// addLate takes a conversation of Mara's into memory as a job does that has read
// it before. It returns why that was refused, or what became of it.
func (d *demo) addLate(ctx context.Context) (refused memdv1.Reason, took string, err error) {
	talk := d.talk("mara-2025-02-school")
	events := talk.events()
	if d.request != "" {
		// One that memory has not seen, so that there is something to write.
		// Where nothing refuses it, it would be found by the searches later.
		events = append(events, &memdv1.Event{
			Id: "late", Author: "user", Content: content("user", "And her spirometry is on Friday."),
			Timestamp: timestamppb.New(talk.spoken(len(talk.Turns))),
		})
	}
	resp, err := d.acme.api.Memory.AddSession(ctx, &memdv1.AddSessionRequest{
		App: d.acme.app, UserId: mara, SessionId: talk.Session, Events: events,
	})
	if err == nil {
		return 0, fmt.Sprintf("; %d added, %d unchanged, %d refused one by one", resp.GetAdded(), resp.GetUnchanged(), resp.GetRefused()), nil
	}
	switch r := d.c.Reason(err); r {
	case memdv1.Reason_REASON_FENCED, memdv1.Reason_REASON_SESSION_FORGOTTEN:
		return r, "", nil
	}
	return 0, "", fmt.Errorf("storing late: %w", err)
}

// watch shows the steps of the erasure as they end, until it has come to a
// state.
func (d *demo) watch(ctx context.Context, until memdv1.ErasureState) error {
	stream, err := d.acme.api.Erasure.WatchErasure(ctx, &memdv1.WatchErasureRequest{
		RequestId: d.request, UntilDone: until == memdv1.ErasureState_ERASURE_STATE_DONE,
	})
	if err != nil {
		return fmt.Errorf("watching the erasure: %w", err)
	}
	defer func() { _ = stream.Close() }() // What counts is what was received.
	defer d.endRow()
	for {
		event, err := stream.Receive()
		if err != nil {
			return fmt.Errorf("watching the erasure: %w", err)
		}
		e, step := event.GetErasure(), event.GetStep()
		if step.GetDone() && !d.steps[step.GetName()] {
			d.steps[step.GetName()] = true
			d.item("%s %.2fs", step.GetName(), step.GetFinishedAt().AsTime().Sub(e.GetAcceptedAt().AsTime()).Seconds())
		}
		if step == nil && e.GetState() >= until {
			break
		}
	}
	resp, err := d.acme.api.Erasure.GetErasure(ctx, &memdv1.GetErasureRequest{RequestId: d.request})
	if err != nil {
		return fmt.Errorf("reading the report: %w", err)
	}
	d.report = resp.GetReport()
	return nil
}

// checkReport reads what the service says that it did, and names what fell.
func (d *demo) checkReport() {
	before, after := map[string]int64{}, map[string]int64{}
	for _, c := range d.report.GetCounts() {
		before[c.GetStore()], after[c.GetStore()] = c.GetBefore(), c.GetAfter()
	}
	// The dry run counts conversations apart from stores.
	delete(before, "sessions")
	gone := true
	for _, n := range after {
		gone = gone && n == 0
	}
	results := map[string]int64{}
	for _, c := range d.report.GetChecks() {
		results[c.GetResult()]++
	}
	d.check(d.report.GetState() >= memdv1.ErasureState_ERASURE_STATE_DONE && d.report.GetKey().GetKmsVersion() != "" && gone &&
		maps.Equal(before, d.dry) && results["pass"] > 0 && results["fail"] == 0,
		"The report says done: what the dry run counted, and none of it left",
		"after: %s; before: %s; verifier's checks: %s; key version destroyed: %s",
		countsText(after), countsText(before), countsText(results), short(d.report.GetKey().GetKmsVersion()))
	for _, f := range d.report.GetFallen() {
		where := "the shared scope"
		if user := f.GetScope().GetUser().GetUserId(); user != "" {
			where = user + "'s"
		}
		d.show("fell with her: a %s in %s, %q; %d of its sources are left", strings.ToLower(strings.TrimPrefix(f.GetKind().String(), "KIND_")),
			where, shorten(d.acme.texts[f.GetMemoryId()], 48), len(f.GetSurvivingSources()))
	}
}

// deleteRows deletes what a program without memd's erasure would: memories and
// files by the API, the rest by SQL.
func (d *demo) deleteRows(ctx context.Context) error {
	rows, err := d.acme.list(ctx, mara)
	if err != nil {
		return err
	}
	for _, m := range rows {
		_, err := d.acme.api.Memory.Delete(ctx, &memdv1.DeleteRequest{
			Scope: d.acme.scope(mara), MemoryId: m.GetMemoryId(), DeleteDerived: true,
		})
		if err != nil {
			return fmt.Errorf("deleting a row: %w", err)
		}
	}
	for i := range d.acme.talks {
		talk := &d.acme.talks[i]
		if talk.User != mara {
			continue
		}
		file, _ := talk.transcript()
		for _, name := range []string{file, paperName} {
			_, err := d.acme.api.Artifacts.DeleteArtifact(ctx, &memdv1.DeleteArtifactRequest{
				Owner: &memdv1.ArtifactOwner{App: d.acme.app, UserId: mara, SessionId: talk.Session}, Name: name,
				What: &memdv1.DeleteArtifactRequest_AllVersions{AllVersions: true},
			})
			if err != nil {
				return fmt.Errorf("deleting a file: %w", err)
			}
		}
	}
	kept, err := d.live.deleteKept(ctx, d.acme.tenant, d.mara.number)
	if err != nil {
		return err
	}
	d.show("%d memories, and what was derived from them; files; and %d rows of her conversations and their state", len(rows), kept)
	return nil
}
