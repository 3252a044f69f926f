package main

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// reported is the answer of either erasure.
type reported interface {
	proto.Message
	GetReport() *memdv1.Report
}

// printReport shows what an erasure did: the dates, the counts, and the derived
// rows of others that fell with it.
func printReport(con *console, r *memdv1.Report) error {
	t := newTable(con.Stdout)
	t.row("request", r.GetRequestId())
	t.row("state", enumName(r.GetState(), "ERASURE_STATE_", true))
	t.row("accepted", formatTime(r.GetAcceptedAt()))
	t.row("finished", formatTime(r.GetFinishedAt()))
	if r.GetKeyEpoch() > 0 {
		t.row("key epoch", fmt.Sprint(r.GetKeyEpoch()))
	}
	if k := r.GetKey(); k != nil {
		t.row("key version", orDash(k.GetKmsVersion()))
		t.row("unreadable since", formatTime(k.GetUnreadableAt()))
		t.row("destroyed for good", formatTime(k.GetDestroyedAt()))
		t.row("purged by provider", formatTime(k.GetPurgedAt()))
	}
	if err := t.close(); err != nil {
		return err
	}
	if len(r.GetCounts()) > 0 {
		fmt.Fprintln(con.Stdout)
		t = newTable(con.Stdout, "STORE", "BEFORE", "AFTER")
		for _, c := range r.GetCounts() {
			t.row(c.GetStore(), fmt.Sprint(c.GetBefore()), fmt.Sprint(c.GetAfter()))
		}
		if err := t.close(); err != nil {
			return err
		}
	}
	if err := printStrangers(con, r.GetStrangers()); err != nil || len(r.GetFallen()) == 0 {
		return err
	}
	fmt.Fprintf(con.Stdout, "\n%s of others fell with it, because the words were in them too:\n",
		plural(r.GetFallenTotal(), "derived row", "derived rows"))
	t = newTable(con.Stdout, "MEMORY", "SCOPE", "SOURCES LEFT")
	for _, f := range r.GetFallen() {
		var left []string
		for _, s := range f.GetSurvivingSources() {
			left = append(left, sourceName(s))
		}
		t.row(f.GetMemoryId(), scopeName(f.GetScope()), orDash(strings.Join(left, " ")))
	}
	if err := t.close(); err != nil {
		return err
	}
	if n := r.GetFallenTotal() - int64(len(r.GetFallen())); n > 0 {
		fmt.Fprintf(con.Stdout, "and %d more\n", n)
	}
	return nil
}

func sourceName(s *memdv1.Source) string {
	if id := s.GetMemoryId(); id != "" {
		return id
	}
	return "session:" + s.GetSession().GetUserId() + "/" + s.GetSession().GetSessionId()
}
