package shred_test

import (
	"errors"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

func content(t testing.TB, k *shred.Keys, m memd.Month, c memd.Contribution) *shred.Sealer {
	t.Helper()
	s, err := k.Content(m, c.Subject, c.Session)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func state(t testing.TB, k *shred.Keys, cs ...memd.Contribution) *shred.Sealer {
	t.Helper()
	s, err := k.State(cs...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestKeys_ContentIsBoundToMonthSessionAndPurpose(t *testing.T) {
	k := keysOf(t, newTree(t))
	a, b, other := contribution(t, 1, 2), contribution(t, 1, 3), contribution(t, 2, 2)
	own := content(t, k, 5, a)
	if !opens(t, own, content(t, k, 5, a)) {
		t.Error("the same content has another key")
	}
	for name, to := range map[string]*shred.Sealer{
		"another month": content(t, k, 6, a), "another session": content(t, k, 5, b), "another subject": content(t, k, 5, other),
		"state": state(t, k, a), "a memory of the same session and month": row(t, k, 5, a),
	} {
		if opens(t, own, to) {
			t.Errorf("%s has the same key", name)
		}
	}
	if _, err := k.Content(0, a.Subject, a.Session); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("no month: %v", err)
	}
	if _, err := k.State(); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("nobody's state: %v", err)
	}
}

func TestKeys_StateNeedsEveryContributor(t *testing.T) {
	a, b := contribution(t, 1, 1), contribution(t, 2, 1)
	k := keysOf(t, newTree(t))
	if !opens(t, state(t, k, a, b), state(t, k, b, a, b)) {
		t.Error("order or repetition made another key")
	}
	if opens(t, state(t, k, a, b), state(t, k, a)) {
		t.Error("a contributor plays no part")
	}
	without := keysOf(t, next(t, newTree(t), shred.SessionPath(b.Subject, memd.ClassContent, b.Session)))
	if _, err := without.State(a, b); !errors.Is(err, memd.ErrShredded) {
		t.Errorf("after b was erased: %v", err)
	}
	if !opens(t, state(t, k, a), state(t, without, a)) {
		t.Error("erasing b changed what is a's alone")
	}
}

// Deleting a session's content leaves what memory took from it.
func TestKeys_ContentGoesWithItsClass(t *testing.T) {
	c := contribution(t, 1, 2)
	before := keysOf(t, newTree(t))
	after := keysOf(t, next(t, newTree(t), shred.SessionPath(c.Subject, memd.ClassContent, c.Session)))
	if _, err := after.Content(5, c.Subject, c.Session); !errors.Is(err, memd.ErrShredded) {
		t.Errorf("content after its puncture: %v", err)
	}
	if !opens(t, row(t, before, 5, c), row(t, after, 5, c)) {
		t.Error("the memories went with the content")
	}
	expired := keysOf(t, next(t, newTree(t), shred.MonthPath(memd.ClassContent, 5)))
	if _, err := expired.Content(5, c.Subject, c.Session); !errors.Is(err, memd.ErrShredded) || !errors.Is(err, memd.ErrMonthExpired) {
		t.Errorf("content after its month expired: %v", err)
	}
	if !expired.Expired(memd.ClassContent, 5) || expired.Expired(memd.ClassContent, 6) || expired.Expired(memd.ClassMemory, 5) {
		t.Error("another month, or class, is said to have expired")
	}
	own := memd.Contribution{Subject: c.Subject, Session: memd.OwnScope}
	if !opens(t, content(t, before, 0, own), content(t, expired, 5, own)) {
		t.Error("what is of no conversation went with a month")
	}
	if !opens(t, content(t, before, 6, c), content(t, expired, 6, c)) {
		t.Error("another month went along")
	}
}
