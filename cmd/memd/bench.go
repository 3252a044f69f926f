package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"

	"forgettable.dev/memd/bench"
)

// benchCmd measures memd on this machine.
type benchCmd struct {
	Runs          int    `default:"3" help:"How often each figure is taken; the median counts."`
	PlainRows     int    `default:"200000" help:"Rows of pgvector's table."`
	Million       bool   `help:"Also load 1,000,000 rows and forget a user among them (minutes)."`
	RestoreRows   int    `default:"100000" help:"Rows of the dump that is restored; 1,000,000 for the figure of the design."`
	TierFrom      int    `default:"1000" help:"Rows of the smallest scope in the comparison with other stores."`
	TierRows      int    `default:"100000" help:"Rows of the largest scope in the comparison with other stores; 1,000,000 for all (most of an hour, and 20 GB of disk)."`
	AllTiers      bool   `help:"Compare stores with longer vectors as well."`
	Conversations string `help:"File of JSON lines to import, for the figures of memd import and of fused searches, and to search for in the comparison with other stores."`
	Only          string `help:"Only measurements whose name contains this: keytree, search, memory, tiers, add, session, forget, erase, export, import, fused, million, kills, restore."`
	JSON          bool   `name:"json" help:"Write the figures as JSON instead of a table."`
}

func (c *benchCmd) Run(ctx context.Context, con *console) (err error) {
	dir, err := os.MkdirTemp("", "memd-bench-")
	if err != nil {
		return err
	}
	// PostgreSQL's user must reach its folder below this one.
	err = os.Chmod(dir, 0o755)
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err != nil {
		return err
	}
	tuneGarbage(con.Getenv, 0) // as memd serve does
	report, err := bench.Run(ctx, bench.Config{
		Dir: dir, PlainRows: c.PlainRows, Runs: c.Runs, Million: c.Million, RestoreRows: c.RestoreRows, TierFrom: c.TierFrom, TierRows: c.TierRows, AllTiers: c.AllTiers,
		Conversations: c.Conversations, Import: importWithThisBinary, Worker: workerOfThisBinary, Only: c.Only, Log: con.Stderr,
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return bench.WriteJSON(con.Stdout, report)
	}
	return bench.WriteTable(con.Stdout, report)
}

// workerOfThisBinary is memd worker as a process of its own, to be killed.
func workerOfThisBinary(ctx context.Context, env ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "worker", "--one-ledger", "--target-allow-private")
	cmd.Env = append(os.Environ(), env...)
	return cmd, nil
}

var importedTurns = regexp.MustCompile(`imported (\d+) turns`)

// importWithThisBinary runs memd import as a process of its own, as its users do.
func importWithThisBinary(ctx context.Context, url, key, file string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self, "import", file)
	cmd.Env = append(os.Environ(), "MEMD_URL="+url, "MEMD_API_KEY="+key)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("importing: %w: %s", err, out.String())
	}
	m := importedTurns.FindSubmatch(out.Bytes())
	if m == nil {
		return 0, errors.New("importing: the answer is not what was expected")
	}
	return strconv.Atoi(string(m[1]))
}
