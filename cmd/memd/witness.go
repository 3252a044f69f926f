package main

import (
	"strconv"
	"time"

	"forgettable.dev/memd/canary"
	"forgettable.dev/memd/internal/node"
)

// witnessFlags say what the verifier of erasures may look at, and for how long.
type witnessFlags struct {
	VerifyPagesURL string        `name:"verify-pages-url" placeholder:"URL" help:"PostgreSQL connection string of a superuser, to look for remains of erased rows in raw pages. Without it that check is not run."`
	VerifyLog      []string      `name:"verify-log" sep:"," placeholder:"FILE" help:"Log files, of memd and of agents on this machine, in whose ends the ids of who was erased are looked for."`
	VerifyRows     int64         `default:"${verify_rows}" help:"How many rows one search through a tenant's store may open. What it leaves out is reported."`
	VerifyMiB      int64         `name:"verify-mib" default:"${verify_mib}" help:"How many MiB of sealed values it may read."`
	VerifyTime     time.Duration `default:"${verify_time}" help:"How long it may take."`
	VerifyPagesMiB int64         `name:"verify-pages-mib" default:"${verify_pages_mib}" help:"How many MiB of raw pages are searched."`
}

const mebibyte = 1 << 20

// witnessDefaults are the defaults of witnessFlags, which are the verifier's.
func witnessDefaults() map[string]string {
	b := canary.DefaultBudget
	return map[string]string{
		"verify_rows": strconv.FormatInt(b.Rows, 10), "verify_mib": strconv.FormatInt(b.Bytes/mebibyte, 10), "verify_time": b.Time.String(),
		"verify_pages_mib": strconv.FormatInt(b.PageBytes/mebibyte, 10),
	}
}

func (f *witnessFlags) witness() (node.Witness, error) {
	if f.VerifyRows < 1 || f.VerifyMiB < 1 || f.VerifyTime <= 0 || f.VerifyPagesMiB < 1 {
		return node.Witness{}, usagef("--verify-rows, --verify-mib, --verify-time and --verify-pages-mib must be more than zero")
	}
	return node.Witness{
		PagesURL: f.VerifyPagesURL, LogFiles: f.VerifyLog,
		Budget: canary.Budget{Rows: f.VerifyRows, Bytes: f.VerifyMiB * mebibyte, Time: f.VerifyTime, PageBytes: f.VerifyPagesMiB * mebibyte},
	}, nil
}
