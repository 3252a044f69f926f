//go:build unix

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	linkName = "elsewhere"
	// maxSocketDir keeps the path of the socket below the 103 bytes that the
	// smallest sockaddr_un takes.
	maxSocketDir = 80
	maxLogBytes  = 16 << 20
)

// account is who runs the server: nil is this process's own user.
type account struct {
	name     string
	uid, gid uint32
}

func accountFor(name string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if name == "" {
		name = os.Getenv("MEMD_PG_USER")
	}
	if name == "" {
		name = "postgres"
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root, and there is no user %s: name another one in MEMD_PG_USER", name)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("reading the user id of %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("reading the group id of %s: %w", name, err)
	}
	if uid == 0 {
		return nil, errors.New("PostgreSQL does not run as root: name another user in MEMD_PG_USER")
	}
	return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
}

// place is where a cluster's parts lie.
type place struct {
	base    string // holds data and, where its path is short, the socket
	data    string
	socket  string
	log     string
	account *account
}

// settle decides where the data lies and makes the folders around it. The
// answer is the same at every start: a link in dir tells of data elsewhere.
func settle(dir string, a *account) (place, error) {
	p := place{base: dir, log: filepath.Join(dir, "postgres.log"), account: a}
	link := filepath.Join(dir, linkName)
	elsewhere, err := os.Readlink(link)
	switch {
	case err == nil:
		p.base = elsewhere
	case a != nil && !a.reaches(dir):
		// The name is random, not derived from dir: when somebody deletes dir to
		// start anew, old data must not turn up in the new cluster.
		if p.base, err = os.MkdirTemp("/var/lib", "memd-"); err != nil {
			return place{}, fmt.Errorf("%s cannot be reached by the user %s, and making a folder elsewhere: %w", dir, a.name, err)
		}
		if err := os.Chmod(p.base, 0o711); err != nil { //nolint:gosec // The server's user passes through.
			return place{}, fmt.Errorf("making the data's folder: %w", err)
		}
		if err := os.Symlink(p.base, link); err != nil {
			return place{}, fmt.Errorf("linking the data's folder: %w", err)
		}
	}
	p.data = filepath.Join(p.base, "data")
	p.socket = filepath.Join(p.base, "socket")
	if len(p.socket) > maxSocketDir || strings.ContainsAny(p.socket, ",'\"\\\n") {
		sum := sha256.Sum256([]byte(p.data))
		p.socket = filepath.Join("/tmp", "memd-"+hex.EncodeToString(sum[:6]))
	}
	if err := p.own(p.socket); err != nil {
		return place{}, fmt.Errorf("making the socket's folder: %w", err)
	}
	return p, nil
}

// own makes dir as the server's private folder. In /tmp somebody else may have
// been first, so that what is there already must be the server's.
func (p place) own(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err == nil && p.account != nil {
		return os.Lchown(dir, int(p.account.uid), int(p.account.gid))
	}
	if err == nil || !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	want := uint32(os.Geteuid())
	if p.account != nil {
		want = p.account.uid
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || stat.Uid != want || info.Mode().Perm() != 0o700 {
		return fmt.Errorf("%s exists and is not a private folder of the server's user", dir)
	}
	return nil
}

// leave removes a socket's folder that lies outside the cluster's own.
func (p place) leave() error {
	if filepath.Dir(p.socket) == p.base {
		return nil
	}
	if err := os.Remove(p.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the socket's folder: %w", err)
	}
	return nil
}

// reaches reports whether the account may pass through dir and all above it.
func (a *account) reaches(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil {
			return false
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return false
		}
		need := os.FileMode(0o001)
		switch {
		case stat.Uid == a.uid:
			need = 0o100
		case stat.Gid == a.gid:
			need = 0o010
		}
		if info.Mode().Perm()&need == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

// initialise runs initdb, into a folder that is renamed when it is whole, so
// that an interrupted first start leaves nothing half made.
func (p place) initialise(ctx context.Context, programs Programs, noSync bool) error {
	version, err := os.ReadFile(filepath.Join(p.data, "PG_VERSION"))
	if err == nil {
		if got := strings.TrimSpace(string(version)); got != strconv.Itoa(programs.Major) {
			return fmt.Errorf("the data in %s belongs to PostgreSQL %s, and %s is installed in %s: set MEMD_PG_BIN to the programs of PostgreSQL %s",
				p.data, got, programs.Version, programs.Dir, got)
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading the data's version: %w", err)
	}
	fresh := p.data + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("removing an unfinished cluster: %w", err)
	}
	if err := p.own(fresh); err != nil {
		return fmt.Errorf("making the data's folder: %w", err)
	}
	args := []string{
		"-D", fresh, "-U", Superuser, "--encoding=UTF8", "--locale=C", "--data-checksums",
		"--auth-local=trust", "--auth-host=reject", "--no-instructions",
	}
	if noSync {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(programs.Dir, "initdb"), args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = p.base, environment(), p.account.attributes()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	if err := os.Rename(fresh, p.data); err != nil {
		return fmt.Errorf("finishing the new cluster: %w", err)
	}
	return nil
}

// environment is what the server's programs see: nothing of this process's
// settings, some of which are secrets, and none of libpq's.
func environment() []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	for _, name := range []string{"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func (a *account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true} // A Ctrl-C is for memd, which then stops the server.
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}
