package main

import (
	"net/url"
	"path/filepath"
	"strings"
)

// ledgerFlags are what every process takes that writes to the ledgers.
type ledgerFlags struct {
	Ledger    []string `required:"" sep:"," help:"Where key trees and the journal are kept outside the database: folders, gs:// or s3:// URLs, separated by commas, in the same order for every process. Two, neither on the database's volume."`
	OneLedger bool     `help:"Accept a single ledger: losing it and the database at once loses every key."`
}

// checkLedgers refuses one ledger that was not asked for, also in the guise of
// two: the same place twice keeps one copy.
func (c *ledgerFlags) checkLedgers() error {
	if len(c.Ledger) < 2 && !c.OneLedger {
		return usagef("two ledgers are needed, on different volumes; --one-ledger accepts one")
	}
	seen := map[string]bool{}
	for _, l := range c.Ledger {
		place := ledgerPlace(l)
		if seen[place] {
			return usagef("--ledger names the same place twice; two copies are needed, on different volumes")
		}
		seen[place] = true
	}
	return nil
}

// ledgerPlace is the same for two spellings of one folder or bucket.
func ledgerPlace(l string) string {
	scheme, rest, found := strings.Cut(l, "://")
	if found && scheme != "file" {
		// Parameters such as a region say how to reach a bucket; a prefix says
		// which part of it is meant.
		u, err := url.Parse(l)
		if err != nil {
			return l
		}
		return scheme + "://" + u.Host + "/" + strings.Trim(u.Path, "/") + "?prefix=" + u.Query().Get("prefix")
	}
	if found {
		l = rest
	}
	abs, err := filepath.Abs(l)
	if err != nil {
		return l
	}
	// A folder that is not there yet is no link either.
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real
	}
	return abs
}
