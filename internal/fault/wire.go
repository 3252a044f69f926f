package fault

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// Wire stands between clients and PostgreSQL and cuts a connection where its
// fuse blows: before the server saw the statement, or after it did and before
// the answer came back. A crash cuts all connections. It serves other processes
// as well as this one.
type Wire struct {
	// URL is the connection string by which clients come through the wire.
	URL string

	fuse     *Fuse
	listener net.Listener
	network  string
	address  string
	work     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// OpenWire opens a wire to the server of a connection string. The caller closes
// it.
func OpenWire(f *Fuse, url string) (*Wire, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Wire{
		URL: fmt.Sprintf("host=127.0.0.1 port=%d user=%s password='%s' dbname=%s sslmode=disable",
			l.Addr().(*net.TCPAddr).Port, c.User, c.Password, c.Database),
		fuse: f, listener: l, network: "tcp", address: net.JoinHostPort(c.Host, fmt.Sprint(c.Port)),
		conns: map[net.Conn]struct{}{},
	}
	if strings.HasPrefix(c.Host, "/") {
		w.network, w.address = "unix", fmt.Sprintf("%s/.s.PGSQL.%d", c.Host, c.Port)
	}
	f.OnBlow(w.cutAll)
	w.work.Go(w.accept)
	return w, nil
}

// Close cuts every connection and waits for the end of the wire's goroutines.
func (w *Wire) Close() {
	_ = w.listener.Close() // Ends accept.
	w.cutAll()
	w.work.Wait()
}

func (w *Wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		if w.fuse.dead() {
			_ = client.Close() // The dead do not connect.
			continue
		}
		server, err := net.Dial(w.network, w.address)
		if err != nil {
			_ = client.Close() // The client sees a server that is gone.
			continue
		}
		p := &pair{client: client, server: server, ended: make(chan struct{})}
		w.hold(client, server)
		w.work.Go(func() { w.forward(p) })
		w.work.Go(func() { w.answer(p) })
	}
}

// pair is a connection through the wire.
type pair struct {
	client, server net.Conn
	lost           atomic.Bool   // answers go nowhere
	ended          chan struct{} // closed when the server has closed
}

// answer copies what the server says, until it closes.
func (w *Wire) answer(p *pair) {
	defer close(p.ended)
	defer w.drop(p.client, p.server)
	buffer := make([]byte, 32<<10)
	for {
		n, err := p.server.Read(buffer)
		if n > 0 && !p.lost.Load() {
			if _, err := p.client.Write(buffer[:n]); err != nil && !p.lost.Load() {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (w *Wire) hold(conns ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		w.conns[c] = struct{}{}
	}
}

func (w *Wire) drop(conns ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // Whatever was in flight is lost, as intended.
		delete(w.conns, c)
	}
}

func (w *Wire) cutAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close() // Whatever was in flight is lost, as intended.
	}
}

// spare takes connections out of reach of cutAll.
func (w *Wire) spare(conns ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		delete(w.conns, c)
	}
}

// forward copies the client's messages and meets the fuse at those that execute
// something: Execute and the simple Query.
func (w *Wire) forward(p *pair) {
	defer w.drop(p.client, p.server)
	for first := true; ; first = false {
		message, err := readMessage(p.client, first)
		if err != nil {
			return
		}
		v := goOn
		if kind := message[0]; !first && (kind == 'E' || kind == 'Q') {
			w.spare(p.client, p.server) // A crash at this statement must not cut its own way.
			v = w.fuse.meet(Statement)
			w.hold(p.client, p.server)
		}
		switch v {
		case refuse:
			return
		case loseAnswer:
			w.lose(p, message)
			return
		}
		if _, err := p.server.Write(message); err != nil {
			return
		}
	}
}

// lose has the server run the statement, with the rest of its pipeline if it
// has one, and the client not learn of it. That it ran is what the server says
// by closing, after Terminate. An Execute takes effect with the Sync that ends
// its pipeline, and that was on its way: pgx writes a pipeline in one piece.
func (w *Wire) lose(p *pair, message []byte) {
	p.lost.Store(true)
	for {
		if _, err := p.server.Write(message); err != nil {
			return
		}
		if message[0] == 'Q' || message[0] == 'S' {
			break
		}
		var err error
		if message, err = readMessage(p.client, false); err != nil {
			return
		}
	}
	if _, err := p.server.Write([]byte{'X', 0, 0, 0, 4}); err != nil {
		return // A server that is gone has ended too.
	}
	<-p.ended
}

// readMessage reads one message of the frontend; the first has no type.
func readMessage(r io.Reader, first bool) ([]byte, error) {
	head := make([]byte, 5)
	if first {
		head = head[:4]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
	if size < 0 || size > 1<<30 {
		return nil, io.ErrUnexpectedEOF
	}
	message := append(head, make([]byte, size)...)
	_, err := io.ReadFull(r, message[len(head):])
	return message, err
}
