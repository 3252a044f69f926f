package canary_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd/canary"
	"forgettable.dev/memd/receipts"
)

func TestWords(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"Send it to 14 Tannery Lane.", []string{"send", "tannery", "lane"}},
		{"order QX-4471, please", []string{"order", "4471", "qx-4471", "please"}},
		{"mara.lindqvist@example.org!", []string{"mara", "lindqvist", "example", "mara.lindqvist@example.org"}},
		{"+49 170 5551234", []string{"5551234"}},
		{"MÜNCHEN Straße", []string{"münchen", "straße"}},
		{"ﬁnancial", []string{"financial"}}, // a ligature
		{"喘息の薬", []string{"喘息の", "息の薬"}},
		{"a--b -- the end-", nil},
		{"", nil},
	} {
		if d := cmp.Diff(c.want, canary.Words(c.text)); d != "" {
			t.Errorf("%q (-want +got):\n%s", c.text, d)
		}
	}
}

func TestWords_TheMostTelling(t *testing.T) {
	got := canary.Telling("Please send the inhaler for my daughter to 14 Tannery Lane, it was order QX-4471, because she wheezes.", 3)
	if want := []string{"qx-4471", "4471", "tannery"}; !cmp.Equal(want, got) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := canary.Telling("Thank you very much, something without anything.", 3); len(got) > 0 {
		t.Errorf("%q tell nothing", got)
	}
}

func TestWords_JSON(t *testing.T) {
	got := canary.JSONTexts(`{"role":"user","parts":[{"text":"line\nInhaler for M\u00fcller"},{"n":4471}]}`)
	slices.Sort(got)
	if want := []string{"4471", "line\nInhaler for Müller", "user"}; !cmp.Equal(want, got) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := canary.JSONTexts(`{not json`); !cmp.Equal([]string{"{not json"}, got) {
		t.Errorf("got %q", got)
	}
}

// A receipt refuses words that it does not know, and an erasure with it.
func TestChecks_ReceiptsKnowEveryWord(t *testing.T) {
	for _, name := range canary.CheckNames() {
		if !receipts.KnownCheck(name) {
			t.Errorf("no receipt can hold check %q", name)
		}
	}
	for _, reason := range canary.Reasons() {
		if !receipts.KnownReason(reason) {
			t.Errorf("no receipt can hold reason %q", reason)
		}
	}
}
