package purge_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd/eraser"
	"forgettable.dev/memd/purge"
)

// TestWebhook_IsWhatReceiversExpect reads a webhook as somebody would who has
// the page about Standard Webhooks before them and nothing of memd's.
func TestWebhook_IsWhatReceiversExpect(t *testing.T) {
	b := setup(t)
	type got struct{ id, stamp, body string }
	var mu sync.Mutex
	var all []got
	var verifier *eraser.Verifier
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, got{r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), string(body)})
		if _, err := verifier.Verify(r.Header, body, b.clock.Now()); err != nil || r.Method != "POST" || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Authorization") != "" {
			t.Errorf("%s %v: %v", r.Method, r.Header, err)
		}
		b.clock.Add(2 * time.Second) // The next try has another time.
		w.WriteHeader(http.StatusBadGateway)
	}))
	target, secret := b.make(purge.New{Name: "hook", Kind: purge.KindWebhook, URL: srv.URL + "/in", AllowPrivate: true})
	verifier, _ = eraser.NewVerifier(secret)
	r := request()
	first := b.clock.Now()
	a, err := b.caller.Erase(t.Context(), target, r)
	b.refused(a, err, purge.CodeFailed, true)
	if len(all) != 3 || all[0].id != all[1].id || all[0].body != all[2].body || all[0].stamp == all[1].stamp {
		t.Errorf("tries: %q", all)
	}
	var body map[string]any
	if err := json.Unmarshal([]byte(all[0].body), &body); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"type": "memd.erasure.erase", "timestamp": first.Format(time.RFC3339Nano),
		"data": map[string]any{"request_id": r.ID.String(), "mode": "user", "tenant": "acme", "app": chat, "user_id": alice, "round": 1.0},
	}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Error(diff)
	}
	r.Round = 2
	_, _ = b.caller.Erase(t.Context(), target, r)
	if all[3].id == all[0].id {
		t.Error("the second round has the id of the first")
	}
}

func TestWebhook_ReadsAnswersStrictly(t *testing.T) {
	b := setup(t)
	var contentType, body string
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}))
	target, _ := b.make(purge.New{Name: "hook", Kind: purge.KindWebhook, URL: srv.URL, AllowPrivate: true})
	for text, want := range map[string]purge.Code{
		`{"erased": 4}`: purge.CodeOK, `{}`: purge.CodeUncounted, ``: purge.CodeUncounted, `{"erased":0,"pending":true}`: purge.CodePending,
		`{"erased": -1}`: purge.CodeMalformed, `{"erased": 1.5}`: purge.CodeMalformed, `{"erased": "4"}`: purge.CodeMalformed,
		`{"erased": 4} {"erased": 5}`: purge.CodeMalformed, `{"erased": 4, "user_id": "x"}`: purge.CodeMalformed, `[]`: purge.CodeMalformed,
		`{"remaining": 0}`: purge.CodeMalformed, `null x`: purge.CodeMalformed, `{"erased": 99999999999999999999}`: purge.CodeMalformed, "OK": purge.CodeMalformed,
	} {
		contentType, body = "application/json; charset=utf-8", text
		a, _ := b.caller.Erase(t.Context(), target, request())
		if a.Code != want || a.Acknowledged != (want == purge.CodeOK || want == purge.CodeUncounted) {
			t.Errorf("%q: %+v", text, a)
		}
		if want == purge.CodeOK && number(a.Erased) != 4 {
			t.Errorf("%q: erased %v", text, number(a.Erased))
		}
	}
	contentType, body = "text/plain", "OK"
	// Without a number a verification proves nothing, and says so.
	if a := b.must(b.caller.Verify(t.Context(), target, request())); a.Code != purge.CodeUncounted || a.After != nil {
		t.Errorf("plain text: %+v", a)
	}
	contentType, body = "application/json", `{"remaining": 2}`
	a, err := b.caller.Verify(t.Context(), target, request())
	b.refused(a, err, purge.CodeRemaining, true)
	if number(a.After) != 2 {
		t.Errorf("remaining: %s", fmt.Sprint(number(a.After)))
	}
}
