package eraser

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"
)

// webhook answers one POST: who signed it, then when, then what it says.
func (h *handler) webhook(w http.ResponseWriter, r *http.Request) {
	if h.verifier == nil {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	if err != nil {
		http.Error(w, "body cannot be read", http.StatusBadRequest)
		return
	}
	id, err := h.verifier.Verify(r.Header, body, h.now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	op, req, err := DecodeMessage(body)
	if err != nil || id != MessageID(op, req) {
		http.Error(w, "body is not a webhook of memd's", http.StatusBadRequest)
		return
	}
	answer, err := h.once(r.Context(), id, op, req)
	if err != nil {
		http.Error(w, "the store failed; try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // The caller is gone, or sees it.
}

// once carries an erase out unless it was carried out within the time in which
// a copy of its webhook still passes. Counting may be repeated.
func (h *handler) once(ctx context.Context, id string, op Op, r Request) (Answer, error) {
	if op != OpErase {
		return h.ask(ctx, op, r)
	}
	return h.seen.do(id, h.now, func() (Answer, error) { return h.ask(ctx, op, r) })
}

func (h *handler) ask(ctx context.Context, op Op, r Request) (Answer, error) {
	switch op {
	case OpCount:
		n, err := h.store.Count(ctx, r)
		return Answer{Count: &n}, err
	case OpErase:
		res, err := h.store.Erase(ctx, r)
		return Answer{Erased: &res.Erased, Pending: res.Pending}, err
	default:
		n, err := h.store.Verify(ctx, r)
		return Answer{Remaining: &n}, err
	}
}

// seen remembers the erases that were carried out, for as long as a copy of the
// webhook would pass: the tolerance before and after, since the sender's clock
// may be ahead by as much. A process that starts anew has forgotten them; the
// time that a copy passes is the bound then.
type seen struct {
	mu   sync.Mutex
	done map[string]*remembered
}

type remembered struct {
	mu     sync.Mutex // held while it is carried out, so that a copy waits
	done   bool
	answer Answer
	until  time.Time
}

func (s *seen) do(id string, now func() time.Time, erase func() (Answer, error)) (Answer, error) {
	s.mu.Lock()
	if s.done == nil {
		s.done = map[string]*remembered{}
	}
	for k, e := range s.done {
		if !e.until.IsZero() && now().After(e.until) {
			delete(s.done, k)
		}
	}
	e := s.done[id]
	if e == nil {
		e = &remembered{}
		s.done[id] = e
	}
	s.mu.Unlock()

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done {
		return e.answer, nil
	}
	answer, err := erase()
	if err != nil || answer.Pending {
		// It is to be tried again.
		s.mu.Lock()
		delete(s.done, id)
		s.mu.Unlock()
		return answer, err
	}
	e.done, e.answer = true, answer
	s.mu.Lock()
	e.until = now().Add(2 * Tolerance)
	s.mu.Unlock()
	return answer, nil
}
