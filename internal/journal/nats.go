package journal

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
)

const (
	// One request to the server, whatever the caller's own limit is. After it
	// a write counts as unanswered.
	answerLimit = 5 * time.Second
	// The same for a write to servers elsewhere. It is shorter than an election
	// takes, so that none ends while a write is still waited for that was sent to
	// the leader before.
	writeLimit = 3 * time.Second
	// A read that is not answered is asked again so soon: nobody answers for a
	// stream that has no leader, and whoever leads next was not asked.
	readAgain = 500 * time.Millisecond
	// How long a read of servers elsewhere is waited for: longer than an election.
	readLimit     = 12 * time.Second
	reconnectWait = 250 * time.Millisecond
	// A server that went silent without closing is noticed after three of these.
	pingEvery = 2 * time.Second

	oldestMajor, oldestMinor = 2, 15 // schedules before it lose or resurrect messages
	leastPayload             = 1 << 20

	apiPrefix         = "$JS.API."
	expectedHeader    = "Nats-Expected-Last-Subject-Sequence"
	expectedForHeader = "Nats-Expected-Last-Subject-Sequence-Subject"

	batchHeader         = "Nats-Batch-Id"
	batchSequenceHeader = "Nats-Batch-Sequence"
	batchCommitHeader   = "Nats-Batch-Commit"
	batchPrefix         = 8 // characters of a batch's id that are the connection's own

	codeStoreFailed   = 10077 // also "subject full", told apart by its text
	textSubjectFull   = "maximum messages per subject exceeded"
	codeNoMessage     = 10037
	codeNoStream      = 10059
	firstServerStatus = 500
)

// ErrNoJetStream says that the server has JetStream turned off.
var ErrNoJetStream = errors.New("the NATS server has no JetStream")

// ErrServerTooOld says that the server is older than we can work with.
var ErrServerTooOld = errors.New("the NATS server is too old")

// Config says where the streams are.
type Config struct {
	// Dial opens a connection inside the process; nil means URLs.
	Dial func() (net.Conn, error)
	// URLs of the servers, comma separated.
	URLs string
	// Name is how the server's own listings show this connection.
	Name string
	// Credentials gives the text of a NATS credentials file, or a bare nkey seed;
	// it is asked at each connection, so that a renewed file counts. Nil: none.
	Credentials func() ([]byte, error)
	// TLS is how the servers are recognised and what they see of us. Nil: what
	// the URLs say.
	TLS *tls.Config
	// Replicas of each stream: 1, 3 or 5; 0 means as many as they were
	// provisioned with, for processes that never provision.
	Replicas int
	// Regained is called when the connection was lost and is there again, from a
	// goroutine of the connection; nil calls nobody.
	Regained func()
	// Group says how writes to LEDGER and PAYLOADS are grouped, see [Grouped].
	Group GroupPolicy
	// Logger hears of lost and regained connections. Nil means nobody.
	Logger *slog.Logger
}

// NATS is the [Store] over a JetStream server or cluster. It may be shared
// between goroutines.
type NATS struct {
	conn     *nats.Conn
	js       jetstream.JetStream
	asks     *asks
	replicas int
	batches  batchNames
	commits  struct{ alone, batches atomic.Uint64 }
	group    *Grouped
	limit    time.Duration // of one write

	seatsMu sync.Mutex
	seats   map[int]jetstream.Consumer // that were joined, by partition; guarded by seatsMu

	elsewhere bool     // the servers are other processes
	runs      sync.Map // by stream: how it takes a run

	// replicated says that reads go to the leader by name. On one replica the
	// streams allow direct reads, until one says that it does not.
	replicated atomic.Bool
}

// Connect connects and checks that the server can carry the journal. It makes
// no streams.
func Connect(ctx context.Context, c Config) (*NATS, error) {
	if c.Replicas < 0 {
		return nil, fmt.Errorf("connect to the store: %d replicas, want at least 1", c.Replicas)
	}
	asks := &asks{lost: make(chan struct{})}
	list, err := options(c, asks.disconnected)
	if err != nil {
		return nil, fmt.Errorf("connect to the store: %w", err)
	}
	conn, err := nats.Connect(c.URLs, list...)
	if err != nil {
		return nil, fmt.Errorf("connect to the store: %w", err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to the store: %w", err)
	}
	asks.conn = conn
	n := &NATS{conn: conn, js: js, asks: asks, replicas: c.Replicas, limit: writeLimit, elsewhere: c.Dial == nil, batches: batchNames{prefix: rand.Text()[:batchPrefix]}}
	if !n.elsewhere {
		n.limit = answerLimit
	}
	n.group = Group(direct{n}, c.Group)
	n.group.limit = n.limit
	n.replicated.Store(c.Replicas != 1)
	if err := n.checkServer(ctx); err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to the store: %w", err)
	}
	return n, nil
}

type dialer func() (net.Conn, error)

// InProcessConn implements the client library's interface of that name.
func (d dialer) InProcessConn() (net.Conn, error) { return d() }

// options calls lost each time the connection is lost or closed.
func options(c Config, lost func()) ([]nats.Option, error) {
	list := []nats.Option{
		nats.Name(c.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		// No buffer: a publish made while the server is away must fail then and
		// not land when it is back, long after its caller was told otherwise.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			lost()
			if err != nil && c.Logger != nil { // without one it was closed by us
				c.Logger.Warn("store connection lost", "error", err)
			}
		}),
		nats.ReconnectHandler(func(conn *nats.Conn) {
			if c.Logger != nil {
				c.Logger.Info("store connection regained", "server", conn.ConnectedServerName())
			}
			if c.Regained != nil {
				c.Regained()
			}
		}),
	}
	if c.Dial != nil {
		list = append(list, nats.InProcessServer(dialer(c.Dial)))
	} else {
		list = append(list,
			// A credential that is refused may be renewed: two refusals are no
			// reason to give up for ever.
			nats.IgnoreAuthErrorAbort(),
			nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2),
		)
	}
	if c.TLS != nil {
		list = append(list, nats.Secure(c.TLS))
	}
	if c.Credentials != nil {
		who, err := authenticate(c.Credentials)
		if err != nil {
			return nil, err
		}
		list = append(list, who)
	}
	if c.Logger != nil {
		list = append(list,
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
				c.Logger.Error("store connection error", "error", err)
			}),
		)
	} else {
		list = append(list, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // the library would print
	}
	return list, nil
}

// authenticate says who we are to the server: by a user's JWT and its seed, as
// in a credentials file, or by a seed alone. Seeds are forgotten after each use.
func authenticate(read func() ([]byte, error)) (nats.Option, error) {
	text, err := read()
	if err != nil {
		return nil, err
	}
	sign := func(nonce []byte) ([]byte, error) {
		text, err := read()
		if err != nil {
			return nil, err
		}
		defer wipe(text)
		keys, err := keysIn(text)
		if err != nil {
			return nil, err
		}
		defer keys.Wipe()
		return keys.Sign(nonce)
	}
	defer wipe(text)
	keys, err := keysIn(text)
	if err != nil {
		return nil, err
	}
	defer keys.Wipe()
	if !bytes.Contains(text, []byte(jwtMark)) {
		public, err := keys.PublicKey()
		if err != nil {
			return nil, errBadCredentials
		}
		return nats.Nkey(public, sign), nil
	}
	return nats.UserJWT(func() (string, error) {
		text, err := read()
		if err != nil {
			return "", err
		}
		defer wipe(text)
		token, err := nkeys.ParseDecoratedJWT(text)
		if err != nil {
			return "", errBadCredentials
		}
		return token, nil
	}, sign), nil
}

// jwtMark begins the first part of a credentials file.
const jwtMark = "-----BEGIN NATS USER JWT-----"

// errBadCredentials says no more: the library's own errors may quote.
var errBadCredentials = errors.New("the NATS credentials are neither a credentials file nor an nkey seed of a user (SU...)")

func keysIn(text []byte) (nkeys.KeyPair, error) {
	keys, err := nkeys.ParseDecoratedUserNKey(text)
	if err != nil {
		return nil, errBadCredentials
	}
	return keys, nil
}

func wipe(text []byte) { clear(text) }

// Close takes no more writes, gives those under way the time to be answered, and
// ends the connection.
func (n *NATS) Close() {
	n.group.drain(answerLimit)
	n.conn.Close()
	n.asks.disconnected()
	n.group.work.Wait()
}

func (n *NATS) checkServer(ctx context.Context) error {
	version := n.conn.ConnectedServerVersion()
	if !recent(version) {
		return fmt.Errorf("%w: it is version %q, want %d.%d or later", ErrServerTooOld, version, oldestMajor, oldestMinor)
	}
	if has := n.conn.MaxPayload(); has < leastPayload {
		return fmt.Errorf("the NATS server takes messages of at most %d bytes, want %d (max_payload)", has, leastPayload)
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, err := n.js.AccountInfo(ctx)
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("%w: %w", ErrNoJetStream, err)
	case err != nil:
		return fmt.Errorf("ask the NATS server for JetStream: %w", err)
	}
	return nil
}

// recent reads "2.15.3" and "2.16.0-beta.1".
func recent(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, err := strconv.Atoi(strings.TrimPrefix(parts[0], "v"))
	if err != nil {
		return false
	}
	minor, err := strconv.Atoi(parts[1])
	if err != nil {
		return false
	}
	return major > oldestMajor || major == oldestMajor && minor >= oldestMinor
}

// ErrNotProvisioned says that a stream is missing.
var ErrNotProvisioned = errors.New("the streams are not provisioned")

// Provision makes the streams that are missing, then checks all of them. It
// never changes a stream that is there. It needs the right to create streams,
// which no role has on a cluster, and Config.Replicas.
func (n *NATS) Provision(ctx context.Context) error {
	if n.replicas == 0 {
		return errors.New("provision the streams: the number of replicas is not given")
	}
	// A crash in between leaves some streams missing and the others empty;
	// running it again makes the rest.
	for _, s := range Streams() {
		_, err := n.info(ctx, s)
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrNotProvisioned) {
			return err
		}
		if err := n.create(ctx, configuration(s, n.replicas)); err != nil {
			return err
		}
	}
	return n.Check(ctx)
}

// create asks pedantically: a setting the server would have to change to make
// it work is refused and not silently dropped.
func (n *NATS) create(ctx context.Context, c jetstream.StreamConfig) error {
	request := struct {
		jetstream.StreamConfig
		Pedantic bool `json:"pedantic"`
	}{c, true}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	err := n.ask(ctx, "STREAM.CREATE."+c.Name, request, &answer)
	if err == nil && answer.Error != nil {
		err = answer.Error
		if answer.Error.ErrorCode == noPeers {
			err = fmt.Errorf("%w: %w", ErrTooFewNodes, err)
		}
	}
	if err != nil {
		return fmt.Errorf("create stream %s: %w", c.Name, err)
	}
	return nil
}

// ErrTooFewNodes says that the servers know of fewer nodes than a stream is to have
// replicas. Those that have just started come to know each other one by one.
var ErrTooFewNodes = errors.New("fewer nodes than replicas")

// noPeers is the server's code for it.
const noPeers = 10005

// Check compares server and streams with what was provisioned and returns all
// differences, each a [*DriftError]. Whether the server syncs every write is
// not visible from here.
func (n *NATS) Check(ctx context.Context) error {
	if err := n.checkServer(ctx); err != nil {
		return err
	}
	var problems []error
	replicas := n.replicas
	for _, s := range Streams() {
		have, err := n.info(ctx, s)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if replicas == 0 { // of the first, for all
			replicas = provisionedReplicas(have)
		}
		problems = append(problems, drift(configuration(s, replicas), have))
	}
	return errors.Join(problems...)
}

func (n *NATS) info(ctx context.Context, s Stream) (jetstream.StreamConfig, error) {
	var answer struct {
		Error  *jetstream.APIError    `json:"error"`
		Config jetstream.StreamConfig `json:"config"`
	}
	err := n.ask(ctx, "STREAM.INFO."+string(s), struct{}{}, &answer)
	if err == nil && answer.Error != nil {
		err = answer.Error
	}
	if isCode(err, codeNoStream) {
		return jetstream.StreamConfig{}, fmt.Errorf("%w: stream %s is missing", ErrNotProvisioned, s)
	}
	if err != nil {
		return jetstream.StreamConfig{}, fmt.Errorf("read configuration of stream %s: %w", s, err)
	}
	return answer.Config, nil
}

// ask sends one request to the JetStream API.
func (n *NATS) ask(ctx context.Context, what string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	answer, err := n.conn.RequestWithContext(ctx, apiPrefix+what, body)
	if err != nil {
		return err
	}
	return readAnswer(answer, out)
}

func readAnswer(answer *nats.Msg, out any) error {
	if err := json.Unmarshal(answer.Data, out); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	return nil
}

// askPatiently is ask for what may be asked twice: as long as no answer comes it
// asks again and again, and takes the first.
func (n *NATS) askPatiently(ctx context.Context, what string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if !n.elsewhere {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerLimit)
		defer cancel()
	}
	first, stop := context.WithTimeout(ctx, readAgain)
	answer, err := n.conn.RequestWithContext(first, apiPrefix+what, body)
	stop()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		answer, err = repeat(ctx, n.conn, apiPrefix+what, body)
	}
	if err != nil {
		return err
	}
	return readAnswer(answer, out)
}

// repeat sends a request every readAgain until one of them is answered or ctx
// ends. The answer to an earlier one counts, so that a slow server is not asked
// for ever.
func repeat(ctx context.Context, conn *nats.Conn, subject string, body []byte) (*nats.Msg, error) {
	inbox := conn.NewInbox()
	answers, err := conn.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answers.Unsubscribe() }() // it fails with the connection, which the next request meets
	for {
		if err := conn.PublishRequest(subject, inbox, body); err != nil {
			return nil, err
		}
		wait, stop := context.WithTimeout(ctx, readAgain)
		answer, err := answers.NextMsgWithContext(wait)
		stop()
		switch {
		case err == nil:
			return answer, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, err
		}
	}
}

func isCode(err error, code jetstream.ErrorCode) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == code
}

// Publish implements [Store].
func (n *NATS) Publish(ctx context.Context, s Stream, m Outgoing) (uint64, error) {
	return n.group.Publish(ctx, s, m)
}

// Commits counts, since the start, the commits to synced streams that the
// server acknowledged: of single writes and of batches.
func (n *NATS) Commits() (alone, batches uint64) {
	return n.commits.alone.Load(), n.commits.batches.Load()
}

// direct is the store without the group commit.
type direct struct{ *NATS }

// Publish implements [Store].
func (d direct) Publish(ctx context.Context, s Stream, m Outgoing) (uint64, error) {
	// Sent once: a repeat after a lost answer is the journal's to judge.
	answer, err := d.asks.request(ctx, wireMessage(m), d.limit)
	if err != nil {
		return 0, fmt.Errorf("publish on %s: %w", m.Subject, classify(err))
	}
	sequence, err := acknowledged(answer.Data, s)
	if err != nil {
		return 0, fmt.Errorf("publish on %s: %w", m.Subject, err)
	}
	switch s {
	case Ledger, Control, Webhooks, Payloads, Intents, Verdicts:
		d.commits.alone.Add(1)
	case History, Wakeups, Index:
	}
	return sequence, nil
}

// wireMessage is a message as it is sent. It is made anew for each attempt.
func wireMessage(m Outgoing) *nats.Msg {
	out := &nats.Msg{Subject: m.Subject, Header: make(nats.Header, len(m.Header)+2)}
	for name, values := range m.Header {
		out.Header[name] = values
	}
	if m.Guard != nil {
		out.Header.Set(expectedHeader, strconv.FormatUint(m.Guard.Sequence, 10))
		if m.Guard.Subject != "" && m.Guard.Subject != m.Subject {
			out.Header.Set(expectedForHeader, m.Guard.Subject)
		}
	}
	out.Data = m.Data
	return out
}

// batchNames gives each batch an id of its own. It is stored with each message
// of the batch, so it is short.
type batchNames struct {
	prefix string
	count  atomic.Uint64
}

func (b *batchNames) next() string { return b.prefix + strconv.FormatUint(b.count.Add(1), 36) }

// PublishBatch implements [Store], past the group commit.
func (n *NATS) PublishBatch(ctx context.Context, s Stream, list []Outgoing) ([]uint64, error) {
	id := n.batches.next()
	for i, m := range list {
		out := wireMessage(m)
		out.Header.Set(batchHeader, id)
		out.Header.Set(batchSequenceHeader, strconv.Itoa(i+1))
		if i+1 < len(list) {
			// The server answers none of these. What it minds, and what got lost on
			// the way, has the last one refused.
			if err := n.conn.PublishMsg(out); err != nil {
				return nil, fmt.Errorf("publish a batch on %s: %w", s, classify(err))
			}
			continue
		}
		out.Header.Set(batchCommitHeader, "1")
		answer, err := n.asks.request(ctx, out, n.limit)
		if err != nil {
			return nil, fmt.Errorf("publish a batch on %s: %w", s, classify(err))
		}
		last, err := batchAnswer(answer.Data, s, id, len(list))
		if err != nil {
			return nil, fmt.Errorf("publish a batch on %s: %w", s, err)
		}
		n.commits.batches.Add(1)
		sequences := make([]uint64, len(list))
		for i := range sequences {
			sequences[i] = last - uint64(len(list)-1-i)
		}
		return sequences, nil
	}
	return nil, nil
}

// batchAnswer reads the one answer to a batch: the sequence of its last message.
// Nothing comes between the messages of a batch.
func batchAnswer(data []byte, s Stream, id string, count int) (uint64, error) {
	var answer struct {
		Error    *jetstream.APIError `json:"error"`
		Stream   string              `json:"stream"`
		Sequence uint64              `json:"seq"`
		Batch    string              `json:"batch"`
		Count    int                 `json:"count"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return 0, fmt.Errorf("%w: read the server's answer: %w", ErrUnanswered, err)
	}
	switch {
	case answer.Error != nil:
		return 0, classify(answer.Error)
	case answer.Stream != string(s) || answer.Batch != id || answer.Count != count || answer.Sequence < uint64(count):
		return 0, fmt.Errorf("%w: the answer is for batch %q of %d on stream %s, not for %q of %d", ErrUnanswered, answer.Batch, answer.Count, answer.Stream, id, count)
	}
	return answer.Sequence, nil
}

// classify maps the server's and the library's errors to ours. What is not
// known for certain to have stored nothing is unanswered.
func classify(err error) error {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		for _, before := range []error{nats.ErrMaxPayload, nats.ErrBadSubject, nats.ErrHeadersNotSupported} {
			if errors.Is(err, before) {
				return err // refused before anything left
			}
		}
		// The server says so at once where nobody hears a subject, here or elsewhere.
		if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) {
			return fmt.Errorf("%w: %w", ErrNobody, err)
		}
		return fmt.Errorf("%w: %w", ErrUnanswered, err)
	}
	switch {
	case api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence:
		return fmt.Errorf("%w: %w", ErrWrongSequence, err)
	case api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return fmt.Errorf("%w: %w", ErrInFlight, err)
	case api.ErrorCode == codeStoreFailed && strings.Contains(api.Description, textSubjectFull):
		return fmt.Errorf("%w: %w", ErrSubjectFull, err)
	case api.Code >= firstServerStatus:
		// A store that failed may have written all the same.
		return fmt.Errorf("%w: %w", ErrUnanswered, err)
	}
	return err
}

// get is a read at the stream's leader. The library's own reads go to any
// replica where a stream allows that, and replicas lag.
func (n *NATS) get(ctx context.Context, s Stream, request any) (Message, error) {
	if !n.replicated.Load() {
		m, refused, err := n.directly(ctx, s, request)
		if !refused {
			return m, err
		}
		n.replicated.Store(true)
	}
	if !n.elsewhere {
		return n.getOnce(ctx, s, request)
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	for {
		m, err := n.getOnce(ctx, s, request)
		if !errors.Is(err, ErrUnread) || !pause(ctx, readAgain/2) {
			return m, err
		}
	}
}

// pause says whether ctx lasted so long.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (n *NATS) getOnce(ctx context.Context, s Stream, request any) (Message, error) {
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject  string    `json:"subject"`
			Sequence uint64    `json:"seq"`
			Header   []byte    `json:"hdrs"`
			Data     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
	}
	err := n.askPatiently(ctx, "STREAM.MSG.GET."+string(s), request, &answer)
	switch {
	case err != nil:
		return Message{}, fmt.Errorf("read from stream %s: %w: %w", s, ErrUnread, err)
	case answer.Error != nil && answer.Error.ErrorCode == codeNoMessage:
		return Message{}, ErrNoMessage
	case answer.Error != nil && answer.Error.Code >= firstServerStatus:
		return Message{}, fmt.Errorf("read from stream %s: %w: %w", s, ErrUnread, answer.Error)
	case answer.Error != nil:
		return Message{}, fmt.Errorf("read from stream %s: %w", s, answer.Error)
	case answer.Message == nil:
		return Message{}, fmt.Errorf("read from stream %s: an answer without message", s)
	}
	m := Message{
		Subject: answer.Message.Subject, Sequence: answer.Message.Sequence,
		Time: answer.Message.Time.UTC(), Data: answer.Message.Data,
	}
	if len(answer.Message.Header) > 0 {
		header, err := nats.DecodeHeadersMsg(answer.Message.Header)
		if err != nil {
			return Message{}, fmt.Errorf("read headers of message %d of stream %s: %w", m.Sequence, s, err)
		}
		m.Header = header
	}
	return m, nil
}

// Last implements [Store].
func (n *NATS) Last(ctx context.Context, s Stream, subject string) (Message, error) {
	return n.get(ctx, s, struct {
		Subject string `json:"last_by_subj"`
	}{subject})
}

// Next implements [Store].
func (n *NATS) Next(ctx context.Context, s Stream, subject string, from uint64) (Message, error) {
	return n.get(ctx, s, struct {
		Sequence uint64 `json:"seq"`
		Subject  string `json:"next_by_subj"`
	}{max(from, 1), subject})
}
