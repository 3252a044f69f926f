package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Machine is all that is said of where a report is from.
type Machine struct {
	Cores     int    `json:"cores"`
	MemoryGiB int    `json:"memory_gib"`
	Go        string `json:"go"`
	Server    string `json:"postgresql"`
	Extension string `json:"pgvector"`
}

func (l *lab) machine(ctx context.Context) (Machine, error) {
	m := Machine{Cores: runtime.NumCPU(), MemoryGiB: int(memoryBytes() >> 30), Go: strings.TrimPrefix(runtime.Version(), "go")}
	err := l.plain.QueryRow(ctx, `SELECT split_part(current_setting('server_version'), ' ', 1), extversion FROM pg_extension WHERE extname = 'vector'`).Scan(&m.Server, &m.Extension)
	return m, err
}

// memoryBytes is how much memory the machine has, or 0 where that is not told.
func memoryBytes() (bytes int64) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kB int64
	if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &kB); err != nil {
		return 0
	}
	return kB << 10
}

// postgresql is the settings of a server that has a machine to itself: a quarter of
// the memory for buffers, for both sides, because an index of gigabytes would be
// compared without a cache.
func postgresql() map[string]string {
	settings := map[string]string{"max_wal_size": "4GB", "max_parallel_maintenance_workers": fmt.Sprint(runtime.NumCPU())}
	if m := memoryBytes(); m > 0 {
		settings["shared_buffers"] = fmt.Sprintf("%dMB", max(128, m>>20/4))
	}
	return settings
}
