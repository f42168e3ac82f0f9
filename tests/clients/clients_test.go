// Package clients tries the clients in other languages against a service as it is run,
// counterfoil serve in a process of its own, behind a proxy that loses every second
// answer. Each client runs the same promises in a program of its own language, beside
// it in clients/.
package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/client"
	"github.com/counterfoil/counterfoil/simulator"
	"github.com/counterfoil/counterfoil/tests/clients/stand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// promised says that whoever runs the tests has what the client of a language needs, so
// that it must not be left out: COUNTERFOIL_CLIENTS lists them, python and node.
func promised(language string) bool {
	return slices.Contains(strings.Split(os.Getenv("COUNTERFOIL_CLIENTS"), ","), language)
}

// needs finds a program, or leaves the test out with a line that cannot be overlooked.
func needs(t *testing.T, language, program, how string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	switch {
	case err == nil:
		return path
	case promised(language):
		t.Fatalf("%s is missing: %s", program, how)
	}
	t.Skipf("!!!! THE CLIENT FOR %s DID NOT RUN: %s is missing: %s !!!!", language, program, how)
	return ""
}

// service is counterfoil serve with simulated providers, and two proxies before it.
type service struct {
	sim               *simulator.Simulator
	lossy, noStreams  *stand.Proxy
	direct            *client.Client
	address, key, dir string
}

func serve(t *testing.T) *service {
	t.Helper()
	s := &service{dir: t.TempDir()}
	binary := filepath.Join(s.dir, "counterfoil")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/counterfoil/counterfoil/cmd/counterfoil").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var providers string
	var err error
	if s.sim, providers, err = stand.Provide(300 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.sim.Close)
	contracts := filepath.Join(s.dir, "contracts")
	if err := os.Mkdir(contracts, 0o700); err != nil {
		t.Fatal(err)
	}
	files, err := stand.Contracts()
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range files {
		if err := os.WriteFile(filepath.Join(contracts, name), file.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	arguments := []string{
		"serve", "--data", filepath.Join(s.dir, "data"), "--listen", "127.0.0.1:0", "--admin-listen", "", "--disk-reserve", "0",
		"--sync", "interval", "--allow-http", "--contracts", contracts,
	}
	for account, path := range map[string]string{"example": "/example", "example-ask": "/ask", "example-ask/lost": "/lost"} {
		arguments = append(arguments, "--base-url", account+"="+providers+path, "--credential", account+"=env:PROVIDER_TOKEN")
	}
	cmd := exec.Command(binary, arguments...)
	cmd.Env = append(os.Environ(), "PROVIDER_TOKEN="+stand.Token)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rest := make(chan struct{})
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-rest
		if err := cmd.Wait(); err != nil {
			t.Errorf("serve: %v\n%s", err, &log)
		}
	})
	key, listening := regexp.MustCompile(`cf_[A-Za-z0-9_.-]+`), regexp.MustCompile(`127\.0\.0\.1:\d+`)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		s.key += key.FindString(lines.Text())
		if strings.Contains(lines.Text(), "ready") {
			s.address = "http://" + listening.FindString(lines.Text())
			break
		}
	}
	go func() {
		defer close(rest)
		_, _ = io.Copy(io.Discard, out) // ends with the process
	}()
	if s.key == "" || s.address == "" {
		t.Fatalf("serve said neither key nor address")
	}
	proxy := func(f stand.Faults) *stand.Proxy {
		p, err := stand.NewProxy(s.address, f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	s.lossy, s.noStreams = proxy(stand.Faults{Lose: true, CutAfter: 2, LoseFirst: true}), proxy(stand.Faults{NoStreams: true})
	if s.direct, err = client.New(s.address, s.key, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// keepsPromises runs a client's own tests, and holds what they say they submitted
// against what the service and the providers have.
func (s *service) keepsPromises(t *testing.T, dir, program string, arguments ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, arguments...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "COUNTERFOIL_SERVER="+s.lossy.URL, "COUNTERFOIL_NO_STREAMS="+s.noStreams.URL, "COUNTERFOIL_KEY="+s.key)
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, &words, &out)
	}
	t.Logf("%s%s", &words, &out)
	var said struct{ Submitted, Told []string }
	if err := json.Unmarshal(out.Bytes(), &said); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	var there []string
	for op, err := range s.direct.Operations(t.Context(), client.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		there = append(there, op.ID)
	}
	slices.Sort(there)
	slices.Sort(said.Submitted)
	if !slices.Equal(there, said.Submitted) || len(there) < 8 {
		t.Errorf("the service has %d operations, the client submitted %d:\n%v\n%v", len(there), len(said.Submitted), there, said.Submitted)
	}
	if d := s.sim.Duplicates(); len(d) > 0 {
		t.Errorf("more than one job for: %v", d)
	}
	if first := s.lossy.LostFirst(); len(first) != 1 || len(said.Told) == 0 || said.Told[0] != first[0] {
		t.Errorf("a feed was cut before its first event, %q, and was told %q", first, said.Told)
	}
	lost, resumed := 0, 0
	for _, a := range s.lossy.Requests() {
		if a.Lost {
			lost++
		}
		if a.LastEvent != "" {
			resumed++
		}
	}
	if lost < 10 || resumed == 0 {
		t.Errorf("%d answers were lost, %d streams resumed", lost, resumed)
	}
}

func TestPython(t *testing.T) {
	python := needs(t, "python", "python3", "install Python 3.10 or later, apt-get install python3")
	serve(t).keepsPromises(t, "../../clients/python", python, "-B", "-W", "error", "test_counterfoil.py")
}

// The TypeScript client is checked by tsc and run in node as tsc compiles it. Both are
// at the versions of clients/typescript/package-lock.json, from the npm registry; where
// that does not answer a line says that nothing was run.
func TestTypeScript(t *testing.T) {
	if !promised("node") {
		t.Skip("it asks the npm registry: make clients runs it")
	}
	const how = "install Node.js 20 or later, https://nodejs.org"
	node := needs(t, "node", "node", how)
	npm := needs(t, "node", "npm", "it comes with Node.js, or apt-get install npm")
	dir := t.TempDir()
	const from = "../../clients/typescript"
	for _, name := range []string{"counterfoil.ts", "test.ts", "package.json", "package-lock.json", "tsconfig.json"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(limit time.Duration, program string, arguments ...string) (string, error) {
		ctx, stop := context.WithTimeout(t.Context(), limit)
		defer stop()
		cmd := exec.CommandContext(ctx, program, arguments...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	version, err := run(10*time.Second, node, "--version")
	if major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), "."); err != nil || len(major) < 2 || major < "20" {
		t.Fatalf("node is %s: %s", strings.TrimSpace(version), how)
	}
	if out, err := run(15*time.Second, npm, "ping", "--fetch-retries=0", "--fetch-timeout=10000"); err != nil {
		t.Skipf("!!!! THE TYPESCRIPT CLIENT DID NOT RUN: the npm registry does not answer: %v !!!!\n%s", err, out)
	}
	if out, err := run(time.Minute, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	if out, err := run(time.Minute, node, "node_modules/typescript/bin/tsc", "-p", ".", "--outDir", "out"); err != nil {
		t.Fatalf("tsc: %v\n%s", err, out)
	}
	serve(t).keepsPromises(t, dir, node, "out/test.js")
}
