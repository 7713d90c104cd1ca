package fence

// Parts that the tests of statements and of counters look at.
const (
	TypeGrant    = typeGrant
	MaxTokenText = maxTokenText
)

var (
	SequenceFrom = counterFrom
	ParseToken   = parseToken
)

type Sequence = counter
