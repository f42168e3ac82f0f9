package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

// Limits of the server. A wait is at most 55 s, so writing may take longer.
const (
	headerTime = 10 * time.Second
	readTime   = 30 * time.Second
	writeTime  = 90 * time.Second
	idleTime   = 2 * time.Minute
	resultTime = 10 * time.Minute // to send one result
	storeTime  = 20 * time.Second // for what a POST stores
	openTime   = 10 * time.Second // until the service can do what it is asked for
	graceTime  = 10 * time.Second // for requests under way when the server stops
	headerSize = 32 << 10         // bytes
)

// stoppingKey finds, in a request's context, the context that ends when the
// server begins to stop.
type stoppingKey struct{}

// untilStopping gives a context that also ends when the server begins to stop:
// for those who only wait. Others have graceTime to finish what they do.
func untilStopping(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if stopping, ok := ctx.Value(stoppingKey{}).(context.Context); ok {
		forget := context.AfterFunc(stopping, cancel)
		return ctx, func() { forget(); cancel() }
	}
	return ctx, cancel
}

// Serve answers requests on the listener until ctx ends, then finishes those
// under way. It closes the listener. That ctx ended is not an error. refused is told
// the code of what is refused before the handler hears of it; nil tells nobody.
func Serve(ctx context.Context, listener net.Listener, h http.Handler, log *slog.Logger, refused func(ingest.Code)) error {
	base, cut := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), stoppingKey{}, ctx))
	defer cut()
	server := &http.Server{
		Handler: serving(h), ConnContext: connContext, ConnState: connState, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: headerSize, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return base },
	}
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(refusingListener{listener, refused}); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-running.Done()
		limit, stop := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
		defer stop()
		if err := server.Shutdown(limit); err != nil {
			cut()
			return errors.Join(fmt.Errorf("stop serving on %s: requests were still under way after %s", listener.Addr(), graceTime), server.Close())
		}
		return nil
	})
	return group.Wait()
}
