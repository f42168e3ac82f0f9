package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// quantiles of a sample, in milliseconds.
type quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

func (q quantiles) String() string {
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms, %.1f to %.1f ms", q.P50, q.P99, q.Min, q.Max)
}

// quantilesOf sorts the sample. A quantile is the smallest value that so large a
// part of the sample does not exceed: no value is made up between two.
func quantilesOf(sample []time.Duration) quantiles {
	if len(sample) == 0 {
		return quantiles{}
	}
	slices.Sort(sample)
	at := func(part float64) float64 {
		i := int(math.Ceil(part*float64(len(sample)))) - 1
		return round(float64(sample[max(i, 0)])/float64(time.Millisecond), 3)
	}
	return quantiles{P50: at(0.5), P99: at(0.99), Min: at(0), Max: at(1)}
}

func round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}

// fsyncRate is how often a second the disk below the directory takes 4 KiB that
// are appended to a file and synced, one after the other.
func fsyncRate(dir string, long time.Duration) (perSecond float64, err error) {
	f, err := os.CreateTemp(dir, "fsync-")
	if err != nil {
		return 0, fmt.Errorf("measure the disk: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 4<<10)
	n, began := 0, time.Now()
	for time.Since(began) < long {
		if _, err := f.Write(block); err != nil {
			return 0, fmt.Errorf("measure the disk: %w", err)
		}
		if err := f.Sync(); err != nil {
			return 0, fmt.Errorf("measure the disk: %w", err)
		}
		n++
	}
	return round(float64(n)/time.Since(began).Seconds(), 0), nil
}

// allocated is what the files below a directory take on disk, in bytes, as du
// counts: whole blocks, and no holes.
func allocated(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			total += stat.Blocks * 512
		} else {
			total += info.Size()
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measure the data directory: %w", err)
	}
	return total, nil
}

// machine describes what the figures were made on. What cannot be found out is
// left out.
func machine(dir string) string {
	parts := []string{fmt.Sprintf("%d CPU", runtime.NumCPU())}
	if model := procLine("/proc/cpuinfo", "model name"); model != "" {
		parts[0] += " " + model
	}
	var kib int64
	if _, err := fmt.Sscanf(procLine("/proc/meminfo", "MemTotal"), "%d kB", &kib); err == nil {
		parts = append(parts, fmt.Sprintf("%.0f GiB", float64(kib)/(1<<20)))
	}
	if kind := fileSystem(dir); kind != "" {
		parts = append(parts, kind)
	}
	system := runtime.GOOS + "/" + runtime.GOARCH
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		system += " " + strings.TrimSpace(string(release))
	}
	return strings.Join(append(parts, system, runtime.Version()), ", ")
}

// procLine gives the value of the first line of that name in a file of /proc.
func procLine(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// fileSystem names the kind of file system that the directory is on.
func fileSystem(dir string) string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return ""
	}
	best, kind := "", ""
	for line := range strings.Lines(string(text)) {
		// 36 35 98:0 /root /mount/point options - type source options
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if dash < 5 || dash+1 >= len(fields) {
			continue
		}
		point := fields[4]
		if (point == "/" || dir == point || strings.HasPrefix(dir, point+"/")) && len(point) >= len(best) {
			best, kind = point, fields[dash+1]
		}
	}
	return kind
}

// ownTime is the processor time of this process until now, user and system.
func ownTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // there is no other error than a wrong argument
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
