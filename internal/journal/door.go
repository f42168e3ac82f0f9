package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A Door takes what agents publish and has it stored in INTENTS, without the headers
// by which the server would do more than store: it drops a message whose Nats-Msg-Id
// another had a moment before, whoever sent that, and acknowledges it all the same; and
// asked for an expected sequence it tells how many messages there are. It cannot be told
// not to, see the window in configuration.
//
// A Door keeps nothing. What it takes it publishes at once, with an address of its own
// for the server's answer that ends in the sender's; and what comes there it hands on.
// So an agent is acknowledged by nobody but the stream, and only what is stored:
//
//   - a crash before the message is published leaves nothing, and no acknowledgement;
//   - a crash after it leaves an intent that its sender does not know of. The same event
//     again is a second message and the same operation;
//   - while nobody holds a door open the server says so to whoever waits for an answer.
//
// Each message goes to one of the doors that are open. What comes faster than the server
// takes it waits here; behind 32 MiB it is refused, as the server would, and beyond 64 MiB
// dropped, so that it is not acknowledged either.
type Door struct {
	conn   *nats.Conn
	closed chan struct{}
	log    *slog.Logger
	wrong  atomic.Uint64 // how often something was, see minds
}

const (
	doorQueue = "door"
	doorRoom  = 64 << 20 // bytes that wait
	doorFull  = doorRoom / 2
	// replyPrefix begins the address that the server gives an answer on its way from
	// one account to another, gatewayPrefix the same from another cluster.
	replyPrefix, gatewayPrefix = "_R_.", "_GR_."

	serverHeaders  = "nats-"
	messageID      = "nats-msg-id"
	expectedStream = "nats-expected-stream"
	requestInfo    = "nats-request-info" // the server says there whose message it is
	tracing        = "nats-trace-"       // ends at the account's border

	codeBad, codeMany, codeAway = 400, 429, 503 // as by HTTP; the others are the server's

	codeBadRequest  = 10003
	codeOtherStream = 10060
	codeNoStore     = 10008
	codeTooMany     = 10167
)

// OpenDoor opens a door. It has a connection of its own, since the server cuts off who
// does not read what agents send fast enough.
func OpenDoor(c Config) (*Door, error) {
	d := &Door{closed: make(chan struct{}), log: c.Logger}
	list, err := options(c, func() {})
	if err != nil {
		return nil, fmt.Errorf("open the door for agents: %w", err)
	}
	list = append(list, nats.ErrorHandler(d.minds), nats.ClosedHandler(func(*nats.Conn) { close(d.closed) }))
	if d.conn, err = nats.Connect(c.URLs, list...); err != nil {
		return nil, fmt.Errorf("open the door for agents: %w", err)
	}
	answers := d.conn.NewRespInbox() + "."
	_, err = d.conn.Subscribe(answers+">", func(m *nats.Msg) { d.answer(strings.TrimPrefix(m.Subject, answers), m) })
	if err == nil {
		var taking *nats.Subscription
		if taking, err = d.conn.QueueSubscribe(offers+"*.*", doorQueue, func(m *nats.Msg) { d.take(m, answers) }); err == nil {
			err = taking.SetPendingLimits(-1, doorRoom)
		}
	}
	if err == nil {
		err = d.conn.Flush()
	}
	if err != nil {
		d.conn.Close()
		<-d.closed
		return nil, fmt.Errorf("open the door for agents: %w", err)
	}
	return d, nil
}

// Close takes no more. What is taken by then is stored; answers that are yet to come are
// lost, and their agents send the same events again.
func (d *Door) Close() {
	if d.conn.Drain() != nil {
		d.conn.Close() // it is away
	}
	<-d.closed
}

// minds hears what goes wrong beside a call. Each message of an agent may cause it, so
// the log hears of the 1st, 2nd, 4th, 8th time and so on.
func (d *Door) minds(_ *nats.Conn, _ *nats.Subscription, err error) {
	if d.log == nil || errors.Is(err, nats.ErrBadHeaderMsg) { // it comes without headers, and is no event
		return
	}
	times := d.wrong.Add(1)
	switch {
	case times&(times-1) != 0:
	case errors.Is(err, nats.ErrSlowConsumer):
		d.log.Warn("agents publish faster than intents are stored: what finds no room is dropped and not acknowledged", "times", times)
	default:
		d.log.Error("the door for agents", "error", err, "times", times)
	}
}

// take publishes an offer as an intent, or refuses it.
func (d *Door) take(m *nats.Msg, answers string) {
	subject, ok := strings.CutPrefix(m.Subject, offers)
	if !ok {
		return
	}
	reply := m.Reply
	// Other addresses have who is in the account of the streams already. An answer there
	// could be a message of any stream.
	if !strings.HasPrefix(reply, replyPrefix) && !strings.HasPrefix(reply, gatewayPrefix) {
		reply = ""
	}
	// Refusing is quicker than publishing, so that little is ever dropped.
	if _, waiting, err := m.Sub.Pending(); err == nil && waiting > doorFull {
		d.refuse(reply, &jetstream.APIError{Code: codeMany, ErrorCode: codeTooMany, Description: "too many requests"})
		return
	}
	header, refusal := intentHeaders(m)
	if refusal != nil {
		d.refuse(reply, refusal)
		return
	}
	out := &nats.Msg{Subject: intents + subject, Header: header, Data: m.Data}
	if reply != "" {
		out.Reply = answers + reply
	}
	// It fails while the connection is lost, too: nothing is stored, and nothing acknowledged.
	if err := d.conn.PublishMsg(out); errors.Is(err, nats.ErrBadHeaderMsg) {
		d.refuse(reply, &jetstream.APIError{Code: codeBad, ErrorCode: codeBadRequest, Description: "a header's name has characters that it cannot have"})
	}
}

// intentHeaders gives the headers that are stored: those of the sender, without what is
// addressed to the server. What would change what is asked for is refused rather than
// left out, so that no acknowledgement says more than was done.
func intentHeaders(m *nats.Msg) (nats.Header, *jetstream.APIError) {
	out := make(nats.Header, len(m.Header))
	for name, values := range m.Header {
		lower := strings.ToLower(name)
		switch {
		case lower == expectedStream:
			if len(values) != 1 || values[0] != string(Intents) {
				return nil, &jetstream.APIError{Code: codeBad, ErrorCode: codeOtherStream, Description: "expected stream does not match"}
			}
		case lower == messageID, lower == requestInfo, strings.HasPrefix(lower, tracing):
		case strings.HasPrefix(lower, serverHeaders):
			return nil, &jetstream.APIError{Code: codeBad, ErrorCode: codeBadRequest, Description: "an intent takes no header " + name + ": leave it out"}
		default:
			out[name] = values
		}
	}
	return out, nil
}

// answer hands an answer of the server on, as it is.
func (d *Door) answer(reply string, m *nats.Msg) {
	if len(m.Data) == 0 {
		// Nobody hears the stream's subjects, as while it has no leader. The answer that
		// says so is for the one who published.
		d.refuse(reply, &jetstream.APIError{Code: codeAway, ErrorCode: codeNoStore, Description: "JetStream system temporarily unavailable"})
		return
	}
	_ = d.conn.Publish(reply, m.Data) // it fails while the connection is lost; the agent asks again
}

// refuse answers in the server's form.
func (d *Door) refuse(reply string, why *jetstream.APIError) {
	if reply == "" {
		return
	}
	text, err := json.Marshal(struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
		Seq    uint64              `json:"seq"`
	}{why, string(Intents), 0})
	if err == nil {
		_ = d.conn.Publish(reply, text)
	}
}
