// Command healthcheck asks an address on this host whether it is well: exit code
// 0 if it answers 200, 1 if not. It is for images that hold no shell.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

const (
	limit = 5 * time.Second
	use   = "use: healthcheck HOST:PORT/PATH"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, use)
		os.Exit(2)
	}
	if err := ask(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "healthcheck:", err)
		os.Exit(1)
	}
}

// ask speaks HTTP/1.0 by hand: one line is all it wants of the answer, and a
// client would be most of the program.
func ask(where string) error {
	host, path, _ := strings.Cut(where, "/")
	dialer := net.Dialer{Timeout: limit}
	conn, err := dialer.DialContext(context.Background(), "tcp", host)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the program ends here
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "GET /%s HTTP/1.0\r\nHost: %s\r\n\r\n", path, host); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if fields := strings.Fields(line); len(fields) < 2 || fields[1] != "200" {
		return fmt.Errorf("%s answered %q", where, strings.TrimSpace(line))
	}
	return nil
}
