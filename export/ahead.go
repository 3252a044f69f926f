package export

import (
	"errors"
	"hash"
	"io"
	"sync"
)

// ahead lets whoever reads and opens rows run ahead of whoever seals and stores:
// it takes what is written and has it written by a goroutine of its own, a few
// buffers behind.
type ahead struct {
	full, empty chan []byte
	buffer      []byte
	done        chan struct{}
	mu          sync.Mutex
	err         error
}

const (
	aheadBytes   = 256 << 10
	aheadBuffers = 4
)

func newAhead(w io.Writer) *ahead {
	a := &ahead{full: make(chan []byte, aheadBuffers), empty: make(chan []byte, aheadBuffers+1), done: make(chan struct{})}
	for range aheadBuffers {
		a.empty <- make([]byte, 0, aheadBytes)
	}
	a.buffer = <-a.empty
	go func() {
		defer close(a.done)
		for b := range a.full {
			if a.failed() == nil {
				if _, err := w.Write(b); err != nil {
					a.mu.Lock()
					a.err = err
					a.mu.Unlock()
				}
			}
			a.empty <- b[:0]
		}
	}()
	return a
}

func (a *ahead) failed() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Write implements io.Writer. The error may be that of an earlier Write.
func (a *ahead) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if len(a.buffer) == cap(a.buffer) {
			if err := a.flush(); err != nil {
				return n - len(p), err
			}
		}
		free := min(len(p), cap(a.buffer)-len(a.buffer))
		a.buffer, p = append(a.buffer, p[:free]...), p[free:]
	}
	return n, nil
}

func (a *ahead) flush() error {
	a.full <- a.buffer
	a.buffer = <-a.empty
	return a.failed()
}

// Close waits until everything is written. It does not close what is written to.
func (a *ahead) Close() error {
	if a.full == nil {
		return errors.New("closed twice")
	}
	a.full <- a.buffer
	close(a.full)
	<-a.done
	a.full = nil
	return a.err
}

// summed counts and sums what goes through it.
type summed struct {
	w   io.Writer
	sum hash.Hash
	n   int64
}

// Write implements io.Writer.
func (s *summed) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.sum.Write(p[:n])
	s.n += int64(n)
	return n, err
}
