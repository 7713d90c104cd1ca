package term

// Format is how data is printed.
type Format string

// The forms that data comes in.
const (
	TableFormat Format = "table"
	Wide        Format = "wide"
	JSON        Format = "json"
	YAML        Format = "yaml"
	Names       Format = "name" // what a command lists, one name a line
)

// Formats returns the words of all forms.
func Formats() []string {
	return []string{string(TableFormat), string(Wide), string(JSON), string(YAML), string(Names)}
}
