package purge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/eraser"
	"forgettable.dev/memd/purge"
)

// both runs a test for a target of each kind that is called over the network:
// serve returns the target of a store.
func both(t *testing.T, test func(t *testing.T, b *bundle, target func(h http.Handler) purge.Target, kind purge.Kind)) {
	for _, kind := range []purge.Kind{purge.KindConnect, purge.KindWebhook} {
		t.Run(kind.String(), func(t *testing.T) {
			b := setup(t)
			test(t, b, func(h http.Handler) purge.Target {
				target, _ := b.make(purge.New{Name: "store", Kind: kind,
					URL: serve(t, h).URL, AllowPrivate: true, Timeout: 5 * time.Second})
				return target
			}, kind)
		})
	}
}

// target serves a store as a target of the kind.
func (b *bundle) target(kind purge.Kind, s eraser.Eraser) purge.Target {
	b.t.Helper()
	late := &handover{}
	srv := serve(b.t, late)
	target, secret := b.make(purge.New{Name: "store", Kind: kind, URL: srv.URL, AllowPrivate: true, Timeout: 5 * time.Second})
	option := eraser.WithToken(secret)
	if kind == purge.KindWebhook {
		option = eraser.WithKey(secret)
	}
	h, err := eraser.Handler(s, option, eraser.WithClock(b.clock.Now))
	if err != nil {
		b.t.Fatal(err)
	}
	late.h.Store(&h)
	return target
}

// handover serves what is known only after its address is.
type handover struct{ h atomic.Pointer[http.Handler] }

func (h *handover) ServeHTTP(w http.ResponseWriter, r *http.Request) { (*h.h.Load()).ServeHTTP(w, r) }

func TestCaller_CountsErasesAndVerifies(t *testing.T) {
	for _, kind := range []purge.Kind{purge.KindConnect, purge.KindWebhook} {
		t.Run(kind.String(), func(t *testing.T) {
			b, s := setup(t), newStore()
			target, r := b.target(kind, s), request()
			ctx := t.Context()
			if a := b.must(b.caller.Count(ctx, target, r)); number(a.Before) != 3 || a.Code != purge.CodeOK || a.Tries != 1 {
				t.Errorf("counted %+v", a)
			}
			a, err := b.caller.Verify(ctx, target, r)
			b.refused(a, err, purge.CodeRemaining, true)
			if a := b.must(b.caller.Erase(ctx, target, r)); number(a.Erased) != 3 {
				t.Errorf("erased %+v", a)
			}
			if a := b.must(b.caller.Verify(ctx, target, r)); number(a.After) != 0 {
				t.Errorf("verified %+v", a)
			}
			if s.has(alice) != 0 || s.has(bob) != 2 {
				t.Errorf("alice has %d, bob %d", s.has(alice), s.has(bob))
			}
			for _, got := range s.seen {
				if got.ID != r.ID || got.Mode != purge.ModeUser || got.App != chat || got.UserID != alice || got.Tenant != "acme" || got.SessionID != "" {
					t.Errorf("the store was asked %+v", got)
				}
			}
			want := fmt.Sprintf("[%[1]s count ok %[1]s verify remaining %[1]s erase ok %[1]s verify ok]", kind)
			if got := fmt.Sprint(b.calls); got != want {
				t.Errorf("calls %s, want %s", got, want)
			}
		})
	}
}

// The second round must reach the store again, although it remembers the first.
func TestCaller_ARepeatIsAnsweredAndASecondRoundIsCarriedOut(t *testing.T) {
	for _, kind := range []purge.Kind{purge.KindConnect, purge.KindWebhook} {
		t.Run(kind.String(), func(t *testing.T) {
			b, s := setup(t), newStore()
			target, r := b.target(kind, s), request()
			for range 3 {
				b.must(b.caller.Erase(t.Context(), target, r))
			}
			if kind == purge.KindWebhook && s.erases != 1 {
				t.Errorf("a webhook was carried out %d times", s.erases)
			}
			s.mu.Lock()
			s.things[alice] = 1 // arrived late
			s.mu.Unlock()
			r.Round = 2
			if a := b.must(b.caller.Erase(t.Context(), target, r)); number(a.Erased) != 1 || s.has(alice) != 0 {
				t.Errorf("second round: %+v, left %d", a, s.has(alice))
			}
		})
	}
}

func TestCaller_TriesAgainWhatMayPass(t *testing.T) {
	for _, kind := range []purge.Kind{purge.KindConnect, purge.KindWebhook} {
		t.Run(kind.String(), func(t *testing.T) {
			b, s := setup(t), newStore()
			target := b.target(kind, s)
			s.failing = 2
			if a := b.must(b.caller.Erase(t.Context(), target, request())); a.Tries != 3 || number(a.Erased) != 3 {
				t.Errorf("after two failures: %+v", a)
			}
			s.failing = 100
			a, err := b.caller.Erase(t.Context(), target, request())
			b.refused(a, err, purge.CodeBusy, true)
			if a.Tries != 3 {
				t.Errorf("tried %d times", a.Tries)
			}
			s.failing, s.pending = 0, true
			a, err = b.caller.Erase(t.Context(), target, request())
			b.refused(a, err, purge.CodePending, true)
		})
	}
}

// Whatever a target answers ends in a code, and never in its words.
func TestCaller_ClassifiesAnswers(t *testing.T) {
	both(t, func(t *testing.T, b *bundle, target func(http.Handler) purge.Target, kind purge.Kind) {
		tattle := func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			_, _ = w.Write(body) // Says what it was asked.
		}
		for name, c := range map[string]struct {
			h         http.HandlerFunc
			code      purge.Code
			transient bool
		}{
			"unauthorised": {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(401); tattle(w, r) }, purge.CodeUnauthorised, false},
			"forbidden":    {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(403); tattle(w, r) }, purge.CodeUnauthorised, false},
			"nothing":      {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404); tattle(w, r) }, purge.CodeUnimplemented, false},
			"teapot":       {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(418); tattle(w, r) }, purge.CodeRefused, false},
			"away":         {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503); tattle(w, r) }, purge.CodeBusy, true},
			"too many":     {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(429); tattle(w, r) }, purge.CodeBusy, true},
			"nonsense": {func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				tattle(w, r)
			}, purge.CodeMalformed, false},
			"cut off": {func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "100")
				_, _ = w.Write([]byte("{"))
				panic(http.ErrAbortHandler)
			}, purge.CodeUnreachable, true},
		} {
			t.Run(name, func(t *testing.T) {
				a, err := b.caller.Erase(t.Context(), target(c.h), request())
				if name == "cut off" && kind == purge.KindConnect && a.Code == purge.CodeMalformed {
					a.Code = purge.CodeUnreachable
				}
				b.refused(a, err, c.code, c.transient)
			})
		}
	})
}

func TestCaller_HoldsAHugeAnswerAtArmsLength(t *testing.T) {
	both(t, func(t *testing.T, b *bundle, target func(http.Handler) purge.Target, kind purge.Kind) {
		for name, declared := range map[string]bool{"declared": true, "streamed": false} {
			contentType := "application/json"
			if kind == purge.KindConnect {
				contentType = "application/proto"
			}
			var written atomic.Int64
			h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", contentType)
				if declared {
					w.Header().Set("Content-Length", fmt.Sprint(1<<30))
				}
				chunk := bytes.Repeat([]byte(" "), 64<<10)
				for range 1 << 14 {
					n, err := w.Write(chunk)
					written.Add(int64(n))
					if err != nil {
						return
					}
				}
			})
			a, err := b.caller.Count(t.Context(), target(h), request())
			b.refused(a, err, purge.CodeTooLarge, false)
			if written.Load() > 64<<20 {
				t.Errorf("%s: %d bytes were taken", name, written.Load())
			}
		}
		// Headers are bounded too.
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Much", strings.Repeat("x", 1<<20))
		})
		a, err := b.caller.Count(t.Context(), target(h), request())
		b.refused(a, err, purge.CodeUnreachable, true)
	})
}

func TestCaller_FollowsNoRedirect(t *testing.T) {
	both(t, func(t *testing.T, b *bundle, target func(http.Handler) purge.Target, _ purge.Kind) {
		var reached atomic.Bool
		elsewhere := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
		for _, status := range []int{301, 302, 303, 307, 308} {
			for _, to := range []string{elsewhere.URL, "/same-host"} {
				h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/same-host" {
						reached.Store(true)
					}
					http.Redirect(w, r, to, status)
				})
				a, err := b.caller.Erase(t.Context(), target(h), request())
				b.refused(a, err, purge.CodeRedirected, false)
			}
		}
		if reached.Load() {
			t.Error("a redirect was followed")
		}
	})
}

func TestCaller_GivesUpOnATargetThatHangs(t *testing.T) {
	both(t, func(t *testing.T, b *bundle, _ func(http.Handler) purge.Target, kind purge.Kind) {
		end := make(chan struct{})
		var once atomic.Bool
		srv := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
		defer func() {
			if once.CompareAndSwap(false, true) {
				close(end)
			}
		}()
		target, _ := b.make(purge.New{Name: "slow", Kind: kind, URL: srv.URL, AllowPrivate: true, Timeout: 100 * time.Millisecond})
		start := time.Now()
		a, err := b.caller.Erase(t.Context(), target, request())
		b.refused(a, err, purge.CodeTimeout, true)
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("three tries of 100 ms took %v", took)
		}
		if a.Tries != 3 {
			t.Errorf("tried %d times", a.Tries)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a, err = b.caller.Erase(ctx, target, request())
		if !errors.Is(err, context.Canceled) || a.Code != purge.CodeCanceled {
			t.Errorf("after the caller left: %+v, %v", a, err)
		}
	})
}

func TestCaller_HonoursRetryAfterWithinBounds(t *testing.T) {
	both(t, func(t *testing.T, b *bundle, target func(http.Handler) purge.Target, _ purge.Kind) {
		var calls atomic.Int32
		after := "0"
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			w.Header().Set("Retry-After", after)
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		tg := target(h)
		a, err := b.caller.Erase(t.Context(), tg, request())
		b.refused(a, err, purge.CodeBusy, true)
		if calls.Load() != 3 {
			t.Errorf("at once: %d calls", calls.Load())
		}
		calls.Store(0)
		after = "3600"
		a, err = b.caller.Erase(t.Context(), tg, request())
		b.refused(a, err, purge.CodeBusy, true)
		var call *purge.CallError
		if !errors.As(err, &call) || call.After != time.Hour || calls.Load() != 1 {
			t.Errorf("in an hour: %v, %d calls", err, calls.Load())
		}
	})
}

func TestCaller_NeedsTLSAndTheRightCertificate(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	srv.StartTLS()
	defer srv.Close()
	n := purge.New{Name: "tls", Kind: purge.KindWebhook, URL: srv.URL, AllowPrivate: true}

	stranger := setup(t)
	target, _ := stranger.make(n)
	a, err := stranger.caller.Erase(t.Context(), target, request())
	stranger.refused(a, err, purge.CodeTLS, false)

	friend := setup(t, withRoots(srv))
	target, _ = friend.make(n)
	if a := friend.must(friend.caller.Erase(t.Context(), target, request())); a.Code != purge.CodeUncounted {
		t.Errorf("over TLS: %+v", a)
	}
	// A server without TLS behind an https:// address.
	bare := serve(t, h)
	n.Name, n.URL = "bare", strings.Replace(bare.URL, "http://", "https://", 1)
	target, _ = friend.make(n)
	a, err = friend.caller.Erase(t.Context(), target, request())
	friend.refused(a, err, purge.CodeTLS, false)
}

// The installation may change its mind: what counts is its setting at the call.
func TestCaller_DialsNoPrivateAddressUnlessAllowed(t *testing.T) {
	var reached atomic.Bool
	srv := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	b := setup(t)
	target, _ := b.make(purge.New{Name: "inside", Kind: purge.KindWebhook, URL: srv.URL, AllowPrivate: true})
	strict := setup(t, public, func(c *purge.Config) { c.Tries = 1 })
	strict.keys = b.keys
	a, err := strict.caller.Erase(t.Context(), target, request())
	strict.refused(a, err, purge.CodeAddress, false)
	// A name that leads inside is refused when it is dialled: nothing before knows
	// where it leads. Capitals make it a name like any other.
	target.URL, target.AllowPrivate = strings.Replace(srv.URL, "http://127.0.0.1", "https://LOCALHOST", 1), false
	a, err = strict.caller.Erase(t.Context(), target, request())
	strict.refused(a, err, purge.CodeAddress, false)
	if reached.Load() {
		t.Error("it was reached")
	}
}

func TestCaller_RefusesARequestWithoutItsIDs(t *testing.T) {
	b := setup(t)
	for name, change := range map[string]func(*purge.Request){
		"no user":            func(r *purge.Request) { r.UserID = "" },
		"no app":             func(r *purge.Request) { r.App = "" },
		"a pattern":          func(r *purge.Request) { r.UserID = "*" },
		"no mode":            func(r *purge.Request) { r.Mode = 0 },
		"no session":         func(r *purge.Request) { r.Mode = purge.ModeSession },
		"a user too many":    func(r *purge.Request) { r.Mode = purge.ModeTenant },
		"no tenant":          func(r *purge.Request) { r.Tenant = "" },
		"no round":           func(r *purge.Request) { r.Round = 0 },
		"a session too many": func(r *purge.Request) { r.SessionID = talk },
	} {
		r := request()
		change(&r)
		a, err := b.caller.Erase(t.Context(), purge.Target{Tenant: tenant, Kind: purge.KindConnect}, r)
		if !errors.Is(err, memd.ErrInvalid) || a.Acknowledged {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		nobody(t, name, fmt.Sprint(err))
	}
	r := request()
	r.SessionID = talk
	nobody(t, "request", fmt.Sprintf("%v %+v %#v %s", r, r, r, r))
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "request", r)
	nobody(t, "log", log.String())
}

// A secret that was copied from another row does not open.
func TestCaller_RefusesASecretOfAnotherTarget(t *testing.T) {
	b, s := setup(t), newStore()
	target := b.target(purge.KindConnect, s)
	other, _ := b.make(purge.New{Name: "other", Kind: purge.KindConnect, URL: "https://target.example"})
	target.ID = other.ID
	a, err := b.caller.Erase(t.Context(), target, request())
	b.refused(a, err, purge.CodeSecret, false)
	b.keys.Drop()
	a, err = b.caller.Erase(t.Context(), other, request())
	if !errors.Is(err, memd.ErrStale) || a.Code != purge.CodeKey {
		t.Errorf("without keys: %+v, %v", a, err)
	}
}
