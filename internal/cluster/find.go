//go:build unix

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// minMajor is the oldest PostgreSQL that memd runs on.
const minMajor = 15

// Programs is one installation of PostgreSQL.
type Programs struct {
	Dir     string // the folder of initdb and postgres
	Version string // such as "15.18"
	Major   int
	Vector  bool // pgvector is installed for it
}

// searchGlobs are the places that distributions, Homebrew and a source build
// use. scripts/setup.sh searches the same.
var searchGlobs = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu, PGDG
	"/usr/pgsql-*/bin",          // PGDG on Fedora and its kin
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/usr/local/pgsql/bin",
}

// Find returns the newest PostgreSQL from 15 on that has server programs,
// one with pgvector before one without. A folder that is named, by the
// argument or by MEMD_PG_BIN, is used or refused, never passed over.
func Find(binDir string) (Programs, error) {
	if binDir == "" {
		binDir = os.Getenv("MEMD_PG_BIN")
	}
	if binDir != "" {
		p, err := inspect(binDir)
		if err != nil {
			return Programs{}, fmt.Errorf("%s holds no usable PostgreSQL: %w", binDir, err)
		}
		return p, nil
	}
	var best Programs
	for _, dir := range candidates() {
		p, err := inspect(dir)
		if err != nil {
			continue
		}
		if best.Dir == "" || p.Vector && !best.Vector || p.Vector == best.Vector && p.Major > best.Major {
			best = p
		}
	}
	if best.Dir == "" {
		return Programs{}, fmt.Errorf("no PostgreSQL %d or newer with server programs is installed: run scripts/setup.sh, or set MEMD_PG_BIN", minMajor)
	}
	return best, nil
}

func candidates() []string {
	var dirs []string
	for _, g := range searchGlobs {
		found, _ := filepath.Glob(g) // The patterns are well-formed.
		dirs = append(dirs, found...)
	}
	if path, err := exec.LookPath("pg_config"); err == nil {
		if out, err := run(path, "--bindir"); err == nil {
			dirs = append(dirs, out)
		}
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	return dirs
}

func inspect(dir string) (Programs, error) {
	if _, err := exec.LookPath(filepath.Join(dir, "initdb")); err != nil {
		return Programs{}, err
	}
	out, err := run(filepath.Join(dir, "postgres"), "--version") // "postgres (PostgreSQL) 15.18 (…)"
	if err != nil {
		return Programs{}, err
	}
	fields := strings.Fields(out)
	if len(fields) < 3 {
		return Programs{}, fmt.Errorf("version %q is not understood", out)
	}
	p := Programs{Dir: dir, Version: fields[2]}
	digits := strings.FieldsFunc(p.Version, func(r rune) bool { return r < '0' || r > '9' })
	if len(digits) > 0 {
		p.Major, _ = strconv.Atoi(digits[0])
	}
	if p.Major < minMajor {
		return Programs{}, fmt.Errorf("it is PostgreSQL %s, and %d or newer is needed", p.Version, minMajor)
	}
	if share, err := run(filepath.Join(dir, "pg_config"), "--sharedir"); err == nil {
		_, err := os.Stat(filepath.Join(share, "extension", "vector.control"))
		p.Vector = err == nil
	}
	return p, nil
}

func run(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).Output()
	return strings.TrimSpace(string(out)), err
}
