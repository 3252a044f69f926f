package main

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// filterFlags narrow a search or a list. All that are given must hold.
type filterFlags struct {
	Kind    []string          `group:"filter" enum:"raw,fact,summary" placeholder:"raw|fact|summary" help:"Are of any of these kinds, separated by commas."`
	Session []string          `group:"filter" placeholder:"ID" sep:"none" help:"Come from this conversation of the user, alone or among others. May be repeated."`
	From    time.Time         `group:"filter" placeholder:"TIME" help:"Were spoken at this time (RFC 3339) or later."`
	To      time.Time         `group:"filter" placeholder:"TIME" help:"Were spoken before this time (RFC 3339)."`
	Meta    map[string]string `group:"filter" placeholder:"KEY=VALUE" mapsep:"none" help:"Have this metadata entry. May be repeated."`
}

func (f *filterFlags) filter() (*memdv1.Filter, error) {
	out := &memdv1.Filter{SessionIds: f.Session, Metadata: f.Meta}
	for _, k := range f.Kind {
		out.Kinds = append(out.Kinds, kindOf(k))
	}
	if !f.From.IsZero() || !f.To.IsZero() {
		if !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To) {
			return nil, usagef("--from must be before --to")
		}
		out.SourceTime = &memdv1.TimeRange{From: timestamp(f.From), To: timestamp(f.To)}
	}
	return out, nil
}

// kindOf reads a kind that the parser has checked.
func kindOf(name string) memdv1.Kind {
	switch name {
	case "raw":
		return memdv1.Kind_KIND_RAW
	case "fact":
		return memdv1.Kind_KIND_FACT
	case "summary":
		return memdv1.Kind_KIND_SUMMARY
	}
	return memdv1.Kind_KIND_UNSPECIFIED
}

func kindName(k memdv1.Kind) string { return enumName(k, "KIND_", true) }

// timestamp leaves a time that was not given unset.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
