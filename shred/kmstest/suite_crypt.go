package kmstest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

func testRoundTrip(t *testing.T, h Harness) {
	key, version := newKey(t, h)
	for name, plaintext := range map[string][]byte{
		"nothing": {}, "a key": bytes.Repeat([]byte{7}, 32), "as much as fits": bytes.Repeat([]byte("memd"), 16<<10),
	} {
		for _, aad := range [][]byte{nil, []byte("tenant 1 epoch 1")} {
			sealed, err := h.Worker.Encrypt(t.Context(), version, plaintext, aad)
			if err != nil {
				t.Fatalf("Encrypt of %s: %v", name, err)
			}
			if len(plaintext) > 16 && bytes.Contains(sealed, plaintext[:16]) {
				t.Errorf("Encrypt of %s left plaintext in the ciphertext", name)
			}
			for who, kms := range map[string]shred.KMS{"app": h.App, "worker": h.Worker} {
				got, err := kms.Decrypt(t.Context(), key, sealed, aad)
				if err != nil || !bytes.Equal(got, plaintext) {
					t.Errorf("Decrypt of %s as %s: %v, equal %v", name, who, err, bytes.Equal(got, plaintext))
				}
			}
		}
	}
	if bytes.Equal(seal(t, h, version, "same", "aad"), seal(t, h, version, "same", "aad")) {
		t.Error("sealing the same twice gave the same ciphertext")
	}
}

func testTampering(t *testing.T, h Harness) {
	key, version := newKey(t, h)
	sealed := seal(t, h, version, "secret", "tenant 1 epoch 1")
	for what, aad := range map[string]string{"another epoch": "tenant 1 epoch 2", "another tenant": "tenant 2 epoch 1", "none": ""} {
		_, err := h.App.Decrypt(t.Context(), key, sealed, []byte(aad))
		wantErr(t, "Decrypt with associated data of "+what, err, memd.ErrCorrupt)
	}
	changed := bytes.Clone(sealed)
	changed[len(changed)-1] ^= 1
	for what, ciphertext := range map[string][]byte{
		"changed": changed, "cut short": sealed[:len(sealed)-1], "nothing": {}, "not a": []byte("not a ciphertext of any key service"),
	} {
		_, err := h.App.Decrypt(t.Context(), key, ciphertext, []byte("tenant 1 epoch 1"))
		wantErr(t, "Decrypt of "+what+" ciphertext", err, memd.ErrCorrupt)
	}
}

func testWrongTenant(t *testing.T, h Harness) {
	_, version := newKey(t, h)
	otherKey, _ := newKey(t, h)
	_, err := h.App.Decrypt(t.Context(), otherKey, seal(t, h, version, "secret", "aad"), []byte("aad"))
	wantErr(t, "Decrypt with another tenant's key", err, memd.ErrCorrupt)
}

func testPermissions(t *testing.T, h Harness) {
	key, version := newKey(t, h)
	sealed := seal(t, h, version, "secret", "aad")
	calls := map[string]func(shred.KMS) error{
		"CreateKey":     func(k shred.KMS) error { _, _, err := k.CreateKey(t.Context(), newKeyID(), delay); return err },
		"CreateVersion": func(k shred.KMS) error { _, err := k.CreateVersion(t.Context(), key); return err },
		"Encrypt": func(k shred.KMS) error {
			_, err := k.Encrypt(t.Context(), version, []byte("x"), []byte("a"))
			return err
		},
		"Decrypt": func(k shred.KMS) error { _, err := k.Decrypt(t.Context(), key, sealed, []byte("aad")); return err },
		"Get":     func(k shred.KMS) error { _, err := k.Get(t.Context(), version); return err },
		"List":    func(k shred.KMS) error { _, err := k.List(t.Context(), key); return err },
		"Destroy": func(k shred.KMS) error { _, err := k.Destroy(t.Context(), version); return err },
	}
	for who, denied := range map[string]struct {
		kms     shred.KMS
		methods []string
	}{
		"app":      {h.App, []string{"CreateKey", "CreateVersion", "Encrypt", "Get", "List", "Destroy"}},
		"worker":   {h.Worker, []string{"Destroy"}},
		"shredder": {h.Shredder, []string{"CreateKey", "CreateVersion", "Encrypt", "Decrypt"}},
	} {
		for _, method := range denied.methods {
			wantErr(t, method+" as "+who, calls[method](denied.kms), memd.ErrPermissionDenied)
		}
	}
	// The control: what was refused above was refused for who asked.
	if got, err := h.App.Decrypt(t.Context(), key, sealed, []byte("aad")); err != nil || string(got) != "secret" {
		t.Errorf("Decrypt after the refusals = %q, %v", got, err)
	}
	if v, err := h.Worker.Get(t.Context(), version); err != nil || v.State != shred.VersionEnabled {
		t.Errorf("Get after the refusals = %+v, %v, want it enabled", v, err)
	}
}

func testCanceled(t *testing.T, h Harness) {
	_, version := newKey(t, h)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.Worker.Encrypt(ctx, version, []byte("x"), []byte("a"))
	wantErr(t, "Encrypt for a caller who has gone", err, memd.ErrKeyUnavailable)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Encrypt for a caller who has gone = %v, want context.Canceled too", err)
	}
}

func testErrorsWithoutContent(t *testing.T, h Harness) {
	key, version := newKey(t, h)
	const content, aad = "canary-plaintext-7391", "canary-aad-7391"
	sealed := seal(t, h, version, content, aad)
	if _, err := h.Shredder.Destroy(t.Context(), version); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	_, wrongAAD := h.App.Decrypt(t.Context(), key, sealed, []byte(aad+"x"))
	_, destroyed := h.Worker.Encrypt(t.Context(), version, []byte(content), []byte(aad))
	_, denied := h.App.Encrypt(t.Context(), version, []byte(content), []byte(aad))
	for _, err := range []error{wrongAAD, denied} {
		if err == nil {
			t.Error("no error where one was due")
		}
	}
	for _, err := range []error{wrongAAD, destroyed, denied} {
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("content in an error: %v", err)
		}
	}
}
