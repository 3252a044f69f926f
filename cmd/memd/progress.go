package main

import (
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// linePause is between two lines of progress where there is no terminal.
const linePause = 10 * time.Second

// progress shows how far an import is: a bar on a terminal, and elsewhere a
// plain line now and then. It is safe for concurrent use.
type progress struct {
	con   *console
	total int64 // turns; -1 when not known
	bar   *progressbar.ProgressBar

	mu   sync.Mutex
	done int64
	last time.Time
}

func newProgress(con *console, total int64) *progress {
	p := &progress{con: con, total: total, last: time.Now()}
	if isTerminal(con.Stderr) {
		p.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(con.Stderr),
			progressbar.OptionSetDescription("importing"),
			progressbar.OptionSetItsString("turns"),
			progressbar.OptionShowIts(),
			progressbar.OptionShowCount(),
			progressbar.OptionSetWidth(30),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)
	}
	return p
}

// add counts n more turns.
func (p *progress) add(n int) {
	if p.bar != nil {
		_ = p.bar.Add(n) // a bar that cannot be drawn is no reason to stop
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += int64(n)
	if time.Since(p.last) < linePause {
		return
	}
	p.last = time.Now()
	if p.total >= 0 {
		p.con.notef("%d of %d turns", p.done, p.total)
	} else {
		p.con.notef("%d turns", p.done)
	}
}

// close takes the bar away.
func (p *progress) close() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
