package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// runDemo runs the demo with a temporary folder of the test's own and returns
// the claims that held and that did not.
func runDemo(t *testing.T, args ...string) (status int, held, failed []string, output string) {
	t.Helper()
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	var out, errs bytes.Buffer
	status = run(t.Context(), append([]string{"demo"}, args...), func(string) string { return "" }, strings.NewReader(""), &out, &errs)
	for line := range strings.Lines(out.String()) {
		line = strings.TrimSuffix(line, "\n")
		if claim, ok := strings.CutPrefix(line, "  ✓ "); ok {
			held = append(held, claim)
		} else if claim, ok := strings.CutPrefix(line, "  ✗ "); ok {
			failed = append(failed, claim)
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v in its temporary folder (%v)", left, err)
	}
	return status, held, failed, out.String() + errs.String()
}

func TestDemo_EveryCheckHolds(t *testing.T) {
	status, held, failed, output := runDemo(t)
	if status != exitOK || len(failed) > 0 || len(held) < 44 {
		t.Errorf("status %d, %d checks held, failed: %q\n%s", status, len(held), failed, output)
	}
	for _, want := range []string{"unreadable", "destroyed for good", "purged by the provider", "$0.12 a month for each tenant", "$72,000.00", "fence", "recheck", "verified: 2 receipts", "✓ Each of the 6"} {
		if !strings.Contains(output, want) {
			t.Errorf("the output does not say %q:\n%s", want, output)
		}
	}
}

// controls are the checks that say nothing about forgetting: they hold without
// it, and show that the others had something to look at.
var controls = []string{
	"Mara's words are found, by search and by SQL, so that later checks have something to miss",
	"So are her conversations, what was noted about her, and her files",
	"Jonas finds a summary that was drawn from Mara's words and his, and a notice drawn from that summary",
	"Today everything in it can be read with the key service's help, which is the point of a backup",
	"So can everything of everybody, a password that a tool of globex's read from a .env file included",
	"It counts what would go, as SQL counts it, and changes nothing",
	"Everybody else's rows in the same dump open with acme's current tree",
	"Globex was not touched",
	"Jonas's own rows are not",
	"A neighbour's conversation that comes again is accepted, and stored once",
	"The plan names that month alone, conversations and memories, and changes nothing",
	"Nothing that anybody said, noted or filed is on the disk in clear, nor who it was",
}

func TestDemo_FailsWhenNobodyForgets(t *testing.T) {
	status, held, failed, output := runDemo(t, "--instead=nothing")
	if status != exitFailure || len(failed) < 22 {
		t.Errorf("status %d, failed: %q\n%s", status, failed, output)
	}
	if diff := cmp.Diff(controls, held); diff != "" {
		t.Errorf("what held although nobody forgot:\n%s", diff)
	}
}

// Deleting is what others call forgetting. The searches cannot tell.
func TestDemo_FailsWhenRowsAreOnlyDeleted(t *testing.T) {
	status, held, failed, output := runDemo(t, "--instead=delete")
	if status != exitFailure || !slices.Contains(held, "Search finds nothing of Mara's") {
		t.Errorf("status %d, held: %q\n%s", status, held, output)
	}
	for _, want := range []string{
		"The current tree does not derive them",
		"Mara's rows are all there, and none can be read, with the key service at hand",
		"Nor can an event, an entry of state or a file of hers, with its name",
		"Nor can her name in the directory, nor those of her conversations",
		"The store outside memd has forgotten her too, and nobody else",
		"A conversation of hers that is taken into memory while this runs is refused",
		"It found the row, erased it, looked everywhere again, and the erasure is final",
		"Signed, in the log, and nothing missing there: verified offline, with the public key alone",
		"Under a new session id, with the time when it was said: refused",
		"It goes: first its key, then its rows, and no other month",
		"In the backup from before, all of it is bytes that nobody can read, the password from the .env file too",
		cell + "backup, acme, mara.lindgren@example.org, 2025-02",
		cell + "backup, acme, owen.hughes@example.org, 2025-01",
		cell + "backup, globex, liam.doyle@example.org, 2025-03",
	} {
		if !slices.Contains(failed, want) {
			t.Errorf("%q held although no key was destroyed:\n%s", want, output)
		}
	}
	// Who looks at the live service alone sees nothing of the tenant that left.
	for _, claim := range failed {
		if strings.HasPrefix(claim, cell+"live, globex") {
			t.Errorf("%q, although the rows were deleted:\n%s", claim, output)
		}
	}
}

// cell begins what a cell of the table claims.
const cell = "What can be read is what has to be: "

// A receipt is worth what its verification is: everything is forgotten, one byte
// of the receipt is another, and just the checks of the receipt fail.
func TestDemo_FailsWhenTheReceiptWasChanged(t *testing.T) {
	status, _, failed, output := runDemo(t, "--instead=forge")
	want := []string{
		"Signed, in the log, and nothing missing there: verified offline, with the public key alone",
		"With one byte changed, one that says what the sweep found, it does not verify",
		"Whoever has the salt can show that it is about Mara, and cannot show that it is about Jonas",
	}
	if diff := cmp.Diff(want, failed); status != exitFailure || diff != "" {
		t.Errorf("status %d, failed:\n%s\n%s", status, diff, output)
	}
}
