package kmstest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

func testCreateKey(t *testing.T, h Harness) {
	id := newKeyID()
	key, version, err := h.Worker.CreateKey(t.Context(), id, delay)
	if err != nil {
		t.Fatalf("CreateKey: %v", err)
	}
	t.Cleanup(func() { retire(t, h, key) })
	if !strings.HasSuffix(key, "/cryptoKeys/"+id) || version != key+"/cryptoKeyVersions/1" {
		t.Errorf("CreateKey = %q, %q, want the full names of the key and of its version 1", key, version)
	}
	got, err := h.Worker.Get(t.Context(), version)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	if got.Name != version || got.State != shred.VersionEnabled || got.CreatedAt.IsZero() || !got.DestroyAt.IsZero() || !got.DestroyedAt.IsZero() {
		t.Errorf("Get = %+v, want an enabled version with a time of creation and no other", got)
	}
	again, sameVersion, err := h.Worker.CreateKey(t.Context(), id, delay)
	if err != nil || again != key || sameVersion != version {
		t.Errorf("CreateKey again = %q, %q, %v, want the same key and version", again, sameVersion, err)
	}
}

func testCreateKeyRefusals(t *testing.T, h Harness) {
	id := newKeyID()
	key, _, err := h.Worker.CreateKey(t.Context(), id, delay)
	if err != nil {
		t.Fatalf("CreateKey: %v", err)
	}
	_, _, err = h.Worker.CreateKey(t.Context(), id, 2*delay)
	wantErr(t, "CreateKey with another destroy delay", err, memd.ErrExists)
	retire(t, h, key)
	_, _, err = h.Worker.CreateKey(t.Context(), id, delay)
	wantErr(t, "CreateKey of a key without an enabled version", err, memd.ErrShredded)

	for name, d := range map[string]time.Duration{
		"shorter than a day": delay - time.Second, "longer than 120 days": 120*delay + time.Second, "negative": -delay,
	} {
		_, _, err := h.Worker.CreateKey(t.Context(), newKeyID(), d)
		wantErr(t, "CreateKey with a destroy delay "+name, err, memd.ErrInvalid)
	}
}

func testPinning(t *testing.T, h Harness) {
	key, first := newKey(t, h)
	second, err := h.Worker.CreateVersion(t.Context(), key)
	if err != nil || second != key+"/cryptoKeyVersions/2" {
		t.Fatalf("CreateVersion = %q, %v, want version 2", second, err)
	}
	// Sealed in the order that would betray "the newest" and "the primary".
	underSecond, underFirst := seal(t, h, second, "two", "aad"), seal(t, h, first, "one", "aad")
	for ciphertext, want := range map[string]string{string(underFirst): "one", string(underSecond): "two"} {
		if got, err := h.App.Decrypt(t.Context(), key, []byte(ciphertext), []byte("aad")); err != nil || string(got) != want {
			t.Errorf("Decrypt = %q, %v, want %q", got, err, want)
		}
	}
	if _, err := h.Shredder.Destroy(t.Context(), first); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	wantErr(t, "Decrypt of what the destroyed version sealed", eventually(h, func() error {
		_, err := h.App.Decrypt(t.Context(), key, underFirst, []byte("aad"))
		return err
	}), memd.ErrShredded)
	if got, err := h.App.Decrypt(t.Context(), key, underSecond, []byte("aad")); err != nil || string(got) != "two" {
		t.Errorf("Decrypt under the version that remains = %q, %v", got, err)
	}
}

func testList(t *testing.T, h Harness) {
	key, first := newKey(t, h)
	want := []string{first}
	for range 10 { // ten, so that sorting by text would show
		v, err := h.Worker.CreateVersion(t.Context(), key)
		if err != nil {
			t.Fatalf("CreateVersion: %v", err)
		}
		want = append(want, v)
	}
	if _, err := h.Shredder.Destroy(t.Context(), want[3]); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	for name, kms := range map[string]shred.KMS{"worker": h.Worker, "shredder": h.Shredder} {
		versions, err := kms.List(t.Context(), key)
		if err != nil {
			t.Fatalf("List as %s: %v", name, err)
		}
		var got []string
		for i, v := range versions {
			got = append(got, v.Name)
			if wantState := map[bool]shred.VersionState{true: shred.VersionDestroyScheduled, false: shred.VersionEnabled}[i == 3]; v.State != wantState {
				t.Errorf("List as %s: %s is %v, want %v", name, v.Name, v.State, wantState)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("List as %s (-want +got):\n%s", name, diff)
		}
	}
}

func testDestroy(t *testing.T, h Harness) {
	key, version := newKey(t, h)
	sealed := seal(t, h, version, "secret", "aad")
	got, err := h.Shredder.Destroy(t.Context(), version)
	if err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	due := got.DestroyAt.Sub(h.Now())
	if got.Name != version || got.State != shred.VersionDestroyScheduled || due < delay-time.Minute || due > delay+time.Minute {
		t.Errorf("Destroy = %+v, due in %v, want scheduled in %v", got, due, delay)
	}
	seen, err := h.Shredder.Get(t.Context(), version)
	if diff := cmp.Diff(got, seen); err != nil || diff != "" {
		t.Errorf("Get after Destroy (-destroyed +got): %v\n%s", err, diff)
	}
	for what, call := range map[string]func() error{
		"Decrypt": func() error { _, err := h.App.Decrypt(t.Context(), key, sealed, []byte("aad")); return err },
		"Encrypt": func() error {
			_, err := h.Worker.Encrypt(t.Context(), version, []byte("secret"), []byte("aad"))
			return err
		},
	} {
		err := eventually(h, call)
		wantErr(t, what+" under a version scheduled for destruction", err, memd.ErrShredded)
		var refused *shred.VersionStateError
		if !errors.As(err, &refused) || refused.State != shred.VersionDestroyScheduled || refused.Version != version {
			t.Errorf("%s = %v, want a refusal that names %s and DESTROY_SCHEDULED", what, err, version)
		}
	}
}

func testDestroyTwice(t *testing.T, h Harness) {
	_, version := newKey(t, h)
	first, err := h.Shredder.Destroy(t.Context(), version)
	if err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	second, err := h.Shredder.Destroy(t.Context(), version)
	if err != nil {
		t.Fatalf("Destroy again: %v", err)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the second Destroy moved the first (-first +second):\n%s", diff)
	}
}

func testNotFound(t *testing.T, h Harness) {
	key, version := newKey(t, h)
	sealed := seal(t, h, version, "secret", "aad")
	noKey, noVersion := key+"x", key+"/cryptoKeyVersions/99"
	for what, call := range map[string]func() error{
		"Get":              func() error { _, err := h.Worker.Get(t.Context(), noVersion); return err },
		"Get without key":  func() error { _, err := h.Worker.Get(t.Context(), noKey+"/cryptoKeyVersions/1"); return err },
		"List":             func() error { _, err := h.Worker.List(t.Context(), noKey); return err },
		"CreateVersion":    func() error { _, err := h.Worker.CreateVersion(t.Context(), noKey); return err },
		"Encrypt":          func() error { _, err := h.Worker.Encrypt(t.Context(), noVersion, []byte("x"), []byte("a")); return err },
		"Decrypt":          func() error { _, err := h.App.Decrypt(t.Context(), noKey, sealed, []byte("aad")); return err },
		"Destroy":          func() error { _, err := h.Shredder.Destroy(t.Context(), noVersion); return err },
		"Shredder.Get too": func() error { _, err := h.Shredder.Get(t.Context(), noVersion); return err },
	} {
		wantErr(t, what+" of what does not exist", call(), memd.ErrNotFound)
	}
}

func testMalformed(t *testing.T, h Harness) {
	key, version := newKey(t, h)
	for what, call := range map[string]func() error{
		// A key where a version belongs means "primary", which is what must never happen.
		"Encrypt under a key":      func() error { _, err := h.Worker.Encrypt(t.Context(), key, []byte("x"), []byte("a")); return err },
		"Decrypt under a version":  func() error { _, err := h.App.Decrypt(t.Context(), version, []byte("x"), []byte("a")); return err },
		"Get of a key":             func() error { _, err := h.Worker.Get(t.Context(), key); return err },
		"List of a version":        func() error { _, err := h.Worker.List(t.Context(), version); return err },
		"CreateVersion of nothing": func() error { _, err := h.Worker.CreateVersion(t.Context(), ""); return err },
		"Destroy of a key":         func() error { _, err := h.Shredder.Destroy(t.Context(), key); return err },
		"CreateKey with a slash":   func() error { _, _, err := h.Worker.CreateKey(t.Context(), "a/b", delay); return err },
		"CreateKey without an id":  func() error { _, _, err := h.Worker.CreateKey(t.Context(), "", delay); return err },
		"Encrypt of too much": func() error {
			_, err := h.Worker.Encrypt(t.Context(), version, make([]byte, 64<<10+1), nil)
			return err
		},
		"Encrypt with too much AAD": func() error {
			_, err := h.Worker.Encrypt(t.Context(), version, nil, make([]byte, 64<<10+1))
			return err
		},
	} {
		wantErr(t, what, call(), memd.ErrInvalid)
	}
}
