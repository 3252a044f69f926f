package memory_test

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
)

func texts(hits []memory.Hit) (out []string) {
	for _, h := range hits {
		out = append(out, h.Memory.Text)
	}
	return out
}

// Words count when they are asked for, from exactly the texts that the scope has, and
// scores are cosines all the same.
func TestService_Search_fused(t *testing.T) {
	b := setup(t)
	near, far := []float32{1, 0.1, 0, 0}, []float32{1, 1, 0, 0}
	said := func(text string, v []float32) memory.Added {
		r := raw(user("ada"), "s1", text)
		r.Vector = v
		return b.addOne(r)
	}
	said("I like the red bicycle", near)
	said("I like the red car", near)
	blue := said("the blue bicycle is mine", far)
	said("and nothing else", near)
	ask := func(text string, weight float32) []string {
		t.Helper()
		q := memory.Query{Scope: user("ada"), Text: text, Vector: unit(0), TopK: 2, LexicalWeight: weight}
		got := b.search(b.m, q)
		again := b.search(b.m, q) // ahead of the database's answer
		if diff := cmp.Diff(got, again); diff != "" || got.Fused != (weight > 0) {
			t.Errorf("fused is %t; the second answer differs: %s", got.Fused, diff)
		}
		for _, h := range got.Hits {
			if m := b.get(user("ada"), h.Memory.ID).Vector; math.Abs(float64(h.Score)-cosine(unit(0), m)) > 1e-6 {
				t.Errorf("%q has the score %g", h.Memory.Text, h.Score)
			}
		}
		return texts(got.Hits)
	}
	if got := ask("Blue BICYCLES? bicycle", 0); slices.Contains(got, "the blue bicycle is mine") {
		t.Errorf("without words: %q", got)
	}
	if got := ask("Blue bicycle?", 0.5); !slices.Contains(got, "the blue bicycle is mine") || !slices.Contains(got, "I like the red bicycle") {
		t.Errorf("with words: %q", got)
	}
	if got := ask("Blue bicycle?", 1); !slices.Equal(got, []string{"the blue bicycle is mine", "I like the red bicycle"}) {
		t.Errorf("by words alone: %q", got)
	}
	// A word that another text has by now, and this one not any more.
	b.update(user("ada"), blue.ID, memory.Change{Expected: 1, Text: new("the green one is mine"), Vector: &far})
	if got := ask("blue", 1); slices.Contains(got, "the green one is mine") {
		t.Errorf("by a word that was replaced: %q", got)
	}
	if got := ask("green", 1); got[0] != "the green one is mine" {
		t.Errorf("by a word that came: %q", got)
	}
	said("another green thing", far)
	b.delete(user("ada"), blue.ID, false)
	if got := ask("green", 1); got[0] != "another green thing" || slices.Contains(got, "the green one is mine") {
		t.Errorf("after a row came and one went: %q", got)
	}
	q := memory.Query{Scope: user("ada"), Text: "green", Vector: unit(0), TopK: 5, LexicalWeight: 1, MinScore: new(float32(0.9))}
	if got := texts(b.search(b.m, q).Hits); slices.Contains(got, "another green thing") {
		t.Errorf("below the least score: %q", got)
	}
}

// Nobody's words are in memory after they were forgotten.
func TestService_Search_fusedForgets(t *testing.T) {
	b := setup(t)
	of := func(who, text string) memory.Row {
		r := raw(shared(), "", text)
		r.Contributor = &memory.Contributor{UserID: who, SessionID: "s"}
		return r
	}
	b.add(of("ada", "a secret word"), of("bob", "a word"))
	q := memory.Query{Scope: shared(), Text: "secret", Vector: unit(0)}
	b.search(b.m, q)
	_, wordless := b.m.Resident()
	q.LexicalWeight = 0.5
	b.search(b.m, q)
	ref := provenance.RefOf(b.keys(), shared())
	rows, words, wiped := b.m.Worded(b.tenant.No, ref)
	if rows != 2 || words != 3 || wiped() {
		t.Fatalf("%d rows have words, %d of them", rows, words)
	}
	_, before := b.m.Resident()
	if before <= wordless {
		t.Error("words take no memory")
	}
	b.ForgetUser(b.srv, b.tenant, "app", "ada")
	if got := texts(b.search(b.m, q).Hits); !cmp.Equal(got, []string{"a word"}) {
		t.Errorf("%q", got)
	}
	if rows, words, _ = b.m.Worded(b.tenant.No, ref); rows != 1 || words != 2 {
		t.Errorf("%d rows have words, %d of them", rows, words)
	}
	if _, after := b.m.Resident(); after >= before {
		t.Errorf("%d bytes are booked, before it were %d", after, before)
	}
	_, _, wiped = b.m.Worded(b.tenant.No, ref)
	b.ForgetUser(b.srv, b.tenant, "app", "bob")
	b.search(b.m, q)
	if !wiped() {
		t.Error("words of somebody who was forgotten are in memory")
	}
}

// Where words are not in memory the order is that of vectors, and the answer says so.
func TestService_Search_fusedTooLarge(t *testing.T) {
	b := setup(t)
	m := b.coded()
	b.add(raw(user("ada"), "s1", "one"), raw(user("ada"), "s1", "two"), impersonal("three"))
	for _, include := range []bool{false, true} {
		q := memory.Query{Scope: user("ada"), Vector: unit(0), TopK: 2, IncludeShared: include}
		b.search(m, q)
		want := b.search(m, q)
		q.Text, q.LexicalWeight = "two three", 0.5
		if diff := cmp.Diff(want, b.search(m, q)); diff != "" {
			t.Error(diff)
		}
	}
	q := memory.Query{Scope: user("ada"), Text: "x", Vector: unit(0), TopK: 1}
	for _, bad := range []float32{-0.1, 1.1, float32(math.NaN())} {
		q.LexicalWeight = bad
		_, err := b.m.Search(t.Context(), b.tenant, q)
		wantErr(t, err, memd.ErrInvalid)
	}
	q.Text, q.LexicalWeight = "", 0.5
	_, err := b.m.Search(t.Context(), b.tenant, q)
	wantErr(t, err, memd.ErrInvalid)
}

func impersonal(text string) memory.Row {
	r := raw(shared(), "", text)
	r.Impersonal = true
	return r
}
