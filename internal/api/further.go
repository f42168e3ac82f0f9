package api

import (
	"context"
	"net/http"

	"github.com/counterfoil/counterfoil/internal/ingest"
)

func (h *handler) input(ctx context.Context, c *call) (answer, error) {
	return h.ask(ctx, c, h.o.Service.Input)
}

func (h *handler) cleanup(ctx context.Context, c *call) (answer, error) {
	return h.ask(ctx, c, h.o.Service.Cleanup)
}

// ask answers a request for a further call: 202 where this request recorded it.
func (h *handler) ask(ctx context.Context, c *call, do func(context.Context, ingest.AskRequest) (ingest.View, ingest.Asked, error)) (answer, error) {
	r := ingest.AskRequest{Caller: c.caller, ID: c.operation, Body: c.body}
	var err error
	if r.Key, err = ingest.ParseKey(c.r.Header["Idempotency-Key"]); err != nil {
		return answer{}, err
	}
	if r.Version, err = c.ifMatch(); err != nil {
		return answer{}, err
	}
	view, asked, err := do(ctx, r)
	if err != nil {
		return answer{}, err
	}
	status := http.StatusOK
	if asked == ingest.AskedNow {
		status = http.StatusAccepted
	}
	a, err := c.show(status, view)
	return markReplayed(a, asked == ingest.AskedBefore), err
}

func inputSheet() sheet {
	return sheet{
		id: "answerOperation", tag: tagOperations, title: "Answer what an operation's job waits for",
		text: "Recorded where the job waits for an answer, and passed on once, by the contract: input.given says what became of it, and the job's state whether it goes on. " +
			"One answer after the other; another is taken once a read has shown that the job waits again. " +
			"It names the question it answers, and is refused if the job asks something else by now.",
		params: []string{paramID, paramKey, paramMatchMaybe}, body: typeOf[ingest.InputBody](),
		answers: []outcome{
			showing(http.StatusAccepted, "The answer is recorded and will be passed on."),
			showing(http.StatusOK, "The key had given this answer before.", "Idempotent-Replayed"),
		},
		codes: []ingest.Code{
			ingest.CodeKeyMissing, ingest.CodeKeyInvalid, ingest.CodeKeyReused, ingest.CodePreconditionInvalid, ingest.CodeStale, ingest.CodeAlreadyTerminal,
			ingest.CodeInputUnsupported, ingest.CodeInputNotWanted, ingest.CodeQuestionDiffers, ingest.CodeMoving, ingest.CodeNewerVersion, ingest.CodeAccountNotAllowed,
		},
	}
}

func cleanupSheet() sheet {
	return sheet{
		id: "cleanUpOperation", tag: tagOperations, title: "Have removed what an operation's job left",
		text: "The contract's compensating action, such as deleting the job and its files, of an operation that has ended or stopped. It moves the operation nowhere: cleanup says what became of it, " +
			"and claims nothing that the provider did not say. Also of a stray job.",
		params: []string{paramID, paramKey, paramMatchMaybe}, body: typeOf[ingest.CleanupBody](),
		answers: []outcome{
			showing(http.StatusAccepted, "It is recorded and will be sent."),
			showing(http.StatusOK, "It was done before, and nothing is sent. Or the key had asked for it before.", "Idempotent-Replayed"),
		},
		codes: []ingest.Code{
			ingest.CodeKeyMissing, ingest.CodeKeyInvalid, ingest.CodeKeyReused, ingest.CodePreconditionInvalid, ingest.CodeStale,
			ingest.CodeCleanupUnsupported, ingest.CodeCleanupNotAllowed, ingest.CodeCleanupUnderWay, ingest.CodeMoving, ingest.CodeJobOwned, ingest.CodeNewerVersion,
		},
	}
}
