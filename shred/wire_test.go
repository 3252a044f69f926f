package shred_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd/internal/pg"
)

// wire stands between a pool and PostgreSQL and cuts every connection at the
// k-th statement, as when the process or the network dies there: before the
// server saw the statement, or after it did and before its answer came back.
type wire struct {
	t        *testing.T
	listener net.Listener
	network  string
	address  string
	work     sync.WaitGroup

	mu         sync.Mutex
	statements int
	cutAt      int // 0: never
	answerLost bool
	conns      map[net.Conn]struct{}
}

// openThroughWire opens a pool as the worker, through a wire.
func (w *world) openThroughWire() (*pg.Pool, *wire) {
	w.t.Helper()
	c, err := pgx.ParseConfig(w.db.URL("memd_worker"))
	if err != nil {
		w.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	x := &wire{t: w.t, listener: l, network: "tcp", address: net.JoinHostPort(c.Host, fmt.Sprint(c.Port)), conns: make(map[net.Conn]struct{})}
	if strings.HasPrefix(c.Host, "/") {
		x.network, x.address = "unix", fmt.Sprintf("%s/.s.PGSQL.%d", c.Host, c.Port)
	}
	x.work.Go(x.accept)
	w.t.Cleanup(func() {
		_ = l.Close() // ends accept
		x.cutAll()
		x.work.Wait()
	})
	port := l.Addr().(*net.TCPAddr).Port
	pool := w.db.Open(pg.Config{URL: fmt.Sprintf(
		"host=127.0.0.1 port=%d user=%s password='%s' dbname=%s sslmode=disable", port, c.User, c.Password, c.Database)})
	return pool, x
}

// arm starts counting again. k = 0 never cuts.
func (x *wire) arm(k int, answerLost bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.statements, x.cutAt, x.answerLost = 0, k, answerLost
}

// reached returns the number of statements since arm.
func (x *wire) reached() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.statements
}

func (x *wire) accept() {
	for {
		client, err := x.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(x.network, x.address)
		if err != nil {
			_ = client.Close() // The client sees a server that is gone.
			continue
		}
		x.mu.Lock()
		x.conns[client], x.conns[server] = struct{}{}, struct{}{}
		x.mu.Unlock()
		x.work.Go(func() { x.forward(client, server) })
		x.work.Go(func() {
			_, _ = io.Copy(client, server) // Ends when either side does.
			x.drop(client, server)
		})
	}
}

func (x *wire) drop(conns ...net.Conn) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // Whatever was in flight is lost, as intended.
		delete(x.conns, c)
	}
}

func (x *wire) cutAll() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for c := range x.conns {
		_ = c.Close() // Whatever was in flight is lost, as intended.
	}
}

// forward copies the client's messages and counts those that execute something.
func (x *wire) forward(client, server net.Conn) {
	defer x.drop(client, server)
	header := make([]byte, 5)
	for first := true; ; first = false {
		head := header
		if first {
			head = header[:4] // The startup message has no type.
		}
		if _, err := io.ReadFull(client, head); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
		message := make([]byte, len(head)+size)
		copy(message, head)
		if _, err := io.ReadFull(client, message[len(head):]); err != nil {
			return
		}
		cut, lost := false, false
		if kind := message[0]; !first && (kind == 'E' || kind == 'Q') {
			x.mu.Lock()
			x.statements++
			cut = x.cutAt > 0 && x.statements >= x.cutAt
			lost = x.answerLost
			x.mu.Unlock()
		}
		if cut && !lost {
			x.cutAll()
			return
		}
		if cut {
			// The answer must not arrive; that the statement ran is what the server
			// says by closing, after Sync and Terminate.
			_ = client.Close()
			message = append(message, 'S', 0, 0, 0, 4, 'X', 0, 0, 0, 4)
			_, _ = server.Write(message) // A server that is gone did not run it.
			_, _ = io.Copy(io.Discard, server)
			return
		}
		if _, err := server.Write(message); err != nil {
			return
		}
	}
}
