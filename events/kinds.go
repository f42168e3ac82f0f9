package events

// Type implements [Fact].
func (*IntentRecorded) Type() Type { return TypeIntentRecorded }

// Kind implements [Fact].
func (*IntentRecorded) Kind() Kind { return Permit }

func (*IntentRecorded) fact() {}

// Type implements [Fact].
func (*ApprovalGranted) Type() Type { return TypeApprovalGranted }

// Kind implements [Fact].
func (*ApprovalGranted) Kind() Kind { return Permit }

func (*ApprovalGranted) fact() {}

// Type implements [Fact].
func (*ApprovalDenied) Type() Type { return TypeApprovalDenied }

// Kind implements [Fact].
func (*ApprovalDenied) Kind() Kind { return Permit }

func (*ApprovalDenied) fact() {}

// Type implements [Fact].
func (*PrepareAttempted) Type() Type { return TypePrepareAttempted }

// Kind implements [Fact].
func (*PrepareAttempted) Kind() Kind { return Permit }

func (*PrepareAttempted) fact() {}

// Type implements [Fact].
func (*PrepareAnswered) Type() Type { return TypePrepareAnswered }

// Kind implements [Fact].
func (*PrepareAnswered) Kind() Kind { return Evidence }

func (*PrepareAnswered) fact() {}

// Type implements [Fact].
func (*CreateAttempted) Type() Type { return TypeCreateAttempted }

// Kind implements [Fact].
func (*CreateAttempted) Kind() Kind { return Permit }

func (*CreateAttempted) fact() {}

// Type implements [Fact].
func (*CreateAnswered) Type() Type { return TypeCreateAnswered }

// Kind implements [Fact].
func (*CreateAnswered) Kind() Kind { return Evidence }

func (*CreateAnswered) fact() {}

// Type implements [Fact].
func (*LookupAnswered) Type() Type { return TypeLookupAnswered }

// Kind implements [Fact].
func (*LookupAnswered) Kind() Kind { return Evidence }

func (*LookupAnswered) fact() {}

// Type implements [Fact].
func (*JobObserved) Type() Type { return TypeJobObserved }

// Kind implements [Fact].
func (*JobObserved) Kind() Kind { return Evidence }

func (*JobObserved) fact() {}

// Type implements [Fact].
func (*ObservationFailed) Type() Type { return TypeObservationFailed }

// Kind implements [Fact].
func (*ObservationFailed) Kind() Kind { return Evidence }

func (*ObservationFailed) fact() {}

// Type implements [Fact].
func (*JobContested) Type() Type { return TypeJobContested }

// Kind implements [Fact].
func (*JobContested) Kind() Kind { return Evidence }

func (*JobContested) fact() {}

// Type implements [Fact].
func (*WebhookReceived) Type() Type { return TypeWebhookReceived }

// Kind implements [Fact].
func (*WebhookReceived) Kind() Kind { return Evidence }

func (*WebhookReceived) fact() {}

// Type implements [Fact].
func (*CancelRequested) Type() Type { return TypeCancelRequested }

// Kind implements [Fact].
func (*CancelRequested) Kind() Kind { return Evidence }

func (*CancelRequested) fact() {}

// Type implements [Fact].
func (*CancelAttempted) Type() Type { return TypeCancelAttempted }

// Kind implements [Fact].
func (*CancelAttempted) Kind() Kind { return Permit }

func (*CancelAttempted) fact() {}

// Type implements [Fact].
func (*CancelAnswered) Type() Type { return TypeCancelAnswered }

// Kind implements [Fact].
func (*CancelAnswered) Kind() Kind { return Evidence }

func (*CancelAnswered) fact() {}

// Type implements [Fact].
func (*ResultAttempted) Type() Type { return TypeResultAttempted }

// Kind implements [Fact].
func (*ResultAttempted) Kind() Kind { return Permit }

func (*ResultAttempted) fact() {}

// Type implements [Fact].
func (*ResultCollected) Type() Type { return TypeResultCollected }

// Kind implements [Fact].
func (*ResultCollected) Kind() Kind { return Evidence }

func (*ResultCollected) fact() {}

// Type implements [Fact].
func (*ResultFailed) Type() Type { return TypeResultFailed }

// Kind implements [Fact].
func (*ResultFailed) Kind() Kind { return Evidence }

func (*ResultFailed) fact() {}

// Type implements [Fact].
func (*CleanupRequested) Type() Type { return TypeCleanupRequested }

// Kind implements [Fact].
func (*CleanupRequested) Kind() Kind { return Evidence }

func (*CleanupRequested) fact() {}

// Type implements [Fact].
func (*CleanupAttempted) Type() Type { return TypeCleanupAttempted }

// Kind implements [Fact].
func (*CleanupAttempted) Kind() Kind { return Permit }

func (*CleanupAttempted) fact() {}

// Type implements [Fact].
func (*CleanupAnswered) Type() Type { return TypeCleanupAnswered }

// Kind implements [Fact].
func (*CleanupAnswered) Kind() Kind { return Evidence }

func (*CleanupAnswered) fact() {}

// Type implements [Fact].
func (*InputSubmitted) Type() Type { return TypeInputSubmitted }

// Kind implements [Fact].
func (*InputSubmitted) Kind() Kind { return Evidence }

func (*InputSubmitted) fact() {}

// Type implements [Fact].
func (*InputAttempted) Type() Type { return TypeInputAttempted }

// Kind implements [Fact].
func (*InputAttempted) Kind() Kind { return Permit }

func (*InputAttempted) fact() {}

// Type implements [Fact].
func (*InputAnswered) Type() Type { return TypeInputAnswered }

// Kind implements [Fact].
func (*InputAnswered) Kind() Kind { return Evidence }

func (*InputAnswered) fact() {}

// Type implements [Fact].
func (*DeadlinePassed) Type() Type { return TypeDeadlinePassed }

// Kind implements [Fact].
func (*DeadlinePassed) Kind() Kind { return Permit }

func (*DeadlinePassed) fact() {}

// Type implements [Fact].
func (*DecisionMade) Type() Type { return TypeDecisionMade }

// Kind implements [Fact].
func (*DecisionMade) Kind() Kind { return Permit }

func (*DecisionMade) fact() {}

// Type implements [Fact].
func (*StepDeferred) Type() Type { return TypeStepDeferred }

// Kind implements [Fact].
func (*StepDeferred) Kind() Kind { return Evidence }

func (*StepDeferred) fact() {}

// Type implements [Fact].
func (*OperationPaused) Type() Type { return TypeOperationPaused }

// Kind implements [Fact].
func (*OperationPaused) Kind() Kind { return Evidence }

func (*OperationPaused) fact() {}

// Type implements [Fact].
func (*OperationResumed) Type() Type { return TypeOperationResumed }

// Kind implements [Fact].
func (*OperationResumed) Kind() Kind { return Evidence }

func (*OperationResumed) fact() {}

// Type implements [Fact].
func (*TagsChanged) Type() Type { return TypeTagsChanged }

// Kind implements [Fact].
func (*TagsChanged) Kind() Kind { return Evidence }

func (*TagsChanged) fact() {}

// Type implements [Fact].
func (*OperationLinked) Type() Type { return TypeOperationLinked }

// Kind implements [Fact].
func (*OperationLinked) Kind() Kind { return Evidence }

func (*OperationLinked) fact() {}

// Type implements [Fact].
func (*NotificationAttempted) Type() Type { return TypeNotificationAttempted }

// Kind implements [Fact].
func (*NotificationAttempted) Kind() Kind { return Permit }

func (*NotificationAttempted) fact() {}

// Type implements [Fact].
func (*NotificationAnswered) Type() Type { return TypeNotificationAnswered }

// Kind implements [Fact].
func (*NotificationAnswered) Kind() Kind { return Evidence }

func (*NotificationAnswered) fact() {}

// Type implements [Fact].
func (u *Unknown) Type() Type { return u.Name }

// Kind implements [Fact].
func (*Unknown) Kind() Kind { return Evidence }

func (*Unknown) fact() {}
