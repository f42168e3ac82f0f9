package launch_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/launch"
)

// Whatever the zone of the process, the log has one.
func TestLogIsInUTC(t *testing.T) {
	var b bytes.Buffer
	log, err := launch.Log(&b, "info")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.FixedZone("far", 13*3600+45*60))
	r := slog.NewRecord(at, slog.LevelInfo, "said", 0)
	r.AddAttrs(slog.Time("since", at), slog.Any("any", at), slog.Group("in", slog.Time("it", at)))
	if err := log.Handler().Handle(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), `"2030-01-01T13:19:05Z"`); n != 4 || strings.Contains(b.String(), "+13") {
		t.Errorf("%d of 4: %s", n, b.String())
	}
}
